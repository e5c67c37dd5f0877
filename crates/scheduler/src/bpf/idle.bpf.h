/* SPDX-License-Identifier: GPL-2.0-or-later */
/* CPUs that idle, and cores: who may have one, and who leaves a core that is shared for one. */
#ifndef __SCX_HOLDFAST_IDLE_BPF_H
#define __SCX_HOLDFAST_IDLE_BPF_H

/* How many threads of a core a task may go to that has to leave one. */
#define CORE_SCAN_CPUS 8

/* How many CPUs of its LLC are looked at for an idle core. */
#define LLC_SCAN_CPUS 64

/* An idle CPU for @p, claimed; -1 if there is none. */
static s32 pick_idle_cpu(struct task_struct *p, u64 flags)
{
	s32 here = scx_bpf_task_cpu(p);

	if (is_migration_disabled(p))
		return scx_bpf_test_and_clear_cpu_idle(here) ? here : -1;
	/* v6.16: before, any that it may run on. */
	if (__COMPAT_HAS_scx_bpf_select_cpu_and)
		return scx_bpf_select_cpu_and(p, here, 0, p->cpus_ptr, flags);
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, flags);
}

/*
 * The same for one that may have run until now, and only where it is as well off: in a whole idle core, or
 * in its own when whoever took its CPU has gone. The other thread of a core that is busy
 * would be shared for good. Without SMT every idle CPU is a whole core.
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
 * A CPU of a whole idle core in @cpu's LLC that @p may run on; -1 if there is none. Not one further away, where
 * its memory and what it shares with siblings are not.
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

/* Is another thread of @cpu's core busy? Of more than two the next one is looked at. */
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
 * A tick finds @p alone on @cpu. Is the core shared, as it was at the last one, and another core idle that
 * @p may have? Then it is to go there: it came here when there was none.
 */
static bool should_migrate(const struct task_struct *p, s32 cpu, struct cpu_ctx *cctx)
{
	bool was_busy = cctx->smt_busy;

	if (p->nr_cpus_allowed == 1)
		return false;
	cctx->smt_busy = is_smt_busy(cpu);
	return cctx->smt_busy && was_busy && !is_migration_disabled(p) &&
	       find_idle_core(p, cpu) >= 0;
}

/*
 * @p, which is alone on its CPU, was not kept there: it goes to the idle core that is to be had, or on where it
 * was if that is gone. This CPU idles next, and would not look for work again by itself.
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
 * @cpu is idle. A task that was queued after @cpu last looked for one found no idle CPU, and
 * would wait for the end of a slice. Since v6.16 the kernel marks @cpu idle before this call, so that
 * either the task finds the mark or this call finds the task. Older kernels mark it afterwards: a
 * task that is queued in between waits until a CPU next looks into its queue.
 */
void BPF_STRUCT_OPS(holdfast_update_idle, s32 cpu, bool idle)
{
	struct cpu_ctx *cctx;

	if (!idle)
		return;
	cctx = cpu_ctx_of(cpu);
	if (cctx && others_wait(cpu, cctx))
		scx_bpf_kick_cpu(cpu, 0);
}

#endif /* __SCX_HOLDFAST_IDLE_BPF_H */
