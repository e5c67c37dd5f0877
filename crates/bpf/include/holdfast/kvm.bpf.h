/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * KVM's structs as far as Holdfast reads them. The suffix makes them CO-RE
 * flavours: the offsets come from the BTF of the running kvm module, whatever
 * version it is. Sources: include/linux/kvm_host.h, include/linux/kvm_types.h,
 * arch/x86/include/asm/kvm_host.h.
 */
#ifndef __HOLDFAST_KVM_BPF_H
#define __HOLDFAST_KVM_BPF_H

#define HF_CORE __attribute__((preserve_access_index))

struct hlist_node___hf {
	struct hlist_node___hf *next;
} HF_CORE;

struct hlist_head___hf {
	struct hlist_node___hf *first;
} HF_CORE;

struct kvm_memory_slot___hf {
	struct hlist_node___hf id_node[2]; /* since v5.17 */
	u64 base_gfn;
	unsigned long npages;
	unsigned long userspace_addr;
} HF_CORE;

struct gfn_to_hva_cache___hf {
	u64 generation;
	u64 gpa;
	unsigned long hva;
	struct kvm_memory_slot___hf *memslot;
} HF_CORE;

struct kvm_lapic___hf {
	void *regs;		   /* the APIC page; that of APICv and AVIC, where they are on */
	bool guest_apic_protected; /* since v6.16 */
} HF_CORE;

struct kvm_vcpu_arch___hf {
	struct kvm_lapic___hf *apic; /* NULL: the VMM emulates it */
	bool guest_state_protected;  /* since v5.11: SEV-ES, TDX */
	struct {
		u64 msr_val;
		struct gfn_to_hva_cache___hf cache;
	} st;
	unsigned long regs[17]; /* up to v7.1 the last is rip */
	unsigned long rip;	/* since v7.2 */
	unsigned long regs_avail[1];
} HF_CORE;

/* Up to v7.1. */
struct kvm_vcpu_arch___u32 {
	u32 regs_avail;
} HF_CORE;

/* Slots by id. Two sets share the slots; node_idx is the index of this set's links. */
#define KVM_ID_HASH_SIZE 128
struct kvm_memslots___hf {
	u64 generation;
	int node_idx; /* since v5.17 */
	struct hlist_head___hf id_hash[KVM_ID_HASH_SIZE];
} HF_CORE;

struct kvm_arch___hf {
	struct {
		u64 hv_guest_os_id; /* since v6.8 only with CONFIG_KVM_HYPERV */
	} hyperv;
} HF_CORE;

struct kvm___hf {
	struct mm_struct *mm;
	struct {
		struct {
			int counter;
		} refs;
	} users_count;
	struct kvm_memslots___hf *memslots[1]; /* [0]: not system management mode */
	struct kvm_arch___hf arch;
} HF_CORE;

struct kvm_vcpu___hf {
	struct kvm___hf *kvm;
	/* Since v5.4, without gaps. vcpu_id is the VMM's choice: QEMU's are APIC ids. */
	int vcpu_idx;
	bool wants_to_run; /* since v6.11 */
	struct {
		bool in_spin_loop;
	} spin_loop;
	struct {
		u64 guest_mode; /* since v5.14 */
	} stat;
	struct kvm_vcpu_arch___hf arch;
} HF_CORE;

/* arch/x86/include/asm/svm.h */
struct vmcb___hf {
	struct {
		u8 cpl;
	} save;
} HF_CORE;

/* arch/x86/kvm/svm/svm.h: of kvm_amd alone. */
struct vcpu_svm___hf {
	struct kvm_vcpu___hf vcpu;
	struct {
		struct vmcb___hf *ptr;
	} vmcb01; /* since v5.13: of the guest itself, whether or not it runs a nested one */
} HF_CORE;

/* include/uapi/linux/kvm_para.h */
#define KVM_HC_KICK_CPU	   5
#define KVM_HC_SCHED_YIELD 11

/* arch/x86/include/uapi/asm/kvm_para.h */
#define KVM_MSR_ENABLED	     1
#define KVM_STEAL_VALID_BITS ((~0ULL) << 6)

/* arch/x86/include/asm/kvm_host.h; the last is a bit in regs_avail, too. */
#define VCPU_REGS_RCX 1
#define VCPU_REGS_RIP 16

/* arch/x86/include/asm/apicdef.h: a place in the APIC page. */
#define APIC_TASKPRI  0x80

#define HF_PAGE_SHIFT 12

#endif /* __HOLDFAST_KVM_BPF_H */
