// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How long this kernel waits for its own contended locks, by kind of lock: inside a
 * guest, or on bare metal. Uncontended locks do not come by here and cost nothing.
 */
#include <holdfast/types.bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "spins.h"

char _license[] SEC("license") = "GPL";

/* Flags of the tracepoint, include/trace/events/lock.h, since v5.19. */
#define LCB_F_SPIN   (1U << 0)
#define LCB_F_READ   (1U << 1)
#define LCB_F_WRITE  (1U << 2)
#define LCB_F_RT     (1U << 3)
#define LCB_F_PERCPU (1U << 4)
#define LCB_F_MUTEX  (1U << 5)

/* A task waits for one lock at a time, but an interrupt may wait for another meanwhile. */
struct wait_key {
	u64 lock;
	u64 who; /* the thread; the CPU for the idle tasks, which share a number */
};

struct wait {
	u64 since_ns;
	u64 type;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HF_NR_LOCK_TYPES);
	__type(key, u32);
	__type(value, struct hf_waits);
} waits SEC(".maps");

/* Waits that could not be noted because too many were. */
u64 nr_lost;

static u32 type_of(u32 flags)
{
	if (flags & LCB_F_MUTEX)
		return HF_LOCK_MUTEX;
	if (flags & (LCB_F_RT | LCB_F_PERCPU))
		return HF_LOCK_OTHER;
	if (flags & LCB_F_SPIN)
		return flags & LCB_F_READ    ? HF_LOCK_SPIN_READ
		       : flags & LCB_F_WRITE ? HF_LOCK_SPIN_WRITE
					     : HF_LOCK_SPIN;
	return flags & LCB_F_READ    ? HF_LOCK_SEM_READ
	       : flags & LCB_F_WRITE ? HF_LOCK_SEM_WRITE
				     : HF_LOCK_OTHER;
}

static struct wait_key key_of(void *lock)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct wait_key key = {
		.lock = (u64)lock,
		.who = tid ? tid : 1ULL << 32 | bpf_get_smp_processor_id(),
	};

	return key;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	struct wait_key key = key_of(lock);
	struct wait w = { .since_ns = bpf_ktime_get_ns(), .type = type_of(flags) };

	/* A mutex that is spun for and then slept for begins twice; the first time counts. */
	if (bpf_map_lookup_elem(&waiting, &key))
		return 0;
	if (bpf_map_update_elem(&waiting, &key, &w, BPF_NOEXIST))
		__sync_fetch_and_add(&nr_lost, 1);
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock, int ret)
{
	struct wait_key key = key_of(lock);
	struct wait *w = bpf_map_lookup_elem(&waiting, &key);
	u32 type, slot = 0, shift;
	struct hf_waits *sum;
	u64 ns, rest;

	if (!w)
		return 0;
	ns = bpf_ktime_get_ns() - w->since_ns;
	type = w->type;
	bpf_map_delete_elem(&waiting, &key);
	sum = bpf_map_lookup_elem(&waits, &type);
	if (!sum)
		return 0;
	for (shift = 32, rest = ns; shift; shift >>= 1) {
		if (rest >> shift) {
			rest >>= shift;
			slot += shift;
		}
	}
	if (slot >= HF_NR_SPIN_SLOTS)
		slot = HF_NR_SPIN_SLOTS - 1;
	sum->total_ns += ns;
	sum->hist[slot]++;
	return 0;
}
