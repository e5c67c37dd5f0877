/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Directed yields: KVM asks for them when a vCPU spins, or when its guest says whom it waits for.
 * Every other scheduler ignores the target, which takes KVM's directed yield away.
 */
#ifndef __SCX_HOLDFAST_YIELD_BPF_H
#define __SCX_HOLDFAST_YIELD_BPF_H

/*
 * Is the running vCPU in a spin that has lasted for longer than is good for it? While it is,
 * pause-loop exits follow one another: closely, or each after twice the time, as KVM has it. At each of them
 * KVM asks for one sibling after the other: only the longest gap tells of the exits.
 */
static bool spun_long(struct cpu_ctx *cctx, u64 now)
{
	u64 gap = cctx->spinning_at ? now - cctx->spinning_at : 0;

	if (!cctx->spinning_at || (gap > params.look_ns && gap > 3 * cctx->spin_gap_ns)) {
		cctx->spinning_since = now;
		cctx->spin_gap_ns = gap < params.look_ns ? gap : params.look_ns;
	} else if (gap > cctx->spin_gap_ns) {
		cctx->spin_gap_ns = gap;
	}
	cctx->spinning_at = now;
	return now - cctx->spinning_since >= params.spin_ns;
}

/* arch/x86/include/asm/kvm_host.h */
#define VCPU_REGS_RAX 0

/* Why KVM asks vCPU @v, whose thread is current, to yield: kvm_vcpu_on_spin(), or a hypercall. */
static enum hf_reason reason_of(const struct hf_vcpu *v)
{
	struct kvm_vcpu___hf *kv;

	if (!v || !v->vcpu)
		return HF_FOR_OTHER;
	kv = (struct kvm_vcpu___hf *)v->vcpu;
	if (BPF_CORE_READ(kv, spin_loop.in_spin_loop))
		return HF_FOR_PAUSE;
	switch (BPF_CORE_READ(kv, arch.regs[VCPU_REGS_RAX])) {
	case KVM_HC_KICK_CPU:
		return HF_FOR_KICK;
	case KVM_HC_SCHED_YIELD:
		return HF_FOR_IPI;
	default:
		return HF_FOR_OTHER;
	}
}

/*
 * Pause-loop exits, KVM_HC_SCHED_YIELD and KVM_HC_KICK_CPU come here through
 * yield_to(). True promises that @from stops running; its CPU then goes, in
 * dispatch(), to a preempted holder of the same VM if one is known, else to @to.
 */
bool BPF_STRUCT_OPS(holdfast_yield, struct task_struct *from, struct task_struct *to)
{
	s32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct hf_vm_ctx *vm = NULL;
	enum hf_target target;
	enum hf_class class = HF_UNKNOWN;
	struct task_ctx *to_ctx;
	struct stuck stuck;
	struct hf_vcpu *v;
	bool named, tells = false;
	u32 tid;
	u64 now;

	if (!cctx)
		return false;
	if (!to) {
		stat_add(HF_STAT_YIELD, 1);
		cctx->yield_tid = YIELD_TO_ANY;
		scx_bpf_task_set_slice(from, 0);
		return false;
	}
	if (!directed_yield_enabled)
		return false;

	now = scx_bpf_now();
	v = readable_vcpu_of(from);
	vm = vm_ctx_of(v);
	__builtin_memset(&stuck, 0, sizeof(stuck));
	if (vm) {
		class = hf_read_class(v);
		find_stuck(&vm->preempted, class, &stuck);
		note_spinner(vm, v, class, now);
		tells = waiters_tell(vm, now);
	}
	to_ctx = task_ctx_of(to);
	named = to_ctx && to_ctx->queued && may_run_on(to, cpu);
	target = hf_yield_target(class, &stuck.siblings, named, spun_long(cctx, now) || tells);
	tid = target_tid(&stuck, target, to->pid);
	/* KVM goes on to the next sibling when one cannot be run here. */
	if (target != HF_TO_NOBODY && target != HF_TO_NAMED && !can_take(tid, cpu)) {
		vm_stat_add(vm, HF_STAT_MISSED, 1);
		return false;
	}
	vm_stat_add(vm, HF_STAT_ASKED + reason_of(vcpu_of(from)) * HF_NR_TARGETS + target, 1);
	if (target == HF_TO_NOBODY)
		return false;
	cctx->yield_tid = tid;
	scx_bpf_task_set_slice(from, 0);
	return true;
}

/*
 * Gives this CPU to thread @tid, in whose place the running task now waits. Not if that
 * kept the one with @first_key, if there is one, from its turn for too long.
 */
static bool give_cpu(struct task_ctx *from, u32 tid, s32 cpu, bool others, u64 first_key)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *to;
	bool done = false;
	u64 to_vtime;

	if (!p)
		return false;
	to = task_ctx_of(p);
	if (to && to->queued) {
		to_vtime = vtime_at(to, cpu);
		done = (!others || hf_may_give(from->vtime, from->weight, to_vtime, to->weight,
					       first_key, &params)) &&
		       pull(tid, to->queue, cpu);
		if (done) {
			hf_swap_places(&from->vtime, from->weight, &to_vtime, to->weight);
			to->vtime = to_vtime;
			to->cpu = cpu;
		}
	}
	bpf_task_release(p);
	return done;
}

#endif /* __SCX_HOLDFAST_YIELD_BPF_H */
