/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How long a vCPU runs beyond its turn. */
#ifndef __HOLDFAST_GRACE_H
#define __HOLDFAST_GRACE_H

/* Why a vCPU keeps the CPU at the end of its turn, or does not. */
enum hf_verdict {
	HF_PREEMPT = 0,	    /* nothing to protect */
	HF_EXTEND = 1,	    /* runs on for step_ns */
	HF_RELEASE = 2,	    /* was extended and is Free */
	HF_CAPPED = 3,	    /* was extended up to the cap */
	HF_OVER_BUDGET = 4, /* its VM has no grace left */
	HF_BACK_OFF = 5,    /* its graces keep ending at the cap: not a holder that helps */
	HF_WAITS = 6,	    /* waits for a sibling that is preempted: running on helps nobody */
};
#define HF_NR_VERDICTS 7

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
		if (hf_is_protected(class) || class == HF_WAITER)
			d.verdict = HF_WAITS;
		else if (class == HF_FREE && g->granted_ns)
			d.verdict = HF_RELEASE;
		/* Who is Free or in a queue by now did get out of what it was kept for. */
		if (g->granted_ns && (class == HF_FREE || class == HF_WAITER))
			g->capped_streak = 0;
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
	if (!hf_is_inside(class))
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

#endif /* __HOLDFAST_GRACE_H */
