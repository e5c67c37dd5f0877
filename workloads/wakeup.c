// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * wakeup: threads that sleep until a moment and measure how late they wake.
 *
 * Faithful to: cyclictest, and any service that waits for a timer or a request,
 * answers shortly and sleeps again. It measures the time from the moment it should run
 * to the moment it does. On the host, beside a guest, it shows the cost that favours for
 * lock holders have for tasks that want a CPU only for a moment.
 *
 * Not faithful to: a real-time task (it is an ordinary one unless its priority is
 * changed from outside), and to a request that takes work to answer.
 *
 * The histogram is of lateness, not of the interval. A moment that passes while a
 * thread is late is skipped.
 */
#include <errno.h>

#include "common.h"

static const char *interval_text = "2000";

static uint64_t interval_ns;

static void prepare(void)
{
	interval_ns = number("interval-us", interval_text, 50, 1000000) * 1000;
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t moment_ns = now_ns(), late_ns;
	struct timespec moment;

	(void)worker;
	for (;;) {
		moment_ns += interval_ns;
		moment.tv_sec = moment_ns / 1000000000u;
		moment.tv_nsec = moment_ns % 1000000000u;
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR)
			;
		late_ns = now_ns() - moment_ns;
		counters_op(slot, late_ns);
		moment_ns += late_ns / interval_ns * interval_ns;
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "interval-us", "N", "time between two moments, us", &interval_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads that sleep until a moment, as cyclictest does.",
		.op = "a wakeup; the histogram is of how late it was",
		.options = options,
		.threads = 1,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
