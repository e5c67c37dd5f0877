/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The counter file of a workload, mapped by the workload and read by the agent
 * (crates/agent), which parses exactly this layout: change both or neither.
 *
 * A header, then nr_slots slots. Each slot has one writer at a time; readers
 * come and go at any moment, so every field is read and written as one relaxed
 * 64-bit atomic and nothing is promised between two fields.
 */
#ifndef HOLDFAST_COUNTERS_H
#define HOLDFAST_COUNTERS_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define COUNTERS_MAGIC	     0x48464354u /* "HFCT" read as a big-endian number */
#define COUNTERS_VERSION     1u
#define COUNTERS_MAX_SLOTS   64
#define COUNTERS_NR_BUCKETS  64
#define COUNTERS_SLOTS_START 64

struct counters_header {
	uint32_t magic; /* written last: a file without it is not ready */
	uint32_t version;
	uint32_t nr_slots;
	uint32_t pad;
};

struct counters_slot {
	_Atomic uint64_t ops;
	uint64_t pad_ops[7];
	/* hist[i]: operations that took [2^i, 2^(i+1)) ns; one of 0 ns counts in hist[0]. */
	_Atomic uint64_t hist[COUNTERS_NR_BUCKETS];
	uint64_t pad_hist[56];
};

static_assert(sizeof(struct counters_header) == 16, "the agent's layout");
static_assert(sizeof(_Atomic uint64_t) == 8, "the agent's layout");
static_assert(offsetof(struct counters_header, magic) == 0, "the agent's layout");
static_assert(offsetof(struct counters_header, version) == 4, "the agent's layout");
static_assert(offsetof(struct counters_header, nr_slots) == 8, "the agent's layout");
static_assert(offsetof(struct counters_slot, ops) == 0, "the agent's layout");
static_assert(offsetof(struct counters_slot, hist) == 64, "the agent's layout");
static_assert(sizeof(struct counters_slot) == 1024, "the agent's layout");

/* Size of a file with this many slots, in bytes. */
static inline size_t counters_size(unsigned int nr_slots)
{
	return COUNTERS_SLOTS_START + (size_t)nr_slots * sizeof(struct counters_slot);
}

static inline struct counters_slot *counters_slot(struct counters_header *c, unsigned int i)
{
	return (struct counters_slot *)((char *)c + COUNTERS_SLOTS_START) + i;
}

/*
 * One writer a slot: a load and a store suffice, and spare the workload a locked
 * instruction that would show in its figures.
 */
static inline void counters_add(_Atomic uint64_t *v, uint64_t n)
{
	atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

/* Counts a time. */
static inline void counters_time(struct counters_slot *s, uint64_t took_ns)
{
	counters_add(&s->hist[63 - __builtin_clzll(took_ns | 1)], 1);
}

/* Counts an operation and its time. */
static inline void counters_op(struct counters_slot *s, uint64_t took_ns)
{
	counters_time(s, took_ns);
	counters_add(&s->ops, 1);
}

#endif
