// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * scx_holdfast: a scheduler for KVM hosts that avoids lock-holder preemption.
 *
 * The base is a plain weighted virtual time scheduler with one DSQ per last level cache. On it sit
 * the decisions of holdfast/policy.h (crates/policy/include), made where a vCPU would stop running:
 *
 *  - dispatch() reads the class of the vCPU at the end of its slice. A vCPU that holds a lock runs
 *    on in short steps (grace), each bounded by a pinned timer that probes it again.
 *  - enqueue() queues a vCPU that holds a lock, and was preempted nonetheless, ahead of its place
 *    (resume boost).
 *  - yield() gives the CPU of a vCPU that spins to the sibling that it waits for. So do probes of a
 *    vCPU that spins without asking KVM.
 *
 * Guest memory is read only while a thread of the VM is current: the vCPU's own, or that of a
 * sibling that yields, is probed, or wakes it. Nothing is read at the end of a slice that no other
 * task waits for. A vCPU that cannot be read is scheduled as an ordinary task.
 *
 * All callbacks are in this file, in the order of a task's life; those of CPUs and cgroups follow.
 * Below it:
 *
 *   enqueue.bpf.h  how a task comes to wait    slice.bpf.h  how a slice begins and ends
 *   base/          the base scheduler: affinity (which DSQ a task waits in), vtime, groups
 *                  (cgroups), queues (which task is next), starving, idle (CPUs and cores), wakeup
 *   vcpu/          knowledge of vCPUs: siblings (blockers), grace, probe, yield
 *   ctx.bpf.h      the state of all of these    dump.bpf.h  what a stall report says of it
 */
#include "ctx.bpf.h"
#include "dump.bpf.h"
#include "enqueue.bpf.h"
#include "slice.bpf.h"
#include "base/affinity.bpf.h"
#include "base/groups.bpf.h"
#include "base/idle.bpf.h"
#include "base/queues.bpf.h"
#include "base/starving.bpf.h"
#include "base/vtime.bpf.h"
#include "base/wakeup.bpf.h"
#include "vcpu/probe.bpf.h"
#include "vcpu/siblings.bpf.h"
#include "vcpu/yield.bpf.h"

/* include/linux/sched/prio.h: real-time and deadline tasks are below. */
#define MAX_RT_PRIO 100

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* Sleepable: a task that forks may wait for memory. */
s32 BPF_STRUCT_OPS_SLEEPABLE(holdfast_init_task, struct task_struct *p,
			     struct scx_init_task_args *args)
{
	struct task_ctx *tctx;

	tctx = bpf_task_storage_get(&task_ctxs, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!tctx)
		return -ENOMEM;
	set_group(tctx, args->cgroup);
	return 0;
}

void BPF_STRUCT_OPS(holdfast_enable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	tctx->affinity_llc = 0;
	place_new(p, tctx);
}

void BPF_STRUCT_OPS(holdfast_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		tctx->affinity_llc = 0;
}

void BPF_STRUCT_OPS(holdfast_runnable, struct task_struct *p, u64 enq_flags)
{
	group_enter(p);
}

s32 BPF_STRUCT_OPS(holdfast_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct cpu_ctx *waker = NULL;
	s32 here = bpf_get_smp_processor_id(), cpu;
	bool is_idle = false;
	u64 now = 0;

	if (!tctx)
		return prev_cpu;
	if (wake_flags & SCX_WAKE_SYNC) {
		now = scx_bpf_now();
		waker = waker_that_sleeps(here, now);
		if (!waker)
			wake_flags &= ~SCX_WAKE_SYNC;
	}
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	if (!is_idle) {
		note_waker(p, tctx);
		return cpu;
	}
	if (waker && cpu == here && !READ_ONCE(waker->run.sync_at))
		WRITE_ONCE(waker->run.sync_at, now);
	/* An idle CPU needs no DSQ, and so no lock that others want. */
	place(tctx, cpu, true);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, params.slice_ns, 0);
	return cpu;
}

void BPF_STRUCT_OPS(holdfast_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);

	/*
	 * At the end of a slice a kernel thread waits, too: two would have the CPU for ever. A
	 * thread that has had more than its share waits as well.
	 */
	if (!tctx)
		return;
	if (enq_flags & SCX_ENQ_WAKEUP && is_pcpu_kthread(p) && !is_ahead(tctx))
		run_at_once(p, enq_flags);
	else if (enq_flags & SCX_ENQ_LAST)
		migrate_to_idle_core(p, enq_flags);
	else
		wait_for_cpu(p, tctx, enq_flags);
}

/*
 * @p leaves our DSQs: it is dispatched, or taken out. Linux before 7.1 does not call this for tasks
 * that enqueue() inserts at once, as ours; the next slice or enqueue() of @p corrects @queued.
 */
