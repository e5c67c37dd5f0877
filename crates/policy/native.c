// SPDX-License-Identifier: GPL-2.0-or-later
/* policy.h for user space: its functions, and the fixed-width types the kernel would provide. */
#include <stdbool.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#define HF_FN
#include <holdfast/policy.h>
