/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Of this header the scheduler uses bpf_in_task() only. */
#pragma once
#define bpf_in_task() hf_in_task()
