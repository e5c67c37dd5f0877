/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which DSQ a CPU serves next: its LLC's, an affinity DSQ of that, its own, or one of an LLC that
 * has fallen behind. Interface: next_dsq() finds the first waiting task, note_first() moves time by
 * it, run_first() runs it, pull() runs a certain task; next_dsq_here() and far_behind() are parts
 * of next_dsq().
 */
#ifndef __SCX_HOLDFAST_QUEUES_BPF_H
#define __SCX_HOLDFAST_QUEUES_BPF_H

#include "../ctx.bpf.h"
#include "affinity.bpf.h"
#include "vtime.bpf.h"

/* How far into a DSQ to look for a task that may run on a CPU; the kernel looks at all of it. */
#define FIRST_SCAN_TASKS 1024
/* The same in DSQs of another LLC, where many tasks may not leave it. */
#define FAR_SCAN_TASKS 16

/*
 * Moves @p from @dsq to this CPU, if it waits there and may run here. Of the walk through the DSQ
 * only the beginning is needed: any task that is in the DSQ by then may be moved.
 */
static bool pull(struct task_struct *p, u64 dsq, s32 cpu)
{
	struct task_struct *first;
	bool done = false;

	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, first, dsq, 0) {
		/* A change of its affinity takes it out of the DSQ, and then it is not moved. */
		if (may_run_on(p, cpu))
			done = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
		break;
	}
	bpf_rcu_read_unlock();
	return done;
}

/* The first of the tasks that wait for a CPU. */
struct first {
	u64 dsq;
	u64 key;    /* that it was queued with, in the host's time */
	u32 weight; /* among all tasks of the host */
};

static void take_first(struct task_struct *p, u64 *key, u32 *weight)
{
	const struct task_ctx *tctx = task_ctx_of(p);

	*key = p->scx.dsq_vtime;
	*weight = tctx ? READ_ONCE(tctx->weight) : HF_WEIGHT_NICE0;
}

/* Before v7.1 a peek takes the lock of the DSQ. That of an empty one need not be asked for. */
static struct task_struct *peek(u64 dsq)
{
	if (LINUX_KERNEL_VERSION < KERNEL_VERSION(7, 1, 0) && scx_bpf_dsq_nr_queued(dsq) <= 0)
		return NULL;
	return __COMPAT_scx_bpf_dsq_peek(dsq);
}

/* The first task in a DSQ. */
static bool first_in(u64 dsq, u64 *key, u32 *weight)
{
	struct task_struct *head;

	bpf_rcu_read_lock();
	head = peek(dsq);
	if (head)
		take_first(head, key, weight);
	bpf_rcu_read_unlock();
	return head;
}

/*
 * The first task in a DSQ that may run on @cpu: one that may not must not end the slices there. If
 * there is none among many, the last of them, as no other comes before it. In a DSQ that is not
 * @near but another LLC's, none: that LLC is helped another time.
 */
__noinline bool first_for(u64 dsq, s32 cpu, u64 *key __arg_nonnull, u32 *weight __arg_nonnull,
			  bool near)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_struct *head, *q;
	bool found = false;

	if (!cctx)
		return false;
	bpf_rcu_read_lock();
	head = peek(dsq);
	if (!head)
		goto out;
	found = may_run_on(head, cpu);
	if (found) {
		take_first(head, key, weight);
		goto out;
	}
	cctx->nr_scanned = 0;
	bpf_for_each (scx_dsq, q, dsq, 0) {
		/* Counted in memory: the verifier would go through each value of a variable. */
		found = may_run_on(q, cpu) || ++cctx->nr_scanned >= FIRST_SCAN_TASKS;
		if (!found && !near && cctx->nr_scanned >= FAR_SCAN_TASKS)
			break;
		if (found) {
			take_first(q, key, weight);
			break;
		}
	}
out:
	bpf_rcu_read_unlock();
	return found;
}

/*
 * The first task in affinity DSQs @dsqs of LLC @llc that may run on @cpu, if it comes before
 * @first, which counts if @found. Is there a first task now?
 */
__noinline bool first_by_affinity(u32 llc, s32 cpu, u32 dsqs, bool found,
				  struct first *first __arg_nonnull)
{
	bool near = llc == llc_of(cpu);
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		struct first other = { .dsq = affinity_dsq(llc, i) };

		if (!(dsqs >> i))
			break;
		if (!(dsqs >> i & 1) || !first_for(other.dsq, cpu, &other.key, &other.weight, near))
			continue;
		if (!found || hf_vtime_before(other.key, first->key))
			*first = other;
		found = true;
	}
	return found;
}

/* The first task of another LLC that may run on @cpu. */
static bool first_in_llc(u32 llc, s32 cpu, struct first *first)
{
	const u32 *dsqs = MEMBER_VPTR(llc_affinity_dsqs, [llc]);
	bool found;

	first->dsq = llc;
	found = first_for(llc, cpu, &first->key, &first->weight, false);
	return first_by_affinity(llc, cpu, dsqs ? READ_ONCE(*dsqs) : 0, found, first);
}

/*
 * Has another LLC fallen far behind a task here, which is at @vtime and weighs @weight? By slices
 * of the heavier of the two tasks: those of a light task may be more than others can ever be
 * behind. Each time one other LLC is tried, at random; @first becomes the first task there.
 */
