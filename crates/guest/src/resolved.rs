// SPDX-License-Identifier: GPL-2.0-or-later
//! A guest that can be read.

use std::fmt;

use holdfast_policy::CountKind;

use crate::{
    layout::{BuildId, Layout},
    tier::Tier,
    vcpu::Vcpu,
};

/// The kernel a guest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Identity of the build.
    pub build: BuildId,
    /// Its release as in `uname -r`, if it was found.
    pub release: Option<String>,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.release {
            Some(release) => write!(f, "Linux {release}"),
            None => write!(f, "Linux (build {})", self.build),
        }
    }
}

/// Distances in bytes from a vCPU's steal-time record to other words of its per-CPU area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deltas {
    /// The preemption count: 32 bits, or the lower half of 64 ([`Layout::is_wide`]).
    pub preempt_count: i64,
    /// The guest's number of the CPU, 32 bits.
    pub cpu_number: i64,
    /// Pointer to the running task, 64 bits.
    pub current_task: Option<i64>,
    /// Pointer to the CPU's idle task, 64 bits. While the idle task runs, one level of the
    /// preemption count is its own and means no lock. A kernel creates one idle task for each CPU,
    /// so the pointer does not change.
    pub idle_task: Option<i64>,
    /// Head of the list of function calls that other CPUs have sent to this one, 64 bits.
    pub call_queue: Option<i64>,
    /// The first queue node of the queued spinlocks.
    pub queue: Option<QueueDeltas>,
}

/// Distances in bytes from the steal-time record to the parts of the first queue node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueDeltas {
    /// Number of nodes in use, 32 bits.
    pub count: i64,
    /// Set by the predecessor when it hands over the queue's head, 32 bits.
    pub locked: i64,
    /// Guest-virtual address of the successor's node, 64 bits.
    pub next: i64,
}

/// A guest that can be read: its kernel, and the places of each vCPU's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedGuest {
    pub(crate) kernel: Kernel,
    pub(crate) layout: Layout,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) direct_map: Option<u64>,
}

impl ResolvedGuest {
    /// The kernel it runs.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// How much is known of its vCPUs.
    pub fn tier(&self) -> Tier {
        match self.layout.count_kind {
            CountKind::Narrow | CountKind::Wide => Tier::Exact,
            CountKind::Interrupts => Tier::Queue,
        }
    }

    /// Its offsets in the per-CPU area.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its vCPUs, in the order of the records it was resolved with.
    pub fn vcpus(&self) -> &[Vcpu] {
        &self.vcpus
    }

    /// Start of the kernel's direct map of physical memory, if it is known.
    pub fn direct_map(&self) -> Option<u64> {
        self.direct_map
    }

    /// The offsets as distances from the steal-time record, the same for all vCPUs of the guest.
    ///
    /// The address of a word is the record's host address plus its distance. For every vCPU that
    /// the guest was resolved with, all words lie in the record's memory slot. A vCPU that is
    /// plugged in later has to be resolved first.
    pub fn deltas(&self) -> Deltas {
        let delta = |offset| self.layout.from_steal_time(offset);
        Deltas {
            preempt_count: delta(self.layout.preempt_count),
            cpu_number: delta(self.layout.cpu_number),
            current_task: self.layout.current_task.map(delta),
            idle_task: self.layout.idle_task.map(delta),
            call_queue: self.layout.call_queue.map(delta),
            queue: self.layout.queue.map(|queue| QueueDeltas {
                count: delta(queue.at + queue.count),
                locked: delta(queue.at + queue.locked),
                next: delta(queue.at + queue.next),
            }),
        }
    }
}
