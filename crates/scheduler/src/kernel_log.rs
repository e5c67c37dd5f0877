// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines of the kernel's log about sched_ext, which explain more than an error number.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Error, anyhow};
use holdfast_checks::steers;

use crate::preflight::chain;

/// Their prefix.
const OF_SCHED_EXT: &str = "sched_ext: ";
/// Most lines that are quoted.
const LINES: usize = 4;
/// Longer than any record (`PRINTK_MESSAGE_MAX` of kernel/printk/internal.h).
const RECORD: usize = 8192;

/// The kernel's log from when this was made.
pub(crate) struct KernelLog(Option<File>);

impl KernelLog {
    /// It cannot be read where `kernel.dmesg_restrict` is 1 and CAP_SYSLOG missing, as in the
    /// service.
    pub(crate) fn open() -> Self {
        let mut options = File::options();
        let mut open = || {
            let mut log = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
            log.seek(SeekFrom::End(0))?;
            Ok::<_, std::io::Error>(log)
        };
        Self(open().ok())
    }

    /// An error with the lines that the kernel has logged since.
    pub(crate) fn quote(&self, error: Error) -> Error {
        let Some(log) = &self.0 else {
            return anyhow!("{}; `dmesg | grep sched_ext` may say why", chain(&error));
        };
        let lines = lines_of(log);
        if lines.is_empty() {
            return error;
        }
        anyhow!("{}; the kernel's log: {}", chain(&error), lines.join("; "))
    }
}

/// The next few lines about sched_ext.
fn lines_of(mut log: impl Read) -> Vec<String> {
    let mut record = [0; RECORD];
    let mut lines = Vec::new();
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(len) => lines.extend(line_of(&record[..len])),
            // Some records were overwritten before they were read; reading goes on behind them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    lines.truncate(LINES);
    lines
}

/// The text of a record of /dev/kmsg about sched_ext, if it is the kernel's own:
/// `6,1234,56789,-;text`, with lines of properties below (Documentation/ABI/testing/dev-kmsg).
fn line_of(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (prefix, text) = record.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    let is_kernels = priority >> 3 == 0;
    let line = text.lines().next()?;
    let printable = line.chars().map(|c| if steers(c) { '?' } else { c }).collect();
    (is_kernels && line.starts_with(OF_SCHED_EXT)).then_some(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_only_the_kernels_own_lines_about_sched_ext() {
        let record = "3,512,1234567,-;sched_ext: Not compatible with \"isolcpus=\" domain \
                      isolation\n SUBSYSTEM=x\n";
        let expected = "sched_ext: Not compatible with \"isolcpus=\" domain isolation";
        assert_eq!(line_of(record.as_bytes()).as_deref(), Some(expected));
        // Lines of a program and of another subsystem, and no line.
        assert_eq!(line_of(b"11,513,1234568,-;sched_ext: all is well\n"), None);
        assert_eq!(line_of(b"6,514,1234569,-;e1000: link is up\n"), None);
        assert_eq!(line_of(b"x"), None);
        let named = line_of(b"3,515,1,-;sched_ext: ops.init_task() failed for \x1b[2J\n");
        assert_eq!(named.as_deref(), Some("sched_ext: ops.init_task() failed for ?[2J"));
    }

    #[test]
    fn error_points_to_dmesg_if_the_log_cannot_be_read() {
        let error = KernelLog(None).quote(anyhow!("x").context("y"));
        assert_eq!(chain(&error), "y: x; `dmesg | grep sched_ext` may say why");
    }
}
