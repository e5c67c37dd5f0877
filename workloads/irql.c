// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * irql: a virtual machine whose vCPUs lock as Windows does. Runs on the host.
 *
 * A VMM of its own: it makes a VM through /dev/kvm with KVM's interrupt controllers and Hyper-V's
 * enlightenments. Its --threads vCPUs do work, raise the IRQL (CR8) to DISPATCH_LEVEL, take the one
 * spinlock, do some work with it, release it and lower the IRQL. The guest says that it is Windows
 * (HV_X64_MSR_GUEST_OS_ID). irql_guest.c is its code.
 *
 * Faithful to: spinlocks of Windows as far as a hypervisor sees them. They are held at
 * DISPATCH_LEVEL. Waiters spin at that level with PAUSE, and call HvNotifyLongSpinWait every
 * --notify turns, as a hypervisor recommends it. Now and then a vCPU is at the IRQL of a
 * device, without the lock, or sends an IPI at DISPATCH_LEVEL and spins until it is served. Each
 * vCPU has clock interrupts, which are served at CLOCK_LEVEL.
 *
 * Not faithful to: queued spinlocks, whose waiters have an order. A kernel of threads: nothing is
 * scheduled, no vCPU idles. The time of critical sections, which are as long as --held says.
 *
 * An operation is one acquisition of the lock, with the work before it. With --claim the guest is a
 * liar: dispatch is at DISPATCH_LEVEL always and holds nothing, flipping lets go for a moment every
 * --held rounds. An operation is that many rounds then.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "irql.h"

#define PAGE	      4096ull
#define MEMORY_LEN    (2ull << 20)
#define PML4_GPA      0x1000ull
#define PDPT_GPA      0x2000ull
#define PD_GPA	      0x3000ull
#define GDT_GPA	      0x4000ull
#define IDT_GPA	      0x5000ull
#define LOCK_GPA      0x6000ull
#define CPUS_GPA      0x7000ull /* 64 vCPUs of 128 bytes: two pages */
#define HYPERCALL_GPA 0x9000ull
#define CODE_GPA      0x10000ull
#define STACKS_GPA    0x20000ull
#define COUNTERS_GPA  0x200000ull

#define CODE_SELECTOR 8
#define DATA_SELECTOR 16

#define HYPERV_LEAVES 0x40000000u
#define MAX_LEAVES    256

static const char *claim = "none", *free_text = "8000", *held_text = "2000", *device_text = "1000",
		  *ops_per_device = "64", *ops_per_ipi = "4096", *timer_us = "15625",
		  *notify = "4095";

static char *memory;
static struct irql_cpu *cpus;
static int kvm, vm;

struct vcpu {
	int fd;
	struct kvm_run *run;
};
static struct vcpu vcpus[COUNTERS_MAX_SLOTS];

struct leaves {
	struct kvm_cpuid2 head;
	struct kvm_cpuid_entry2 entries[MAX_LEAVES];
};

static int must(int result, const char *what)
{
	if (result < 0)
		die(errno, "%s failed", what);
	return result;
}

