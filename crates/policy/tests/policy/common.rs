// SPDX-License-Identifier: GPL-2.0-or-later
//! What more than one of the property tests is given.

use holdfast_policy::{Siblings, VcpuClass};
use proptest::prelude::*;

pub(crate) fn class() -> impl Strategy<Value = VcpuClass> {
    proptest::sample::select(VcpuClass::ALL.to_vec())
}

/// Nobody of the VM is preempted, or somebody who makes others wait.
pub(crate) fn siblings() -> impl Strategy<Value = Siblings> {
    any::<(bool, bool, bool, bool)>().prop_map(|(holder, next, queued, call_pending)| Siblings {
        holder,
        next,
        queued,
        call_pending,
    })
}
