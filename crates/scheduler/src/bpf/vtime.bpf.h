/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Virtual time: how it passes, who is where in it, and what running costs. */
#ifndef __SCX_HOLDFAST_VTIME_BPF_H
#define __SCX_HOLDFAST_VTIME_BPF_H

/*
 * Whoever is furthest behind of those who want this CPU has come to @least. The word is shared
 * by all CPUs: written only when it moves, and not over what another wrote meanwhile.
 */
static void time_passes(u64 least)
{
	u64 now = READ_ONCE(vtime_now), advanced = hf_advance(now, least);

	if (advanced != now)
		__sync_val_compare_and_swap(&vtime_now, now, advanced);
}

/* Its own weight may have been changed, and others of its group may have come or gone. */
static void reweigh(struct task_struct *p, struct task_ctx *tctx)
{
	u32 weight = weight_of(p, tctx);

	if (weight == tctx->weight)
		return;
	tctx->vtime = hf_reweigh(tctx->vtime, READ_ONCE(vtime_now), tctx->weight, weight);
	tctx->weight = weight;
}

/* Gives a task that becomes runnable, or runs, its place; @slept: it did not want to run. */
static void place(struct task_ctx *tctx, bool slept)
{
	tctx->vtime = hf_place(tctx->vtime, READ_ONCE(vtime_now), tctx->weight, slept, &params);
}

/* The same where others may wait for that CPU. Where nobody does, groups need not be asked. */
static void place_among_others(struct task_ctx *tctx, bool slept)
{
	place(tctx, slept);
	if (tctx->group)
		tctx->vtime = place_in_groups(tctx->vtime, tctx->group, tctx->own_weight,
					      tctx->weight, slept);
}

/* Who switches often does not walk up its groups each time. */
#define GROUP_CHARGES_PER_SLICE 8

/*
 * Charges a running task for the time since it was last charged: what the kernel charges it
 * for, which includes the switch to it. Who switches often pays for that.
 */
static void charge(const struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
		   u64 now)
{
	u64 ran_ns = p->se.sum_exec_runtime - tctx->charged_ns;

	tctx->vtime = hf_charge(tctx->vtime, ran_ns, tctx->weight);
	tctx->charged_ns = p->se.sum_exec_runtime;
	tctx->unearned_ns += ran_ns;
	cctx->curr_vtime = tctx->vtime;
	cctx->curr_charged_at = now;

	tctx->ungrouped_ns += ran_ns;
	if (tctx->ungrouped_ns < params.slice_ns / GROUP_CHARGES_PER_SLICE)
		return;
	if (tctx->group && tctx->own_weight)
		charge_groups(tctx->group, tctx->own_weight, tctx->weight, tctx->ungrouped_ns);
	tctx->ungrouped_ns = 0;
}

/* By how many slices the queue of another LLC may fall behind before it is helped. */
#define LLC_LAG_SLICES 4

/* Nobody else could have the CPU of the running task. Other LLCs have to see how far ahead it is. */
static void forgive(struct task_ctx *tctx)
{
	u32 slices = nr_llcs > 1 ? LLC_LAG_SLICES + 2 : 1;

	tctx->vtime = hf_forgive(tctx->vtime, READ_ONCE(vtime_now), tctx->weight, slices, &params);
}

#endif /* __SCX_HOLDFAST_VTIME_BPF_H */
