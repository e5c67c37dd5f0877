// SPDX-License-Identifier: GPL-2.0-or-later
//! Connections to local services that answer lines with lines, such as a scheduler's statistics.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_agent::protocol::{Failure, MAX_LINE, Reply};

use crate::measure::monotonic_ns;

type Connection = Arc<Mutex<Option<BufReader<UnixStream>>>>;

/// Connections by path. They stay open: some services report changes since the last request.
#[derive(Default)]
pub(crate) struct Sockets {
    by_path: Mutex<HashMap<String, Connection>>,
}

impl Sockets {
    /// Writes a line and reads the next one, over the open connection or a new one.
    pub(crate) fn exchange(
        &self,
        path: &str,
        line: &str,
        limit: Duration,
    ) -> Result<Reply, Failure> {
        let connection = {
            let mut all = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(path.to_owned()).or_default())
        };
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = connection.as_mut()
            && let Ok(answer) = exchange_on(old, line, limit)
        {
            return Ok(Reply::Exchange { line: answer, t_ns: monotonic_ns() });
        }
        // There was none, or its other end is no longer the service at this path.
        *connection = None;
        let fresh = || -> io::Result<_> {
            let mut stream = BufReader::new(UnixStream::connect(path)?);
            let answer = exchange_on(&mut stream, line, limit)?;
            Ok((stream, answer))
        };
        let (stream, answer) =
            fresh().map_err(|e| Failure::new(format!("asking the service at {path}: {e}")))?;
        *connection = Some(stream);
        Ok(Reply::Exchange { line: answer, t_ns: monotonic_ns() })
    }
}

fn exchange_on(
    stream: &mut BufReader<UnixStream>,
    line: &str,
    limit: Duration,
) -> io::Result<String> {
    stream.get_ref().set_read_timeout(Some(limit))?;
    stream.get_ref().set_write_timeout(Some(limit))?;
    stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_LINE as u64).read_line(&mut answer)?;
    match answer.strip_suffix('\n') {
        Some(answer) => Ok(answer.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn ask(sockets: &Sockets, path: &str) -> Result<String, Failure> {
        match sockets.exchange(path, "count", Duration::from_secs(5))? {
            Reply::Exchange { line, .. } => Ok(line),
            other => panic!("{other:?}"),
        }
    }

    /// Answers each connection with the number of its requests, `answers` times.
    fn serve(path: &std::path::Path, answers: u32) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream);
            for n in 1..=answers {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                lines.get_mut().write_all(format!("{n}\n").as_bytes()).unwrap();
            }
        })
    }

    #[test]
    fn keeps_a_connection_and_finds_the_service_that_came_after() {
        let path = std::env::temp_dir().join(format!("holdfast-sockets-{}", std::process::id()));
        let text = path.to_str().unwrap();
        let _ = std::fs::remove_file(&path);
        let sockets = Sockets::default();
        let error = ask(&sockets, text).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        let first = serve(&path, 2);
        assert_eq!(ask(&sockets, text).unwrap(), "1");
        assert_eq!(ask(&sockets, text).unwrap(), "2");
        first.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = serve(&path, 1);
        assert_eq!(ask(&sockets, text).unwrap(), "1");
        second.join().unwrap();
        let _ = std::fs::remove_file(&path);
    }
}
