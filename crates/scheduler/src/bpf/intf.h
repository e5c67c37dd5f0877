/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Types and constants of both the BPF part and the user space part of scx_holdfast. */
#ifndef __SCX_HOLDFAST_INTF_H
#define __SCX_HOLDFAST_INTF_H

#ifndef __VMLINUX_H__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef signed int s32;
typedef signed long s64;
typedef _Bool bool;
#define true  1
#define false 0
#endif

#include <holdfast/policy.h>

#define HF_MAX_CPUS 1024
#define HF_MAX_LLCS 64

/* Buckets of the histogram of how long graces lasted: [2^i, 2^(i+1)) us, the last one open. */
#define HF_NR_NEED_BUCKETS 16

/* Indices of the counters, in the BPF map `stats` and per VM in `vm_ctxs`. */
enum hf_stat {
	/* + enum hf_verdict: ends of the slices and grace steps of vCPUs */
	HF_STAT_VERDICT = 0,
	/* + enum hf_class: vCPUs that stopped while runnable */
	HF_STAT_STOPPED = HF_STAT_VERDICT + HF_NR_VERDICTS,
	/* + bucket: grace until the vCPU was preemptible */
	HF_STAT_NEED = HF_STAT_STOPPED + HF_NR_CLASSES,
	/* + enum hf_target, and HF_NR_TARGETS for each reason */
	HF_STAT_DIRECTED_YIELD = HF_STAT_NEED + HF_NR_NEED_BUCKETS,
	/* + enum hf_target: probes of running vCPUs within their slices */
	HF_STAT_PROBED = HF_STAT_DIRECTED_YIELD + HF_NR_REASONS * HF_NR_TARGETS,
	/* grace granted */
	HF_STAT_GRACE_NS = HF_STAT_PROBED + HF_NR_TARGETS,
	/* preempted holders, heads and interrupts: time without a CPU */
	HF_STAT_WAITING_NS,
	/* resume boosts: preempted holders, woken owners of locks */
	HF_STAT_RESUMED_FIRST,
	/* yields whose target another CPU took first, or may not have the CPU */
	HF_STAT_MISSED,
	HF_NR_VM_STATS, /* those above are counted per VM as well */
	/* running tasks preempted by a waking one */
	HF_STAT_WAKEUP_PREEMPT = HF_NR_VM_STATS,
	/* slices renewed, because no waiting task was further behind */
	HF_STAT_KEPT,
	/* yields without a target */
	HF_STAT_YIELD,
	/* slices of starving tasks */
	HF_STAT_STARVING,
	HF_NR_STATS,
};

/* A preempted vCPU: where its siblings find its lock queue and its pending calls. */
struct hf_listed {
	u32 tid;
	u32 pad;
	u64 qnode_hva;	    /* 0: not known */
	u64 call_queue_hva; /* 0: not known */
	u64 direct_map_hva;
	u64 slot_hva; /* the memory that these lie in */
	u64 slot_len;
};

/* vCPUs of a VM that are tracked while preempted, by their index modulo this. */
#define HF_VM_SLOTS 64

/*
 * The preempted vCPUs of a VM. The maps of slots are changed by atomic operations only. A
 * slot that two vCPUs share describes the later one; the loss of the other one costs an
 * optimisation.
 */
struct hf_preempted {
	u64 listed;  /* slots of vCPUs that are preempted */
	u64 holders; /* of those: stopped in a critical section */
	u64 heads;   /* of those: stopped at the head of a queue, or came there since */
	u64 waiters; /* of those: in a queue, not at its head when they stopped */
	struct hf_listed slots[HF_VM_SLOTS];
};

/* A VM, keyed by the address of its struct kvm. */
struct hf_vm_ctx {
#ifdef __VMLINUX_H__
	struct bpf_spin_lock lock; /* makes a grant atomic: the VM has earned what it is granted */
#else
	u32 lock;
#endif
	u32 pad;
	u64 budget_ns;	   /* grace left */
	u64 pause_exit_at; /* when a waiter for a PV lock last had a pause exit */
	struct hf_preempted preempted;
	u64 counts[HF_NR_VM_STATS];
};

#endif /* __SCX_HOLDFAST_INTF_H */
