// SPDX-License-Identifier: GPL-2.0-or-later
//! The rate of the cycle counter.

/// Cycles of the time-stamp counter per second, measured against the monotonic clock.
#[cfg(target_arch = "x86_64")]
pub(super) fn tsc_hz() -> Option<f64> {
    use std::time::{Duration, Instant};

    // Long enough for an error of a thousandth of a percent, if nothing interferes.
    const MEASURED: Duration = Duration::from_millis(50);
    // SAFETY: every x86-64 CPU has the instruction, and user space may use it unless the process
    // has forbidden it (PR_SET_TSC).
    let now = || unsafe { core::arch::x86_64::_rdtsc() };
    let (start, first) = (Instant::now(), now());
    std::thread::sleep(MEASURED);
    let (elapsed, last) = (start.elapsed(), now());
    (last > first).then(|| (last - first) as f64 / elapsed.as_secs_f64())
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn tsc_hz() -> Option<f64> {
    None
}
