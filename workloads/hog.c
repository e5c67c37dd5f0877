// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hog: an endless loop, the neighbour that wants all the CPU it can get.
 *
 * Faithful to: the CPU hogs of S1 and S5's guest "of endless loops" (see
 * README.md). It never enters the kernel of its own will, holds no lock, and
 * its working set is a register. With --filters it makes only system calls, one a
 * round, each through long seccomp filters, which run with migration disabled. Any
 * user may have them. With --lives-us its threads are short: each ends after this
 * much CPU time, and a new one takes its place.
 *
 * Not faithful to: a neighbour that competes for caches, memory or I/O.
 *
 * The histogram shows how long 2^20 rounds of the loop took, preemptions
 * included, so it shows how long the hog was kept from running.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

#define ROUNDS (1u << 20)

/* Length of a filter; three are nearly as many as a process may have. */
#define FILTER_LEN  4000
#define FILTERS_MAX 3

static const char *priority_text = "0";
static const char *filters_text = "0";
static const char *lives_text = "0";
static unsigned int nr_filters;
static uint64_t lives_ns;
static pthread_attr_t detached;

static void add_filter(void)
{
	static struct sock_filter filter[FILTER_LEN];
	const struct sock_fprog program = { .len = FILTER_LEN, .filter = filter };
	unsigned int i;

	/* The kernel does not cache a verdict that depends on an argument. */
	filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						 offsetof(struct seccomp_data, args[0]));
	for (i = 1; i < FILTER_LEN - 1; i++)
		filter[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, i, 0, 0);
	filter[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		die(errno, "cannot add a seccomp filter");
}

/* Its threads inherit it. */
static void prepare(void)
{
	struct sched_param param = {
		.sched_priority = number("real-time", priority_text, 0, 99),
	};
	unsigned int i;

	if (param.sched_priority && sched_setscheduler(0, SCHED_FIFO, &param))
		die(errno, "cannot become a real-time task");
	nr_filters = number("filters", filters_text, 0, FILTERS_MAX);
	for (i = 0; i < nr_filters; i++)
		add_filter();
	lives_ns = number("lives-us", lives_text, 0, 1000000) * 1000u;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
}

static void *live(void *slot)
{
	uint64_t start_ns = now_ns();
	pthread_t next;
	int err;

	while (cpu_ns() < lives_ns)
		;
	counters_op(slot, now_ns() - start_ns);
	err = pthread_create(&next, &detached, live, slot);
	if (err)
		die(err, "cannot start a thread");
	return NULL;
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	unsigned int rounds = nr_filters ? 1 : ROUNDS, i;
	uint64_t start_ns, end_ns;

	(void)worker;
	if (lives_ns) {
		live(slot);
		for (;;)
			pause();
	}
	for (start_ns = now_ns();; start_ns = end_ns) {
		for (i = 0; i < rounds; i++)
			/* An empty loop would be optimised away. */
			__asm__ volatile("");
		if (nr_filters)
			syscall(SYS_getppid, 0);
		end_ns = now_ns();
		counters_op(slot, end_ns - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "real-time", "N", "priority as a real-time task (SCHED_FIFO), 0: none",
		  &priority_text },
		{ "filters", "N", "long seccomp filters of a system call for each round, 0: none",
		  &filters_text },
		{ "lives-us", "N",
		  "us that a thread runs until a new one takes its place, 0: endless",
		  &lives_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads in an endless loop.",
		.op = "2^20 rounds of the loop, with --filters a system call, with --lives-us a "
		      "thread",
		.options = options,
		.threads = 1,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
