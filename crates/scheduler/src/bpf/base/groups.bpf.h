/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Weights of cgroups, flattened: the weight of a task among all tasks of the host is its part of
 * its group, times the group's part of the group above, and so on. Parts are of the active members,
 * as in the kernel's own group scheduling. Tasks outside of groups, which on a host without the cpu
 * controller are all of them, cost nothing here.
 *
 * Interface: group_of(), group_enter() and group_leave() of tasks, weight_of(), charge_groups() and
 * place_in_groups() for virtual time, add_group() and the functions below it for cgroups.
 */
#ifndef __SCX_HOLDFAST_GROUPS_BPF_H
#define __SCX_HOLDFAST_GROUPS_BPF_H

#include "../ctx.bpf.h"

#define MAX_GROUPS	(1 << 16)
#define MAX_GROUP_DEPTH 16

struct group {
	u64 parent;	/* cgroup id; 0: none that counts */
	u64 total;	/* weights of its active members, tasks and groups */
	u64 active;	/* their number; above ACTIVE_BITS its weight in its parent's total */
	u64 vtime;	/* charged for the CPU time of its members */
	u32 weight;	/* cpu.weight, or that of an idle group */
	u32 cpu_weight; /* its weight when it is not idle: the kernel's last value */
};

/* Of a group with cpu.idle. */
#define GROUP_WEIGHT_IDLE 1

/* Number and weight change in one step: the first and the last member must not mix them up. */
#define ACTIVE_BITS  32
#define ACTIVE_TRIES 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* While there is none, no task is looked up. */
static u32 nr_groups;

/* Deeper levels have no weight of their own: their tasks are members of the last that has. */
static bool is_too_deep(const struct cgroup *cgrp)
{
	return cgrp->level > MAX_GROUP_DEPTH;
}

/* 0 for the root: its members compete with the groups in it. */
static u64 group_of(struct cgroup *cgrp)
{
	struct cgroup *last;

	if (!cgrp || !cgrp->level)
		return 0;
	if (!is_too_deep(cgrp))
		return cgrp->kn->id;
	if (bpf_probe_read_kernel(&last, sizeof(last),
				  (void *)cgrp + bpf_core_field_offset(struct cgroup, ancestors) +
					  MAX_GROUP_DEPTH * sizeof(last)))
		return 0;
	return BPF_CORE_READ(last, kn, id);
}

/*
 * A member comes or goes. Returns the group's weight in its parent's total if the group becomes
 * active or inactive by that, else 0.
 */
static u32 count_active(struct group *g, bool comes)
{
	int i;

	bpf_for (i, 0, ACTIVE_TRIES) {
		u64 old = READ_ONCE(g->active), new;
		u32 nr = old, counted = old >> ACTIVE_BITS;
		bool edge = comes ? !nr : nr == 1;

		nr += comes ? 1 : -1;
		if (edge && comes)
			counted = READ_ONCE(g->weight);
		new = (u64)(edge && !comes ? 0 : counted) << ACTIVE_BITS | nr;
		if (__sync_val_compare_and_swap(&g->active, old, new) == old)
			return edge ? counted : 0;
	}
	return 0;
}

/* A task of weight @weight in group @id starts or stops wanting to run. */
static void group_count(u64 id, u32 weight, bool active)
{
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);

		if (!g)
			break;
		__sync_fetch_and_add(&g->total, active ? (u64)weight : -(u64)weight);
		weight = count_active(g, active);
		if (!weight)
			break;
		id = g->parent;
	}
}

/* The weight among all tasks of the host of a member with @weight in group @id. */
__noinline u32 weight_in_groups(u32 weight, u64 id)
{
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);

		if (!g)
			break;
		weight = hf_weight_in_group(weight, READ_ONCE(g->weight), READ_ONCE(g->total));
		id = g->parent;
	}
	return weight < HF_WEIGHT_MIN ? HF_WEIGHT_MIN : weight;
}

/*
 * Charges the groups of a member for its CPU time. The member has weight @own in group @id and
 * @weight among all tasks. Returns 0: before Linux 7 the verifier wants a number from every global
 * function.
 */
__noinline int charge_groups(u64 id, u32 own, u32 weight, u64 ran_ns)
{
	u64 now = READ_ONCE(vtime_now);
	u32 among_all = weight;
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		u64 vtime, placed;

		if (!g || !own)
			break;
		among_all = hf_weight_among_all(READ_ONCE(g->total), own, among_all);
		vtime = hf_scale_by_weight(ran_ns, among_all);
		vtime += __sync_fetch_and_add(&g->vtime, vtime);
		placed = hf_place_group(vtime, now, weight, &params);
		if (placed != vtime)
			__sync_val_compare_and_swap(&g->vtime, vtime, placed);
		own = READ_ONCE(g->weight);
		id = g->parent;
	}
	return 0;
}

