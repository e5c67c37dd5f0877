// SPDX-License-Identifier: GPL-2.0-or-later
//! One measured window: raw counters at both ends, and the metrics that follow from them.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_agent::protocol::{Counters, CpuTimes, PerfCounts, TaskTime};
use holdfast_policy::VcpuClass;
use holdfast_testbed::scheduler::Counted;
use holdfast_testbed::share::{self, Party};
use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::metric::Metric;
use crate::preemptions;
use crate::spins::SpinWaits;

/// Attempts at a window, the first one included.
pub(crate) const ATTEMPTS: u32 = 4;

/// Why a window does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// The contender did not start, ended, or could not be asked.
    Contender {
        /// What happened.
        why: String,
    },
    /// Something else of the window went wrong: the workload, the guest, the observer.
    Window {
        /// What happened.
        why: String,
    },
    /// The host failed.
    Host {
        /// What happened.
        why: String,
    },
    /// It was not tried: its contender had failed too often.
    GivenUp {
        /// Failures of the contender in a row.
        failures: u32,
    },
    /// The run was stopped within its round, which was measured again.
    Stopped,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contender { why } | Self::Window { why } | Self::Host { why } => f.write_str(why),
            Self::GivenUp { failures } => write!(
                f,
                "not tried: the contender was given up after {failures} failures in a row"
            ),
            Self::Stopped => {
                f.write_str("the run was stopped within this round, which was measured again")
            }
        }
    }
}

/// All counters at one end of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// CPU time of the VM's and the hogs' threads; host clock.
    pub cpu: CpuTimes,
    /// The workload's counters; guest clock.
    pub workload: Counters,
    /// How all CPUs of its guest spent their time, by the guest's accounting; absent if not
    /// reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestTimes>,
    /// Counters of the workloads beside it, in the order of [`Window::beside`]; clocks of their
    /// own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Counters>,
    /// The observer's report, verbatim; absent without an observer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer: Option<serde_json::Value>,
    /// The scheduler's counts since the request before; absent if it reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Counted>,
    /// Perf events of the VM's process; absent if not requested, or not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perf: Option<PerfCounts>,
}

/// CPU time of all CPUs of a guest since its boot, by the guest's own accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTimes {
    /// In user mode, ms.
    pub user_ms: u64,
    /// In the kernel, interrupts included, ms.
    pub system_ms: u64,
    /// Runnable without a CPU of the host, ms.
    pub steal_ms: u64,
    /// Context switches; absent if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}

impl GuestTimes {
    /// Reads `/proc/stat` (proc(5)); the unit of time is 1/100 s on every x86.
    pub fn parse(stat: &str) -> Option<GuestTimes> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let ms =
            numbers.map(|n| n.parse().ok().map(|n: u64| n * 10)).collect::<Option<Vec<_>>>()?;
        let &[user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ms.as_slice() else {
            return None;
        };
        let (user_ms, system_ms) = (user + nice, system + irq + softirq);
        let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.parse().ok());
        Some(GuestTimes { user_ms, system_ms, steal_ms: steal, switches })
    }
}

/// One window of one contender in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// Windows of one round are compared with each other; counts from 0.
    pub round: u32,
    /// Number of earlier tries of this window.
    pub attempt: u32,
    /// When the window began, seconds since the run began.
    pub start_s: f64,
    /// Why this window does not count; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Name of the VM's process in the snapshots. Where the workload ran on the host, the name of
    /// its own process.
    pub vm: String,
    /// Names of the hogs in the snapshots.
    pub hogs: Vec<String>,
    /// Names, in the snapshots, of other processes with a workload: VMs, and programs of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// `cpu.weight` of the control group that each of these processes had to itself; empty without
    /// groups.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, u32>,
    /// Counters at its beginning; absent if the window did not get that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Snapshot>,
    /// Counters at its end; absent if the window did not get that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Snapshot>,
    /// The guest's waits for spinlocks, if it timed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spins: Option<SpinWaits>,
    /// Metrics worked out from the counters. A metric that was not measured is absent, never zero.
    pub metrics: BTreeMap<Metric, f64>,
}

impl Window {
    /// Whether it counts.
    pub fn is_valid(&self) -> bool {
        self.problem.is_none()
    }

