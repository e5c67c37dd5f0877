// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ebizzy: threads that copy a chunk of memory and look up a record in the copy.
 *
 * Faithful to: the published description of ebizzy (Valerie Henson, 2006), and S4's
 * use of it. A few chunks of sorted records are shared by all threads. Each
 * thread picks one at random, maps fresh memory of a random size, copies as much of
 * the chunk into it, finds a random record there with a binary search, and unmaps
 * it. It stands for an application server: in the kernel, mmap() and munmap() of
 * all threads meet at mmap_lock, page faults take page-table locks, and munmap()
 * sends TLB shootdowns, which spin until every vCPU that runs a sibling has answered.
 *
 * Not faithful to: its numbers. This is written from the description and shares no
 * code with it; the chunks are smaller unless --chunk-kib says otherwise, for a page
 * fault takes a hundred times as long in a doubly emulated guest. Memory is always
 * mapped (its option -m), where malloc() would keep some.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common.h"

#define NR_CHUNKS 10

typedef size_t record_t;

static const char *chunk_text = "64";

static record_t *chunks[NR_CHUNKS];
static size_t nr_records;

static record_t *map(size_t records)
{
	void *p = mmap(NULL, records * sizeof(record_t), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die(errno, "cannot map %zu records", records);
	return p;
}

static void prepare(void)
{
	size_t i, k;

	nr_records = number("chunk-kib", chunk_text, 4, 65536) * 1024 / sizeof(record_t);
	for (i = 0; i < NR_CHUNKS; i++) {
		chunks[i] = map(nr_records);
		for (k = 0; k < nr_records; k++)
			chunks[i][k] = k;
	}
}

static int compare(const void *a, const void *b)
{
	record_t x = *(const record_t *)a, y = *(const record_t *)b;

	return (x > y) - (x < y);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	struct drand48_data state;
	size_t records;
	uint64_t start_ns;
	record_t *copy, key;
	long n;

	srand48_r(worker + 1, &state);
	for (;;) {
		start_ns = now_ns();
		lrand48_r(&state, &n);
		records = (size_t)n % nr_records + 1;
		copy = map(records);
		lrand48_r(&state, &n);
		memcpy(copy, chunks[n % NR_CHUNKS], records * sizeof(record_t));
		lrand48_r(&state, &n);
		key = (size_t)n % records;
		if (!bsearch(&key, copy, records, sizeof(key), compare))
			die(0, "record %zu is not in its chunk", key);
		munmap(copy, records * sizeof(record_t));
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "chunk-kib", "N", "size of a chunk, KiB", &chunk_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads that map memory, copy a chunk of records there and search it.",
		.op = "a record found: map, copy, search, unmap",
		.options = options,
		.threads = 8,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
