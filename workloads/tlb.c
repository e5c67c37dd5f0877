// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * tlb: threads of one process that map, fill and unmap memory.
 *
 * Faithful to: TLB shootdown. munmap() of pages a CPU may have cached sends an
 * inter-processor interrupt to each CPU the process runs on and spins, with
 * preemption off, until each has answered (flush_tlb_mm_range() ->
 * smp_call_function_many_cond() -> csd_lock_wait()). A preempted vCPU makes the
 * sender spin; with KVM_FEATURE_PV_TLB_FLUSH it is skipped instead. Allocators
 * that return memory, garbage collectors and JITs do this.
 * Natively 70 to 95 % of the unmaps sent one (tlb:tlb_flush, Linux 6.18, 2 CPUs): the
 * other threads must be busy, so the memory is filled, not only touched.
 * mmap() and munmap() also write-lock mmap_lock (an rwsem: it spins
 * optimistically, then sleeps), and page faults read-lock the VMA.
 *
 * Not faithful to: shootdowns without mmap_lock behind them (page migration,
 * reclaim), nor to the cost of refilling a large working set.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

static const char *pages_text = "16";

static size_t length;

static void prepare(void)
{
	length = number("pages", pages_text, 1, 4096) * (size_t)sysconf(_SC_PAGESIZE);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	uint64_t start_ns;
	char *p;

	(void)worker;
	for (;;) {
		start_ns = now_ns();
		p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			die(errno, "cannot map %zu bytes", length);
		memset(p, 1, length);
		munmap(p, length);
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "pages", "N", "pages mapped and filled by one operation", &pages_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Threads of one process that mmap(), fill and munmap(): TLB shootdowns.",
		.op = "mmap(), memset() of all of it, munmap()",
		.options = options,
		.threads = 8,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
