// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors of the discovery of vCPUs.

use thiserror::Error;

/// Errors of discovery as a whole. A VM that cannot be read is no error, but a state of that VM:
/// see [`crate::VmState`].
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// The BPF program could not be loaded or attached.
    #[error("cannot {action} the vCPU discovery program{hint}")]
    Bpf {
        /// The action that failed.
        action: &'static str,
        /// Advice, after a colon or semicolon; or empty.
        hint: &'static str,
        /// Error from libbpf.
        source: libbpf_rs::Error,
    },
    /// A map operation failed.
    #[error("cannot {action} in the BPF map `{map}`")]
    Map {
        /// The action that failed.
        action: &'static str,
        /// Name of the map.
        map: &'static str,
        /// Error from libbpf.
        source: libbpf_rs::Error,
    },
}

impl DiscoveryError {
    /// Does this machine refuse the program to every process?
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Bpf { source, .. } if is_eperm(source))
    }

    pub(crate) fn bpf(action: &'static str, source: libbpf_rs::Error) -> Self {
        let hint = if is_eperm(&source) {
            ": a filter of system calls (a container's?), a security module or lockdown refuses it \
             (`holdfast doctor` may tell)"
        } else {
            "; `holdfast doctor` says why"
        };
        Self::Bpf { action, hint, source }
    }
}

/// Does an error of libbpf, as text, have this number? libbpf-rs gives no other access to it, and
/// has one kind of error for EPERM and for EACCES, with which the verifier rejects programs.
pub fn has_errno(text: &str, errno: i32) -> bool {
    text.contains(&format!("(os error {errno})"))
}

fn is_eperm(error: &libbpf_rs::Error) -> bool {
    has_errno(&format!("{error:#}"), libc::EPERM)
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
