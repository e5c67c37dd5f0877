// SPDX-License-Identifier: GPL-2.0-or-later
//! Ctrl-C asks a process to end in order, and the process looks whether it was asked. A second
//! Ctrl-C ends it at once, because it may be blocked, say in a write to a full pipe.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

/// Signals within this time count as one: timeout(1) sends each twice, and a shell passes on the
/// SIGHUP that the kernel has sent already.
const TOGETHER_NS: u64 = 500_000_000;

/// Time of the first signal; 0 before it.
static ASKED_NS: AtomicU64 = AtomicU64::new(0);

/// Installs handlers, so that SIGINT, SIGTERM and SIGHUP ask the process to end and do not kill it.
/// Ignored signals stay ignored, because nohup(1) and shells protect background jobs so.
pub fn catch() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if is_ignored(signal) {
            continue;
        }
        let handler = asked as extern "C" fn(c_int);
        // SAFETY: the handler is async-signal-safe.
        if unsafe { libc::signal(signal, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Did the parent process make this process ignore a signal?
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`, and it is written only.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `action` is valid for the call.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    known == 0 && action.sa_sigaction == libc::SIG_IGN
}

extern "C" fn asked(signal: c_int) {
    let now = monotonic_ns().max(1);
    let first = ASKED_NS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| now.saturating_sub(first) > TOGETHER_NS) {
        // SAFETY: both calls are async-signal-safe; the kernel detaches programs when the process
        // ends, and ends children that asked for it.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// CLOCK_MONOTONIC.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: async-signal-safe, and `now` is valid for the call, which does not fail for this
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Has a signal asked the process to end?
pub fn is_asked() -> bool {
    ASKED_NS.load(Ordering::Relaxed) != 0
}

/// Ends the process as a closed pipe ends other tools, whose writes kill them: a shell reports 141.
/// Call it once everything is in order. (Rust's own writes fail instead.)
pub fn end_by_closed_pipe() -> ! {
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::raise(libc::SIGPIPE);
    }
    // The signal is blocked.
    std::process::exit(128 + libc::SIGPIPE)
}

/// Starts `command` with these signals ignored and no others: for tests, whose runner may ignore
/// some.
pub fn ignoring(command: &mut std::process::Command, ignored: &'static [libc::c_int]) {
    use std::os::unix::process::CommandExt;

    let before = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let to = if ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: async-signal-safe, and it installs no Rust handler.
            unsafe { libc::signal(signal, to) };
        }
        Ok(())
    };
    // SAFETY: it makes system calls only.
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
    /// Far longer than a loaded machine needs.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Not a test of its own: the other tests signal this process. It hangs after the first signal.
    #[test]
    #[ignore = "the other tests start it"]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        catch().unwrap();
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
            .args(["--exact", "tests::child", "--ignored", "--nocapture"])
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
    fn ignored_signals_stay_ignored() {
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
    fn a_second_signal_ends_a_process_that_hangs() {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let (mut child, mut wait_for) = start(&[]);
            wait_for("ready");
            send(&child, signal);
            wait_for("asked: true");
            assert_eq!(child.try_wait().unwrap(), None, "the first signal only asks");
            std::thread::sleep(Duration::from_nanos(TOGETHER_NS + 1));
            send(&child, signal);
            assert_eq!(child.wait().unwrap().signal(), Some(signal));
        }
    }

    #[test]
    fn two_signals_in_quick_succession_count_as_one() {
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
