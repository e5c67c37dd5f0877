/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Virtual time: how it passes, where a task is placed in it, and what running costs.
 *
 * Each CPU has a clock, which is the host's virtual time less an offset. While tasks wait for the
 * CPU, time there may pass more slowly than on the host; hf_has_own_time() decides. The rules are
 * in holdfast/vtime.h, and this part applies them to tasks and CPUs.
 */
#ifndef __SCX_HOLDFAST_VTIME_BPF_H
#define __SCX_HOLDFAST_VTIME_BPF_H

#include "../ctx.bpf.h"
#include "affinity.bpf.h"
#include "groups.bpf.h"

/* The host's virtual time as the clock of this CPU has it. */
static u64 host_time(const struct cpu_ctx *cctx)
{
	u64 now = READ_ONCE(vtime_now);

	return now - READ_ONCE(cctx->clock.offset);
}

/* Virtual time at this CPU. */
static u64 time_here(const struct cpu_ctx *cctx)
{
	/* In this order, as they are written; on x86 both stay in order. */
	return READ_ONCE(cctx->clock.has_own_time) ? READ_ONCE(cctx->clock.contended_vtime)
						   : host_time(cctx);
}

/*
 * The host's time passes in steps of so much of a slice. All CPUs read it, and each write takes its
 * cache line from all of them; no lag is told from another one as finely.
 */
#define HOST_STEPS_PER_SLICE 32

/*
 * The task furthest behind of those that want this CPU has come to @least. All CPUs share the
 * host's time: it is not written over the value of another CPU.
 */
static void host_time_passes(const struct cpu_ctx *cctx, u64 least)
{
	u64 now = READ_ONCE(vtime_now), advanced = hf_advance(now, least + cctx->clock.offset);

	if (advanced - now >= params.slice_ns / HOST_STEPS_PER_SLICE)
		__sync_val_compare_and_swap(&vtime_now, now, advanced);
}

static void time_here_passes(struct cpu_ctx *cctx, u64 least)
{
	if (cctx->clock.contended)
		WRITE_ONCE(cctx->clock.contended_vtime,
			   hf_advance(cctx->clock.contended_vtime, least));
}

/*
 * Rebases the time here to the host's if it is far from that. The clock of this CPU goes on, so
 * that its tasks stay where they are, and its offset changes.
 */
static void rebase(struct cpu_ctx *cctx)
{
	u64 further = hf_rebase(host_time(cctx), time_here(cctx), &params);

	WRITE_ONCE(cctx->clock.offset, cctx->clock.offset + further);
}

/* Rebases a CPU with a time of its own, or ends that time if it is not apart any longer. */
static void check_own_time(struct cpu_ctx *cctx)
{
	if (!cctx->clock.has_own_time)
		return;
	if (hf_has_own_time(host_time(cctx), time_here(cctx), HF_WEIGHT_NICE0, false, true,
			    &params))
		rebase(cctx);
	else
		WRITE_ONCE(cctx->clock.has_own_time, false);
}

/* All CPUs check at the same moments: tasks that share some of them are compared. */
static void check_own_time_when_due(struct cpu_ctx *cctx, u64 now)
{
	if (hf_may_rebase(now, cctx->clock.dispatched_at))
		check_own_time(cctx);
	cctx->clock.dispatched_at = now;
}

/* Do tasks wait for this CPU? Without contention its time is the host's. */
static void set_contended(struct cpu_ctx *cctx, bool contended)
{
	if (cctx->clock.contended == contended)
		return;
	if (contended)
		WRITE_ONCE(cctx->clock.contended_vtime, host_time(cctx));
	rebase(cctx);
	WRITE_ONCE(cctx->clock.has_own_time, false);
	cctx->clock.contended = contended;
}

/* Virtual time at @cpu. */
static u64 time_at(s32 cpu)
{
	const struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return cctx ? time_here(cctx) : READ_ONCE(vtime_now);
}

/* The difference between virtual times of @cpu and those of the host. */
static u64 offset_of(s32 cpu)
{
	const struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return cctx ? READ_ONCE(cctx->clock.offset) : 0;
}

/* The virtual time that a task would have at @cpu. */
static u64 vtime_at(const struct task_ctx *tctx, s32 cpu)
{
	u64 vtime = READ_ONCE(tctx->vtime), from, to;
	s32 there = READ_ONCE(tctx->cpu);

	if (there == cpu)
		return vtime;
	from = offset_of(there);
	to = offset_of(cpu);
	return hf_move(vtime + from, time_at(there) + from, time_at(cpu) + to, &params) - to;
}

/* Its own weight may have been changed, and other members of its group may have come or gone. */
static void reweigh(struct task_struct *p, struct task_ctx *tctx)
{
	u32 weight = weight_of(p, tctx);

	if (weight == tctx->weight)
		return;
	WRITE_ONCE(tctx->vtime, hf_reweigh(tctx->vtime, time_at(tctx->cpu), tctx->weight, weight));
	WRITE_ONCE(tctx->weight, weight);
}

