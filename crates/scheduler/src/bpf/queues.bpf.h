/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which queue a CPU serves next: its LLC's, one of those by mask, its own. */
#ifndef __SCX_HOLDFAST_QUEUES_BPF_H
#define __SCX_HOLDFAST_QUEUES_BPF_H

/* How far into a queue one looks for who may run on a CPU: the kernel, which does that next, goes through all of it. */
#define FIRST_SCAN_TASKS 1024
/* The same in queues of another LLC, where many may not leave it. */
#define FAR_SCAN_TASKS 16

static bool may_run_on(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       (!is_migration_disabled(p) || scx_bpf_task_cpu(p) == cpu);
}

/*
 * Moves @p from @queue to this CPU, if it waits there and may run here. Of a walk through the queue only its
 * beginning is needed: whoever is in the queue by then may be moved.
 */
static bool pull(struct task_struct *p, u64 queue, s32 cpu)
{
	struct task_struct *first;
	bool done = false;

	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, first, queue, 0) {
		/* Whoever changes where it may run from here on takes it out of the queue, and then it is not moved. */
		if (may_run_on(p, cpu))
			done = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
		break;
	}
	bpf_rcu_read_unlock();
	return done;
}

/* Who is first of those who wait for a CPU. */
struct first {
	u64 queue;
	u64 key;    /* that it was queued with, in the host's time */
	u32 weight; /* among all tasks of the host */
};

static void take_first(struct task_struct *p, u64 *key, u32 *weight)
{
	const struct task_ctx *tctx = task_ctx_of(p);

	*key = p->scx.dsq_vtime;
	*weight = tctx ? tctx->weight : HF_WEIGHT_NICE0;
}

/* Who is first in a queue. */
static bool first_in(u64 queue, u64 *key, u32 *weight)
{
	struct task_struct *head;

	bpf_rcu_read_lock();
	head = __COMPAT_scx_bpf_dsq_peek(queue);
	if (head)
		take_first(head, key, weight);
	bpf_rcu_read_unlock();
	return head;
}

/*
 * The same of those that may run on @cpu: one that may not must not end the turns there. If there
 * is none among many, the last of them, before whom none comes. Or, if the queue is not @near but another
 * LLC's, none: it is helped another time.
 */
__noinline bool first_for(u64 queue, s32 cpu, u64 *key __arg_nonnull, u32 *weight __arg_nonnull,
			  bool near)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_struct *head, *q;
	bool found = false;

	if (!cctx)
		return false;
	bpf_rcu_read_lock();
	head = __COMPAT_scx_bpf_dsq_peek(queue);
	if (!head)
		goto out;
	found = may_run_on(head, cpu);
	if (found) {
		take_first(head, key, weight);
		goto out;
	}
	cctx->nr_seen = 0;
	bpf_for_each (scx_dsq, q, queue, 0) {
		/* Counted in memory: the verifier would go through each value of a variable. */
		found = may_run_on(q, cpu) || ++cctx->nr_seen >= FIRST_SCAN_TASKS;
		if (!found && !near && cctx->nr_seen >= FAR_SCAN_TASKS)
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
 * The first of those in @masks of LLC @llc's queues that may run on @cpu, if it comes before @first, which is there if
 * @found. Is there one?
 */
__noinline bool first_by_affinity(u32 llc, s32 cpu, u32 masks, bool found,
				  struct first *first __arg_nonnull)
{
	bool near = llc == llc_of(cpu);
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		struct first other = { .queue = affinity_dsq(llc, i) };

		if (!(masks >> i))
			break;
		if (!(masks >> i & 1) ||
		    !first_for(other.queue, cpu, &other.key, &other.weight, near))
			continue;
		if (!found || hf_vtime_before(other.key, first->key))
			*first = other;
		found = true;
	}
	return found;
}

/*
 * Has another LLC fallen far behind somebody here, who is at @vtime and weighs @weight? By turns of the heavier of the
 * two: those of a light one may be more than the others there can be behind. One is looked at, a different one each
 * time: @first is who is first there.
 */
static bool far_behind(s32 cpu, u64 vtime, u32 weight, struct first *first)
{
	struct first other = {};
	u32 llc, *masks;
	bool found;
	u64 lag;

	if (nr_llcs <= 1)
		return false;
	llc = bpf_get_prandom_u32() % nr_llcs;
	if (llc == llc_of(cpu))
		return false;
	masks = MEMBER_VPTR(llc_affinity_dsqs, [llc]);
	other.queue = llc;
	found = first_for(llc, cpu, &other.key, &other.weight, false);
	if (!first_by_affinity(llc, cpu, masks ? *masks : 0, found, &other))
		return false;
	lag = hf_scale_by_weight(params.slice_ns * LLC_LAG_SLICES,
				 weight < other.weight ? other.weight : weight);
	if (!hf_vtime_before(other.key + lag, vtime))
		return false;
	*first = other;
	return true;
}

/*
 * Which queue this CPU serves next: its LLC's, its own if one that may run only here is
 * further behind, or that of an LLC that has fallen far behind these and @prev, who would
 * run on. False if there is none.
 */
static bool next_queue(s32 cpu, struct cpu_ctx *cctx, u32 llc, const struct task_ctx *prev,
		       struct first *first)
{
	bool found = first_for(llc, cpu, &first->key, &first->weight, true);
	u64 prev_vtime = prev ? prev->vtime + cctx->vtime_offset : 0, vtime;
	struct first own = { .queue = HF_CPU_DSQ + cpu };

