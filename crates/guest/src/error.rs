// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors of reading a guest, with advice in their texts.

use crate::{
    address::{Gpa, Hva},
    fit::Misfit,
    layout::{BuildId, LayoutError},
    memory::MemoryError,
};

/// Reasons why a guest cannot be read. Its vCPUs are of class Unknown, and are scheduled as
/// ordinary tasks.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The guest has not registered a steal-time record.
    #[error(
        "no vCPU has a steal-time record: not Linux, booted with nopv, without KVM's steal time in \
         its CPUID, or not booted yet"
    )]
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
        "no kernel BTF in {resident_mib} MiB of resident guest memory{}: the guest still boots; or \
         the BTF is swapped out, or the kernel has none (CONFIG_DEBUG_INFO_BTF): then give it as a \
         file (--btf); or the guest is confidential: then it cannot be read",
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
         over from before a reboot, or the guest still boots; if it stays so, give its BTF as a \
         file (--btf)"
    )]
    Stale {
        /// Number of layouts tried.
        candidates: usize,
        /// Reason for rejecting the first.
        source: Misfit,
    },
    /// More than one layout fits, and they differ.
    #[error(
        "builds {0} and {1} both fit the vCPUs and differ: give only the BTF of the running build \
         as a file (--btf)"
    )]
    Ambiguous(BuildId, BuildId),
}

fn unfit(nr_files: usize) -> String {
    match nr_files {
        0 => String::new(),
        1 => ", and the BTF given does not fit".into(),
        nr => format!(", and none of the {nr} given fits"),
    }
}
