// SPDX-License-Identifier: GPL-2.0-or-later
//! Progress for a person: one line that changes on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where progress is shown.
pub struct Progress {
    mode: Mode,
    line: Mutex<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Terminal,
    Plain,
    Silent,
}

/// Interval at which a plain log reports a long step.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a terminal's line changes.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);

impl Progress {
    /// Shown on stderr: a changing line or plain lines.
    pub fn stderr() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Progress::new(if terminal { Mode::Terminal } else { Mode::Plain })
    }

    /// Not shown.
    pub fn silent() -> Self {
        Progress::new(Mode::Silent)
    }

    fn new(mode: Mode) -> Self {
        Progress { mode, line: Mutex::new(()) }
    }

    /// A note that is not a step.
    pub fn note(&self, text: &str) {
        self.print(text, true);
    }

    /// Begins a step that takes time.
    pub fn step(&self, what: impl Into<String>) -> Step<'_> {
        let now = Instant::now();
        let step = Step { progress: self, what: what.into(), start: now, shown: now, ended: false };
        self.print(&format!("{} ...", step.what), self.mode == Mode::Plain);
        step
    }

    fn print(&self, text: &str, whole: bool) {
        let _guard = self.line.lock();
        let mut err = std::io::stderr();
        let _ = match (self.mode, whole) {
            (Mode::Silent, _) => Ok(()),
            (Mode::Plain, _) => writeln!(err, "{text}"),
            (Mode::Terminal, true) => writeln!(err, "\r\x1b[K{text}"),
            (Mode::Terminal, false) => write!(err, "\r\x1b[K{text}").and_then(|()| err.flush()),
        };
    }
}

/// A step that takes time. [`Step::done`] ends it; dropping it means that it failed.
pub struct Step<'a> {
    progress: &'a Progress,
    what: String,
    start: Instant,
    shown: Instant,
    ended: bool,
}

impl Step<'_> {
    /// Its progress, in words.
    pub fn at(&mut self, detail: &str) {
        let interval =
            if self.progress.mode == Mode::Plain { PLAIN_INTERVAL } else { TERMINAL_INTERVAL };
        if self.shown.elapsed() >= interval {
            self.shown = Instant::now();
            self.progress.print(&format!("{}: {detail}", self.what), false);
        }
    }

    /// Its progress, in bytes.
    pub fn bytes(&mut self, done: u64, total: u64) {
        self.at(&format!("{} of {}", megabytes(done), megabytes(total)));
    }

    /// Ends it.
    pub fn done(mut self, detail: &str) {
        self.ended = true;
        let seconds = self.start.elapsed().as_secs_f64();
        let what = &self.what;
        let sep = if detail.is_empty() { "" } else { ": " };
        self.progress.print(&format!("{what}{sep}{detail} ({seconds:.1} s)"), true);
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.progress.print(&format!("{}: not done", self.what), true);
        }
    }
}

/// A size for people.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
