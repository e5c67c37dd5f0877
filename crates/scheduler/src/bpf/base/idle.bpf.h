/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Idle CPUs and idle cores. Interface: pick_idle_cpu() and pick_idle_core() claim a CPU for a task
 * that has none; should_migrate() and migrate_to_idle_core() move a task off a core whose SMT
 * sibling is busy; kick_if_others_wait() wakes a CPU that idles although tasks wait.
 */
#ifndef __SCX_HOLDFAST_IDLE_BPF_H
#define __SCX_HOLDFAST_IDLE_BPF_H

#include "../ctx.bpf.h"
#include "affinity.bpf.h"

/* How many threads of its core a task that was preempted tries. */
#define CORE_SCAN_CPUS 8

/* How many CPUs of its LLC are searched for an idle core. */
#define LLC_SCAN_CPUS 64

/* Claims an idle CPU for @p; -1 if there is none. */
static s32 pick_idle_cpu(struct task_struct *p, u64 flags)
{
	s32 here = scx_bpf_task_cpu(p);

	if (is_migration_disabled(p))
		return scx_bpf_test_and_clear_cpu_idle(here) ? here : -1;
	/* Since v6.16, near its CPU; in older kernels any that it may run on. */
	if (__COMPAT_HAS_scx_bpf_select_cpu_and)
		return scx_bpf_select_cpu_and(p, here, 0, p->cpus_ptr, flags);
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, flags);
}

/*
 * Claims an idle CPU for a task that may have run until this moment, and only where it is as well
 * off: in a whole idle core, or in its own once the task that took its CPU is gone. With a busy SMT
 * sibling it would share a core for good. Without SMT every idle CPU is a whole core.
 */
static s32 pick_idle_core(struct task_struct *p)
{
	s32 here = scx_bpf_task_cpu(p), cpu, i;

	if (next_in_core(here) == here || is_migration_disabled(p))
		return pick_idle_cpu(p, 0);
	cpu = pick_idle_cpu(p, SCX_PICK_IDLE_CORE);
	if (cpu >= 0)
		return cpu;
	cpu = here;
	bpf_for (i, 0, CORE_SCAN_CPUS) {
		cpu = next_in_core(cpu);
		if (cpu == here)
			break;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(cpu))
			return cpu;
	}
	return -1;
}

/*
 * A CPU of a whole idle core in @cpu's LLC that @p may run on; -1 if there is none. Not one further
 * away, as its memory and the cache that it shares with siblings are here.
 */
static s32 find_idle_core(const struct task_struct *p, s32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_smtmask();
	s32 found = -1, other = cpu, i;

	bpf_for (i, 0, LLC_SCAN_CPUS) {
		other = next_in_llc(other);
		if (other == cpu)
			break;
		if (bpf_cpumask_test_cpu(other, idle) && bpf_cpumask_test_cpu(other, p->cpus_ptr)) {
			found = other;
			break;
		}
	}
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/* Is the SMT sibling of @cpu busy? In cores with more than two threads, the next one. */
static bool is_smt_busy(s32 cpu)
{
	s32 other = next_in_core(cpu);
	const struct cpumask *idle;
	bool busy;

	if (other == cpu)
		return false;
	idle = scx_bpf_get_idle_cpumask();
	busy = !bpf_cpumask_test_cpu(other, idle);
	scx_bpf_put_idle_cpumask(idle);
	return busy;
}

/*
 * A tick finds @p alone on @cpu. Does it migrate to an idle core? Yes, if its SMT sibling is busy,
 * as it was at the last tick, and a whole core is idle by now that @p may have.
 */
static bool should_migrate(const struct task_struct *p, s32 cpu, struct cpu_ctx *cctx)
{
	bool was_busy = cctx->run.smt_busy;

	if (p->nr_cpus_allowed == 1)
		return false;
	cctx->run.smt_busy = is_smt_busy(cpu);
	return cctx->run.smt_busy && was_busy && !is_migration_disabled(p) &&
	       find_idle_core(p, cpu) >= 0;
}

/*
 * Sends @p, which is alone on its CPU and left it, to an idle core, or back if there is none any
 * longer. Its CPU idles next, and would not look for work again by itself.
 */
static void migrate_to_idle_core(struct task_struct *p, u64 enq_flags)
{
	s32 here = scx_bpf_task_cpu(p), cpu = find_idle_core(p, here);

	if (cpu < 0 || is_migration_disabled(p) || !scx_bpf_test_and_clear_cpu_idle(cpu))
		cpu = here;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, params.slice_ns, enq_flags);
	scx_bpf_kick_cpu(cpu, cpu == here ? 0 : SCX_KICK_IDLE);
}

/*
 * @cpu is idle. A task that was queued after @cpu last looked for one found no idle CPU, and would
 * wait for the end of a slice. Since v6.16 the kernel marks @cpu idle before this call, so that
 * either the task finds the mark or this call finds the task. Older kernels mark it afterwards: a
 * task that is queued in between waits until a CPU next looks into its DSQ.
 */
static void kick_if_others_wait(s32 cpu)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);

	if (cctx && others_wait(cpu, cctx))
		scx_bpf_kick_cpu(cpu, 0);
}

#endif /* __SCX_HOLDFAST_IDLE_BPF_H */