    /// Whether it is not tried again: it counts, was tried often enough, or its contender had
    /// failed too often.
    pub(crate) fn is_settled(&self) -> bool {
        let is_given_up = matches!(self.problem, Some(Problem::GivenUp { .. }));
        self.is_valid() || self.attempt.saturating_add(1) >= ATTEMPTS || is_given_up
    }

    /// Operation times of the workload in this window: `[i]` counts [2^i, 2^(i+1)) ns.
    pub fn histogram(&self) -> Vec<u64> {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => difference(&before.workload.hist, &after.workload.hist),
            _ => Vec::new(),
        }
    }

    /// Works out [`Window::metrics`] as a window of `experiment`.
    pub fn work_out_in(&mut self, experiment: &Experiment) {
        self.work_out(experiment.host.pcpus);
        let case = experiment.cases.iter().find(|c| c.name == self.case);
        let mut guests = case.into_iter().flat_map(|case| experiment.guests_of(case));
        if guests.any(|name| !experiment.guests[name].pin.is_empty()) {
            // Fairness among threads with different affinities is another question.
            use Metric::{BesideShareDeviationPoints, ShareDeviationPoints, VmFairSharePercent};
            for metric in [VmFairSharePercent, ShareDeviationPoints, BesideShareDeviationPoints] {
                self.metrics.remove(&metric);
            }
        }
    }

    /// Works out [`Window::metrics`] on a host of `pcpus` CPUs; a window that lacks an end has
    /// none.
    pub fn work_out(&mut self, pcpus: u32) {
        self.metrics.clear();
        let (Some(before), Some(after)) = (&self.before, &self.after) else {
            return;
        };
        let mut found = BTreeMap::new();
        let host_ns = after.cpu.t_ns.saturating_sub(before.cpu.t_ns);
        if host_ns > 0 {
            let vm_cpus = self.cpu_shares(before, after, host_ns, pcpus, &mut found);
            let ops_per_s = throughput(&before.workload, &after.workload);
            found.extend(ops_per_s.map(|v| (Metric::Throughput, v)));
            let us_per_op = ops_per_s.filter(|v| *v > 0.0).map(|v| 1e6 / v);
            found.extend(us_per_op.map(|v| (Metric::TimePerOpUs, v)));
            if let ([old], [new]) = (before.beside.as_slice(), after.beside.as_slice()) {
                found.extend(throughput(old, new).map(|v| (Metric::BesideThroughput, v)));
                let hist = difference(&old.hist, &new.hist);
                found.extend(percentiles(&hist, Metric::BesideOpP50Us, Metric::BesideOpP99Us));
            }
            found.extend(guest_times(before, after));
            found.extend(perf_events(before, after, ops_per_s));
            // Both are rates: the guest's counters and the host's are not read at the same instant.
            if let (Some(ops_per_s), true) = (ops_per_s, vm_cpus > 0.0) {
                found.insert(Metric::WorkPerVmCpuSecond, ops_per_s / vm_cpus);
                let of = |metric| found.get(&metric).copied().filter(|value| *value > 0.0);
                let beside = of(Metric::BesideThroughput).zip(of(Metric::BesideCpuPercent));
                if let Some((beside_ops_per_s, percent)) = beside {
                    let yardstick = beside_ops_per_s / (percent / 100.0);
                    found.insert(Metric::WorkOverBeside, ops_per_s / vm_cpus / yardstick);
                }
                if ops_per_s > 0.0 {
                    found.insert(Metric::VmCpuUsPerOp, 1e6 * vm_cpus / ops_per_s);
                }
            }
            if vm_cpus > 0.0 {
                self.preemptions(before, after, vm_cpus, &mut found);
                if let Some(spins) = &self.spins {
                    let vm_cpu_s = vm_cpus * spins.interval_ns as f64 / 1e9;
                    let waited_ms = spins.total_ns as f64 / 1e6;
                    found.insert(Metric::SpinWaitMs, waited_ms / vm_cpu_s);
                    found.insert(Metric::LongSpinWaits, spins.long() as f64 / vm_cpu_s);
                }
            }
        }
        found.extend(percentiles(&self.histogram(), Metric::OpP50Us, Metric::OpP99Us));
        self.metrics = found;
    }

    /// Adds the shares of CPU time and returns the VM's, in CPUs.
    fn cpu_shares(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        host_ns: u64,
        pcpus: u32,
        found: &mut BTreeMap<Metric, f64>,
    ) -> f64 {
        let mut parties: Vec<(Owner, Option<&String>, Party)> = Vec::new();
        let (mut vm, mut beside, mut hogs) = (0.0, 0.0, 0.0);
        for (task, run_ns, wait_ns) in threads_between(&before.cpu, &after.cpu) {
            let run = run_ns as f64 / host_ns as f64;
            let wait = wait_ns as f64 / host_ns as f64;
            let demand = share::demand(run, wait);
            let (owner, sum) = if task.name == self.vm {
                (Owner::Vm, &mut vm)
            } else if self.beside.contains(&task.name) {
                (Owner::Beside, &mut beside)
            } else {
                (Owner::Hogs, &mut hogs)
            };
            *sum += run;
            // All threads of a group are one party.
            let group = self.groups.get_key_value(&task.name);
            let name = group.map(|(name, _)| name);
            match parties.iter_mut().find(|(_, of, _)| name.is_some() && *of == name) {
                Some((_, _, party)) => party.demand += demand,
                None => {
                    let weight = group.map_or(1.0, |(_, weight)| f64::from(*weight));
                    parties.push((owner, name, Party { weight, demand }));
                }
            }
        }
        // Without other load, the time that these tasks did not use went to the observer, the
        // scheduler's own process and interrupts. It is not theirs to share.
        let is_alone = self.hogs.is_empty() && self.beside.is_empty();
        let capacity = if is_alone { pcpus.into() } else { vm + beside + hogs };
        let (whose, parties): (Vec<Owner>, Vec<Party>) =
            parties.into_iter().map(|(owner, _, party)| (owner, party)).unzip();
        let shares = share::max_min(capacity, &parties);
        let fair = |owner: Owner| -> f64 {
            shares.iter().zip(&whose).filter(|(_, o)| **o == owner).map(|(share, _)| share).sum()
        };
        found.insert(Metric::VmCpuPercent, 100.0 * vm);
        found.insert(Metric::VmFairSharePercent, 100.0 * fair(Owner::Vm));
        found.insert(Metric::ShareDeviationPoints, 100.0 * (vm - fair(Owner::Vm)));
        if !self.hogs.is_empty() {
            found.insert(Metric::HogsCpuPercent, 100.0 * hogs);
        }
        if !self.beside.is_empty() {
            found.insert(Metric::BesideCpuPercent, 100.0 * beside);
            let deviation = beside - fair(Owner::Beside);
            found.insert(Metric::BesideShareDeviationPoints, 100.0 * deviation);
        }
        if self.beside.len() == 1 {
            found.insert(Metric::ShareOverBesidePoints, 100.0 * (vm - beside));
        }
        vm
    }

    fn preemptions(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        vm_cpus: f64,
        found: &mut BTreeMap<Metric, f64>,
    ) {
        let read = |s: &Snapshot| s.observer.as_ref().and_then(preemptions::parse);
        let (Some(old), Some(new)) = (read(before), read(after)) else {
            return;
        };
        let Some(vm) = after.cpu.tasks.iter().find(|t| t.name == self.vm) else {
            return;
        };
        let vm_cpu_s = vm_cpus * new.t_ns.saturating_sub(old.t_ns) as f64 / 1e9;
        if vm_cpu_s == 0.0 {
            return;
        }
        for (class, preempted) in preemptions::between(&old, &new, vm.pid) {
            found.insert(Metric::Preemptions(class), preempted.count as f64 / vm_cpu_s);
            found.insert(Metric::LongPreemptions(class), preempted.long as f64 / vm_cpu_s);
            found.insert(Metric::OffCpuMs(class), preempted.offcpu_ns as f64 / 1e6 / vm_cpu_s);
        }
    }

    /// The scheduler's counts in this window, of the host and of the measured VM, per second of VM
    /// CPU time.
    pub fn scheduler_counters(&self) -> BTreeMap<String, f64> {
        let Some([old, new]) = self.counted() else { return BTreeMap::new() };
        let rates = new.per_second(old, self.pid_of(&self.vm));
        self.per_cpu_second_of(&self.vm, rates)
    }

    /// The same for the VM named `vm` that ran beside it, per second of that VM's CPU time. Empty
    /// if `vm` is not one.
    pub fn scheduler_counters_beside(&self, vm: &str) -> BTreeMap<String, f64> {
        let Some([old, new]) = self.counted() else { return BTreeMap::new() };
        self.per_cpu_second_of(vm, new.per_second_of(old, self.pid_of(vm)))
    }

    fn per_cpu_second_of(&self, vm: &str, rates: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let (true, Some(before), Some(after)) = (self.is_valid(), &self.before, &self.after) else {
            return BTreeMap::new();
        };
        let cpus = cpus_of(vm, &before.cpu, &after.cpu);
        let rates = rates.into_iter().filter(|_| cpus > 0.0);
        rates.map(|(name, rate)| (name, rate / cpus)).collect()
    }

    /// The measured VM's graces in this window that ended because a vCPU left its critical section:
    /// `[i]` counts graces of [2^i, 2^(i+1)) us. Empty if the window does not count, or the
    /// scheduler does not report them.
    pub fn grace_need_us_log2(&self) -> Vec<u64> {
        match self.counted() {
            Some([_, new]) if self.is_valid() => new.grace_need_us_log2(self.pid_of(&self.vm)),
            _ => Vec::new(),
        }
    }

    /// The scheduler's counts at both ends; those of the second end cover the time between them.
    fn counted(&self) -> Option<[&Counted; 2]> {
        let [before, after] = [self.before.as_ref()?, self.after.as_ref()?];
        Some([before.scheduler.as_ref()?, after.scheduler.as_ref()?])
    }

    /// Process of a VM; 0 if it is not known.
    fn pid_of(&self, vm: &str) -> i32 {
        let mut tasks = self.after.iter().flat_map(|after| &after.cpu.tasks);
        tasks.find(|t| t.name == vm).map_or(0, |t| t.pid)
    }

    /// Value of `metric`, if the window counts and it was measured.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        if self.is_valid() { self.metrics.get(&metric).copied() } else { None }
    }

    /// Preemptions of `class` per VM-CPU-second, if measured.
    pub fn preemptions_of(&self, class: VcpuClass) -> Option<f64> {
        self.value(Metric::Preemptions(class))
    }
}

