/* SPDX-License-Identifier: GPL-2.0-or-later */
/* In which queue a task waits: by where it may run. */
#ifndef __SCX_HOLDFAST_AFFINITY_BPF_H
#define __SCX_HOLDFAST_AFFINITY_BPF_H

/*
 * Tasks that may run on one CPU only have a queue each CPU, which other CPUs need not search. It is ordered by
 * the clock of that CPU, and an LLC's queue, in which tasks of many CPUs are compared, by the host's time.
 */
#define HF_CPU_DSQ (1ULL << 16)

/* The queues by mask, ordered as an LLC's. */
#define HF_AFFINITY_DSQ (1ULL << 15)

static u64 affinity_dsq(u32 llc, u32 mask)
{
	return HF_AFFINITY_DSQ + llc * HF_AFFINITY_DSQS + mask;
}

/* How many CPUs an LLC may have for its tasks to be told apart by which of them they may run on. */
#define AFFINITY_SCAN_CPUS 256

/*
 * The queue for all who may run on the same CPUs of @cpu's LLC as @p does: a CPU on which hundreds may not run need not step
 * over them, each time that somebody runs there. Sets of CPUs that happen to share a queue cost such steps, nothing else: a
 * CPU that has begun to look into a queue never stops.
 */
__noinline u64 dsq_by_affinity(struct task_struct *p __arg_trusted, s32 cpu)
{
	u32 llc = llc_of(cpu), hash = 0, mask, i;
	u32 *masks = MEMBER_VPTR(llc_affinity_dsqs, [llc]);
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
	if (everywhere || other != cpu || !masks)
		return llc;
	mask = (hash ^ hash >> 16) * 0x85ebca6bU >> 28;
	bpf_for (i, 0, AFFINITY_SCAN_CPUS) {
		struct cpu_ctx *cctx = cpu_ctx_of(other);

		if (cctx && bpf_cpumask_test_cpu(other, p->cpus_ptr) &&
		    !(cctx->affinity_dsqs >> mask & 1))
			__sync_fetch_and_or(&cctx->affinity_dsqs, 1U << mask);
		other = next_in_llc(other);
		if (other == cpu)
			break;
	}
	__sync_fetch_and_or(masks, 1U << mask);
	return affinity_dsq(llc, mask);
}

/* The queue for @p. Others need not step over those that may run on one CPU only, or for now. */
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

/* Does anybody wait in LLC @llc, of who may run on the CPU? */
static bool llc_waits(const struct cpu_ctx *cctx, u32 llc)
{
	u32 masks = cctx->affinity_dsqs, i;

	if (scx_bpf_dsq_nr_queued(llc))
		return true;
	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(masks >> i))
			break;
		if (masks >> i & 1 && scx_bpf_dsq_nr_queued(affinity_dsq(llc, i)) > 0)
			return true;
	}
	return false;
}

/* Does anybody wait for @cpu, in its LLC? */
static bool others_wait(s32 cpu, const struct cpu_ctx *cctx)
{
	return cctx->has_pinned || llc_waits(cctx, llc_of(cpu));
}

#endif /* __SCX_HOLDFAST_AFFINITY_BPF_H */
