/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where the fields lie that the model and the scheduler share, as numbers: struct task_struct as a
 * whole would be thousands of Rust types.
 */
#define BPF_NO_KFUNC_PROTOTYPES
#include "vmlinux.h"
#include "ctx.bpf.h"
#include <holdfast/intf.h>
#include <holdfast/kvm.bpf.h>

#define at(type, field) __builtin_offsetof(struct type, field)

enum sim_layout {
	TASK_SIZE = sizeof(struct task_struct),
	TASK_PID = at(task_struct, pid),
	TASK_TGID = at(task_struct, tgid),
	TASK_FLAGS = at(task_struct, flags),
	TASK_STATE = at(task_struct, __state),
	TASK_POLICY = at(task_struct, policy),
	TASK_PRIO = at(task_struct, prio),
	TASK_CPUS_PTR = at(task_struct, cpus_ptr),
	TASK_CPUS_MASK = at(task_struct, cpus_mask),
	TASK_NR_CPUS_ALLOWED = at(task_struct, nr_cpus_allowed),
	TASK_MIGRATION_DISABLED = at(task_struct, migration_disabled),
	TASK_START_TIME = at(task_struct, start_time),
	TASK_SUM_EXEC = at(task_struct, se.sum_exec_runtime),
	TASK_SCX_SLICE = at(task_struct, scx.slice),
	TASK_SCX_VTIME = at(task_struct, scx.dsq_vtime),
	TASK_SCX_FLAGS = at(task_struct, scx.flags),
	TASK_SCX_WEIGHT = at(task_struct, scx.weight),
	CPUMASK_SIZE = sizeof(struct cpumask),

	CGROUP_SIZE = sizeof(struct cgroup) + 32 * sizeof(void *),
	CGROUP_LEVEL = at(cgroup, level),
	CGROUP_KN = at(cgroup, kn),
	CGROUP_ANCESTORS = at(cgroup, ancestors),
	CGROUP_CPU_SUBSYS = at(cgroup, subsys) + cpu_cgrp_id * sizeof(void *),
	KERNFS_SIZE = sizeof(struct kernfs_node),
	KERNFS_ID = at(kernfs_node, id),
	TG_SIZE = sizeof(struct task_group),
	TG_IDLE = at(task_group, idle),

	OPS_SELECT_CPU = at(sched_ext_ops, select_cpu),
	OPS_ENQUEUE = at(sched_ext_ops, enqueue),
	OPS_DEQUEUE = at(sched_ext_ops, dequeue),
	OPS_DISPATCH = at(sched_ext_ops, dispatch),
	OPS_TICK = at(sched_ext_ops, tick),
	OPS_RUNNABLE = at(sched_ext_ops, runnable),
	OPS_RUNNING = at(sched_ext_ops, running),
	OPS_STOPPING = at(sched_ext_ops, stopping),
	OPS_QUIESCENT = at(sched_ext_ops, quiescent),
	OPS_YIELD = at(sched_ext_ops, yield),
	OPS_SET_CPUMASK = at(sched_ext_ops, set_cpumask),
	OPS_UPDATE_IDLE = at(sched_ext_ops, update_idle),
	OPS_CPU_RELEASE = at(sched_ext_ops, cpu_release),
	OPS_INIT_TASK = at(sched_ext_ops, init_task),
	OPS_ENABLE = at(sched_ext_ops, enable),
	OPS_DISABLE = at(sched_ext_ops, disable),
	OPS_CGROUP_INIT = at(sched_ext_ops, cgroup_init),
	OPS_CGROUP_EXIT = at(sched_ext_ops, cgroup_exit),
	OPS_CGROUP_MOVE = at(sched_ext_ops, cgroup_move),
	OPS_CGROUP_SET_WEIGHT = at(sched_ext_ops, cgroup_set_weight),
	OPS_CGROUP_SET_IDLE = at(sched_ext_ops, cgroup_set_idle),
	OPS_INIT = at(sched_ext_ops, init),
	OPS_DUMP = at(sched_ext_ops, dump),
	OPS_DUMP_CPU = at(sched_ext_ops, dump_cpu),
	OPS_DUMP_TASK = at(sched_ext_ops, dump_task),
	OPS_EXIT = at(sched_ext_ops, exit),
	OPS_DISPATCH_MAX_BATCH = at(sched_ext_ops, dispatch_max_batch),

