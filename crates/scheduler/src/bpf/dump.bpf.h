/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the kernel's dump says of this scheduler, when it ends it or at SysRq-D. Interface:
 * dump_host(), dump_cpu() and dump_task().
 */
#ifndef __SCX_HOLDFAST_DUMP_BPF_H
#define __SCX_HOLDFAST_DUMP_BPF_H

#include "ctx.bpf.h"
#include "base/affinity.bpf.h"
#include "base/groups.bpf.h"
#include "base/vtime.bpf.h"

static void dump_affinity_dsqs(u32 llc)
{
	u32 nr;

	bpf_for (nr, 0, HF_AFFINITY_DSQS) {
		u64 dsq = affinity_dsq(llc, nr);
		s32 nr_queued = scx_bpf_dsq_nr_queued(dsq);

		if (nr_queued > 0)
			scx_bpf_dump("LLC %u: affinity DSQ %llx has %d\n", llc, dsq, nr_queued);
	}
}

static void dump_host(void)
{
	u32 llc;

	scx_bpf_dump("vtime %llu, %u blockers, %u groups\n", READ_ONCE(vtime_now),
		     READ_ONCE(nr_blockers), READ_ONCE(nr_groups));
	bpf_for (llc, 0, HF_MAX_LLCS) {
		if (llc >= nr_llcs)
			break;
		scx_bpf_dump("LLC %u: DSQ has %d\n", llc, scx_bpf_dsq_nr_queued(llc));
		dump_affinity_dsqs(llc);
	}
}

static void dump_cpu(s32 cpu)
{
	const struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	u64 now = scx_bpf_now();

	if (!cctx)
		return;
	scx_bpf_dump("own DSQ has %d; contended %d, own time %d, %lld ns behind the host's\n",
		     scx_bpf_dsq_nr_queued(HF_CPU_DSQ + cpu), cctx->clock.contended,
		     cctx->clock.has_own_time,
		     READ_ONCE(vtime_now) - cctx->clock.offset - time_here(cctx));
	scx_bpf_dump("last dispatch %llu ms ago; thread %u charged %llu ms ago\n",
		     time_delta(now, cctx->clock.dispatched_at) / 1000000, cctx->run.tid,
		     time_delta(now, cctx->run.charged_at) / 1000000);
	scx_bpf_dump("yield %u to thread %u; probe %u\n", cctx->slice.yield.kind,
		     cctx->slice.yield.tid, cctx->slice.probe.reason);
}

static void dump_task(struct task_struct *p)
{
	const struct task_ctx *tctx = task_ctx_of(p);
	u64 now = scx_bpf_now();

	if (!tctx)
		return;
	/* Virtual times as others would see them: by the clock of the task's CPU. */
	scx_bpf_dump(
		"   waits %llu ms, queued %d in DSQ %llx; weight %u/%u; vtime %lld from CPU %d's\n",
		tctx->waits_since ? time_delta(now, tctx->waits_since) / 1000000 : 0, tctx->queued,
		tctx->dsq, tctx->weight, HF_WEIGHT_SCALE, tctx->vtime - time_at(tctx->cpu),
		tctx->cpu);
	if (vcpu_of(p))
		scx_bpf_dump("   vCPU of class %u; blocker %d; grace %llu ns\n", tctx->class,
			     tctx->listing.blocker, tctx->grace.granted_ns);
}

#endif /* __SCX_HOLDFAST_DUMP_BPF_H */
