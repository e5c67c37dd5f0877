// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast export`: metrics for Prometheus, from two processes.
//!
//! The *collector* has the rights for loading BPF programs, and talks only to its parent, through a
//! pipe: each line requests a page. The *server* talks to the network and has no rights.

mod collector;
mod metrics;
#[cfg(test)]
mod packaged;
mod rights;
mod scheduler;
mod server;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::future::pending;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use holdfast_bpf::BtfFiles;
use holdfast_bpf::service;
use holdfast_checks::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::collector::{Collector, END};
pub use self::metrics::reference;

use crate::error::ObserverError;
use crate::host::{check_kvm, nodename};
use crate::observer::{Observer, Options, Storage};
use crate::stop;

/// Each poll takes a CPU from another task for a moment, so it is no more frequent than a new VM
/// needs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

fn io_error(action: &'static str) -> impl Fn(io::Error) -> ObserverError {
    move |source| ObserverError::Io { action, source }
}

/// Runs the collector: prints a page for each line that it reads, until its input ends.
pub fn collect(frequency_hz: u32, btf: &[BtfFiles]) -> Result<(), ObserverError> {
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let options = Options { frequency_hz, ..Options::COUNTERS };
    let mut observer = Observer::attach(&mut discovery, &mut program, options, btf)?;
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
                let name = holdfast_checks::loaded_scheduler(&Host::this());
                let sample = observer.sample()?;
                let scheduler = name.as_deref().map(scheduler::Loaded::ask);
                let page = metrics::render(&sample, &nodename(), scheduler.as_ref());
                writeln!(out, "{page}{END}")
                    .and_then(|()| out.flush())
                    .map_err(io_error("answer the server"))?;
            }
            Err(RecvTimeoutError::Timeout) => observer.poll(Duration::ZERO)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Serves `/metrics` at `address`, from a collector of its own, until a signal ends it.
pub fn export(
    address: SocketAddr,
    frequency_hz: u32,
    btf: &[BtfFiles],
) -> Result<(), ObserverError> {
    check_kvm()?;
    let program = std::env::current_exe().map_err(io_error("start the collector"))?;
    run(address, collector_command(&program, frequency_hz, btf))
}

/// The command that starts the collector.
fn collector_command(program: &Path, frequency_hz: u32, btf: &[BtfFiles]) -> Command {
    let mut collector = Command::new(program);
    collector.args(["export", "--collect", "--frequency", &frequency_hz.to_string()]);
    for files in btf {
        let mut option = OsString::from("--btf=");
        option.push(files.path());
        collector.arg(option);
    }
    collector
}

fn run(address: SocketAddr, collector: Command) -> Result<(), ObserverError> {
    let listener =
        TcpListener::bind(address).map_err(io_error("listen; is another exporter running?"))?;
    // The runtime has one thread: each thread has rights of its own, and only this one gives them
    // up.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("start the server"))?
        .block_on(supervise(listener, collector))
}

async fn supervise(listener: TcpListener, collector: Command) -> Result<(), ObserverError> {
    let mut interrupt = catch(SignalKind::interrupt())?;
    let mut terminate = catch(SignalKind::terminate())?;
    let mut hangup = catch(SignalKind::hangup())?;
    // Descriptors are closed on exec, so the collector has no socket.
    let mut collector = Collector::start(collector).map_err(io_error("start the collector"))?;
    rights::drop_all().map_err(io_error("give up rights"))?;
    let result = tokio::select! {
        biased;
        () = caught(&mut interrupt) => Ok(()),
        () = caught(&mut terminate) => Ok(()),
        () = caught(&mut hangup) => Ok(()),
        error = serve(listener, &mut collector) => Err(error),
    };
    collector.end().await;
    result
}

/// Waits for a signal; for ever if the parent process has made it ignored, as nohup(1) does.
fn catch(kind: SignalKind) -> Result<Option<Signal>, ObserverError> {
    if stop::is_ignored(kind.as_raw_value()) {
        return Ok(None);
    }
    signal(kind).map(Some).map_err(io_error("catch signals"))
}

async fn caught(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => pending().await,
    }
}

/// Prints the address. A standard output that is closed is no failure, and one that is not read
/// does not block the server.
fn greet(address: SocketAddr) {
    let out = io::stdout();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&now)) == Ok(1) {
        let _ = writeln!(&out, "Serving http://{address}/metrics. Ctrl-C ends it.");
    }
}

/// Serves until the collector ends.
async fn serve(listener: TcpListener, collector: &mut Collector) -> ObserverError {
    // The collector attaches its programs, or prints its error and ends. That may take long.
    if let Err(error) = collector.page().await {
        return match error.kind() {
            io::ErrorKind::Unsupported => ObserverError::CollectorUnsupported(error),
            _ => io_error("collect; the collector says why above")(error),
        };
    }
    let listener = listener.set_nonblocking(true).and_then(|()| listener.try_into());
    let listener: tokio::net::TcpListener = match listener {
        Ok(listener) => listener,
        Err(error) => return io_error("listen")(error),
    };
    if let Ok(address) = listener.local_addr() {
        greet(address);
    }
    service::ready();
    let (ask, asked) = tokio::sync::mpsc::channel(server::MAX_CONNECTIONS);
    tokio::select! {
        error = collector.answer(asked) => io_error("collect")(error),
        never = server::serve(listener, ask.clone()) => match never {},
        never = server::stay_alive(ask) => match never {},
    }
}
