/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The decisions of Holdfast: facts in, decision out.
 *
 * No BPF helper, no map and no clock is used here. The same text is compiled
 * into the BPF scheduler, into the simulator and into property tests, so what
 * the tests prove is what runs in the kernel. The includer provides the kernel's
 * fixed-width types (u8, u32, u64, s64) and bool.
 *
 * Time is in nanoseconds. Virtual time is CPU time scaled by HF_WEIGHT_NICE0 /
 * weight; it may wrap, so order is taken from differences.
 */
#ifndef __HOLDFAST_POLICY_H
#define __HOLDFAST_POLICY_H

/* native.c defines this away, to give user space functions it can link to. */
#ifndef HF_FN
#define HF_FN static inline __attribute__((always_inline))
#endif

/* What a vCPU is doing, as far as its guest's memory tells; design of the reader in crates/guest. */
enum hf_class {
	HF_UNKNOWN = 0, /* not readable: scheduled as an ordinary task */
	HF_FREE = 1,	/* preempting it delays no sibling */
	HF_HOLDER = 2,	/* holds at least one spinlock, or has preemption off */
	HF_IRQ = 3,	/* serves an interrupt */
	HF_WAITER = 4,	/* queued for a lock, not first: running it is waste */
	HF_HEAD = 5,	/* first in the queue: the lock is handed to it next */
};
#define HF_NR_CLASSES 6

/*
 * The words a class is made of, as they lie in the guest's per-CPU area.
 * Layout: include/linux/preempt.h and kernel/locking/mcs_spinlock.h of the guest.
 */
struct hf_guest_facts {
	u32 preempt_count; /* __preempt_count, or pcpu_hot.preempt_count */
	u32 queued;	   /* qnodes[0].mcs.count: nesting depth of queued-spinlock slow paths */
	u32 at_head;	   /* qnodes[0].mcs.locked: non-zero once the predecessor handed over */
	u32 idle;	   /* non-zero if the running task is the idle task of this CPU */
};

/* Bits of preempt_count; the inverted need-resched bit (31) says nothing about locks. */
#define HF_PREEMPT_DEPTH_MASK 0x000000ffU
#define HF_PREEMPT_IRQ_MASK   0x00ffff00U /* softirq, hardirq, NMI */

/* Tunables. Set once at load time; every one is a time in ns unless its name says otherwise. */
struct hf_params {
	u64 slice_ns;		   /* time a task may run before others get their turn */
	u64 grace_max_ns;	   /* cap on keeping a lock holder running past its turn */
	u64 grace_step_ns;	   /* first step of a grace; each further step doubles */
	u64 grace_bank_max_ns;	   /* most grace a VM can have saved up */
	u32 grace_share_permille;  /* grace a VM earns per CPU time it uses */
	u32 resume_boost_permille; /* of a slice: how far ahead a preempted holder is queued */
	u64 spin_ns;		   /* for how long a vCPU may spin before it is taken at its word */
	u64 look_ns;		   /* how soon a vCPU with preempted siblings is looked at */
	u32 wakeup_margin_permille;  /* of a slice: how far a waking task must be behind */
	u32 sibling_margin_permille; /* the same of a vCPU that a sibling wakes */
};

/* Why a vCPU keeps the CPU at the end of its turn, or does not. */
enum hf_verdict {
	HF_PREEMPT = 0,	    /* nothing to protect */
	HF_EXTEND = 1,	    /* runs on for step_ns */
	HF_RELEASE = 2,	    /* was extended and left its critical section */
	HF_CAPPED = 3,	    /* was extended up to the cap */
	HF_OVER_BUDGET = 4, /* its VM has no grace left */
	HF_BACK_OFF = 5,    /* its graces keep ending at the cap: not a holder that helps */
	HF_WAITS = 6,	    /* waits for a sibling that is preempted: running on helps nobody */
};
#define HF_NR_VERDICTS 7

/* What is known of the vCPUs of a VM that are preempted, when another one of it is looked at. */
struct hf_siblings {
	bool holder; /* one holds a lock, or was handed one since: everybody queued waits for it */
	bool next;   /* and is only known to be next: it stopped in a queue */
	bool queued; /* one is in a queue: those behind it wait for it */
	bool called; /* one has cross-CPU calls pending, which some caller may spin on */
};

/* Who should have the CPU of a vCPU that spins. */
enum hf_target {
	HF_TO_NOBODY = 0, /* nobody would use it better */
	HF_TO_HOLDER = 1, /* the preempted holder */
	HF_TO_CALLED = 2, /* the preempted sibling with calls pending */
	HF_TO_NAMED = 3,  /* whom KVM asked for */
};
#define HF_NR_TARGETS 4

