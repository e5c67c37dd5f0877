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
        /// What to do about it, after a colon or semicolon; or empty.
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
        matches!(self, Self::Bpf { source, .. } if is_eperm(source))
    }

    pub(crate) fn bpf(action: &'static str, source: libbpf_rs::Error) -> Self {
        let hint = if is_eperm(&source) {
            ": a filter of system calls (a container's?), a security module or lockdown refuses it \
             (`holdfast doctor` looks)"
        } else {
            "; `holdfast doctor` says why"
        };
        Self::Bpf { action, hint, source }
    }
}

/// The verifier rejects programs with EACCES, which is of the same kind to libbpf-rs; the number is
/// nowhere but in the text.
fn is_eperm(error: &libbpf_rs::Error) -> bool {
    format!("{error:#}").contains("(os error 1)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_the_verifier_rejects_is_not_refused() {
        let loading =
            |errno| DiscoveryError::bpf("load", libbpf_rs::Error::from_raw_os_error(errno));
        let (refused, rejected) = (loading(libc::EPERM), loading(libc::EACCES));
        assert!(refused.is_refused() && refused.to_string().contains("security module"));
        assert!(!rejected.is_refused(), "{rejected}");
        assert!(rejected.to_string().ends_with("; `holdfast doctor` says why"), "{rejected}");
    }
}
