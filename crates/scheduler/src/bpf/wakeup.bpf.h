/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where a task goes that wakes, or whose turn has ended: which CPU, whose CPU, which place in which queue. */
#ifndef __SCX_HOLDFAST_WAKEUP_BPF_H
#define __SCX_HOLDFAST_WAKEUP_BPF_H

/* How many CPUs of its LLC a waking task looks at for one to preempt. */
#define WAKEUP_SCAN_CPUS 8

/* include/uapi/linux/sched.h: takes the CPU from nobody. */
#define SCHED_IDLE 5

/* A kernel thread that serves one CPU: short, and others wait for what it does. */
static bool is_pcpu_kthread(const struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

/*
 * Remembers of a vCPU that wakes, and finds no idle CPU, whether another one of its VM has woken it,
 * and what for. Whoever runs when a timer or a device interrupts has woken nobody, nor has it when
 * a wakeup comes that a CPU of another LLC has passed on: both are in interrupt context.
 */
static void note_waker(struct task_struct *p, struct task_ctx *tctx)
{
	struct hf_vcpu *v = readable_vcpu_of(p), *waker;

	if (!v || !bpf_in_task())
		return;
	waker = vcpu_of(bpf_get_current_task_btf());
	if (!waker || waker == v || waker->kvm != v->kvm)
		return;
	tctx->by_sibling = true;
	/* Their VMM is one process: the guest's memory can be read here. */
	tctx->class = end_class(v, hf_read_class(v));
}

/* Who says that it is about to sleep has so long for that; if it does not, it is not trusted for a while. */
#define SLEEPS_SOON_NS	  (100ULL * 1000)
#define DISTRUSTED_FOR_NS (100ULL * 1000 * 1000)

/*
 * May the waker, which says that it is about to sleep (SCX_WAKE_SYNC), be trusted? Then whom it wakes waits for its CPU,
 * although others idle. Not if it is a vCPU, or real-time, or only somebody whom an interrupt has taken for one.
 * @cctx is that of its CPU.
 */
static bool sleeps_soon(const struct cpu_ctx *cctx, u64 now)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_ctx *tctx;

	if (!bpf_in_task() || cctx->curr_tid != waker->pid || vcpu_of(waker))
		return false;
	tctx = task_ctx_of(waker);
	return tctx && !time_before(now, tctx->distrusted_until);
}

/* @p stops: has it slept as soon as it said? Whose affinity changes stops as one that is not runnable, too, and goes on. */
static void note_sleep(const struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
		       bool runnable, u64 now)
{
	bool goes_on = !runnable && !p->__state;

	if (cctx->sync_at && (goes_on || time_delta(now, cctx->sync_at) > SLEEPS_SOON_NS))
		tctx->distrusted_until = now + DISTRUSTED_FOR_NS;
	cctx->sync_at = 0;
}

s32 BPF_STRUCT_OPS(holdfast_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct cpu_ctx *sync = NULL;
	s32 here = bpf_get_smp_processor_id(), cpu;
	bool is_idle = false;
	u64 now = 0;

	if (wake_flags & SCX_WAKE_SYNC) {
		now = scx_bpf_now();
		sync = cpu_ctx_of(here);
		/* From its local queue this CPU goes on without a look at who waits in others: two would wake each other for ever. */
		if (!sync || others_wait(here, sync) || !sleeps_soon(sync, now)) {
			sync = NULL;
			wake_flags &= ~SCX_WAKE_SYNC;
		}
	}
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	if (!is_idle) {
		if (tctx)
			note_waker(p, tctx);
		return cpu;
	}
	if (sync && cpu == here && !sync->sync_at)
		sync->sync_at = now;
	/* An idle CPU needs no queue, and so no lock that others want. */
	if (tctx)
		place(tctx, cpu, true);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, 0);
	return cpu;
}

/* A waking task is to have the CPU of @cctx. */
static void ask_for_cpu(struct cpu_ctx *cctx, bool for_vcpu)
{
	cctx->preempting = true;
	cctx->for_vcpu = for_vcpu;
}

/*
 * A waking task that found no idle CPU may take one from the running task that is
 * furthest ahead of its share, its own CPU first. What is taken is only the turn:
 * a holder there still gets its grace in dispatch().
 */
static void wakeup_preempt(struct task_struct *p, u64 key, u32 weight, bool by_sibling)
{
	s32 first = scx_bpf_task_cpu(p), cpu = first, victim = -1;
	u64 victim_vtime = 0, now = scx_bpf_now();
	u32 i;

	bpf_for (i, 0, WAKEUP_SCAN_CPUS) {
		struct cpu_ctx *cctx;
		u64 vtime;

		cctx = cpu_ctx_of(cpu);
		if (cctx && cctx->curr_tid && !cctx->preempting &&
		    bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			/* Clocks are cached: that CPU's may be ahead of this one's. */
			vtime = hf_charge(READ_ONCE(cctx->curr_vtime) +
						  READ_ONCE(cctx->vtime_offset),
					  time_delta(now, READ_ONCE(cctx->curr_charged_at)),
					  cctx->curr_weight);
			if (victim < 0 || hf_vtime_before(victim_vtime, vtime)) {
				victim = cpu;
				victim_vtime = vtime;
			}
		}
		cpu = next_in_llc(cpu);
		if (cpu == first)
			break;
	}

	if (victim >= 0 && hf_wakeup_preempts(key, victim_vtime, weight, by_sibling, &params)) {
		struct cpu_ctx *cctx = cpu_ctx_of(victim);

		if (cctx)
			ask_for_cpu(cctx, vcpu_of(p));
		stat_add(HF_STAT_WAKEUP_PREEMPT, 1);
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
	}
}

