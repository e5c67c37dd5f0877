/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Looking at a running vCPU, by a timer pinned to its CPU: at the end of each step of its
 * grace, and between turns while siblings are stuck that it may be waiting for.
 */
#ifndef __SCX_HOLDFAST_PROBE_BPF_H
#define __SCX_HOLDFAST_PROBE_BPF_H

/* The timer may fire late, for a task that it was not armed for. */
static void stop_probing(struct cpu_ctx *cctx, struct task_ctx *tctx)
{
	cctx->grace_tid = 0;
	cctx->probe_tid = 0;
	cctx->held_since = 0;
	tctx->grace.granted_ns = 0;
	tctx->grace.nr_steps = 0;
}

/* Has the timer look at @p, which runs on the CPU of @cctx, after a while. The next tick looks at whom it does not. */
static void probe_in(u64 step_ns, struct task_struct *p, struct cpu_ctx *cctx)
{
	cctx->probe_tid = 0;
	cctx->probe_ns = step_ns;
	/* Another CPU has changed its weight or affinity: the timer would be of that one. */
	if (scx_bpf_task_cpu(p) != bpf_get_smp_processor_id())
		return;
	if (!bpf_timer_start(&cctx->timer, step_ns, BPF_F_TIMER_CPU_PIN))
		cctx->probe_tid = p->pid;
}

static void count_need(struct hf_vm_ctx *vm, u64 granted_ns)
{
	u32 bucket = log2_u32(granted_ns / 1000);

	if (bucket >= HF_NR_NEED_BUCKETS)
		bucket = HF_NR_NEED_BUCKETS - 1;
	vm_stat_add(vm, HF_STAT_NEED + bucket, 1);
}

/*
 * Decides whether vCPU @p, which is current and whose turn has ended, runs on.
 * True if it was granted a step, with the timer armed to look again at its end.
 * If it waits for a sibling its CPU is left to that one.
 */
static bool grant_grace(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
			struct cpu_ctx *cctx)
{
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	u64 granted_ns = tctx->grace.granted_ns;
	struct hf_decision d;
	enum hf_class class;
	struct blockers blockers;

	if (!vm)
		return false;

	class = end_class(v, hf_read_class(v));
	hf_note_class(&tctx->grace, class, p->se.sum_exec_runtime);
	find_blockers(&vm->preempted, class, &blockers);
	bpf_spin_lock(&vm->lock);
	vm->budget_ns = hf_grace_earn(vm->budget_ns, tctx->unearned_ns, &params);
	d = hf_grace_decide(&tctx->grace, &vm->budget_ns, class, &blockers.siblings, &params);
	bpf_spin_unlock(&vm->lock);
	tctx->unearned_ns = 0;
	vm_stat_add(vm, HF_STAT_VERDICT + d.verdict, 1);

	if (d.verdict != HF_EXTEND) {
		cctx->grace_tid = 0;
		if (d.verdict == HF_RELEASE)
			count_need(vm, granted_ns);
		if (waiters_enabled) {
			bool spun_long =
				hf_spins_for_holder(class, &blockers.siblings, granted_ns, &params);

			cctx->yield_tid = target_tid(
				&blockers,
				hf_yield_target(class, &blockers.siblings, false, spun_long), 0);
		}
		return false;
	}

	vm_stat_add(vm, HF_STAT_GRACE_NS, d.step_ns);
	cctx->grace_tid = p->pid;
	/* The slice is only a backstop, should the timer be late. */
	scx_bpf_task_set_slice(p, d.step_ns * 2);
	if (!bpf_timer_start(&cctx->timer, d.step_ns, BPF_F_TIMER_CPU_PIN))
		return true;
	cctx->grace_tid = 0;
	scx_bpf_task_set_slice(p, 0);
	return false;
}

/*
 * Looks at the running vCPU @p, some of whose siblings may be stuck. True if it waits for
 * one of them: then its turn is over. Otherwise it is looked at again, ever more rarely.
 */
static bool probe(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
		  struct cpu_ctx *cctx)
{
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	u64 now = scx_bpf_now();
	enum hf_target target;
	enum hf_class class;
	struct blockers blockers;
	u32 tid;

	if (!has_blockers(vm)) {
		/* The next tick may find that one is. Nothing is known of the time until then. */
		cctx->probe_tid = 0;
		cctx->held_since = 0;
		return false;
	}
	class = hf_read_class(v);
	/* As the end of its turn would see it: one that is called, whatever it does meanwhile. */
	hf_note_class(&tctx->grace, end_class(v, class), p->se.sum_exec_runtime);
	find_blockers(&vm->preempted, class, &blockers);
	if (!hf_in_critical_section(class))
		cctx->held_since = 0;
	else if (!cctx->held_since)
		cctx->held_since = now;
	target = hf_probe_target(class, &blockers.siblings, pause_exits_seen(vm, now),
				 cctx->held_since &&
					 hf_spins_for_holder(class, &blockers.siblings,
							     now - cctx->held_since, &params));
	tid = target_tid(&blockers, target, 0);
	/* Who is in no queue and goes on helps its VM more than whoever would have the CPU instead. */
	if (target != HF_TO_NONE && !hf_is_queued(class) &&
	    !can_take(tid, bpf_get_smp_processor_id()))
		target = HF_TO_NONE;
	vm_stat_add(vm, HF_STAT_PROBED + target, 1);
	if (target != HF_TO_NONE) {
		cctx->yield_tid = tid;
		return true;
	}
	probe_in(cctx->probe_ns * 2, p, cctx);
	return false;
}

static int probe_timer_fn(void *map, u32 *cpu, struct cpu_ctx *cctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *tctx;
	struct hf_vcpu *v;

	if (!p->pid || (cctx->grace_tid != p->pid && cctx->probe_tid != p->pid))
		return 0;
	/* Meanwhile it gives its CPU away, and is about to. */
	if (cctx->yield_tid)
		return 0;

	tctx = task_ctx_of(p);
	v = readable_vcpu_of(p);
	if (tctx && v) {
		if (cctx->grace_tid == p->pid) {
			if (grant_grace(p, v, tctx, cctx))
				return 0;
			cctx->grace_over = true;
		} else if (!probe(p, v, tctx, cctx)) {
			return 0;
		}
	}

	cctx->grace_tid = 0;
	cctx->probe_tid = 0;
	scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	return 0;
}

#endif /* __SCX_HOLDFAST_PROBE_BPF_H */
