// SPDX-License-Identifier: GPL-2.0-or-later
//! Why a guest cannot be read, in words that say what to do about it.

use crate::{
    address::{Gpa, Hva},
    fit::Misfit,
    layout::{BuildId, LayoutError},
    memory::MemoryError,
};

/// Why a guest cannot be read. Its vCPUs are of class Unknown, and lose nothing by it.
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
         meanwhile, and are looked up again"
    )]
    BadRecord {
        /// vCPU it belongs to.
        vcpu: u32,
        /// Host address given.
        hva: Hva,
        /// Guest-physical address given.
        gpa: Gpa,
    },
    /// No BTF of a kernel was found, and none that was given fits.
    #[error(
        "no kernel BTF in {resident_mib} MiB of resident guest memory{}: the guest still boots; or \
         it is swapped out, or the kernel has none (CONFIG_DEBUG_INFO_BTF): then give its BTF as a \
         file (--btf); or the guest is confidential: then it cannot be read",
        unfit(*.nr_files)
    )]
    NoBtf {
        /// Memory searched.
        resident_mib: u64,
        /// Kernels whose BTF was given.
        nr_files: usize,
    },
    /// The guest holds more that looks like BTF than is worth looking at.
    #[error("gave up: guest memory is full of things that look like BTF but are not")]
    Decoys,
    /// BTF of a kernel was found, but gives no layout.
    #[error("the guest kernel's BTF (build {build}) gives no layout")]
    Layout {
        /// Identity of the build.
        build: BuildId,
        /// Why.
        source: LayoutError,
    },
    /// Every layout found belongs to a kernel that does not run now.
    #[error(
        "none of the {candidates} kernel BTF found describes the kernel that runs: left over from \
         before a reboot, or the guest just boots; if it stays so, give its BTF as a file (--btf)"
    )]
    Stale {
        /// How many were tried.
        candidates: usize,
        /// What was wrong with the first.
        source: Misfit,
    },
    /// More than one layout fits, and they differ.
    #[error(
        "builds {0} and {1} both fit the vCPUs and differ: give the BTF of the one that runs, and \
         not of the other, as a file (--btf)"
    )]
    Ambiguous(BuildId, BuildId),
    /// The vCPU was not part of the guest when it was resolved.
    #[error("vCPU {0} is not known: it was plugged in later; resolve the guest again")]
    NoSuchVcpu(u32),
    /// Pointers between vCPUs cannot be followed.
    #[error("the guest's direct map is not known yet, so its lock queues cannot be followed")]
    NoDirectMap,
}

fn unfit(nr_files: usize) -> String {
    match nr_files {
        0 => String::new(),
        1 => ", and the one given does not fit".into(),
        nr => format!(", and none of the {nr} given fits"),
    }
}
