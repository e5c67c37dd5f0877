// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C: the first asks everything in the lab to end and clean up, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static PENDING: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP end waits in this crate with
/// [`Error::Interrupted`](crate::Error::Interrupted), so that what is running is dropped in order. One that
/// is ignored stays so: `nohup`, or a shell that started this in the background, meant it.
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

/// What is done at `signal`.
fn action(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: zeroes are a sigaction, which the kernel fills; nothing is changed by asking.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

extern "C" fn handler(signal: libc::c_int) {
    if PENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: both calls are async-signal-safe; what the lab has started dies with its parent.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Whether somebody has asked to end.
pub fn is_pending() -> bool {
    PENDING.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_stays_ignored() {
        // SAFETY: plain system calls; no other test minds what these signals do.
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
