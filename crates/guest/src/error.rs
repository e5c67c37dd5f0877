// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors of reading a guest, and what would remedy them.

use crate::{
    address::{Gpa, Hva},
    fit::Misfit,
    layout::{BuildId, LayoutError},
    memory::MemoryError,
};

/// What lifts a guest of which the queues alone are known to one of which everything is.
pub const COUNT_PREEMPTION: &str =
    "boot a kernel with CONFIG_PREEMPT_DYNAMIC, CONFIG_PREEMPT or CONFIG_PREEMPT_COUNT";

/// Reasons why a guest cannot be read. Its vCPUs are of class Unknown, and are scheduled as
/// ordinary tasks.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The guest has not registered a steal-time record.
    #[error("no vCPU has a steal-time record")]
    NoStealTime,
    /// A record contradicts itself.
    #[error(
        "vCPU {vcpu}: steal-time record at {hva} is not at {gpa} of its slot: the slots changed \
         meanwhile, and will be read again"
    )]
    BadRecord {
        /// The vCPU.
        vcpu: u32,
        /// Host address given.
        hva: Hva,
        /// Guest-physical address given.
        gpa: Gpa,
    },
    /// No kernel BTF was found, and no BTF from a file fits.
    #[error(
        "no kernel BTF in {resident_mib} MiB of resident guest memory{}: the guest still boots, or \
         is confidential, or the BTF is swapped out, or the kernel has none \
         (CONFIG_DEBUG_INFO_BTF)",
        unfit(*.nr_files)
    )]
    NoBtf {
        /// Memory searched.
        resident_mib: u64,
        /// Number of kernels whose BTF was given.
        nr_files: usize,
    },
    /// The guest holds too much data that looks like BTF.
    #[error("gave up: guest memory is full of data that looks like BTF but is not")]
    Decoys,
    /// Kernel BTF was found, but has no layout.
    #[error("the guest kernel's BTF (build {build}) gives no layout")]
    Layout {
        /// Identity of the build.
        build: BuildId,
        /// Why.
        source: LayoutError,
    },
    /// Every layout found belongs to a kernel that is not running.
    #[error(
        "none of the {candidates} kernel BTF found describes the running kernel: they are left \
         over from before a reboot, or the guest still boots"
    )]
    Stale {
        /// Number of layouts tried.
        candidates: usize,
        /// Reason for rejecting the first.
        source: Misfit,
    },
    /// More than one layout fits, and they differ.
    #[error("builds {0} and {1} both fit the vCPUs and differ")]
    Ambiguous(BuildId, BuildId),
}

impl ReadError {
    /// What the operator can do, if it stays so; `None` if nothing but wait.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoStealTime => Some(
                "Linux has one where KVM's CPUID is visible (no kvm=off) with kvm-steal-time, and \
                 its command line has neither nopv nor no-steal-acc",
            ),
            Self::NoBtf { .. } | Self::Stale { .. } => {
                Some("give the BTF of its kernel as a file (--btf)")
            }
            Self::Ambiguous(..) => Some("give only the BTF of the running build as a file (--btf)"),
            Self::Layout { source: LayoutError::NoPerCpu | LayoutError::NoSymbols, .. } => Some(
                "give BTF that pahole 1.22 or later made of its vmlinux with debug symbols as a \
                 file (--btf)",
            ),
            Self::Layout { source: LayoutError::NotCounted, .. } => Some(COUNT_PREEMPTION),
            Self::Memory(_) | Self::BadRecord { .. } | Self::Decoys | Self::Layout { .. } => None,
        }
    }
}

fn unfit(nr_files: usize) -> String {
    match nr_files {
        0 => String::new(),
        1 => ", and the BTF given does not fit".into(),
        nr => format!(", and none of the {nr} given fits"),
    }
}
