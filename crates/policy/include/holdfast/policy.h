/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The decisions of Holdfast: facts in, decision out.
 *
 * No BPF helper, no map and no clock is used here. The same text is compiled
 * into the BPF scheduler and into property tests, so what the tests prove is
 * what runs in the kernel. The includer provides the kernel's fixed-width types
 * (u8, u32, u64, s64) and bool.
 *
 * Time is in nanoseconds. Virtual time is CPU time scaled by HF_WEIGHT_NICE0 /
 * weight; it may wrap, so order is taken from differences.
 */
#ifndef __HOLDFAST_POLICY_H
#define __HOLDFAST_POLICY_H

#include "params.h"
#include "guest.h"
#include "vtime.h"
#include "grace.h"
#include "order.h"
#include "bandwidth.h"

#endif /* __HOLDFAST_POLICY_H */
