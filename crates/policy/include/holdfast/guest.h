/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a vCPU is doing, and whom it waits for. */
#ifndef __HOLDFAST_GUEST_H
#define __HOLDFAST_GUEST_H

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
	u32 preempt_count; /* as of hf_preempt_count() */
	u32 queued;	   /* qnodes[0].mcs.count: nesting depth of queued-spinlock slow paths */
	u32 at_head;	   /* qnodes[0].mcs.locked: non-zero once the predecessor handed over */
	u32 idle;	   /* non-zero if the running task is the idle task of this CPU */
};

/* Bits of preempt_count; the inverted need-resched bit (31) says nothing about locks. */
#define HF_PREEMPT_DEPTH_MASK 0x000000ffU
#define HF_PREEMPT_IRQ_MASK   0x00ffff00U /* softirq, hardirq, NMI */

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

/*
 * The preemption count of a guest as Linux had it up to 7.2, from the lower half of the word: __preempt_count, or
 * pcpu_hot.preempt_count. Since 7.3 the word is @wide on x86-64, 64 bits with need-resched in the other half. Between
 * softirqs and hardirqs it counts how often interrupts were disabled by who may hold a lock (local_interrupt_disable()),
 * which is depth here.
 */
HF_FN u32 hf_preempt_count(u32 word, bool wide)
{
	u32 depth = (word & HF_PREEMPT_DEPTH_MASK) + (word >> 16 & 0xff);

	if (!wide)
		return word;
	if (depth > HF_PREEMPT_DEPTH_MASK)
		depth = HF_PREEMPT_DEPTH_MASK;
	return depth | (word & 0x0000ff00U) | (word >> 24) << 16;
}

/* The same when it has released @nr locks that it still counts. */
HF_FN u32 hf_preempt_count_after(u32 count, u32 nr)
{
	return (count & HF_PREEMPT_DEPTH_MASK) < nr ? count : count - nr;
}

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

/* Has it preemption off, and is in no queue? */
HF_FN bool hf_is_inside(enum hf_class class)
{
	return class == HF_HOLDER || class == HF_IRQ;
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
 * for spin_ns is it taken at its word (@spun_long), or when it says whom it spins for.
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

/* The spinning of a vCPU that runs, as its pause-loop exits tell of it. All zero: none so far. */
struct hf_spin {
	u64 last_ns;  /* the last exit; 0: none */
	u64 since_ns; /* the first of those that follow one another */
	u64 gap_ns;   /* the longest time between two of these, look_ns at most to begin with */
};

/*
 * It has one now: has its spin lasted for longer than is good for it? While it spins, exits follow one
 * another: closely, or each after twice the time, as KVM has it. At each of them KVM asks for one
 * sibling after the other: only the longest gap tells of the exits.
 */
HF_FN bool hf_spun_long(struct hf_spin *spin, u64 now, const struct hf_params *prm)
{
	u64 gap = spin->last_ns ? now - spin->last_ns : 0;

	if (!spin->last_ns || (gap > prm->look_ns && gap > 3 * spin->gap_ns)) {
		spin->since_ns = now;
		spin->gap_ns = gap < prm->look_ns ? gap : prm->look_ns;
	} else if (gap > spin->gap_ns) {
		spin->gap_ns = gap;
	}
	spin->last_ns = now;
	return now - spin->since_ns >= prm->spin_ns;
}

/*
 * Whom a vCPU that is looked at between turns gives its CPU, without having asked for it.
 * Where who waits for a lock tells (@told), by exits of the pause loop, a look would be in
 * the way of that: whoever is next gets a CPU when a waiter gives up, and two vCPUs that
 * contend are not made to run at once before. @spun_long: it has looked like one that spins
 * for a holder (hf_spins_for_holder) at every look for spin_ns.
 */
HF_FN enum hf_target hf_look_target(enum hf_class class, const struct hf_siblings *s, bool told,
				    bool spun_long)
{
	enum hf_target target = hf_yield_target(class, s, false, spun_long);

	return told && target == HF_TO_HOLDER && s->next ? HF_TO_NOBODY : target;
}

/* Halvings of look_ns that hf_first_look() spans. */
#define HF_FIRST_LOOK_HALVINGS 5

/*
 * How soon a vCPU that has just come to run is looked at. Where all vCPUs are queued for one lock,
 * it passes the lock on at once and queues again behind those who have no CPU, who pass
 * it on one by one for ever. Only who is looked at in the moment between can be stopped outside
 * of the queue, and when the moment is depends on the CPU and the lock: @random finds it, anywhere
 * between look_ns / 32 and look_ns, each halving of which is as likely as the next.
 */
HF_FN u64 hf_first_look(u32 random, const struct hf_params *prm)
{
	u64 longest_ns = prm->look_ns >> (random % HF_FIRST_LOOK_HALVINGS);

	/* The upper bits say where in its upper half. */
	return longest_ns - (longest_ns * (random >> 17) >> 16);
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
	return hf_is_inside(class) && s->holder && !s->next && held_ns >= prm->spin_ns;
}

#endif /* __HOLDFAST_GUEST_H */
