/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Virtual time: of tasks, CPUs, groups and the host. */
#ifndef __HOLDFAST_VTIME_H
#define __HOLDFAST_VTIME_H

#include "params.h"

HF_FN bool hf_vtime_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

HF_FN u64 hf_vtime_within(u64 vtime, u64 floor, u64 ceiling)
{
	if (hf_vtime_before(vtime, floor))
		return floor;
	return hf_vtime_before(ceiling, vtime) ? ceiling : vtime;
}

/* Weights as sched_ext has them, 100 for nice 0, in 1/1024: shares of groups are fractions. */
#define HF_WEIGHT_SCALE 1024
#define HF_WEIGHT_NICE0 (100 * HF_WEIGHT_SCALE)

/*
 * The least that a task weighs, however many tasks share a small group. The slice of a lighter task
 * would come later than the kernel's watchdog allows.
 */
#define HF_WEIGHT_MIN (HF_WEIGHT_SCALE / 8)

HF_FN u64 hf_scale_by_weight(u64 delta_ns, u32 weight)
{
	return delta_ns * HF_WEIGHT_NICE0 / (weight ? weight : 1);
}

/* So many thousandths of a slice, as virtual time of a task of @weight. */
HF_FN u64 hf_part_of_slice(u32 permille, u32 weight, const struct hf_params *prm)
{
	return hf_scale_by_weight(prm->slice_ns * permille / 1000, weight);
}

/*
 * The weight of a group's member, one level up: its part of @total, the weight of all active
 * members, of the weight that the group has among its siblings.
 */
HF_FN u32 hf_weight_in_group(u32 weight, u32 group_weight, u64 total)
{
	u64 share = (u64)weight * group_weight / (total ? total : 1);

	/* The total is of a moment ago, and may not have this member yet. */
	if (share > (u64)group_weight * HF_WEIGHT_SCALE)
		share = (u64)group_weight * HF_WEIGHT_SCALE;
	return share ? share : 1;
}

/* The largest weight of a task or a group, and so the largest among all tasks. */
#define HF_WEIGHT_MAX (10000U * HF_WEIGHT_SCALE)

/*
 * The weight of a group among all tasks of the host. A member below it has weight @own in the group
 * and @below among all; the group weighs as much more as its @total is more than @own.
 */
HF_FN u32 hf_weight_among_all(u64 total, u32 own, u32 below)
{
	u64 weight = (u64)below * total / (own ? own : 1);

	/* The total is of another moment than the weight of the member. */
	if (weight < below)
		return below;
	return weight < HF_WEIGHT_MAX ? weight : HF_WEIGHT_MAX;
}

/* Virtual time of a task after it ran. Grace is charged like any other time. */
HF_FN u64 hf_charge(u64 vtime, u64 ran_ns, u32 weight)
{
	return vtime + hf_scale_by_weight(ran_ns, weight);
}

/* A longer distance is cut by hf_place() soon enough, and no weight times this overflows. */
#define HF_REWEIGHED_MAX_NS (1ULL << 39)

/*
 * Virtual time of a task whose weight changes from @from to @to, because its own weight was changed
 * or other members of its group came or went. Its lag, in CPU time, stays the same.
 */
HF_FN u64 hf_reweigh(u64 vtime, u64 vtime_now, u32 from, u32 to)
{
	bool behind = hf_vtime_before(vtime, vtime_now);
	u64 distance = behind ? vtime_now - vtime : vtime - vtime_now;

	if (distance > HF_REWEIGHED_MAX_NS)
		distance = HF_REWEIGHED_MAX_NS;
	distance = distance * from / (to ? to : 1);
	return behind ? vtime_now - distance : vtime_now + distance;
}

/*
 * The lag limit: how far behind the host's virtual time a task may be. A task that slept may claim
 * one slice of the past. A task that never stopped wanting to run keeps its lag, up to the much
 * larger bound that affinity can make it fall behind.
 */
#define HF_LAG_MAX_SLICES 32

