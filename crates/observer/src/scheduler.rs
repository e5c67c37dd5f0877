// SPDX-License-Identifier: GPL-2.0-or-later
//! Counters of a running scx_holdfast.
//!
//! The library that serves them, scx_stats, is GPL-2.0-only, and not linked into this program. Its
//! protocol is a line of JSON for each request and each answer.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// Every scx scheduler answers here.
pub const SOCKET: &str = "/var/run/scx/root/stats";

/// A scheduler that is stopped, or another one, may not answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The period that counters are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Since the last request on this connection, or since it was made.
    SinceLast,
    /// Since the scheduler was loaded.
    SinceLoaded,
}

/// A connection to the scheduler.
#[derive(Debug)]
pub struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Connects to the scheduler at `socket`, which is [`SOCKET`] but in tests.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The counters of `period`, under the names of `scx_holdfast --help-stats`. Waits for an
    /// answer for up to two seconds.
    pub fn counters(&mut self, period: Period) -> io::Result<Value> {
        let target = match period {
            Period::SinceLast => "top",
            Period::SinceLoaded => "total",
        };
        let request = json!({ "req": "stats", "args": { "target": target } });
        writeln!(self.0.get_mut(), "{request}")?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line)?;
        if answer["errno"] != 0 {
            return Err(io::Error::other("it refused to answer: is it of another version?"));
        }
        Ok(answer["args"]["resp"].take())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn asks_in_lines_of_json() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("stats");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut asked = Vec::new();
            for answer in [
                json!({"errno": 0, "args": {"resp": {"nr_kept": 7}}}),
                json!({"errno": 22, "args": {}}),
            ] {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                asked.push(serde_json::from_str::<Value>(&line).unwrap());
                writeln!(reader.get_mut(), "{answer}").unwrap();
            }
            asked
        });
        let mut connection = Connection::open(&socket).unwrap();
        assert_eq!(connection.counters(Period::SinceLoaded).unwrap(), json!({"nr_kept": 7}));
        let refused = connection.counters(Period::SinceLast).unwrap_err();
        assert!(refused.to_string().contains("another version"));
        let asked = server.join().unwrap();
        assert_eq!(asked[0], json!({"req": "stats", "args": {"target": "total"}}));
        assert_eq!(asked[1]["args"]["target"], "top");
        assert!(Connection::open(&dir.path().join("none")).is_err());
    }
}
