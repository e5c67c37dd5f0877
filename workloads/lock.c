// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * lock: threads that contend for one kernel spinlock.
 *
 * Each thread does dup() and close() of a descriptor, over and over, in the one
 * descriptor table the threads share.
 *
 * Faithful to: a contended spinlock that protects a short critical section.
 * dup() takes files_struct.file_lock in alloc_fd() (fs/file.c), close() takes it
 * in file_close_fd(): two acquisitions an operation of one native or
 * paravirtual qspinlock, by every thread of the process. Servers that accept and
 * close connections in many threads contend it the same way.
 *
 * Not faithful to: anything with work between the critical sections, and to any
 * realistic share of time spent waiting. It is the upper end of contention.
 */
#include <errno.h>
#include <unistd.h>

#include "common.h"

static void work(unsigned int worker, struct counters_slot *slot)
{
	/* Any open descriptor will do; a pipe's end needs no file system. */
	int ends[2], copy;
	uint64_t start_ns;

	(void)worker;
	if (pipe(ends))
		die(errno, "cannot make a pipe");
	for (;;) {
		start_ns = now_ns();
		copy = dup(ends[0]);
		close(copy);
		counters_op(slot, now_ns() - start_ns);
		if (copy < 0)
			die(errno, "cannot duplicate a descriptor");
	}
}

int main(int argc, char **argv)
{
	static const struct workload workload = {
		.about = "Threads that dup() and close() in one descriptor table: one contended "
			 "spinlock.",
		.op = "dup() and close()",
		.threads = 4,
		.pin = true,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
