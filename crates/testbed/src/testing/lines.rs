// SPDX-License-Identifier: GPL-2.0-or-later
//! The output of a program in the host or in a guest, line by line.

use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Reply, Request, Stream};

use super::costs_by_tag;
use crate::machine::Machine;

/// Longest silence of a program that is expected to print.
const PATIENCE: Duration = Duration::from_secs(300);

/// The lines of a child's standard output, each of them once, until it ends.
pub struct Lines<'m> {
    machine: &'m Machine,
    guest: Option<&'m str>,
    child: &'m str,
    after: u64,
    text: String,
    ended: bool,
}

impl<'m> Lines<'m> {
    /// Starts a program in the host.
    pub fn of(machine: &'m Machine, child: &'m str, argv: &[&str]) -> Self {
        Self::start(machine, None, child, argv)
    }

    /// Starts a program in a guest.
    pub fn in_guest(machine: &'m Machine, guest: &'m str, child: &'m str, argv: &[&str]) -> Self {
        Self::start(machine, Some(guest), child, argv)
    }

    fn start(machine: &'m Machine, guest: Option<&'m str>, child: &'m str, argv: &[&str]) -> Self {
        let lines = Lines { machine, guest, child, after: 0, text: String::new(), ended: false };
        lines.ask(Request::spawn(child, argv.iter().copied()));
        lines
    }

    fn ask(&self, request: Request) -> Reply {
        match self.guest {
            Some(guest) => self.machine.request_guest(guest, request).unwrap(),
            None => self.machine.request(request).unwrap(),
        }
    }

    /// Time spent in its BPF programs since the kernel counts it, in ns.
    pub fn costs(&self) -> u64 {
        costs_by_tag(|request| self.ask(request), self.child).iter().map(|(_, cost)| cost.0).sum()
    }

    fn read(&mut self, timeout: Duration) {
        let (name, timeout_ms) = (self.child.to_owned(), timeout.as_millis() as u64);
        let request =
            Request::Output { name, stream: Stream::Stdout, after: self.after, timeout_ms };
        let Reply::Output { data, next, ended, .. } = self.ask(request) else {
            panic!("no output")
        };
        self.after = next;
        self.ended = ended;
        self.text.push_str(&String::from_utf8_lossy(&data));
    }

    fn take_line(&mut self) -> Option<String> {
        let end = self.text.find('\n')?;
        let line = self.text[..end].to_owned();
        self.text.drain(..=end);
        Some(line)
    }

    /// Waits for `what`, in a line that may not have ended, and returns all new text.
    pub fn until(&mut self, limit: Duration, what: &str) -> String {
        let deadline = Instant::now() + limit;
        while !self.text.contains(what) {
            let (child, text) = (self.child, &self.text);
            assert!(!self.ended, "{child} ended without {what:?}: {text:?}");
            assert!(Instant::now() < deadline, "{child}: no {what:?} within {limit:?}: {text:?}");
            self.read(Duration::from_millis(500));
        }
        std::mem::take(&mut self.text)
    }

    /// Lines printed since the last look, without waiting for more.
    pub fn ready(&mut self) -> Vec<String> {
        self.read(Duration::ZERO);
        std::iter::from_fn(|| self.take_line()).collect()
    }

    /// Drops the output so far, and the next line, which covers the past, too.
    pub fn forget(&mut self) {
        self.ready();
        self.next().unwrap();
    }
}

impl Iterator for Lines<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.take_line() {
                None if self.ended => return None,
                None => {}
                line => return line,
            }
            assert!(Instant::now() < deadline, "{} prints nothing", self.child);
            self.read(Duration::from_secs(1));
        }
    }
}
