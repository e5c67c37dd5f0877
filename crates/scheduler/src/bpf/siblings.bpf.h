/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the vCPUs of a VM should know of one another: who is preempted, and who of those
 * makes others wait. A vCPU is listed when it is preempted and leaves the list when it
 * runs, by atomic operations on words of its VM.
 */
#ifndef __SCX_HOLDFAST_SIBLINGS_BPF_H
#define __SCX_HOLDFAST_SIBLINGS_BPF_H

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, HF_MAX_VMS);
	__type(key, u64);
	__type(value, struct hf_vm_ctx);
} vm_ctxs SEC(".maps");

/* What a new VM begins with: zeroes, and no lock in them that must not be copied. */
struct fresh_vm {
	u64 words[sizeof(struct hf_vm_ctx) / sizeof(u64)];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fresh_vm);
} fresh_vms SEC(".maps");

/*
 * How far apart two places of a guest's memory are at most, if it has less than that. Nothing else is within a
 * terabyte of where its direct map begins (arch/x86/mm/kaslr.c).
 */
#define HF_GUEST_MEMORY_SPAN (512LL << 30)

/*
 * Has a vCPU a call pending that its caller spins on? Only the newest entry of the queue
 * is looked at. One that lies outside of the guest's direct map is on the stack of its caller,
 * which waits for it. In another slot than per-CPU areas, above 4 GiB or below, are wakeups.
 */
static bool has_call_pending(u64 call_queue_hva, u64 direct_map_hva, u64 slot_hva, u64 slot_len)
{
	struct hf_call call;
	u64 entry, hva;
	s64 offset;

	if (!call_queue_hva || bpf_probe_read_user(&entry, sizeof(entry), (void *)call_queue_hva) ||
	    !entry)
		return false;
	hva = entry + direct_map_hva;
	offset = hva - slot_hva;
	if (offset >= HF_GUEST_MEMORY_SPAN || offset <= -HF_GUEST_MEMORY_SPAN)
		return true;
	/* None that the guest made ends beyond its memory. */
	if (offset < 0 || slot_len < sizeof(call) || (u64)offset > slot_len - sizeof(call))
		return false;
	if (bpf_probe_read_user(&call, sizeof(call), (void *)hva))
		return false;
	return (call.flags & HF_CALL_TYPE_MASK) == HF_CALL_SYNC;
}

/*
 * What a vCPU whose thread is current should be taken for at the end of its turn: one that
 * a sibling spins for, because an interrupt is on its way to it, is as good as serving that.
 */
static enum hf_class end_class(const struct hf_vcpu *v, enum hf_class class)
{
	if (class == HF_PREEMPTIBLE &&
	    has_call_pending(v->call_queue_hva, v->direct_map_hva, v->slot_hva, v->slot_len))
		return HF_IRQ;
	return class;
}

/* How many preempted siblings are looked at in one go. */
#define SIBLING_SCAN 8

/* The VM of a vCPU; NULL if there is none, or no room for one more. */
static struct hf_vm_ctx *vm_ctx_of(const struct hf_vcpu *v)
{
	struct hf_vm_ctx *vm;
	struct fresh_vm *fresh;
	u32 key = 0;
	u64 kvm;

	/* Of a vCPU that is new, and was not read from KVM yet, nothing is known. */
	if (!v || !v->kvm)
		return NULL;
	kvm = v->kvm;
	vm = bpf_map_lookup_elem(&vm_ctxs, &kvm);
	if (vm)
		return vm;
	fresh = bpf_map_lookup_elem(&fresh_vms, &key);
	if (!fresh)
		return NULL;
	bpf_map_update_elem(&vm_ctxs, &kvm, fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&vm_ctxs, &kvm);
}

/* Counts for the host, and for the VM if there is one. */
static void vm_stat_add(struct hf_vm_ctx *vm, u32 idx, u64 n)
{
	u64 *count;

	stat_add(idx, n);
	if (vm && (count = MEMBER_VPTR(vm->counts, [idx])))
		__sync_fetch_and_add(count, n);
}

