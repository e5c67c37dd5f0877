/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The class of a vCPU, the sibling it waits for, and the target of its yields. */
#ifndef __HOLDFAST_GUEST_H
#define __HOLDFAST_GUEST_H

#include "params.h"

/*
 * What a vCPU is doing. The words of its guest's memory tell it exactly; crates/guest finds them.
 * Without them, other signs tell what it is likely to do: siblings are not preempted for that.
 */
enum hf_class {
	HF_UNKNOWN = 0,	      /* not readable: scheduled as an ordinary task */
	HF_PREEMPTIBLE = 1,   /* preempting it delays no sibling */
	HF_HOLDER = 2,	      /* holds at least one spinlock, or has preemption off */
	HF_IRQ = 3,	      /* serves an interrupt */
	HF_WAITER = 4,	      /* queued for a lock, not first: running it is waste */
	HF_HEAD = 5,	      /* first in the queue: the lock is handed to it next */
	HF_LIKELY_HOLDER = 6, /* in the kernel: holds a lock, spins for one, or neither */
	HF_LIKELY_IRQ = 7,    /* serves an interrupt */
	HF_LIKELY_WAITER = 8, /* spins */
};
#define HF_NR_CLASSES 9

/* What the preemption count of a guest's kernel counts. */
enum hf_count_kind {
	HF_COUNT_NARROW = 0,	 /* preemption and interrupts, in 32 bits */
	HF_COUNT_WIDE = 1,	 /* the same in 64 bits, since Linux 7.3 */
	HF_COUNT_INTERRUPTS = 2, /* interrupts alone: without CONFIG_PREEMPT_COUNT */
};

/* The mode that a vCPU left its guest in. */
enum hf_mode {
	HF_MODE_UNKNOWN = 0, /* only AMD's CPUs have it in memory */
	HF_MODE_KERNEL = 1,
	HF_MODE_USER = 2,
};

/*
 * The words that tell a class, as they lie in the guest's per-CPU area.
 * Layout: include/linux/preempt.h and kernel/locking/mcs_spinlock.h of the guest.
 */
struct hf_guest_facts {
	u32 preempt_count; /* as of hf_preempt_count() */
	u32 count_kind;	   /* enum hf_count_kind */
	u32 queued;	   /* qnodes[0].mcs.count: nesting depth of queued-spinlock slow paths */
	u32 at_head;	   /* qnodes[0].mcs.locked: non-zero once the predecessor handed over */
	u32 idle;	   /* non-zero if the running task is the idle task of this CPU */
	u32 mode;	   /* enum hf_mode; counts with HF_COUNT_INTERRUPTS alone */
};

/* Bits of preempt_count; the inverted need-resched bit (31) says nothing about locks. */
#define HF_PREEMPT_DEPTH_MASK 0x000000ffU
#define HF_PREEMPT_IRQ_MASK   0x00ffff00U /* softirq, hardirq, NMI */

/* The preempted siblings of a vCPU that is probed: is there a blocker of each kind? */
struct hf_siblings {
	bool holder; /* one holds a lock, or was handed one since: all in the queue wait for it */
	bool next;   /* and that one is only known to be next: it stopped in a queue */
	bool waiter; /* one is in a queue: the vCPUs behind it wait for it */
	bool call_pending; /* one has function calls pending, for which an IPI sender may spin */
};

/* Why KVM asks for a directed yield. */
enum hf_reason {
	HF_FOR_PAUSE = 0, /* a pause exit: the vCPU spins */
	HF_FOR_KICK = 1,  /* KVM_HC_KICK_CPU: it has released a PV lock to a halted vCPU */
	HF_FOR_IPI = 2,	  /* KVM_HC_SCHED_YIELD: it has sent an IPI to a preempted vCPU */
	HF_FOR_OTHER = 3, /* not known: this vCPU cannot be read */
};
#define HF_NR_REASONS 4

/* The vCPU that gets the CPU of one that spins. */
enum hf_target {
	HF_TO_NONE = 0,		/* no vCPU would use it better */
	HF_TO_HOLDER = 1,	/* the preempted holder */
	HF_TO_CALL_PENDING = 2, /* the preempted sibling with function calls pending */
	HF_TO_CANDIDATE = 3,	/* the vCPU that KVM asked for */
};
#define HF_NR_TARGETS 4

