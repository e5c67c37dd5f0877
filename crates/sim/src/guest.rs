// SPDX-License-Identifier: GPL-2.0-or-later
//! Memory of a VM, and what discovery tells the scheduler of its vCPUs.
//!
//! A guest is a [`Memory`] and a task for each vCPU. [`Machine::make_vcpu`](crate::Machine) fills
//! in the scheduler's map `vcpus` as the discovery program does. From then on the scheduler's reads
//! of guest memory hit the bytes of the [`Memory`], which programs of vCPUs write as a guest's
//! kernel would.

use std::cell::{Cell, RefCell};

use crate::layout as l;
use crate::raw::Raw;

/// Guest memory, mapped at one address in the VMM's address space.
pub struct Memory {
    bytes: RefCell<Vec<u8>>,
    /// Where it is mapped.
    pub hva: u64,
    /// The address of `struct kvm`, which identifies the VM.
    pub kvm: u64,
}

impl Memory {
    pub(crate) fn new(nr: u64, bytes: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; bytes]),
            hva: 0x7f00_0000_0000 + (nr << 32),
            kvm: 0xffff_8880_0000_0000 + ((nr + 1) << 12),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes.borrow().len()
    }

    /// Has it no bytes?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads 4 bytes at `offset`.
    pub fn read_u32(&self, offset: usize) -> u32 {
        let bytes = self.bytes.borrow();
        u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"))
    }

    /// Writes 4 bytes at `offset`.
    pub fn write_u32(&self, offset: usize, value: u32) {
        self.bytes.borrow_mut()[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Reads 8 bytes at `offset`.
    pub fn read_u64(&self, offset: usize) -> u64 {
        let bytes = self.bytes.borrow();
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
    }

    /// Writes 8 bytes at `offset`.
    pub fn write_u64(&self, offset: usize, value: u64) {
        self.bytes.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Copies from the VMM's address `hva`; false if that is not of this memory.
    pub(crate) fn copy(&self, hva: u64, to: &mut [u8]) -> bool {
        let bytes = self.bytes.borrow();
        let Some(from) = hva.checked_sub(self.hva).and_then(|from| usize::try_from(from).ok())
        else {
            return false;
        };
        let Some(found) = from.checked_add(to.len()).and_then(|end| bytes.get(from..end)) else {
            return false;
        };
        to.copy_from_slice(found);
        true
    }
}

/// Where a guest's kernel keeps the words of one vCPU: offsets in its [`Memory`].
#[derive(Clone, Copy, Default, Debug)]
pub struct Words {
    /// `preempt_count`, 4 bytes.
    pub preempt_count: usize,
    /// The first of the CPU's queue nodes (`struct hf_qnode`); none: the kernel has none.
    pub qnode: Option<usize>,
    /// Pointers to the current and the idle task, 8 bytes each; none: not known.
    pub tasks: Option<(usize, usize)>,
    /// Head of the queue of function calls (`call_single_queue`), 8 bytes; none: not known.
    pub call_queue: Option<usize>,
    /// To be added to an address in the guest kernel's direct map to get an offset in [`Memory`].
    pub direct_map: u64,
}

/// `struct kvm_vcpu` of a vCPU, as far as the scheduler reads it.
pub struct KvmVcpu {
    raw: Raw,
    index: Cell<u32>,
}

impl KvmVcpu {
    pub(crate) fn new(index: u32) -> Self {
        Self { raw: Raw::new(l::VCPU_SIZE as usize + 64), index: Cell::new(index) }
    }

    /// `vcpu_idx`.
    pub fn index(&self) -> u32 {
        self.index.get()
    }

    pub(crate) fn address(&self) -> u64 {
        self.raw.address()
    }

    /// `spin_loop.in_spin_loop`: set while `kvm_vcpu_on_spin()` looks for a candidate.
    pub fn set_in_spin_loop(&self, spins: bool) {
        self.raw.set(l::VCPU_IN_SPIN_LOOP, u8::from(spins));
    }

    /// RAX: the number of the hypercall that the vCPU makes (`KVM_HC_KICK_CPU` is 5,
    /// `KVM_HC_SCHED_YIELD` 11).
    pub fn set_rax(&self, value: u64) {
        self.raw.set(l::VCPU_REGS, value);
    }
}
