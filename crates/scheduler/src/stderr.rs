// SPDX-License-Identifier: GPL-2.0-or-later
//! Standard error without waiting.
//!
//! The reader of the log may hang or be gone. That must neither keep a scheduler from being
//! unloaded nor end it: text that the reader does not take is dropped.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long to wait, once, for a slow reader.
const PATIENCE_MS: libc::c_int = 1000;

/// A log that can be written to at any time.
#[derive(Debug)]
enum Log {
    /// A pipe or a terminal, opened once more, as O_NONBLOCK is shared by all that have it open.
    Own(File),
    /// A socket, as of a journal: each write says that it does not wait.
    Socket(RawFd),
    /// A file: writes never wait for a reader.
    Plain(RawFd),
}

impl Log {
    fn of(fd: RawFd) -> Self {
        // SAFETY: dropping this does not close it, and the next call checks that it is open.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let Ok(kind) = file.metadata().map(|metadata| metadata.file_type()) else {
            return Log::Plain(fd);
        };
        if kind.is_socket() {
            return Log::Socket(fd);
        }
        if !kind.is_fifo() && !kind.is_char_device() {
            return Log::Plain(fd);
        }
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        options.open(format!("/proc/self/fd/{fd}")).map_or(Log::Plain(fd), Log::Own)
    }

    fn fd(&self) -> RawFd {
        match self {
            Log::Own(file) => file.as_raw_fd(),
            Log::Socket(fd) | Log::Plain(fd) => *fd,
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (fd, data, len) = (self.fd(), bytes.as_ptr().cast(), bytes.len());
        let written = match self {
            // SAFETY: `data` and `len` are those of `bytes`.
            Log::Socket(_) => unsafe { libc::send(fd, data, len, libc::MSG_DONTWAIT) },
            // SAFETY: likewise.
            _ => unsafe { libc::write(fd, data, len) },
        };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Writes all of it, or as much as the reader takes.
    fn write(&self, mut bytes: &[u8], is_deaf: &AtomicBool) {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(written) => {
                    is_deaf.store(false, Ordering::Relaxed);
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // After one wait in vain there is no other.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if is_deaf.swap(true, Ordering::Relaxed) || !self.has_room_soon() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn has_room_soon(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MS) > 0 }
    }
}

/// The destination of the log.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        static LOG: OnceLock<Log> = OnceLock::new();
        static IS_DEAF: AtomicBool = AtomicBool::new(false);
        LOG.get_or_init(|| Log::of(libc::STDERR_FILENO)).write(bytes, &IS_DEAF);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    /// Fills it: there is one wait, and the rest is dropped.
    fn fill(log: &Log) {
        let (is_deaf, start) = (AtomicBool::new(false), Instant::now());
        for _ in 0..10_000 {
            log.write(&[b'x'; 500], &is_deaf);
        }
        assert!(is_deaf.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn does_not_wait_for_a_pipe_without_a_reader() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = Log::of(writer.as_raw_fd());
        assert!(matches!(log, Log::Own(_)), "{log:?}");
        fill(&log);
        // It waits again after the other end has read.
        reader.read_exact(&mut [0; 8192]).unwrap();
        let is_deaf = AtomicBool::new(true);
        log.write(b"y", &is_deaf);
        assert!(!is_deaf.load(Ordering::Relaxed));
        drop(reader);
        log.write(b"y", &is_deaf);
    }

    #[test]
    fn does_not_wait_for_a_socket() {
        let (_reader, writer) = UnixStream::pair().unwrap();
        let log = Log::of(writer.as_raw_fd());
        assert!(matches!(log, Log::Socket(_)), "{log:?}");
        fill(&log);
    }

    #[test]
    fn does_not_wait_for_a_terminal() {
        let (mut master, mut terminal) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: openpty writes two integers; the other pointers are null.
        let made = unsafe {
            libc::openpty(&raw mut master, &raw mut terminal, none, none.cast(), none.cast())
        };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        let log = Log::of(terminal);
        assert!(matches!(log, Log::Own(_)), "{log:?}");
        fill(&log);
        // SAFETY: both are open, and used nowhere else.
        unsafe {
            libc::close(master);
            libc::close(terminal);
        }
    }

    #[test]
    fn writes_at_the_position_of_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before, ").unwrap();
        let log = Log::of(file.as_raw_fd());
        log.write(b"after", &AtomicBool::new(false));
        file.rewind().unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "before, after");
        // A closed descriptor takes nothing, and does no harm.
        Log::of(1 << 20).write(b"x", &AtomicBool::new(false));
    }
}