/* One vCPU's grace. All zero is the state of a vCPU that never had any. */
struct hf_grace {
	u64 granted_ns;	   /* granted since this grace began; 0 outside one */
	u32 nr_steps;	   /* steps granted since this grace began */
	u32 capped_streak; /* graces in a row that ended at the cap */
	u32 skip;	   /* turns left to skip because of the streak */
	u64 held_since_ns; /* of its CPU time: since when it has looked like a holder; 0: it does not */
};

struct hf_decision {
	enum hf_verdict verdict;
	u64 step_ns; /* with HF_EXTEND: how long until the vCPU is looked at again */
};

/* A streak of capped graces doubles the turns skipped, up to 2^HF_BACK_OFF_MAX. */
#define HF_BACK_OFF_FREE 2 /* capped graces in a row that cost nothing */
#define HF_BACK_OFF_MAX	 6

HF_FN enum hf_class hf_classify(const struct hf_guest_facts *f)
{
	u32 depth = f->preempt_count & HF_PREEMPT_DEPTH_MASK;

	if (f->preempt_count & HF_PREEMPT_IRQ_MASK)
		return HF_IRQ;
	/* The idle task runs with preemption off (init_idle), which is no lock. */
	if (f->idle && depth)
		depth--;
	if (!depth)
		return HF_FREE;
	/* The slow path runs with preemption off, once; what is beyond that is a lock that is held. */
	if (!f->queued || depth > 1)
		return HF_HOLDER;
	return f->at_head ? HF_HEAD : HF_WAITER;
}

/* Would preempting this vCPU make its siblings wait? */
HF_FN bool hf_is_protected(enum hf_class class)
{
	return class == HF_HOLDER || class == HF_IRQ || class == HF_HEAD;
}

/* Is it in the queue of a lock? */
HF_FN bool hf_is_queued(enum hf_class class)
{
	return class == HF_WAITER || class == HF_HEAD;
}

/*
 * Does it help to keep this vCPU running? One that holds a lock gets done with it. One
 * that is queued gets through, unless the queue cannot move. And what looks like a
 * holder while a preempted sibling has calls pending is probably their caller, which
 * spins with preemption off until they are answered.
 */
HF_FN bool hf_is_worth_extending(enum hf_class class, const struct hf_siblings *s)
{
	if (class == HF_WAITER)
		return !s->holder && !s->queued && !s->called;
	return hf_is_protected(class) && !s->called;
}

/*
 * Whom a vCPU waits for. A waiter's holder comes first; what looks like a holder waits, if
 * at all, for its calls. Where nobody is known to be stuck, a spinner that is left alone
 * has its lock sooner than one that is put into a queue of the host: only when it has spun
 * for spin_ns is it taken at its word (@spun_long).
 */
HF_FN enum hf_target hf_yield_target(enum hf_class class, const struct hf_siblings *s, bool named,
				     bool spun_long)
{
	switch (class) {
	case HF_WAITER:
	case HF_HEAD:
		/* Two who are first in a queue are so in queues of two locks. */
		if (s->holder && !(class == HF_HEAD && s->next))
			return HF_TO_HOLDER;
		if (s->called)
			return HF_TO_CALLED;
		break;
	case HF_HOLDER:
	case HF_IRQ:
		if (s->called)
			return HF_TO_CALLED;
		if (s->holder && (named || spun_long))
			return HF_TO_HOLDER;
		break;
	case HF_FREE:
		/* Stopped here it stops nobody, and the lock moves on. */
		if (s->holder)
			return HF_TO_HOLDER;
		/* Else it spins in user space, if at all. */
		spun_long = true;
		break;
	default:
		spun_long = true;
	}
	return named && spun_long ? HF_TO_NAMED : HF_TO_NOBODY;
}

/*
 * Whom a vCPU that is looked at between turns gives its CPU, without having asked for it.
 * Where who waits for a lock tells (@told), by exits of the pause loop and halts, a look would
 * be in the way of that: whoever is next gets a CPU when a waiter gives up, and two vCPUs that
 * contend are not made to run at once before. @spun_long: it has looked like one that spins
 * for a holder (hf_spins_for_holder) at every look for spin_ns.
 */
HF_FN enum hf_target hf_look_target(enum hf_class class, const struct hf_siblings *s, bool told,
				    bool spun_long)
{
	enum hf_target target = hf_yield_target(class, s, false, spun_long);

	return told && target == HF_TO_HOLDER && s->next ? HF_TO_NOBODY : target;
}

/* Powers of two of hf_first_look(). */
#define HF_FIRST_LOOKS 5

/*
 * How soon a vCPU that has just come to run is looked at. Where all vCPUs are queued for one lock,
 * it passes the lock on at once and queues again behind those who have no CPU, who pass
 * it on one by one for ever. Only who is looked at in the moment between can be stopped outside
 * of the queue, and when the moment is depends on the CPU and the lock: @random finds it.
 */
