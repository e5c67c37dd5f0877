// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * urandom: pairs of `dd if=/dev/urandom count=1M | cat >/dev/null`, over and over.
 *
 * Faithful to: the command S3 measured (README.md), run by the real programs with
 * dd's own block of 512 bytes: system calls, wakeups through a pipe, and long
 * stretches of kernel time.
 *
 * Not faithful to: S3's kernel. The pool of /dev/urandom had one spinlock then;
 * since Linux 5.18 each CPU has a key of its own and reading takes no shared lock,
 * so pairs do not contend with each other. Only each pair's pipe is left
 * (a mutex and a waitqueue lock).
 *
 * Progress is read from the kernel's own accounting of what cat has read
 * (/proc/PID/io, rchar), every 20 ms: the two programs are unaware of it.
 * Single blocks are not timed, so there is no histogram.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include "common.h"

#define BLOCK_BYTES 512 /* dd's default */

static const char *dd = "/usr/bin/dd";
static const char *cat = "/usr/bin/cat";

/* A guest without a source of entropy would spend the time seeding, not reading. */
static void prepare(void)
{
	char byte;

	if (getrandom(&byte, 1, GRND_NONBLOCK) == 1)
		return;
	fprintf(stderr, "urandom: waiting for the kernel's random numbers to be seeded; "
			"a guest needs rdrand or virtio-rng\n");
	if (getrandom(&byte, 1, 0) != 1)
		die(errno, "the kernel has no random numbers");
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	char *dd_argv[] = { (char *)dd, "if=/dev/urandom", "count=1048576", "status=none", NULL };
	char *cat_argv[] = { (char *)cat, NULL };
	int ends[2], status;
	pid_t writer, reader;

	(void)worker;
	for (;;) {
		if (pipe2(ends, O_CLOEXEC))
			die(errno, "cannot make a pipe");
		writer = spawn(dd_argv, -1, ends[1]);
		reader = spawn(cat_argv, ends[0], -1);
		close(ends[0]);
		close(ends[1]);
		/* Loading the program reads a block or two more, once in a million. */
		count_reads_until_end(reader, slot, BLOCK_BYTES);
		status = wait_for(writer) | wait_for(reader);
		if (status)
			die(0, "%s or %s failed with wait status %#x", dd, cat, status);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "dd", "PATH", "dd", &dd },
		{ "cat", "PATH", "cat", &cat },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Pairs of dd if=/dev/urandom | cat >/dev/null, --threads of them.",
		.op = "512 bytes read by cat, one block of dd's",
		.options = options,
		.threads = 4,
		.processes = true,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
