// SPDX-License-Identifier: GPL-2.0-or-later
//! The processes on the host, and bringing them to the state that a window needs.
//!
//! Each `ensure_*` changes only the parts that are not in that state.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_agent::protocol::{Failure, Group, PerfCounts, Reply, Request, Spawn};
use holdfast_testbed::Error;

use super::host::Host;
use crate::experiment::{Experiment, Guest};
use crate::result::KernelFacts;

/// Why a window could not be measured.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The window does not count, for this reason; another attempt may succeed.
    Window(String),
    /// The contender does not start, for this reason. Nothing else is wrong.
    Contender(String),
    /// The host is unusable, or the run is to end.
    Host(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::HostEnded { .. } | Error::HostHung { .. } | Error::Interrupted => {
                Trouble::Host(error)
            }
            other => Trouble::Window(other.to_string()),
        }
    }
}

pub(super) type Outcome<T> = std::result::Result<T, Trouble>;

/// Longest a scheduler may take to load, or to end when asked.
pub(super) const CONTENDER_LIMIT: Duration = Duration::from_secs(30);
/// Longest a workload may take to its first operation, or to end when asked.
pub(super) const WORKLOAD_LIMIT: Duration = Duration::from_secs(30);

pub(super) const CONTENDER: &str = "contender";
pub(super) const WORKLOAD: &str = "workload";
/// Time between two checks of a condition.
pub(super) const LOOK: Duration = Duration::from_millis(40);

pub(super) const OBSERVER: &str = "observer";