HF_FN u64 hf_first_look(u32 random, const struct hf_params *prm)
{
	return prm->look_ns >> (random % HF_FIRST_LOOKS);
}

/*
 * What looks like a holder may spin itself, with preemption off, for a lock that has no queue node:
 * a queued rwlock, the second contender of a native lock, the owner of a mutex. Nearly all critical
 * sections are shorter than spin_ns; where one lasts longer and somebody is preempted who
 * holds a lock, it is taken for one that waits for that. Who is only known to be next waits, too.
 */
HF_FN bool hf_spins_for_holder(enum hf_class class, const struct hf_siblings *s, u64 held_ns,
			       const struct hf_params *prm)
{
	return (class == HF_HOLDER || class == HF_IRQ) && s->holder && !s->next &&
	       held_ns >= prm->spin_ns;
}

/*
 * At the end of a turn, and at each step of a grace: extend, or preempt and why.
 * @bank_ns is the VM's saved grace; a step is paid for when it is granted, so that
 * no number of vCPUs can together be granted more than their VM has earned.
 */
HF_FN struct hf_decision hf_grace_decide(struct hf_grace *g, u64 *bank_ns, enum hf_class class,
					 const struct hf_siblings *s, const struct hf_params *prm)
{
	struct hf_decision d = { HF_PREEMPT, 0 };
	u64 left_ns, step_ns;

	if (!hf_is_worth_extending(class, s) ||
	    (g->granted_ns && hf_spins_for_holder(class, s, g->granted_ns, prm))) {
		if (hf_is_protected(class)) {
			d.verdict = HF_WAITS;
		} else if (g->granted_ns) {
			d.verdict = HF_RELEASE;
			g->capped_streak = 0;
		}
		goto out_end;
	}

	if (!g->granted_ns && g->skip) {
		g->skip--;
		d.verdict = HF_BACK_OFF;
		goto out_end;
	}

	left_ns = prm->grace_max_ns > g->granted_ns ? prm->grace_max_ns - g->granted_ns : 0;
	if (!left_ns) {
		d.verdict = HF_CAPPED;
		if (g->granted_ns && g->capped_streak < HF_BACK_OFF_FREE + HF_BACK_OFF_MAX)
			g->capped_streak++;
		if (g->capped_streak > HF_BACK_OFF_FREE)
			g->skip = 1U << (g->capped_streak - HF_BACK_OFF_FREE);
		goto out_end;
	}

	/* Doubling keeps the number of looks logarithmic and the overshoot below the need itself. */
	step_ns = prm->grace_step_ns << (g->nr_steps < 16 ? g->nr_steps : 16);
	if (step_ns > left_ns)
		step_ns = left_ns;
	if (*bank_ns < step_ns) {
		d.verdict = HF_OVER_BUDGET;
		goto out_end;
	}

	*bank_ns -= step_ns;
	g->granted_ns += step_ns;
	g->nr_steps++;
	d.verdict = HF_EXTEND;
	d.step_ns = step_ns;
	return d;

out_end:
	g->granted_ns = 0;
	g->nr_steps = 0;
	return d;
}

/* For how many slices of its own CPU time a vCPU may look like a holder and be believed. */
#define HF_BELIEVED_SLICES 4

/* A vCPU that has used @cpu_ns of CPU time is seen with this class. */
HF_FN void hf_see(struct hf_grace *g, enum hf_class class, u64 cpu_ns)
{
	if (class == HF_FREE || hf_is_queued(class))
		g->held_since_ns = 0;
	else if (class != HF_UNKNOWN && !g->held_since_ns)
		g->held_since_ns = cpu_ns;
}

/*
 * What a vCPU that is preempted with this class is taken for. Some guest code has preemption
 * off for long and no lock that others want, such as a batch of RCU callbacks: its siblings
 * would give it one turn after the other, and it can use only one CPU. Who is first in a
 * queue has a lock coming, however long it has been.
 */
HF_FN enum hf_class hf_believed(enum hf_class class, const struct hf_grace *g, u64 cpu_ns,
				const struct hf_params *prm)
{
	if (class != HF_HOLDER && class != HF_IRQ)
		return class;
	if (!g->held_since_ns || cpu_ns - g->held_since_ns <= HF_BELIEVED_SLICES * prm->slice_ns)
		return class;
	return HF_FREE;
}

/* A VM earns grace by running, so that a large VM has more of it and an idle one saves none. */
HF_FN u64 hf_grace_earn(u64 bank_ns, u64 ran_ns, const struct hf_params *prm)
{
	bank_ns += ran_ns * prm->grace_share_permille / 1000;
	return bank_ns < prm->grace_bank_max_ns ? bank_ns : prm->grace_bank_max_ns;
}

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
 * all of these would be as far behind as one may be, whatever they weigh, and who wakes would come after them. How far
 * they are behind the host's: @first is that of the first who waits, and @weight its weight. Who has slept or goes first
 * is behind by less than a turn of its own, which may be long, and says nothing unless they were @behind before. Who
 * runs may be due all of a CPU and more, and ever further behind: that is no time for others.
 */
