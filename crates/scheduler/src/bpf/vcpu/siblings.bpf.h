/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the vCPUs of a VM know of one another: which are preempted, and which of those are blockers.
 * A vCPU is listed when it is preempted and leaves the list when it runs, by atomic operations on
 * words of its VM.
 *
 * Interface: vm_ctx_of() and vm_stat_add() for a VM; list_stopped(), list_woken() and resumed() for
 * a vCPU that stops and runs; has_blockers(), find_blockers() and target_tid() for a vCPU that
 * waits; end_class() and note_waker() for its class.
 */
#ifndef __SCX_HOLDFAST_SIBLINGS_BPF_H
#define __SCX_HOLDFAST_SIBLINGS_BPF_H

#include "../ctx.bpf.h"
#include "../base/affinity.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, HF_MAX_VMS);
	__type(key, u64);
	__type(value, struct hf_vm_ctx);
} vm_ctxs SEC(".maps");

/* The state of a new VM: zeroes, without the lock, which must not be copied. */
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
 * The most that two places of a guest's memory are apart, for a guest with less memory than that.
 * Nothing else is within a terabyte of the start of its direct map (arch/x86/mm/kaslr.c).
 */
#define HF_GUEST_MEMORY_SPAN (512LL << 30)

/*
 * Has a vCPU a call pending for which the IPI sender spins? Only the newest entry of its queue is
 * read. An entry outside of the guest's direct map is on the stack of the IPI sender, which waits
 * for it. An entry in another memory slot than the per-CPU areas, which lie in one, is a wakeup.
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
	/* No entry that the guest made ends beyond its memory. */
	if (offset < 0 || slot_len < sizeof(call) || (u64)offset > slot_len - sizeof(call))
		return false;
	if (bpf_probe_read_user(&call, sizeof(call), (void *)hva))
		return false;
	return (call.flags & HF_CALL_TYPE_MASK) == HF_CALL_SYNC;
}

/*
 * The class of a vCPU, whose thread is current, for the end of its slice: a vCPU that an IPI sender
 * spins for is as good as serving the interrupt.
 */
static enum hf_class end_class(const struct hf_vcpu *v, enum hf_class class)
{
	if (class == HF_PREEMPTIBLE &&
	    has_call_pending(v->call_queue_hva, v->direct_map_hva, v->slot_hva, v->slot_len))
		return HF_IRQ;
	return class;
}

/* How many preempted siblings one search reads. */
#define SIBLING_SCAN 8

/* The VM of a vCPU; NULL if it has none, or there is no room for one more. */
static struct hf_vm_ctx *vm_ctx_of(const struct hf_vcpu *v)
{
	struct hf_vm_ctx *vm;
	struct fresh_vm *fresh;
	u32 key = 0;
	u64 kvm;

