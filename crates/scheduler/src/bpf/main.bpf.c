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
 * cgroups, vtime.bpf.h virtual time, queues.bpf.h who is next, idle.bpf.h CPUs and cores that idle, siblings.bpf.h what the
 * vCPUs of a VM know of one another, probe.bpf.h looking at running vCPUs, yield.bpf.h directed yields, wakeup.bpf.h how a
 * task that wakes, or whose turn has ended, comes to wait. Turns and what else the kernel asks are here.
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
#include "siblings.bpf.h"
#include "probe.bpf.h"
#include "yield.bpf.h"
#include "wakeup.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* @p goes on; @alone: because nobody else can have its CPU. */
static void renew_slice(struct task_struct *p, struct task_ctx *tctx, struct cpu_ctx *cctx,
			bool alone)
{
	cctx->preempting = false;
	cctx->grace_over = false;
	cctx->kick = false;
	cctx->migrates = false;
	stop_probing(cctx, tctx);
	reweigh(p, tctx);
	cctx->curr_weight = tctx->weight;
	if (alone)
		clamp_lag(tctx);
	else
		place_among_others(tctx, scx_bpf_task_cpu(p), false);
	cctx->curr_vtime = tctx->vtime;
	scx_bpf_task_set_slice(p, params.slice_ns);
}

/* @prev gives its CPU to whom it yields, if that one still waits for a CPU. */
static bool give_away(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
		      bool others, u64 key)
{
	if (cctx->yield_tid == YIELD_TO_ANY)
		return false;
	if (!give_cpu(tctx, cctx->yield_tid, scx_bpf_task_cpu(prev), others, key)) {
		vm_stat_add(vm_ctx_of(vcpu_of(prev)), HF_STAT_MISSED, 1);
		return false;
	}
	cctx->yield_tid = 0;
	stop_probing(cctx, tctx);
	return true;
}

/* @prev could not give its CPU to whom it yields: does it hold a lock meanwhile, or still? */
static bool must_run_on(struct task_struct *prev, const struct cpu_ctx *cctx)
{
	struct hf_vcpu *v;

	if (cctx->yield_tid == YIELD_TO_ANY || cctx->kick)
		return false;
	v = readable_vcpu_of(prev);
	return v && hf_in_critical_section(hf_read_class(v));
}

