/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slices for starving tasks. Interface: run_starving(), is_starving(). */
#ifndef __SCX_HOLDFAST_STARVING_BPF_H
#define __SCX_HOLDFAST_STARVING_BPF_H

#include "../ctx.bpf.h"
#include "affinity.bpf.h"

/* How often a CPU looks for starving tasks, and at how many tasks in each DSQ. */
#define STARVING_CHECK_NS   (1000ULL * 1000 * 1000)
#define STARVING_SCAN_TASKS 1024
/* One slice of this many is for a starving task, should there be many: others have to run, too. */
#define STARVING_SLICES 3

static bool is_starving(const struct task_ctx *tctx, u64 now)
{
	u64 since = READ_ONCE(tctx->waits_since);

	return since && hf_is_starving(time_delta(now, since));
}

/* Runs a starving task of @dsq that may run on @cpu. */
__noinline bool serve_starving(u64 dsq, s32 cpu, u64 now, bool from_end)
{
	struct cpu_ctx *cctx = cpu_ctx_of(cpu);
	struct task_struct *q;
	bool done = false;

	if (!cctx)
		return false;
	cctx->nr_scanned = 0;
	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, q, dsq, from_end ? SCX_DSQ_ITER_REV : 0) {
		struct task_ctx *tctx = task_ctx_of(q);

		if (tctx && is_starving(tctx, now) && may_run_on(q, cpu))
			done = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, q, SCX_DSQ_LOCAL, 0);
		if (done || ++cctx->nr_scanned >= STARVING_SCAN_TASKS)
			break;
	}
	bpf_rcu_read_unlock();
	return done;
}

__noinline bool serve_starving_by_affinity(u32 llc, s32 cpu, u32 dsqs, u64 now, bool from_end)
{
	u32 i;

	bpf_for (i, 0, HF_AFFINITY_DSQS) {
		if (!(dsqs >> i))
			break;
		if (dsqs >> i & 1 && serve_starving(affinity_dsq(llc, i), cpu, now, from_end))
			return true;
	}
	return false;
}

/*
 * Runs a starving task now and then. Starving tasks are at the end of a DSQ, or, among many that
 * are lighter still, near its beginning. Each scan begins at the other end, and with another DSQ.
 */
static bool run_starving(s32 cpu, struct cpu_ctx *cctx, u32 llc, u64 now)
{
	struct starving_scan *scan = &cctx->starving;
	u64 own = HF_CPU_DSQ + cpu;
	bool from_end, found;

	if (scan->nr_slices) {
		scan->nr_slices--;
		return false;
	}
	if (time_before(now, scan->due_at))
		return false;
	from_end = scan->from_end = !scan->from_end;
	found = cctx->has_pinned && from_end && serve_starving(own, cpu, now, from_end);
	found = found || serve_starving(llc, cpu, now, from_end) ||
		serve_starving_by_affinity(llc, cpu, READ_ONCE(cctx->affinity_dsqs), now, from_end);
	found = found || (cctx->has_pinned && !from_end && serve_starving(own, cpu, now, from_end));
	/*
	 * Where one task starves many may. By time and by slices: slices are longer than
	 * params.slice_ns where ticks are, and shorter where tasks sleep.
	 */
	scan->due_at = now + (found ? STARVING_SLICES * params.slice_ns : STARVING_CHECK_NS);
	if (found) {
		scan->nr_slices = STARVING_SLICES - 1;
		stat_add(HF_STAT_STARVING, 1);
	}
	return found;
}

#endif /* __SCX_HOLDFAST_STARVING_BPF_H */
