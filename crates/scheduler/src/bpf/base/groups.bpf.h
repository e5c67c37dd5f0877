/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Weights of cgroups, flattened: the weight of a task among all tasks of the host is its part of
 * its group, times the group's part of the group above, and so on. Parts are of the active members,
 * as in the kernel's own group scheduling. Tasks outside of groups, which on a host without the cpu
 * controller are all of them, cost nothing here.
 *
 * Callbacks walk from a task's group to the root, four levels on a host with libvirt, and several
 * times in each slice. So groups are in an array, each with the index of its parent: an element is
 * a few instructions away. A hash table is asked only when a task or a group comes or moves. A
 * weight that is kept, as scx_flatcg keeps it until a generation ends, would not serve: a group of
 * one vCPU becomes active and inactive with each of its halts, and changes the weights of all.
 *
 * Interface: set_group(), group_enter() and group_leave() of tasks, weight_of(), charge_groups()
 * and place_in_groups() for virtual time, add_group() and the functions below it for cgroups.
 */
#ifndef __SCX_HOLDFAST_GROUPS_BPF_H
#define __SCX_HOLDFAST_GROUPS_BPF_H

#include "../ctx.bpf.h"

#define MAX_GROUPS	(1 << 16)
#define MAX_GROUP_DEPTH 16

struct group {
	u64 id;		/* of its cgroup; 0: free */
	u64 total;	/* weights of its active members, tasks and groups */
	u64 active;	/* their number; above ACTIVE_BITS its weight in its parent's total */
	u64 vtime;	/* charged for the CPU time of its members */
	u32 parent;	/* its index; 0: none that counts */
	u32 weight;	/* cpu.weight, or that of an idle group */
	u32 cpu_weight; /* its weight when it is not idle: the kernel's last value */
};

/* Of a group with cpu.idle. */
#define GROUP_WEIGHT_IDLE 1

/* Number and weight change in one step: the first and the last member must not mix them up. */
#define ACTIVE_BITS  32
#define ACTIVE_TRIES 1024

/* Without the first, which would be that of the root. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS + 1);
	__type(key, u32);
	__type(value, struct group);
} groups SEC(".maps");

/* Where each group is in @groups, by the id of its cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u64);
	__type(value, u32);
} group_indices SEC(".maps");

/* While there is none, no task is looked up. */
static u32 nr_groups;
/* Where the search for a free one begins. Under cgroup_mutex, as groups come and go. */
static u32 last_group;

/* Deeper levels have no weight of their own: their tasks are members of the last that has. */
static bool is_too_deep(const struct cgroup *cgrp)
{
	return cgrp->level > MAX_GROUP_DEPTH;
}

/* The group at @index; NULL for that of the root. */
static struct group *group_at(u32 index)
{
	return index ? bpf_map_lookup_elem(&groups, &index) : NULL;
}

/* The cgroup that counts for members of @cgrp; 0 for the root, where they compete with groups. */
static u64 group_id_of(struct cgroup *cgrp)
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

static u32 index_of(u64 id)
{
	u32 *index = id ? bpf_map_lookup_elem(&group_indices, &id) : NULL;

	return index ? *index : 0;
}

/* @cgrp is the cgroup of a task. */
static void set_group(struct task_ctx *tctx, struct cgroup *cgrp)
{
	tctx->group_id = group_id_of(cgrp);
	tctx->group = index_of(tctx->group_id);
}

/* The index of a task's group. Before Linux 6.19 the group may be gone, and its place another's. */
static u32 group_of(const struct task_ctx *tctx)
{
	const struct group *g = group_at(tctx->group);

	return g && READ_ONCE(g->id) == tctx->group_id ? tctx->group : 0;
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

/* A task of weight @weight in group @index starts or stops wanting to run. */
static void group_count(u32 index, u32 weight, bool active)
{
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = group_at(index);

		if (!g)
			break;
		__sync_fetch_and_add(&g->total, active ? (u64)weight : -(u64)weight);
		weight = count_active(g, active);
		if (!weight)
			break;
		index = g->parent;
	}
}

/* The weight among all tasks of the host of a member with @weight in group @index. */
__noinline u32 weight_in_groups(u32 weight, u32 index)
{
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = group_at(index);

		if (!g)
			break;
		weight = hf_weight_in_group(weight, READ_ONCE(g->weight), READ_ONCE(g->total));
		index = g->parent;
	}
	return weight < HF_WEIGHT_MIN ? HF_WEIGHT_MIN : weight;
}

