/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Virtual time: of tasks, CPUs, groups and the host. */
#ifndef __HOLDFAST_VTIME_H
#define __HOLDFAST_VTIME_H

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
 * However many share a small group, each of them weighs this much: the turn of one that weighs
 * less would come later than the kernel's watchdog allows.
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
 * A member of a group, one level up: of the weight that the group has among its
 * siblings, it has what its own is of @total, that of all active members.
 */
HF_FN u32 hf_weight_in_group(u32 weight, u32 group_weight, u64 total)
{
	u64 share = (u64)weight * group_weight / (total ? total : 1);

	/* The total is of a moment ago, and may not have this member yet. */
	if (share > (u64)group_weight * HF_WEIGHT_SCALE)
		share = (u64)group_weight * HF_WEIGHT_SCALE;
	return share ? share : 1;
}

/* The largest weight, of a task or of a group, and so the most that anybody weighs among all. */
#define HF_WEIGHT_MAX (10000U * HF_WEIGHT_SCALE)

/*
 * What a group weighs among all tasks of the host: as much more than the member below, which counts
 * @own in it and weighs @below among all, as its @total is of that one.
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

/* Whoever is further away is placed nearer soon enough (hf_place), and no weight times this overflows. */
#define HF_REWEIGHED_MAX_NS (1ULL << 39)

/*
 * Virtual time of a task that weighs another amount from now on, because its own weight was changed or
 * because others of its group came or went: what it is owed, or owes, is so much CPU time as before.
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
 * How far behind the host's virtual time a task may come to be. One that slept may claim one
 * slice of the past and no more. One that never stopped wanting to run keeps what it is
 * owed, up to the much larger bound that affinity can make it fall behind.
 */
#define HF_OWED_MAX_SLICES 32

HF_FN u64 hf_credit(u32 weight, bool slept, const struct hf_params *prm)
{
	/* A light task that holds a lock may be far ahead of its turn: what a heavy one is owed stays. */
	if (!slept && weight > HF_WEIGHT_NICE0)
		weight = HF_WEIGHT_NICE0;
	return hf_scale_by_weight(prm->slice_ns * (slept ? 1 : HF_OWED_MAX_SLICES), weight);
}

/* How many slices a turn is at most that ends at a tick of 4 ms and has grace. */
#define HF_TURN_MAX_SLICES 4

/*
 * Where CPUs are not for everybody time passes more slowly on some, and goes by those who want them: by the host's time
 * all of these would be as far behind as one may be, whatever they weigh, and who wakes would come after them. Does a
 * CPU have a time of its own? @first is that of whoever is furthest behind there, and @weight its weight: the first of
 * those who wait, or who runs if that may run nowhere else. Others that run may be due all of a CPU and more, and ever
 * further behind, which is no time for anybody else. Who has slept or goes first is behind by less than a turn, which
 * is a long one if it is light: that says as little as before, whether or not the CPU @had a time of its own. What is so
 * of those that are @pinned there stays so; others are first on other CPUs, too.
 */
HF_FN bool hf_has_own_time(u64 vtime_now, u64 first, u32 weight, bool pinned, bool had,
			   const struct hf_params *prm)
{
	bool is_light = weight < HF_WEIGHT_NICE0 && !had;
	u64 turn = hf_scale_by_weight(prm->slice_ns * HF_TURN_MAX_SLICES,
				      is_light ? weight : HF_WEIGHT_NICE0);

	return hf_vtime_before(first + turn, vtime_now) || (had && pinned);
}

/* So far the times of two CPUs are apart by nothing but who wants them: further than anybody may be behind. */
HF_FN u64 hf_far_apart(const struct hf_params *prm)
{
	return 2 * hf_credit(HF_WEIGHT_NICE0, false, prm);
}

/*
 * So long a CPU may have a time of its own that is far from the host's, and begins anew with that: those who may run
 * on several would have to wait there until it has caught up, should others not want it any more.
 */
#define HF_OWN_TIME_NS (4ULL * 1000 * 1000 * 1000)

/* Is it time for one that has looked @since? All do at the same moment: tasks that share some CPUs are compared. */
HF_FN bool hf_may_begin_anew(u64 now_ns, u64 since_ns)
{
	return now_ns / HF_OWN_TIME_NS != since_ns / HF_OWN_TIME_NS;
}

/* How much further its tasks are when it does, where it is @here: as far behind or ahead as they were. 0: it need not. */
HF_FN u64 hf_begin_anew(u64 vtime_now, u64 here, const struct hf_params *prm)
{
	return hf_vtime_before(here + hf_far_apart(prm), vtime_now) ? vtime_now - here : 0;
}

/*
 * Virtual time of a task that is to run where it is @here, and was where it is @there: where these are far apart it
 * takes along how far behind or ahead it was.
 */
