// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The guest of irql.c. It is copied into a VM: it uses nothing outside of its section, no data of
 * its own, and is compiled for interrupts (see the Makefile). r15 says what CR8 is, for a test.
 *
 * Interrupts are enabled wherever CR8 is written. QEMU's emulation of SVM ends with an assertion at
 * such a write while KVM waits for an interrupt window, which is until they are.
 */
#include "irql.h"

#define GUEST  __attribute__((section("irql_guest"), used))
#define INLINE static inline __attribute__((always_inline))

/* Of the Hypervisor Top-Level Functional Specification. */
#define HV_X64_MSR_GUEST_OS_ID	     0x40000000
#define HV_X64_MSR_HYPERCALL	     0x40000001
#define HV_HYPERCALL_ENABLE	     1
#define HVCALL_NOTIFY_LONG_SPIN_WAIT (8 | 1 << 16) /* with its argument in a register */
#define WINDOWS_SERVER_2022	     0x0001040a00004f7c

/* The local APIC in x2APIC mode. */
#define X2APIC_EOI	    0x80b
#define X2APIC_SPURIOUS	    0x80f
#define X2APIC_ICR	    0x830
#define X2APIC_TIMER	    0x832
#define X2APIC_TIMER_COUNT  0x838
#define X2APIC_TIMER_DIVIDE 0x83e
#define APIC_ENABLED	    0x1ff
#define APIC_PERIODIC	    (1 << 17)
#define APIC_DIVIDE_BY_1    0xb
#define APIC_ASSERT	    (1 << 14)

register uint64_t said __asm__("r15");

INLINE void wrmsr(uint32_t msr, uint64_t value)
{
	__asm__ volatile("wrmsr"
			 :
			 : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32))
			 : "memory");
}

INLINE void set_irql(uint64_t irql)
{
	__asm__ volatile("or %[changes], %[said]\n\t"
			 "mov %[irql], %%cr8\n\t"
			 "mov %[irql], %[said]"
			 : [said] "+r"(said)
			 : [irql] "r"(irql), [changes] "i"(IRQL_CHANGES)
			 : "memory");
}

INLINE void work(uint64_t rounds)
{
	for (; rounds; rounds--)
		__asm__ volatile("");
}

INLINE void pause_once(void)
{
	__asm__ volatile("pause" : : : "memory");
}

INLINE void hypercall(const struct irql_cpu *cpu, uint64_t control, uint64_t input)
{
	__asm__ volatile("call *%[page]"
			 : "+c"(control), "+d"(input)
			 : [page] "r"(cpu->hypercall)
			 : "rax", "r8", "r9", "r10", "r11", "memory");
}

/* One turn of a spin: what Windows does in KeYieldProcessorEx(). */
INLINE void spin_once(const struct irql_cpu *cpu, uint64_t *spins)
{
	pause_once();
	if (++*spins == cpu->spins_per_notify) {
		hypercall(cpu, HVCALL_NOTIFY_LONG_SPIN_WAIT, *spins);
		*spins = 0;
	}
}

/* KeAcquireSpinLock(): test-and-set. */
INLINE void acquire(const struct irql_cpu *cpu)
{
	volatile uint64_t *lock = (void *)cpu->lock;
	uint64_t spins = 0;

	set_irql(DISPATCH_LEVEL);
	while (__atomic_exchange_n(lock, cpu->id + 1, __ATOMIC_ACQUIRE))
		while (*lock)
			spin_once(cpu, &spins);
}

INLINE void release(const struct irql_cpu *cpu)
{
	__atomic_store_n((uint64_t *)cpu->lock, 0, __ATOMIC_RELEASE);
	set_irql(PASSIVE_LEVEL);
}

