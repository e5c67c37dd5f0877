// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds every vCPU thread of the host and its guest's steal-time record.
 *
 * KVM calls kvm_arch_vcpu_load() in the vCPU's thread each time it is about to
 * enter the guest after having been away, so a vCPU is known as soon as it runs,
 * whatever VMM started it, and what it does to its record (reboot, kexec, CPU
 * hot-plug, memory slots that move) is seen before the guest runs on.
 */
#include <holdfast/types.bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <holdfast/policy.h>
#include <holdfast/kvm.bpf.h>
#include <holdfast/vcpu.bpf.h>

char _license[] SEC("license") = "GPL";

/* VMs by struct kvm, and the layouts that user space found in their guest kernels. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_VMS);
	__type(key, u64);
	__type(value, struct hf_vm);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_VMS);
	__type(key, u64);
	__type(value, struct hf_layout);
} layouts SEC(".maps");

/* The thread that runs a vCPU, by struct kvm_vcpu. */
struct runner {
	u64 reported_at; /* when the vCPU was last reported, by any thread */
	u32 tid;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 17);
	__type(key, u64);
	__type(value, struct runner);
} runners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

/* The buffer of a report, which is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hf_event);
} event_buffer SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;

/* Reports that found the ring full. None is lost: the vCPU reports again when it next runs. */
u64 nr_deferred_events;
/* vCPU threads that could not be tracked, for want of memory or of room in @vms. */
u64 nr_untracked;

/* Has KVM resolved the guest's record? It does on the first use after the MSR is written. */
static bool has_record(struct kvm_vcpu___hf *kv)
{
	u64 msr = kv->arch.st.msr_val;

	return msr & KVM_MSR_ENABLED && kv->arch.st.cache.gpa == (msr & KVM_STEAL_VALID_BITS) &&
	       kv->arch.st.cache.memslot;
}

/*
 * Where the record is now. False if KVM has not resolved it (yet). @kv is an argument of
 * the function that is traced: its words are loaded directly, without a helper for each.
 */
static bool read_record(struct kvm_vcpu___hf *kv, struct hf_vcpu *rec)
{
	struct kvm_memory_slot___hf *slot = kv->arch.st.cache.memslot;

	if (!has_record(kv))
		return false;

	rec->steal_gpa = kv->arch.st.cache.gpa;
	rec->steal_hva = kv->arch.st.cache.hva;
	rec->slot_gpa = slot->base_gfn << HF_PAGE_SHIFT;
	rec->slot_hva = slot->userspace_addr;
	rec->slot_len = (u64)slot->npages << HF_PAGE_SHIFT;
	return rec->steal_hva >= rec->slot_hva && rec->steal_hva - rec->slot_hva < rec->slot_len;
}

/*
 * Has the VM's memory changed since KVM resolved the guest's record? KVM does so again before it
 * next enters the guest. Until then anything may lie where the slot was.
 */
static bool is_stale(struct kvm_vcpu___hf *kv)
{
	return has_record(kv) &&
	       kv->arch.st.cache.generation != BPF_CORE_READ(kv, kvm, memslots[0], generation);
}

/*
 * The VM of a vCPU. It has the process that ran its first vCPU: processes that share an address
 * space may run vCPUs of one VM.
 */
static struct hf_vm *find_vm(struct kvm___hf *kv, u32 tgid)
{
	struct hf_vm *vm, fresh = { .tgid = tgid, .mm = (u64)BPF_CORE_READ(kv, mm) };
	u64 kvm = (u64)kv;

	vm = bpf_map_lookup_elem(&vms, &kvm);
	if (vm && vm->mm == fresh.mm)
		return vm;
	/* Another VM may have had this address, and a late layout may be of that one. */
	fresh.born = bpf_ktime_get_ns();
	fresh.epoch = (u32)fresh.born | 1;
	/* Its vCPUs come here at the same time: the first of them makes the VM. */
	bpf_map_update_elem(&vms, &kvm, &fresh, vm ? BPF_EXIST : BPF_NOEXIST);
	return bpf_map_lookup_elem(&vms, &kvm);
}

/* Slots whose ids fall into one bucket: ids are small and dense, so it is rarely more than one. */
#define ID_CHAIN_MAX 8

struct slot_walk {
	struct kvm_memslots___hf *slots;
	struct hf_event *e;
	u32 node_idx;
	u32 nr;
};

