// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * scx_holdfast: a scheduler for KVM hosts that does not lose a lock holder.
 *
 * The base is a plain weighted virtual time scheduler with one queue per last
 * level cache. On it sit the decisions of policy.h, made at the points where a
 * vCPU would stop running:
 *
 *  - dispatch() asks, when a turn ends, what the guest kernel is doing. A vCPU
 *    that holds a lock runs on in short steps (grace), each bounded by a pinned
 *    timer that looks again.
 *  - enqueue() puts a vCPU that was preempted all the same ahead of its turn
 *    (resume first).
 *  - yield() hands the CPU of a vCPU that spins to the one it waits for; so does the
 *    timer, for a vCPU that spins without telling (waiters).
 *
 * Where what lives: ctx.bpf.h what is remembered, affinity.bpf.h in which queue one waits, groups.bpf.h
 * cgroups, vtime.bpf.h virtual time, queues.bpf.h who is next, idle.bpf.h CPUs and cores that idle, vm.bpf.h what the
 * vCPUs of a VM know of one another, look.bpf.h looking at running vCPUs, yield.bpf.h directed yields.
 *
 * Guest memory is read only while the vCPU's thread is current and somebody else
 * waits for the CPU. What cannot be read is scheduled as an ordinary task.
 */
#include <scx/common.bpf.h>
#include <bpf_experimental.h>
#include "intf.h"
#include <holdfast/kvm.bpf.h>
#include <holdfast/vcpu.bpf.h>
#include "ctx.bpf.h"
#include "affinity.bpf.h"
#include "groups.bpf.h"
#include "vtime.bpf.h"
#include "queues.bpf.h"
#include "idle.bpf.h"
#include "vm.bpf.h"
#include "look.bpf.h"
#include "yield.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

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

s32 BPF_STRUCT_OPS(holdfast_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	struct task_ctx *tctx = task_ctx_of(p);

	if (!is_idle) {
		if (tctx)
			note_waker(p, tctx);
		return cpu;
	}
	/* An idle CPU needs no queue, and so no lock that others want. */
	if (tctx)
		place(tctx, cpu, true);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, 0);
	return cpu;
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
			cctx->preempting = true;
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
 */
static bool resumes_here(struct task_struct *p, const struct task_ctx *tctx, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	return !(enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ)) && cctx && cctx->preempting &&
	       !cctx->has_pinned && !tctx->stuck && !llc_waits(cctx, llc_of(cpu));
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
			cctx->preempting = true;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}

	if (enq_flags & SCX_ENQ_LAST) {
		leave_core(p, enq_flags);
		return;
	}

	queue = queue_of(p, tctx);
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
	place_among_others(tctx, scx_bpf_task_cpu(p), woken);
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
	if (queue >= HF_CPU_QUEUE && (cctx = cpu_ctx_of(scx_bpf_task_cpu(p))))
		cctx->has_pinned = true;
	if (woken)
		list_woken(p, tctx);
	tctx->queue = queue;
	/* Whoever is only moved from one queue to another has waited all the while. */
	if (!tctx->waits_since)
		tctx->waits_since = scx_bpf_now();
	tctx->queued = true;
	scx_bpf_dsq_insert_vtime(p, queue, cut_short ? 0 : params.slice_ns,
				 queue < HF_CPU_QUEUE ? host_key : key, enq_flags);

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

/* @p goes on; @alone: because nobody else can have its CPU. */
static void next_turn(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
		      bool alone)
{
	cctx->preempting = false;
	cctx->grace_over = false;
	cctx->kicked = false;
	cctx->leaves = false;
	stop_looking(cctx, tctx);
	reweigh(p, tctx);
	cctx->curr_weight = tctx->weight;
	if (alone)
		forgive(tctx);
	else
		place_among_others(tctx, scx_bpf_task_cpu(p), false);
	cctx->curr_vtime = tctx->vtime;
	scx_bpf_task_set_slice(p, params.slice_ns);
}

