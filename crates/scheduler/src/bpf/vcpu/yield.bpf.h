/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Directed yields: KVM asks for them when a vCPU spins, or when its guest names a candidate. Where
 * ops.yield is missing or ignores its second task, there are none under sched_ext. Interface:
 * promise_yield() for ops.yield, give_cpu() to carry out a yield at the end of the slice.
 */
#ifndef __SCX_HOLDFAST_YIELD_BPF_H
#define __SCX_HOLDFAST_YIELD_BPF_H

#include "../ctx.bpf.h"
#include "../base/affinity.bpf.h"
#include "../base/queues.bpf.h"
#include "../base/vtime.bpf.h"
#include "siblings.bpf.h"

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

/* What a running task would give away: its place, and the slice of the task that is next. */
struct offer {
	u64 vtime;
	u64 first_key;
	u32 weight;
	bool others; /* a task is next: the one with @first_key */
	bool made;   /* make_offer() has filled it in */
};

static bool may_give(const struct offer *offer, const struct task_ctx *to, s32 cpu)
{
	return !offer->others || hf_may_give(offer->vtime, offer->weight, vtime_at(to, cpu),
					     READ_ONCE(to->weight), offer->first_key, &params);
}

/*
 * The offer of the task that runs on this CPU, at this moment. It goes through all DSQs near the
 * CPU, and is made only for a thread that it could go to: a candidate may be pinned to another CPU,
 * or on its way to one.
 */
static void make_offer(const struct task_ctx *from, struct cpu_ctx *cctx, s32 cpu,
		       struct offer *offer)
{
	struct first first = {};

	if (offer->made)
		return;
	offer->made = true;
	offer->vtime = hf_charge(from->vtime, time_delta(scx_bpf_now(), cctx->run.charged_at),
				 from->weight);
	offer->weight = from->weight;
	offer->others = next_dsq_here(cpu, cctx, llc_of(cpu), &first);
	offer->first_key = first.key - cctx->clock.offset;
}

/* Could thread @tid have the CPU of @from, if it were given it at this moment? */
static bool can_have(struct offer *offer, const struct task_ctx *from, struct cpu_ctx *cctx,
		     u32 tid, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *to;
	bool can;

	if (!p)
		return false;
	to = try_task_ctx_of(p);
	can = to && READ_ONCE(to->queued) && may_run_on(p, cpu);
	if (can) {
		make_offer(from, cctx, cpu, offer);
		can = may_give(offer, to, cpu);
	}
	bpf_task_release(p);
	return can;
}

/*
 * Decides a directed yield of @from to thread @candidate_tid. True promises that @from stops
 * running, for a task that can have its CPU: a blocker of the same VM if one is known, else the
 * candidate. dispatch() gives it the CPU, unless another CPU has taken it first.
 */
static bool promise_yield(struct task_struct *from, struct task_ctx *from_ctx, u32 candidate_tid,
			  struct cpu_ctx *cctx, s32 cpu)
{
	enum hf_reason reason = reason_of(vcpu_of(from));
	struct hf_vcpu *v = readable_vcpu_of(from);
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	enum hf_class class = HF_UNKNOWN;
	u64 now = scx_bpf_now();
	struct offer offer = {};
	struct blockers blockers;
	bool candidate, trusted;
	enum hf_target target;
	u32 tid;

	__builtin_memset(&blockers, 0, sizeof(blockers));
	if (!hf_yields_for(reason)) {
		vm_stat_add(vm, HF_STAT_DIRECTED_YIELD + reason * HF_NR_TARGETS + HF_TO_NONE, 1);
		return false;
	}
	if (vm) {
		class = hf_read_class(v);
		hf_note_class(&from_ctx->grace, end_class(v, class), from->se.sum_exec_runtime);
		if (hf_prefers_blocker(reason, class, pause_exits_seen(vm, now)))
			find_blockers(&vm->preempted, class, &blockers);
		note_pause_exit(vm, v, class, now);
	}
	candidate = can_have(&offer, from_ctx, cctx, candidate_tid, cpu);
	trusted = hf_trusts_candidate(reason, &cctx->run.spin, now, vm && pause_exits_seen(vm, now),
				      &params);
	target = hf_yield_target(class, &blockers.siblings, candidate, trusted);
	tid = target_tid(&blockers, target, candidate_tid);
	if ((target == HF_TO_HOLDER || target == HF_TO_CALL_PENDING) &&
	    !can_have(&offer, from_ctx, cctx, tid, cpu)) {
		/* The blocker is out of reach from here, as if it were not known. */
		__builtin_memset(&blockers, 0, sizeof(blockers));
		target = hf_yield_target(class, &blockers.siblings, candidate, trusted);
		tid = candidate_tid;
	}
	vm_stat_add(vm, HF_STAT_DIRECTED_YIELD + reason * HF_NR_TARGETS + target, 1);
	if (target == HF_TO_NONE)
		return false;
	cctx->slice.yield.kind = YIELD_PROMISED;
	cctx->slice.yield.tid = tid;
	scx_bpf_task_set_slice(from, 0);
	return true;
}

/*
 * Gives this CPU to thread @tid, in whose place the running task then waits. Not if that kept the
 * task with @first_key, if there is one, waiting for too long.
 */
static bool give_cpu(struct task_ctx *from, u32 tid, s32 cpu, bool others, u64 first_key)
{
	const struct offer offer = { from->vtime, first_key, from->weight, others, true };
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *to;
	bool done = false;
	u64 to_vtime;

	if (!p)
		return false;
	to = try_task_ctx_of(p);
	if (to && READ_ONCE(to->queued)) {
		to_vtime = vtime_at(to, cpu);
		done = may_give(&offer, to, cpu) && pull(p, READ_ONCE(to->dsq), cpu);
		if (done) {
			hf_swap_places(&from->vtime, from->weight, &to_vtime, to->weight);
			WRITE_ONCE(to->vtime, to_vtime);
			WRITE_ONCE(to->cpu, cpu);
		}
	}
	bpf_task_release(p);
	return done;
}

#endif /* __SCX_HOLDFAST_YIELD_BPF_H */
