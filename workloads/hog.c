// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hog: an endless loop, the neighbour that wants all the CPU it can get.
 *
 * Faithful to: the CPU hogs of S1 and S5's guest "of endless loops" (see
 * README.md). It never enters the kernel of its own will, holds no lock, and
 * its working set is a register.
 *
 * Not faithful to: a neighbour that competes for caches, memory or I/O.
 *
 * The histogram shows how long 2^20 rounds of the loop took, preemptions
 * included, so it shows how long the hog was kept from running.
 */
#include <errno.h>
#include <sched.h>

#include "common.h"

#define ROUNDS (1u << 20)

static const char *priority_text = "0";

/* What it starts inherits it. */
static void prepare(void)
{
	struct sched_param param = {
		.sched_priority = number("real-time", priority_text, 0, 99),
	};

	if (param.sched_priority && sched_setscheduler(0, SCHED_FIFO, &param))
		die(errno, "cannot become a real-time task");
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns, end_ns;
	unsigned int i;

	(void)worker;
	for (start_ns = now_ns();; start_ns = end_ns) {
		for (i = 0; i < ROUNDS; i++)
			/* An empty loop would be optimised away. */
			__asm__ volatile("");
		end_ns = now_ns();
		counters_op(slot, end_ns - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "real-time", "N", "priority as a real-time task (SCHED_FIFO), 0: none",
		  &priority_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads in an endless loop.",
		.op = "2^20 rounds of the loop",
		.options = options,
		.threads = 1,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
