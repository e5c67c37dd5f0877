/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the BPF part and the user space part of scx_holdfast share. */
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

/* Why KVM asks for a directed yield. */
enum hf_reason {
	HF_FOR_PAUSE = 0, /* a pause-loop exit: the vCPU spins */
	HF_FOR_KICK =
		1,	/* KVM_HC_KICK_CPU: it has released a paravirtual lock to one that halted */
	HF_FOR_IPI = 2, /* KVM_HC_SCHED_YIELD: it has sent an interrupt to one that was preempted */
	HF_FOR_OTHER = 3, /* not known: nothing is read of this vCPU */
};
#define HF_NR_REASONS 4

/* Indices of the counters, in the BPF map `stats` and per VM in `vm_ctxs`. */
enum hf_stat {
	HF_STAT_VERDICT = 0, /* + enum hf_verdict: what became of vCPUs whose turn ended */
	HF_STAT_STOPPED =
		HF_STAT_VERDICT + HF_NR_VERDICTS, /* + enum hf_class, stopped while runnable */
	HF_STAT_NEED =
		HF_STAT_STOPPED + HF_NR_CLASSES, /* + bucket: grace until the vCPU was Free */
	HF_STAT_DIRECTED_YIELD =
		HF_STAT_NEED + HF_NR_NEED_BUCKETS, /* + enum hf_target, and HF_NR_TARGETS
							      for each reason: directed yields */
	HF_STAT_PROBED = HF_STAT_DIRECTED_YIELD +
			 HF_NR_REASONS * HF_NR_TARGETS,	   /* + enum hf_target: running vCPUs
								  looked at between turns */
	HF_STAT_GRACE_NS = HF_STAT_PROBED + HF_NR_TARGETS, /* grace granted */
	HF_STAT_WAITING_NS,    /* preempted holders, heads and interrupts: time without a CPU */
	HF_STAT_RESUMED_FIRST, /* queued ahead of their turn: preempted holders, woken owners */
	HF_STAT_MISSED, /* CPUs given to somebody who was taken by another first, or cannot have them */
	HF_NR_VM_STATS,				 /* those above are counted per VM as well */
	HF_STAT_WAKEUP_PREEMPT = HF_NR_VM_STATS, /* running tasks preempted by a waking one */
	HF_STAT_KEPT,				 /* turns that ended with nobody further behind */
	HF_STAT_YIELD,				 /* yields without a target */
	HF_STAT_STARVING, /* turns of those whom their weight kept waiting for too long */
	HF_NR_STATS,
};

/* A preempted vCPU: where its siblings find what it waits for, or makes them wait for. */
struct hf_waiting {
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
 * The preempted vCPUs of a VM. The maps of slots are changed by atomic operations only; a
 * slot that two vCPUs share tells of the one that came last, and what is lost with the
 * other is an optimisation.
 */
struct hf_preempted {
	u64 waiting; /* slots of vCPUs that are preempted */
	u64 holders; /* of those: stopped in a critical section */
	u64 heads;   /* of those: stopped at the head of a queue, or came there since */
	u64 queued;  /* of those: in a queue, not at its head when they stopped */
	struct hf_waiting slots[HF_VM_SLOTS];
};

/* A VM, keyed by the address of its struct kvm. */
struct hf_vm_ctx {
#ifdef __VMLINUX_H__
	struct bpf_spin_lock lock; /* makes a grant atomic: what is granted was earned */
#else
	u32 lock;
#endif
	u32 pad;
	u64 budget_ns; /* grace saved */
	u64 pause_exit_at; /* when one in the queue of a paravirtual lock last left the guest, spinning */
	struct hf_preempted preempted;
	u64 counts[HF_NR_VM_STATS];
};

#endif /* __SCX_HOLDFAST_INTF_H */
