/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * In which DSQ a task waits, by where it may run. Interface: dsq_of(), may_run_on(),
 * others_wait(), is_alone(), init_llc_dsqs().
 *
 * There is a DSQ for each LLC, one for each CPU, and affinity DSQs for tasks that may run on some
 * CPUs of an LLC only. A CPU's own DSQ is ordered by the clock of that CPU. All others are ordered
 * by the host's time, as tasks of many CPUs are compared there.
 */
#ifndef __SCX_HOLDFAST_AFFINITY_BPF_H
#define __SCX_HOLDFAST_AFFINITY_BPF_H

#include "../ctx.bpf.h"

/* DSQ of CPU 0; those of other CPUs follow. Tasks that may run on one CPU only wait there. */
#define HF_CPU_DSQ (1ULL << 16)

/* The first affinity DSQ of LLC 0. */
#define HF_FIRST_AFFINITY_DSQ (1ULL << 15)

static u64 affinity_dsq(u32 llc, u32 nr)
{
	return HF_FIRST_AFFINITY_DSQ + llc * HF_AFFINITY_DSQS + nr;
}

/* In an LLC with more CPUs than this, tasks are not told apart by the CPUs they may run on. */
#define AFFINITY_SCAN_CPUS 256

static bool may_run_on(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       (!is_migration_disabled(p) || scx_bpf_task_cpu(p) == cpu);
}

/*
 * The DSQ for all tasks that may run on the same CPUs of @cpu's LLC as @p. A CPU on which hundreds
 * of tasks may not run need not step over them each time. Sets of CPUs that happen to share a DSQ
 * cost such steps, nothing else: a CPU that has begun to look into a DSQ never stops.
 */
__noinline u64 dsq_by_affinity(struct task_struct *p __arg_trusted, s32 cpu)
{
	u32 llc = llc_of(cpu), hash = 0, nr, i;
	u32 *used = MEMBER_VPTR(llc_affinity_dsqs, [llc]);
	bool everywhere = true;
	s32 other = cpu;

	bpf_for (i, 0, AFFINITY_SCAN_CPUS) {
		if (bpf_cpumask_test_cpu(other, p->cpus_ptr))
			hash += (u32)(other + 1) * 0x9e3779b1U;
		else
			everywhere = false;
		other = next_in_llc(other);
		if (other == cpu)
			break;
	}
	if (everywhere || other != cpu || !used)
		return llc;
	nr = (hash ^ hash >> 16) * 0x85ebca6bU >> 28;
	bpf_for (i, 0, AFFINITY_SCAN_CPUS) {
		struct cpu_ctx *cctx = cpu_ctx_of(other);

		if (cctx && bpf_cpumask_test_cpu(other, p->cpus_ptr) &&
		    !(READ_ONCE(cctx->affinity_dsqs) >> nr & 1))
			__sync_fetch_and_or(&cctx->affinity_dsqs, 1U << nr);
		other = next_in_llc(other);
		if (other == cpu)
			break;
	}
	__sync_fetch_and_or(used, 1U << nr);
	return affinity_dsq(llc, nr);
}

/* The DSQ for @p: a CPU's own if @p may run only there, also for now. */
static u64 dsq_of(struct task_struct *p, struct task_ctx *tctx)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 llc = llc_of(cpu);

	if (p->nr_cpus_allowed == 1 || is_migration_disabled(p))
		return HF_CPU_DSQ + cpu;
	if (p->nr_cpus_allowed >= nr_cpu_ids)
		return llc;
	if (tctx->affinity_llc != llc + 1) {
		tctx->affinity_dsq = dsq_by_affinity(p, cpu);
		tctx->affinity_llc = llc + 1;
	}
	return tctx->affinity_dsq;
}

/* Do tasks wait in LLC @llc that may run on the CPU of @cctx? */
static bool llc_waits(const struct cpu_ctx *cctx, u32 llc)
{
	u32 dsqs = READ_ONCE(cctx->affinity_dsqs), i;

	if (scx_bpf_dsq_nr_queued(llc))
		return true;
	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(dsqs >> i))
			break;
		if (dsqs >> i & 1 && scx_bpf_dsq_nr_queued(affinity_dsq(llc, i)) > 0)
			return true;
	}
	return false;
}

/* Do tasks wait for @cpu, in its own DSQ or in its LLC? */
static bool others_wait(s32 cpu, const struct cpu_ctx *cctx)
{
	/* The flag says that tasks were there; only dispatch() clears it. */
	return (READ_ONCE(cctx->has_pinned) && scx_bpf_dsq_nr_queued(HF_CPU_DSQ + cpu) > 0) ||
	       llc_waits(cctx, llc_of(cpu));
}

/* Has the task that runs on this CPU, @cpu, no other to compete with? */
static bool is_alone(s32 cpu, const struct cpu_ctx *cctx)
{
	return !scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) && !others_wait(cpu, cctx);
}

/* Makes the DSQs of all LLCs. */
static int init_llc_dsqs(void)
{
	u32 i, nr;
	int err;

	bpf_for (i, 0, HF_MAX_LLCS) {
		if (i >= nr_llcs)
			break;
		err = scx_bpf_create_dsq(i, llc_node[i]);
		if (err)
			return err;
		bpf_for (nr, 0, HF_AFFINITY_DSQS) {
			err = scx_bpf_create_dsq(affinity_dsq(i, nr), llc_node[i]);
			if (err)
				return err;
		}
	}
	return 0;
}

#endif /* __SCX_HOLDFAST_AFFINITY_BPF_H */