/*
 * The preemption count of a guest as Linux had it up to 7.2, from the lower half of the word:
 * __preempt_count, or pcpu_hot.preempt_count. Since 7.3 the word is @wide on x86-64: 64 bits, with
 * need-resched in the other half. Between softirqs and hardirqs it counts how often code that may
 * hold a lock disabled interrupts (local_interrupt_disable()). That counts as depth here.
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

/*
 * The same without CONFIG_PREEMPT_COUNT. Interrupts, softirqs that are off (spin_lock_bh) and
 * queues are known as ever, and such a kernel is not preempted in a queue. Elsewhere in it a vCPU
 * may hold a lock.
 */
HF_FN enum hf_class hf_classify_uncounted(const struct hf_guest_facts *f)
{
	if (f->preempt_count & HF_PREEMPT_IRQ_MASK)
		return HF_IRQ;
	if (f->queued)
		return f->at_head ? HF_HEAD : HF_WAITER;
	if (f->mode == HF_MODE_USER || f->idle)
		return HF_PREEMPTIBLE;
	return f->mode == HF_MODE_KERNEL ? HF_LIKELY_HOLDER : HF_UNKNOWN;
}

HF_FN enum hf_class hf_classify(const struct hf_guest_facts *f)
{
	u32 depth = f->preempt_count & HF_PREEMPT_DEPTH_MASK;

	if (f->count_kind == HF_COUNT_INTERRUPTS)
		return hf_classify_uncounted(f);
	if (f->preempt_count & HF_PREEMPT_IRQ_MASK)
		return HF_IRQ;
	/* The idle task runs with preemption off (init_idle), which is no lock. */
	if (f->idle && depth)
		depth--;
	if (!depth)
		return HF_PREEMPTIBLE;
	/* The slow path has preemption off, once. Any depth beyond that is a lock that is held. */
	if (!f->queued || depth > 1)
		return HF_HOLDER;
	return f->at_head ? HF_HEAD : HF_WAITER;
}

/*
 * IRQL of Windows on x86-64: the upper half of the task priority, CR8. Spinlocks are held at
 * DISPATCH_LEVEL (2), where no thread is preempted, or above. Interrupts are served above it.
 */
#define HF_IRQL_SHIFT	  4
#define HF_DISPATCH_LEVEL 2

/* The class of a vCPU of a Windows guest, from its task priority register. @spins: it seems to. */
HF_FN enum hf_class hf_classify_irql(u32 tpr, bool spins)
{
	u32 irql = (tpr & 0xff) >> HF_IRQL_SHIFT;

	if (irql < HF_DISPATCH_LEVEL)
		return HF_PREEMPTIBLE;
	if (irql > HF_DISPATCH_LEVEL)
		return HF_LIKELY_IRQ;
	return spins ? HF_LIKELY_WAITER : HF_LIKELY_HOLDER;
}

/*
 * The code of a spin around its PAUSE, in bytes. Where pause exits come from, a vCPU within it
 * spins: a test, a count, and the jump back.
 */
#define HF_SPIN_CODE 32

/* Is @rip in the loop of the PAUSE at @pause_rip? */
HF_FN bool hf_is_in_spin(u64 rip, u64 pause_rip)
{
	return rip - pause_rip + HF_SPIN_CODE <= 2 * HF_SPIN_CODE;
}

/* Longer times between two exits are the end of one spin and the beginning of another. */
#define HF_SPIN_GAP_MAX_NS (50ULL * 1000)

/*
 * Does a vCPU spin that told of a spin @since_ns ago, and @gap_ns before that as well? The next
 * exit of a spin comes after the same time, or after twice that, depending on KVM's window.
 */
HF_FN bool hf_still_spins(u64 since_ns, u64 gap_ns)
{
	return since_ns <= 2 * (gap_ns < HF_SPIN_GAP_MAX_NS ? gap_ns : HF_SPIN_GAP_MAX_NS);
}

/*
 * Is a guest with this HV_X64_MSR_GUEST_OS_ID Windows? It has bit 63 set if it is open source, then
 * 15 bits of its vendor, and 8 bits of its OS (Hypervisor Top-Level Functional Specification).
 */
#define HF_OS_VENDOR_SHIFT  48
#define HF_OS_SHIFT	    40
#define HF_VENDOR_MICROSOFT 1
#define HF_OS_WINDOWS_NT    4
HF_FN bool hf_is_windows(u64 guest_os_id)
{
	return guest_os_id >> HF_OS_VENDOR_SHIFT == HF_VENDOR_MICROSOFT &&
	       (guest_os_id >> HF_OS_SHIFT & 0xff) == HF_OS_WINDOWS_NT;
}

