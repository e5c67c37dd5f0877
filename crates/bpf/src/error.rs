// SPDX-License-Identifier: GPL-2.0-or-later
//! Why vCPUs cannot be discovered on this host.

use thiserror::Error;

/// Errors of discovery as a whole. That one VM cannot be read is not among them: it is a state of
/// that VM, see [`crate::VmState`].
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// The BPF program could not be loaded or attached.
    #[error("cannot {action} the vCPU discovery program{hint}")]
    Bpf {
        /// What was tried.
        action: &'static str,
        /// What to do about it; empty or starting with a colon.
        hint: &'static str,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A map operation failed.
    #[error("cannot {action} in the BPF map `{map}`")]
    Map {
        /// What was tried.
        action: &'static str,
        /// On which map.
        map: &'static str,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
}

impl DiscoveryError {
    /// Does this machine refuse the program, to whomever?
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Bpf { source, .. } if source.kind() == libbpf_rs::ErrorKind::PermissionDenied)
    }

    pub(crate) fn bpf(action: &'static str, source: libbpf_rs::Error) -> Self {
        let hint = match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => {
                ": it takes CAP_BPF and CAP_PERFMON, which root has unless a container's filter or a \
                 security module says no (`holdfast doctor` looks), and a kernel with BTF and fentry"
            }
            _ => "",
        };
        Self::Bpf { action, hint, source }
    }
}
