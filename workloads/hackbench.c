// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hackbench: Debian's hackbench (rt-tests), over and over.
 *
 * One group: half of --threads are senders, each sends --loops messages of 100
 * bytes to each of the other half.
 *
 * Faithful to: hackbench itself, the scheduler's classic: wakeups between many
 * processes, through the waitqueue locks of pipes (or the queues of Unix
 * sockets), run-queue locks and reschedule interrupts.
 *
 * Not faithful to: many groups; --threads up to 64 is one group of at most 32 pairs.
 *
 * hackbench says nothing before its run is over. Progress within a run is read from
 * the kernel's own accounting of what its processes have read (/proc/PID/io, rchar),
 * every 20 ms; a run that is over counts in full. Single messages are not timed, so
 * there is no histogram.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define MESSAGE_BYTES 100 /* hackbench's default */

static const char *program = "/usr/bin/hackbench";
static const char *loops = "10000";
static const char *transport = "pipe";

static void prepare(void)
{
	number("loops", loops, 1, 1000000);
	if (strcmp(transport, "pipe") && strcmp(transport, "socket"))
		usage_error("--transport is pipe or socket, not '%s'", transport);
	if (workload_args.threads % 2)
		usage_error("--threads is a number of pairs of sender and receiver, so it is even");
}

/* The processes of one run that have been found so far. */
struct tasks {
	pid_t hackbench;
	unsigned int nr;
	int io[COUNTERS_MAX_SLOTS];
	uint64_t bytes[COUNTERS_MAX_SLOTS];
};

/* hackbench starts them all at the beginning, and waits for them only at the end. */
static void find_tasks(struct tasks *t)
{
	char path[64], text[1024], *next = text;
	int pid, used, fd;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)t->hackbench,
		 (int)t->hackbench);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n < 0)
		die(errno, "cannot read %s; the kernel needs PROC_CHILDREN", path);
	close(fd);
	text[n] = '\0';
	for (n = 0; sscanf(next, "%d%n", &pid, &used) == 1; n++, next += used)
		if (n == t->nr && n < (ssize_t)workload_args.threads)
			t->io[t->nr++] = io_open(pid);
}

/* The senders read nothing, the receivers nothing but messages. */
static uint64_t messages_so_far(void *of)
{
	uint64_t bytes, sum = 0;
	struct tasks *t = of;
	unsigned int i;

	if (t->nr < workload_args.threads)
		find_tasks(t);
	for (i = 0; i < t->nr; i++) {
		bytes = io_bytes_read(t->io[i]);
		if (bytes > t->bytes[i])
			t->bytes[i] = bytes;
		sum += t->bytes[i];
	}
	return sum / MESSAGE_BYTES;
}

static void count_run(pid_t hackbench, uint64_t messages, struct counters_slot *slot)
{
	struct tasks t = { .hackbench = hackbench };
	unsigned int i;

	counters_add(&slot->ops, messages - count_until_end(hackbench, slot, messages_so_far, &t));
	for (i = 0; i < t.nr; i++)
		close(t.io[i]);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	unsigned int pairs = workload_args.threads / 2;
	uint64_t messages = (uint64_t)pairs * pairs * strtoul(loops, NULL, 10);
	char pairs_text[16];
	char *argv[] = { (char *)program,
			 "-g",
			 "1",
			 "-f",
			 pairs_text,
			 "-l",
			 (char *)loops,
			 strcmp(transport, "pipe") ? NULL : "--pipe",
			 NULL };
	pid_t pid;
	int status;

	(void)worker;
	snprintf(pairs_text, sizeof(pairs_text), "%u", pairs);
	for (;;) {
		pid = spawn(argv, -1, -1);
		count_run(pid, messages, slot);
		status = wait_for(pid);
		if (status)
			die(0, "%s failed with wait status %#x", program, status);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "loops", "N", "messages from each sender to each receiver in one run", &loops },
		{ "transport", "T", "pipe or socket", &transport },
		{ "program", "PATH", "hackbench", &program },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Runs of hackbench with --threads processes, half of them senders.",
		.op = "one message received",
		.options = options,
		.threads = 8,
		.workers = 1,
		.processes = true,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