	/* A new vCPU may not have been read from KVM yet. */
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

/* Has the VM a blocker? */
static bool has_blockers(const struct hf_vm_ctx *vm)
{
	return vm && READ_ONCE(vm->preempted.listed) &
			     (READ_ONCE(vm->preempted.holders) | READ_ONCE(vm->preempted.heads) |
			      READ_ONCE(vm->preempted.waiters));
}

static u32 slot_of(const struct hf_vcpu *v)
{
	return v->vcpu_idx % HF_VM_SLOTS;
}

/* Forgets why siblings may wait for the vCPUs in these slots. */
static void forget_why(struct hf_preempted *list, u64 slots)
{
	__sync_fetch_and_and(&list->holders, ~slots);
	__sync_fetch_and_and(&list->heads, ~slots);
	__sync_fetch_and_and(&list->waiters, ~slots);
}

static void list_preempted(struct hf_preempted *list, const struct hf_vcpu *v, enum hf_class class)
{
	u32 slot = slot_of(v);
	struct hf_listed *w = MEMBER_VPTR(list->slots, [slot]);

	if (!w)
		return;
	/* From another vCPU in this slot, or from a search that ran while this one resumed. */
	forget_why(list, 1ULL << slot);
	WRITE_ONCE(w->tid, v->tid);
	WRITE_ONCE(w->qnode_hva, v->qnode_hva);
	WRITE_ONCE(w->call_queue_hva, v->call_queue_hva);
	WRITE_ONCE(w->direct_map_hva, v->direct_map_hva);
	WRITE_ONCE(w->slot_hva, v->slot_hva);
	WRITE_ONCE(w->slot_len, v->slot_len);
	if (class == HF_HEAD)
		__sync_fetch_and_or(&list->heads, 1ULL << slot);
	else if (hf_is_protected(class))
		__sync_fetch_and_or(&list->holders, 1ULL << slot);
	else if (class == HF_WAITER)
		__sync_fetch_and_or(&list->waiters, 1ULL << slot);
	__sync_fetch_and_or(&list->listed, 1ULL << slot);
}

static void unlist_preempted(struct hf_preempted *list, const struct hf_vcpu *v)
{
	u32 slot = slot_of(v);
	struct hf_listed *w = MEMBER_VPTR(list->slots, [slot]);

	if (!w || READ_ONCE(w->tid) != v->tid)
		return;
	__sync_fetch_and_and(&list->listed, ~(1ULL << slot));
	forget_why(list, 1ULL << slot);
}

/*
 * Takes one slot out of @slots: the first from @from on, in a ring. A search reads few slots, and
 * reaches all of them if each search begins elsewhere.
 */
static u32 take_slot(u64 *slots, u32 from)
{
	u64 rotated = *slots >> from % HF_VM_SLOTS | *slots << (HF_VM_SLOTS - from) % HF_VM_SLOTS;
	u32 slot = (ctzll(rotated) + from) % HF_VM_SLOTS;

	*slots &= ~(1ULL << slot);
	return slot;
}

/* Does thread @tid wait in one of our DSQs, from which @cpu may take it? */
static bool can_take(u32 tid, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_ctx *tctx;
	bool can;

	if (!p)
		return false;
	tctx = try_task_ctx_of(p);
	/* Timers count as part of init(), which may sleep. */
	bpf_rcu_read_lock();
	can = tctx && READ_ONCE(tctx->queued) && may_run_on(p, cpu);
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return can;
}

/*
 * The thread of a vCPU that was preempted in a lock's queue and was handed the lock since; 0: none.
 * It is the holder that the others in the queue wait for.
 */
static u32 find_owner(struct hf_preempted *list, u32 from)
{
	u64 waiters = READ_ONCE(list->waiters);
	int i;

	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_qnode qnode;
		struct hf_listed *w;
		u32 slot;
		u64 hva;

		if (!waiters)
			break;
		slot = take_slot(&waiters, from);
		w = MEMBER_VPTR(list->slots, [slot]);
		hva = w ? READ_ONCE(w->qnode_hva) : 0;
		if (!hva || bpf_probe_read_user(&qnode, sizeof(qnode), (void *)hva))
			continue;
		if (qnode.count && qnode.locked) {
			__sync_fetch_and_or(&list->heads, 1ULL << (slot % HF_VM_SLOTS));
			return READ_ONCE(w->tid);
		}
	}
	return 0;
}

/*
 * The thread of a preempted holder, or of a vCPU that is only @next if there is none; 0: no such
 * vCPU. One that @cpu can take comes before others.
 */
static u32 find_holder(struct hf_preempted *list, u32 from, s32 cpu, bool *next)
{
	u64 listed = READ_ONCE(list->listed), holders = READ_ONCE(list->holders) & listed;
	u32 tid = 0;
	int i;

	*next = !holders;
	if (!holders)
		holders = READ_ONCE(list->heads) & listed;
	if (!holders)
		return READ_ONCE(list->waiters) ? find_owner(list, from) : 0;
	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_listed *w;

		if (!holders)
			break;
		w = MEMBER_VPTR(list->slots, [take_slot(&holders, from)]);
		if (!w)
			continue;
		tid = READ_ONCE(w->tid);
		if (can_take(tid, cpu))
			break;
	}
	return tid;
}

/* The thread of a preempted vCPU with a call pending that its sender spins for; 0: none. */
static u32 find_call_pending(struct hf_preempted *list, u32 from)
{
	u64 listed = READ_ONCE(list->listed);
	int i;

	bpf_for (i, 0, SIBLING_SCAN) {
		struct hf_listed *w;

		if (!listed)
			break;
		w = MEMBER_VPTR(list->slots, [take_slot(&listed, from)]);
		if (w &&
		    has_call_pending(READ_ONCE(w->call_queue_hva), READ_ONCE(w->direct_map_hva),
				     READ_ONCE(w->slot_hva), READ_ONCE(w->slot_len)))
			return READ_ONCE(w->tid);
	}
	return 0;
}

/* The preempted siblings that a vCPU, whose thread is current, may wait for. */
struct blockers {
	struct hf_siblings siblings;
	u32 holder_tid;
	u32 call_pending_tid;
};

/*
 * Finds the blockers in @list that a vCPU of @class may wait for. Not static: the verifier goes
 * through it once, by itself, and not again for each state that a caller can be in.
 */
__noinline int find_blockers(struct hf_preempted *list __arg_nonnull, u32 class,
			     struct blockers *s __arg_nonnull)
{
	s32 cpu = bpf_get_smp_processor_id();
	u32 from = bpf_get_prandom_u32();

