// SPDX-License-Identifier: GPL-2.0-or-later
//! The model that the text and the JSON of `spins` are made from.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Kinds of locks, in the order of `enum hf_lock_type`.
pub(super) const LOCKS: [&str; 7] =
    ["spinlock", "rwlock_read", "rwlock_write", "mutex", "rwsem_read", "rwsem_write", "other"];

/// Schema tag of [`Waits`] as a line of JSON.
pub const SPINS: &str = "holdfast.spins/1";

/// Waits for contended locks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// [`SPINS`].
    pub schema: Cow<'static, str>,
    /// CLOCK_MONOTONIC, ns.
    pub t_ns: u64,
    /// Time covered, ns.
    pub interval_ns: u64,
    /// Is this a virtual machine?
    pub guest: bool,
    /// Cycles per second; absent without a cycle counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc_hz: Option<f64>,
    /// Waits that were not counted.
    pub lost_events: u64,
    /// By kind of lock.
    pub locks: Vec<LockWaits>,
}

/// Waits for one kind of lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LockWaits {
    /// Its kind, one of [`LOCKS`].
    pub lock: Cow<'static, str>,
    /// Number of waits.
    pub count: u64,
    /// Their sum, ns.
    pub total_ns: u64,
    /// Their lengths.
    pub hist: Histogram,
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
