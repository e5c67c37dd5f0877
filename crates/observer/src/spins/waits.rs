// SPDX-License-Identifier: GPL-2.0-or-later
//! The model that the text and the JSON of `spins` are made from.

use serde::Serialize;

use crate::histogram::Histogram;

/// Kinds of locks, in the order of `enum hf_lock_type`.
pub(super) const LOCKS: [&str; 7] =
    ["spinlock", "rwlock_read", "rwlock_write", "mutex", "rwsem_read", "rwsem_write", "other"];

/// Waits for contended locks. JSON schema tag: `holdfast.spins/1`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Waits {
    pub(super) schema: &'static str,
    /// CLOCK_MONOTONIC, ns.
    pub(super) t_ns: u64,
    /// Time covered, ns.
    pub(super) interval_ns: u64,
    /// Is this a virtual machine?
    pub(super) guest: bool,
    /// Cycles per second; absent without a cycle counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tsc_hz: Option<f64>,
    pub(super) lost_events: u64,
    pub(super) locks: Vec<LockWaits>,
}

/// Waits for one kind of lock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LockWaits {
    pub(super) lock: &'static str,
    pub(super) count: u64,
    pub(super) total_ns: u64,
    pub(super) hist: Histogram,
}

impl Waits {
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let mut waits = self.clone();
        waits.interval_ns = self.t_ns.saturating_sub(earlier.t_ns);
        waits.lost_events = self.lost_events.saturating_sub(earlier.lost_events);
        for (lock, old) in waits.locks.iter_mut().zip(&earlier.locks) {
            lock.count = lock.count.saturating_sub(old.count);
            lock.total_ns = lock.total_ns.saturating_sub(old.total_ns);
            lock.hist = lock.hist.zip(&old.hist, u64::saturating_sub);
        }
        waits
    }
}