static bool far_behind(s32 cpu, u64 vtime, u32 weight, struct first *first)
{
	struct first other = {};
	u32 llc;
	u64 lag;

	if (nr_llcs <= 1)
		return false;
	llc = (llc_of(cpu) + 1 + bpf_get_prandom_u32() % (nr_llcs - 1)) % nr_llcs;
	if (!first_in_llc(llc, cpu, &other))
		return false;
	lag = hf_scale_by_weight(params.slice_ns * LLC_LAG_SLICES,
				 weight < other.weight ? other.weight : weight);
	if (!hf_vtime_before(other.key + lag, vtime))
		return false;
	*first = other;
	return true;
}

/*
 * The DSQ near this CPU that it serves next: its LLC's, or its own if a pinned task is further
 * behind. False if no task waits in them.
 */
static bool next_dsq_here(s32 cpu, struct cpu_ctx *cctx, u32 llc, struct first *first)
{
	bool found = first_for(llc, cpu, &first->key, &first->weight, true);
	struct first own = { .dsq = HF_CPU_DSQ + cpu };

	first->dsq = llc;
	found = first_by_affinity(llc, cpu, affinity_dsqs_of(cctx, llc), found, first);
	if (cctx->has_pinned) {
		if (first_in(own.dsq, &own.key, &own.weight)) {
			own.key += cctx->clock.offset;
			if (!found || hf_vtime_before(own.key, first->key))
				*first = own;
			found = true;
		} else {
			WRITE_ONCE(cctx->has_pinned, false);
		}
	}
	return found;
}

/*
 * The DSQ that this CPU serves next: one near it, or that of an LLC that has fallen far behind
 * these and @prev, which would run on. False if there is none. Another LLC is looked at once a
 * slice, as a look goes through all of its affinity DSQs: an LLC is far behind by several.
 */
static bool next_dsq(s32 cpu, struct cpu_ctx *cctx, u32 llc, const struct task_ctx *prev, u64 now,
		     struct first *first)
{
	bool found = next_dsq_here(cpu, cctx, llc, first);
	u64 prev_vtime = prev ? prev->vtime + cctx->clock.offset : 0, vtime;

	if (prev && (!found || hf_vtime_before(prev_vtime, first->key)))
		vtime = prev_vtime;
	else if (found)
		vtime = first->key;
	else
		return false;
	if (nr_llcs <= 1 || time_before(now, cctx->far_due_at))
		return found;
	if (far_behind(cpu, vtime, prev ? prev->weight : HF_WEIGHT_NICE0, first))
		return true;
	cctx->far_due_at = now + params.slice_ns;
	return found;
}

/*
 * Time passes: @first waits for this CPU at @key, and @prev, if there is one, would run on. @prev
 * may be due all of a CPU and more, and ever further behind: time here goes by it only if it is
 * @pinned.
 */
static void note_first(struct cpu_ctx *cctx, const struct first *first, u64 key,
		       const struct task_ctx *prev, bool pinned)
{
	bool behind = prev && hf_vtime_before(prev->vtime, key), had = cctx->clock.has_own_time;
	u32 weight = first->weight;
	bool has;

	host_time_passes(cctx, behind ? prev->vtime : key);
	if (behind && pinned) {
		key = prev->vtime;
		weight = prev->weight;
	} else {
		pinned = first->dsq >= HF_CPU_DSQ;
	}
	time_here_passes(cctx, key);
	has = hf_has_own_time(host_time(cctx), key, weight, pinned, had, &params);
	if (has != had)
		WRITE_ONCE(cctx->clock.has_own_time, has);
}

/* Runs a task that may run here from affinity DSQs @dsqs of LLC @llc. */
static bool take_by_affinity(u32 llc, u32 dsqs)
{
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(dsqs >> i))
			break;
		if (dsqs >> i & 1 && scx_bpf_dsq_move_to_local(affinity_dsq(llc, i), 0))
			return true;
	}
	return false;
}

/* Runs the first task of @dsq, or any task near if that one is gone or may not run here. */
static bool run_first(u64 dsq, s32 cpu, struct cpu_ctx *cctx, u32 llc)
{
	return scx_bpf_dsq_move_to_local(dsq, 0) ||
	       (dsq != llc && scx_bpf_dsq_move_to_local(llc, 0)) ||
	       take_by_affinity(llc, affinity_dsqs_of(cctx, llc));
}

/*
 * Helps another LLC rather than idle, one of the same NUMA node first. The kernel would go through
 * all tasks of a DSQ for one that may run here, with the DSQ locked: it is asked only where one is
 * near the beginning.
 */
__noinline bool help_others(s32 cpu, u32 llc)
{
	const volatile s32 *node = MEMBER_VPTR(llc_node, [llc]), *other_node;
	u32 i, pass, other;

	bpf_for (pass, 0, 2) {
		bpf_for (i, 1, nr_llcs) {
			struct first first = {};

			other = (llc + i) % nr_llcs;
			other_node = MEMBER_VPTR(llc_node, [other]);
			if (!node || !other_node || (*node == *other_node) != !pass)
				continue;
			if (first_in_llc(other, cpu, &first) &&
			    scx_bpf_dsq_move_to_local(first.dsq, 0))
				return true;
		}
	}
	return false;
}

#endif /* __SCX_HOLDFAST_QUEUES_BPF_H */