	first->queue = llc;
	found = first_by_affinity(llc, cpu, cctx->affinity_dsqs, found, first);
	if (cctx->has_pinned) {
		if (first_in(own.queue, &own.key, &own.weight)) {
			own.key += cctx->vtime_offset;
			if (!found || hf_vtime_before(own.key, first->key))
				*first = own;
			found = true;
		} else {
			cctx->has_pinned = false;
		}
	}
	if (prev && (!found || hf_vtime_before(prev_vtime, first->key)))
		vtime = prev_vtime;
	else if (found)
		vtime = first->key;
	else
		return false;
	return far_behind(cpu, vtime, prev ? prev->weight : HF_WEIGHT_NICE0, first) || found;
}

/*
 * Time passes: @first waits for this CPU and is at @key; @prev, if there is one, would run on. It may be due all of a
 * CPU and more, and ever further behind: only if it is @pinned does time here go by it.
 */
static void note_first(struct cpu_ctx *cctx, const struct first *first, u64 key,
		       const struct task_ctx *prev, bool pinned)
{
	bool behind = prev && hf_vtime_before(prev->vtime, key), had = cctx->has_own_time, has;
	u32 weight = first->weight;

	host_time_passes(cctx, behind ? prev->vtime : key);
	if (behind && pinned) {
		key = prev->vtime;
		weight = prev->weight;
	} else {
		pinned = first->queue >= HF_CPU_DSQ;
	}
	time_here_passes(cctx, key);
	has = hf_has_own_time(host_time(cctx), key, weight, pinned, had, &params);
	if (has != had)
		WRITE_ONCE(cctx->has_own_time, has);
}

/* How often a CPU looks for those who wait for ever, and at how many in each queue. */
#define STARVING_CHECK_NS   (1000ULL * 1000 * 1000)
#define STARVING_SCAN_TASKS 1024
/* Of this many turns one is given to a late one, should there be many: the others have to live, too. */
#define STARVING_SLICES 3

static bool is_starving(const struct task_ctx *tctx, u64 now)
{
	return tctx->waits_since && hf_is_starving(time_delta(now, tctx->waits_since));
}

/* Runs somebody in @queue who has waited for too long and may run on @cpu. */
__noinline bool serve_starving(u64 queue, s32 cpu, u64 now, bool from_end)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_struct *q;
	bool done = false;

	if (!cctx)
		return false;
	cctx->nr_seen = 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, q, queue, from_end ? SCX_DSQ_ITER_REV : 0) {
		struct task_ctx *tctx = task_ctx_of(q);

		if (tctx && is_starving(tctx, now) && may_run_on(q, cpu))
			done = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, q, SCX_DSQ_LOCAL, 0);
		if (done || ++cctx->nr_seen >= STARVING_SCAN_TASKS)
			break;
	}
	bpf_rcu_read_unlock();
	return done;
}

__noinline bool serve_starving_by_affinity(u32 llc, s32 cpu, u32 masks, u64 now, bool from_end)
{
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(masks >> i))
			break;
		if (masks >> i & 1 && serve_starving(affinity_dsq(llc, i), cpu, now, from_end))
			return true;
	}
	return false;
}

/*
 * Now and then: does the next turn belong to somebody who has waited for too long? They are at the
 * end of a queue, or, among many that are lighter still, near its beginning; each time is
 * begun at another one, and with another queue.
 */
static bool next_is_starving(s32 cpu, struct cpu_ctx *cctx, u32 llc, u64 now)
{
	u64 own = HF_CPU_DSQ + cpu;
	bool from_end, found;

	if (cctx->slices_until_starving) {
		cctx->slices_until_starving--;
		return false;
	}
	if (time_before(now, cctx->starving_check_at))
		return false;
	from_end = cctx->starving_from_end = !cctx->starving_from_end;
	found = cctx->has_pinned && from_end && serve_starving(own, cpu, now, from_end);
	found = found || serve_starving(llc, cpu, now, from_end) ||
		serve_starving_by_affinity(llc, cpu, cctx->affinity_dsqs, now, from_end);
	found = found || (cctx->has_pinned && !from_end && serve_starving(own, cpu, now, from_end));
	/* Where there is one there may be many. Turns are longer than slices where ticks are, and shorter of who sleeps. */
	cctx->starving_check_at =
		now + (found ? STARVING_SLICES * params.slice_ns : STARVING_CHECK_NS);
	if (found) {
		cctx->slices_until_starving = STARVING_SLICES - 1;
		stat_add(HF_STAT_STARVING, 1);
	}
	return found;
}

/* Takes whoever may run here from one of LLC @llc's queues by mask. */
static bool take_by_affinity(u32 llc, u32 masks)
{
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(masks >> i))
			break;
		if (masks >> i & 1 && scx_bpf_dsq_move_to_local(affinity_dsq(llc, i), 0))
			return true;
	}
	return false;
}

/* Nothing near: help another LLC rather than idle, one of the same NUMA node first. */
__noinline bool help_others(u32 llc)
{
	const volatile s32 *node = MEMBER_VPTR(llc_node, [llc]), *other_node;
	u32 i, pass, other, *masks;

	bpf_for (pass, 0, 2) {
		bpf_for (i, 1, nr_llcs) {
			other = (llc + i) % nr_llcs;
			other_node = MEMBER_VPTR(llc_node, [other]);
			if (!node || !other_node || (*node == *other_node) != !pass)
				continue;
			masks = MEMBER_VPTR(llc_affinity_dsqs, [other]);
			if (scx_bpf_dsq_move_to_local(other, 0) ||
			    (masks && take_by_affinity(other, *masks)))
				return true;
		}
	}
	return false;
}

#endif /* __SCX_HOLDFAST_QUEUES_BPF_H */
