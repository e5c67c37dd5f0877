// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mm: processes that map, fault, fork and unmap.
 *
 * Faithful to: the paths S2 timed with "mmperf": mmap(), page faults, copy on
 * write after fork(), exit, munmap(). It does what such a program does on a machine
 * where nothing contends: page-table, LRU and zone locks are taken all the time
 * and hardly ever waited for, so that the cost of taking them shows.
 *
 * Not faithful to: the mix of the program S2 used, which was not published. Each
 * process has an address space of its own, so mmap_lock is not contended (that is
 * what tlb and ebizzy do).
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

static const char *pages_text = "64";

static size_t page, length;

static void prepare(void)
{
	page = (size_t)sysconf(_SC_PAGESIZE);
	length = number("pages", pages_text, 2, 65536) * page;
}

static void touch(volatile char *p, size_t bytes)
{
	size_t i;

	for (i = 0; i < bytes; i += page)
		p[i]++;
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns;
	pid_t pid;
	char *p;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			die(errno, "cannot map %zu bytes", length);
		touch(p, length);
		pid = fork();
		if (pid < 0)
			die(errno, "cannot fork");
		if (!pid) {
			/* Half of the pages are copied, the others stay shared. */
			touch(p, length / 2);
			_exit(0);
		}
		wait_for(pid);
		munmap(p, length);
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "pages", "N", "pages mapped by one operation", &pages_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Processes that mmap(), touch, fork a child that touches half, and "
			 "munmap().",
		.op = "mmap(), faults, fork() with copy on write, wait, munmap()",
		.options = options,
		.threads = 4,
		.processes = true,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
