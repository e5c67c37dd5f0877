// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines of the kernel's log about sched_ext, which explain more than an error number.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crate::text::printable;

/// Their prefix.
const OF_SCHED_EXT: &str = "sched_ext: ";
/// Longer than any record (`PRINTK_MESSAGE_MAX` of kernel/printk/internal.h).
const RECORD: usize = 8192;

/// A line of the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Time since the boot.
    pub since_boot: Duration,
    /// The text.
    pub text: String,
}

/// The kernel's log about sched_ext, from a place in it.
#[derive(Debug)]
pub struct KernelLog<R = File>(R);

impl KernelLog {
    /// The log from now on. It cannot be read where `kernel.dmesg_restrict` is 1 and CAP_SYSLOG is
    /// missing, as in the service.
    pub fn from_now() -> io::Result<Self> {
        let mut log = Self::from_start()?;
        log.0.seek(SeekFrom::End(0))?;
        Ok(log)
    }

    /// All of the log that the kernel still has.
    pub fn from_start() -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").map(Self)
    }
}

impl<R: Read> KernelLog<R> {
    /// The next lines about sched_ext, to the end of the log.
    pub fn lines(&mut self) -> Vec<LogLine> {
        let mut record = [0; RECORD];
        let mut lines = Vec::new();
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(len) => lines.extend(line_of(&record[..len])),
                // Some records were overwritten before they were read; reading goes on behind them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }
}

/// The text of a record of /dev/kmsg about sched_ext, if it is the kernel's own:
/// `6,1234,56789,-;text`, with lines of properties below (Documentation/ABI/testing/dev-kmsg).
fn line_of(record: &[u8]) -> Option<LogLine> {
    let record = String::from_utf8_lossy(record);
    let (prefix, text) = record.split_once(';')?;
    let mut prefix = prefix.split(',');
    let priority: u32 = prefix.next()?.parse().ok()?;
    let since_boot = Duration::from_micros(prefix.nth(1)?.parse().ok()?);
    let is_kernels = priority >> 3 == 0;
    let line = text.lines().next()?;
    (is_kernels && line.starts_with(OF_SCHED_EXT))
        .then(|| LogLine { since_boot, text: printable(line) })
}

/// The end of a scheduler, as the kernel logs it (`scx_disable_workfn()` of
/// kernel/sched/ext/ext.c).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Time since the boot.
    pub since_boot: Duration,
    /// The scheduler's name.
    pub scheduler: String,
    /// The reason.
    pub reason: String,
    /// Details, if the kernel ended it.
    pub message: Option<String>,
}

/// The last end of a scheduler among these lines.
pub fn last_exit(lines: &[LogLine]) -> Option<Exit> {
    let ends = lines.iter().enumerate().rev().find_map(|(at, line)| {
        let rest = line.text.strip_prefix("sched_ext: BPF scheduler \"")?;
        let (scheduler, rest) = rest.split_once("\" disabled (")?;
        Some((at, line, scheduler, rest.strip_suffix(')')?))
    });
    let (at, line, scheduler, reason) = ends?;
    let prefix = format!("{OF_SCHED_EXT}{scheduler}: ");
    let message = lines.get(at + 1).and_then(|next| next.text.strip_prefix(&prefix));
    Some(Exit {
        since_boot: line.since_boot,
        scheduler: scheduler.to_owned(),
        reason: reason.to_owned(),
        message: message.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_only_the_kernels_own_lines_about_sched_ext() {
        let record = "3,512,1234567,-;sched_ext: Not compatible with \"isolcpus=\" domain \
                      isolation\n SUBSYSTEM=x\n";
        let expected = "sched_ext: Not compatible with \"isolcpus=\" domain isolation";
        let line = line_of(record.as_bytes()).unwrap();
        assert_eq!((line.text.as_str(), line.since_boot.as_micros()), (expected, 1_234_567));
        // Lines of a program and of another subsystem, and no line.
        assert_eq!(line_of(b"11,513,1234568,-;sched_ext: all is well\n"), None);
        assert_eq!(line_of(b"6,514,1234569,-;e1000: link is up\n"), None);
        assert_eq!(line_of(b"x"), None);
        let named = line_of(b"3,515,1,-;sched_ext: ops.init_task() failed for \x1b[2J\n");
        assert_eq!(named.unwrap().text, "sched_ext: ops.init_task() failed for ?[2J");
    }

    #[test]
    fn the_last_exit_has_its_reason_and_the_details_of_an_error() {
        let lines = |texts: &[&str]| {
            let line = |(at, text): (usize, &&str)| LogLine {
                since_boot: Duration::from_secs(at as u64),
                text: format!("sched_ext: {text}"),
            };
            texts.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        let enabled = "BPF scheduler \"holdfast\" enabled";
        assert_eq!(last_exit(&lines(&[enabled])), None);
        let stall = "BPF scheduler \"holdfast\" disabled (runnable task stall)";
        let why = "holdfast: qemu[12] failed to run for 30.1s";
        let failed = last_exit(&lines(&[enabled, stall, why, enabled])).unwrap();
        assert_eq!((failed.scheduler.as_str(), failed.since_boot.as_secs()), ("holdfast", 1));
        assert_eq!(failed.reason, "runnable task stall");
        assert_eq!(failed.message.as_deref(), Some("qemu[12] failed to run for 30.1s"));
        let asked = "BPF scheduler \"x\" disabled (unregistered from user space)";
        let asked = last_exit(&lines(&[stall, why, enabled, asked, enabled])).unwrap();
        assert_eq!((asked.reason.as_str(), asked.message), ("unregistered from user space", None));
    }
}
