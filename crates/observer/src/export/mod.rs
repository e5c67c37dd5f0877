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
use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;
use holdfast_bpf::service;
use holdfast_checks::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::collector::{Collector, END};
pub use self::metrics::{Series, reference};

use crate::error::ObserverError;
use crate::host::{check_kvm, nodename};
use crate::observer::{Observer, Options, Storage};
use crate::sample::{Sample, VmSample};
use crate::select::{Column, Selection, Wanted};
use crate::stop;

/// Each poll takes a CPU from another task for a moment, so it is no more frequent than a new VM
/// needs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

fn io_error(action: &'static str) -> impl Fn(io::Error) -> ObserverError {
    move |source| ObserverError::Io { action, source }
}

/// Options of an exporter.
#[derive(Debug, Clone, Default)]
pub struct Export {
    /// The VMs that have metrics.
    pub vms: Wanted,
    /// How many series a VM has.
    pub series: Series,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// BTF of guest kernels, for guests that have none in memory.
    pub btf: Vec<BtfFiles>,
}

impl Export {
    /// Serves `/metrics` at `address`, from a collector of its own, until a signal ends it.
    pub fn run(&self, address: SocketAddr) -> Result<(), ObserverError> {
        check_kvm()?;
        let program = std::env::current_exe().map_err(io_error("start the collector"))?;
        run(address, self.collector_command(&program))
    }

    /// The command that starts the collector.
    fn collector_command(&self, program: &Path) -> Command {
        let mut collector = Command::new(program);
        let frequency = self.frequency_hz.to_string();
        collector.args(["export", "--collect", "--frequency", &frequency]);
        collector.args((self.series == Series::All).then_some("--all"));
        collector.args(self.vms.0.iter().map(|vm| format!("--vm={vm}")));
        for files in &self.btf {
            let mut option = OsString::from("--btf=");
            option.push(files.path());
            collector.arg(option);
        }
        collector
    }

    /// Runs the collector: prints a page for each line that it reads, until its input ends.
    pub fn collect(&self) -> Result<(), ObserverError> {
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, ..Options::COUNTERS };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;
        collect(&mut observer, &self.vms, self.series)
    }
}

fn collect(observer: &mut Observer<'_>, vms: &Wanted, series: Series) -> Result<(), ObserverError> {
    observer.settle()?;
    let selection = Selection { vms: vms.clone(), sort: Column::Vm, top: None };
    let mut ended = Ended::default();
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
                let mut sample = observer.sample()?;
                ended.keep(&mut sample, Instant::now());
                selection.apply(&mut sample);
                let scheduler = name.as_deref().map(scheduler::Loaded::ask);
                let page = metrics::render(&sample, series, &nodename(), scheduler.as_ref());
                writeln!(out, "{page}{END}")
                    .and_then(|()| out.flush())
                    .map_err(io_error("answer the server"))?;
            }
            Err(RecvTimeoutError::Timeout) => observer.poll(Duration::ZERO)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// VMs that have ended stay on the page for this long: several servers may scrape it, and the
/// watchdog reads it, too. Two intervals of a server that scrapes once a minute.
const SHOW_ENDED: Duration = Duration::from_secs(120);

/// VMs that have ended lately. The observer tells of each once.
#[derive(Default)]
struct Ended(Vec<(Instant, VmSample)>);

impl Ended {
    /// Adds the VMs that have ended lately to a sample, and keeps those that it has.
    fn keep(&mut self, sample: &mut Sample, now: Instant) {
        // A VM has the labels of its process, which has ended if another has its number.
        let is_new = |vm: &VmSample| sample.vms.iter().all(|new| new.pid != vm.pid);
        self.0.retain(|(since, vm)| now.duration_since(*since) < SHOW_ENDED && is_new(vm));
        let just_now = sample.vms.iter().filter(|vm| vm.ended).map(|vm| (now, vm.clone()));
        let just_now: Vec<_> = just_now.collect();
        sample.vms.extend(self.0.iter().map(|(_, vm)| vm.clone()));
        self.0.extend(just_now);
    }
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