static void add_memory(uint32_t slot, uint64_t gpa, void *at, uint64_t len)
{
	const struct kvm_userspace_memory_region region = { .slot = slot,
							    .guest_phys_addr = gpa,
							    .memory_size = len,
							    .userspace_addr = (uintptr_t)at };

	must(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
}

static uint64_t *words(uint64_t gpa)
{
	return (uint64_t *)(memory + gpa);
}

static uint64_t code(const void *function)
{
	return CODE_GPA + (uint64_t)((const char *)function - __start_irql_guest);
}

/* A 64-bit interrupt gate: interrupts are off when it is entered. */
static void set_gate(unsigned int vector, const void *handler)
{
	uint64_t at = code(handler), *gate = words(IDT_GPA + 16 * vector);

	gate[0] = (at & 0xffff) | CODE_SELECTOR << 16 | 0x8eull << 40 | (at >> 16 & 0xffff) << 48;
	gate[1] = at >> 32;
}

static void lay_out(void)
{
	/* Present, writable; the last level has two pages of 2 MiB. */
	words(PML4_GPA)[0] = PDPT_GPA | 3;
	words(PDPT_GPA)[0] = PD_GPA | 3;
	words(PD_GPA)[0] = 0x83;
	words(PD_GPA)[1] = COUNTERS_GPA | 0x83;
	words(GDT_GPA)[1] = 0x00af9b000000ffff;
	words(GDT_GPA)[2] = 0x00cf93000000ffff;
	set_gate(CLOCK_VECTOR, irql_clock);
	set_gate(IPI_VECTOR, irql_ipi);
	/* Until KVM writes the page, a hypercall does nothing: ret. */
	memory[HYPERCALL_GPA] = (char)0xc3;
	memcpy(memory + CODE_GPA, __start_irql_guest,
	       (size_t)(__stop_irql_guest - __start_irql_guest));
}

/* What KVM supports, with the leaves of Hyper-V in the place of its own. */
static void read_leaves(struct leaves *leaves)
{
	static struct leaves hyperv;
	unsigned int i, nr = 0;

	leaves->head.nent = hyperv.head.nent = MAX_LEAVES;
	must(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, leaves), "KVM_GET_SUPPORTED_CPUID");
	must(ioctl(kvm, KVM_GET_SUPPORTED_HV_CPUID, &hyperv), "KVM_GET_SUPPORTED_HV_CPUID");
	for (i = 0; i < leaves->head.nent; i++)
		if (leaves->entries[i].function >> 16 != HYPERV_LEAVES >> 16)
			leaves->entries[nr++] = leaves->entries[i];
	for (i = 0; i < hyperv.head.nent && nr < MAX_LEAVES; i++)
		if (hyperv.entries[i].function >> 8 == HYPERV_LEAVES >> 8)
			leaves->entries[nr++] = hyperv.entries[i];
	leaves->head.nent = nr;
}

static uint64_t claimed(void)
{
	static const char *const names[] = { "none", "dispatch", "flipping" };
	uint64_t i;

	for (i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!strcmp(claim, names[i]))
			return i;
	usage_error("--claim is none, dispatch or flipping, not '%s'", claim);
}

static void fill_cpu(unsigned int i)
{
	cpus[i] = (struct irql_cpu){
		.ops = COUNTERS_GPA + COUNTERS_SLOTS_START + i * sizeof(struct counters_slot),
		.lock = LOCK_GPA,
		.other = (i + 1) % workload_args.threads,
		.id = i,
		.claim = claimed(),
		.free_rounds = number("free", free_text, 0, 1u << 30),
		.held_rounds = number("held", held_text, 0, 1u << 30),
		.device_rounds = number("device", device_text, 0, 1u << 30),
		.ops_per_device = number("ops-per-device", ops_per_device, 1, 1u << 30),
		.ops_per_ipi = number("ops-per-ipi", ops_per_ipi, 1, 1u << 30),
		.timer_ns = number("timer-us", timer_us, 0, 1000000) * 1000,
		.spins_per_notify = number("notify", notify, 0, 1u << 30),
		.hypercall = HYPERCALL_GPA,
	};
	words(STACKS_GPA + i * IRQL_STACK)[0] = CPUS_GPA + i * sizeof(struct irql_cpu);
}