/* A request to another vCPU that this one waits for, as to flush its TLB. */
INLINE void send_ipi(const struct irql_cpu *cpu, struct irql_cpu *to)
{
	uint64_t spins = 0, nr;

	set_irql(DISPATCH_LEVEL);
	nr = __atomic_add_fetch(&to->sent, 1, __ATOMIC_SEQ_CST);
	wrmsr(X2APIC_ICR, to->id << 32 | APIC_ASSERT | IPI_VECTOR);
	while (to->acks < nr)
		spin_once(cpu, &spins);
	set_irql(PASSIVE_LEVEL);
}

INLINE void start(const struct irql_cpu *cpu)
{
	if (!cpu->id) {
		wrmsr(HV_X64_MSR_GUEST_OS_ID, WINDOWS_SERVER_2022);
		wrmsr(HV_X64_MSR_HYPERCALL, cpu->hypercall | HV_HYPERCALL_ENABLE);
	}
	wrmsr(X2APIC_SPURIOUS, APIC_ENABLED);
	if (cpu->timer_ns) {
		wrmsr(X2APIC_TIMER_DIVIDE, APIC_DIVIDE_BY_1);
		wrmsr(X2APIC_TIMER, APIC_PERIODIC | CLOCK_VECTOR);
		/* KVM's bus has 1 GHz (APIC_BUS_CYCLE_NS_DEFAULT). */
		wrmsr(X2APIC_TIMER_COUNT, cpu->timer_ns);
	}
	__asm__ volatile("sti");
}

GUEST void irql_main(struct irql_cpu *cpu, struct irql_cpu *cpus)
{
	volatile uint64_t *ops = (void *)cpu->ops;
	uint64_t nr;

	said = PASSIVE_LEVEL;
	start(cpu);
	if (cpu->claim)
		set_irql(DISPATCH_LEVEL);
	for (nr = 1; cpu->claim; nr++) {
		work(cpu->held_rounds);
		if (cpu->claim == CLAIM_FLIPPING) {
			set_irql(PASSIVE_LEVEL);
			work(16);
			set_irql(DISPATCH_LEVEL);
		}
		*ops = nr;
	}
	for (nr = 1;; nr++) {
		work(cpu->free_rounds);
		acquire(cpu);
		work(cpu->held_rounds);
		release(cpu);
		*ops = nr;
		if (nr % cpu->ops_per_device == 0) {
			set_irql(DEVICE_LEVEL);
			work(cpu->device_rounds);
			set_irql(PASSIVE_LEVEL);
		}
		if (nr % cpu->ops_per_ipi == 0 && cpu->other != cpu->id)
			send_ipi(cpu, &cpus[cpu->other]);
	}
}

/* The vCPU that an interrupt is for: the bottom of its stack has its address. */
INLINE struct irql_cpu *this_cpu(void)
{
	uint64_t sp;

	__asm__("mov %%rsp, %0" : "=r"(sp));
	return *(struct irql_cpu **)(sp & -(uint64_t)IRQL_STACK);
}

/* Begins to serve an interrupt: Windows raises the IRQL for it. Returns the IRQL before. */
INLINE uint64_t enter(uint64_t irql)
{
	uint64_t before;

	__asm__ volatile("sti\n\tnop\n\tmov %%cr8, %0" : "=r"(before) : : "memory");
	set_irql(irql);
	return before;
}

/* @before may be in the middle of set_irql(), and so is @said_before then. */
INLINE void leave(uint64_t before, uint64_t said_before)
{
	set_irql(before);
	said = said_before;
	wrmsr(X2APIC_EOI, 0);
}

GUEST __attribute__((interrupt)) void irql_clock(void *frame)
{
	uint64_t said_before = said, before = enter(CLOCK_LEVEL);

	(void)frame;
	this_cpu()->ticks++;
	leave(before, said_before);
}

GUEST __attribute__((interrupt)) void irql_ipi(void *frame)
{
	uint64_t said_before = said, before = enter(IPI_LEVEL);
	struct irql_cpu *cpu = this_cpu();

	(void)frame;
	cpu->acks = cpu->sent;
	leave(before, said_before);
}