/// A host and its processes.
pub(super) struct Session<'a> {
    pub(super) host: Box<dyn Host + 'a>,
    pub(super) experiment: &'a Experiment,
    /// Guests that run, that of the cases' own workloads first.
    pub(super) guests: Vec<String>,
    pause_exits: bool,
    pub(super) contender: Option<usize>,
    /// Whether the contender reports counters.
    pub(super) counts: bool,
    /// Whether the host's CPUs count events of the measured process.
    pub(super) counts_perf: bool,
    pub(super) workload: Option<usize>,
    nr_hogs: u32,
    /// Children that have control groups, and the groups' weights.
    pub(super) groups: BTreeMap<String, u32>,
    /// Command of the observer; none if it is not wanted or cannot run.
    observer: Option<Vec<String>>,
    observer_runs: bool,
    /// Bytes read of the guests' reports of waits for spinlocks.
    pub(super) spins_read: u64,
    /// Kernels that were booted.
    pub(super) facts: Vec<(bool, KernelFacts)>,
    /// Notes for a reader of the result.
    pub(super) notes: Vec<String>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        host: Box<dyn Host + 'a>,
        experiment: &'a Experiment,
        observer: Option<Vec<String>>,
    ) -> Self {
        let hello = host.hello();
        let facts = KernelFacts {
            experiment: experiment.name.clone(),
            name: "host".into(),
            kernel_release: hello.kernel_release,
            cmdline: hello.cmdline.trim().into(),
            nr_cpus: hello.nr_cpus,
            pause_exits: false,
        };
        Session {
            host,
            experiment,
            guests: Vec::new(),
            pause_exits: false,
            contender: None,
            counts: false,
            counts_perf: false,
            workload: None,
            nr_hogs: 0,
            groups: BTreeMap::new(),
            observer,
            observer_runs: false,
            spins_read: 0,
            facts: vec![(true, facts)],
            notes: Vec::new(),
        }
    }

    /// Name, in windows, of the measured VM's process, or of the workload's where it runs on the
    /// host.
    pub(super) fn vm(&self) -> String {
        match self.running_jobs().into_iter().next().map(|own| (own.guest, own.child)) {
            Some((None, child)) => child,
            _ => self.guests.first().map_or_else(String::new, |name| self.host.vm_child(name)),
        }
    }

    /// Names of the hogs.
    pub(super) fn hogs(&self) -> Vec<String> {
        (0..self.nr_hogs).map(hog_name).collect()
    }

    /// Counter file of a workload or a hog.
    pub(super) fn counters(&self, name: &str) -> String {
        format!("{}/holdfast-{name}.counters", self.host.scratch())
    }

    /// Whether nothing of the host is real but its kernel.
    pub(super) fn is_emulated(&self) -> bool {
        self.host.facts().is_emulated()
    }

    /// Factor by which windows are shorter than the experiment says. A second of a host that counts
    /// its instructions takes five to twenty of the machine's.
    pub(super) fn shortened(&self) -> u64 {
        if self.host.facts().counts_instructions { 4 } else { 1 }
    }

    /// Whether the observer can be asked.
    pub(super) fn is_observed(&self) -> bool {
        self.observer_runs
    }

    /// Runs these guests and no others, freshly started, with nothing else on the host but the
    /// observer.
    pub(super) fn ensure_guests(&mut self, names: &[String], pause_exits: bool) -> Outcome<()> {
        if self.guests == names && self.pause_exits == pause_exits {
            // Without a guest it is still a KVM host, and schedulers look for the module.
            if names.is_empty() {
                self.host.load_kvm(pause_exits)?;
            }
            return Ok(());
        }
        // A guest boots twice as fast on an idle host, and all guests boot under the stock
        // scheduler.
        self.ensure_contender(None)?;
        self.ensure_hogs(0)?;
        self.stop_guests()?;
        self.pause_exits = pause_exits;
        self.host.load_kvm(pause_exits)?;
        for name in names {
            if let Err(e) = self.start_guest(name) {
                // All of them or none, so that the next attempt starts from nothing.
                let _ = self.host.stop_guest(name);
                let _ = self.stop_guests();
                return Err(e);
            }
            self.guests.push(name.clone());
        }
        self.await_quiet(names.iter().map(|name| self.host.vm_child(name)).collect())
    }

    fn start_guest(&mut self, name: &str) -> Outcome<()> {
        let pause_exits = self.pause_exits;
        let hello = self.host.start_guest(name, &self.experiment.guests[name], pause_exits)?;
        let facts = KernelFacts {
            experiment: self.experiment.name.clone(),
            name: name.into(),
            kernel_release: hello.kernel_release,
            cmdline: hello.cmdline.trim().into(),
            nr_cpus: hello.nr_cpus,
            pause_exits,
        };
        if !self.facts.iter().any(|(_, f)| *f == facts) {
            self.facts.push((false, facts));
        }
        let Guest { pin, pin_width, vcpus, spins, .. } = &self.experiment.guests[name];
        // QEMU's names of vCPU threads.
        let thread_of = |vcpu: u32| format!("CPU {vcpu}/");
        if !pin.is_empty() {
            let cpus = |first: u32| {
                (first..first + *pin_width).map(|cpu| self.experiment.host.cpu(cpu)).collect()
            };
            let threads = (0..*vcpus).zip(pin.iter().cycle());
            let threads = threads.map(|(vcpu, cpu)| (thread_of(vcpu), cpus(*cpu))).collect();
            self.ask(Request::Pin { name: self.host.vm_child(name), threads })?;
        }
        let groups = (0..*vcpus).map(|vcpu| (thread_of(vcpu), format!("vcpu{vcpu}")));
        let others = (String::new(), "emulator".into());
        self.group(self.host.vm_child(name), *vcpus, groups.chain([others]).collect())?;
        if *spins {
            self.start_spins(name)?;
        }
        Ok(())
    }

    /// Gives a child a control group of its own if the experiment has groups. Its weight is that of
    /// the `nr` busy threads in it, and `threads` get groups below it, as libvirt makes them.
    pub(super) fn group(
        &mut self,
        child: String,
        nr: u32,
        threads: Vec<(String, String)>,
    ) -> Outcome<()> {
        /// Default weight of a group.
        const WEIGHT: u32 = 100;
        if !self.experiment.host.cgroups {
            return Ok(());
        }
        let below = if threads.is_empty() { "" } else { "/libvirt" };
        let group = format!("holdfast-{child}{below}");
        let weight = WEIGHT * nr;
        self.ask(Request::Group(Group { name: child.clone(), group, weight, threads }))?;
        self.groups.insert(child, weight);
        Ok(())
    }

    /// Waits until these children have finished one-off work, such as booting or finding the
    /// guests, so that windows measure scheduling and not starting. Children that never become
    /// quiet are measured as they are.
    pub(super) fn await_quiet(&self, names: Vec<String>) -> Outcome<()> {
        const LOOK_MS: u64 = 150;
        const LOOKS: u32 = 20;
        const BUSY: f64 = 0.1;
        let (mut before, mut quiet) = (None::<(u64, u64)>, 0);
        for _ in 0..LOOKS {
            let times = match self.ask(Request::CpuTimes { names: names.clone() }) {
                Ok(Reply::CpuTimes(times)) => times,
                Err(e @ Trouble::Host(_)) => return Err(e),
                // The next request reports why they ended.
                _ => break,
            };
            let now = times.tasks.iter().map(|task| task.run_ns).sum::<u64>();
            if let Some((ran, at)) = before {
                let passed = times.t_ns.saturating_sub(at) as f64;
                let is_busy = now.saturating_sub(ran) as f64 > BUSY * passed;
                quiet = if is_busy { 0 } else { quiet + 1 };
            }
            if quiet == 2 {
                break;
            }
            before = Some((now, times.t_ns));
            self.pass(LOOK_MS)?;
        }
        Ok(())
    }

    fn stop_guests(&mut self) -> Outcome<()> {
        // Workloads beside a guest on the host do not end with it.
        self.end_beside_on_host()?;
        self.workload = None;
        while let Some(name) = self.guests.pop() {
            self.host.stop_guest(&name)?;
        }
        Ok(())
    }

    /// Runs `wanted` endless loops.
    pub(super) fn ensure_hogs(&mut self, wanted: u32) -> Outcome<()> {
        while self.nr_hogs < wanted {
            let name = hog_name(self.nr_hogs);
            let program = self.host.workload_in_host("hog");
            let counters = self.counters(&name);
            self.ask(Request::spawn(name.clone(), [program, "--counters".into(), counters]))?;
            self.nr_hogs += 1;
            self.group(name, 1, Vec::new())?;
        }
        while self.nr_hogs > wanted {
            self.nr_hogs -= 1;
            self.end(&hog_name(self.nr_hogs), libc::SIGTERM, WORKLOAD_LIMIT)?;
        }
        Ok(())
    }

    /// Has the observer run or not.
    pub(super) fn ensure_observed(&mut self, wanted: bool) -> Outcome<()> {
        if self.observer_runs == wanted || wanted && self.observer.is_none() {
            return Ok(());
        }
        if wanted {
            // It loads in a fraction of the time while nothing else wants the CPUs.
            self.signal_load(libc::SIGSTOP)?;
            self.start_observer();
            self.signal_load(libc::SIGCONT)?;
            self.await_quiet(vec![OBSERVER.into()])
        } else {
            self.observer_runs = false;
            self.end(OBSERVER, libc::SIGTERM, WORKLOAD_LIMIT)
        }
    }

    /// Starts the observer; a host without one is measured without it.
    fn start_observer(&mut self) {
        let Some(argv) = self.observer.clone() else { return };
        let spawned = self.ask(Request::Spawn(Spawn {
            name: OBSERVER.into(),
            argv: [&[self.host.program(&argv[0])], &argv[1..]].concat(),
            stdin: true,
            ..Spawn::default()
        }));
        // It answers once its programs are loaded.
        let answered = spawned.and_then(|_| {
            self.ask(Request::Ask {
                name: OBSERVER.into(),
                line: String::new(),
                timeout_ms: 20_000,
            })
        });
        match answered {
            Ok(_) => self.observer_runs = true,
            Err(Trouble::Window(message) | Trouble::Contender(message)) => {
                self.observer_failed(&format!("it does not run: {message}"));
                self.observer = None;
            }
            // The next request notices the end of the host.
            Err(Trouble::Host(_)) => (),
        }
    }

    /// Notes that preemptions are not measured for the moment, and why; the next window gets a new
    /// observer.
    pub(super) fn observer_failed(&mut self, why: &str) {
        self.observer_runs = false;
        let _ = self.ask(Request::Kill { name: OBSERVER.into(), signal: libc::SIGKILL });
        let _ = self.ask(Request::Wait { name: OBSERVER.into(), timeout_ms: 5000 });
        let note = format!("preemptions were not observed: {}", first_lines(why, 6));
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Starts perf events for the measured process.
    pub(super) fn start_perf(&mut self) -> Outcome<()> {
        self.counts_perf = false;
        self.ask(Request::PerfStart { name: self.vm() })?;
        self.counts_perf = true;
        Ok(())
    }

    /// The counts of perf events, if any. An event that is not supported is noted with its reason,
    /// once.
    pub(super) fn counted(&mut self, counts: PerfCounts) -> Option<PerfCounts> {
        let mut events: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
        for (event, why) in &counts.refused {
            events.entry(why).or_default().push(event);
        }
        for (why, events) in events {
            let note = format!("not counted: {}: {why}", events.join(", "));
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        // The reasons are the same in every window.
        let counts = PerfCounts { refused: BTreeMap::new(), ..counts };
        Some(counts).filter(|counts| !counts.counts.is_empty())
    }

    /// Ends a child of the host's agent, if need be with SIGKILL, and waits for it.
    pub(super) fn end(&self, name: &str, signal: i32, limit: Duration) -> Outcome<()> {
        let kill = |signal| self.ask(Request::Kill { name: name.into(), signal });
        let wait = |limit: Duration| {
            let timeout_ms = limit.as_millis() as u64;
            self.ask(Request::Wait { name: name.into(), timeout_ms })
        };
        // It may have ended by itself; waiting shows it.
        if let Err(e @ Trouble::Host(_)) = kill(signal) {
            return Err(e);
        }
        match wait(limit) {
            Ok(_) => Ok(()),
            Err(Trouble::Window(_)) => {
                if let Err(e @ Trouble::Host(_)) = kill(libc::SIGKILL) {
                    return Err(e);
                }
                wait(Duration::from_secs(10)).map(drop)
            }
            Err(e) => Err(e),
        }
    }

    /// After trouble: ends the contender, the guests, and hogs if one of them has died.
    pub(super) fn recover(&mut self) -> std::result::Result<(), Error> {
        let only_host = |outcome: Outcome<()>| match outcome {
            Err(Trouble::Host(e)) => Err(e),
            _ => Ok(()),
        };
        only_host(self.end_contender())?;
        let mut nr_alive = 0;
        for hog in self.hogs() {
            nr_alive += u32::from(self.runs(&hog)?);
        }
        if nr_alive < self.nr_hogs {
            only_host(self.ensure_hogs(0).map(drop))?;
        }
        // A guest that hung for a while still has old requests to serve: it is not used again.
        only_host(self.stop_guests())
    }

    /// Whether a child of the host's agent is running.
    fn runs(&self, child: &str) -> std::result::Result<bool, Error> {
        match self.ask(Request::Status { name: child.into() }) {
            Ok(reply) => Ok(matches!(reply, Reply::Status { running: true, .. })),
            Err(Trouble::Window(_) | Trouble::Contender(_)) => Ok(false),
            Err(Trouble::Host(e)) => Err(e),
        }
    }

    /// Sends the host's agent a request.
    pub(super) fn ask(&self, request: Request) -> Outcome<Reply> {
        self.host.request(request).map_err(Trouble::from)
    }

    /// The first result of `look`; none if there is none within `limit` of the host's clock,
    /// counted in looks.
    pub(super) fn await_within<T>(
        &self,
        limit: Duration,
        look: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<Option<T>> {
        self.look_within(limit, LOOK, look)
    }

    /// The same with this much time between two looks.
    pub(super) fn look_within<T>(
        &self,
        limit: Duration,
        between: Duration,
        mut look: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<Option<T>> {
        for _ in 0..limit.as_millis() / between.as_millis() {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            self.pass(between.as_millis() as u64)?;
        }
        Ok(None)
    }

    /// Lets time pass, by the host's clock, unless an end is requested.
    pub(super) fn pass(&self, ms: u64) -> Outcome<()> {
        if holdfast_signals::is_asked() {
            return Err(Trouble::Host(Error::Interrupted));
        }
        self.ask(Request::Sleep { ms }).map(drop)
    }
}

fn hog_name(i: u32) -> String {
    format!("hog{i}")
}

pub(super) fn tell(reply: &Reply) -> String {
    match reply {
        Reply::Wait(ended) => {
            let said = last_lines(&[&*ended.stdout_tail, &*ended.stderr_tail].concat(), 8);
            format!("{}{}{said}", ended.status, if said.is_empty() { "" } else { ": " })
        }
        other => format!("{other:?}"),
    }
}

pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

fn first_lines(text: &str, count: usize) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).take(count).collect::<Vec<_>>().join("; ")
}

/// The failure of a request within a batch.
pub(super) fn failed(what: &str, failure: &Failure) -> Trouble {
    Trouble::Window(format!("{what}: {failure}"))
}