static long read_bucket(u32 bucket, struct slot_walk *w)
{
	struct kvm_memslots___hf *slots = w->slots;
	struct hlist_node___hf *node = NULL;
	int depth;

	if (bucket >= KVM_ID_HASH_SIZE)
		return 1;
	bpf_core_read(&node, sizeof(node), &slots->id_hash[bucket].first);
	for (depth = 0; depth < ID_CHAIN_MAX && node; depth++) {
		struct kvm_memory_slot___hf *slot;
		struct hf_slot *out;
		u32 nr = w->nr;
		u64 len;

		slot = (void *)node - bpf_core_field_offset(struct kvm_memory_slot___hf, id_node) -
		       w->node_idx * bpf_core_type_size(struct hlist_node___hf);
		node = BPF_CORE_READ(node, next);
		len = BPF_CORE_READ(slot, npages) << HF_PAGE_SHIFT;
		if (len < HF_SLOT_MIN_LEN)
			continue;
		/* The copy that is checked has to be the one that is used. */
		barrier_var(nr);
		if (nr >= HF_MAX_SLOTS)
			return 1;
		out = &w->e->slots[nr];
		out->gpa = BPF_CORE_READ(slot, base_gfn) << HF_PAGE_SHIFT;
		out->hva = BPF_CORE_READ(slot, userspace_addr);
		out->len = len;
		w->nr = nr + 1;
	}
	return 0;
}

/* Reads the VM's memory slots. Best effort: a slot that moves meanwhile is not followed. */
static void read_slots(struct kvm_vcpu___hf *kv, struct hf_event *e)
{
	struct kvm_memslots___hf *slots = BPF_CORE_READ(kv, kvm, memslots[0]);
	struct slot_walk w = { .slots = slots, .e = e };

	e->nr_slots = 0;
	if (!slots || !bpf_core_field_exists(slots->node_idx))
		return;
	w.node_idx = BPF_CORE_READ(slots, node_idx) & 1;
	bpf_loop(KVM_ID_HASH_SIZE, read_bucket, &w, 0);
	e->nr_slots = w.nr;
}

#define REPORT_INTERVAL_NS 10000000

/* Not at every load: a guest that moves its record to and fro must not keep user space busy. */
static void report(struct kvm_vcpu___hf *kv, struct hf_vcpu *v, const struct hf_vm *vm)
{
	u64 now = bpf_ktime_get_ns(), vcpu = (u64)kv;
	u32 key = 0, nr_slots;
	struct hf_event *e = bpf_map_lookup_elem(&event_buffer, &key);
	struct runner *r = bpf_map_lookup_elem(&runners, &vcpu);

	if (!e || !r || now - r->reported_at < REPORT_INTERVAL_NS)
		return;
	r->reported_at = now;
	e->tgid = vm->tgid;
	e->epoch = vm->epoch;
	e->vcpu = *v;
	read_slots(kv, e);
	nr_slots = e->nr_slots;
	/* The copy that is checked has to be the one that is used. */
	barrier_var(nr_slots);
	if (nr_slots > HF_MAX_SLOTS)
		return;
	if (bpf_ringbuf_output(&events, e,
			       offsetof(struct hf_event, slots) + nr_slots * sizeof(e->slots[0]),
			       0)) {
		__sync_fetch_and_add(&nr_deferred_events, 1);
		return;
	}
	v->reported = e->epoch;
}

static bool in_slot(const struct hf_vcpu *v, u64 hva, u64 len)
{
	u64 offset = hva - v->slot_hva;

	return offset < v->slot_len && v->slot_len - offset >= len;
}

/* Computes the addresses from the layout, if there is one for this epoch of the guest. */
static void apply_layout(struct hf_vcpu *v, struct hf_vm *vm)
{
	struct hf_layout *l = bpf_map_lookup_elem(&layouts, &v->kvm);

	v->epoch = 0;
	if (!l || !v->steal_hva || l->epoch != vm->epoch)
		return;
	v->preempt_count_hva = v->steal_hva + l->preempt_count_delta;
	v->count_kind = l->count_kind;
	v->qnode_hva = l->qnodes_delta ? v->steal_hva + l->qnodes_delta : 0;
	v->current_task_hva = 0;
	if (l->current_task_delta && l->idle_task_delta) {
		v->current_task_hva = v->steal_hva + l->current_task_delta;
		v->idle_task_hva = v->steal_hva + l->idle_task_delta;
		if (!in_slot(v, v->current_task_hva, sizeof(u64)) ||
		    !in_slot(v, v->idle_task_hva, sizeof(u64)))
			return;
	}
	v->call_queue_hva = 0;
	if (l->call_queue_delta && l->direct_map) {
		v->call_queue_hva = v->steal_hva + l->call_queue_delta;
		v->direct_map_hva = v->slot_hva - v->slot_gpa - l->direct_map;
		if (!in_slot(v, v->call_queue_hva, sizeof(u64)))
			return;
	}
	if (in_slot(v, v->preempt_count_hva, sizeof(u32)) &&
	    (!v->qnode_hva || in_slot(v, v->qnode_hva, HF_PV_NODE_CPU + sizeof(u32))))
		v->epoch = l->epoch;
}

struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
void bpf_task_release(struct task_struct *p) __ksym __weak;

/* The thread runs this vCPU no longer. */
static void forget_runner(struct kvm_vcpu___hf *kv, u32 tid)
{
	struct task_struct *p;
	struct hf_vcpu *v;

	/* Older ones lack it, or take no program that may do without. */
	if (LINUX_KERNEL_VERSION < KERNEL_VERSION(6, 4, 0))
		return;
	p = bpf_task_from_pid(tid);
	if (!p)
		return;
	v = bpf_task_storage_get(&vcpus, p, NULL, 0);
	if (v && v->vcpu == (u64)kv)
		bpf_task_storage_delete(&vcpus, p);
	bpf_task_release(p);
}

/* A vCPU is run by a thread that did not run it before. False if there is no room for one more. */
static bool note_runner(struct kvm_vcpu___hf *kv, u32 tid)
{
	struct runner fresh = { .tid = tid };
	u64 key = (u64)kv;
	struct runner *r = bpf_map_lookup_elem(&runners, &key);

	if (!r)
		return !bpf_map_update_elem(&runners, &key, &fresh, BPF_NOEXIST);
	if (r->tid != tid)
		forget_runner(kv, r->tid);
	r->tid = tid;
	return true;
}

/*
 * Does the guest say that it is Windows, and does KVM have its task priority in memory? Not where
 * the VMM emulates the APIC, and not if the guest is protected from the host.
 */
static void note_windows(struct kvm_vcpu___hf *kv, struct hf_vcpu *v)
{
	struct kvm_lapic___hf *apic;
	u64 id = 0, tpr = 0, regs;

	if (bpf_core_field_exists(struct kvm_arch___hf, hyperv.hv_guest_os_id))
		id = BPF_CORE_READ(kv, kvm, arch.hyperv.hv_guest_os_id);
	if (!hf_is_windows(id))
		id = 0;
	/* Read as of any address: verifiers up to that of v6.12 refuse to follow the pointer. */
	apic = id ? BPF_CORE_READ(kv, arch.apic) : NULL;
	if (apic && bpf_core_field_exists(kv->arch.guest_state_protected) &&
	    BPF_CORE_READ(kv, arch.guest_state_protected))
		apic = NULL;
	if (apic && bpf_core_field_exists(apic->guest_apic_protected) &&
	    BPF_CORE_READ(apic, guest_apic_protected))
		apic = NULL;
	regs = apic ? (u64)BPF_CORE_READ(apic, regs) : 0;
	if (regs)
		tpr = regs + APIC_TASKPRI;
	if (v->guest_os_id != id || v->tpr != tpr)
		v->reported = 0;
	v->guest_os_id = id;
	v->tpr = tpr;
	/* Of a Linux kernel that the VM ran before. */
	if (tpr)
		v->qnode_hva = v->call_queue_hva = 0;
}

/* Where the mode of the guest is in memory: AMD's CPUs keep it in the VMCB. */
static void note_mode(struct kvm_vcpu___hf *kv, struct hf_vcpu *v)
{
	struct vcpu_svm___hf *svm;
	struct vmcb___hf *vmcb;

	v->cpl = 0;
	if (v->count_kind != HF_COUNT_INTERRUPTS || !bpf_core_type_exists(struct vcpu_svm___hf))
		return;
	svm = (void *)kv - bpf_core_field_offset(struct vcpu_svm___hf, vcpu);
	vmcb = BPF_CORE_READ(svm, vmcb01.ptr);
	if (vmcb)
		v->cpl = (u64)vmcb + bpf_core_field_offset(struct vmcb___hf, save.cpl);
}