	INIT_TASK_ARGS_SIZE = sizeof(struct scx_init_task_args),
	INIT_TASK_ARGS_CGROUP = at(scx_init_task_args, cgroup),
	CGROUP_INIT_ARGS_SIZE = sizeof(struct scx_cgroup_init_args),
	CGROUP_INIT_ARGS_WEIGHT = at(scx_cgroup_init_args, weight),
	CPU_RELEASE_ARGS_SIZE = sizeof(struct scx_cpu_release_args),
	CPU_RELEASE_ARGS_REASON = at(scx_cpu_release_args, reason),
	CPU_RELEASE_ARGS_TASK = at(scx_cpu_release_args, task),
	SELECT_CPU_ARGS_PREV = at(scx_bpf_select_cpu_and_args, prev_cpu),
	SELECT_CPU_ARGS_WAKE_FLAGS = at(scx_bpf_select_cpu_and_args, wake_flags),
	SELECT_CPU_ARGS_FLAGS = at(scx_bpf_select_cpu_and_args, flags),

	/* State of a task and of a VM in the scheduler, which rules look at. */
	TASK_CTX_GRANTED_NS = at(task_ctx, grace.granted_ns),

	VCPU_SIZE = sizeof(struct kvm_vcpu___hf),
	VCPU_IN_SPIN_LOOP = at(kvm_vcpu___hf, spin_loop.in_spin_loop),
	VCPU_REGS = at(kvm_vcpu___hf, arch.regs),
};

/* Values of 64 bits, which an enum of 32 cannot hold with the sizes above. */
static const u64 ENQ_WAKEUP = SCX_ENQ_WAKEUP;
static const u64 ENQ_HEAD = SCX_ENQ_HEAD;
static const u64 ENQ_CPU_SELECTED = SCX_ENQ_CPU_SELECTED;
static const u64 ENQ_PREEMPT = SCX_ENQ_PREEMPT;
static const u64 ENQ_REENQ = SCX_ENQ_REENQ;
static const u64 ENQ_LAST = SCX_ENQ_LAST;
static const u64 ENQ_DSQ_PRIQ = SCX_ENQ_DSQ_PRIQ;
static const u64 DEQ_SLEEP = SCX_DEQ_SLEEP;
static const u64 DEQ_SCHED_CHANGE = SCX_DEQ_SCHED_CHANGE;
static const u64 DEQ_CORE_SCHED_EXEC = SCX_DEQ_CORE_SCHED_EXEC;
static const u64 WAKE_TTWU = SCX_WAKE_TTWU;
static const u64 WAKE_FORK = SCX_WAKE_FORK;
static const u64 WAKE_SYNC = SCX_WAKE_SYNC;
static const u64 KICK_IDLE = SCX_KICK_IDLE;
static const u64 KICK_PREEMPT = SCX_KICK_PREEMPT;
static const u64 PICK_IDLE_CORE = SCX_PICK_IDLE_CORE;
static const u64 SLICE_DFL = SCX_SLICE_DFL;
static const u64 DSQ_ITER_REV = SCX_DSQ_ITER_REV;
static const u64 TASK_QUEUED = SCX_TASK_QUEUED;
static const u64 CPU_PREEMPT_RT = SCX_CPU_PREEMPT_RT;
static const u64 CPU_PREEMPT_STOP = SCX_CPU_PREEMPT_STOP;

/* Beyond what bindgen evaluates; src/ext/dsq.rs has them by value. */
_Static_assert(SCX_DSQ_INVALID == 1ULL << 63, "SCX_DSQ_INVALID");
_Static_assert(SCX_DSQ_GLOBAL == (1ULL << 63 | 1), "SCX_DSQ_GLOBAL");
_Static_assert(SCX_DSQ_LOCAL == (1ULL << 63 | 2), "SCX_DSQ_LOCAL");
_Static_assert(SCX_DSQ_LOCAL_ON == 3ULL << 62, "SCX_DSQ_LOCAL_ON");
