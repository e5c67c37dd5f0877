/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Probes of a running vCPU, by a timer pinned to its CPU: at the end of each step of its grace, and
 * within its slice while its VM has blockers that it may wait for. The slice of a vCPU that cannot
 * be read ends by the same timer. Interface: first_probe() and tick_probe() begin the probes of a
 * slice, stop_probing() ends them and the grace, probe_timer_fn() is the timer.
 */
#ifndef __SCX_HOLDFAST_PROBE_BPF_H
#define __SCX_HOLDFAST_PROBE_BPF_H

#include "../ctx.bpf.h"
#include "grace.bpf.h"
#include "siblings.bpf.h"

/* Ends the probes and the grace of a vCPU. The timer may fire late, for another task. */
static void stop_probing(struct cpu_ctx *cctx, struct task_ctx *tctx)
{
	cctx->slice.probe = (struct next_probe){};
	tctx->grace.granted_ns = 0;
	tctx->grace.nr_steps = 0;
}

/* Has the timer probe @p, which runs on the CPU of @cctx, in @step_ns, or else the next tick. */
static void probe_in(u64 step_ns, struct task_struct *p, struct cpu_ctx *cctx)
{
	struct next_probe *next = &cctx->slice.probe;

	next->reason = PROBE_NONE;
	next->step_ns = step_ns;
	/* Another CPU has changed its weight or affinity: the timer would be that CPU's. */
	if (scx_bpf_task_cpu(p) != bpf_get_smp_processor_id())
		return;
	next->tid = p->pid;
	if (!bpf_timer_start(&cctx->timer, step_ns, BPF_F_TIMER_CPU_PIN))
		next->reason = PROBE_FOR_BLOCKERS;
}

/*
 * @p has begun to run: in a moment it may wait for a blocker. If it cannot be read and has spun for
 * long, for all that is known, the timer ends its slice: a tick comes later than that.
 */
static void first_probe(struct task_struct *p, const struct task_ctx *tctx, struct cpu_ctx *cctx,
			u64 now)
{
	bool blockers = waiters_enabled && READ_ONCE(nr_blockers);
	struct hf_vm_ctx *vm;
	struct hf_vcpu *v;

	if ((!blockers && !cctx->clock.contended) || !(v = vcpu_of(p)))
		return;
	if (v->epoch && blockers && (vm = vm_ctx_of(v)) && has_blockers(vm))
		probe_in(hf_first_probe(bpf_get_prandom_u32(), pause_exits_seen(vm, now), &params),
			 p, cctx);
	else if (!v->epoch && hf_may_spin(time_delta(now, tctx->gave_way_at)))
		probe_in(hf_spinner_slice(&params), p, cctx);
}

/*
 * Probes the running vCPU @p. True if it waits for a blocker, to which it then yields: its slice is
 * over. Otherwise it is probed again, after twice the time.
 */
static bool probe(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
		  struct cpu_ctx *cctx)
{
	struct next_probe *next = &cctx->slice.probe;
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	u64 now = scx_bpf_now();
	struct blockers blockers;
	enum hf_target target;
	enum hf_class class;
	u32 tid;

	if (!has_blockers(vm)) {
		/* The next tick may find one. The class until then is not known. */
		*next = (struct next_probe){};
		return false;
	}
	class = hf_read_class(v);
	/* As the end of its slice would see it: with a call pending, also while it runs on. */
	hf_note_class(&tctx->grace, end_class(v, class), p->se.sum_exec_runtime);
	find_blockers(&vm->preempted, class, &blockers);
	if (!hf_in_critical_section(class))
		next->held_since = 0;
	else if (!next->held_since)
		next->held_since = now;
	target = hf_probe_target(class, &blockers.siblings, pause_exits_seen(vm, now),
				 next->held_since &&
					 hf_spins_for_holder(class, &blockers.siblings,
							     now - next->held_since, &params));
	tid = target_tid(&blockers, target, 0);
	/* Outside of queues it helps its VM by running on if the blocker cannot have the CPU. */
	if (target != HF_TO_NONE && !hf_in_lock_queue(class) &&
	    !can_take(tid, bpf_get_smp_processor_id()))
		target = HF_TO_NONE;
	vm_stat_add(vm, HF_STAT_PROBED + target, 1);
	if (target != HF_TO_NONE) {
		cctx->slice.yield.kind = YIELD_TO_THREAD;
		cctx->slice.yield.tid = tid;
		return true;
	}
	probe_in(next->step_ns * 2, p, cctx);
	return false;
}

/* A tick finds @p on a contended CPU: a sibling may have become a blocker while it ran. */
static void tick_probe(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx)
{
	struct next_probe *next = &cctx->slice.probe;
	struct hf_vcpu *v;

	if (!waiters_enabled || !READ_ONCE(nr_blockers) || next->reason != PROBE_NONE ||
	    !(v = readable_vcpu_of(p)))
		return;
	next->step_ns = params.probe_ns;
	if (probe(p, v, tctx, cctx))
		scx_bpf_task_set_slice(p, 0);
}

/*
 * A step of the grace of @p is over. True if it runs on: it has another one, or no task waits any
 * longer for its CPU. Then its slice goes on, as at a tick.
 */
static bool probe_grace(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
			struct cpu_ctx *cctx, s32 cpu)
{
	struct grace_decision d;

	if (is_alone(cpu, cctx)) {
		stop_probing(cctx, tctx);
		scx_bpf_task_set_slice(p, params.slice_ns);
		return true;
	}
	decide_grace(p, v, tctx, &d);
	if (d.step_ns && extend(p, cctx, d.step_ns))
		return true;
	if (d.tid) {
		cctx->slice.yield.kind = YIELD_TO_THREAD;
		cctx->slice.yield.tid = d.tid;
	}
	cctx->slice.grace_over = true;
	return false;
}

static int probe_timer_fn(void *map, u32 *cpu, struct cpu_ctx *cctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct next_probe *next = &cctx->slice.probe;
	enum probe_reason reason = READ_ONCE(next->reason);
	struct task_ctx *tctx;
	struct hf_vcpu *v;

	if (!p->pid || reason == PROBE_NONE || READ_ONCE(next->tid) != p->pid)
		return 0;
	/* It gives its CPU away already. */
	if (READ_ONCE(cctx->slice.yield.kind) != YIELD_NONE)
		return 0;

	tctx = task_ctx_of(p);
	v = known_vcpu_of(p);
	if (tctx && v) {
		if (reason == PROBE_FOR_GRACE) {
			if (probe_grace(p, v, tctx, cctx, *cpu))
				return 0;
		} else if (v->epoch && !probe(p, v, tctx, cctx)) {
			return 0;
		}
	}

	next->reason = PROBE_NONE;
	scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	return 0;
}

#endif /* __SCX_HOLDFAST_PROBE_BPF_H */
