// SPDX-License-Identifier: GPL-2.0-or-later
//! The process of the host: QEMU, or the agent on the running machine. It cannot outlive us.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::console::Console;
use super::socket_pair;
use crate::error::{Error, Result};

/// Descriptor on which the process finds its end of the connection.
pub(super) const SOCKET_FD: i32 = 3;
/// Longest wait for a killed process.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Owns the process: dropping it ends it.
pub(super) struct Process {
    watch: Watch,
}

/// The part that the waiting thread shares.
#[derive(Clone)]
pub(super) struct Watch {
    pid: i32,
    console: Console,
    ended: Arc<(Mutex<Option<ExitStatus>>, Condvar)>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    /// Starts it with a socket at [`SOCKET_FD`]; the other end is returned.
    pub(super) fn start(mut command: Command) -> Result<(Self, UnixStream)> {
        let (ours, theirs) = socket_pair()?;
        let theirs = OwnedFd::from(theirs);
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own: Ctrl-C at the terminal reaches us only, and we end it in
        // order.
        command.process_group(0);
        let fd = theirs.as_raw_fd();
        let parent = std::process::id().cast_signed();
        // SAFETY: only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                // We may have died before that call.
                if libc::getppid() != parent {
                    return Err(std::io::Error::other("the parent has ended"));
                }
                // dup2 to the same number would leave close-on-exec set.
                let done = if fd == SOCKET_FD {
                    libc::fcntl(fd, libc::F_SETFD, 0)
                } else {
                    libc::dup2(fd, SOCKET_FD)
                };
                if done == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let ended = Arc::new((Mutex::new(None), Condvar::new()));
        let for_keeper = Arc::clone(&ended);
        let (sender, started) = channel();
        // PR_SET_PDEATHSIG follows the *thread* that forks: this one stays until the process ends.
        std::thread::spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(e) => return drop(sender.send(Err(e))),
            };
            drop(theirs);
            let streams = (child.stdout.take(), child.stderr.take());
            let _ = sender.send(Ok((child.id().cast_signed(), streams)));
            keep(&mut child, &for_keeper);
        });
        let started = started.recv().unwrap_or_else(|e| Err(std::io::Error::other(e)));
        let (pid, (stdout, stderr)) =
            started.map_err(|e| Error::Command { command: name, why: e.to_string() })?;
        let console = Console::default();
        console.follow(stdout.expect("was piped"));
        console.follow(stderr.expect("was piped"));
        Ok((Process { watch: Watch { pid, console, ended } }, ours))
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Kills it, if it runs, and waits until it is gone.
    pub(super) fn end(&self) {
        self.watch.kill();
        self.watch.wait(END_LIMIT);
    }
}

impl Watch {
    pub(super) fn console(&self) -> &Console {
        &self.console
    }

    /// How it ended, if it has.
    pub(super) fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut status = self.ended.0.lock().expect("no holder of this lock panics");
        while status.is_none() {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.ended.1.wait_timeout(status, left);
            status = waited.expect("no holder of this lock panics").0;
        }
        *status
    }

    fn kill(&self) {
        let status = self.ended.0.lock().expect("no holder of this lock panics");
        if status.is_none() {
            // SAFETY: not collected yet (that needs this lock), so the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}

/// Waits for the end without collecting the process, then collects it under the lock.
fn keep(child: &mut Child, ended: &(Mutex<Option<ExitStatus>>, Condvar)) {
    // SAFETY: a zeroed siginfo_t is valid, and the kernel only writes to it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOWAIT;
        while libc::waitid(libc::P_PID, child.id(), &mut info, flags) == -1
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
    let mut status = ended.0.lock().expect("no holder of this lock panics");
    *status = Some(child.wait().unwrap_or_else(|_| ExitStatus::from_raw(0)));
    ended.1.notify_all();
}
