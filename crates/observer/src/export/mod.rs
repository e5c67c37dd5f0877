// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast export`: metrics for Prometheus, from two processes.
//!
//! The *collector* has the rights it takes to load BPF programs, and talks to nobody but its parent,
//! through a pipe: a line asks it for a page. The *server* talks to the network and has no rights.

mod metrics;

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::unistd::{Gid, Uid, geteuid, setgid, setgroups, setuid};
use tiny_http::{Header, Method, Response, Server};

use crate::error::ObserverError;
use crate::host::check_kvm;
use crate::observer::{Observer, Options, Storage};
use crate::stop;

/// Ends a page on the pipe; a comment to Prometheus.
const END: &str = "# EOF";
/// The user and group that own nothing.
const NOBODY: u32 = 65534;
/// Each look takes a CPU from somebody for a moment: not more often than a new VM or Ctrl-C needs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

fn io_error(action: &'static str) -> impl Fn(io::Error) -> ObserverError {
    move |source| ObserverError::Io { action, source }
}

/// Collects, and prints a page for each line that it reads, until its input ends.
pub fn collect(frequency_hz: u32) -> Result<(), ObserverError> {
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let options = Options { frequency_hz, ..Options::COUNTERS };
    let mut observer = Observer::attach(&mut discovery, &mut program, options)?;
    observer.settle()?;
    let (send, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() || send.send(()).is_err() {
                break;
            }
        }
    });
    let mut out = io::stdout().lock();
    loop {
        match requests.recv_timeout(POLL_INTERVAL) {
            Ok(()) => {
                observer.poll(Duration::ZERO)?;
                let page = metrics::render(&observer.sample()?);
                writeln!(out, "{page}{END}")
                    .and_then(|()| out.flush())
                    .map_err(io_error("answer the server"))?;
            }
            Err(RecvTimeoutError::Timeout) => observer.poll(Duration::ZERO)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Serves `/metrics` at `address`, from a collector of its own, until somebody interrupts.
pub fn export(address: SocketAddr, frequency_hz: u32) -> Result<(), ObserverError> {
    check_kvm()?;
    let server = Server::http(address).map_err(|error| ObserverError::Io {
        action: "listen; is another exporter running?",
        source: io::Error::other(error),
    })?;
    // Its descriptors are closed on exec: the collector has nothing of the network.
    let mut collector = Collector::start(frequency_hz).map_err(io_error("start the collector"))?;
    drop_rights().map_err(io_error("give up rights"))?;
    stop::on_signals()?;
    // It has rights to attach, or it says why not and ends.
    collector.page().map_err(io_error("collect; the collector says why above"))?;
    println!("Serving http://{address}/metrics. Ctrl-C ends it.");
    while !stop::is_asked() {
        let request = server.recv_timeout(POLL_INTERVAL).map_err(io_error("take a request"))?;
        let Some(request) = request else { continue };
        let response = match (request.method(), request.url()) {
            (Method::Get, "/metrics") => {
                let page = collector.page().map_err(io_error("collect"))?;
                let kind = b"text/plain; version=0.0.4; charset=utf-8";
                let kind = Header::from_bytes(&b"Content-Type"[..], &kind[..]);
                let response = Response::from_string(page);
                match kind {
                    Ok(kind) => response.with_header(kind),
                    Err(()) => response,
                }
            }
            (Method::Get, "/") => Response::from_string("Holdfast: see /metrics\n"),
            _ => Response::from_string("not found\n").with_status_code(404),
        };
        // A client that went away is no failure of ours.
        let _ = request.respond(response);
    }
    Ok(())
}

/// A user that owns nothing, in no group; for good.
fn drop_rights() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    if geteuid().is_root() {
        setgroups(&[])?;
        setgid(Gid::from_raw(NOBODY))?;
        setuid(Uid::from_raw(NOBODY))?;
    }
    Ok(())
}

struct Collector {
    child: Child,
    requests: Option<ChildStdin>,
    pages: BufReader<ChildStdout>,
}

impl Collector {
    fn start(frequency_hz: u32) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["export", "--collect", "--frequency", &frequency_hz.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("the collector has no pipe");
        let requests = Some(child.stdin.take().ok_or_else(missing)?);
        let pages = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, requests, pages })
    }

    fn page(&mut self) -> io::Result<String> {
        let ended = || io::Error::other("the collector has ended");
        self.requests.as_mut().ok_or_else(ended)?.write_all(b"\n")?;
        let mut page = String::new();
        loop {
            let at = page.len();
            if self.pages.read_line(&mut page)? == 0 {
                return Err(ended());
            }
            if page[at..].trim_end() == END {
                page.truncate(at);
                return Ok(page);
            }
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The end of its input ends it; it could not be killed by one without rights.
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