/* The turn of @prev, which would run on, has ended. True if it is kept, or its CPU given away. */
static bool end_turn(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx, s32 cpu,
		     bool others, u64 key)
{
	u32 yield_tid = cctx->yield_tid;
	struct hf_vcpu *v;

	if (!yield_tid) {
		if (!others || !hf_vtime_before(key, tctx->vtime)) {
			stat_add(HF_STAT_KEPT, 1);
			next_turn(prev, tctx, cctx, !others);
			return true;
		}
		if (grace_enabled && !cctx->grace_over && (v = readable_vcpu_of(prev)) &&
		    grant_grace(prev, v, tctx, cctx))
			return true;
		/* It may be waiting for a sibling, which then has its CPU. */
		yield_tid = cctx->yield_tid;
	}
	cctx->yield_tid = 0;
	stop_looking(cctx, tctx);
	if (!yield_tid || yield_tid == YIELD_TO_ANY)
		return false;
	if (give_cpu(tctx, yield_tid, cpu, others, key))
		return true;
	vm_stat_add(vm_ctx_of(vcpu_of(prev)), HF_STAT_MISSED, 1);
	return false;
}

void BPF_STRUCT_OPS(holdfast_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = NULL;
	struct first first = {};
	u64 now = scx_bpf_now(), key = 0;
	u32 llc = llc_of(cpu);
	bool others;

	if (!cctx)
		return;
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED))
		tctx = task_ctx_of(prev);
	if (tctx)
		charge(prev, tctx, cctx, now);

	if (hf_may_begin_anew(now, cctx->looked_at))
		compare_times(cctx);
	cctx->looked_at = now;

	others = next_queue(cpu, cctx, llc, tctx, &first);
	set_wanted(cctx, others);
	if (others) {
		/* From here on by the clock of this CPU, as @prev is. */
		key = first.key - cctx->vtime_offset;
		note_first(cctx, &first, key, tctx, prev && prev->nr_cpus_allowed == 1);
	}
	if (others && next_is_late(cpu, cctx, llc, now))
		return;
	/* Who may not leave by now would be put into the local queue, and nobody would tell this CPU. */
	if (tctx && !others && cctx->leaves && !cctx->yield_tid && !is_migration_disabled(prev))
		return;
	if (tctx && end_turn(prev, tctx, cctx, cpu, others, key))
		return;
	if (others && scx_bpf_dsq_move_to_local(first.queue, 0))
		return;
	/* Whoever was first may not run here, or is gone. */
	if (others && first.queue != llc && scx_bpf_dsq_move_to_local(llc, 0))
		return;
	if (others && take_by_mask(llc, cctx->masks))
		return;
	if (cctx->has_pinned && scx_bpf_dsq_move_to_local(HF_CPU_QUEUE + cpu, 0))
		return;
	/* Whoever waited is gone. Nobody asks again before this CPU idles. */
	set_wanted(cctx, false);
	if (nr_llcs > 1 && help_others(llc))
		return;
	if (tctx)
		next_turn(prev, tctx, cctx, true);
}

/*
 * A real-time task takes @cpu, for as long as it likes. Whoever ran there waits in the CPU's own
 * queue, where neither another CPU nor a sibling that spins for it finds it: queue it anew.
 */
void BPF_STRUCT_OPS(holdfast_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	/* But threads of the kernel (RCU's, of interrupts, the stopper) are short, and come often. */
	if (!(args->task->flags & PF_KTHREAD))
		scx_bpf_reenqueue_local();
}

/* @p, which was preempted, runs again. */
static void resumed(struct task_struct *p, struct task_ctx *tctx, u64 now)
{
	struct hf_vcpu *v = vcpu_of(p);
	struct hf_vm_ctx *vm = vm_ctx_of(v);

	tctx->listed = false;
	if (tctx->stuck)
		__sync_fetch_and_sub(&nr_stuck, 1);
	tctx->stuck = false;
	if (!vm)
		return;
	unlist_preempted(&vm->preempted, v);
	if (tctx->held)
		vm_stat_add(vm, HF_STAT_WAITING_NS, time_delta(now, tctx->stopped_at));
}

