/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The order in which tasks run. */
#ifndef __HOLDFAST_ORDER_H
#define __HOLDFAST_ORDER_H

#include "guest.h"
#include "vtime.h"

/*
 * Where a runnable task is queued. The resume boost goes to a vCPU that was preempted while
 * siblings wait for it. It also goes to a vCPU that is woken as the next owner of a lock, and to
 * one with an interrupt to serve that a sibling spins for. Only the order changes: the time that
 * the vCPU runs is charged in full, and beyond the boost it waits like any task. The boost is in
 * CPU time, so that it is worth the same to a small vCPU as to a large one.
 */
HF_FN u64 hf_queue_key(u64 vtime, enum hf_class class, bool woken, u32 weight,
		       const struct hf_params *prm)
{
	bool first = woken ? hf_in_lock_queue(class) || class == HF_IRQ : hf_is_protected(class);

	return first ? vtime - hf_part_of_slice(prm->resume_boost_permille, weight, prm) : vtime;
}

/*
 * @from gives its CPU to @to, which would come later: they swap places. The CPU time that the two
 * have coming together does not change, so no number of yields wins their VM anything. A place is
 * worth more CPU time to the heavier task, which comes less far forward or goes less far back.
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
 * May @from give its CPU to @to although the task with @first_key is next? As far as the resume
 * boost reaches, and no further: else a VM of vCPUs that hand the CPU to one another would never
 * leave it.
 */
HF_FN bool hf_may_give(u64 from_vtime, u32 from_weight, u64 to_vtime, u32 to_weight, u64 first_key,
		       const struct hf_params *prm)
{
	hf_swap_places(&from_vtime, from_weight, &to_vtime, to_weight);
	return !hf_vtime_before(first_key,
				hf_queue_key(to_vtime, HF_HOLDER, false, to_weight, prm));
}

/*
 * May a waking task of @weight with this key preempt a running one with virtual time @curr_vtime?
 * A task that has slept for long is a slice behind the beginning of a slice: with a margin of less
 * than that it need not wait for the end of one. A vCPU that is woken @by_sibling has to be further
 * behind. Else vCPUs that sleep until a sibling releases a mutex or sends a byte would cut slices
 * short as often as that, to run at once and contend again.
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

#endif /* __HOLDFAST_ORDER_H */