/* Is a vCPU of it preempted that others may be waiting for? */
static bool has_blockers(const struct hf_vm_ctx *vm)
{
	return vm && READ_ONCE(vm->preempted.waiting) &
			     (READ_ONCE(vm->preempted.holders) | READ_ONCE(vm->preempted.heads) |
			      READ_ONCE(vm->preempted.queued));
}

static u32 slot_of(const struct hf_vcpu *v)
{
	return v->vcpu_idx % HF_VM_SLOTS;
}

/* Nothing is known any more of why others may wait for whoever is in these slots. */
static void forget_why(struct hf_preempted *list, u64 slots)
{
	__sync_fetch_and_and(&list->holders, ~slots);
	__sync_fetch_and_and(&list->heads, ~slots);
	__sync_fetch_and_and(&list->queued, ~slots);
}

static void list_preempted(struct hf_preempted *list, const struct hf_vcpu *v, enum hf_class class)
{
	u32 slot = slot_of(v);
	struct hf_waiting *w = MEMBER_VPTR(list->slots, [slot]);

	if (!w)
		return;
	/* Of another vCPU in this slot, or of this one by who looked while it came to run. */
	forget_why(list, 1ULL << slot);
	w->tid = v->tid;
	w->qnode_hva = v->qnode_hva;
	w->call_queue_hva = v->call_queue_hva;
	w->direct_map_hva = v->direct_map_hva;
	w->slot_hva = v->slot_hva;
	w->slot_len = v->slot_len;
	if (class == HF_HEAD)
		__sync_fetch_and_or(&list->heads, 1ULL << slot);
	else if (hf_is_protected(class))
		__sync_fetch_and_or(&list->holders, 1ULL << slot);
	else if (class == HF_WAITER)
		__sync_fetch_and_or(&list->queued, 1ULL << slot);
	__sync_fetch_and_or(&list->waiting, 1ULL << slot);
}

static void unlist_preempted(struct hf_preempted *list, const struct hf_vcpu *v)
{
	u32 slot = slot_of(v);
	struct hf_waiting *w = MEMBER_VPTR(list->slots, [slot]);

	if (!w || w->tid != v->tid)
		return;
	__sync_fetch_and_and(&list->waiting, ~(1ULL << slot));
	forget_why(list, 1ULL << slot);
}

/*
 * Takes one slot out of @slots, the first from @from on, round and round. Few are looked at in one go:
 * all come to be if every go begins elsewhere.
 */
static u32 take_slot(u64 *slots, u32 from)
{
	u64 rotated = *slots >> from % HF_VM_SLOTS | *slots << (HF_VM_SLOTS - from) % HF_VM_SLOTS;
	u32 slot = (ctzll(rotated) + from) % HF_VM_SLOTS;

	*slots &= ~(1ULL << slot);
	return slot;
}

/* Does thread @tid wait in one of our queues, from which @cpu may take it? */
static bool can_take(u32 tid, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *tctx;
	bool can;

	if (!p)
		return false;
	tctx = task_ctx_of(p);
	/* Timers count as part of init(), which may sleep. */
	bpf_rcu_read_lock();
	can = tctx && tctx->queued && may_run_on(p, cpu);
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return can;
}

/*
 * Has a vCPU that was preempted in a queue been handed its lock since? Then it is the
 * holder for whom the others wait. Returns its thread.
 */
static u32 find_owner(struct hf_preempted *list, u32 from)
{
	u64 queued = list->queued;
	int i;

	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_qnode qnode;
		struct hf_waiting *w;
		u32 slot;

		if (!queued)
			break;
		slot = take_slot(&queued, from);
		w = MEMBER_VPTR(list->slots, [slot]);
		if (!w || !w->qnode_hva ||
		    bpf_probe_read_user(&qnode, sizeof(qnode), (void *)w->qnode_hva))
			continue;
		if (qnode.count && qnode.locked) {
			__sync_fetch_and_or(&list->heads, 1ULL << (slot % HF_VM_SLOTS));
			return w->tid;
		}
	}
	return 0;
}