/* Would preempting this vCPU make its siblings wait? */
HF_FN bool hf_is_protected(enum hf_class class)
{
	return class == HF_HOLDER || class == HF_IRQ || class == HF_HEAD;
}

/* Is that likely, and not known? */
HF_FN bool hf_is_likely_protected(enum hf_class class)
{
	return class == HF_LIKELY_HOLDER || class == HF_LIKELY_IRQ;
}

/* Does it run with preemption off, outside of any lock's queue? */
HF_FN bool hf_in_critical_section(enum hf_class class)
{
	return class == HF_HOLDER || class == HF_IRQ;
}

/* Is it in the queue of a lock? */
HF_FN bool hf_in_lock_queue(enum hf_class class)
{
	return class == HF_WAITER || class == HF_HEAD;
}

/*
 * Does it help to keep this vCPU running? A vCPU that holds a lock gets done with it. A queued
 * vCPU gets through, unless its queue cannot move. An apparent holder with a sibling that has calls
 * pending is probably their IPI sender, which spins with preemption off until they are answered.
 */
HF_FN bool hf_is_worth_extending(enum hf_class class, const struct hf_siblings *s)
{
	if (class == HF_WAITER)
		return !s->holder && !s->waiter && !s->call_pending;
	return (hf_is_protected(class) || hf_is_likely_protected(class)) && !s->call_pending;
}

/*
 * The target of a yield. A waiter's holder comes first. An apparent holder waits, if at all, for
 * its function calls. Without a blocker a spinner that is left alone gets its lock sooner than one
 * that the host queues: a @candidate of KVM or the guest gets the CPU only if it is @trusted.
 */
HF_FN enum hf_target hf_yield_target(enum hf_class class, const struct hf_siblings *s,
				     bool candidate, bool trusted)
{
	switch (class) {
	case HF_WAITER:
	case HF_HEAD:
		/* Two vCPUs that are both first in a queue are in the queues of two locks. */
		if (s->holder && !(class == HF_HEAD && s->next))
			return HF_TO_HOLDER;
		if (s->call_pending)
			return HF_TO_CALL_PENDING;
		break;
	case HF_LIKELY_HOLDER:
		if (s->call_pending)
			return HF_TO_CALL_PENDING;
		trusted = true;
		break;
	case HF_HOLDER:
	case HF_IRQ:
		if (s->call_pending)
			return HF_TO_CALL_PENDING;
		if (s->holder && (candidate || trusted))
			return HF_TO_HOLDER;
		break;
	case HF_PREEMPTIBLE:
		/* Preempting it stops no sibling, and the lock moves on. */
		if (s->holder)
			return HF_TO_HOLDER;
		/* Without a blocker it spins in user space, if at all. */
		trusted = true;
		break;
	default:
		trusted = true;
	}
	return candidate && trusted ? HF_TO_CANDIDATE : HF_TO_NONE;
}

/*
 * Does a vCPU give its CPU away if KVM asks for @reason? A vCPU that kicks does not spin. The lock
 * inside of a queued rwlock is released by the new owner of the rwlock: the kicked vCPU would have
 * its CPU to spin for it. The kicked vCPU wakes, with a resume boost if it can be read.
 */
HF_FN bool hf_yields_for(enum hf_reason reason)
{
	return reason != HF_FOR_KICK;
}

/*
 * Is a blocker a better target than KVM's candidate? Not for a vCPU in a queue whose waiters leave
 * the guest by pause exits (@pause_exits_seen): they halt in the end, and KVM passes over siblings
 * that spin.
 */
HF_FN bool hf_prefers_blocker(enum hf_reason reason, enum hf_class class, bool pause_exits_seen)
{
	return reason != HF_FOR_PAUSE || !hf_in_lock_queue(class) || !pause_exits_seen;
}

/* The spin of a running vCPU, as its pause exits show it. All zero: no pause exit yet. */
struct hf_spin {
	u64 last_ns;  /* the last exit; 0: none */
	u64 since_ns; /* the first exit of this spin */
	u64 gap_ns;   /* the longest time between two of its exits; at first probe_ns at most */
};

/*
 * The vCPU has a pause exit @now. Has its spin lasted for spin_ns? Exits of one spin come closely
 * after one another, or each after twice the time, depending on KVM's window. At each exit KVM
 * tries several siblings in turn, so only the longest gap measures the time between exits.
 */
