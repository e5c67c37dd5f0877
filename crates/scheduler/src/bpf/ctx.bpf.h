/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The state of the scheduler: tunables, topology, tasks, CPUs and counters. */
#ifndef __SCX_HOLDFAST_CTX_BPF_H
#define __SCX_HOLDFAST_CTX_BPF_H

#include <scx/common.bpf.h>
#include <bpf_experimental.h>
#include "intf.h"
#include <holdfast/kvm.bpf.h>
#include <holdfast/vcpu.bpf.h>

/* Keeps data that all CPUs write on cache lines apart from data that all of them read. */
#define ALONE __attribute__((aligned(64)))

/*
 * Tunables, set before load; struct hf_params and the command line say what each one means. Not
 * const: policy.h takes a plain pointer, through which the compiler would see the zeroes of a
 * constant instead of the values that user space writes there.
 */
struct hf_params params ALONE;

/* Ablations. The base scheduler alone has none of these parts. */
const volatile bool guest_knowledge = true;
const volatile bool grace_enabled = true;
const volatile bool resume_first_enabled = true;
const volatile bool directed_yield_enabled = true;
const volatile bool waiters_enabled = true;

/* Topology, filled in before load. An LLC's DSQ has the LLC's number. */
const volatile u32 nr_cpu_ids = 1;
const volatile u32 nr_llcs = 1;
const volatile u32 cpu_llc[HF_MAX_CPUS];
/* The next CPU of the same LLC, in a ring. */
const volatile u32 llc_ring[HF_MAX_CPUS];
/* The next thread of the same core, in a ring. */
const volatile u32 core_ring[HF_MAX_CPUS];
/* NUMA node of an LLC: an idle CPU helps those of its own node first. */
const volatile s32 llc_node[HF_MAX_LLCS];

/* Virtual time of the host: where a task starts that has been away. */
static u64 vtime_now ALONE;

/* Preempted vCPUs that siblings may wait for. While there are none, no vCPU is probed. */
static u32 nr_blockers ALONE;

/* Affinity DSQs of each LLC; see base/affinity.bpf.h. */
#define HF_AFFINITY_DSQS 16
/* Of each LLC: bits of its affinity DSQs that are in use. Written by all CPUs. */
static u32 llc_affinity_dsqs[HF_MAX_LLCS] ALONE;
/* When a task last came to each affinity DSQ, to within USED_STEP_NS. Written by all CPUs. */
static u64 affinity_used_at[HF_MAX_LLCS * HF_AFFINITY_DSQS] ALONE;

/* A preempted vCPU in its VM's list. All zero: not in it. Cleared when the vCPU runs. */
struct listing {
	u64 stopped_at;
	bool listed;
	bool blocker; /* counted in nr_blockers: stopped in a critical section or a queue */
	bool held;    /* its class was protected, trusted or not */
};

/*
 * Callbacks change it with the run queue of the task locked. Yields and searches of other CPUs read
 * @vtime, @waits_since, @dsq, @cpu, @weight and @queued without: at worst they choose a task that
 * does not wait any longer, and then the kernel does not move it.
 */
struct task_ctx {
	u64 vtime;	      /* by the clock of @cpu */
	u64 charged_ns;	      /* how much of its CPU time vtime includes */
	u64 unearned_ns;      /* CPU time for which its VM has not earned grace yet */
	u64 ungrouped_ns;     /* CPU time that its groups are not charged for yet */
	u64 distrusted_until; /* it went on running after it said that it was about to sleep */
	u64 gave_way_at;      /* when it last halted, or asked to yield */
	u64 waits_since;      /* when it became ready, as the kernel's watchdog counts; 0: it runs
				 or sleeps */
	u64 dsq;	      /* the DSQ it is in, if @queued */
	u64 group_id;	      /* of the cgroup that it counts in while runnable; 0: none */
	u64 affinity_dsq;     /* its DSQ in LLC @affinity_llc - 1 */
	u32 affinity_llc;     /* 0: not known */
	s32 cpu;	      /* where it was placed last */
	u32 weight;	      /* among all tasks of the host, in 1/HF_WEIGHT_SCALE */
	u32 group;	      /* where that is among groups; 0: it is none that counts */
	u32 own_weight;	      /* that it counts with in @group */
	enum hf_class class;  /* when it was preempted, or when a sibling woke it */
	bool by_sibling;      /* another vCPU of its VM has woken it */
	bool queued;	      /* in one of our DSQs */
	struct listing listing;
	struct hf_grace grace;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} task_ctxs SEC(".maps");

/*
 * Virtual time of a CPU; see base/vtime.bpf.h. Written with its run queue locked. Other CPUs read
 * @offset, @contended_vtime and @has_own_time without: READ_ONCE() and WRITE_ONCE().
 */
struct cpu_clock {
	u64 offset;	     /* by how much the host's virtual time is ahead of this clock */
	u64 contended_vtime; /* while @contended: virtual time of the tasks that wait */
	u64 dispatched_at;   /* when it last chose the next task */
	bool contended;	     /* tasks wait for this CPU */
	bool has_own_time;   /* @contended_vtime counts; else the host's virtual time does */
};

