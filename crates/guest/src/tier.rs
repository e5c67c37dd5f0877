// SPDX-License-Identifier: GPL-2.0-or-later
//! How much is known of the vCPUs of a VM.

use serde::{Deserialize, Serialize};

/// How much is known of the vCPUs of a VM, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Tier {
    /// Each vCPU's class.
    Exact,
    /// The queues of locks, interrupts and user mode, exactly. Elsewhere in its kernel a vCPU may
    /// hold a lock: the kernel does not count preemption.
    Queue,
    /// The interrupt request level of Windows: what each vCPU is likely to do.
    Irql,
    /// Nothing: preemptions are counted, and the vCPUs are ordinary tasks to the scheduler.
    None,
}

impl Tier {
    /// The name used in every output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Queue => "queue",
            Self::Irql => "irql",
            Self::None => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_has_one_name() {
        for tier in [Tier::Exact, Tier::Queue, Tier::Irql, Tier::None] {
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.name());
        }
    }
}
