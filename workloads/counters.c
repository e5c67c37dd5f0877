// SPDX-License-Identifier: GPL-2.0-or-later
/* The counter file: made, shared, printed. See counters.h for its layout. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define STARS 40

static _Atomic uint32_t *magic_of(struct counters_header *c)
{
	return (_Atomic uint32_t *)&c->magic;
}

static struct counters_header *map(int fd, const char *path)
{
	void *c = mmap(NULL, counters_size(COUNTERS_MAX_SLOTS), PROT_READ | PROT_WRITE, MAP_SHARED,
		       fd, 0);

	if (c == MAP_FAILED)
		die(errno, "cannot map the counter file %s", path);
	return c;
}

struct counters_header *counters_map(const char **path, unsigned int nr_slots)
{
	/* Always the size of the largest: a reader's mapping never loses its pages. */
	size_t size = counters_size(COUNTERS_MAX_SLOTS);
	struct counters_header *c;
	char *name = NULL;
	int fd;

	if (*path) {
		fd = open(*path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	} else {
		fd = memfd_create("holdfast-counters", MFD_CLOEXEC);
		if (asprintf(&name, "/proc/%d/fd/%d", (int)getpid(), fd) < 0)
			die(errno, "no memory");
		*path = name;
	}
	if (fd < 0)
		die(errno, "cannot create the counter file %s", *path);
	/* Held until we and our workers are gone. */
	if (flock(fd, LOCK_EX | LOCK_NB))
		die(errno == EWOULDBLOCK ? 0 : errno,
		    "cannot lock the counter file %s; does another workload use it?", *path);
	if (ftruncate(fd, (off_t)size))
		die(errno, "cannot size the counter file %s", *path);
	if (**path != '/')
		*path = realpath(*path, NULL);
	if (!*path)
		die(errno, "cannot find the counter file");
	c = map(fd, *path);
	atomic_store_explicit(magic_of(c), 0, memory_order_relaxed);
	memset(c, 0, size);
	c->version = COUNTERS_VERSION;
	c->nr_slots = nr_slots;
	atomic_store_explicit(magic_of(c), COUNTERS_MAGIC, memory_order_release);
	return c;
}

struct counters_slot *counters_claim(const char *path)
{
	struct counters_header *c;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	unsigned int i, first;
	int fd;

	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		die(errno, "cannot open the counter file %s", path);
	c = map(fd, path);
	if (atomic_load_explicit(magic_of(c), memory_order_acquire) != COUNTERS_MAGIC)
		die(0, "%s is not a counter file", path);
	/* Start anywhere: the first few slots are not the favourites of all. */
	first = (unsigned int)getpid();
	for (i = 0; i < c->nr_slots; i++) {
		unsigned int slot = (first + i) % c->nr_slots;

		lock.l_start = (char *)counters_slot(c, slot) - (char *)c;
		lock.l_len = sizeof(struct counters_slot);
		if (!fcntl(fd, F_OFD_SETLK, &lock))
			return counters_slot(c, slot);
	}
	/* Each is taken, by processes about to end: wait for the last one tried. */
	while (fcntl(fd, F_OFD_SETLKW, &lock))
		if (errno != EINTR)
			die(errno, "cannot claim a slot of %s", path);
	return (struct counters_slot *)((char *)c + lock.l_start);
}

void counters_print(struct counters_header *c, uint64_t elapsed_ns)
{
	uint64_t hist[COUNTERS_NR_BUCKETS] = { 0 }, ops = 0, max = 0;
	int i, j, first = -1, last = -1;

	for (i = 0; i < (int)c->nr_slots; i++) {
		struct counters_slot *s = counters_slot(c, i);

		ops += atomic_load_explicit(&s->ops, memory_order_relaxed);
		for (j = 0; j < COUNTERS_NR_BUCKETS; j++)
			hist[j] += atomic_load_explicit(&s->hist[j], memory_order_relaxed);
	}
	for (j = 0; j < COUNTERS_NR_BUCKETS; j++) {
		if (!hist[j])
			continue;
		first = first < 0 ? j : first;
		last = j;
		max = hist[j] > max ? hist[j] : max;
	}
	printf("%" PRIu64 " operations in %.2f s: %.1f/s\n", ops, (double)elapsed_ns / 1e9,
	       (double)ops * 1e9 / (double)elapsed_ns);
	if (first < 0) {
		printf("(the time of a single operation is not measured)\n");
		return;
	}
	printf("%10snsecs%15s: count     distribution\n", "", "");
	for (j = first; j <= last; j++) {
		int stars = (int)(hist[j] * STARS / max);

		printf("%10" PRIu64 " -> %-10" PRIu64 "      : %-8" PRIu64 " |%.*s%*s|\n",
		       j ? UINT64_C(1) << j : 0, (UINT64_C(2) << j) - 1, hist[j], stars,
		       "****************************************", STARS - stars, "");
	}
}
