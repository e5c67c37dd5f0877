/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the scheduler remembers: of the host, of CPUs, of tasks. And its tunables and counters. */
#ifndef __SCX_HOLDFAST_CTX_BPF_H
#define __SCX_HOLDFAST_CTX_BPF_H

/* What all CPUs write lies away from what all of them read. */
#define ALONE __attribute__((aligned(64)))

/*
 * Tunables, set before load; see struct hf_params and the command line for what each
 * one means. Not const: policy.h takes a plain pointer, through which the compiler
 * would see the zeroes of a constant instead of what user space writes there.
 */
struct hf_params params ALONE;

/* Ablations. The base scheduler alone has none of them. */
const volatile bool guest_knowledge = true;
const volatile bool grace_enabled = true;
const volatile bool resume_first_enabled = true;
const volatile bool directed_yield_enabled = true;
const volatile bool waiters_enabled = true;

/* Topology, filled in before load. An LLC's queue has the LLC's number. */
const volatile u32 nr_cpu_ids = 1;
const volatile u32 nr_llcs = 1;
const volatile u32 cpu_llc[HF_MAX_CPUS];
/* The next CPU of the same LLC, and round again. */
const volatile u32 llc_ring[HF_MAX_CPUS];
/* The same of a core: its other threads. */
const volatile u32 core_ring[HF_MAX_CPUS];
/* NUMA node of an LLC: a CPU without work helps those of its own node first. */
const volatile s32 llc_node[HF_MAX_LLCS];

/* In place of a thread: a yield to whoever is next. */
#define YIELD_TO_ANY (~0U)

/* Virtual time of the host: what a task that has been away starts from. */
static u64 vtime_now ALONE;

/*
 * Readable vCPUs that are preempted now and stopped in a critical section or a queue. While there
 * are none, nobody is looked at between turns.
 */
static u32 nr_blockers ALONE;

/* Queues of an LLC for tasks that may run on some of its CPUs only, by which those are: bits. */
#define HF_AFFINITY_DSQS 16
static u32 llc_affinity_dsqs[HF_MAX_LLCS] ALONE;

struct task_ctx {
	u64 vtime;	      /* by the clock of @cpu */
	u64 charged_ns;	      /* of its CPU time: how much of it vtime is charged for */
	u64 unearned_ns;      /* ran since its VM was last credited for it */
	u64 ungrouped_ns;     /* ran since its groups were last charged for it */
	u64 distrusted_until; /* it had said that it was about to sleep, and was not */
	u64 stopped_at;	      /* when it was preempted, if it is in its VM's list */
	u64 waits_since; /* since when it has been ready and not run, as the kernel's watchdog counts; 0: it runs or sleeps */
	u64 queue;	 /* the queue it is in, if @queued */
	u64 group;	 /* cgroup that it counts in while runnable; 0: none */
	u64 affinity_dsq; /* the queue for all who may run where it may, in LLC @affinity_llc - 1 */
	u32 affinity_llc; /* 0: not known */
	s32 cpu;	  /* where it was placed last */
	u32 weight;	  /* among all tasks of the host, in 1/HF_WEIGHT_SCALE */
	u32 own_weight;	  /* what it counts in @group */
	/* What it was taken for when it was preempted, or when a sibling woke it. */
	enum hf_class class;
	bool by_sibling; /* another vCPU of its VM has woken it */
	bool held;	 /* it looked like a holder then, trusted or not */
	bool queued;	 /* in one of our queues */
	bool listed;	 /* as preempted, in its VM */
	bool blocker;	 /* counted in nr_blockers: stopped in a critical section or a queue */
	struct hf_grace grace;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} task_ctxs SEC(".maps");

/*
 * What other CPUs want to know of a CPU, and the timer by which it looks at the vCPU it
 * runs. Timers expire in softirq context on the CPU that armed them, so the task they
 * interrupt is the one whose guest is to be looked at.
 */
struct cpu_ctx {
	struct bpf_timer timer;
	u64 vtime_offset; /* the host's virtual time is so far ahead of the clock of this CPU */
	/* While @wanted, somebody waits for this CPU: virtual time of those who do. */
	u64 contended_vtime;
	u64 dispatched_at; /* when it last asked who waits */
	u64 curr_vtime;	   /* of the running task, when it last was charged */
	u64 curr_charged_at;
	u64 probe_ns;	/* the step after which the running vCPU is looked at next */
	u64 held_since; /* since when each look has found it a holder; 0: the last one did not */
	struct hf_spin spin;
	u64 sync_at; /* when the running task said that it was about to sleep, and was trusted; 0: it did not */
	u64 starving_check_at;	   /* when it next looks for those who wait for ever */
	u32 slices_until_starving; /* and how many turns of others come before */
	u32 affinity_dsqs; /* of its LLC's queues by mask: those in which tasks may be that may run here */
	u32 nr_seen;		/* of the queue that it goes through just now */
	bool starving_from_end; /* where it began the last time */
	u32 curr_weight;
	u32 curr_tid;  /* 0: not one of ours */
	u32 grace_tid; /* whom the timer keeps running; 0: nobody */
	u32 probe_tid; /* whom the timer looks at; 0: nobody */
	u32 yield_tid; /* to whom the running task gives its CPU; 0: nobody */
	bool contended;
	bool has_own_time; /* which is @contended_vtime; else it is the host's */
	bool preempting;   /* a waking task has asked for this CPU */
	bool for_vcpu;	   /* and is a vCPU */
	bool grace_over;   /* the timer has decided: no new grace for this turn */
	bool kick; /* the running vCPU gives its CPU to the next owner of a lock that it has released */
	bool smt_busy;	 /* at the last tick another thread of its core was busy */
	bool migrates;	 /* the running task is to go to an idle core */
	bool has_pinned; /* its own queue may not be empty; written with its run queue locked */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HF_MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu_ctx);
} cpu_ctxs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HF_NR_STATS);
	__type(key, u32);
	__type(value, u64);
} stats SEC(".maps");

static void stat_add(u32 idx, u64 n)
{
	u64 *cnt = bpf_map_lookup_elem(&stats, &idx);

	if (cnt)
		*cnt += n;
}

static struct task_ctx *task_ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_ctxs, p, NULL, 0);
}

static struct cpu_ctx *cpu_ctx_of(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpu_ctxs, &key);
}

static struct hf_vcpu *vcpu_of(struct task_struct *p)
{
	return guest_knowledge ? bpf_task_storage_get(&vcpus, p, NULL, 0) : NULL;
}

/* The vCPU that @p runs, if its guest can be read. */
static struct hf_vcpu *readable_vcpu_of(struct task_struct *p)
{
	struct hf_vcpu *v = vcpu_of(p);

	return v && v->epoch ? v : NULL;
}

static u32 llc_of(s32 cpu)
{
	const volatile u32 *llc = MEMBER_VPTR(cpu_llc, [cpu]);

	return llc ? *llc : 0;
}

static s32 next_in_llc(s32 cpu)
{
	const volatile u32 *next = MEMBER_VPTR(llc_ring, [cpu]);

	return next ? *next : cpu;
}

static s32 next_in_core(s32 cpu)
{
	const volatile u32 *next = MEMBER_VPTR(core_ring, [cpu]);

	return next ? *next : cpu;
}

#endif /* __SCX_HOLDFAST_CTX_BPF_H */
