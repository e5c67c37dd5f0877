// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors with what the kernel's log says about them.

use std::cell::RefCell;

use anyhow::{Error, anyhow};

use crate::preflight::chain;

/// Most lines that are quoted.
const LINES: usize = 4;

/// The kernel's log from when this was made.
pub(crate) struct KernelLog(Option<RefCell<holdfast_checks::KernelLog>>);

impl KernelLog {
    pub(crate) fn open() -> Self {
        Self(holdfast_checks::KernelLog::from_now().ok().map(RefCell::new))
    }

    /// An error with the lines that the kernel has logged since.
    pub(crate) fn quote(&self, error: Error) -> Error {
        let Some(log) = &self.0 else {
            return anyhow!("{}; `dmesg | grep sched_ext` may say why", chain(&error));
        };
        let lines = log.borrow_mut().lines().into_iter().map(|line| line.text);
        let lines = lines.take(LINES).collect::<Vec<_>>();
        if lines.is_empty() {
            return error;
        }
        anyhow!("{}; the kernel's log: {}", chain(&error), lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_points_to_dmesg_if_the_log_cannot_be_read() {
        let error = KernelLog(None).quote(anyhow!("x").context("y"));
        assert_eq!(chain(&error), "y: x; `dmesg | grep sched_ext` may say why");
    }
}
