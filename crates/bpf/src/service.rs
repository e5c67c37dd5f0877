// SPDX-License-Identifier: GPL-2.0-or-later
//! What the programs tell the service manager (sd_notify(3)) and its log (sd-daemon(3)).

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Tells the service manager that started this program, if one did, that it is ready.
pub fn ready() {
    notify("READY=1");
}

/// A manager that does not listen does not hold up the program: what it does not take is dropped.
fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state.as_bytes())
    {
        log::warn!("cannot send {state} to {}: {error}", socket.display());
    }
}

fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // An abstract name.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let own = UnixDatagram::unbound()?;
    own.set_nonblocking(true)?;
    own.send_to_addr(message, &address).map(drop)
}

/// The service manager's watchdog (`WatchdogSec=`), which ends a program that is silent.
#[derive(Debug)]
pub struct Watchdog {
    /// Time between two signs of life: half of what the manager waits for.
    interval: Option<Duration>,
    due: Instant,
}

impl Watchdog {
    /// The watchdog of this process, if it has one.
    pub fn of_this_process() -> Self {
        let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().into());
        let limit = variable("WATCHDOG_USEC").filter(|_| is_ours).map(Duration::from_micros);
        Self { interval: limit.map(|limit| limit / 2), due: Instant::now() }
    }

    /// Time between two signs of life.
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// Gives a sign of life, if it is time for one.
    pub fn alive(&mut self) {
        let now = Instant::now();
        if let Some(interval) = self.interval
            && now >= self.due
        {
            self.due = now + interval;
            notify("WATCHDOG=1");
        }
    }
}

/// What a line of standard error begins with that has this level: its priority as the journal reads
/// it, where standard error is the journal, else nothing.
pub fn priority(level: log::Level) -> &'static str {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let is_journal = IS_JOURNAL.get_or_init(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        std::fs::metadata("/proc/self/fd/2").is_ok_and(|stderr| is_stream(&stderr, &stream))
    });
    match level {
        _ if !is_journal => "",
        log::Level::Error => "<3>",
        log::Level::Warn => "<4>",
        log::Level::Info => "<6>",
        log::Level::Debug | log::Level::Trace => "<7>",
    }
}

/// Is it the file that `JOURNAL_STREAM` names?
fn is_stream(file: &std::fs::Metadata, stream: &str) -> bool {
    format!("{}:{}", file.st_dev(), file.st_ino()) == stream
}

/// Text each line of which has a priority, where standard error is the journal.
pub fn with_priority(level: log::Level, text: impl fmt::Display) -> String {
    prefixed(priority(level), &text.to_string())
}

/// Text of an error for standard error, one line or several.
pub fn error_line(text: impl fmt::Display) -> String {
    with_priority(log::Level::Error, text)
}

fn prefixed(priority: &str, text: &str) -> String {
    text.lines().map(|line| format!("{priority}{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_sockets_with_and_without_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("holdfast-test-{}", std::process::id());
        let abstract_name = format!("@{name}");
        for (address, socket) in [
            (SocketAddr::from_pathname(&path).unwrap(), path.as_os_str()),
            (SocketAddr::from_abstract_name(&name).unwrap(), OsStr::new(&abstract_name)),
        ] {
            let manager = UnixDatagram::bind_addr(&address).unwrap();
            send(socket, b"READY=1").unwrap();
            let mut heard = [0; 16];
            let len = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..len], b"READY=1");
        }
    }

    #[test]
    fn does_not_wait_for_a_manager_that_does_not_listen() {
        let name = format!("holdfast-deaf-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _manager = UnixDatagram::bind_addr(&address).unwrap();
        let socket = format!("@{name}");
        let mut sent = (0..100_000).map(|_| send(OsStr::new(&socket), b"WATCHDOG=1"));
        let refused = sent.find_map(Result::err).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn gives_no_more_signs_of_life_than_are_due() {
        let now = Instant::now();
        let mut none = Watchdog { interval: None, due: now };
        none.alive();
        assert_eq!(none.due, now);
        let mut watchdog = Watchdog { interval: Some(Duration::from_secs(3600)), due: now };
        watchdog.alive();
        let due = watchdog.due;
        assert!(due > now);
        watchdog.alive();
        assert_eq!(watchdog.due, due);
    }

    #[test]
    fn each_line_of_the_journal_has_a_priority() {
        assert_eq!(prefixed("<4>", "a\n b"), "<4>a\n<4> b\n");
        assert_eq!(prefixed("", "a"), "a\n");
        let file = std::fs::metadata("/").unwrap();
        assert!(is_stream(&file, &format!("{}:{}", file.st_dev(), file.st_ino())));
        assert!(!is_stream(&file, ""));
    }
}
