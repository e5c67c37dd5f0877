// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C asks a command to end in order: what it has is written, what it attached is detached.
//! Asked again it ends at once, as it may be stuck in a write that nobody reads.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::error::ObserverError;
use crate::host::monotonic_ns;

/// Signals that come together are one wish: timeout(1) sends each twice, a shell passes on the
/// SIGHUP that the kernel has sent already.
const TOGETHER_NS: u64 = 500_000_000;

/// When somebody asked; 0 if nobody has.
static ASKED_NS: AtomicU64 = AtomicU64::new(0);

/// From now on SIGINT, SIGTERM and SIGHUP ask, and do not kill. Those that are ignored stay so:
/// that is how nohup(1), and a shell that starts a job in the background, protect it.
pub(crate) fn on_signals() -> Result<(), ObserverError> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if is_ignored(signal) {
            continue;
        }
        let handler = asked as extern "C" fn(c_int);
        // SAFETY: the handler does nothing but async-signal-safe things.
        if unsafe { libc::signal(signal, handler as libc::sighandler_t) } == libc::SIG_ERR {
            let source = io::Error::last_os_error();
            return Err(ObserverError::Io { action: "catch signals", source });
        }
    }
    Ok(())
}

/// Did whoever started this process have it ignore a signal?
pub(crate) fn is_ignored(signal: c_int) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`, and it is written only.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `action` is valid for the call.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    known == 0 && action.sa_sigaction == libc::SIG_IGN
}

extern "C" fn asked(signal: c_int) {
    // clock_gettime() is async-signal-safe.
    let now = monotonic_ns().max(1);
    let first = ASKED_NS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| now.saturating_sub(first) > TOGETHER_NS) {
        // SAFETY: both calls are async-signal-safe; what is attached ends with the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Has somebody asked?
pub(crate) fn is_asked() -> bool {
    ASKED_NS.load(Ordering::Relaxed) != 0
}

/// Starts it ignoring these signals and no others, whatever those who run the tests ignore.
#[cfg(test)]
pub(crate) fn ignoring(command: &mut std::process::Command, ignored: &'static [libc::c_int]) {
    use std::os::unix::process::CommandExt;

    let before = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let to = if ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: async-signal-safe, and no handler of ours.
            unsafe { libc::signal(signal, to) };
        }
        Ok(())
    };
    // SAFETY: it does nothing but system calls.
    unsafe { command.pre_exec(before) };
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const CHILD: &str = "HOLDFAST_TEST_STOP";
    /// Far beyond what a loaded machine takes.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Not a test of its own, but the process that the others signal. It is stuck once it was
    /// asked.
    #[test]
    #[ignore = "the other tests start it"]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        on_signals().unwrap();
        println!("\nready");
        let start = Instant::now();
        while !is_asked() && start.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("\nasked: {}", is_asked());
        std::thread::sleep(DEADLINE);
    }

    fn start(ignored: &'static [c_int]) -> (Child, impl FnMut(&str)) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "stop::tests::child", "--ignored", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped());
        ignoring(&mut command, ignored);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wait_for = move |line: &str| assert!(lines.any(|said| said.unwrap() == line), "{line}");
        (child, wait_for)
    }

    fn send(child: &Child, signal: c_int) {
        // SAFETY: has no preconditions; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
    }

    #[test]
    fn what_is_ignored_stays_so() {
        let (mut child, mut wait_for) = start(&[libc::SIGHUP, libc::SIGINT]);
        wait_for("ready");
        send(&child, libc::SIGHUP);
        send(&child, libc::SIGINT);
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 0b11, 0b11, "{ignored}");
        send(&child, libc::SIGTERM);
        wait_for("asked: true");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn asked_again_it_ends_though_it_is_stuck() {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let (mut child, mut wait_for) = start(&[]);
            wait_for("ready");
            send(&child, signal);
            wait_for("asked: true");
            assert_eq!(child.try_wait().unwrap(), None, "once is no more than asking");
            std::thread::sleep(Duration::from_nanos(TOGETHER_NS + 1));
            send(&child, signal);
            assert_eq!(child.wait().unwrap().signal(), Some(signal));
        }
    }

    #[test]
    fn two_signals_that_come_together_are_one() {
        let (mut child, mut wait_for) = start(&[]);
        wait_for("ready");
        send(&child, libc::SIGTERM);
        send(&child, libc::SIGINT);
        wait_for("asked: true");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
