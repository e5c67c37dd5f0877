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

#include "guest.h"
#include "vtime.h"
#include "grace.h"
#include "order.h"

#endif /* __HOLDFAST_POLICY_H */