HF_FN u64 hf_lag_limit(u32 weight, bool slept, const struct hf_params *prm)
{
	/* A light task that holds a lock may be far ahead: the lag of a heavy one stays. */
	if (!slept && weight > HF_WEIGHT_NICE0)
		weight = HF_WEIGHT_NICE0;
	return hf_scale_by_weight(prm->slice_ns * (slept ? 1 : HF_LAG_MAX_SLICES), weight);
}

/* How many slices a task runs at most in one go: its slice ends at a tick of 4 ms, with grace. */
#define HF_RUN_MAX_SLICES 4

/*
 * Does a CPU have a virtual time of its own, apart from the host's?
 *
 * Affinity can make more tasks contend for one CPU than for another. Time passes more slowly there.
 * By the host's time all tasks there would be at the lag limit, whatever they weigh, and a waking
 * task would come after them.
 *
 * @first is the virtual time of the task that is furthest behind there, and @weight its weight: the
 * first of those that wait, or the running one if it may run nowhere else. Any other running task
 * may be due all of a CPU and more, and ever further behind, which is no time for others. A task
 * that has slept or is boosted is behind by less than the longest run; for a light task that is
 * much virtual time, unless the CPU @had a time of its own. Of tasks that are @pinned there the
 * answer stays yes; others are first on other CPUs, too.
 */
HF_FN bool hf_has_own_time(u64 vtime_now, u64 first, u32 weight, bool pinned, bool had,
			   const struct hf_params *prm)
{
	bool is_light = weight < HF_WEIGHT_NICE0 && !had;
	u64 run = hf_scale_by_weight(prm->slice_ns * HF_RUN_MAX_SLICES,
				     is_light ? weight : HF_WEIGHT_NICE0);

	return hf_vtime_before(first + run, vtime_now) || (had && pinned);
}

/* Two CPUs whose times differ by more than this differ by contention alone: no lag is as large. */
HF_FN u64 hf_far_apart(const struct hf_params *prm)
{
	return 2 * hf_lag_limit(HF_WEIGHT_NICE0, false, prm);
}

/*
 * How long a CPU may keep a time that is far from the host's before it is rebased to that. Tasks
 * that may run on several CPUs would otherwise have to wait there until it has caught up, should it
 * no longer be contended.
 */
#define HF_OWN_TIME_NS (4ULL * 1000 * 1000 * 1000)

/* Is a rebase due on a CPU that last checked @since? All CPUs rebase at the same moments. */
HF_FN bool hf_may_rebase(u64 now_ns, u64 since_ns)
{
	return now_ns / HF_OWN_TIME_NS != since_ns / HF_OWN_TIME_NS;
}

/* By how much a rebase moves the tasks of a CPU whose time is @here; they keep their lag. */
HF_FN u64 hf_rebase(u64 vtime_now, u64 here, const struct hf_params *prm)
{
	return hf_vtime_before(here + hf_far_apart(prm), vtime_now) ? vtime_now - here : 0;
}

/*
 * Virtual time of a task that moves from a CPU whose time is @there to one whose time is @here.
 * Where these are far apart the task keeps its lag.
 */
HF_FN u64 hf_move(u64 vtime, u64 there, u64 here, const struct hf_params *prm)
{
	u64 far = hf_far_apart(prm);

	return hf_vtime_before(here + far, there) || hf_vtime_before(there + far, here)
		       ? vtime + here - there
		       : vtime;
}

/*
 * How many slices of the lightest possible task a task may be ahead: the charge for the longest
 * run, and as much again as a resume boost is worth. With less a light vCPU that claims to hold a
 * lock would always be first.
 */
#define HF_AHEAD_MAX_SLICES (2 * HF_RUN_MAX_SLICES)

/* Virtual time of a task that becomes runnable: neither too far behind nor too far ahead. */
HF_FN u64 hf_place(u64 vtime, u64 vtime_now, u32 weight, bool slept, const struct hf_params *prm)
{
	u64 floor = vtime_now - hf_lag_limit(weight, slept, prm);
	u64 ceiling =
		vtime_now + hf_scale_by_weight(prm->slice_ns * HF_AHEAD_MAX_SLICES, HF_WEIGHT_MIN);

	return hf_vtime_within(vtime, floor, ceiling);
}

