// SPDX-License-Identifier: GPL-2.0-or-later
//! What things cost. The defaults are those of the lab's emulated hosts with two CPUs at work, an
//! instruction taking 2 ns (docs/lab/machine.md, "The clock of an emulated host").

use crate::config::{MS, US};

/// Times in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// One round of a spin loop: a PAUSE (40 ns) and what is around it.
    pub spin_ns: u64,
    /// Rounds of a paravirtual spin before a halt (`SPIN_THRESHOLD`).
    pub spin_threshold: u64,
    /// Spinning between two pause exits: 1000 PAUSEs.
    pub ple_window_ns: u64,
    /// Upper bound of that time, which grows by half at each exit and begins anew when the vCPU is
    /// scheduled (`grow_ple_window()`, `shrink_ple_window()`); the lab's does not grow.
    pub ple_window_max_ns: u64,
    /// To load a vCPU on a CPU, and to enter it: its state, and cold caches of translations.
    pub load_ns: u64,
    /// From the guest to KVM and back.
    pub exit_ns: u64,
    /// KVM's way to a halt, and back.
    pub halt_ns: u64,
    /// Longest halt polling; 0: none (`halt_poll_ns`).
    pub halt_poll_max_ns: u64,
    /// An interrupt that KVM delivers to a running vCPU: its exit, and the guest's entry.
    pub irq_ns: u64,
    /// Until a CPU sees what another one has written while it spins.
    pub hand_over_ns: u64,
    /// A lock operation without contention.
    pub lock_ns: u64,
    /// `__schedule()` of the guest, with its run queue locked.
    pub schedule_ns: u64,
    /// A wakeup in the guest, without its lock.
    pub wake_ns: u64,
    /// The same, with the run queue locked.
    pub wake_locked_ns: u64,
    /// Slice of the guest's own threads.
    pub guest_slice_ns: u64,
    /// Period of the guest's tick, on CPUs that do not idle.
    pub guest_tick_ns: u64,
    /// What a tick takes, in interrupt context.
    pub tick_ns: u64,
    /// A shootdown: what flushing 16 pages takes, an emulated INVLPG being slow.
    pub flush_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            spin_ns: 50,
            spin_threshold: 1 << 15,
            ple_window_ns: 50 * US,
            ple_window_max_ns: 50 * US,
            load_ns: 4 * US,
            exit_ns: 5 * US,
            halt_ns: 8 * US,
            halt_poll_max_ns: 200 * US,
            irq_ns: 8 * US,
            hand_over_ns: 500,
            lock_ns: 30,
            schedule_ns: 3500,
            wake_ns: 1500,
            wake_locked_ns: 1500,
            guest_slice_ns: 2 * MS,
            guest_tick_ns: 4 * MS,
            tick_ns: 6 * US,
            flush_ns: 25 * US,
        }
    }
}