/* Bounds @vtime of a member with weight @own in group @id and @weight among all tasks. */
__noinline u64 place_in_groups(u64 vtime, u64 id, u32 own, u32 weight, bool slept)
{
	u32 among_all = weight;
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);

		if (!g || !own)
			break;
		among_all = hf_weight_among_all(READ_ONCE(g->total), own, among_all);
		vtime = hf_place_in_group(vtime, READ_ONCE(g->vtime), weight, among_all, slept,
					  &params);
		own = READ_ONCE(g->weight);
		id = g->parent;
	}
	return vtime;
}

static u32 weight_of(struct task_struct *p, const struct task_ctx *tctx)
{
	u32 weight = p->scx.weight * HF_WEIGHT_SCALE;

	return tctx->group ? weight_in_groups(weight, tctx->group) : weight;
}

/* A task of a group starts to want to run. */
static void group_enter(struct task_struct *p)
{
	struct task_ctx *tctx;

	if (!READ_ONCE(nr_groups))
		return;
	tctx = task_ctx_of(p);
	if (!tctx || !tctx->group)
		return;
	tctx->own_weight = p->scx.weight;
	group_count(tctx->group, tctx->own_weight, true);
}

/* It stops wanting to run. */
static void group_leave(struct task_struct *p)
{
	struct task_ctx *tctx;

	if (!READ_ONCE(nr_groups))
		return;
	tctx = task_ctx_of(p);
	if (!tctx || !tctx->own_weight)
		return;
	group_count(tctx->group, tctx->own_weight, false);
	tctx->own_weight = 0;
}

/* Its cpu.idle, which is not among the arguments. */
static bool is_idle_group(const struct cgroup *cgrp)
{
	u32 id = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	const struct task_group *tg = (void *)BPF_CORE_READ(cgrp, subsys[id]);

	return tg && BPF_CORE_READ(tg, idle);
}

static s32 add_group(struct cgroup *cgrp, u32 weight)
{
	u64 id = group_of(cgrp);
	struct group fresh = { .weight = weight, .cpu_weight = weight };
	struct cgroup *parent;
	int err;

	if (!id || is_too_deep(cgrp))
		return 0;
	if (is_idle_group(cgrp))
		fresh.weight = GROUP_WEIGHT_IDLE;
	parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (parent) {
		fresh.parent = group_of(parent);
		bpf_cgroup_release(parent);
	}
	err = bpf_map_update_elem(&groups, &id, &fresh, BPF_ANY);
	if (!err)
		__sync_fetch_and_add(&nr_groups, 1);
	return err;
}

static void remove_group(struct cgroup *cgrp)
{
	u64 id = group_of(cgrp);
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	u32 counted;

	if (!g || is_too_deep(cgrp))
		return;
	/* Before Linux 6.19 a group may be gone before the last of its tasks sleeps for good. */
	counted = __sync_lock_test_and_set(&g->active, 0) >> ACTIVE_BITS;
	if (counted)
		group_count(g->parent, counted, false);
	if (!bpf_map_delete_elem(&groups, &id))
		__sync_fetch_and_add(&nr_groups, -1);
}

static void weigh_group(struct group *g, u32 weight)
{
	struct group *parent;
	u64 id, old, new;
	u32 counted = weight;
	int i;

	WRITE_ONCE(g->weight, weight);
	bpf_for (i, 0, ACTIVE_TRIES) {
		old = READ_ONCE(g->active);
		counted = old >> ACTIVE_BITS;
		/* A group that becomes active at this moment counts the new weight. */
		if (!counted)
			return;
		new = (u64)weight << ACTIVE_BITS | (u32)old;
		if (__sync_val_compare_and_swap(&g->active, old, new) == old)
			break;
	}
	id = g->parent;
	parent = bpf_map_lookup_elem(&groups, &id);
	if (parent)
		__sync_fetch_and_add(&parent->total, (u64)weight - counted);
}

static struct group *weighed_group_of(struct cgroup *cgrp)
{
	u64 id = group_of(cgrp);

	return is_too_deep(cgrp) ? NULL : bpf_map_lookup_elem(&groups, &id);
}

static void set_group_weight(struct cgroup *cgrp, u32 weight)
{
	struct group *g = weighed_group_of(cgrp);

	if (!g)
		return;
	g->cpu_weight = weight;
	weigh_group(g, weight);
}

/*
 * The kernel calls this for a group, too, that was not idle before. It does not repeat the last
 * weight, although the group weighs 100 after it was idle: setting cpu.idle back is followed by
 * setting cpu.weight.
 */
static void set_group_idle(struct cgroup *cgrp, bool idle)
{
	struct group *g = weighed_group_of(cgrp);

	if (g)
		weigh_group(g, idle ? GROUP_WEIGHT_IDLE : g->cpu_weight);
}

#endif /* __SCX_HOLDFAST_GROUPS_BPF_H */
