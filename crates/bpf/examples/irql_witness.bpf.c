// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Compares, where a vCPU leaves its CPU, its class with what its guest says of its CR8: in r15, as
 * the guest of workloads/irql.c does.
 */
#include <holdfast/types.bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <holdfast/vcpu.bpf.h>

char _license[] SEC("license") = "GPL";

/* workloads/irql.h: beside the IRQL while CR8 is written. */
#define IRQL_CHANGES  0x100

#define VCPU_REGS_R15 15
struct kvm_vcpu_arch___regs {
	unsigned long regs[16];
} HF_CORE;

struct kvm_vcpu___regs {
	struct kvm_vcpu_arch___regs arch;
} HF_CORE;

/* By the class that was read: preempted vCPUs, and those of them whose guest says another. */
u64 nr[HF_NR_CLASSES];
u64 nr_wrong[HF_NR_CLASSES];
/* Preempted while they wrote CR8. */
u64 nr_changing;

static bool is_right(enum hf_class class, u64 said)
{
	switch (class) {
	case HF_PREEMPTIBLE:
		return said < HF_DISPATCH_LEVEL;
	case HF_LIKELY_HOLDER:
	case HF_LIKELY_WAITER:
		return said == HF_DISPATCH_LEVEL;
	case HF_LIKELY_IRQ:
		return said > HF_DISPATCH_LEVEL;
	default:
		return false;
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct hf_vcpu *v = bpf_task_storage_get(&vcpus, prev, NULL, 0);
	struct kvm_vcpu___regs *kv;
	enum hf_class class;
	u64 said;

	if (!v || !v->tpr || (!preempt && prev->__state))
		return 0;
	kv = (void *)v->vcpu;
	said = BPF_CORE_READ(kv, arch.regs[VCPU_REGS_R15]);
	if (said & IRQL_CHANGES) {
		__sync_fetch_and_add(&nr_changing, 1);
		return 0;
	}
	class = hf_read_class(v);
	if (class >= HF_NR_CLASSES)
		return 0;
	__sync_fetch_and_add(&nr[class], 1);
	if (!is_right(class, said))
		__sync_fetch_and_add(&nr_wrong[class], 1);
	return 0;
}
