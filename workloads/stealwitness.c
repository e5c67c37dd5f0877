// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * stealwitness: does KVM tell the guest the truth about preempted vCPUs?
 *
 * KVM sets kvm_steal_time.preempted of a vCPU that loses its CPU, and clears it before
 * the vCPU runs again. Guests build on it: vcpu_is_preempted() ends optimistic spinning,
 * skips TLB-shootdown interrupts and chooses idle CPUs. It has to stay true under every
 * scheduler of the vCPUs.
 *
 * Runs in a KVM guest, as root. Workers 1 to --threads - 1 count as fast as they can,
 * each on the CPU of its number. Worker 0, on CPU 0, reads their counts and the CPUs'
 * steal-time records (through /proc/kcore, at addresses from /proc/kallsyms), and
 * compares the two:
 *
 *   lie     the flag was set all the time between two looks (its version is the same),
 *           and the vCPU counted on: a running vCPU that is called preempted
 *   silent  a vCPU counted nothing for a millisecond that was watched throughout, the
 *           time it stood in the host's queue (steal) covers that, and the flag was
 *           never set
 *   marked  the same with the flag set, as it should be
 *
 * KVM itself leaves the flag alone where a vCPU loses its CPU in the middle of an
 * emulated instruction (debugfs: preemption_other), so a few silent ones are right.
 *
 * At the end it prints these counts as one line of JSON; with lies it exits with 1. An
 * operation is one look at all records.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

/* arch/x86/include/uapi/asm/kvm_para.h */
struct kvm_steal_time {
	uint64_t steal; /* ns in the host's queue */
	uint32_t version;
	uint32_t flags;
	uint8_t preempted; /* bit 0; bit 1 asks for a TLB flush */
	uint8_t pad[3];
};

#define VCPU_PREEMPTED 1

#define STALL_NS       1000000 /* counting nothing for so long is a stall */
#define GAP_NS	       300000  /* looks further apart have not watched throughout */
#define SLACK_NS       500000  /* of a stall that must be covered by steal time */

/* The state of one CPU. */
struct watched {
	off_t record_at; /* in /proc/kcore */
	_Atomic uint64_t beat;
	/* The last look: the record, and the count read after it. */
	struct kvm_steal_time record;
	uint64_t beat_after;
	uint64_t looked_ns;
	/* A stall, if since_ns is not 0. */
	uint64_t since_ns;
	uint64_t until_ns;
	uint64_t steal_at_start;
	uint32_t version_at_start;
	bool flagged;
};
static struct watched watched[COUNTERS_MAX_SLOTS];

static _Atomic uint64_t nr_looks, nr_flagged, nr_marked, nr_silent, nr_lies, longest_silent_ns;

static int core;

static uint64_t symbol(const char *name)
{
	FILE *table = fopen("/proc/kallsyms", "r");
	char line[512], found[256];
	uint64_t address = 0, at;

	if (!table)
		die(errno, "cannot read /proc/kallsyms");
	/* A module's symbol has a fourth word. */
	while (!address && fgets(line, sizeof(line), table))
		if (sscanf(line, "%" SCNx64 " %*c %255s", &at, found) == 2 &&
		    !strcmp(found, name) && !strchr(line, '['))
			address = at;
	fclose(table);
	if (!address)
		die(0,
		    "/proc/kallsyms has no address of %s; this takes root and a guest kernel "
		    "with KVM_GUEST",
		    name);
	return address;
}

/* Where a kernel address is in /proc/kcore. */
static off_t place_of(uint64_t address)
{
	Elf64_Ehdr head;
	Elf64_Phdr segment;
	unsigned int i;

	if (pread(core, &head, sizeof(head), 0) != sizeof(head))
		die(errno, "cannot read /proc/kcore");
	for (i = 0; i < head.e_phnum; i++) {
		if (pread(core, &segment, sizeof(segment),
			  (off_t)(head.e_phoff + i * sizeof(segment))) != sizeof(segment))
			die(errno, "cannot read /proc/kcore");
		if (segment.p_type == PT_LOAD && address - segment.p_vaddr < segment.p_memsz)
			return (off_t)(segment.p_offset + (address - segment.p_vaddr));
	}
	die(0, "/proc/kcore does not hold the address %#" PRIx64, address);
}