/* The turn of @prev, which would run on, has ended. True if it is kept, or its CPU given away. */
static bool end_slice(struct task_struct *prev, struct task_ctx *tctx, struct cpu_ctx *cctx,
		      bool others, u64 key)
{
	struct hf_vcpu *v;

	if (cctx->yield_tid && give_away(prev, tctx, cctx, others, key))
		return true;
	if (!cctx->yield_tid || must_run_on(prev, cctx)) {
		cctx->yield_tid = 0;
		if (!others || !hf_vtime_before(key, tctx->vtime)) {
			stat_add(HF_STAT_KEPT, 1);
			renew_slice(prev, tctx, cctx, !others);
			return true;
		}
		if (grace_enabled && !cctx->grace_over && (v = readable_vcpu_of(prev)) &&
		    grant_grace(prev, v, tctx, cctx))
			return true;
		/* It may be waiting for a sibling, which then has its CPU. */
		if (cctx->yield_tid && give_away(prev, tctx, cctx, others, key))
			return true;
	}
	cctx->yield_tid = 0;
	stop_probing(cctx, tctx);
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

	if (hf_may_rebase(now, cctx->dispatched_at))
		check_own_time(cctx);
	cctx->dispatched_at = now;

	others = next_queue(cpu, cctx, llc, tctx, &first);
	set_contended(cctx, others);
	if (others) {
		/* From here on by the clock of this CPU, as @prev is. */
		key = first.key - cctx->vtime_offset;
		note_first(cctx, &first, key, tctx, prev && prev->nr_cpus_allowed == 1);
	}
	if (others && next_is_starving(cpu, cctx, llc, now))
		return;
	/* Who may not leave by now would be put into the local queue, and nobody would tell this CPU. */
	if (tctx && !others && cctx->migrates && !cctx->yield_tid && !is_migration_disabled(prev))
		return;
	if (tctx && end_slice(prev, tctx, cctx, others, key))
		return;
	if (others && scx_bpf_dsq_move_to_local(first.queue, 0))
		return;
	/* Whoever was first may not run here, or is gone. */
	if (others && first.queue != llc && scx_bpf_dsq_move_to_local(llc, 0))
		return;
	if (others && take_by_affinity(llc, cctx->affinity_dsqs))
		return;
	if (cctx->has_pinned && scx_bpf_dsq_move_to_local(HF_CPU_DSQ + cpu, 0))
		return;
	/* Whoever waited is gone. Nobody asks again before this CPU idles. */
	set_contended(cctx, false);
	if (nr_llcs > 1 && help_others(llc))
		return;
	if (tctx)
		renew_slice(prev, tctx, cctx, true);
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
	if (tctx->blocker)
		__sync_fetch_and_sub(&nr_blockers, 1);
	tctx->blocker = false;
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
	if (!is_pcpu_kthread(p) && !is_starving(tctx, now)) {
		least = tctx->vtime - hf_lag_limit(tctx->weight, false, &params);
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
	cctx->kick = false;
	cctx->smt_busy = false;
	cctx->migrates = false;

	/* It has just come to run: in a moment it may be waiting for a sibling that is stuck. */
	if (waiters_enabled && READ_ONCE(nr_blockers) &&
	    has_blockers(vm_ctx_of(readable_vcpu_of(p))))
		probe_in(hf_first_probe(bpf_get_prandom_u32(), &params), p, cctx);
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
	/* It has promised to go. */
	if (cctx->yield_tid)
		return;
	/* With nobody waiting the turn just goes on, and the guest is not left for a decision. */
	if (!scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) && !others_wait(cpu, cctx) &&
	    !far_behind(cpu, tctx->vtime + cctx->vtime_offset, tctx->weight, &first)) {
		set_contended(cctx, false);
		clamp_lag(tctx);
		cctx->curr_vtime = tctx->vtime;
		cctx->migrates = should_migrate(p, cpu, cctx);
		scx_bpf_task_set_slice(p, cctx->migrates ? 0 : params.slice_ns);
		return;
	}
	/* A sibling may have become stuck while this one ran. */
	if (waiters_enabled && READ_ONCE(nr_blockers) && !cctx->grace_tid &&
	    cctx->probe_tid != p->pid && (v = readable_vcpu_of(p))) {
		cctx->probe_ns = params.probe_ns;
		if (probe(p, v, tctx, cctx))
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
	stop_probing(cctx, tctx);
	note_sleep(p, tctx, cctx, runnable, now);
	cctx->curr_tid = 0;

	/* Who halts holds nothing, and if nobody waits it took nothing. */
	if (!runnable) {
		hf_note_class(&tctx->grace, HF_PREEMPTIBLE, 0);
		if (is_pcpu_kthread(p) || !others_wait(cpu, cctx))
			clamp_lag(tctx);
	}
	/* Its memory can be read only while it is current, which a remote dequeue is not. */
	if (!runnable || bpf_get_current_task_btf() != p)
		return;
	v = readable_vcpu_of(p);
	if (!v)
		return;
	class = hf_read_class_after(v, cctx->kick);
	/* A guest may say for ever that it is called, as it may that it holds a lock. */
	ended = end_class(v, class);
	hf_note_class(&tctx->grace, ended, p->se.sum_exec_runtime);
	tctx->class = hf_trusted(ended, &tctx->grace, p->se.sum_exec_runtime, &params);
	vm = vm_ctx_of(v);
	if (!vm)
		return;
	vm_stat_add(vm, HF_STAT_STOPPED + class, 1);
	tctx->stopped_at = now;
	tctx->held = hf_is_protected(class) || hf_is_protected(tctx->class);
	tctx->listed = true;
	tctx->blocker = hf_is_protected(tctx->class) || tctx->class == HF_WAITER;
	if (tctx->blocker)
		__sync_fetch_and_add(&nr_blockers, 1);
	list_preempted(&vm->preempted, v, tctx->class);
}

void BPF_STRUCT_OPS(holdfast_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		tctx->affinity_llc = 0;
}

void BPF_STRUCT_OPS(holdfast_enable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx) {
		tctx->affinity_llc = 0;
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

/* Sleepable: who forks may wait for memory. */
s32 BPF_STRUCT_OPS_SLEEPABLE(holdfast_init_task, struct task_struct *p,
			     struct scx_init_task_args *args)
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
		bpf_for (mask, 0, HF_AFFINITY_DSQS) {
			err = scx_bpf_create_dsq(affinity_dsq(i, mask), llc_node[i]);
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
		err = scx_bpf_create_dsq(HF_CPU_DSQ + i, NUMA_NO_NODE);
		if (!err)
			err = bpf_timer_init(&cctx->timer, &cpu_ctxs, CLOCK_MONOTONIC);
		if (!err)
			err = bpf_timer_set_callback(&cctx->timer, probe_timer_fn);
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
	       .update_idle = (void *)holdfast_update_idle, .exit = (void *)holdfast_exit,
	       .timeout_ms = 30000, .name = "holdfast");
