// SPDX-License-Identifier: GPL-2.0-or-later
//! Why a host cannot be observed.

use std::path::PathBuf;

use holdfast_bpf::DiscoveryError;
use thiserror::Error;

/// What libraries of file formats return.
pub(crate) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Errors of the observer.
#[derive(Debug, Error)]
pub enum ObserverError {
    /// The kernel has no BTF.
    #[error(
        "this kernel has no BTF (no {}): it takes one built with CONFIG_DEBUG_INFO_BTF=y, as those \
         of distributions are",
        .0.display()
    )]
    NoBtf(PathBuf),
    /// There is no KVM.
    #[error(
        "this host has no KVM: its module is not loaded; `modprobe kvm_intel` or `modprobe \
         kvm_amd`, or run this on the host that runs the VMs"
    )]
    NoKvm,
    /// The types of KVM are not known.
    #[error(
        "the kvm module of this kernel has no BTF (no {}): it takes a kernel built with \
         CONFIG_DEBUG_INFO_BTF_MODULES=y, as those of distributions are",
        .0.display()
    )]
    NoKvmBtf(PathBuf),
    /// The tracepoints of lock contention are missing.
    #[error("this kernel has no tracepoint lock:contention_begin: it takes Linux 5.19 or later")]
    NoContentionTracepoints,
    /// The process may not load BPF programs.
    #[error(
        "not permitted to load BPF programs: {missing} is missing; run it as root, or give it \
         {needed}"
    )]
    NotPermitted {
        /// The first capability that is missing.
        missing: &'static str,
        /// Those that it takes.
        needed: &'static str,
    },
    /// Processes have other numbers here.
    #[error(
        "this process is in a PID namespace (a container?), {0}, where VMs have other numbers: run \
         it on the host itself, or give the container the host's (podman: --pid=host)"
    )]
    PidNamespace(String),
    /// No vCPU can be found.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The counting program could not be loaded, attached or read.
    #[error("cannot {action} the program that watches vCPUs")]
    Bpf {
        /// What was tried.
        action: &'static str,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// The collector of an exporter found one of the above.
    #[error("nothing can be collected on this machine; the collector says why above")]
    CollectorUnsupported(#[source] std::io::Error),
    /// A request could not be read or an answer not be written.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system or the format's library said.
        source: BoxedError,
    },
    /// Two files that have to be different are one.
    #[error("cannot {action} {}: that is {what}; name another file", path.display())]
    SameFile {
        /// What was tried.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What it is already.
        what: &'static str,
    },
    /// A recording could not be written to its end.
    #[error("cannot write all of the recording: only its first {events} events are in {}", path.display())]
    CutShort {
        /// The file that has them.
        path: PathBuf,
        /// How many.
        events: u64,
        /// What the system said.
        source: BoxedError,
    },
    /// A file is not what it is taken for.
    #[error("{} is no recording of `holdfast record`, or not all of one: {why}", path.display())]
    NotARecording {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl ObserverError {
    /// Exit code of a program that ended because of one that [is
    /// unsupported](Self::is_unsupported).
    pub const UNSUPPORTED: u8 = 77;

    /// Would any machine refuse what was asked for?
    pub fn is_wrong_usage(&self) -> bool {
        matches!(self, Self::SameFile { .. })
    }

    /// Does this machine, or what this process may do, not allow it, so that nothing went wrong?
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::NoBtf(_)
            | Self::NoKvm
            | Self::NoKvmBtf(_)
            | Self::NoContentionTracepoints
            | Self::NotPermitted { .. }
            | Self::PidNamespace(_)
            | Self::CollectorUnsupported(_) => true,
            // That the process has the capabilities is looked at before.
            Self::Discovery(error) => error.is_refused(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_is_the_machines_and_a_broken_one_ours() {
        let loading = |errno| {
            let source = libbpf_rs::Error::from_raw_os_error(errno);
            ObserverError::from(DiscoveryError::Bpf { action: "load", hint: "", source })
        };
        assert!(loading(libc::EPERM).is_unsupported());
        let missing = ObserverError::NotPermitted { missing: "CAP_BPF", needed: "CAP_BPF" };
        assert!(missing.is_unsupported());
        assert!(!loading(libc::EINVAL).is_unsupported());
    }
}
