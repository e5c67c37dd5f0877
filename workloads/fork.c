// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fork: processes that fork a child, which exits, and wait for it.
 *
 * Faithful to: the process churn of shell scripts, make and CGI servers.
 * Contended in the kernel: tasklist_lock (a queued rwlock, taken for writing with
 * interrupts off by fork, exit and wait), pidmap_lock, css_set_lock, the page
 * allocator's zone locks, and anon_vma locks, as every child shares its parent's pages.
 *
 * Not faithful to: exec. The child runs no program, so no file is mapped and no
 * page-table tree is torn down to make room for another; `build` has that.
 */
#include <errno.h>
#include <unistd.h>

#include "common.h"

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns;
	pid_t pid;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		pid = fork();
		if (pid < 0)
			die(errno, "cannot fork");
		if (!pid)
			_exit(0);
		wait_for(pid);
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload workload = {
		.about = "Processes that fork, exit and wait.",
		.op = "fork(), exit of the child, waitpid()",
		.threads = 8,
		.processes = true,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