static void prepare(void)
{
	uint64_t steal_time, offsets, offset;
	unsigned int cpu;

	if (workload_args.threads < 2)
		usage_error("--threads is at least 2: one watches the others");
	if (workload_args.threads > (unsigned int)sysconf(_SC_NPROCESSORS_ONLN))
		usage_error("--threads is at most the number of CPUs, %ld",
			    sysconf(_SC_NPROCESSORS_ONLN));
	core = open("/proc/kcore", O_RDONLY | O_CLOEXEC);
	if (core < 0)
		die(errno, "cannot open /proc/kcore");
	steal_time = symbol("steal_time");
	offsets = symbol("__per_cpu_offset");
	for (cpu = 0; cpu < workload_args.threads; cpu++) {
		if (pread(core, &offset, sizeof(offset), place_of(offsets + 8 * cpu)) !=
		    sizeof(offset))
			die(errno, "cannot read __per_cpu_offset");
		/* Symbols near 0 before Linux 6.15, addresses in the image since; both add up. */
		watched[cpu].record_at = place_of(steal_time + offset);
	}
}

/* The vCPU counted on, or was loaded again: was it off the CPU while it was watched, unmarked? */
static void end_stall(struct watched *w, const struct kvm_steal_time *now, uint64_t now_at)
{
	uint64_t stalled_ns = w->until_ns - w->since_ns;
	uint64_t steal_ns = now->steal - w->steal_at_start;

	if (stalled_ns >= STALL_NS && w->flagged)
		nr_marked++;
	/* So much steal time cannot all have been after the last look at the stall. */
	if (stalled_ns >= STALL_NS && !w->flagged && steal_ns > (now_at - w->until_ns) + SLACK_NS) {
		nr_silent++;
		if (stalled_ns > longest_silent_ns)
			longest_silent_ns = stalled_ns;
	}
	w->since_ns = 0;
}

static void look(struct watched *w)
{
	uint64_t before = w->beat, after, now_at;
	struct kvm_steal_time now;
	bool was, is, same;

	if (pread(core, &now, sizeof(now), w->record_at) != sizeof(now))
		die(errno, "cannot read a steal-time record");
	after = w->beat;
	now_at = now_ns();
	if (now.version & 1)
		return; /* KVM is writing it */

	was = w->record.preempted & VCPU_PREEMPTED;
	is = now.preempted & VCPU_PREEMPTED;
	same = w->looked_ns && now.version == w->record.version;
	nr_flagged += is;
	if (was && is && same && before != w->beat_after)
		nr_lies++;

	if (w->since_ns && (before != w->beat_after || now.version != w->version_at_start))
		end_stall(w, &now, now_at);
	if (before == w->beat_after && now_at - w->looked_ns < GAP_NS && before == after) {
		if (!w->since_ns) {
			w->since_ns = w->until_ns = w->looked_ns;
			w->steal_at_start = now.steal;
			w->version_at_start = now.version;
			w->flagged = was;
		}
		/* After a gap the end of the stall is awaited, but the stall no longer counts. */
		if (w->until_ns == w->looked_ns)
			w->until_ns = now_at;
	}
	w->flagged |= is;
	w->record = now;
	w->beat_after = after;
	w->looked_ns = now_at;
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	struct watched *w = &watched[worker];
	uint64_t start_ns, end_ns;
	unsigned int cpu;

	if (worker)
		for (;;)
			counters_add(&w->beat, 1);
	for (start_ns = now_ns();; start_ns = end_ns) {
		for (cpu = 1; cpu < workload_args.threads; cpu++)
			look(&watched[cpu]);
		nr_looks++;
		end_ns = now_ns();
		counters_op(slot, end_ns - start_ns);
	}
}

static void cleanup(void)
{
	printf("{\"looks\":%" PRIu64 ",\"flagged\":%" PRIu64 ",\"marked\":%" PRIu64
	       ",\"silent\":%" PRIu64 ",\"longest_silent_us\":%" PRIu64 ",\"lies\":%" PRIu64 "}\n",
	       nr_looks, nr_flagged, nr_marked, nr_silent, longest_silent_ns / 1000, nr_lies);
	fflush(stdout);
	if (nr_lies)
		die(0, "running vCPUs were called preempted");
}

int main(int argc, char **argv)
{
	static const struct workload workload = {
		.about = "Compares the steal-time records of a KVM guest's vCPUs with their "
			 "progress.",
		.op = "a look at all records",
		.threads = 4,
		.pin = true,
		.prepare = prepare,
		.work = work,
		.cleanup = cleanup,
	};

	return workload_main(&workload, argc, argv);
}
