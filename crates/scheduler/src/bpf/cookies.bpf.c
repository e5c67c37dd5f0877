// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Refuses core-scheduling cookies while the scheduler is loaded. With SMT, picking tasks for both
 * threads of a core can lock up every CPU under any sched_ext scheduler (sched-ext/scx issue 3715),
 * and prctl(PR_SCHED_CORE) needs no privilege.
 *
 * An object of its own: the scheduler loads on kernels whose security_task_prctl() no program can
 * modify, if these have no core scheduling.
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

/* include/uapi/linux/prctl.h */
#define PR_SCHED_CORE	  62
#define PR_SCHED_CORE_GET 0

/* include/uapi/asm-generic/errno-base.h. PR_SCHED_CORE itself never fails with it. */
#define EBUSY 16

/* TASK_COMM_LEN */
#define COMM_LEN 16

struct refused {
	u64 nr;
	/* of the last one */
	u32 pid;
	char comm[COMM_LEN];
};

struct refused refused;

SEC("fmod_ret/security_task_prctl")
int BPF_PROG(holdfast_task_prctl, int option, unsigned long command, unsigned long a3,
	     unsigned long a4, unsigned long a5, int ret)
{
	if (option != PR_SCHED_CORE || command == PR_SCHED_CORE_GET)
		return 0;
	__sync_fetch_and_add(&refused.nr, 1);
	refused.pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(refused.comm, sizeof(refused.comm));
	return -EBUSY;
}