void BPF_STRUCT_OPS(holdfast_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		WRITE_ONCE(tctx->queued, false);
}

void BPF_STRUCT_OPS(holdfast_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = NULL;
	struct first first = {};
	struct rival rival = {};
	u64 now = scx_bpf_now();
	u32 llc = llc_of(cpu);

	if (!cctx)
		return;
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED) && !(tctx = task_ctx_of(prev)))
		return;
	if (tctx)
		charge(prev, tctx, cctx, now);
	/* Once a second. */
	if (now / FORGET_AFTER_NS != cctx->clock.dispatched_at / FORGET_AFTER_NS)
		forget_affinity_dsqs(llc, now);
	check_own_time_when_due(cctx, now);

	rival.waits = next_dsq(cpu, cctx, llc, tctx, now, &first);
	set_contended(cctx, rival.waits);
	if (rival.waits) {
		/* From here on by the clock of this CPU, as @prev is. */
		rival.key = first.key - cctx->clock.offset;
		note_first(cctx, &first, rival.key, tctx, prev && prev->nr_cpus_allowed == 1);
	}
	if (rival.waits && run_starving(cpu, cctx, llc, now))
		return;
	/*
	 * With its slice at 0 and no other task to run, the kernel calls enqueue(SCX_ENQ_LAST), which
	 * takes @prev to an idle core. A task that may not migrate by then would idle in the local
	 * DSQ of this CPU.
	 */
	if (tctx && !rival.waits && cctx->slice.migrates && cctx->slice.yield.kind == YIELD_NONE &&
	    !is_migration_disabled(prev))
		return;
	if (tctx && end_slice(prev, tctx, cctx, &rival))
		return;
	if (rival.waits && run_first(first.dsq, cpu, cctx, llc))
		return;
	if (cctx->has_pinned && scx_bpf_dsq_move_to_local(HF_CPU_DSQ + cpu, 0))
		return;
	/* All that waited are gone. The kernel does not ask again before this CPU idles. */
	set_contended(cctx, false);
	if (nr_llcs > 1 && help_others(cpu, llc))
		return;
	if (tctx)
		renew_slice(prev, tctx, cctx, true);
}

void BPF_STRUCT_OPS(holdfast_running, struct task_struct *p)
{
	struct cpu_ctx *cctx = cpu_ctx_of(scx_bpf_task_cpu(p));
	struct task_ctx *tctx = task_ctx_of(p);
	u64 now = scx_bpf_now();

	if (!cctx || !tctx)
		return;
	if (tctx->listing.listed)
		resumed(p, tctx, now);
	begin_run(p, tctx, cctx, now);
	first_probe(p, tctx, cctx, now);
}

void BPF_STRUCT_OPS(holdfast_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = task_ctx_of(p);
	struct first first;

	if (!cctx || !tctx)
		return;
	charge(p, tctx, cctx, scx_bpf_now());
	/* It has promised to stop. */
	if (cctx->slice.yield.kind != YIELD_NONE)
		return;
	/* Without contention the slice goes on: no exit from the guest to decide on its end. */
	if (is_alone(cpu, cctx) &&
	    !far_behind(cpu, tctx->vtime + cctx->clock.offset, tctx->weight, &first))
		tick_alone(p, tctx, cpu, cctx);
	else
		tick_probe(p, tctx, cctx);
}

bool BPF_STRUCT_OPS(holdfast_yield, struct task_struct *from, struct task_struct *to)
{
	s32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = task_ctx_of(from);

	if (!cctx || !tctx)
		return false;
	tctx->gave_way_at = scx_bpf_now();
	if (!to) {
		stat_add(HF_STAT_YIELD, 1);
		cctx->slice.yield.kind = YIELD_TO_ANY;
		scx_bpf_task_set_slice(from, 0);
		return false;
	}
	return directed_yield_enabled && promise_yield(from, tctx, to->pid, cctx, cpu);
}

void BPF_STRUCT_OPS(holdfast_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_ctx *tctx = task_ctx_of(p);
	u64 now = scx_bpf_now();
	struct hf_vcpu *v;

	if (!cctx || !tctx)
		return;
	charge(p, tctx, cctx, now);
	note_sleep(p, tctx, cctx, runnable, now);
	end_run(p, tctx, cctx);

	/* A halted vCPU holds nothing. Without contention its task took nothing from others. */
	if (!runnable) {
		tctx->gave_way_at = now;
		hf_note_class(&tctx->grace, HF_PREEMPTIBLE, 0);
		if (!others_wait(cpu, cctx))
			clamp_lag(tctx);
		return;
	}
	/* Its memory can be read only while it is current, which a remote dequeue is not. */
	if (bpf_get_current_task_btf() == p && (v = known_vcpu_of(p)))
		list_stopped(p, v, tctx, hf_read_class(v), now);
}