	__builtin_memset(s, 0, sizeof(*s));
	if (class == HF_UNKNOWN || !READ_ONCE(list->listed))
		return 0;
	/* A preemptible vCPU waits for no call. */
	if (class != HF_PREEMPTIBLE)
		s->call_pending_tid = find_call_pending(list, from);
	s->holder_tid = find_holder(list, from, cpu, &s->siblings.next);
	s->siblings.call_pending = s->call_pending_tid;
	s->siblings.holder = s->holder_tid;
	s->siblings.waiter = READ_ONCE(list->waiters);
	return 0;
}

/* How long a pause exit of a waiter counts: where locks are contended, many come in this time. */
#define PAUSE_EXITS_SEEN_NS (1000ULL * 1000 * 1000)

/*
 * A vCPU has a pause exit. A waiter for a PV lock has many of them, and halts in the end: probes
 * need not look for the next owner of its lock. Waiters for native locks only spin, and if the next
 * owner is a blocker their exits alone do not help. CPU 0 looks the same in both.
 */
static void note_pause_exit(struct hf_vm_ctx *vm, const struct hf_vcpu *v, enum hf_class class,
			    u64 now)
{
	u32 cpu = 0;

	if (!hf_in_lock_queue(class) || !v->qnode_hva ||
	    bpf_probe_read_user(&cpu, sizeof(cpu), (void *)(v->qnode_hva + HF_PV_NODE_CPU)))
		return;
	if (cpu)
		WRITE_ONCE(vm->pause_exit_at, now);
}

static bool pause_exits_seen(const struct hf_vm_ctx *vm, u64 now)
{
	return time_delta(now, READ_ONCE(vm->pause_exit_at)) < PAUSE_EXITS_SEEN_NS;
}

/* The thread that a yield to @target goes to; 0: none. */
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

/*
 * Lists @p, whose thread is current, as preempted with @class. A guest may claim a call for ever,
 * as it may claim a lock: both count only while they are trusted.
 */
static void list_stopped(struct task_struct *p, struct hf_vcpu *v, struct task_ctx *tctx,
			 enum hf_class class, u64 now)
{
	struct hf_vm_ctx *vm = vm_ctx_of(v);
	struct listing *l = &tctx->listing;
	enum hf_class ended = end_class(v, class);

	hf_note_class(&tctx->grace, ended, p->se.sum_exec_runtime);
	tctx->class = hf_trusted(ended, &tctx->grace, p->se.sum_exec_runtime, &params);
	if (!vm)
		return;
	vm_stat_add(vm, HF_STAT_STOPPED + class, 1);
	l->stopped_at = now;
	l->held = hf_is_protected(class) || hf_is_protected(tctx->class);
	l->listed = true;
	l->blocker = hf_is_protected(tctx->class) || tctx->class == HF_WAITER;
	if (l->blocker)
		__sync_fetch_and_add(&nr_blockers, 1);
	list_preempted(&vm->preempted, v, tctx->class);
}

/*
 * Lists a vCPU that wakes and has to wait for a CPU: an IPI sender may spin until it runs. It holds
 * nothing that siblings wait for, as it halted.
 */
static void list_woken(struct task_struct *p, struct task_ctx *tctx)
{
	struct hf_vcpu *v = readable_vcpu_of(p);
	struct hf_vm_ctx *vm = vm_ctx_of(v);

	if (!vm || tctx->listing.listed)
		return;
	tctx->listing.held = false;
	tctx->listing.listed = true;
	list_preempted(&vm->preempted, v, HF_UNKNOWN);
}

/* A listed vCPU runs again, or is not waited for any longer. */
static void resumed(struct task_struct *p, struct task_ctx *tctx, u64 now)
{
	struct listing was = tctx->listing;
	struct hf_vcpu *v = vcpu_of(p);
	struct hf_vm_ctx *vm = vm_ctx_of(v);

	tctx->listing = (struct listing){};
	if (was.blocker)
		__sync_fetch_and_sub(&nr_blockers, 1);
	if (!vm)
		return;
	unlist_preempted(&vm->preempted, v);
	if (was.held)
		vm_stat_add(vm, HF_STAT_WAITING_NS, time_delta(now, was.stopped_at));
}

/*
 * Remembers whether a vCPU that wakes, and finds no idle CPU, was woken by a sibling, and its class
 * then. A task that a timer or a device interrupts is no waker. Neither is one to which a CPU of
 * another LLC has passed a wakeup on. Both are in interrupt context.
 */
static void note_waker(struct task_struct *p, struct task_ctx *tctx)
{
	struct hf_vcpu *v = vcpu_of(p), *waker;

	if (!v || !v->kvm || !bpf_in_task())
		return;
	waker = vcpu_of(bpf_get_current_task_btf());
	if (!waker || waker == v || waker->kvm != v->kvm)
		return;
	tctx->by_sibling = true;
	/* Their VMM is one process: the guest's memory can be read here, if at all. */
	tctx->class = end_class(v, hf_read_class(v));
}

#endif /* __SCX_HOLDFAST_SIBLINGS_BPF_H */