/*
 * By how many slices a member may be behind its group. Members run at different times, and none
 * loses its lag by that.
 */
#define HF_GROUP_SLICES 4

/*
 * Virtual time of a group, which is charged like one task of the group's weight for all the CPU
 * time of its members. It is no further behind than a task that slept. It is not so far ahead that
 * it remembers a time without contention, but as far as one run of a boosted member from the lag
 * limit takes it, or the member would come from there again. A member that wakes while its waker
 * still runs weighs half as much as it does when it runs, and its boost counts twice. @weight is
 * that of the member that ran.
 */
HF_FN u64 hf_place_group(u64 group_vtime, u64 vtime_now, u32 weight, const struct hf_params *prm)
{
	u32 most =
		1000 * (HF_GROUP_SLICES + 1 + HF_RUN_MAX_SLICES) + 2 * prm->resume_boost_permille;
	u64 floor = vtime_now - hf_lag_limit(weight, true, prm);
	u64 ceiling = vtime_now + hf_part_of_slice(most, weight, prm);

	return hf_vtime_within(group_vtime, floor, ceiling);
}

/*
 * A member does not go far back behind its group: else members that run in turn would each come
 * with a past of its own, in which the group has run. A member that slept may soon be the only one
 * that runs, with all of the group's weight. Its past is as much CPU time as @group_weight gives.
 */
HF_FN u64 hf_place_in_group(u64 vtime, u64 group_vtime, u32 weight, u32 group_weight, bool slept,
			    const struct hf_params *prm)
{
	u32 most = 1000 * (HF_GROUP_SLICES + (slept ? 1 : 0));
	u64 floor = group_vtime - hf_part_of_slice(most, slept ? group_weight : weight, prm);

	return hf_vtime_before(vtime, floor) ? floor : vtime;
}

/*
 * Weights may be so far apart that a light task would wait for minutes. The kernel's watchdog ends
 * the scheduler after 30 s. A task preempted in an RCU read-side critical section holds up a grace
 * period of RCU, for which the kernel ends the scheduler after 21 s (CONFIG_RCU_CPU_STALL_TIMEOUT).
 * A task that has waited for this long is starving and gets a slice, whatever it weighs.
 */
#define HF_STARVING_NS (5ULL * 1000 * 1000 * 1000)

HF_FN bool hf_is_starving(u64 waited_ns)
{
	return waited_ns >= HF_STARVING_NS;
}

/*
 * The host's virtual time, when @least is that of the task furthest behind among those that want a
 * CPU. The task furthest ahead would not do: a light task is that for long after each of its
 * slices, and a waking task would wait for all others to come there.
 */
HF_FN u64 hf_advance(u64 vtime_now, u64 least)
{
	return hf_vtime_before(vtime_now, least) ? least : vtime_now;
}

/*
 * Clamps the lag of a task whose CPU was not contended. It took nothing from other tasks and was
 * not left behind: when others come it is ahead by no more than @slices, and behind by no more than
 * a task that slept. But a CPU may lack contention for a moment only, after a boosted task ran. Its
 * lead of a slice and a boost stays, and so does as much lag of others, heavy ones too, as a task
 * of nice 0 may win by it.
 */
HF_FN u64 hf_clamp_lag(u64 vtime, u64 vtime_now, u32 weight, u32 slices,
		       const struct hf_params *prm)
{
	u32 boosted_weight = weight < HF_WEIGHT_NICE0 ? weight : HF_WEIGHT_NICE0;
	u64 boost = hf_part_of_slice(prm->resume_boost_permille, boosted_weight, prm);
	u64 floor = vtime_now - hf_lag_limit(weight, true, prm) - boost;
	u64 most = hf_scale_by_weight(prm->slice_ns * slices, weight);
	u64 lead = hf_part_of_slice(1000 + prm->resume_boost_permille, weight, prm);

	return hf_vtime_within(vtime, floor, vtime_now + (most > lead ? most : lead));
}

#endif /* __HOLDFAST_VTIME_H */
