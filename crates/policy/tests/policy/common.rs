// SPDX-License-Identifier: GPL-2.0-or-later
//! Inputs of more than one property test.

use holdfast_policy::{Siblings, VcpuClass};
use proptest::prelude::*;

pub(crate) fn class() -> impl Strategy<Value = VcpuClass> {
    proptest::sample::select(VcpuClass::ALL.to_vec())
}

/// Any blockers among the siblings of a vCPU, or none.
pub(crate) fn siblings() -> impl Strategy<Value = Siblings> {
    any::<(bool, bool, bool, bool)>().prop_map(|(holder, next, waiter, call_pending)| Siblings {
        holder,
        next,
        waiter,
        call_pending,
    })
}