void BPF_STRUCT_OPS(holdfast_running, struct task_struct *p)
{
	struct cpu_ctx *cctx = cpu_ctx_of(scx_bpf_task_cpu(p));
	struct task_ctx *tctx = task_ctx_of(p);
	u64 now = scx_bpf_now(), least;

	if (!cctx || !tctx)
		return;

	if (tctx->listed)
		resumed(p, tctx, now);
	tctx->queued = false;
	tctx->by_sibling = false;
	tctx->class = HF_UNKNOWN;
	tctx->charged_ns = p->se.sum_exec_runtime;
	reweigh(p, tctx);
	/* The kernel runs some tasks without asking where to queue them. */
	place(tctx, scx_bpf_task_cpu(p), false);
	/*
	 * Should somebody who is further behind be kept from running, time goes on without. A
	 * kernel thread that did not wait for its turn says nothing of who is behind, nor does
	 * one whose turn it is because it has waited for so long.
	 */
	if (!is_pcpu_kthread(p) && !is_late(tctx, now)) {
		least = tctx->vtime - hf_credit(tctx->weight, false, &params);
		host_time_passes(cctx, least);
		time_here_passes(cctx, least);
	}
	tctx->waits_since = 0;
	cctx->curr_vtime = tctx->vtime;
	cctx->curr_charged_at = now;
	cctx->curr_weight = tctx->weight;
	cctx->curr_tid = p->pid;
	cctx->spin = (struct hf_spin){};
	cctx->yield_tid = 0;
	cctx->preempting = false;
	cctx->grace_over = false;
	cctx->kicked = false;
	cctx->shared = false;
	cctx->leaves = false;

	/* It has just come to run: in a moment it may be waiting for a sibling that is stuck. */
	if (waiters_enabled && READ_ONCE(nr_stuck) && has_stuck(vm_ctx_of(readable_vcpu_of(p))))
		look_in(hf_first_look(bpf_get_prandom_u32(), &params), p, cctx);
}

void BPF_STRUCT_OPS(holdfast_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = task_ctx_of(p);
	struct first first;
	struct hf_vcpu *v;

	if (!cctx || !tctx)
		return;
	charge(p, tctx, cctx, scx_bpf_now());
	/* With nobody waiting the turn just goes on, and the guest is not left for a decision. */
	if (!scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) && !others_wait(cpu, cctx) &&
	    !far_behind(cpu, tctx->vtime + cctx->vtime_offset, tctx->weight, &first)) {
		set_wanted(cctx, false);
		forgive(tctx);
		cctx->curr_vtime = tctx->vtime;
		cctx->leaves = should_leave_core(p, cpu, cctx);
		scx_bpf_task_set_slice(p, cctx->leaves ? 0 : params.slice_ns);
		return;
	}
	/* A sibling may have become stuck while this one ran. */
	if (waiters_enabled && READ_ONCE(nr_stuck) && !cctx->grace_tid &&
	    cctx->look_tid != p->pid && (v = readable_vcpu_of(p))) {
		cctx->look_ns = params.look_ns;
		if (look(p, v, cctx))
			scx_bpf_task_set_slice(p, 0);
	}
}

void BPF_STRUCT_OPS(holdfast_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = task_ctx_of(p);
	u64 now = scx_bpf_now();
	struct hf_vm_ctx *vm;
	enum hf_class class, ended;
	struct hf_vcpu *v;

	if (!cctx || !tctx)
		return;

	charge(p, tctx, cctx, now);
	stop_looking(cctx, tctx);
	cctx->curr_tid = 0;

	/* Who halts holds nothing, and if nobody waits it took nothing. */
	if (!runnable) {
		hf_see(&tctx->grace, HF_FREE, 0);
		if (is_pcpu_kthread(p) || !others_wait(cpu, cctx))
			forgive(tctx);
	}
	/* Its memory can be read only while it is current, which a remote dequeue is not. */
	if (!runnable || bpf_get_current_task_btf() != p)
		return;
	v = readable_vcpu_of(p);
	if (!v)
		return;
	class = hf_read_class_after(v, cctx->kicked);
	/* A guest may say for ever that it is called, as it may that it holds a lock. */
	ended = end_class(v, class);
	hf_see(&tctx->grace, ended, p->se.sum_exec_runtime);
	tctx->class = hf_believed(ended, &tctx->grace, p->se.sum_exec_runtime, &params);
	vm = vm_ctx_of(v);
	if (!vm)
		return;
	vm_stat_add(vm, HF_STAT_STOPPED + class, 1);
	tctx->stopped_at = now;
	tctx->held = hf_is_protected(class) || hf_is_protected(tctx->class);
	tctx->listed = true;
	tctx->stuck = hf_is_protected(tctx->class) || tctx->class == HF_WAITER;
	if (tctx->stuck)
		__sync_fetch_and_add(&nr_stuck, 1);
	list_preempted(&vm->preempted, v, tctx->class);
}