/// Owner of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Vm,
    Beside,
    Hogs,
}

/// The threads that exist at the end, and for how many ns each ran and waited. A thread that is not
/// in `before` started in between.
fn threads_between<'a>(
    before: &'a CpuTimes,
    after: &'a CpuTimes,
) -> impl Iterator<Item = (&'a TaskTime, u64, u64)> {
    let old: BTreeMap<_, _> = before.tasks.iter().map(|t| ((t.pid, t.tid), t)).collect();
    after.tasks.iter().map(move |task| {
        let (run, wait) = old.get(&(task.pid, task.tid)).map_or((0, 0), |t| (t.run_ns, t.wait_ns));
        (task, task.run_ns.saturating_sub(run), task.wait_ns.saturating_sub(wait))
    })
}

/// CPUs that the threads of the process `name` used on average.
fn cpus_of(name: &str, before: &CpuTimes, after: &CpuTimes) -> f64 {
    let threads = threads_between(before, after).filter(|(task, ..)| task.name == name);
    let ran_ns: u64 = threads.map(|(_, run_ns, _)| run_ns).sum();
    let passed_ns = after.t_ns.saturating_sub(before.t_ns);
    if passed_ns == 0 { 0.0 } else { ran_ns as f64 / passed_ns as f64 }
}

