// SPDX-License-Identifier: GPL-2.0-or-later
//! The last lines a machine has printed.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Lines kept: a panic, with its trace and what comes after.
const LINES: usize = 80;
/// Longest line kept whole, in bytes.
const LINE_BYTES: usize = 400;

/// Remembers the end of streams that another process writes.
#[derive(Clone, Default)]
pub(super) struct Console {
    lines: Arc<Mutex<Lines>>,
    /// Signalled when a stream ends.
    ended: Arc<Condvar>,
}

#[derive(Default)]
struct Lines {
    whole: VecDeque<String>,
    partial: Vec<u8>,
    /// Streams that have not ended.
    open: usize,
}

impl Console {
    /// Reads a stream to its end, in a thread.
    pub(super) fn follow(&self, mut stream: impl Read + Send + 'static) {
        let console = self.clone();
        console.lock().open += 1;
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut buffer) {
                console.push(&buffer[..n]);
            }
            console.lock().open -= 1;
            console.ended.notify_all();
        });
    }

    /// Waits until all streams have ended. Only then are a process's last words complete.
    pub(super) fn settle(&self, limit: Duration) {
        let open = |lines: &mut Lines| lines.open > 0;
        drop(self.ended.wait_timeout_while(self.lock(), limit, open));
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().expect("no holder of this lock panics")
    }

    fn push(&self, data: &[u8]) {
        let mut lines = self.lock();
        for &byte in data {
            if byte == b'\n' || lines.partial.len() == LINE_BYTES {
                let line = plain(&std::mem::take(&mut lines.partial));
                lines.whole.push_back(line);
                if lines.whole.len() > LINES {
                    lines.whole.pop_front();
                }
            }
            if byte != b'\n' {
                lines.partial.push(byte);
            }
        }
    }

    /// The last lines, an unfinished one included.
    pub(super) fn tail(&self) -> String {
        let lines = self.lock();
        let partial = plain(&lines.partial);
        let all = lines.whole.iter().chain((!partial.is_empty()).then_some(&partial));
        all.map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// Without control sequences: firmware writes for terminals.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            // ESC, or ESC [ parameters letter.
            if chars.next() == Some('[') {
                while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {}
            }
        } else if !c.is_control() || c == '\t' {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines() {
        let console = Console::default();
        for i in 0..LINES + 5 {
            console.push(format!("line {i}\r\n").as_bytes());
        }
        console.push(b"rest");
        let tail = console.tail();
        assert!(
            tail.starts_with("line 5\n") && tail.ends_with(&format!("line {}\nrest", LINES + 4)),
            "{tail}"
        );
    }

    #[test]
    fn drops_what_is_for_terminals() {
        assert_eq!(plain(b"\x1bc\x1b[?7l\x1b[2J\x1b[1;31mred\x1b[0m\r"), "red");
    }
}
