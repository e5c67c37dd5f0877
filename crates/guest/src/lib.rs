// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads a guest from outside: from the memory of its VMM's process to the places of the words that
//! tell the class of each vCPU.
//!
//! KVM knows the host address of each vCPU's steal-time record, which lies in the static per-CPU
//! area of the guest's kernel. The kernel's BTF, which lies in the guest's memory, gives the
//! distance from this record to all other words, or its types and the kernel's symbol table do. No
//! page tables and no help from the guest are needed.
//!
//! ```no_run
//! use holdfast_guest::{Reader, Slot, VcpuRecord};
//! # fn from_kvm() -> (u32, Vec<Slot>, Vec<VcpuRecord>) { unimplemented!() }
//! let (pid, slots, records) = from_kvm();
//! let reader = Reader::new();
//! let guest = reader.resolve(pid, &slots, &records)?;
//! println!("{}: {:?}", guest.kernel(), guest.deltas());
//! # Ok::<(), holdfast_guest::ReadError>(())
//! ```
//!
//! From the bottom up: [`address`] and [`memory`] define a guest's memory, [`process`] reads it
//! from a running process, [`scan`] finds BTF in it, `btf` parses the BTF, [`layout`] makes offsets
//! of it, `fit` compares these with the [`vcpu`]s, and [`reader`] picks the layout that fits. The
//! words themselves are read by BPF: `hf_read_class()` in `crates/bpf`.
//!
//! Everything read from a guest is untrusted. For any contents the answer is a fact or an error, in
//! bounded time and memory, and nothing outside the guest's memory slots is read.

pub mod address;
mod btf;
mod error;
mod fit;
mod kallsyms;
pub mod layout;
pub mod memory;
pub mod process;
pub mod reader;
mod release;
mod resolved;
pub mod scan;
pub mod source;
pub mod tier;
pub mod vcpu;
mod windows;

pub use address::{Gpa, Gva, Hva, HvaRange, Slot};
pub use btf::BtfError;
pub use error::{COUNT_PREEMPTION, ReadError};
pub use fit::Misfit;
pub use holdfast_policy::CountKind;
pub use layout::{BuildId, Layout, LayoutError};
pub use memory::{GuestMemory, MemoryError};
pub use process::ProcessMemory;
pub use reader::Reader;
pub use resolved::{Deltas, Kernel, QueueDeltas, ResolvedGuest};
pub use source::{BtfFiles, SourceError};
pub use tier::Tier;
pub use vcpu::{Vcpu, VcpuRecord};
pub use windows::WindowsId;
