/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How a task comes to wait for a CPU. Interface: run_at_once(), wait_for_cpu(). */
#ifndef __SCX_HOLDFAST_ENQUEUE_BPF_H
#define __SCX_HOLDFAST_ENQUEUE_BPF_H

#include "ctx.bpf.h"
#include "base/affinity.bpf.h"
#include "base/idle.bpf.h"
#include "base/vtime.bpf.h"
#include "base/wakeup.bpf.h"
#include "vcpu/siblings.bpf.h"

/* include/uapi/linux/sched.h: preempts no task. */
#define SCHED_IDLE 5

/* Runs @p in place of the task that runs on its CPU. */
static void run_at_once(struct task_struct *p, u64 enq_flags)
{
	struct cpu_ctx *cctx = cpu_ctx_of(scx_bpf_task_cpu(p));

	if (cctx)
		ask_for_cpu(cctx, false);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, enq_flags | SCX_ENQ_PREEMPT);
}

/*
 * Was @p interrupted within its slice, on a CPU that is not contended? Then the task that took the
 * CPU is short or alone, and @p goes on there afterwards. In the shared DSQ it would swap CPUs with
 * a neighbour whose slice happens to end, which costs a vCPU its TLB, for every daemon that wakes
 * on a host without overcommit.
 *
 * A blocker is queued: an idle CPU takes it, or a sibling yields to it. So is a task that makes
 * room for a vCPU. This CPU would not choose the next task while its local DSQ has one, and that
 * vCPU would have neither grace nor a target for its yield at the end of its slice.
 */
static bool resumes_here(struct task_struct *p, const struct task_ctx *tctx, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return !(enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ)) && cctx &&
	       READ_ONCE(cctx->asked) == ASKED_BY_TASK && !cctx->has_pinned &&
	       !tctx->listing.blocker && !llc_waits(cctx, llc_of(cpu));
}

/*
 * Places @p where it waits, and returns its key in the order of tasks, by the clock of its CPU.
 * @boosted: it has the resume boost.
 */
static u64 place_in_queue(struct task_struct *p, struct task_ctx *tctx, bool woken, bool cut_short,
			  bool *boosted)
{
	enum hf_class class = resume_first_enabled ? tctx->class : HF_UNKNOWN;
	u64 key;

	reweigh(p, tctx);
	/* A task that has not run yet has as little lag as one that slept. */
	place_among_others(tctx, scx_bpf_task_cpu(p), woken || !p->se.sum_exec_runtime);
	/* A task whose slice a real-time task cuts short goes first, with the rest of its slice. */
	key = hf_queue_key(tctx->vtime, cut_short ? HF_HOLDER : class, woken, tctx->weight,
			   &params);
	*boosted = key != tctx->vtime;
	if (!*boosted)
		return key;
	if (!cut_short)
		vm_stat_add(vm_ctx_of(vcpu_of(p)), HF_STAT_RESUMED_FIRST, 1);
	return tctx->group ? boosted_in_groups(tctx, key) : key;
}

/* Puts @p into a DSQ, and finds a CPU for it: an idle one, or that of a task further ahead. */
static void wait_for_cpu(struct task_struct *p, struct task_ctx *tctx, u64 enq_flags)
{
	bool woken = enq_flags & SCX_ENQ_WAKEUP, cut_short = enq_flags & SCX_ENQ_REENQ;
	/* select_cpu() has looked for an idle CPU already if the task wakes. */
	bool selected = __COMPAT_is_enq_cpu_selected(enq_flags), boosted;
	u64 dsq = dsq_of(p, tctx), key, host_key;
	s32 cpu = selected ? -1 : pick_idle_core(p);
	struct cpu_ctx *cctx;

	if (cpu < 0 && resumes_here(p, tctx, enq_flags)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, enq_flags);
		return;
	}
	if (woken && !selected)
		note_waker(p, tctx);
	key = place_in_queue(p, tctx, woken, cut_short, &boosted);
	host_key = key + offset_of(tctx->cpu);
	if (dsq >= HF_CPU_DSQ) {
		cctx = cpu_ctx_of(scx_bpf_task_cpu(p));
		if (cctx)
			WRITE_ONCE(cctx->has_pinned, true);
	} else if (dsq >= HF_FIRST_AFFINITY_DSQ) {
		use_affinity_dsq(dsq);
	}
	if (woken)
		list_woken(p, tctx);
	WRITE_ONCE(tctx->dsq, dsq);
	/* A task that only moves from one DSQ to another has waited all the while. */
	if (!tctx->waits_since)
		WRITE_ONCE(tctx->waits_since, scx_bpf_now());
	WRITE_ONCE(tctx->queued, true);
	/* A slice of 0 keeps what is left of the last one. */
	scx_bpf_dsq_insert_vtime(p, dsq, cut_short ? 0 : params.slice_ns,
				 dsq < HF_CPU_DSQ ? host_key : key, enq_flags);

	/* A CPU may have run out of work since then. It saw the DSQ without this task. */
	if (cpu < 0)
		cpu = pick_idle_cpu(p, 0);
	if (cpu >= 0)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	else if (woken && p->policy != SCHED_IDLE)
		wakeup_preempt(p, host_key, tctx->weight, tctx->by_sibling && !boosted);
}

#endif /* __SCX_HOLDFAST_ENQUEUE_BPF_H */