void BPF_STRUCT_OPS(holdfast_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		tctx->mask_llc = 0;
}

void BPF_STRUCT_OPS(holdfast_enable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx) {
		tctx->mask_llc = 0;
		/*
		 * Behind who is there: else those that fork and end would never let anybody else
		 * run. By a turn of its own, not of a small part of a large group.
		 */
		tctx->cpu = scx_bpf_task_cpu(p);
		tctx->vtime = time_at(tctx->cpu) +
			      hf_scale_by_weight(params.slice_ns, p->scx.weight * HF_WEIGHT_SCALE);
		tctx->weight = weight_of(p, tctx);
		tctx->waits_since = 0;
	}
}

s32 BPF_STRUCT_OPS(holdfast_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *tctx;

	tctx = bpf_task_storage_get(&task_ctxs, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!tctx)
		return -ENOMEM;
	tctx->group = group_of(args->cgroup);
	return 0;
}

/* A preempted vCPU that is killed, or leaves for another scheduling class, is not waited for. */
void BPF_STRUCT_OPS(holdfast_disable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	if (tctx->listed)
		resumed(p, tctx, scx_bpf_now());
	tctx->class = HF_UNKNOWN;
	tctx->by_sibling = false;
	tctx->queued = false;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(holdfast_init)
{
	u32 i, mask;
	int err;

	bpf_for (i, 0, HF_MAX_LLCS) {
		if (i >= nr_llcs)
			break;
		err = scx_bpf_create_dsq(i, llc_node[i]);
		if (err)
			return err;
		bpf_for (mask, 0, HF_MASKS) {
			err = scx_bpf_create_dsq(mask_queue(i, mask), llc_node[i]);
			if (err)
				return err;
		}
	}
	bpf_for (i, 0, HF_MAX_CPUS) {
		u32 key = i;
		struct cpu_ctx *cctx;

		if (i >= nr_cpu_ids)
			break;
		cctx = bpf_map_lookup_elem(&cpu_ctxs, &key);
		if (!cctx)
			return -ENOENT;
		err = scx_bpf_create_dsq(HF_CPU_QUEUE + i, NUMA_NO_NODE);
		if (!err)
			err = bpf_timer_init(&cctx->timer, &cpu_ctxs, CLOCK_MONOTONIC);
		if (!err)
			err = bpf_timer_set_callback(&cctx->timer, look_timer_fn);
		if (err)
			return err;
	}
	return 0;
}

void BPF_STRUCT_OPS(holdfast_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(holdfast_ops, .select_cpu = (void *)holdfast_select_cpu,
	       .enqueue = (void *)holdfast_enqueue, .dequeue = (void *)holdfast_dequeue,
	       .dispatch = (void *)holdfast_dispatch, .cpu_release = (void *)holdfast_cpu_release,
	       .yield = (void *)holdfast_yield, .running = (void *)holdfast_running,
	       .tick = (void *)holdfast_tick, .stopping = (void *)holdfast_stopping,
	       .set_cpumask = (void *)holdfast_set_cpumask, .enable = (void *)holdfast_enable,
	       .disable = (void *)holdfast_disable, .init_task = (void *)holdfast_init_task,
	       .runnable = (void *)holdfast_runnable, .quiescent = (void *)holdfast_quiescent,
	       .cgroup_init = (void *)holdfast_cgroup_init,
	       .cgroup_exit = (void *)holdfast_cgroup_exit,
	       .cgroup_move = (void *)holdfast_cgroup_move,
	       .cgroup_set_weight = (void *)holdfast_cgroup_set_weight,
	       .cgroup_set_idle = (void *)holdfast_cgroup_set_idle, .init = (void *)holdfast_init,
	       .exit = (void *)holdfast_exit, .timeout_ms = 30000, .name = "holdfast");
