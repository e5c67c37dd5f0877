// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures how long this kernel waits for its own contended locks, by kind of lock: inside a guest,
 * or on bare metal. Uncontended locks do not reach these tracepoints and cost nothing.
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

/* Waits of one spinning CPU. An interrupt may spin for another lock meanwhile. */
#define HF_MAX_NESTED 8

struct spin {
	u64 lock; /* 0 without a wait */
	u64 since_ns;
	u64 type;
};

struct spins {
	struct spin of[HF_MAX_NESTED];
	/*
	 * One of the programs below runs. Meanwhile the kernel does not call it again, but calls
	 * the other one for waits of an interrupt. Of such a wait neither the begin nor the end
	 * must be noted.
	 */
	u64 busy;
	u64 nr_skipped; /* waits that began in this state, and have not ended */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct spins);
} spinning SEC(".maps");

/* A task that sleeps for a lock may wake up on another CPU. */
struct wait_key {
	u64 lock;
	u64 tid;
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
} sleeping SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HF_NR_LOCK_TYPES);
	__type(key, u32);
	__type(value, struct hf_waits);
} waits SEC(".maps");

/* Waits that were not noted: there were too many, or another one was being noted. */
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

/* Whether a wait of this type stays on its CPU. */
static bool is_spun_for(u32 type)
{
	return type == HF_LOCK_SPIN || type == HF_LOCK_SPIN_READ || type == HF_LOCK_SPIN_WRITE;
}

static struct spins *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&spinning, &zero);
}

/* The note of the wait for @lock; a free one if @lock is 0. */
static struct spin *find_spin(struct spins *all, u64 lock)
{
	u32 i;

	for (i = 0; i < HF_MAX_NESTED; i++) {
		if (all->of[i].lock == lock)
			return &all->of[i];
	}
	return NULL;
}

static void begin_spin(struct spins *all, u64 lock, u32 type)
{
	/* The note is still there if the end of the wait was not seen. */
	struct spin *spin = find_spin(all, lock) ?: find_spin(all, 0);

	if (!spin) {
		__sync_fetch_and_add(&nr_lost, 1);
		return;
	}
	spin->lock = lock;
	spin->type = type;
	/* Last, so that the wait does not include the time of noting it. */
	spin->since_ns = bpf_ktime_get_ns();
}

static void begin_sleep(u64 lock, u32 type)
{
	struct wait_key key = { .lock = lock, .tid = (u32)bpf_get_current_pid_tgid() };
	struct wait w = { .since_ns = bpf_ktime_get_ns(), .type = type };

	/* A wait for a mutex that spins and then sleeps begins twice; the first begin counts. */
	if (bpf_map_lookup_elem(&sleeping, &key))
		return;
	if (bpf_map_update_elem(&sleeping, &key, &w, BPF_NOEXIST))
		__sync_fetch_and_add(&nr_lost, 1);
}

static void end_wait(struct spins *all, u64 lock, u64 now)
{
	struct spin *spin = find_spin(all, lock);
	u32 type, slot = 0, shift;
	struct hf_waits *sum;
	struct wait *w;
	u64 ns, rest;

	if (spin) {
		type = spin->type;
		ns = now - spin->since_ns;
		spin->lock = 0;
	} else {
		struct wait_key key = { .lock = lock, .tid = (u32)bpf_get_current_pid_tgid() };

		w = bpf_map_lookup_elem(&sleeping, &key);
		if (!w)
			return;
		type = w->type;
		ns = now - w->since_ns;
		bpf_map_delete_elem(&sleeping, &key);
	}
	sum = bpf_map_lookup_elem(&waits, &type);
	if (!sum)
		return;
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
}

/* A wait that begins or ends while another one is being noted here. It is counted once. */
static void skip(struct spins *all, bool begins)
{
	if (begins) {
		all->nr_skipped++;
	} else if (all->nr_skipped) {
		all->nr_skipped--;
		return;
	}
	__sync_fetch_and_add(&nr_lost, 1);
}

/*
 * This program comes first in the file and is attached first: a begin without an end would be an
 * endless wait.
 */
SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock, int ret)
{
	u64 now = bpf_ktime_get_ns();
	struct spins *all = this_cpu();

	if (!all)
		return 0;
	if (all->busy) {
		skip(all, false);
		return 0;
	}
	all->busy = 1;
	barrier();
	end_wait(all, (u64)lock, now);
	barrier();
	all->busy = 0;
	return 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	struct spins *all = this_cpu();
	u32 type = type_of(flags);

	if (!all)
		return 0;
	if (all->busy) {
		skip(all, true);
		return 0;
	}
	all->busy = 1;
	barrier();
	if (is_spun_for(type))
		begin_spin(all, (u64)lock, type);
	else
		begin_sleep((u64)lock, type);
	barrier();
	all->busy = 0;
	return 0;
}