HF_FN bool hf_spun_long(struct hf_spin *spin, u64 now, const struct hf_params *prm)
{
	u64 gap = spin->last_ns ? now - spin->last_ns : 0;

	if (!spin->last_ns || (gap > prm->probe_ns && gap > 3 * spin->gap_ns)) {
		spin->since_ns = now;
		spin->gap_ns = gap < prm->probe_ns ? gap : prm->probe_ns;
	} else if (gap > spin->gap_ns) {
		spin->gap_ns = gap;
	}
	spin->last_ns = now;
	return now - spin->since_ns >= prm->spin_ns;
}

/*
 * Is the candidate of a vCPU that yields for @reason trusted? A vCPU that has sent an IPI spins for
 * its candidate. Any other has to have spun for spin_ns. Where waiters leave the guest by pause
 * exits (@pause_exits_seen), KVM passes over siblings that spin.
 */
HF_FN bool hf_trusts_candidate(enum hf_reason reason, struct hf_spin *spin, u64 now,
			       bool pause_exits_seen, const struct hf_params *prm)
{
	return reason == HF_FOR_IPI || hf_spun_long(spin, now, prm) || pause_exits_seen;
}

/*
 * The target of a vCPU that is probed within its slice and did not ask to yield. Where the waiters
 * for a lock leave the guest by pause exits (@pause_exits_seen), a probe would be in their way: the
 * next owner gets a CPU when a waiter gives up its own, and two vCPUs that contend do not run at
 * once before that. @spun_long: each probe for spin_ns saw hf_spins_for_holder().
 */
HF_FN enum hf_target hf_probe_target(enum hf_class class, const struct hf_siblings *s,
				     bool pause_exits_seen, bool spun_long)
{
	enum hf_target target = hf_yield_target(class, s, false, spun_long);

	return pause_exits_seen && target == HF_TO_HOLDER && s->next ? HF_TO_NONE : target;
}

/*
 * How long a vCPU neither halts nor asks to yield if it spins for locks without paravirtual ones
 * and without pause exits. Waiters that do either leave their CPU within this time.
 */
#define HF_SPINS_SILENTLY_NS (100ULL * 1000 * 1000)

/* May a vCPU spin that cannot be read, and that last halted or asked to yield @since_ns ago? */
HF_FN bool hf_may_spin(u64 since_ns)
{
	return since_ns >= HF_SPINS_SILENTLY_NS;
}

/*
 * How long a vCPU that may spin runs while others wait. In a convoy each slice passes the lock on
 * once, so its slices are no longer than those of the stock scheduler. Others have longer ones: a
 * holder is preempted less often.
 */
HF_FN u64 hf_spinner_slice(const struct hf_params *prm)
{
	return prm->slice_ns / 2;
}

/* Halvings of probe_ns that hf_first_probe() spans. */
#define HF_FIRST_PROBE_HALVINGS 5

/* So many probe_ns later comes the first probe of a vCPU that would leave by a pause exit. */
#define HF_FIRST_PROBE_DELAY 4

/*
 * How soon a vCPU is probed after it has begun to run. Where all vCPUs are queued for one lock, a
 * running vCPU passes the lock on at once and queues again behind the siblings without a CPU, which
 * pass it on one by one, for ever. Only a probe in the moment between finds the vCPU outside of the
 * queue. That moment depends on the CPU and the lock, so the delay is @random: between probe_ns /
 * 32 and probe_ns, each halving as likely as the next.
 *
 * Where waiters have pause exits no such convoy lasts, and each probe costs an exit as well: there
 * it only has to find what they do not, such as an IPI sender.
 */
HF_FN u64 hf_first_probe(u32 random, bool pause_exits_seen, const struct hf_params *prm)
{
	u64 longest_ns = prm->probe_ns >> (random % HF_FIRST_PROBE_HALVINGS);

	if (pause_exits_seen)
		return prm->probe_ns * HF_FIRST_PROBE_DELAY;
	/* The upper bits choose a place in its upper half. */
	return longest_ns - (longest_ns * (random >> 17) >> 16);
}

/*
 * An apparent holder may itself spin with preemption off for a lock without a queue node: a queued
 * rwlock, the second contender of a native lock, the owner of a mutex. Nearly all critical sections
 * are shorter than spin_ns. A longer one, while a lock holder is preempted, counts as a spin for
 * that holder. A sibling that is only known to be next waits, too, and does not count.
 */
HF_FN bool hf_spins_for_holder(enum hf_class class, const struct hf_siblings *s, u64 held_ns,
			       const struct hf_params *prm)
{
	return hf_in_critical_section(class) && s->holder && !s->next && held_ns >= prm->spin_ns;
}

#endif /* __HOLDFAST_GUEST_H */
