/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Wakeups: whether the waker is about to sleep, and whether the waking task preempts a running one.
 * Interface: waker_that_sleeps() and note_sleep(), ask_for_cpu() and wakeup_preempt().
 */
#ifndef __SCX_HOLDFAST_WAKEUP_BPF_H
#define __SCX_HOLDFAST_WAKEUP_BPF_H

#include "../ctx.bpf.h"
#include "affinity.bpf.h"

/* How many CPUs of its LLC a waking task considers for preemption. */
#define WAKEUP_SCAN_CPUS 8

/* A task that says it is about to sleep has so long for that; if not, it is distrusted so long. */
#define SLEEPS_SOON_NS	  (100ULL * 1000)
#define DISTRUSTED_FOR_NS (100ULL * 1000 * 1000)

/*
 * The waker says that it is about to sleep (SCX_WAKE_SYNC). May it be trusted? Then the task that
 * it wakes waits for its CPU, although others idle. Not if the waker is a vCPU or real-time, or a
 * task that an interrupt came upon. @cctx is that of its CPU.
 */
static bool sleeps_soon(const struct cpu_ctx *cctx, u64 now)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_ctx *tctx;

	if (!bpf_in_task() || !waker->pid || READ_ONCE(cctx->run.tid) != waker->pid ||
	    vcpu_of(waker))
		return false;
	tctx = task_ctx_of(waker);
	return tctx && !time_before(now, tctx->distrusted_until);
}

/*
 * The context of this CPU if its task may be trusted to sleep soon, else NULL. From its local DSQ a
 * CPU goes on without a look at other DSQs: two tasks would wake each other for ever while others
 * wait.
 */
static struct cpu_ctx *waker_that_sleeps(s32 here, u64 now)
{
	struct cpu_ctx *cctx = cpu_ctx_of(here);

	return cctx && !others_wait(here, cctx) && sleeps_soon(cctx, now) ? cctx : NULL;
}

/*
 * @p stops. If it did not sleep as soon as it said it is distrusted. A change of its affinity stops
 * it as not runnable, too, and it goes on.
 */
static void note_sleep(const struct task_struct *p, struct task_ctx *tctx,
		       const struct cpu_ctx *cctx, bool runnable, u64 now)
{
	bool goes_on = !runnable && !p->__state;
	u64 sync_at = READ_ONCE(cctx->run.sync_at);

	if (sync_at && (goes_on || time_delta(now, sync_at) > SLEEPS_SOON_NS))
		tctx->distrusted_until = now + DISTRUSTED_FOR_NS;
}

/* A waking task is to have the CPU of @cctx. */
static void ask_for_cpu(struct cpu_ctx *cctx, bool for_vcpu)
{
	WRITE_ONCE(cctx->asked, for_vcpu ? ASKED_BY_VCPU : ASKED_BY_TASK);
}

/*
 * A waking task that found no idle CPU may preempt the running task that is furthest ahead of its
 * share, on its own CPU first. That task loses only its slice: a holder still gets its grace in
 * dispatch().
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
		if (cctx && READ_ONCE(cctx->run.tid) && READ_ONCE(cctx->asked) == ASKED_BY_NONE &&
		    bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			/* Clocks are cached: that CPU's may be ahead of this one's. */
			vtime = hf_charge(READ_ONCE(cctx->run.vtime) +
						  READ_ONCE(cctx->clock.offset),
					  time_delta(now, READ_ONCE(cctx->run.charged_at)),
					  READ_ONCE(cctx->run.weight));
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
			ask_for_cpu(cctx, vcpu_of(p));
		stat_add(HF_STAT_WAKEUP_PREEMPT, 1);
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
	}
}

#endif /* __SCX_HOLDFAST_WAKEUP_BPF_H */