HF_FN u64 hf_move(u64 vtime, u64 there, u64 here, const struct hf_params *prm)
{
	u64 far = hf_far_apart(prm);

	return hf_vtime_before(here + far, there) || hf_vtime_before(there + far, here)
		       ? vtime + here - there
		       : vtime;
}

/*
 * How many turns of the lightest there can be a task may be ahead: what one is charged for the longest
 * turn, and as much again as going first is worth. With less a light vCPU that claims to hold a lock
 * would always be first.
 */
#define HF_AHEAD_MAX_SLICES (2 * HF_TURN_MAX_SLICES)

/* Virtual time of a task that becomes runnable: neither too far behind nor, whatever became of its weight, ahead. */
HF_FN u64 hf_place(u64 vtime, u64 vtime_now, u32 weight, bool slept, const struct hf_params *prm)
{
	u64 floor = vtime_now - hf_credit(weight, slept, prm);
	u64 ceiling =
		vtime_now + hf_scale_by_weight(prm->slice_ns * HF_AHEAD_MAX_SLICES, HF_WEIGHT_MIN);

	return hf_vtime_within(vtime, floor, ceiling);
}

/*
 * By how many turns a group may be further than its members before they may not go back there. Members run
 * at different times, and none is to lose what it is owed for that.
 */
#define HF_GROUP_SLICES 4

/*
 * Virtual time of a group, which is charged like one task of the group's weight for what all its
 * members run: neither further behind than one that slept, nor so far ahead that a time without
 * others is remembered. But what a member has run that came from as far back as it may and went
 * first is, or it would come from there again: who wakes while its waker still runs weighs half of
 * what it then runs with, and goes first by twice as much. @weight is that of the member that ran.
 */
HF_FN u64 hf_place_group(u64 served, u64 vtime_now, u32 weight, const struct hf_params *prm)
{
	u32 most =
		1000 * (HF_GROUP_SLICES + 1 + HF_TURN_MAX_SLICES) + 2 * prm->resume_boost_permille;
	u64 floor = vtime_now - hf_credit(weight, true, prm);
	u64 ceiling = vtime_now + hf_part_of_slice(most, weight, prm);

	return hf_vtime_within(served, floor, ceiling);
}

/*
 * A member does not go far back behind its group: else members that take turns would each come
 * with a past of its own, in which the group has run. Who slept may be the only one that runs by
 * then, with all that the group weighs, however little it weighs beside who has woken it: its past
 * is as much CPU time as @group_weight gives.
 */
HF_FN u64 hf_place_in_group(u64 vtime, u64 served, u32 weight, u32 group_weight, bool slept,
			    const struct hf_params *prm)
{
	u32 most = 1000 * (HF_GROUP_SLICES + (slept ? 1 : 0));
	u64 floor = served - hf_part_of_slice(most, slept ? group_weight : weight, prm);

	return hf_vtime_before(vtime, floor) ? floor : vtime;
}

/*
 * Weights may be so far apart that the next turn of the light one comes after minutes. The kernel's watchdog ends the
 * scheduler after 30 s; and whoever is preempted in a read-side critical section of RCU holds up a grace period, for which
 * the kernel ends it after 21 s (CONFIG_RCU_CPU_STALL_TIMEOUT). Who has waited for so long has a turn, whatever it weighs.
 */
#define HF_LATE_NS (5ULL * 1000 * 1000 * 1000)

HF_FN bool hf_is_late(u64 waited_ns)
{
	return waited_ns >= HF_LATE_NS;
}

/*
 * The host's virtual time, when @least is that of whoever is furthest behind among those who
 * want a CPU. Not of whoever is furthest ahead: a light task is, for long, after each of its
 * turns, and who wakes then would wait for everybody else to come there.
 */
HF_FN u64 hf_advance(u64 vtime_now, u64 least)
{
	return hf_vtime_before(vtime_now, least) ? least : vtime_now;
}

/*
 * Virtual time of a task whose CPU nobody else could have had just now. It took nothing from
 * anybody, and nobody left it behind: when others come it is ahead of them by no more than
 * @slices, and behind by no more than one that slept, however long that lasted. But a CPU may be
 * free for a moment only, and until then somebody went first: such a lead of a turn stays, and as
 * much of what others are owed, heavy ones too, as a task of nice 0 may win by it.
 */
HF_FN u64 hf_forgive(u64 vtime, u64 vtime_now, u32 weight, u32 slices, const struct hf_params *prm)
{
	u32 owed_weight = weight < HF_WEIGHT_NICE0 ? weight : HF_WEIGHT_NICE0;
	u64 owed = hf_part_of_slice(prm->resume_boost_permille, owed_weight, prm);
	u64 floor = vtime_now - hf_credit(weight, true, prm) - owed;
	u64 most = hf_scale_by_weight(prm->slice_ns * slices, weight);
	u64 won = hf_part_of_slice(1000 + prm->resume_boost_permille, weight, prm);

	return hf_vtime_within(vtime, floor, vtime_now + (most > won ? most : won));
}

#endif /* __HOLDFAST_VTIME_H */