/*
 * A preempted vCPU that others wait for in a lock's queue, one that is @next if there is no
 * other; 0: none known. One that @cpu can take comes before those that it cannot.
 */
static u32 find_holder(struct hf_preempted *list, u32 from, s32 cpu, bool *next)
{
	u64 holders = list->holders & list->waiting;
	u32 tid = 0;
	int i;

	*next = !holders;
	if (!holders)
		holders = list->heads & list->waiting;
	if (!holders)
		return list->queued ? find_owner(list, from) : 0;
	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_waiting *w;

		if (!holders)
			break;
		w = MEMBER_VPTR(list->slots, [take_slot(&holders, from)]);
		if (!w)
			continue;
		tid = w->tid;
		if (can_take(tid, cpu))
			break;
	}
	return tid;
}

/* A preempted vCPU with a call pending that somebody spins on; 0: none known. */
static u32 find_call_pending(struct hf_preempted *list, u32 from)
{
	u64 waiting = list->waiting;
	int i;

	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_waiting *w;

		if (!waiting)
			break;
		w = MEMBER_VPTR(list->slots, [take_slot(&waiting, from)]);
		if (w && has_call_pending(w->call_queue_hva, w->direct_map_hva, w->slot_hva,
					  w->slot_len))
			return w->tid;
	}
	return 0;
}

/* What there is to know of the preempted siblings of a vCPU whose thread is current. */
struct blockers {
	struct hf_siblings siblings;
	u32 holder_tid;
	u32 call_pending_tid;
};

/*
 * Finds who of the preempted vCPUs in @list one of @class may be waiting for. Not static, as
 * nothing is that has a loop and is called from more than one place: the verifier goes through it
 * once, by itself, and not again for each state that a caller can be in.
 */
__noinline int find_blockers(struct hf_preempted *list __arg_nonnull, u32 class,
			     struct blockers *s __arg_nonnull)
{
	s32 cpu = bpf_get_smp_processor_id();
	u32 from = bpf_get_prandom_u32();

	__builtin_memset(s, 0, sizeof(*s));
	if (class == HF_UNKNOWN || !list->waiting)
		return 0;
	/* Who is Free waits for no call. */
	if (class != HF_PREEMPTIBLE)
		s->call_pending_tid = find_call_pending(list, from);
	s->holder_tid = find_holder(list, from, cpu, &s->siblings.next);
	s->siblings.call_pending = s->call_pending_tid;
	s->siblings.holder = s->holder_tid;
	s->siblings.queued = list->queued;
	return 0;
}

/* How long it counts that one waiter told: where there is contention, many do in this time. */
#define PAUSE_EXITS_SEEN_NS (1000ULL * 1000 * 1000)

/*
 * A vCPU has left its guest because it spun. One in the queue of a paravirtual lock does so
 * again and again, and halts in the end: who is next in the queue need not be looked for.
 * Waiters for native locks only spin, and where theirs is stuck exits alone do not tell.
 * CPU 0 looks the same in both.
 */
static void note_pause_exit(struct hf_vm_ctx *vm, const struct hf_vcpu *v, enum hf_class class,
			    u64 now)
{
	u32 cpu = 0;

	if (!hf_is_queued(class) || !v->qnode_hva ||
	    bpf_probe_read_user(&cpu, sizeof(cpu), (void *)(v->qnode_hva + HF_PV_NODE_CPU)))
		return;
	if (cpu)
		vm->pause_exit_at = now;
}

static bool pause_exits_seen(const struct hf_vm_ctx *vm, u64 now)
{
	return time_delta(now, vm->pause_exit_at) < PAUSE_EXITS_SEEN_NS;
}

static u32 target_tid(const struct blockers *s, enum hf_target target, u32 candidate_tid)
{
	switch (target) {
	case HF_TO_HOLDER:
		return s->holder_tid;
	case HF_TO_CALL_PENDING:
		return s->call_pending_tid;
	case HF_TO_CANDIDATE:
		return candidate_tid;
	default:
		return 0;
	}
}

#endif /* __SCX_HOLDFAST_SIBLINGS_BPF_H */
