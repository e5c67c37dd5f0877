/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counters and reports of observe.bpf.c. The includer provides the types and policy.h. */
#ifndef __HOLDFAST_OBSERVE_H
#define __HOLDFAST_OBSERVE_H

#define HF_MAX_VCPUS  16384
#define HF_MAX_TAKERS 32768

/* Slot i of a histogram counts times of [2^i, 2^(i+1)) ns; the last one, all that are longer. */
#define HF_NR_SLOTS 32

/* Why a vCPU is off its CPU. */
enum hf_absence {
	HF_RUNS = 0,	  /* it is not */
	HF_PREEMPTED = 1, /* its CPU was taken away */
	HF_LOCK_HALT = 2, /* it halted in a lock's queue: a PV spinlock */
	HF_SLEEPS = 3,	  /* it halted or waits for its VMM; noted for recordings only */
	HF_YIELDED = 4,	  /* it gave its CPU to the candidate of a directed yield */
};

struct hf_vcpu_stats {
	u64 kvm;
	u32 vcpu_idx;
	u32 tid;

	/* Involuntary switches, by class when the vCPU was taken off. */
	u64 nr[HF_NR_CLASSES];
	u64 away_ns[HF_NR_CLASSES]; /* time until it ran again */
	u64 nr_long[HF_NR_CLASSES]; /* absences longer than long_absence_ns */
	u64 away_hist[HF_NR_CLASSES][HF_NR_SLOTS];

	/* Absences of Holders, Irqs and Heads, and siblings found queued when they ended. */
	u64 nr_resumed;
	u64 nr_siblings_waiting;

	u64 nr_lock_halts;
	u64 lock_halt_ns;
	u64 nr_pause_exits;
	u64 nr_kicks;		 /* KVM_HC_KICK_CPU */
	u64 nr_yield_hypercalls; /* KVM_HC_SCHED_YIELD */
	u64 nr_yields_tried;	 /* directed yields that KVM asked the scheduler for */
	u64 nr_yields_done;
	u64 yield_ns; /* time until it ran again after these yields */

	/* Samples of the clock while the vCPU ran. */
	u64 samples[HF_NR_CLASSES];
	u64 samples_holder_off; /* queued, and a Holder or Irq of the VM is preempted */
	u64 samples_head_off;	/* queued, no such Holder, and a Head of the VM is preempted */

	/* State between hooks. */
	u64 started; /* start of the thread: an earlier one may have had its number */
	u64 out_at;
	u32 absence; /* enum hf_absence */
	u32 out_class;
	u32 is_noted; /* in nr_off of its VM */
	u32 resumed;  /* back from a protected absence: its siblings are to be sampled */
	u32 epoch;    /* of the addresses in the map `siblings` */
	u32 yielding; /* in yield_to() */
	u32 taker;    /* if it is preempted: struct hf_taker_key */
};

/* Processes that are none, in the place of a process. */
#define HF_TAKER_NONE	0	   /* its CPU idles: the vCPU is throttled, or moves */
#define HF_TAKER_KERNEL 0xffffffff /* a thread of the kernel */

/* A process that got the CPU of vCPUs of a VM that it preempted. */
struct hf_taker_key {
	u64 kvm;
	u32 tgid;
	u32 zero;
};

struct hf_taken {
	u64 nr;
	u64 away_ns;
	u64 protected_ns; /* of Holders, Irqs and Heads */
};

/* State that siblings share. Keyed by struct kvm. */
struct hf_vm_state {
	u64 nr_off[HF_NR_CLASSES]; /* preempted vCPUs that siblings may wait for */
	u64 nr_vcpus;		   /* highest index of a vCPU, plus one */
};

struct hf_vcpu_key {
	u64 kvm;
	u64 vcpu_idx;
};

/* At most this many siblings are sampled when a Holder comes back. */
#define HF_MAX_SIBLINGS 64

enum hf_note_kind {
	HF_NOTE_ABSENCE = 1, /* [begin_ns, t_ns): off the CPU; what is enum hf_absence */
	HF_NOTE_WAITING = 2, /* at the end of such an absence these siblings were queued */
	HF_NOTE_SAMPLE = 3,  /* a sample of the clock; what: bit 0 a Holder is off, bit 1 a Head */
};

/* For recordings: an event of a vCPU. */
struct hf_note {
	u64 t_ns;
	u64 begin_ns;
	u64 kvm;
	u64 siblings; /* bit i: vCPU i */
	u32 tid;
	u32 vcpu_idx;
	u32 kind; /* enum hf_note_kind */
	u32 what;
	u32 class;
	u32 cpu;
};

#endif /* __HOLDFAST_OBSERVE_H */
