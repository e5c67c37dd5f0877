// SPDX-License-Identifier: GPL-2.0-or-later
//! Standard error that nobody waits for.
//!
//! Whoever reads the log may be stuck or gone. That must neither keep a scheduler from being unloaded nor end it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

const STDERR: RawFd = libc::STDERR_FILENO;
/// How long a reader that is slow is waited for, once.
const PATIENCE_MS: libc::c_int = 1000;
/// What is written at once: a pipe that has room has room for so much.
const PIECE: usize = libc::PIPE_BUF;

/// Where the log goes: what nobody takes is dropped.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        if !has_room(STDERR) {
            return Ok(piece.len());
        }
        // SAFETY: `piece` is memory of ours.
        let written = unsafe { libc::write(STDERR, piece.as_ptr().cast(), piece.len()) };
        Ok(usize::try_from(written).unwrap_or(piece.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets `/dev/null` take what comes if nobody does: for what is printed by others, who wait, and panic if the reader is
/// gone.
pub(crate) fn give_up_if_unread() {
    if has_room(STDERR) {
        return;
    }
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // SAFETY: plain system call on descriptors that are open, or were.
        unsafe { libc::dup2(null.as_raw_fd(), STDERR) };
    }
}

/// Can something be written now, or soon? Who was waited for in vain is not waited for again.
fn has_room(fd: RawFd) -> bool {
    static IS_DEAF: AtomicBool = AtomicBool::new(false);
    let patience = if IS_DEAF.load(Ordering::Relaxed) { 0 } else { PATIENCE_MS };
    let has_room = is_writable(fd, patience);
    IS_DEAF.store(!has_room, Ordering::Relaxed);
    has_room
}

fn is_writable(fd: RawFd, timeout_ms: libc::c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    ready > 0 && poll.revents & (libc::POLLOUT | libc::POLLERR | libc::POLLNVAL) == libc::POLLOUT
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_pipe_is_written_to_while_somebody_may_read_it() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        assert!(is_writable(fd, 0));
        let mut nr_written = 0;
        while is_writable(fd, 0) {
            writer.write_all(&[b'x'; PIECE]).unwrap();
            nr_written += PIECE;
        }
        assert!(nr_written >= PIECE && !is_writable(fd, 10));
        reader.read_exact(&mut vec![0; nr_written]).unwrap();
        assert!(is_writable(fd, 0));
        drop(reader);
        assert!(!is_writable(fd, 0));
    }

    #[test]
    fn files_take_everything_and_what_is_closed_nothing() {
        let null = File::options().write(true).open("/dev/null").unwrap();
        assert!(is_writable(null.as_raw_fd(), 0));
        assert!(!is_writable(RawFd::MAX, 0));
    }
}
