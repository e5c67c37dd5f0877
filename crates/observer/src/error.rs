// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors of observing a host.

use std::path::PathBuf;

use holdfast_bpf::DiscoveryError;
use thiserror::Error;

/// Errors of the libraries for file formats.
pub(crate) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Errors of the observer.
#[derive(Debug, Error)]
pub enum ObserverError {
    /// The kernel has no BTF.
    #[error(
        "this kernel has no BTF (no {}): boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as \
         distributions' kernels are",
        .0.display()
    )]
    NoBtf(PathBuf),
    /// There is no KVM.
    #[error(
        "this host has no KVM, because its module is not loaded: `modprobe kvm_intel` or `modprobe \
         kvm_amd`, or run this on the host that runs the VMs"
    )]
    NoKvm,
    /// KVM's module has no BTF.
    #[error(
        "the kvm module of this kernel has no BTF (no {}): boot a kernel built with \
         CONFIG_DEBUG_INFO_BTF_MODULES=y, as distributions' kernels are",
        .0.display()
    )]
    NoKvmBtf(PathBuf),
    /// The tracepoints of lock contention are missing.
    #[error("this kernel has no tracepoint lock:contention_begin: boot Linux 5.19 or later")]
    NoContentionTracepoints,
    /// The process may not load BPF programs.
    #[error(
        "not permitted to load BPF programs: {missing} is missing; run it as root, or give it \
         {needed}"
    )]
    NotPermitted {
        /// The first capability that is missing.
        missing: &'static str,
        /// The capabilities that loading takes.
        needed: &'static str,
    },
    /// Processes have other numbers in this PID namespace.
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
        /// The action that failed.
        action: &'static str,
        /// Error from libbpf.
        source: libbpf_rs::Error,
    },
    /// The collector of an exporter ended with one of the errors above.
    #[error("nothing can be collected on this machine; the collector says why above")]
    CollectorUnsupported(#[source] std::io::Error),
    /// The reader of the output has left.
    #[error("the reader of the output has left")]
    ReaderLeft,
    /// A request could not be read or an answer not be written.
    #[error("cannot {action}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// Error from the system.
        source: std::io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error from the system or from the format's library.
        source: BoxedError,
    },
    /// The live screen has no terminal.
    #[error(
        "the live screen needs a terminal, and {0}: `holdfast report` prints the same to pipes and \
         files"
    )]
    NoTerminal(&'static str),
    /// Two files that have to be different are the same.
    #[error("cannot {action} {}: that is {what}; name another file", path.display())]
    SameFile {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Its other use.
        what: &'static str,
    },
    /// A VM that was asked for is not there.
    #[error("there is no VM `{wanted}` {place}")]
    NoSuchVm {
        /// Its name, process or UUID.
        wanted: String,
        /// The place.
        place: &'static str,
        /// The VMs that are there, as they are shown.
        names: Vec<String>,
    },
    /// A recording could not be completed.
    #[error(
        "cannot write all of the recording: only its first {events} events are in {}",
        path.display()
    )]
    CutShort {
        /// The file with these events.
        path: PathBuf,
        /// Number of events in the file.
        events: u64,
        /// Error from the system.
        source: BoxedError,
    },
    /// Recordings of one host have events of the same time, which would count twice.
    #[error(
        "{} and {} both have what happened on one host at one time; name only one of them",
        paths[0].display(),
        paths[1].display()
    )]
    Overlap {
        /// The files.
        paths: [PathBuf; 2],
    },
    /// An output that has one time line is wanted of several hosts.
    #[error(
        "a report for a browser, a trace and a picture are of one host, and these recordings are \
         of {}; name those of one",
        hosts.join(", ")
    )]
    SeveralHosts {
        /// Their names.
        hosts: Vec<String>,
    },
    /// No VM is in two recordings that are compared.
    #[error("no VM is in both: before there are {}, after {}", listed(before), listed(after))]
    NothingToCompare {
        /// VMs before.
        before: Vec<String>,
        /// VMs after.
        after: Vec<String>,
    },
    /// A recording was made by another version of this program.
    #[error(
        "{} was made by another version of holdfast: it is of schema {schema}, and this program \
         reads {reads}",
        path.display()
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its schema.
        schema: String,
        /// The schema that can be read.
        reads: &'static str,
    },
    /// A file is not a recording.
    #[error("{} is no recording of `holdfast record`, or not all of one: {why}", path.display())]
    NotARecording {
        /// The file.
        path: PathBuf,
        /// The error in it.
        why: String,
    },
}

/// Names in a sentence.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl ObserverError {
    /// Exit code of a program that ended because of an error that [is
    /// unsupported](Self::is_unsupported).
    pub const UNSUPPORTED: u8 = 77;

    /// Would every machine refuse the request?
    pub fn is_wrong_usage(&self) -> bool {
        matches!(self, Self::SameFile { .. } | Self::NoTerminal(_) | Self::SeveralHosts { .. })
    }

    /// Does this machine, or do the rights of this process, not allow the request?
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::NoBtf(_)
            | Self::NoKvm
            | Self::NoKvmBtf(_)
            | Self::NoContentionTracepoints
            | Self::NotPermitted { .. }
            | Self::PidNamespace(_)
            | Self::CollectorUnsupported(_) => true,
            // The capabilities of the process have been checked before.
            Self::Discovery(error) => error.is_refused(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_is_unsupported_and_a_broken_one_is_a_failure() {
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
