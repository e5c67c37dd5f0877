// SPDX-License-Identifier: GPL-2.0-or-later
//! The reader's interface to the memory of a guest.
//!
//! The scan and the layout checks consume this trait; [`crate::ProcessMemory`] provides it for a
//! running guest and the tests provide it for fake ones.
//!
//! Guest memory is *volatile*: other CPUs write to it while it is read, so a read may be torn at
//! any byte, two reads of the same place may differ, and nothing read once may be trusted to still
//! be there. Everything is therefore copied first and checked on the copy.

use std::io;

use crate::address::{Hva, HvaRange};

/// Errors of reading a guest's memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The process that ran the guest has ended.
    #[error("process {pid} is gone: the guest was stopped while it was read")]
    ProcessGone {
        /// Process id it had.
        pid: u32,
    },
    /// The kernel does not allow reading the process.
    #[error(
        "not allowed to {what} of process {pid}: run as root, or with CAP_SYS_PTRACE in the user \
         namespace of the process and CAP_DAC_READ_SEARCH (and see \
         /proc/sys/kernel/yama/ptrace_scope, and security modules)"
    )]
    Permission {
        /// Process that was to be read.
        pid: u32,
        /// The action that failed.
        what: &'static str,
    },
    /// Nothing readable is mapped there.
    #[error("{len} bytes at {at} of process {pid} are not readable: stale memory slot?")]
    NotMapped {
        /// Process that was read.
        pid: u32,
        /// Start of the read.
        at: Hva,
        /// Length of the read.
        len: usize,
    },
    /// Any other error from the kernel.
    #[error("cannot {what} of process {pid}")]
    Os {
        /// Process that was to be read.
        pid: u32,
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Memory of a guest, addressed as the process that runs the guest sees it.
pub trait GuestMemory: Sync {
    /// Fills `buf` from `at`. The copy may be torn. Fails if any byte cannot be read.
    ///
    /// Reading a page that is not resident may allocate it in the guest's process. Ask
    /// [`resident`](Self::resident) first wherever the page is not known to be in use.
    fn read(&self, at: Hva, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Appends to `out`, in ascending order, the parts of `range` that are in memory now.
    ///
    /// Whole pages are reported, cut to `range`. Swapped pages are not resident; the shared zero
    /// page may be either.
    fn resident(&self, range: HvaRange, out: &mut Vec<HvaRange>) -> Result<(), MemoryError>;

    /// Are all `len` bytes from `at` in memory now?
    fn is_resident(&self, at: Hva, len: u64) -> Result<bool, MemoryError> {
        let (range, mut runs) = (HvaRange::new(at, len), Vec::new());
        self.resident(range, &mut runs)?;
        Ok(runs.first().is_some_and(|run| run.contains(range)))
    }

    /// Fills one `len`-byte piece of `buf` for each address in `at`; pieces that cannot be read are
    /// zeroed.
    ///
    /// # Panics
    /// If `buf` is shorter than `at.len() * len`.
    fn gather(&self, at: &[Hva], len: usize, buf: &mut [u8]) -> Result<(), MemoryError> {
        for (&at, piece) in at.iter().zip(buf[..at.len() * len].chunks_exact_mut(len)) {
            match self.read(at, piece) {
                Err(MemoryError::NotMapped { .. }) => piece.fill(0),
                other => other?,
            }
        }
        Ok(())
    }

    /// Reads a little-endian 32-bit word.
    fn read_u32(&self, at: Hva) -> Result<u32, MemoryError> {
        let mut word = [0; 4];
        self.read(at, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Reads a little-endian 64-bit word.
    fn read_u64(&self, at: Hva) -> Result<u64, MemoryError> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
