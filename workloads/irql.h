/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What irql.c and the code of its guest (irql_guest.c) share. */
#ifndef HOLDFAST_IRQL_H
#define HOLDFAST_IRQL_H

#include <stdint.h>

/* IRQLs of Windows on x86-64, which are values of CR8. */
#define PASSIVE_LEVEL  0
#define DISPATCH_LEVEL 2
#define DEVICE_LEVEL   5
#define CLOCK_LEVEL    13
#define IPI_LEVEL      14

/* Their interrupts: the upper half of a vector is its priority. */
#define CLOCK_VECTOR (CLOCK_LEVEL << 4 | 1)
#define IPI_VECTOR   (IPI_LEVEL << 4 | 1)

/* The bottom of a stack has the address of its vCPU's struct irql_cpu. */
#define IRQL_STACK 0x1000

/* In r15, beside the IRQL, while the guest writes CR8: either value may be there. */
#define IRQL_CHANGES 0x100

enum irql_claim {
	CLAIM_NONE,	/* it works */
	CLAIM_DISPATCH, /* it is at DISPATCH_LEVEL, always */
	CLAIM_FLIPPING, /* nearly always */
};

/* A vCPU; in the guest's memory, which is mapped at its physical addresses. */
struct irql_cpu {
	uint64_t ops;	/* address of its counter */
	uint64_t lock;	/* address of the lock, in a cache line of its own */
	uint64_t other; /* its target of IPIs; itself: it sends none */
	uint64_t id;
	uint64_t claim;
	uint64_t free_rounds, held_rounds, device_rounds;
	uint64_t ops_per_device, ops_per_ipi;
	uint64_t timer_ns;
	uint64_t spins_per_notify; /* 0: never */
	uint64_t hypercall;	   /* address of the page for hypercalls */
	/* Written by the guest. */
	volatile uint64_t acks; /* IPIs answered */
	volatile uint64_t sent; /* IPIs to this vCPU */
	volatile uint64_t ticks;
};

/* The code: a vCPU starts in irql_main(), on a stack of its own. */
void irql_main(struct irql_cpu *cpu, struct irql_cpu *cpus);
void irql_clock(void *frame);
void irql_ipi(void *frame);

/* The section they are in, as the linker names its ends. */
extern const char __start_irql_guest[], __stop_irql_guest[];

#endif
