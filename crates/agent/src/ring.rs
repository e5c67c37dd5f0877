// SPDX-License-Identifier: GPL-2.0-or-later
//! Bounded memory of a child's output.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The last bytes of a stream, addressed by their position in the whole stream.
#[derive(Default)]
pub(crate) struct Ring {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    bytes: VecDeque<u8>,
    /// Position of `bytes[0]` in the stream.
    start: u64,
    ended: bool,
}

impl Inner {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn from(&self, position: u64) -> Vec<u8> {
        let skip = position.saturating_sub(self.start).min(self.bytes.len() as u64);
        self.bytes.range(skip as usize..).copied().collect()
    }
}

/// The result of [`Ring::read`].
pub(crate) struct Chunk {
    pub(crate) data: Vec<u8>,
    pub(crate) next: u64,
    pub(crate) lost: u64,
    pub(crate) ended: bool,
}

/// Why there is no line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoLine {
    Timeout,
    Ended,
}

impl Ring {
    /// Longest memory of a stream, in bytes.
    pub(crate) const CAPACITY: usize = 1 << 20;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn push(&self, data: &[u8]) {
        let mut inner = self.lock();
        inner.bytes.extend(data);
        let excess = inner.bytes.len().saturating_sub(Self::CAPACITY);
        inner.bytes.drain(..excess);
        inner.start += excess as u64;
        self.changed.notify_all();
    }

    /// Marks the end of the stream.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Position after the last byte.
    pub(crate) fn position(&self) -> u64 {
        self.lock().end()
    }

    fn wait<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        deadline: Instant,
    ) -> Option<MutexGuard<'a, Inner>> {
        let left = deadline.checked_duration_since(Instant::now())?;
        Some(self.changed.wait_timeout(inner, left).expect("no holder of this lock panics").0)
    }

    /// The bytes after `position`; waits if there are none.
    pub(crate) fn read(&self, position: u64, timeout: Duration) -> Chunk {
        let deadline = Instant::now() + timeout;
        let mut inner = self.lock();
        while inner.end() <= position && !inner.ended {
            match self.wait(inner, deadline) {
                Some(guard) => inner = guard,
                None => {
                    inner = self.lock();
                    break;
                }
            }
        }
        let lost = inner.start.saturating_sub(position);
        Chunk { data: inner.from(position), next: inner.end(), lost, ended: inner.ended }
    }

    /// The first whole line after `position`.
    pub(crate) fn line(&self, position: u64, timeout: Duration) -> Result<String, NoLine> {
        let deadline = Instant::now() + timeout;
        let mut inner = self.lock();
        loop {
            let data = inner.from(position);
            if let Some(end) = data.iter().position(|&b| b == b'\n') {
                return Ok(String::from_utf8_lossy(&data[..end]).into_owned());
            }
            if inner.ended {
                return Err(NoLine::Ended);
            }
            inner = self.wait(inner, deadline).ok_or(NoLine::Timeout)?;
        }
    }

    /// The last bytes, from the beginning of a line if there are more than `max_bytes`. First waits
    /// a moment for the stream's end, which may come a little after that of its writer.
    pub(crate) fn tail(&self, max_bytes: usize, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        let mut inner = self.lock();
        while !inner.ended {
            match self.wait(inner, deadline) {
                Some(guard) => inner = guard,
                None => {
                    inner = self.lock();
                    break;
                }
            }
        }
        let from = inner.end().saturating_sub(max_bytes as u64);
        let text = String::from_utf8_lossy(&inner.from(from)).into_owned();
        match text.find('\n') {
            Some(i) if from > 0 => text[i + 1..].to_owned(),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn keeps_the_last_bytes_and_says_how_many_were_lost() {
        let ring = Ring::default();
        ring.push(&vec![b'a'; Ring::CAPACITY]);
        ring.push(b"xyz");
        let chunk = ring.read(1, NOW);
        assert_eq!(chunk.lost, 2);
        assert_eq!(chunk.data.len(), Ring::CAPACITY);
        assert!(chunk.data.ends_with(b"axyz"));
        let chunk = ring.read(chunk.next, NOW);
        assert!(chunk.data.is_empty() && chunk.lost == 0 && !chunk.ended);
    }

    #[test]
    fn returns_whole_lines_only() {
        let ring = Ring::default();
        ring.push(b"old\nne");
        assert_eq!(ring.line(4, NOW), Err(NoLine::Timeout));
        ring.push(b"w\nrest");
        assert_eq!(ring.line(4, NOW).unwrap(), "new");
        ring.end();
        assert_eq!(ring.line(8, NOW), Err(NoLine::Ended));
    }

    #[test]
    fn tail_starts_at_a_line() {
        let ring = Ring::default();
        ring.push(b"one\ntwo\nthree\n");
        ring.end();
        assert_eq!(ring.tail(9, NOW), "three\n");
        assert_eq!(ring.tail(100, NOW), "one\ntwo\nthree\n");
    }
}