/*
 * Charges the groups of a member for its CPU time. The member has weight @own in group @index and
 * @weight among all tasks. Returns 0: before Linux 7 the verifier wants a number from every global
 * function.
 */
__noinline int charge_groups(u32 index, u32 own, u32 weight, u64 ran_ns)
{
	u64 now = READ_ONCE(vtime_now);
	u32 among_all = weight;
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = group_at(index);
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
		index = g->parent;
	}
	return 0;
}

/* Bounds @vtime of a member with weight @own in group @index and @weight among all tasks. */
__noinline u64 place_in_groups(u64 vtime, u32 index, u32 own, u32 weight, bool slept)
{
	u32 among_all = weight;
	int i;

	bpf_for (i, 0, MAX_GROUP_DEPTH) {
		struct group *g = group_at(index);

		if (!g || !own)
			break;
		among_all = hf_weight_among_all(READ_ONCE(g->total), own, among_all);
		vtime = hf_place_in_group(vtime, READ_ONCE(g->vtime), weight, among_all, slept,
					  &params);
		own = READ_ONCE(g->weight);
		index = g->parent;
	}
	return vtime;
}

static u32 weight_of(struct task_struct *p, const struct task_ctx *tctx)
{
	u32 weight = p->scx.weight * HF_WEIGHT_SCALE;

	return tctx->group ? weight_in_groups(weight, group_of(tctx)) : weight;
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
	group_count(group_of(tctx), tctx->own_weight, true);
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
	group_count(group_of(tctx), tctx->own_weight, false);
	tctx->own_weight = 0;
}

/* Its cpu.idle, which is not among the arguments. */
static bool is_idle_group(const struct cgroup *cgrp)
{
	u32 id = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	const struct task_group *tg = (void *)BPF_CORE_READ(cgrp, subsys[id]);

	return tg && BPF_CORE_READ(tg, idle);
}

/* The index of a free place for a group; 0 if there is none. */
static u32 find_free_group(void)
{
	u32 i;

	bpf_for (i, 0, MAX_GROUPS) {
		u32 index = (last_group + i) % MAX_GROUPS + 1;
		struct group *g = group_at(index);

		if (g && !g->id) {
			last_group = index;
			return index;
		}
	}
	return 0;
}

static s32 add_group(struct cgroup *cgrp, u32 weight)
{
	u64 id = group_id_of(cgrp);
	struct cgroup *parent;
	struct group *g;
	u32 index;
	int err;

	if (!id || is_too_deep(cgrp))
		return 0;
	index = find_free_group();
	g = group_at(index);
	if (!g)
		return -ENOSPC;
	err = bpf_map_update_elem(&group_indices, &id, &index, BPF_ANY);
	if (err)
		return err;
	*g = (struct group){ .id = id, .cpu_weight = weight };
	g->weight = is_idle_group(cgrp) ? GROUP_WEIGHT_IDLE : weight;
	parent = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (parent) {
		g->parent = index_of(group_id_of(parent));
		bpf_cgroup_release(parent);
	}
	__sync_fetch_and_add(&nr_groups, 1);
	return 0;
}

static void remove_group(struct cgroup *cgrp)
{
	u64 id = group_id_of(cgrp);
	struct group *g;
	u32 counted;

	if (is_too_deep(cgrp))
		return;
	g = group_at(index_of(id));
	if (!g)
		return;
	/* Before Linux 6.19 a group may be gone before the last of its tasks sleeps for good. */
	counted = __sync_lock_test_and_set(&g->active, 0) >> ACTIVE_BITS;
	if (counted)
		group_count(g->parent, counted, false);
	WRITE_ONCE(g->id, 0);
	if (!bpf_map_delete_elem(&group_indices, &id))
		__sync_fetch_and_add(&nr_groups, -1);
}

static void weigh_group(struct group *g, u32 weight)
{
	struct group *parent;
	u64 old, new;
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
	parent = group_at(g->parent);
	if (parent)
		__sync_fetch_and_add(&parent->total, (u64)weight - counted);
}

static struct group *weighed_group_of(struct cgroup *cgrp)
{
	return is_too_deep(cgrp) ? NULL : group_at(index_of(group_id_of(cgrp)));
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
