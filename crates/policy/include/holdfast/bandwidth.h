/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How much CPU time a cgroup with a limit (cpu.max) has left. */
#ifndef __HOLDFAST_BANDWIDTH_H
#define __HOLDFAST_BANDWIDTH_H

#include "params.h"

/* cpu.max and cpu.max.burst. All zero: there is no limit. */
struct hf_limit {
	u64 quota_ns;  /* CPU time in each period */
	u64 period_ns; /* the kernel takes 1 ms to 1 s */
	u64 burst_ns;  /* so much of the quota of earlier periods may be saved: a quota at most */
};

struct hf_budget {
	s64 left_ns;   /* below 0: a debt */
	u64 period_at; /* when the current period began */
};

/* The most that a running task takes at once from a budget, and the least, if there is as much. */
#define HF_RESERVE_MAX_NS (5ULL * 1000 * 1000)
#define HF_RESERVE_MIN_NS (250ULL * 1000)
/* Several CPUs share a quota: a task takes no more than this part of it at once. */
#define HF_RESERVES_PER_QUOTA 8

/*
 * A task that has got a CPU although its budget is empty runs for so long, on credit: the budget
 * ran out after it was chosen, or it was starving.
 */
#define HF_ON_CREDIT_NS (50ULL * 1000)

/* @quota_us as the kernel has it: all bits are set if there is none. */
HF_FN void hf_limit_set(struct hf_limit *l, u64 period_us, u64 quota_us, u64 burst_us)
{
	const u64 most_us = ~0ULL / 1000;

	l->period_ns = l->quota_ns = l->burst_ns = 0;
	if (!quota_us || quota_us >= most_us || !period_us || period_us >= most_us)
		return;
	l->period_ns = period_us * 1000;
	l->quota_ns = quota_us * 1000;
	l->burst_ns = burst_us < quota_us ? burst_us * 1000 : l->quota_ns;
}

/* A limit that @nr_cpus CPUs cannot reach is none. */
HF_FN bool hf_limit_binds(const struct hf_limit *l, u32 nr_cpus)
{
	return l->quota_ns && l->quota_ns / nr_cpus < l->period_ns;
}

HF_FN void hf_budget_start(struct hf_budget *b, const struct hf_limit *l, u64 now_ns)
{
	b->left_ns = l->quota_ns;
	b->period_at = now_ns;
}

/* The clock of the CPU where the period began may have been ahead. */
HF_FN bool hf_period_is_over(const struct hf_budget *b, const struct hf_limit *l, u64 now_ns)
{
	s64 passed_ns = now_ns - b->period_at;

	return passed_ns >= 0 && (u64)passed_ns >= l->period_ns;
}

/*
 * Begins a new period if the last one is over. A debt is paid from the new quota. It is never more
 * than one quota: a group that has run for too long stands still for no more than two periods.
 */
HF_FN void hf_budget_refill(struct hf_budget *b, const struct hf_limit *l, u64 now_ns)
{
	s64 quota_ns = l->quota_ns, most_ns = l->quota_ns + l->burst_ns;
	u64 nr;

	if (!l->period_ns || !hf_period_is_over(b, l, now_ns))
		return;
	nr = (now_ns - b->period_at) / l->period_ns;
	b->period_at += nr * l->period_ns;
	if (b->left_ns < -quota_ns)
		b->left_ns = -quota_ns;
	/* Three quotas fill any budget, also one with a debt and a burst. */
	b->left_ns += quota_ns * (s64)(nr < 3 ? nr : 3);
	if (b->left_ns > most_ns)
		b->left_ns = most_ns;
}

/* Takes up to @want_ns for a task; returns how much. */
HF_FN u64 hf_budget_take(struct hf_budget *b, const struct hf_limit *l, u64 want_ns)
{
	u64 took_ns = l->quota_ns / HF_RESERVES_PER_QUOTA;

	if (b->left_ns <= 0)
		return 0;
	if (took_ns < HF_RESERVE_MIN_NS)
		took_ns = HF_RESERVE_MIN_NS;
	if (took_ns > want_ns)
		took_ns = want_ns;
	if (took_ns > (u64)b->left_ns)
		took_ns = b->left_ns;
	b->left_ns -= took_ns;
	return took_ns;
}

/* Gives back what was taken and not used, or pays for more than was taken, if it is below 0. */
HF_FN void hf_budget_return(struct hf_budget *b, const struct hf_limit *l, s64 unused_ns)
{
	s64 most_ns = l->quota_ns + l->burst_ns;

	b->left_ns += unused_ns;
	if (b->left_ns > most_ns)
		b->left_ns = most_ns;
}

/* In how many ns the next period begins. */
HF_FN u64 hf_next_period_ns(const struct hf_budget *b, const struct hf_limit *l, u64 now_ns)
{
	s64 passed_ns = now_ns - b->period_at;

	if (passed_ns < 0)
		return l->period_ns;
	return (u64)passed_ns < l->period_ns ? l->period_ns - passed_ns : 0;
}

#endif /* __HOLDFAST_BANDWIDTH_H */
