/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counters of spins.bpf.c. The includer provides the types. */
#ifndef __HOLDFAST_SPINS_H
#define __HOLDFAST_SPINS_H

/* As HF_NR_SLOTS of observe.h. */
#define HF_NR_SPIN_SLOTS 32

enum hf_lock_type {
	HF_LOCK_SPIN = 0, /* queued spinlocks */
	HF_LOCK_SPIN_READ = 1,
	HF_LOCK_SPIN_WRITE = 2, /* rwlock_t */
	HF_LOCK_MUTEX = 3,
	HF_LOCK_SEM_READ = 4,
	HF_LOCK_SEM_WRITE = 5, /* rw_semaphore */
	HF_LOCK_OTHER = 6,     /* rt_mutex, percpu_rwsem */
};
#define HF_NR_LOCK_TYPES 7

struct hf_waits {
	u64 total_ns;
	u64 hist[HF_NR_SPIN_SLOTS];
};

#endif /* __HOLDFAST_SPINS_H */
