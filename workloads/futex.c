// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * futex: threads that contend for one mutex of their own program.
 *
 * Faithful to: contended pthread mutexes (allocators, queues, interpreters with a
 * global lock): a waiter sleeps in futex(FUTEX_WAIT), the owner wakes one. The kernel
 * takes a spinlock of its futex hash and one of a run queue for each.
 *
 * Not faithful to: long or nested critical sections. The section is in user mode: a
 * vCPU that is preempted there holds no lock of the *kernel*, so from outside the guest
 * it looks like a vCPU that holds nothing. Holdfast can gain in the futex calls only:
 * this workload shows that limit.
 */
#include <pthread.h>

#include "common.h"

static const char *inside_text = "200";

static unsigned long nr_inside;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void prepare(void)
{
	nr_inside = number("inside", inside_text, 0, 1000000);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns;
	unsigned long i;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		pthread_mutex_lock(&mutex);
		for (i = 0; i < nr_inside; i++)
			/* An empty loop would be optimised away. */
			__asm__ volatile("");
		pthread_mutex_unlock(&mutex);
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "inside", "N", "rounds of an empty loop with the mutex held", &inside_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads that lock and unlock one pthread mutex.",
		.op = "lock, --inside rounds of a loop, unlock",
		.options = options,
		.threads = 4,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