/*
 * The running task, from running() to stopping(). Other CPUs read the first four without a lock:
 * READ_ONCE() and WRITE_ONCE(), and no more than a guess as a whole.
 */
struct run_ctx {
	u64 vtime; /* when it was last charged */
	u64 charged_at;
	u32 weight;
	u32 tid;     /* 0: not a task of ours; cleared by stopping() */
	u64 sync_at; /* when it said that it was about to sleep, and was trusted; 0: it did not */
	struct hf_spin spin;
	bool smt_busy; /* at the last tick */
};

enum probe_reason {
	PROBE_NONE = 0,
	PROBE_FOR_GRACE,    /* at the end of a step of grace */
	PROBE_FOR_BLOCKERS, /* within a slice: the vCPU may wait for a blocker */
};

/* The next probe of the running vCPU. stop_probing() clears it when the vCPU stops. */
struct next_probe {
	u64 step_ns;	/* how long after the last one */
	u64 held_since; /* start of the run of probes that found a holder; 0: the last did not */
	u32 tid;	/* of the vCPU: the timer may fire late, for another task */
	enum probe_reason reason;
};

enum yield_kind {
	YIELD_NONE = 0,
	YIELD_TO_ANY,	 /* to the task that is next */
	YIELD_TO_THREAD, /* to thread @tid, unless that is too far ahead by then */
	YIELD_PROMISED,	 /* to thread @tid, which could have the CPU when yield() said so */
};

/* A yield that the running task has been promised; the end of its slice carries it out. */
struct pending_yield {
	enum yield_kind kind;
	u32 tid;
};

/*
 * The state of one slice. begin_slice() clears all of it. It is the CPU's own: callbacks change it
 * with the run queue locked, and the timer only while its vCPU is current. A callback of another
 * CPU, which changes the task's affinity or weight, may come in between. The timer reads @reason,
 * @tid and @kind once, and at worst asks for one reschedule too many.
 */
struct slice_ctx {
	struct next_probe probe;
	struct pending_yield yield; /* ends with the slice, given or missed */
	bool grace_over;	    /* a probe has ended the grace of this slice: no new one */
	bool migrates;		    /* the task is to go to an idle core */
};

/* Which waking task has asked for a CPU. Any CPU may ask, in one word: WRITE_ONCE(). */
enum wakeup_ask {
	ASKED_BY_NONE = 0,
	ASKED_BY_TASK,
	ASKED_BY_VCPU,
};

/* How a CPU looks for starving tasks; see base/starving.bpf.h. */
struct starving_scan {
	u64 due_at;
	u32 nr_slices; /* slices of other tasks that come before */
	bool from_end; /* where the last scan began */
};

/* The timer expires in softirq context on this CPU: the task that it interrupts runs here. */
struct cpu_ctx {
	struct bpf_timer timer;
	struct cpu_clock clock;
	struct run_ctx run;
	struct slice_ctx slice;
	struct starving_scan starving;
	u32 asked;	   /* enum wakeup_ask, in this slice; enqueue() reads it after the slice */
	u32 affinity_dsqs; /* bits of those of its LLC that ever had tasks for it; set by all CPUs */
	u32 nr_scanned;	   /* tasks of the DSQ that it goes through at the moment */
	u64 far_due_at;	   /* when it looks next for an LLC that has fallen behind */
	bool has_pinned;   /* its own DSQ may hold tasks; written with its run queue locked */
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

/* For a task that need not be of this scheduler: a thread that a number names. */
static struct task_ctx *try_task_ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_ctxs, p, NULL, 0);
}

static __noinline void task_lacks_ctx(u32 tid)
{
	scx_bpf_error("thread %u has no task_ctx", tid);
}

static __noinline void cpu_lacks_ctx(s32 cpu)
{
	scx_bpf_error("CPU %d has no cpu_ctx", cpu);
}

/* init_task() has made it for each task. Without it the kernel ends the scheduler. */
static struct task_ctx *task_ctx_of(struct task_struct *p)
{
	struct task_ctx *tctx = try_task_ctx_of(p);

	if (!tctx)
		task_lacks_ctx(p->pid);
	return tctx;
}

/* Each CPU has one, up to HF_MAX_CPUS. Without it the kernel ends the scheduler. */
static struct cpu_ctx *cpu_ctx_of(s32 cpu)
{
	u32 key = cpu;
	struct cpu_ctx *cctx = bpf_map_lookup_elem(&cpu_ctxs, &key);

	if (!cctx)
		cpu_lacks_ctx(cpu);
	return cctx;
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

/* The same, or if other signs tell what it is likely to do. */
static struct hf_vcpu *known_vcpu_of(struct task_struct *p)
{
	struct hf_vcpu *v = vcpu_of(p);

	return v && (v->epoch || v->tpr) ? v : NULL;
}

/* A kernel thread that serves one CPU: it is short, and other tasks wait for its work. */
static bool is_pcpu_kthread(const struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
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
