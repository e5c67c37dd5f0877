// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C: the first asks everything in the lab to end and clean up, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static PENDING: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP end waits in this crate with
/// [`Error::Interrupted`](crate::Error::Interrupted), so that what is running is dropped in order.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = handler as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing but async-signal-safe things.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
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
