/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The map of vCPUs that discovery fills, and the class of a running vCPU. The includer provides
 * the kernel's types, bpf_helpers.h and bpf_core_read.h.
 */
#ifndef __HOLDFAST_VCPU_BPF_H
#define __HOLDFAST_VCPU_BPF_H

#include <holdfast/intf.h>
#include <holdfast/kvm.bpf.h>
#include <holdfast/policy.h>

/* Every thread that runs a vCPU has an entry; the kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct hf_vcpu);
} vcpus SEC(".maps");

/* Does a vCPU whose guest is a hypervisor run a nested guest (L2)? */
static __always_inline bool hf_in_nested_guest(const struct hf_vcpu *v)
{
	const struct kvm_vcpu___hf *kv = (const void *)v->vcpu;

	return kv && bpf_core_field_exists(kv->stat.guest_mode) &&
	       BPF_CORE_READ(kv, stat.guest_mode);
}

/*
 * Where a vCPU is in its guest, which is not running at the moment; 0: KVM does not know. It always
 * does on AMD. On Intel it asks the CPU only if it needs to.
 */
static __always_inline u64 hf_read_rip(u64 vcpu)
{
	const struct kvm_vcpu___hf *kv = (const void *)vcpu;
	const struct kvm_vcpu_arch___u32 *old = (const void *)&kv->arch;

	if (bpf_core_field_exists(kv->arch.rip)) {
		if (BPF_CORE_READ(kv, arch.regs_avail[0]) & (1 << VCPU_REGS_RIP))
			return BPF_CORE_READ(kv, arch.rip);
	} else if (BPF_CORE_READ(old, regs_avail) & (1 << VCPU_REGS_RIP)) {
		return BPF_CORE_READ(kv, arch.regs[VCPU_REGS_RIP]);
	}
	return 0;
}

/* Does a vCPU of a Windows guest seem to spin? The place of its last pause exit tells best. */
static __always_inline bool hf_seems_to_spin(const struct hf_vcpu *v)
{
	u64 rip;

	if (!v->spun_at)
		return false;
	rip = v->pause_rip ? hf_read_rip(v->vcpu) : 0;
	if (rip)
		return hf_is_in_spin(rip, v->pause_rip);
	return hf_still_spins(bpf_ktime_get_ns() - v->spun_at, v->spin_gap_ns);
}

/*
 * Class of a vCPU of a Windows guest, whose thread is current or off the CPU: KVM has the task
 * priority in the APIC page since the last exit. While L2 runs, the page is that of L1.
 */
static __always_inline enum hf_class hf_read_irql(const struct hf_vcpu *v)
{
	u32 tpr;

	if (bpf_probe_read_kernel(&tpr, sizeof(tpr), (void *)v->tpr) || hf_in_nested_guest(v))
		return HF_UNKNOWN;
	if (tpr >> HF_IRQL_SHIFT < HF_DISPATCH_LEVEL)
		return HF_PREEMPTIBLE;
	return hf_classify_irql(tpr, hf_seems_to_spin(v));
}

/* The mode that a vCPU left its guest in; of one that runs, that of its last exit. */
static __always_inline enum hf_mode hf_read_mode(const struct hf_vcpu *v)
{
	u8 cpl;

	if (!v->cpl || bpf_probe_read_kernel(&cpl, sizeof(cpl), (void *)v->cpl))
		return HF_MODE_UNKNOWN;
	return cpl == 3 ? HF_MODE_USER : HF_MODE_KERNEL;
}

/*
 * Class of a vCPU whose thread, or a sibling's, is current: the addresses are of the VMM's memory.
 * The reads do not fault, so a page that is not there, or a thread of another process, gives
 * HF_UNKNOWN. Encrypted memory may well be read: that of SEV and SEV-ES gives ciphertext. But
 * discovery finds no BTF of a kernel in it, so that a vCPU of such a VM never has an epoch.
 *
 * The common answer, HF_PREEMPTIBLE, costs one read of four bytes where preemption is counted.
 */
static __always_inline enum hf_class hf_read_class(const struct hf_vcpu *v)
{
	struct hf_guest_facts facts = {};
	struct hf_qnode qnode;
	u64 task, idle_task;

	if (!v->epoch)
		return v->tpr ? hf_read_irql(v) : HF_UNKNOWN;
	if (bpf_probe_read_user(&facts.preempt_count, sizeof(facts.preempt_count),
				(void *)v->preempt_count_hva))
		return HF_UNKNOWN;
	facts.count_kind = v->count_kind;
	facts.preempt_count = hf_preempt_count(facts.preempt_count, v->count_kind == HF_COUNT_WIDE);
	if (v->count_kind == HF_COUNT_INTERRUPTS)
		facts.mode = hf_read_mode(v);
	else if (!(facts.preempt_count & HF_PREEMPT_DEPTH_MASK))
		return hf_classify(&facts);
	/* KVM enters a guest with preemption off, which is no lock. */
	if (hf_in_nested_guest(v))
		return HF_PREEMPTIBLE;
	if (v->qnode_hva) {
		if (bpf_probe_read_user(&qnode, sizeof(qnode), (void *)v->qnode_hva))
			return HF_UNKNOWN;
		facts.queued = qnode.count;
		facts.at_head = qnode.locked;
	}
	if (v->current_task_hva) {
		if (bpf_probe_read_user(&task, sizeof(task), (void *)v->current_task_hva) ||
		    bpf_probe_read_user(&idle_task, sizeof(idle_task), (void *)v->idle_task_hva))
			return HF_UNKNOWN;
		facts.idle = task == idle_task;
	}
	return hf_classify(&facts);
}

#endif /* __HOLDFAST_VCPU_BPF_H */
