// SPDX-License-Identifier: GPL-2.0-or-later
//! Signals that ask a command to end, with the observer's error.

#[cfg(test)]
pub(crate) use holdfast_signals::ignoring;
pub(crate) use holdfast_signals::{is_asked, is_ignored};

use crate::error::ObserverError;

/// Makes signals ask the command to end in order: it writes its results and detaches its programs.
pub(crate) fn on_signals() -> Result<(), ObserverError> {
    holdfast_signals::catch()
        .map_err(|source| ObserverError::Io { action: "catch signals", source })
}