SEC("fentry/kvm_arch_vcpu_load")
int BPF_PROG(vcpu_load, struct kvm_vcpu___hf *kv, int cpu)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct hf_vcpu *v, rec = {};
	struct hf_vm *vm;
	bool changed;

	/* A VMM may load a vCPU in another thread, to set it up; only the one that runs it counts. */
	if (bpf_core_field_exists(kv->wants_to_run) && !kv->wants_to_run)
		return 0;

	/*
	 * Before v6.11 KVM loads the vCPUs of a VM that is being destroyed. The field lies further
	 * into struct kvm (39 KiB in v6.1) than the offset of a load instruction reaches.
	 */
	if (!BPF_CORE_READ(kv, kvm, users_count.refs.counter))
		return 0;

	v = bpf_task_storage_get(&vcpus, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	rec.kvm = (u64)kv->kvm;
	vm = find_vm(kv->kvm, p->tgid);
	if (!v || !vm) {
		__sync_fetch_and_add(&nr_untracked, 1);
		return 0;
	}

	/* KVM may have put another VM's where one was. */
	if (v->vcpu != (u64)kv || v->born != vm->born) {
		v->guest_os_id = v->tpr = v->spun_at = 0;
		v->vcpu = note_runner(kv, p->pid) ? (u64)kv : 0;
		if (!v->vcpu)
			__sync_fetch_and_add(&nr_untracked, 1);
	}
	if (!read_record(kv, &rec))
		rec.steal_gpa = rec.steal_hva = rec.slot_gpa = rec.slot_hva = rec.slot_len = 0;

	/* Before v6.11 KVM loads a vCPU that has no index yet. */
	changed = v->kvm != rec.kvm || v->born != vm->born || v->vcpu_idx != kv->vcpu_idx ||
		  v->steal_gpa != rec.steal_gpa || v->steal_hva != rec.steal_hva ||
		  v->slot_hva != rec.slot_hva || v->slot_len != rec.slot_len;
	if (changed && is_stale(kv)) {
		/* The next load will tell. Addresses of another vCPU or record are void. */
		if (v->kvm != rec.kvm || v->born != vm->born ||
		    v->steal_gpa != kv->arch.st.cache.gpa)
			v->epoch = 0;
		return 0;
	}
	if (changed) {
		/*
		 * A record that goes away or moves means a reset, a kexec or another
		 * kernel: nothing learnt of this guest holds then. A first record
		 * is a vCPU that came up.
		 */
		if (v->kvm == rec.kvm && v->born == vm->born && v->steal_hva)
			__sync_fetch_and_add(&vm->epoch, 1);
		v->kvm = rec.kvm;
		v->born = vm->born;
		v->vcpu_idx = kv->vcpu_idx;
		v->tid = p->pid;
		v->steal_gpa = rec.steal_gpa;
		v->steal_hva = rec.steal_hva;
		v->slot_gpa = rec.slot_gpa;
		v->slot_hva = rec.slot_hva;
		v->slot_len = rec.slot_len;
		v->reported = 0;
		v->epoch = 0;
	}

	if (!v->epoch || v->epoch != vm->epoch) {
		apply_layout(v, vm);
		note_mode(kv, v);
	}
	if (!v->epoch)
		note_windows(kv, v);
	/* User space forgets reports from before another vCPU's record went or moved. */
	if (v->reported != vm->epoch)
		report(kv, v, vm);
	return 0;
}

/* Of the Hypervisor Top-Level Functional Specification; the lower half of rcx of a hypercall. */
#define HVCALL_NOTIFY_LONG_SPIN_WAIT 8

/* A vCPU spins: it has a pause exit, or its guest says so by a hypercall of Hyper-V. */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(vcpu_spins, struct kvm_vcpu___hf *kv)
{
	struct hf_vcpu *v;
	u64 now;

	v = bpf_task_storage_get(&vcpus, bpf_get_current_task_btf(), NULL, 0);
	if (!v || !v->tpr || v->vcpu != (u64)kv)
		return 0;
	now = bpf_ktime_get_ns();
	v->spin_gap_ns = now - v->spun_at;
	v->spun_at = now;
	v->pause_rip = 0;
	if ((u16)BPF_CORE_READ(kv, arch.regs[VCPU_REGS_RCX]) != HVCALL_NOTIFY_LONG_SPIN_WAIT)
		v->pause_rip = hf_read_rip(v->vcpu);
	return 0;
}

/* A vCPU goes with its VM, or if it could not be made; the thread that ran it may go on without. */
SEC("fentry/kvm_arch_vcpu_destroy")
int BPF_PROG(vcpu_destroyed, struct kvm_vcpu___hf *kv)
{
	u64 key = (u64)kv;
	struct runner *r = bpf_map_lookup_elem(&runners, &key);

	if (r)
		forget_runner(kv, r->tid);
	bpf_map_delete_elem(&runners, &key);
	return 0;
}

/* The thread goes on as another program, whose memory must not be read. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *p)
{
	bpf_task_storage_delete(&vcpus, p);
	return 0;
}

/* A process may outlive its VMs, and make others in their place. */
SEC("fentry/kvm_arch_destroy_vm")
int BPF_PROG(vm_destroyed, struct kvm___hf *kvm)
{
	u64 key = (u64)kvm;

	bpf_map_delete_elem(&vms, &key);
	bpf_map_delete_elem(&layouts, &key);
	return 0;
}
