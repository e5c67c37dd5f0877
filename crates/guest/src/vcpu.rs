// SPDX-License-Identifier: GPL-2.0-or-later
//! vCPUs, as KVM knows them and as their guest's kernel does.

use crate::address::{Gpa, Hva, Slot};

/// Length of a steal-time record (`struct kvm_steal_time`), and its alignment.
const STEAL_TIME_LEN: u64 = 64;

/// A vCPU's steal-time record, as KVM has it in `vcpu->arch.st.cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VcpuRecord {
    /// Number KVM gave the vCPU.
    pub vcpu_idx: u32,
    /// Host address of the record.
    pub steal_time: Hva,
    /// Guest-physical address of the record.
    pub steal_time_gpa: Gpa,
    /// The slot it lies in.
    pub slot: Slot,
}

impl VcpuRecord {
    /// A record at `steal_time_gpa`, or `None` if it does not lie in `slot`.
    pub fn new(vcpu_idx: u32, steal_time_gpa: Gpa, slot: Slot) -> Option<Self> {
        let steal_time = slot.to_hva(steal_time_gpa, STEAL_TIME_LEN)?;
        Some(Self { vcpu_idx, steal_time, steal_time_gpa, slot })
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.slot.to_hva(self.steal_time_gpa, STEAL_TIME_LEN) == Some(self.steal_time)
            && self.steal_time_gpa.get().is_multiple_of(STEAL_TIME_LEN)
    }
}

/// A vCPU and the place of its per-CPU area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Number KVM gave it.
    pub vcpu_idx: u32,
    /// Number the guest's kernel gave it; the two can differ.
    pub cpu: u32,
    /// Guest-physical address of its per-CPU area.
    pub area: Gpa,
    /// Host address of the same.
    pub area_hva: Hva,
}

impl Vcpu {
    /// Host address of the word at `offset` in the area; within the slot for offsets of the layout
    /// this was made with.
    pub fn hva(&self, offset: u32) -> Hva {
        Hva::new(self.area_hva.get().wrapping_add(u64::from(offset)))
    }
}
