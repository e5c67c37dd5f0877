// SPDX-License-Identifier: GPL-2.0-or-later
/* What libbpf fills in from the running kernel's configuration; src/object.rs does here. */
int LINUX_KERNEL_VERSION;
_Bool CONFIG_PREEMPT_RCU;
unsigned long hf_loops;