/*
 * Was @p interrupted within its turn, with nobody else waiting? Then whoever took the
 * CPU is short or alone, and @p goes on there when it is done. In the shared queue it
 * would swap CPUs with a neighbour whose turn happens to end, which costs a vCPU its
 * TLB, and would do so for every daemon that wakes on a host that is not overcommitted.
 * Whom others wait for is queued: a CPU that comes to idle takes it, or a sibling that spins.
 * So is who makes room for a vCPU: this CPU does not ask whom to run next while somebody waits in its
 * local queue, and at the end of its turn that vCPU would have neither grace nor whom it yields to.
 */
static bool resumes_here(struct task_struct *p, const struct task_ctx *tctx, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return !(enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ)) && cctx && cctx->preempting &&
	       !cctx->for_vcpu && !cctx->has_pinned && !tctx->blocker &&
	       !llc_waits(cctx, llc_of(cpu));
}

/*
 * A vCPU that wakes and has to wait for a CPU is listed, too: who sent it an interrupt may spin until
 * it is served. What it holds nobody waits for: it halted.
 */
static void list_woken(struct task_struct *p, struct task_ctx *tctx)
{
	struct hf_vcpu *v = readable_vcpu_of(p);
	struct hf_vm_ctx *vm = vm_ctx_of(v);

	if (!vm || tctx->listed)
		return;
	tctx->held = false;
	tctx->listed = true;
	list_preempted(&vm->preempted, v, HF_UNKNOWN);
}

static void count_resumed_first(struct task_struct *p)
{
	vm_stat_add(vm_ctx_of(vcpu_of(p)), HF_STAT_RESUMED_FIRST, 1);
}

void BPF_STRUCT_OPS(holdfast_enqueue, struct task_struct *p, u64 enq_flags)
{
	bool woken = enq_flags & SCX_ENQ_WAKEUP, cut_short = enq_flags & SCX_ENQ_REENQ;
	struct task_ctx *tctx = task_ctx_of(p);
	enum hf_class class;
	struct cpu_ctx *cctx;
	bool selected, first;
	u64 key, host_key, queue;
	s32 cpu;

	/* At the end of a turn it waits like everybody else: two of them would have the CPU for ever. */
	if (!tctx || (woken && is_pcpu_kthread(p))) {
		cctx = cpu_ctx_of(scx_bpf_task_cpu(p));
		if (cctx)
			ask_for_cpu(cctx, false);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}

	if (enq_flags & SCX_ENQ_LAST) {
		migrate_to_idle_core(p, enq_flags);
		return;
	}

	queue = dsq_of(p, tctx);
	/* select_cpu() has looked already for a task that wakes. */
	selected = __COMPAT_is_enq_cpu_selected(enq_flags);
	cpu = selected ? -1 : pick_idle_core(p);
	if (cpu < 0 && resumes_here(p, tctx, enq_flags)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, enq_flags);
		return;
	}

	if (woken && !selected)
		note_waker(p, tctx);
	reweigh(p, tctx);
	/* Who has not run yet is owed as little as who slept. */
	place_among_others(tctx, scx_bpf_task_cpu(p), woken || !p->se.sum_exec_runtime);
	class = resume_first_enabled ? tctx->class : HF_UNKNOWN;
	/* Whose turn a real-time task cuts short goes on first, and has what is left of it. */
	key = hf_queue_key(tctx->vtime, cut_short ? HF_HOLDER : class, woken, tctx->weight,
			   &params);
	first = key != tctx->vtime;
	if (first && tctx->group)
		key = first_in_groups(tctx, key);
	if (first && !cut_short)
		count_resumed_first(p);

	host_key = key + offset_of(tctx->cpu);
	if (queue >= HF_CPU_DSQ && (cctx = cpu_ctx_of(scx_bpf_task_cpu(p))))
		cctx->has_pinned = true;
	if (woken)
		list_woken(p, tctx);
	tctx->queue = queue;
	/* Whoever is only moved from one queue to another has waited all the while. */
	if (!tctx->waits_since)
		tctx->waits_since = scx_bpf_now();
	tctx->queued = true;
	scx_bpf_dsq_insert_vtime(p, queue, cut_short ? 0 : params.slice_ns,
				 queue < HF_CPU_DSQ ? host_key : key, enq_flags);

	/* Has one run out of work since then? It saw the queue without this task. */
	if (cpu < 0)
		cpu = pick_idle_cpu(p, 0);
	if (cpu >= 0)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	else if (woken && p->policy != SCHED_IDLE)
		wakeup_preempt(p, host_key, tctx->weight, tctx->by_sibling && !first);
}

void BPF_STRUCT_OPS(holdfast_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		tctx->queued = false;
}

#endif /* __SCX_HOLDFAST_WAKEUP_BPF_H */
