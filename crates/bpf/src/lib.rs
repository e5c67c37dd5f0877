// SPDX-License-Identifier: GPL-2.0-or-later
//! Shared by Holdfast's BPF programs: the discovery of vCPUs and the headers that the scheduler and
//! the observer compile against.
//!
//! [`Discovery`] finds every vCPU thread of the host, learns through `holdfast-guest` the addresses
//! of the words that give its class, and keeps both up to date while VMs start, stop, reboot and
//! plug CPUs. Its consumers load programs that share the map of [`Discovery::vcpus`] and read
//! classes with `hf_read_class()` of `holdfast/vcpu.bpf.h`.

mod discovery;
mod error;
mod libbpf_log;
mod searches;
pub mod service;
mod skel;
mod vm;

pub use discovery::Discovery;
pub use error::{DiscoveryError, has_errno};
pub use holdfast_guest::{BtfFiles, COUNT_PREEMPTION, ReadError, Tier, WindowsId};
pub use libbpf_log::with_last_words;
pub use vm::{Vcpu, Vm, VmState, Windows};
