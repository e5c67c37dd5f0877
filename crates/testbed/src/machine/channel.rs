// SPDX-License-Identifier: GPL-2.0-or-later
//! Talking to the host's agent: requests, answers by number, and errors for missing answers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{
    Answer, Call, Failure, Hello, MAX_LINE, Outcome, PROTOCOL, Reply, Request,
};

use super::confused;
use super::process::Watch;
use crate::error::{Error, Result};

/// How often a wait checks for an interrupt.
const POLL: Duration = Duration::from_millis(100);
/// How long the process may take to end after its connection has.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// The agent reports requests that hang below it. This is how much longer the agent itself is
/// given.
const SLACK: Duration = Duration::from_secs(10);

pub(super) struct Channel {
    stream: UnixStream,
    writing: Mutex<()>,
    next_id: AtomicU64,
    pending: Arc<Mutex<Pending>>,
    process: Watch,
    slowdown: u32,
}

#[derive(Default)]
struct Pending {
    closed: bool,
    calls: HashMap<u64, Sender<Outcome>>,
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().expect("no holder of this lock panics")
}

impl Channel {
    pub(super) fn new(stream: UnixStream, process: &Watch) -> Result<Self> {
        let reader = stream.try_clone().map_err(Error::io("cloning", "a socket"))?;
        let pending = Arc::new(Mutex::new(Pending::default()));
        let for_reader = Arc::clone(&pending);
        std::thread::spawn(move || {
            read_answers(reader, &for_reader);
            let mut pending = lock(&for_reader);
            pending.closed = true;
            pending.calls.clear();
        });
        let (next_id, writing, process) = (AtomicU64::new(1), Mutex::default(), process.clone());
        Ok(Channel { stream, writing, next_id, pending, process, slowdown: 1 })
    }

    /// Waits `slowdown` times as long, because the machine's seconds take that long.
    pub(super) fn slowed_down(self, slowdown: u32) -> Self {
        Channel { slowdown, ..self }
    }

    /// The first answer, which also shows that the machine has booted.
    pub(super) fn hello(&self, limit: Duration) -> Result<Hello> {
        match self.call(Request::Hello, limit, holdfast_signals::is_asked)? {
            Reply::Hello(hello) if hello.protocol == PROTOCOL => Ok(hello),
            Reply::Hello(hello) => Err(Error::Unsupported(format!(
                "the agent speaks version {} of the protocol and the lab version {PROTOCOL}; \
                 build both with `make build`",
                hello.protocol
            ))),
            answer => Err(confused("hello", &answer)),
        }
    }

    pub(super) fn request(&self, request: Request) -> Result<Reply> {
        let limit = self.limit(&request);
        self.call(request, limit, holdfast_signals::is_asked)
    }

    /// As [`Channel::request`], for cleaning up, even after Ctrl-C.
    pub(super) fn request_whatever_happens(&self, request: Request) -> Result<Reply> {
        let limit = self.limit(&request);
        self.call(request, limit, || false)
    }

    fn limit(&self, request: &Request) -> Duration {
        request.time_limit() * self.slowdown + SLACK
    }

    fn call(&self, request: Request, limit: Duration, stop: impl Fn() -> bool) -> Result<Reply> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = channel();
        {
            let mut pending = lock(&self.pending);
            if pending.closed {
                drop(pending);
                return Err(self.ended());
            }
            pending.calls.insert(id, sender);
        }
        let call = Call { id, request };
        let mut line = serde_json::to_vec(&call).expect("calls have string keys only");
        line.push(b'\n');
        let written = {
            let _guard = self.writing.lock().expect("no holder of this lock panics");
            (&self.stream).write_all(&line)
        };
        if written.is_err() {
            return Err(self.ended());
        }
        let deadline = Instant::now() + limit;
        loop {
            match answer.recv_timeout(POLL) {
                Ok(outcome) => return Result::from(outcome).map_err(Error::Refused),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let late = Instant::now() > deadline;
            if late || stop() {
                lock(&self.pending).calls.remove(&id);
                return Err(if late {
                    self.hung(&call.request, limit)
                } else {
                    Error::Interrupted
                });
            }
        }
    }

    fn ended(&self) -> Error {
        let status = self.process.wait(END_PATIENCE);
        if status.is_some() {
            // A descendant may keep the streams open for ever.
            self.process.console().settle(END_PATIENCE);
        }
        let how = status.map_or("its connection was closed".to_owned(), |s| s.to_string());
        Error::HostEnded { how, console: self.process.console().tail() }
    }

    fn hung(&self, request: &Request, limit: Duration) -> Error {
        let mut request = format!("{request:?}");
        request.truncate(request.floor_char_boundary(200));
        let console = self.process.console().tail();
        Error::HostHung { request, seconds: limit.as_secs(), console }
    }

    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn read_answers(stream: UnixStream, pending: &Mutex<Pending>) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line) {
            Ok(1..) if line.len() <= MAX_LINE => {}
            _ => return,
        }
        let Some(answer) = understand(&line) else { continue };
        if let Some(waiting) = lock(pending).calls.remove(&answer.id) {
            let _ = waiting.send(answer.outcome);
        }
    }
}

/// An answer, or an error for one that makes no sense. `None` for half a line: a host that resets
/// leaves such.
fn understand(line: &[u8]) -> Option<Answer> {
    let why = match serde_json::from_slice(line) {
        Ok(answer) => return Some(answer),
        Err(why) => why,
    };
    let id = serde_json::from_slice::<serde_json::Value>(line).ok()?.get("id")?.as_u64()?;
    let message = format!("the agent and the lab do not match ({why}); build both: `make build`");
    Some(Answer { id, outcome: Outcome::Error(Failure::new(message)) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::process::Process;
    use super::*;

    /// A real process at the other end that is not an agent.
    fn hello_from(script: &str, limit: Duration) -> Error {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (process, socket) = Process::start(command).unwrap();
        let channel = Channel::new(socket, process.watch()).unwrap();
        channel.hello(limit).unwrap_err()
    }

    #[test]
    fn a_host_that_does_not_answer_is_reported_with_its_last_words() {
        let limit = Duration::from_secs(2);
        match hello_from("echo last words; exec sleep 600", limit) {
            Error::HostHung { request, seconds, console } => {
                assert_eq!(
                    (request.as_str(), seconds, console.as_str()),
                    ("Hello", 2, "last words")
                );
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_host_that_ends_is_reported_with_its_last_words() {
        match hello_from("echo oops >&2; exit 3", Duration::from_secs(60)) {
            Error::HostEnded { how, console } => {
                assert_eq!((how.as_str(), console.as_str()), ("exit status: 3", "oops"));
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn an_answer_that_is_not_understood_is_not_waited_for() {
        let answer = understand(br#"{"id":3,"ok":{"op":"hello","protocol":0}}"#).unwrap();
        assert_eq!(answer.id, 3);
        assert!(matches!(answer.outcome, Outcome::Error(f) if f.message.contains("make build")));
        assert_eq!(understand(br#"{"id":3,"ok":{"op":"hel"#), None);
    }

    #[test]
    fn a_process_does_not_outlive_its_owner() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let (process, _socket) = Process::start(command).unwrap();
        let watch = process.watch().clone();
        assert!(watch.wait(Duration::ZERO).is_none());
        drop(process);
        assert!(watch.wait(Duration::ZERO).is_some());
    }
}
