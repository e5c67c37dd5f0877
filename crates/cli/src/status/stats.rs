// SPDX-License-Identifier: GPL-2.0-or-later
//! Counters of a running scx_holdfast.
//!
//! The library that serves them, scx_stats, is GPL-2.0-only, and not linked into this program. Its
//! protocol is a line of JSON for each request and each answer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// Every scx scheduler answers here.
pub(super) const SOCKET: &str = "/var/run/scx/root/stats";

/// A scheduler that is stopped, or another one, may not answer.
const LIMIT: Duration = Duration::from_secs(2);

/// A connection to the scheduler.
pub(super) struct Stats(BufReader<UnixStream>);

impl Stats {
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// `top`: what it did since the last request on this connection. `total`: since it was loaded.
    pub(super) fn ask(&mut self, target: &str) -> anyhow::Result<Value> {
        let request = json!({ "req": "stats", "args": { "target": target } });
        writeln!(self.0.get_mut(), "{request}")?;
        let mut line = String::new();
        self.0.read_line(&mut line).context("no answer")?;
        let mut answer: Value = serde_json::from_str(&line).context("not an answer")?;
        ensure!(answer["errno"] == 0, "refused: another version?");
        Ok(answer["args"]["resp"].take())
    }
}

/// What these counters say, in a line.
pub(super) fn sentence(counters: &Value) -> String {
    let of = |key: &str| counters["vcpus"][key].as_u64().unwrap_or(0);
    let granted: u64 = ["pause", "kick", "ipi", "other", "probe"]
        .iter()
        .flat_map(|why| {
            ["holder", "call_pending", "candidate"].map(|to| format!("nr_{why}_to_{to}"))
        })
        .map(|key| of(&key))
        .sum();
    format!(
        "{} graces ended in time and {} at the cap, {} holders preempted, {} resume boosts, {} \
         CPUs given to siblings",
        of("nr_released"),
        of("nr_capped"),
        of("nr_preempted_holder"),
        of("nr_resumed_first"),
        granted
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn asks_in_lines_of_json_and_adds_up_what_was_granted() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("stats");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut asked = Vec::new();
            for answer in [
                json!({"errno": 0, "args": {"resp": {"vcpus": {
                    "nr_released": 7, "nr_capped": 1, "nr_preempted_holder": 2,
                    "nr_resumed_first": 3, "nr_pause_to_holder": 4, "nr_probe_to_call_pending": 5,
                    "nr_pause_refused": 100}}}}),
                json!({"errno": 22, "args": {}}),
            ] {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                asked.push(serde_json::from_str::<Value>(&line).unwrap());
                writeln!(reader.get_mut(), "{answer}").unwrap();
            }
            asked
        });
        let mut stats = Stats::connect(&socket).unwrap();
        let said = sentence(&stats.ask("total").unwrap());
        assert_eq!(
            said,
            "7 graces ended in time and 1 at the cap, 2 holders preempted, 3 resume boosts, 9 CPUs \
             given to siblings"
        );
        assert!(stats.ask("top").unwrap_err().to_string().contains("another version"));
        let asked = server.join().unwrap();
        assert_eq!(asked[0], json!({"req": "stats", "args": {"target": "total"}}));
        assert!(Stats::connect(&dir.path().join("none")).is_err());
    }
}
