/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Virtual time: how it passes, who is where in it, and what running costs. */
#ifndef __SCX_HOLDFAST_VTIME_BPF_H
#define __SCX_HOLDFAST_VTIME_BPF_H

/* The host's virtual time as the clock of this CPU has it. */
static u64 host_time(const struct cpu_ctx *cctx)
{
	u64 now = READ_ONCE(vtime_now);

	return now - READ_ONCE(cctx->vtime_offset);
}

/* Virtual time at this CPU. */
static u64 time_here(const struct cpu_ctx *cctx)
{
	/* In this order, as they are written; on x86 both stay in order. */
	return READ_ONCE(cctx->has_own_time) ? READ_ONCE(cctx->contended_vtime) : host_time(cctx);
}

/*
 * Whoever is furthest behind of those who want this CPU has come to @least. The host's word is shared
 * by all CPUs: written only when it moves, and not over what another wrote meanwhile.
 */
static void host_time_passes(const struct cpu_ctx *cctx, u64 least)
{
	u64 now = READ_ONCE(vtime_now), advanced = hf_advance(now, least + cctx->vtime_offset);

	if (advanced != now)
		__sync_val_compare_and_swap(&vtime_now, now, advanced);
}

static void time_here_passes(struct cpu_ctx *cctx, u64 least)
{
	if (cctx->contended)
		WRITE_ONCE(cctx->contended_vtime, hf_advance(cctx->contended_vtime, least));
}

/*
 * If time here is far from the host's it is the same from now on. The clock of this CPU goes on, so that its tasks stay
 * where they are, and is set by its offset.
 */
static void rebase(struct cpu_ctx *cctx)
{
	u64 further = hf_rebase(host_time(cctx), time_here(cctx), &params);

	WRITE_ONCE(cctx->vtime_offset, cctx->vtime_offset + further);
}

/* All CPUs do this at the same moments: is time here far from the host's, or not apart any more? */
static void check_own_time(struct cpu_ctx *cctx)
{
	if (!cctx->has_own_time)
		return;
	if (hf_has_own_time(host_time(cctx), time_here(cctx), HF_WEIGHT_NICE0, false, true,
			    &params))
		rebase(cctx);
	else
		WRITE_ONCE(cctx->has_own_time, false);
}

/* Somebody waits for this CPU, or nobody does. Until somebody did its time was the host's. */
static void set_contended(struct cpu_ctx *cctx, bool contended)
{
	if (cctx->contended == contended)
		return;
	if (contended)
		WRITE_ONCE(cctx->contended_vtime, host_time(cctx));
	rebase(cctx);
	WRITE_ONCE(cctx->has_own_time, false);
	cctx->contended = contended;
}

/* Virtual time at @cpu. */
static u64 time_at(s32 cpu)
{
	const struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return cctx ? time_here(cctx) : READ_ONCE(vtime_now);
}

/* What to add to virtual times of @cpu, to compare them with those of other CPUs. */
static u64 offset_of(s32 cpu)
{
	const struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return cctx ? READ_ONCE(cctx->vtime_offset) : 0;
}

/* What the virtual time of a task would be at @cpu. */
static u64 vtime_at(const struct task_ctx *tctx, s32 cpu)
{
	u64 from, to;

	if (tctx->cpu == cpu)
		return tctx->vtime;
	from = offset_of(tctx->cpu);
	to = offset_of(cpu);
	return hf_move(tctx->vtime + from, time_at(tctx->cpu) + from, time_at(cpu) + to, &params) -
	       to;
}

/* Its own weight may have been changed, and others of its group may have come or gone. */
static void reweigh(struct task_struct *p, struct task_ctx *tctx)
{
	u32 weight = weight_of(p, tctx);

	if (weight == tctx->weight)
		return;
	tctx->vtime = hf_reweigh(tctx->vtime, time_at(tctx->cpu), tctx->weight, weight);
	tctx->weight = weight;
}

/* No further back behind its groups than a member may be. These have members on many CPUs, and go by the host's time. */
static u64 behind_groups(const struct task_ctx *tctx, u64 vtime, bool slept)
{
	u64 behind = READ_ONCE(vtime_now) - time_at(tctx->cpu);

	return place_in_groups(vtime + behind, tctx->group, tctx->own_weight, tctx->weight, slept) -
	       behind;
}

/* Gives a task that becomes runnable on @cpu, or runs there, its place; @slept: it did not want to run. */
static void place(struct task_ctx *tctx, s32 cpu, bool slept)
{
	tctx->vtime = vtime_at(tctx, cpu);
	tctx->cpu = cpu;
	tctx->vtime = hf_place(tctx->vtime, time_at(tctx->cpu), tctx->weight, slept, &params);
}

/* The same where others may wait for that CPU. Where nobody does, groups need not be asked. */
static void place_among_others(struct task_ctx *tctx, s32 cpu, bool slept)
{
	place(tctx, cpu, slept);
	if (tctx->group)
		tctx->vtime = behind_groups(tctx, tctx->vtime, slept);
}

/*
 * Where a member that goes first at @key is queued. A part of a group is light, and the boost is in CPU time of its own:
 * members that all go first would each have the CPU so much before everybody else.
 */
static u64 first_in_groups(const struct task_ctx *tctx, u64 key)
{
	u64 bound = behind_groups(tctx, key, true);

	return hf_vtime_before(tctx->vtime, bound) ? tctx->vtime : bound;
}

/* Who switches often does not walk up its groups each time; who ends does, or groups of short tasks would not pay. */
#define GROUP_CHARGES_PER_SLICE 8

static bool owes_groups(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->ungrouped_ns >= params.slice_ns / GROUP_CHARGES_PER_SLICE ||
	       p->flags & PF_EXITING;
}

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
	if (!owes_groups(p, tctx))
		return;
	/* As with the member itself: what nobody else could have had is not held against it elsewhere. */
	if (tctx->group && tctx->own_weight && cctx->contended && others_wait(tctx->cpu, cctx))
		charge_groups(tctx->group, tctx->own_weight, tctx->weight, tctx->ungrouped_ns);
	tctx->ungrouped_ns = 0;
}

/* By how many slices the queue of another LLC may fall behind before it is helped. */
#define LLC_LAG_SLICES 4

/* Nobody else could have the CPU of the running task. Other LLCs have to see how far ahead it is. */
static void clamp_lag(struct task_ctx *tctx)
{
	u32 slices = nr_llcs > 1 ? LLC_LAG_SLICES + 2 : 1;

	tctx->vtime = hf_clamp_lag(tctx->vtime, time_at(tctx->cpu), tctx->weight, slices, &params);
}

#endif /* __SCX_HOLDFAST_VTIME_BPF_H */