/*
 * No further behind its groups than a member may be. Groups have members on many CPUs, and go by
 * the host's time.
 */
static u64 behind_groups(const struct task_ctx *tctx, u64 vtime, bool slept)
{
	u64 behind = READ_ONCE(vtime_now) - time_at(tctx->cpu);

	return place_in_groups(vtime + behind, group_of(tctx), tctx->own_weight, tctx->weight,
			       slept) -
	       behind;
}

/* Places a task that becomes runnable on @cpu, or runs there. */
static void place(struct task_ctx *tctx, s32 cpu, bool slept)
{
	u64 vtime = vtime_at(tctx, cpu);

	vtime = hf_place(vtime, time_at(cpu), tctx->weight, slept, &params);
	WRITE_ONCE(tctx->vtime, vtime);
	WRITE_ONCE(tctx->cpu, cpu);
}

/* The same where that CPU may be contended. Without contention groups need not be asked. */
static void place_among_others(struct task_ctx *tctx, s32 cpu, bool slept)
{
	place(tctx, cpu, slept);
	if (tctx->group)
		WRITE_ONCE(tctx->vtime, behind_groups(tctx, tctx->vtime, slept));
}

/* Places a task that was not there before. */
static void place_new(struct task_struct *p, struct task_ctx *tctx)
{
	/*
	 * Behind the tasks that are there: else tasks that fork and end would never let others run.
	 * By a slice of its own weight, not of a small part of a large group.
	 */
	WRITE_ONCE(tctx->cpu, scx_bpf_task_cpu(p));
	tctx->vtime = time_at(tctx->cpu) +
		      hf_scale_by_weight(params.slice_ns, p->scx.weight * HF_WEIGHT_SCALE);
	tctx->weight = weight_of(p, tctx);
	WRITE_ONCE(tctx->waits_since, 0);
}

/*
 * Where a member with a resume boost to @key is queued. A part of a group is light, and the boost
 * is CPU time: without a bound each member with a boost would have the CPU for so long before all
 * other tasks.
 */
static u64 boosted_in_groups(const struct task_ctx *tctx, u64 key)
{
	u64 bound = behind_groups(tctx, key, true);

	return hf_vtime_before(tctx->vtime, bound) ? tctx->vtime : bound;
}

/*
 * Groups are charged this often, as a task that switches often shall not walk up its groups each
 * time. A task that exits charges them at once, or groups of short tasks would not pay.
 */
#define GROUP_CHARGES_PER_SLICE 8

static bool owes_groups(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->ungrouped_ns >= params.slice_ns / GROUP_CHARGES_PER_SLICE ||
	       p->flags & PF_EXITING;
}

/*
 * Charges a running task for the time since it was last charged. The kernel's figure includes the
 * switch to it: a task that switches often pays for that.
 */
static void charge(const struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
		   u64 now)
{
	u64 ran_ns = p->se.sum_exec_runtime - tctx->charged_ns;

	WRITE_ONCE(tctx->vtime, hf_charge(tctx->vtime, ran_ns, tctx->weight));
	tctx->charged_ns = p->se.sum_exec_runtime;
	tctx->unearned_ns += ran_ns;
	WRITE_ONCE(cctx->run.vtime, tctx->vtime);
	WRITE_ONCE(cctx->run.charged_at, now);

	tctx->ungrouped_ns += ran_ns;
	if (!owes_groups(p, tctx))
		return;
	/* As for the member itself, time without contention is not held against it elsewhere. */
	if (tctx->group && tctx->own_weight && cctx->clock.contended &&
	    others_wait(tctx->cpu, cctx))
		charge_groups(group_of(tctx), tctx->own_weight, tctx->weight, tctx->ungrouped_ns);
	tctx->ungrouped_ns = 0;
}

/* By how many slices of CPU time a kernel thread of one CPU may be ahead and still run at once. */
#define KTHREAD_AHEAD_SLICES 2

/* Has the task had more of its CPU than its share, by more than a burst? */
static bool is_ahead(const struct task_ctx *tctx)
{
	u64 bound = time_at(tctx->cpu) +
		    hf_scale_by_weight(KTHREAD_AHEAD_SLICES * params.slice_ns, tctx->weight);

	return hf_vtime_before(bound, tctx->vtime);
}

/* By how many slices the DSQ of another LLC may fall behind before it is helped. */
#define LLC_LAG_SLICES 4

/* The CPU of the running task is not contended. Other LLCs have to see how far ahead it is. */
static void clamp_lag(struct task_ctx *tctx)
{
	u32 slices = nr_llcs > 1 ? LLC_LAG_SLICES + 2 : 1;

	WRITE_ONCE(tctx->vtime,
		   hf_clamp_lag(tctx->vtime, time_at(tctx->cpu), tctx->weight, slices, &params));
}

#endif /* __SCX_HOLDFAST_VTIME_BPF_H */