void BPF_STRUCT_OPS(holdfast_quiescent, struct task_struct *p, u64 deq_flags)
{
	group_leave(p);
}

/* Siblings do not wait for a preempted vCPU that is killed, or leaves this scheduling class. */
void BPF_STRUCT_OPS(holdfast_disable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	if (tctx->listing.listed)
		resumed(p, tctx, scx_bpf_now());
	tctx->class = HF_UNKNOWN;
	tctx->by_sibling = false;
	WRITE_ONCE(tctx->queued, false);
}

void BPF_STRUCT_OPS(holdfast_update_idle, s32 cpu, bool idle)
{
	if (idle)
		kick_if_others_wait(cpu);
}

/*
 * A real-time task takes a CPU, for as long as it likes. Tasks that waited there are in the CPU's
 * local DSQ, where neither another CPU nor a yield of a sibling finds them: they are queued again.
 * But kernel threads (RCU's, of interrupts, the stopper) are short, and come often.
 *
 * Since v6.19 tasks may be queued again from anywhere, ops.cpu_release is deprecated, and
 * load() in main.rs takes the tracepoint in its place. It may go with the last kernel before that.
 */
void BPF_STRUCT_OPS(holdfast_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	if (!(args->task->flags & PF_KTHREAD))
		scx_bpf_reenqueue_local();
}

SEC("?tp_btf/sched_switch")
int BPF_PROG(holdfast_sched_switch, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	/* Nearly every switch ends here. */
	if (next->prio >= MAX_RT_PRIO)
		return 0;
	if (prev->prio >= MAX_RT_PRIO && prev->pid && !(next->flags & PF_KTHREAD))
		scx_bpf_reenqueue_local_from_anywhere();
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(holdfast_cgroup_init, struct cgroup *cgrp,
			     struct scx_cgroup_init_args *args)
{
	return add_group(cgrp, args->weight);
}

void BPF_STRUCT_OPS_SLEEPABLE(holdfast_cgroup_exit, struct cgroup *cgrp)
{
	remove_group(cgrp);
}

/* The task is dequeued while it moves, so it counts nowhere. */
void BPF_STRUCT_OPS(holdfast_cgroup_move, struct task_struct *p, struct cgroup *from,
		    struct cgroup *to)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		set_group(tctx, to);
}

void BPF_STRUCT_OPS(holdfast_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	set_group_weight(cgrp, weight);
}

void BPF_STRUCT_OPS(holdfast_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	set_group_idle(cgrp, idle);
}

/* Makes the DSQ and the timer of a CPU. */
static int init_cpu(u32 cpu)
{
	struct cpu_ctx *cctx = bpf_map_lookup_elem(&cpu_ctxs, &cpu);
	int err;

	if (!cctx)
		return -ENOENT;
	err = scx_bpf_create_dsq(HF_CPU_DSQ + cpu, NUMA_NO_NODE);
	if (!err)
		err = bpf_timer_init(&cctx->timer, &cpu_ctxs, CLOCK_MONOTONIC);
	if (!err)
		err = bpf_timer_set_callback(&cctx->timer, probe_timer_fn);
	return err;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(holdfast_init)
{
	int err = init_llc_dsqs();
	u32 cpu;

	bpf_for (cpu, 0, HF_MAX_CPUS) {
		if (err || cpu >= nr_cpu_ids)
			break;
		err = init_cpu(cpu);
	}
	return err;
}

void BPF_STRUCT_OPS(holdfast_dump, struct scx_dump_ctx *dctx)
{
	dump_host();
}

void BPF_STRUCT_OPS(holdfast_dump_cpu, struct scx_dump_ctx *dctx, s32 cpu, bool idle)
{
	/* Of idle CPUs without tasks the kernel says nothing else, either. */
	if (!idle)
		dump_cpu(cpu);
}

void BPF_STRUCT_OPS(holdfast_dump_task, struct scx_dump_ctx *dctx, struct task_struct *p)
{
	dump_task(p);
}

void BPF_STRUCT_OPS(holdfast_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

/* .flags, .exit_dump_len, and what some kernels lack: load() in main.rs. */
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
	       .update_idle = (void *)holdfast_update_idle, .dump = (void *)holdfast_dump,
	       .dump_cpu = (void *)holdfast_dump_cpu, .dump_task = (void *)holdfast_dump_task,
	       .exit = (void *)holdfast_exit, .timeout_ms = 30000, .name = "holdfast");
