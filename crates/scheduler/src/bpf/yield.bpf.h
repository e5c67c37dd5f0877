/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Directed yields: KVM asks for them when a vCPU spins, or when its guest says whom it waits for.
 * Every other scheduler ignores the target, which takes KVM's directed yield away.
 */
#ifndef __SCX_HOLDFAST_YIELD_BPF_H
#define __SCX_HOLDFAST_YIELD_BPF_H

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

/* Is a vCPU that yields for @reason taken at its word? */
static bool trusts_candidate(enum hf_reason reason, struct cpu_ctx *cctx,
			     const struct hf_vm_ctx *vm, u64 now)
{
	switch (reason) {
	case HF_FOR_KICK:
		/* If it holds another lock it has to be done with that. */
		return false;
	case HF_FOR_IPI:
		/* It spins for the one that it names. */
		return true;
	default:
		return hf_spun_long(&cctx->spin, now, &params) || (vm && pause_exits_seen(vm, now));
	}
}

/* What a running task would give away: its place, and the turn of who comes next otherwise. */
struct offer {
	u64 vtime;
	u64 first_key;
	u32 weight;
	bool others; /* somebody does: the one with @first_key */
};

static bool may_give(const struct offer *offer, const struct task_ctx *to, s32 cpu)
{
	return !offer->others || hf_may_give(offer->vtime, offer->weight, vtime_at(to, cpu),
					     to->weight, offer->first_key, &params);
}

/* What the task that runs on this CPU could give away now. */
static void make_offer(const struct task_ctx *from, struct cpu_ctx *cctx, s32 cpu, u64 now,
		       struct offer *offer)
{
	struct first first = {};

	offer->vtime = hf_charge(from->vtime, time_delta(now, cctx->curr_charged_at), from->weight);
	offer->weight = from->weight;
	offer->others = next_queue(cpu, cctx, llc_of(cpu), from, &first);
	offer->first_key = first.key - cctx->vtime_offset;
}

/* Could thread @tid have this CPU, if it were given it now? */
static bool can_have(const struct offer *offer, u32 tid, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *to;
	bool can;

	if (!p)
		return false;
	to = task_ctx_of(p);
	can = to && to->queued && may_run_on(p, cpu) && may_give(offer, to, cpu);
	bpf_task_release(p);
	return can;
}

/*
 * Pause-loop exits, KVM_HC_SCHED_YIELD and KVM_HC_KICK_CPU come here through
 * yield_to(). True promises that @from stops running, for somebody who can have its CPU:
 * a preempted holder of the same VM if one is known, else @to. dispatch() gives it, unless
 * another CPU has taken that one first.
 */
bool BPF_STRUCT_OPS(holdfast_yield, struct task_struct *from, struct task_struct *to)
{
	s32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *from_ctx = task_ctx_of(from);
	enum hf_class class = HF_UNKNOWN;
	struct offer offer = {};
	enum hf_target target;
	enum hf_reason reason;
	struct hf_vm_ctx *vm;
	struct blockers blockers;
	struct hf_vcpu *v;
	bool candidate, taken;
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
	if (!directed_yield_enabled || !from_ctx)
		return false;

	now = scx_bpf_now();
	v = readable_vcpu_of(from);
	vm = vm_ctx_of(v);
	reason = reason_of(vcpu_of(from));
	__builtin_memset(&blockers, 0, sizeof(blockers));
	if (vm) {
		class = hf_read_class_after(v, reason == HF_FOR_KICK);
		hf_note_class(&from_ctx->grace, end_class(v, class), from->se.sum_exec_runtime);
		find_blockers(&vm->preempted, class, &blockers);
		note_pause_exit(vm, v, class, now);
	}
	make_offer(from_ctx, cctx, cpu, now, &offer);
	candidate = can_have(&offer, to->pid, cpu);
	taken = trusts_candidate(reason, cctx, vm, now);
	target = hf_yield_target(class, &blockers.siblings, candidate, taken);
	tid = target_tid(&blockers, target, to->pid);
	if ((target == HF_TO_HOLDER || target == HF_TO_CALL_PENDING) &&
	    !can_have(&offer, tid, cpu)) {
		/* Who is stuck is out of reach from here, as if it were not known. */
		__builtin_memset(&blockers, 0, sizeof(blockers));
		target = hf_yield_target(class, &blockers.siblings, candidate, taken);
		tid = to->pid;
	}
	vm_stat_add(vm, HF_STAT_DIRECTED_YIELD + reason * HF_NR_TARGETS + target, 1);
	if (target == HF_TO_NONE)
		return false;
	cctx->yield_tid = tid;
	cctx->kick = reason == HF_FOR_KICK;
	scx_bpf_task_set_slice(from, 0);
	return true;
}

/*
 * Gives this CPU to thread @tid, in whose place the running task now waits. Not if that
 * kept the one with @first_key, if there is one, from its turn for too long.
 */
static bool give_cpu(struct task_ctx *from, u32 tid, s32 cpu, bool others, u64 first_key)
{
	const struct offer offer = { from->vtime, first_key, from->weight, others };
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *to;
	bool done = false;
	u64 to_vtime;

	if (!p)
		return false;
	to = task_ctx_of(p);
	if (to && to->queued) {
		to_vtime = vtime_at(to, cpu);
		done = may_give(&offer, to, cpu) && pull(p, to->queue, cpu);
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
