/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How long a vCPU runs on at the end of its slice. */
#ifndef __HOLDFAST_GRACE_H
#define __HOLDFAST_GRACE_H

#include "guest.h"

/* Why a vCPU keeps its CPU at the end of its slice, or loses it. */
enum hf_verdict {
	HF_PREEMPT = 0,	    /* nothing to protect */
	HF_EXTEND = 1,	    /* runs on for step_ns */
	HF_RELEASE = 2,	    /* was extended and is preemptible */
	HF_CAPPED = 3,	    /* was extended up to the cap */
	HF_OVER_BUDGET = 4, /* its VM's budget has no grace left */
	HF_BACK_OFF = 5,    /* its graces keep ending at the cap: extending it does not help */
	HF_WAITS = 6,	    /* waits for a preempted sibling: running on is of no use */
};
#define HF_NR_VERDICTS 7

/* One vCPU's grace. All zero is the state of a vCPU that never had any. */
struct hf_grace {
	u64 granted_ns;	   /* granted since this grace began; 0 outside one */
	u32 nr_steps;	   /* steps granted since this grace began */
	u32 capped_streak; /* graces in a row that ended at the cap */
	u32 skip;	   /* slices left to end without grace because of the streak */
	u64 held_since_ns; /* of its CPU time: start of its apparent critical section; 0: none */
};

struct hf_decision {
	enum hf_verdict verdict;
	u64 step_ns; /* with HF_EXTEND: how long until the vCPU is probed */
};

/* A streak of capped graces doubles the slices skipped, up to 2^HF_BACK_OFF_MAX. */
#define HF_BACK_OFF_AFTER 2 /* capped graces in a row that cost nothing */
#define HF_BACK_OFF_MAX	  6

/*
 * The most grace that a vCPU of this class has at once. A likely holder may as well spin, or hold
 * nothing. Nearly all critical sections are shorter than spin_ns.
 */
HF_FN u64 hf_grace_max(enum hf_class class, const struct hf_params *prm)
{
	if (hf_is_likely_protected(class) && prm->spin_ns < prm->grace_max_ns)
		return prm->spin_ns;
	return prm->grace_max_ns;
}

/*
 * At the end of a slice, and at each step of a grace: extend, or preempt and why.
 * @budget_ns is the grace that the VM has left. A step is paid for when it is
 * granted, so that all vCPUs of a VM together get no more than it has earned.
 */
HF_FN struct hf_decision hf_grace_decide(struct hf_grace *g, u64 *budget_ns, enum hf_class class,
					 const struct hf_siblings *s, const struct hf_params *prm)
{
	struct hf_decision d = { HF_PREEMPT, 0 };
	u64 max_ns = hf_grace_max(class, prm), left_ns, step_ns;

	if (!hf_is_worth_extending(class, s) ||
	    (g->granted_ns && hf_spins_for_holder(class, s, g->granted_ns, prm))) {
		if (hf_is_protected(class) || hf_is_likely_protected(class) || class == HF_WAITER ||
		    class == HF_LIKELY_WAITER)
			d.verdict = HF_WAITS;
		else if (class == HF_PREEMPTIBLE && g->granted_ns)
			d.verdict = HF_RELEASE;
		/* A preemptible or queued vCPU has left the section that it was extended for. */
		if (g->granted_ns && (class == HF_PREEMPTIBLE || class == HF_WAITER))
			g->capped_streak = 0;
		goto out_end;
	}

	if (!g->granted_ns && g->skip) {
		g->skip--;
		d.verdict = HF_BACK_OFF;
		goto out_end;
	}

	left_ns = max_ns > g->granted_ns ? max_ns - g->granted_ns : 0;
	if (!left_ns) {
		d.verdict = HF_CAPPED;
		if (g->granted_ns && g->capped_streak < HF_BACK_OFF_AFTER + HF_BACK_OFF_MAX)
			g->capped_streak++;
		if (g->capped_streak > HF_BACK_OFF_AFTER)
			g->skip = 1U << (g->capped_streak - HF_BACK_OFF_AFTER);
		goto out_end;
	}

	/* Doubling keeps probes logarithmic and the overshoot below the need itself. */
	step_ns = prm->grace_step_ns << (g->nr_steps < 16 ? g->nr_steps : 16);
	if (step_ns > left_ns)
		step_ns = left_ns;
	if (*budget_ns < step_ns) {
		d.verdict = HF_OVER_BUDGET;
		goto out_end;
	}

	*budget_ns -= step_ns;
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

/* For how many slices of its own CPU time a vCPU may look like a holder and be trusted. */
#define HF_TRUSTED_SLICES 4

/* A vCPU that has used @cpu_ns of CPU time is probed and has this class. */
HF_FN void hf_note_class(struct hf_grace *g, enum hf_class class, u64 cpu_ns)
{
	if (class == HF_PREEMPTIBLE || hf_in_lock_queue(class))
		g->held_since_ns = 0;
	else if (hf_in_critical_section(class) && !g->held_since_ns)
		g->held_since_ns = cpu_ns;
}

/*
 * The class that a preempted vCPU is scheduled by. Some guest code has preemption off for long and
 * holds no lock that others want, such as a batch of RCU callbacks. Siblings would give such a vCPU
 * one slice after the other, and it can use only one CPU. A vCPU that is first in a queue has a
 * lock coming, however long it has been there.
 */
HF_FN enum hf_class hf_trusted(enum hf_class class, const struct hf_grace *g, u64 cpu_ns,
			       const struct hf_params *prm)
{
	if (!hf_in_critical_section(class))
		return class;
	if (!g->held_since_ns || cpu_ns - g->held_since_ns <= HF_TRUSTED_SLICES * prm->slice_ns)
		return class;
	return HF_PREEMPTIBLE;
}

/* A VM earns grace by running, so that a large VM has more of it and an idle VM saves none. */
HF_FN u64 hf_grace_earn(u64 budget_ns, u64 ran_ns, const struct hf_params *prm)
{
	budget_ns += ran_ns * prm->grace_share_permille / 1000;
	return budget_ns < prm->grace_budget_max_ns ? budget_ns : prm->grace_budget_max_ns;
}

#endif /* __HOLDFAST_GRACE_H */
