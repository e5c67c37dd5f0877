/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Grace: whether a vCPU runs on at the end of its slice. The rule is hf_grace_decide() in
 * holdfast/grace.h (crates/policy/include). Interface: decide_grace(), then extend() if it says so.
 */
#ifndef __SCX_HOLDFAST_GRACE_BPF_H
#define __SCX_HOLDFAST_GRACE_BPF_H

#include "../ctx.bpf.h"
#include "siblings.bpf.h"

/* What decide_grace() says of a vCPU. */
struct grace_decision {
	u64 step_ns; /* it runs on for so long; 0: it does not */
	u32 tid;     /* it does not, and this blocker gets its CPU; 0: none */
};

static void count_need(struct hf_vm_ctx *vm, u64 granted_ns)
{
	u32 bucket = log2_u32(granted_ns / 1000);

	if (bucket >= HF_NR_NEED_BUCKETS)
		bucket = HF_NR_NEED_BUCKETS - 1;
	vm_stat_add(vm, HF_STAT_NEED + bucket, 1);
}

/*
 * Decides whether vCPU @p, whose thread is current and whose slice or grace step has ended, runs
 * on. Its VM pays for the step at once. A vCPU that waits for a blocker gives it its CPU.
 */
static void decide_grace(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
			 struct grace_decision *decision)
{
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	u64 granted_ns = tctx->grace.granted_ns;
	struct blockers blockers;
	enum hf_target target;
	struct hf_decision d;
	enum hf_class class;
	bool spun_long;

	decision->step_ns = 0;
	decision->tid = 0;
	if (!vm)
		return;

	class = end_class(v, hf_read_class(v));
	hf_note_class(&tctx->grace, class, p->se.sum_exec_runtime);
	find_blockers(&vm->preempted, class, &blockers);
	bpf_spin_lock(&vm->lock);
	vm->budget_ns = hf_grace_earn(vm->budget_ns, tctx->unearned_ns, &params);
	d = hf_grace_decide(&tctx->grace, &vm->budget_ns, class, &blockers.siblings, &params);
	bpf_spin_unlock(&vm->lock);
	tctx->unearned_ns = 0;
	vm_stat_add(vm, HF_STAT_VERDICT + d.verdict, 1);

	if (d.verdict == HF_EXTEND) {
		vm_stat_add(vm, HF_STAT_GRACE_NS, d.step_ns);
		decision->step_ns = d.step_ns;
		return;
	}
	if (d.verdict == HF_RELEASE)
		count_need(vm, granted_ns);
	if (waiters_enabled) {
		spun_long = hf_spins_for_holder(class, &blockers.siblings, granted_ns, &params);
		target = hf_yield_target(class, &blockers.siblings, false, spun_long);
		decision->tid = target_tid(&blockers, target, 0);
	}
}

/* Lets @p run on for @step_ns, with a probe at the end. False if the timer cannot be started. */
static bool extend(struct task_struct *p, struct cpu_ctx *cctx, u64 step_ns)
{
	cctx->slice.probe.reason = PROBE_FOR_GRACE;
	cctx->slice.probe.tid = p->pid;
	/* The slice is only a backstop, should the timer be late. */
	scx_bpf_task_set_slice(p, step_ns * 2);
	if (!bpf_timer_start(&cctx->timer, step_ns, BPF_F_TIMER_CPU_PIN))
		return true;
	cctx->slice.probe.reason = PROBE_NONE;
	scx_bpf_task_set_slice(p, 0);
	return false;
}

#endif /* __SCX_HOLDFAST_GRACE_BPF_H */