/// Number of entries of a histogram. In floating point, because counts of another program may
/// overflow an integer.
pub(crate) fn total(hist: &[u64]) -> f64 {
    hist.iter().map(|n| *n as f64).sum()
}

/// Counts between two histograms.
fn difference(before: &[u64], after: &[u64]) -> Vec<u64> {
    after.iter().zip(before).map(|(a, b)| a.saturating_sub(*b)).collect()
}

fn percentiles(
    hist: &[u64],
    p50: Metric,
    p99: Metric,
) -> impl Iterator<Item = (Metric, f64)> + use<'_> {
    let both = [(p50, 0.5), (p99, 0.99)].into_iter();
    both.filter_map(|(metric, part)| Some((metric, percentile_ns(hist, part)? / 1000.0)))
}

/// CPU time of an operation in the guest, by the guest's own accounting.
fn guest_times(before: &Snapshot, after: &Snapshot) -> Vec<(Metric, f64)> {
    let (Some(old), Some(new)) = (before.guest, after.guest) else { return Vec::new() };
    let ops = after.workload.ops.saturating_sub(before.workload.ops) as f64;
    if ops == 0.0 {
        return Vec::new();
    }
    let per_op = |old: u64, new: u64| new.saturating_sub(old) as f64 * 1e3 / ops;
    let times = [
        (Metric::UserUsPerOp, per_op(old.user_ms, new.user_ms)),
        (Metric::SystemUsPerOp, per_op(old.system_ms, new.system_ms)),
    ];
    let switches = old
        .switches
        .zip(new.switches)
        .map(|(old, new)| (Metric::GuestSwitchesPerOp, new.saturating_sub(old) as f64 / ops));
    times.into_iter().chain(switches).collect()
}

