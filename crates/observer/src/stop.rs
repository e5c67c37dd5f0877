// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C asks a command to end in order: what it has is written, what it attached is detached.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::ObserverError;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT, SIGTERM and SIGHUP ask, and do not kill.
pub(crate) fn on_signals() -> Result<(), ObserverError> {
    ctrlc::set_handler(|| ASKED.store(true, Ordering::Relaxed)).map_err(|error| ObserverError::Io {
        action: "catch signals",
        source: io::Error::other(error),
    })
}

/// Has somebody asked?
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
