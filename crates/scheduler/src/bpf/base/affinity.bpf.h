/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * In which DSQ a task waits, by where it may run. Interface: dsq_of(), may_run_on(),
 * others_wait(), is_alone(), affinity_dsqs_of(), forget_affinity_dsqs(), init_llc_dsqs().
 *
 * There is a DSQ for each LLC, one for each CPU, and affinity DSQs for tasks that may run on some
 * CPUs of an LLC only. A CPU's own DSQ is ordered by the clock of that CPU. All others are ordered
 * by the host's time, as tasks of many CPUs are compared there.
 *
 * A CPU looks into the affinity DSQs in use that ever had tasks for it. Cpusets come and go: a DSQ
 * that is empty, and that no task has come to for a second, is not in use.
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
	if (everywhere || other != cpu)
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
	return affinity_dsq(llc, nr);
}

/* How exactly the last use of an affinity DSQ is known, and after how long it is forgotten. */
#define USED_STEP_NS	(100ULL * 1000 * 1000)
#define FORGET_AFTER_NS (1000ULL * 1000 * 1000)

/*
 * A task is about to be inserted into affinity DSQ @dsq, within much less than FORGET_AFTER_NS. The
 * exchange is a full barrier before the look at the bit, as forget_affinity_dsqs() has one between
 * clearing the bit and the look at the time: one of the two sees the other.
 */
static void use_affinity_dsq(u64 dsq)
{
	u32 index = dsq - HF_FIRST_AFFINITY_DSQ, bit = 1U << index % HF_AFFINITY_DSQS;
	u32 *in_use = MEMBER_VPTR(llc_affinity_dsqs, [index / HF_AFFINITY_DSQS]);
	u64 *used_at = MEMBER_VPTR(affinity_used_at, [index]);
	u64 now = scx_bpf_now();

	if (!in_use || !used_at)
		return;
	if (time_delta(now, READ_ONCE(*used_at)) > USED_STEP_NS)
		__sync_lock_test_and_set(used_at, now);
	if (!(READ_ONCE(*in_use) & bit))
		__sync_fetch_and_or(in_use, bit);
}

/*
 * Forgets affinity DSQs of @llc that are not in use. Should one get a task all the same, a search
 * for starving tasks finds it: that goes through all that ever had tasks for a CPU.
 */
__noinline int forget_affinity_dsqs(u32 llc, u64 now)
{
	u32 *in_use = MEMBER_VPTR(llc_affinity_dsqs, [llc]);
	u32 nr;

	bpf_for (nr, 0, HF_AFFINITY_DSQS) {
		u64 *used_at = MEMBER_VPTR(affinity_used_at, [llc * HF_AFFINITY_DSQS + nr]);
		u32 bit = 1U << nr, were;

		if (!in_use || !used_at || !(READ_ONCE(*in_use) & bit) ||
		    time_delta(now, READ_ONCE(*used_at)) < FORGET_AFTER_NS ||
		    scx_bpf_dsq_nr_queued(affinity_dsq(llc, nr)))
			continue;
		were = __sync_fetch_and_and(in_use, ~bit);
		if (were & bit && time_delta(now, READ_ONCE(*used_at)) < FORGET_AFTER_NS)
			__sync_fetch_and_or(in_use, bit);
	}
	return 0;
}

/* Bits of the affinity DSQs of @llc, its LLC, that the CPU of @cctx looks into. */
static u32 affinity_dsqs_of(const struct cpu_ctx *cctx, u32 llc)
{
	const u32 *in_use = MEMBER_VPTR(llc_affinity_dsqs, [llc]);

	return in_use ? READ_ONCE(cctx->affinity_dsqs) & READ_ONCE(*in_use) : 0;
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
	u32 dsqs = affinity_dsqs_of(cctx, llc), i;

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