/// Perf events and KVM's counts for each operation, and their ratios; an event that is not counted
/// is left out.
fn perf_events(
    before: &Snapshot,
    after: &Snapshot,
    ops_per_s: Option<f64>,
) -> BTreeMap<Metric, f64> {
    let mut found = BTreeMap::new();
    let (Some(old), Some(new)) = (&before.perf, &after.perf) else { return found };
    let seconds = new.t_ns.saturating_sub(old.t_ns) as f64 / 1e9;
    // By the clock it was read with, as every rate that it is divided by.
    let rate = |event: &str| -> Option<f64> {
        let counted = new.counts.get(event)?.saturating_sub(*old.counts.get(event)?);
        (seconds > 0.0).then(|| counted as f64 / seconds)
    };
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b.filter(|b| *b > 0.0)?);
    for (metric, event) in [
        (Metric::CyclesPerOp, "cycles"),
        (Metric::InstructionsPerOp, "instructions"),
        (Metric::CacheReferencesPerOp, "cache_references"),
        (Metric::CacheMissesPerOp, "cache_misses"),
        (Metric::BranchesPerOp, "branches"),
        (Metric::BranchMissesPerOp, "branch_misses"),
        (Metric::VmExitsPerOp, "vm_exits"),
    ] {
        found.extend(over(rate(event), ops_per_s).map(|v| (metric, v)));
    }
    let halt_poll_us = rate("vm_halt_poll_ns").map(|ns| ns / 1e3);
    found.extend(over(halt_poll_us, ops_per_s).map(|v| (Metric::HaltPollUsPerOp, v)));
    for (metric, a, b) in [
        (Metric::CyclesPerInstruction, "cycles", "instructions"),
        (Metric::CacheMissRate, "cache_misses", "cache_references"),
        (Metric::BranchMissRate, "branch_misses", "branches"),
    ] {
        found.extend(over(rate(a), rate(b)).map(|v| (metric, v)));
    }
    found
}

/// Operations per second of the clock they were read with.
fn throughput(before: &Counters, after: &Counters) -> Option<f64> {
    let ns = after.t_ns.checked_sub(before.t_ns).filter(|ns| *ns > 0)?;
    let ops = after.ops.checked_sub(before.ops)?;
    Some(ops as f64 * 1e9 / ns as f64)
}

/// The value below which `part` of the operations lie; between the two ends of a bucket the
/// operations count as evenly spread on the logarithmic scale.
pub fn percentile_ns(hist: &[u64], part: f64) -> Option<f64> {
    let total = total(hist);
    if total == 0.0 {
        return None;
    }
    let wanted = part * total;
    let mut below = 0.0;
    for (i, &count) in hist.iter().enumerate() {
        let within = wanted - below;
        if count > 0 && within <= count as f64 {
            return Some((i as f64 + within / count as f64).exp2());
        }
        below += count as f64;
    }
    Some((hist.len() as f64).exp2())
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