HF_FN u64 hf_behind_host(u64 vtime_now, u64 first, u32 weight, u64 behind,
			 const struct hf_params *prm)
{
	bool is_light = weight < HF_WEIGHT_NICE0 && !behind;
	u64 turn = hf_scale_by_weight(prm->slice_ns * HF_TURN_MAX_SLICES,
				      is_light ? weight : HF_WEIGHT_NICE0);

	return hf_vtime_before(first + turn, vtime_now) ? vtime_now - first : 0;
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

/*
 * How much further its tasks are when it does: as far behind or ahead there as they were. 0: it need not. They are at
 * @here and later, and the first who waits is so far @behind the host's time, but perhaps was queued before
 * the last beginning.
 */
HF_FN u64 hf_begin_anew(u64 vtime_now, u64 here, u64 behind, const struct hf_params *prm)
{
	u64 most = hf_vtime_before(here, vtime_now) ? vtime_now - here : 0;
	u64 further = behind < most ? behind : most;

	return further > hf_far_apart(prm) ? further : 0;
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
 * Weights may be so far apart that the next turn of the light one comes only after the kernel's
 * watchdog has ended the scheduler, which it does after 30 s. Who has waited for so long has a
 * turn, whatever it weighs.
 */
#define HF_LATE_NS (20ULL * 1000 * 1000 * 1000)

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

/*
 * Where a runnable task is queued. A vCPU that was preempted while siblings wait for it
 * goes ahead of its turn, and so does one that had stopped to wait for a lock and is
 * woken, for the lock is its own now, or one with an interrupt to serve that a sibling spins
 * for. Only the order changes: what it runs is charged in full, and once it is further ahead
 * than the boost it waits like everybody else. The boost is in CPU time of its own, so that it
 * is worth the same to a small vCPU as to a large one.
 */
HF_FN u64 hf_queue_key(u64 vtime, enum hf_class class, bool woken, u32 weight,
		       const struct hf_params *prm)
{
	bool first = woken ? hf_is_queued(class) || class == HF_IRQ : hf_is_protected(class);

	return first ? vtime - hf_part_of_slice(prm->resume_boost_permille, weight, prm) : vtime;
}

/*
 * @from gives its CPU to @to, which would come later: they swap places. What the two have
 * coming together, in CPU time, does not change, so no number of yields wins their VM anything.
 * A place is worth more CPU time to the heavier one: it comes less far forward, or goes less far
 * back.
 */
HF_FN void hf_swap_places(u64 *from_vtime, u32 from_weight, u64 *to_vtime, u32 to_weight)
{
	u64 ahead = *to_vtime - *from_vtime;

	if (!hf_vtime_before(*from_vtime, *to_vtime))
		return;
	*from_vtime += from_weight > to_weight ? ahead * to_weight / from_weight : ahead;
	*to_vtime -= from_weight < to_weight ? ahead * from_weight / to_weight : ahead;
}

/*
 * May @from give its CPU to @to although the task with @first_key is next? As far as a
 * preempted holder goes ahead of its turn, and no further: else a VM of vCPUs that hand
 * the CPU to one another would never come to the end of its turn.
 */
HF_FN bool hf_may_give(u64 from_vtime, u32 from_weight, u64 to_vtime, u32 to_weight, u64 first_key,
		       const struct hf_params *prm)
{
	hf_swap_places(&from_vtime, from_weight, &to_vtime, to_weight);
	return !hf_vtime_before(first_key,
				hf_queue_key(to_vtime, HF_HOLDER, false, to_weight, prm));
}

/*
 * May a waking task of @weight with this key take the CPU from one whose virtual time is
 * @curr_vtime? One that has slept for long is a slice behind the beginning of a turn: with a
 * margin of less than that it need not wait for the end of one. A vCPU that is woken @by_sibling
 * has to be further behind: those that sleep until a sibling lets them have a mutex or a byte
 * would cut turns short as often as that, to run at once and contend again.
 */
HF_FN bool hf_wakeup_preempts(u64 key, u64 curr_vtime, u32 weight, bool by_sibling,
			      const struct hf_params *prm)
{
	u32 permille = prm->wakeup_margin_permille;
	u64 margin;

	if (by_sibling && permille < prm->sibling_margin_permille)
		permille = prm->sibling_margin_permille;
	margin = hf_part_of_slice(permille, weight, prm);
	return hf_vtime_before(key + margin, curr_vtime);
}

#endif /* __HOLDFAST_POLICY_H */
