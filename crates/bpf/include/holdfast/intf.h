/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Types that BPF programs share with one another and with user space. Each type
 * is defined here and nowhere else. The includer provides u32, u64 and s64.
 */
#ifndef __HOLDFAST_INTF_H
#define __HOLDFAST_INTF_H

#define HF_MAX_VMS 4096

/*
 * A vCPU thread, in task storage: its identity, and where the words lie that tell
 * its class: in the VMM's address space, but for @cpl and @tpr. Written by discovery alone.
 */
struct hf_vcpu {
	u64 kvm;      /* address of struct kvm: the identity of a VM while it lives */
	u64 vcpu;     /* that of struct kvm_vcpu; it lives while the thread runs it */
	u64 born;     /* that VM's */
	u32 vcpu_idx; /* 0, 1, ... in the order in which KVM made the VM's vCPUs */
	u32 tid;
	u64 steal_gpa; /* the guest's steal-time record; 0 with steal_hva: none */
	u64 steal_hva;
	u64 slot_gpa; /* the memory slot that the record lies in */
	u64 slot_hva;
	u64 slot_len;
	u32 reported;	/* epoch of the VM in which user space got this state; 0: it did not */
	u32 epoch;	/* of the layout that the addresses below were made with; 0: none */
	u32 count_kind; /* enum hf_count_kind: what the preemption count counts */
	u32 pad;
	u64 preempt_count_hva;
	u64 qnode_hva;	      /* 0: the kernel has none */
	u64 current_task_hva; /* 0: not known, and then the idle task is not told apart */
	u64 idle_task_hva;
	u64 call_queue_hva; /* function calls pending from other CPUs; 0: not known */
	u64 direct_map_hva; /* to be added to an address in the guest kernel's direct map */
	/* Kernel address of the byte that has the mode it left its guest in, as a CPL; 0: none. */
	u64 cpl;
	u64 guest_os_id; /* of Windows; 0: the guest does not say that it is */
	/* Kernel address of its task priority, which tells its class without @epoch; 0: none. */
	u64 tpr;
	u64 spun_at;	 /* its last pause exit, or hypercall that tells of a spin; 0: none */
	u64 spin_gap_ns; /* from the one before to that */
	u64 pause_rip;	 /* where the exit was; 0: it was none */
};

/* A VM, keyed by the address of its struct kvm. Written by discovery alone. */
struct hf_vm {
	u32 tgid;
	u32 epoch; /* changes when knowledge of the guest kernel may be stale */
	u64 born;  /* when: the address may have been another VM's */
	u64 mm;	   /* address space that its memory and its vCPUs are in, as KVM demands */
};

/*
 * Where a guest kernel keeps the words, relative to the steal-time record of the
 * same CPU. Keyed by the address of struct kvm. Written by user space, and valid
 * only while @epoch is the VM's.
 */
struct hf_layout {
	u32 epoch;
	u32 count_kind; /* as that of struct hf_vcpu */
	s64 preempt_count_delta;
	s64 qnodes_delta; /* 0: the kernel has none, as for those below */
	s64 current_task_delta;
	s64 idle_task_delta;
	s64 call_queue_delta;
	u64 direct_map; /* where the guest's kernel maps its physical memory */
};

struct hf_slot {
	u64 gpa;
	u64 hva;
	u64 len;
};

/* Slots smaller than this are ROMs and devices, not memory that a kernel lies in. */
#define HF_SLOT_MIN_LEN (1ULL << 20)
/* QEMU's memory devices keep to as many (MEMORY_DEVICES_SAFE_MAX_MEMSLOTS). */
#define HF_MAX_SLOTS 509

/* A vCPU was found, or its state changed. As long as @nr_slots says. */
struct hf_event {
	u32 tgid;
	u32 epoch;
	struct hf_vcpu vcpu;
	u32 nr_slots;
	u32 pad;
	struct hf_slot slots[HF_MAX_SLOTS]; /* memory of the VM */
};

/* First words of a guest's struct qnode: struct mcs_spinlock, the same on x86 since Linux 3.12. */
struct hf_qnode {
	u64 next;
	u32 locked;
	u32 count;
};

/*
 * The next field in the node of a PV lock (struct pv_node, since Linux 4.1): the number of its
 * CPU. A native lock leaves these bytes zero.
 */
#define HF_PV_NODE_CPU sizeof(struct hf_qnode)

/*
 * First words of an entry of a guest's call_single_queue: struct __call_single_node, since
 * Linux 5.8. Senders wait for one type only; other types are wakeups of tasks.
 */
struct hf_call {
	u64 next;
	u32 flags;
};

#define HF_CALL_TYPE_MASK 0xf0
#define HF_CALL_SYNC	  0x10

#endif /* __HOLDFAST_INTF_H */
