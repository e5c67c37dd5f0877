// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * pool: threads that write to /dev/urandom.
 *
 * Faithful to: the work of S3's `dd if=/dev/urandom` in the kernel of 2008: every
 * process in turn holds one global spinlock, with interrupts off, while it hashes.
 * Reading took that path then: extract_buf() of drivers/char/random.c held the
 * lock of the pool and ran SHA-1 over it. Since Linux 5.18 each CPU has a key of
 * its own and readers share no lock. Writers still do: mix_pool_bytes() takes
 * input_pool.lock with spin_lock_irqsave() and runs BLAKE2s over each 64 bytes.
 *
 * Not faithful to: S3's pipe, copy to the user, and its shares of time: there is
 * hardly anything between two critical sections here. `urandom` is S3's command itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common.h"

#define BLOCK_BYTES 512 /* as dd's: eight critical sections */

static void work(unsigned int worker, struct counters_slot *slot)
{
	static const char block[BLOCK_BYTES];
	int pool = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
	uint64_t start_ns;

	(void)worker;
	if (pool < 0)
		die(errno, "cannot open /dev/urandom for writing");
	for (;;) {
		start_ns = now_ns();
		if (write(pool, block, sizeof(block)) != sizeof(block))
			die(errno, "cannot write to /dev/urandom");
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload workload = {
		.about = "Threads that write to /dev/urandom: one spinlock, interrupts off.",
		.op = "512 bytes mixed into the kernel's pool, 8 critical sections",
		.threads = 4,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
