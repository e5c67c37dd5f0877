// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mutex: threads that contend for one mutex of the kernel.
 *
 * Each thread reads a block of a file through one descriptor that all share, and goes
 * back to its beginning at its end.
 *
 * Faithful to: a contended sleeping lock with short critical sections. read() and
 * lseek() hold file.f_pos_lock (fs/file.c), a mutex, while another thread could use
 * the descriptor: the block is copied with it held. Another thread that wants it spins
 * while its owner runs, and sleeps if the owner does not. Shared run state
 * (steal_time.preempted) lets a guest end this spinning.
 *
 * Not faithful to: anything with work between the critical sections. The owner has
 * preemption enabled: a host cannot tell it from a vCPU that holds nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common.h"

#define MAX_BLOCK 65536

static const char *block_text = "4096";

static unsigned long block;
static int file;

static void prepare(void)
{
	block = number("block", block_text, 1, MAX_BLOCK);
	/* Any file in the page cache will do: this program itself. */
	file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		die(errno, "cannot open this program");
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	char copy[MAX_BLOCK];
	uint64_t start_ns;
	ssize_t got;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		got = read(file, copy, block);
		if (!got)
			lseek(file, 0, SEEK_SET);
		counters_op(slot, now_ns() - start_ns);
		if (got < 0)
			die(errno, "cannot read this program");
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "block", "BYTES", "read in one critical section", &block_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads that read one file through one descriptor: one contended mutex.",
		.op = "read() of --block bytes",
		.options = options,
		.threads = 4,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
