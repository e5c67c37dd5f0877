/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The life of a slice. Interface: begin_run(), tick_alone(), end_slice() and end_run().
 *
 * Where a slice ends, in this order: a starving task gets the CPU (run_starving(), called by
 * dispatch()). A task that is to migrate to an idle core leaves (dispatch()). A pending yield is
 * carried out; where its target is gone the task stops, unless it is in a critical section. Without
 * a yield the end is decided, and applied then: a task has another slice if no task that waits is
 * further behind; a vCPU that holds a lock, or is about to, has grace; a vCPU that waits for a
 * blocker (a preempted sibling that others wait for) gives it its CPU; any other task stops.
 */
#ifndef __SCX_HOLDFAST_SLICE_BPF_H
#define __SCX_HOLDFAST_SLICE_BPF_H

#include "ctx.bpf.h"
#include "base/idle.bpf.h"
#include "base/starving.bpf.h"
#include "base/vtime.bpf.h"
#include "vcpu/grace.bpf.h"
#include "vcpu/probe.bpf.h"
#include "vcpu/yield.bpf.h"

static void begin_slice(struct cpu_ctx *cctx)
{
	cctx->slice = (struct slice_ctx){};
	WRITE_ONCE(cctx->asked, ASKED_BY_NONE);
}

/* @p begins to run on the CPU of @cctx. */
static void begin_run(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx, u64 now)
{
	u64 least;

	WRITE_ONCE(tctx->queued, false);
	tctx->by_sibling = false;
	tctx->class = HF_UNKNOWN;
	tctx->charged_ns = p->se.sum_exec_runtime;
	reweigh(p, tctx);
	/* The kernel runs some tasks without asking where to queue them. */
	place(tctx, scx_bpf_task_cpu(p), false);
	/*
	 * Time goes on without a task that is further behind and kept from running. A kernel
	 * thread that did not wait says nothing of the tasks behind. Neither does a starving task.
	 */
	if (!is_pcpu_kthread(p) && !is_starving(tctx, now)) {
		least = tctx->vtime - hf_lag_limit(tctx->weight, false, &params);
		host_time_passes(cctx, least);
		time_here_passes(cctx, least);
	}
	WRITE_ONCE(tctx->waits_since, 0);
	WRITE_ONCE(cctx->run.vtime, tctx->vtime);
	WRITE_ONCE(cctx->run.charged_at, now);
	WRITE_ONCE(cctx->run.weight, tctx->weight);
	WRITE_ONCE(cctx->run.tid, p->pid);
	WRITE_ONCE(cctx->run.sync_at, 0);
	cctx->run.spin = (struct hf_spin){};
	cctx->run.smt_busy = false;
	/* Its timer may have granted it grace while another CPU changed its weight or affinity. */
	stop_probing(cctx, tctx);
	begin_slice(cctx);
}

/* @p has another slice; @alone: because its CPU is not contended. */
static void renew_slice(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
			bool alone)
{
	stop_probing(cctx, tctx);
	begin_slice(cctx);
	reweigh(p, tctx);
	WRITE_ONCE(cctx->run.weight, tctx->weight);
	if (alone)
		clamp_lag(tctx);
	else
		place_among_others(tctx, scx_bpf_task_cpu(p), false);
	WRITE_ONCE(cctx->run.vtime, tctx->vtime);
	scx_bpf_task_set_slice(p, params.slice_ns);
}

/*
 * A tick finds @p alone on @cpu: its slice goes on, or it migrates to an idle core. Its grace, for
 * which its VM would pay, is over with the wait of the task that it was against.
 */
static void tick_alone(struct task_struct *p, struct task_ctx *tctx, s32 cpu, struct cpu_ctx *cctx)
{
	set_contended(cctx, false);
	if (cctx->slice.probe.reason == PROBE_FOR_GRACE)
		stop_probing(cctx, tctx);
	clamp_lag(tctx);
	WRITE_ONCE(cctx->run.vtime, tctx->vtime);
	cctx->slice.migrates = should_migrate(p, cpu, cctx);
	scx_bpf_task_set_slice(p, cctx->slice.migrates ? 0 : params.slice_ns);
}

/* The first of the tasks that wait for a CPU, by the clock of that CPU. */
struct rival {
	bool waits; /* else there is none */
	u64 key;
};

enum slice_fate {
	SLICE_OVER = 0, /* the task stops */
	SLICE_GIVEN,	/* the task stops, and the thread of @yield gets its CPU */
	SLICE_RENEWED,	/* the task has another slice */
	SLICE_EXTENDED, /* the task has @step_ns of grace */
};

