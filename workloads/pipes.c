// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * pipes: pairs of processes that pass one byte back and forth.
 *
 * --threads is the number of processes, so there are half as many pairs. Process 2i
 * writes a byte to process 2i + 1, which writes it back; each then waits for the
 * other in read(). With --work-us each computes before it passes the byte on: the two
 * then take turns with the CPU.
 *
 * Faithful to: one-to-one message passing, as `perf bench sched pipe` and the pipe
 * test of lmbench (lat_pipe) have it: a wakeup and a sleep for each message, so a
 * vCPU goes idle and is kicked again all the time, and what counts is how soon a
 * woken vCPU gets a CPU. A pipe's mutex has two users that take turns, so locks are
 * hardly contended: run queues are, by wakeups from other CPUs.
 *
 * Not faithful to: messages of any size, servers with many clients (`hackbench`), and
 * pairs pinned to one CPU.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

/* What the first of a pair writes and the second reads, and the way back. */
struct pair {
	int there[2];
	int back[2];
};

static const char *work_text = "0";

static struct pair *pairs;
static uint64_t work_ns;

/* Before the processes start, so that both of a pair have its pipes. */
static void prepare(void)
{
	unsigned int i;

	work_ns = number("work-us", work_text, 0, 1000000) * 1000;
	if (workload_args.threads % 2)
		usage_error("--threads is the number of processes of all pairs, so it is even");
	pairs = calloc(workload_args.threads / 2, sizeof(*pairs));
	if (!pairs)
		die(errno, "no memory");
	for (i = 0; i < workload_args.threads / 2; i++)
		if (pipe(pairs[i].there) || pipe(pairs[i].back))
			die(errno, "cannot make a pipe");
}

static void pass_on(int from, int to)
{
	uint64_t end_ns;
	char byte = 0;

	if (read(from, &byte, 1) != 1)
		die(errno, "cannot read from a pipe");
	if (work_ns)
		for (end_ns = cpu_ns() + work_ns; cpu_ns() < end_ns;)
			;
	if (write(to, &byte, 1) != 1)
		die(errno, "cannot write to a pipe");
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	const struct pair *pair = &pairs[worker / 2];
	uint64_t start_ns, end_ns;

	if (worker % 2)
		for (;;)
			pass_on(pair->there[0], pair->back[1]);

	start_ns = now_ns();
	if (write(pair->there[1], "", 1) != 1)
		die(errno, "cannot write to a pipe");
	for (;; start_ns = end_ns) {
		pass_on(pair->back[0], pair->there[1]);
		end_ns = now_ns();
		counters_op(slot, end_ns - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "work-us", "N", "CPU time that each spends before it passes the byte on",
		  &work_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Pairs of processes (--threads: processes) that pass a byte back and "
			 "forth.",
		.op = "a byte there and back",
		.options = options,
		.threads = 8,
		.processes = true,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
