/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Kernel types for programs that are built without a vmlinux.h: only the fields
 * that are read, relocated when the program is loaded (CO-RE).
 */
#ifndef __HOLDFAST_TYPES_BPF_H
#define __HOLDFAST_TYPES_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

struct task_struct {
	int pid;
	int tgid;
	unsigned int flags;
	unsigned int __state; /* since v5.14 */
	u64 start_time;
} __attribute__((preserve_access_index));

#endif /* __HOLDFAST_TYPES_BPF_H */
