// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * rwlock: processes that read and write one reader-writer lock of the kernel.
 *
 * Faithful to: a contended queued rwlock (kernel/locking/qrwlock.c), tasklist_lock.
 * getpriority() of a process group takes it for reading, setpgid() for writing with
 * interrupts off, even if nothing changes (kernel/sys.c). Readers go on together, a
 * writer keeps all of them out, and both queue at a spinlock inside (wait_lock).
 * There is no paravirtual rwlock: a CPU that waits for its readers or writer spins.
 *
 * Not faithful to: the rest of fork, exit and wait, which take this lock in
 * programs (`fork` has that); and mmap_lock, which is a semaphore (`tlb`, `ebizzy`).
 */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common.h"

static const char *reads_text = "7";

static unsigned long nr_reads;

static void prepare(void)
{
	nr_reads = number("reads", reads_text, 0, 1000000);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns;
	unsigned long i;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		for (i = 0; i < nr_reads; i++)
			getpriority(PRIO_PGRP, 0);
		/* It leads its group already. */
		if (setpgid(0, 0))
			die(errno, "cannot set the process group");
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "reads", "N", "times the lock is taken for reading before once for writing",
		  &reads_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Processes that take tasklist_lock for reading and for writing.",
		.op = "--reads getpriority() of a group and one setpgid()",
		.options = options,
		.threads = 4,
		.processes = true,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