static void start_vcpu(unsigned int i, struct leaves *leaves)
{
	const struct kvm_segment cs = { .limit = ~0u,
					.selector = CODE_SELECTOR,
					.type = 11,
					.present = 1,
					.l = 1,
					.s = 1,
					.g = 1 };
	/* As after a call, for the alignment of the stack. */
	struct kvm_regs regs = { .rip = code(irql_main),
				 .rflags = 2,
				 .rsp = STACKS_GPA + (i + 1) * IRQL_STACK - 8,
				 .rdi = CPUS_GPA + i * sizeof(struct irql_cpu),
				 .rsi = CPUS_GPA };
	const struct kvm_mp_state runs = { .mp_state = KVM_MP_STATE_RUNNABLE };
	struct kvm_segment ds = cs;
	struct vcpu *v = &vcpus[i];
	struct kvm_sregs sregs;
	size_t run_len;

	v->fd = must(ioctl(vm, KVM_CREATE_VCPU, i), "KVM_CREATE_VCPU");
	run_len = (size_t)must(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
	v->run = mmap(NULL, run_len, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	if (v->run == MAP_FAILED)
		die(errno, "cannot map vCPU %u", i);
	must(ioctl(v->fd, KVM_SET_CPUID2, leaves), "KVM_SET_CPUID2");
	must(ioctl(v->fd, KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	ds.selector = DATA_SELECTOR;
	ds.type = 3;
	ds.l = 0;
	ds.db = 1;
	sregs.cs = cs;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = ds;
	sregs.gdt = (struct kvm_dtable){ .base = GDT_GPA, .limit = 23 };
	sregs.idt = (struct kvm_dtable){ .base = IDT_GPA, .limit = PAGE - 1 };
	sregs.cr3 = PML4_GPA;
	sregs.cr4 |= 1 << 5;		/* PAE */
	sregs.efer |= 1 << 8 | 1 << 10; /* LME, LMA */
	sregs.cr0 |= 1u << 31 | 1;	/* PG, PE */
	sregs.apic_base |= 1 << 10;	/* x2APIC */
	must(ioctl(v->fd, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
	must(ioctl(v->fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	must(ioctl(v->fd, KVM_SET_MP_STATE, &runs), "KVM_SET_MP_STATE");
}

static void prepare(void)
{
	static struct leaves leaves;
	uint64_t counters_len;
	unsigned int i;
	int fd;

	fd = open(workload_args.counters, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		die(errno, "cannot open %s", workload_args.counters);
	counters_len = (counters_size(workload_args.threads) + PAGE - 1) / PAGE * PAGE;
	memory = mmap(NULL, MEMORY_LEN, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED)
		die(errno, "no memory");
	cpus = (struct irql_cpu *)(memory + CPUS_GPA);
	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		die(errno, "cannot open /dev/kvm");
	vm = must(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	must(ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
	add_memory(0, 0, memory, MEMORY_LEN);
	/* The guest counts in the counter file itself, and need not leave for it. */
	add_memory(1, COUNTERS_GPA,
		   mmap(NULL, counters_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
		   counters_len);
	lay_out();
	read_leaves(&leaves);
	for (i = 0; i < workload_args.threads; i++)
		fill_cpu(i);
	for (i = 0; i < workload_args.threads; i++)
		start_vcpu(i, &leaves);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	struct vcpu *v = &vcpus[worker];

	(void)slot;
	while (ioctl(v->fd, KVM_RUN, 0) < 0)
		if (errno != EINTR && errno != EAGAIN)
			die(errno, "KVM_RUN of vCPU %u failed", worker);
	die(0, "vCPU %u left its loop: KVM exit reason %u", worker, v->run->exit_reason);
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "claim", "WHAT", "none, dispatch or flipping: a guest that lies", &claim },
		{ "free", "ROUNDS", "of a loop before each acquisition", &free_text },
		{ "held", "ROUNDS", "of a loop with the lock", &held_text },
		{ "device", "ROUNDS", "of a loop at the IRQL of a device", &device_text },
		{ "ops-per-device", "N", "operations for each of these", &ops_per_device },
		{ "ops-per-ipi", "N", "operations for each IPI", &ops_per_ipi },
		{ "timer-us", "N", "us between two clock interrupts, 0: none", &timer_us },
		{ "notify", "N", "turns of a spin for each hypercall, 0: none", &notify },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "A VM (on the host) whose --threads vCPUs lock as Windows does.",
		.op = "an acquisition of the lock, with --claim --held rounds",
		.options = options,
		.threads = 4,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
