// SPDX-License-Identifier: GPL-2.0-or-later
//! The sleep of the main loop.
//!
//! The scheduler's own process must not preempt vCPUs: on a quiet host it sleeps until there is
//! news of vCPUs, a signal or a request for statistics.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::Duration;

/// Wakes a thread from others: an eventfd(2).
pub(crate) struct Waker {
    event: File,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it for this process.
        Ok(Self { event: unsafe { File::from_raw_fd(fd) } })
    }

    /// Ends the sleep of the main loop, or the next one.
    pub(crate) fn wake(&self) {
        // It fails only if 2^64 - 2 calls are pending, which wake as well as one more.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }

    /// Sleeps until [`Self::wake`] is called, `news` can be read, a signal comes or `timeout` is
    /// over.
    pub(crate) fn sleep(&self, news: Option<BorrowedFd<'_>>, timeout: Duration) -> io::Result<()> {
        let poll_for = |fd: BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [poll_for(self.event.as_fd()), poll_for(news.unwrap_or(self.event.as_fd()))];
        // Rounded up: a sleep that ends too early is followed by another.
        let millis =
            timeout.as_micros().div_ceil(1000).min(libc::c_int::MAX as u128) as libc::c_int;
        // SAFETY: `fds` has as many elements as the call says.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        if fds[0].revents != 0 {
            // Empty again, for the next sleep.
            let _ = (&self.event).read(&mut [0; 8]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::Waker;

    const LONG: Duration = Duration::from_secs(60);

    fn time(sleep: impl FnOnce()) -> Duration {
        let start = Instant::now();
        sleep();
        start.elapsed()
    }

    #[test]
    fn wake_before_the_sleep_ends_it_once() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        assert!(time(|| waker.sleep(None, LONG).unwrap()) < LONG);
        let short = Duration::from_millis(20);
        assert!(time(|| waker.sleep(None, short).unwrap()) >= short);
    }

    #[test]
    fn wake_from_another_thread_ends_the_sleep() {
        let waker = Waker::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert!(time(|| waker.sleep(None, LONG).unwrap()) < LONG);
        });
    }

    #[test]
    fn news_end_the_sleep() {
        let waker = Waker::new().unwrap();
        let news = Waker::new().unwrap();
        news.wake();
        assert!(time(|| waker.sleep(Some(news.event.as_fd()), LONG).unwrap()) < LONG);
    }
}