struct slice_end {
	enum slice_fate fate;
	struct pending_yield yield;
	u64 step_ns;
};

static bool is_directed(enum yield_kind kind)
{
	return kind == YIELD_TO_THREAD || kind == YIELD_PROMISED;
}

static void count_missed(struct task_struct *from)
{
	vm_stat_add(vm_ctx_of(vcpu_of(from)), HF_STAT_MISSED, 1);
}

/*
 * Gives the CPU of @prev to the thread of @yield, unless that one is gone or too far ahead. Whether
 * it is too far ahead is not asked again if it was promised the CPU: a task of another LLC may be
 * the rival by now, or time may have passed.
 */
static bool give_away(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
		      const struct rival *rival, const struct pending_yield *yield)
{
	bool others = rival->waits && yield->kind != YIELD_PROMISED;

	if (!give_cpu(tctx, yield->tid, scx_bpf_task_cpu(prev), others, rival->key)) {
		count_missed(prev);
		return false;
	}
	stop_probing(cctx, tctx);
	return true;
}

/*
 * @prev could not give its CPU to the target of its yield. Does the yield count for nothing, as
 * @prev is in a critical section? Not if it promised to stop for any task.
 */
static bool takes_back_yield(struct task_struct *prev, const struct cpu_ctx *cctx)
{
	struct hf_vcpu *v;

	if (cctx->slice.yield.kind == YIELD_TO_ANY)
		return false;
	v = readable_vcpu_of(prev);
	return v && hf_in_critical_section(hf_read_class(v));
}

/* Decides the end of the slice of @prev, which would run on and does not yield. */
static void decide_slice_end(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
			     const struct rival *rival, struct slice_end *end)
{
	struct grace_decision grace;
	struct hf_vcpu *v;

	if (!rival->waits || !hf_vtime_before(rival->key, tctx->vtime)) {
		end->fate = SLICE_RENEWED;
		return;
	}
	if (!grace_enabled || cctx->slice.grace_over || !(v = known_vcpu_of(prev)))
		return;
	decide_grace(prev, v, tctx, &grace);
	end->step_ns = grace.step_ns;
	end->yield.kind = YIELD_TO_THREAD;
	end->yield.tid = grace.tid;
	if (grace.step_ns)
		end->fate = SLICE_EXTENDED;
	else if (grace.tid)
		end->fate = SLICE_GIVEN;
}

/* True if @prev keeps its CPU or has given it away. */
static bool apply_slice_end(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
			    const struct rival *rival, const struct slice_end *end)
{
	switch (end->fate) {
	case SLICE_RENEWED:
		stat_add(HF_STAT_KEPT, 1);
		renew_slice(prev, tctx, cctx, !rival->waits);
		return true;
	case SLICE_EXTENDED:
		return extend(prev, cctx, end->step_ns);
	case SLICE_GIVEN:
		return give_away(prev, tctx, cctx, rival, &end->yield);
	default:
		return false;
	}
}

/*
 * Ends the slice of @prev, which would run on. True if it keeps its CPU or has given it away; if
 * not, the task that waits first gets the CPU.
 */
static bool end_slice(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
		      const struct rival *rival)
{
	struct pending_yield yield = cctx->slice.yield;
	struct slice_end end = {};
	bool stops = false;

	if (is_directed(yield.kind) && give_away(prev, tctx, cctx, rival, &yield)) {
		cctx->slice.yield.kind = YIELD_NONE;
		return true;
	}
	if (yield.kind != YIELD_NONE)
		stops = !takes_back_yield(prev, cctx);
	cctx->slice.yield.kind = YIELD_NONE;
	if (!stops)
		decide_slice_end(prev, tctx, cctx, rival, &end);
	if (apply_slice_end(prev, tctx, cctx, rival, &end))
		return true;
	stop_probing(cctx, tctx);
	return false;
}

/*
 * @p stops. A yield that end_slice() has not carried out is missed: a starving task came before it,
 * or one of the CPU's local DSQ, or of a higher scheduling class.
 */
static void end_run(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx)
{
	stop_probing(cctx, tctx);
	if (is_directed(cctx->slice.yield.kind))
		count_missed(p);
	cctx->slice.yield.kind = YIELD_NONE;
	WRITE_ONCE(cctx->run.tid, 0);
}

#endif /* __SCX_HOLDFAST_SLICE_BPF_H */
