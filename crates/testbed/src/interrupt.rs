// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C: the first asks everything in the lab to end and clean up; a later one ends the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Signals within this time count as one: timeout(1) sends each twice.
const TOGETHER_NS: u64 = 500_000_000;

/// Time of the first request; 0 if there is none.
static ASKED_NS: AtomicU64 = AtomicU64::new(0);

/// Makes SIGINT, SIGTERM and SIGHUP end waits in this crate with
/// [`Error::Interrupted`](crate::Error::Interrupted), so that running parts are dropped in order.
/// An ignored signal stays ignored: `nohup`, or a shell that started this in the background, meant
/// it.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if action(signal) == libc::SIG_IGN {
            continue;
        }
        let handler = handler as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing but async-signal-safe things.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// The action for `signal`.
fn action(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: zeroes are a sigaction, which the kernel fills; nothing is changed by asking.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

extern "C" fn handler(signal: libc::c_int) {
    let now = monotonic_ns().max(1);
    let first = ASKED_NS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| now.saturating_sub(first) > TOGETHER_NS) {
        // SAFETY: both calls are async-signal-safe; processes of the lab die with their parent.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: async-signal-safe, and `now` is valid for the call, which does not fail for this
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether an end was requested.
pub fn is_pending() -> bool {
    ASKED_NS.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_stays_ignored() {
        // SAFETY: plain system calls; no other test depends on these signals.
        let set = |signal, to| unsafe { libc::signal(signal, to) };
        let (hup, term) = (action(libc::SIGHUP), action(libc::SIGTERM));
        set(libc::SIGHUP, libc::SIG_IGN);
        set(libc::SIGTERM, libc::SIG_DFL);
        install();
        assert_eq!(action(libc::SIGHUP), libc::SIG_IGN);
        assert!(![libc::SIG_IGN, libc::SIG_DFL].contains(&action(libc::SIGTERM)));
        set(libc::SIGHUP, hup);
        set(libc::SIGTERM, term);
    }
}
