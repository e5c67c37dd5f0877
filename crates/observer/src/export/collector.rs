// SPDX-License-Identifier: GPL-2.0-or-later
//! The server's end of the pipe to the collector.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::error::ObserverError;

/// Ends a page on the pipe; a comment to Prometheus.
pub(super) const END: &str = "# EOF";
/// Time that a collector may take to end after its input has ended.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Ctrl-C or systemd, which ends both processes, may reach the collector first.
const SIGNAL_DELAY: Duration = Duration::from_millis(100);

/// A request for a page: the channel for the answer.
pub(super) type Ask = oneshot::Sender<String>;

pub(super) struct Collector {
    child: Child,
    requests: Option<ChildStdin>,
    pages: Lines<BufReader<ChildStdout>>,
}

impl Collector {
    pub(super) fn start(program: Command) -> io::Result<Self> {
        let mut child = tokio::process::Command::from(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("the collector has no pipe");
        let requests = Some(child.stdin.take().ok_or_else(missing)?);
        let pages = BufReader::new(child.stdout.take().ok_or_else(missing)?).lines();
        Ok(Self { child, requests, pages })
    }

    /// Answers requests until the collector ends, and returns the way it ended. A page answers all
    /// requests that arrived before it was begun, so any number of them costs no more than one.
    pub(super) async fn answer(&mut self, mut asked: mpsc::Receiver<Ask>) -> io::Error {
        loop {
            let ask = tokio::select! {
                // Without a request the collector writes nothing, so a read only returns at its
                // end.
                line = self.pages.next_line() => return self.ended(line.err()).await,
                Some(ask) = asked.recv() => ask,
            };
            let mut asks = vec![ask];
            asks.extend(std::iter::from_fn(|| asked.try_recv().ok()));
            // A client may have given up while another one was answered.
            asks.retain(|ask| !ask.is_closed());
            if asks.is_empty() {
                continue;
            }
            match self.page().await {
                Ok(page) => asks.into_iter().for_each(|ask| _ = ask.send(page.clone())),
                Err(error) => return error,
            }
        }
    }

    /// Reads the next page without a time limit. A page that is begun has to be read to its end, or
    /// its rest would be taken for the next page.
    pub(super) async fn page(&mut self) -> io::Result<String> {
        // A request that cannot be written has no answer either: reading the answer then finds the
        // collector's end.
        if let Some(requests) = &mut self.requests {
            let _ = requests.write_all(b"\n").await;
        }
        let mut page = String::new();
        loop {
            match self.pages.next_line().await {
                Ok(Some(line)) if line == END => return Ok(page),
                Ok(Some(line)) => page.extend([&*line, "\n"]),
                Ok(None) => return Err(self.ended(None).await),
                Err(error) => return Err(self.ended(Some(error)).await),
            }
        }
    }

    /// Of kind `Unsupported` if the collector's exit code says so.
    async fn ended(&mut self, error: Option<io::Error>) -> io::Error {
        sleep(SIGNAL_DELAY).await;
        error.unwrap_or(match timeout(END_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) => {
                let kind = if status.code() == Some(ObserverError::UNSUPPORTED.into()) {
                    io::ErrorKind::Unsupported
                } else {
                    io::ErrorKind::Other
                };
                io::Error::new(kind, format!("the collector has ended ({status})"))
            }
            _ => io::Error::other("the collector has closed its output"),
        })
    }

    /// Closing its input ends the collector; a server without rights cannot kill it. Its programs
    /// are detached when it has ended. The server does not wait for a collector that hangs.
    pub(super) async fn end(mut self) {
        drop(self.requests.take());
        let _ = timeout(END_TIMEOUT, self.child.wait()).await;
    }
}
