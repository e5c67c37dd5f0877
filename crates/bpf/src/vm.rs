// SPDX-License-Identifier: GPL-2.0-or-later
//! The VMs of the host as discovery knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_guest::{ReadError, ResolvedGuest, Slot, VcpuRecord};

/// Shortest and longest time between attempts to read a guest. A guest that is still booting
/// becomes readable soon; one that never does costs little.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// One vCPU.
#[derive(Debug, Clone)]
pub struct Vcpu {
    /// Thread that runs it.
    pub tid: u32,
    /// Its steal-time record, if the guest has registered one.
    pub record: Option<VcpuRecord>,
}

/// Whether a guest's kernel can be read.
#[derive(Debug)]
pub enum VmState {
    /// Not known yet, or not any more; the last reason, if it was tried.
    Unreadable(Option<ReadError>),
    /// Its classes are read.
    Readable(Arc<ResolvedGuest>),
}

/// One VM.
#[derive(Debug)]
pub struct Vm {
    /// Process of its VMM.
    pub pid: u32,
    /// Its vCPUs by number.
    pub vcpus: BTreeMap<u32, Vcpu>,
    /// Can it be read?
    pub state: VmState,
    /// Memory of the guest.
    pub(crate) slots: Vec<Slot>,
    pub(crate) epoch: u32,
    retry_at: Instant,
    retry_after: Duration,
}

impl Vm {
    pub(crate) fn new(pid: u32, epoch: u32) -> Self {
        Self {
            pid,
            vcpus: BTreeMap::new(),
            state: VmState::Unreadable(None),
            slots: Vec::new(),
            epoch,
            retry_at: Instant::now(),
            retry_after: RETRY_MIN,
        }
    }

    /// What was learnt is stale: the guest was reset, or its records moved.
    pub(crate) fn enter_epoch(&mut self, epoch: u32) {
        if self.epoch == epoch {
            return;
        }
        self.epoch = epoch;
        self.state = VmState::Unreadable(None);
        for vcpu in self.vcpus.values_mut() {
            vcpu.record = None;
        }
        self.retry_soon();
    }

    /// Something changed that may make it readable.
    pub(crate) fn retry_soon(&mut self) {
        self.retry_at = Instant::now();
        self.retry_after = RETRY_MIN;
    }

    /// From when on it is worth trying to read it; `None` while it is, or cannot be.
    pub(crate) fn resolving_due(&self) -> Option<Instant> {
        let is_open = matches!(self.state, VmState::Unreadable(_))
            && self.vcpus.values().any(|vcpu| vcpu.record.is_some());
        is_open.then_some(self.retry_at)
    }

    pub(crate) fn wants_resolving(&self, now: Instant) -> bool {
        self.resolving_due().is_some_and(|due| now >= due)
    }

    pub(crate) fn failed(&mut self, why: ReadError, now: Instant) {
        self.state = VmState::Unreadable(Some(why));
        self.retry_at = now + self.retry_after;
        self.retry_after = (self.retry_after * 2).min(RETRY_MAX);
    }

    pub(crate) fn records(&self) -> Vec<VcpuRecord> {
        self.vcpus.values().filter_map(|vcpu| vcpu.record).collect()
    }

    /// Is its guest readable?
    pub fn is_readable(&self) -> bool {
        matches!(self.state, VmState::Readable(_))
    }
}
