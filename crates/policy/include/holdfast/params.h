/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The tunables of the policy, and how its functions are declared. */
#ifndef __HOLDFAST_PARAMS_H
#define __HOLDFAST_PARAMS_H

/* native.c defines this away, to give user space functions it can link to. */
#ifndef HF_FN
#define HF_FN static inline __attribute__((always_inline))
#endif

/* Set once at load time. Every one is a time in ns unless its name says otherwise. */
struct hf_params {
	u64 slice_ns;		     /* how long a task may run while others wait */
	u64 grace_max_ns;	     /* cap on the time that a grace lasts */
	u64 grace_step_ns;	     /* first step of a grace; each further step doubles */
	u64 grace_budget_max_ns;     /* most grace in a VM's budget */
	u32 grace_share_permille;    /* grace that a VM earns for the CPU time it uses */
	u32 resume_boost_permille;   /* of a slice: by how much a preempted holder is advanced */
	u64 spin_ns;		     /* how long a vCPU spins before KVM's candidate is trusted */
	u64 probe_ns;		     /* how soon a vCPU with blockers in its VM is probed */
	u32 wakeup_margin_permille;  /* of a slice: how far behind a waking task has to be */
	u32 sibling_margin_permille; /* the same for a vCPU that a sibling wakes */
};

#endif /* __HOLDFAST_PARAMS_H */
