// SPDX-License-Identifier: GPL-2.0-or-later
//! The common content of all reports: one row for each contender of each case.

use std::collections::BTreeSet;

use holdfast_policy::VcpuClass;

use crate::experiment::{Case, Experiment};
use crate::markup::figures::figure;
use crate::metric::Metric;
use crate::replications;
use crate::result::{Comparison, EMULATED, RunResult, Verdict};
use crate::scheduler::{Group, SHOWN};

/// A contender in a case.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Its name.
    pub contender: &'a str,
    /// Whether the others are divided by it.
    pub is_baseline: bool,
    /// Windows that count.
    pub windows: u32,
    /// Work per VM-CPU-second, ops.
    pub work: Option<f64>,
    /// The same against the baseline.
    pub work_ratio: Option<&'a Comparison>,
    /// Work per VM-CPU-second of the worst window, over the baseline's mean.
    pub worst: Option<f64>,
    /// Throughput, ops/s.
    pub throughput: Option<f64>,
    /// The same against the baseline.
    pub throughput_ratio: Option<&'a Comparison>,
    /// CPU time of the VM, percent of one CPU.
    pub share: Option<f64>,
    /// Its fair share, percent of one CPU.
    pub fair: Option<f64>,
    /// Preemptions of lock holders per VM-CPU-second.
    pub holders: Option<f64>,
    /// Those of them that lasted longer than 1 ms.
    pub holders_long: Option<f64>,
}

/// The rows of `case`, in the order of the contenders.
pub fn rows<'a>(result: &'a RunResult, experiment: &'a Experiment, case: &Case) -> Vec<Row<'a>> {
    let base = &experiment.baseline().name;
    let work = Metric::WorkPerVmCpuSecond;
    let base_work = result.summary(&experiment.name, &case.name, base, work).map(|s| s.mean);
    let row = |name: &'a str| {
        let windows = result.windows.iter().filter(|w| {
            w.is_valid()
                && w.experiment == experiment.name
                && w.case == case.name
                && w.contender == name
        });
        let worst = windows.filter_map(|w| w.value(work)).min_by(f64::total_cmp);
        let summary = |m| result.summary(&experiment.name, &case.name, name, m);
        let mean = |m| summary(m).map(|s| s.mean);
        let compared = |m| result.comparison(&experiment.name, &case.name, name, m);
        Row {
            contender: name,
            is_baseline: base == name,
            windows: summary(Metric::Throughput).map_or(0, |s| s.windows),
            work: mean(work),
            work_ratio: compared(work),
            worst: worst.zip(base_work).map(|(worst, base)| worst / base),
            throughput: mean(Metric::Throughput),
            throughput_ratio: compared(Metric::Throughput),
            share: mean(Metric::VmCpuPercent),
            fair: mean(Metric::VmFairSharePercent),
            holders: mean(Metric::Preemptions(VcpuClass::Holder)),
            holders_long: mean(Metric::LongPreemptions(VcpuClass::Holder)),
        }
    };
    experiment.contenders.iter().map(|c| row(&c.name)).collect()
}

/// A contender's own counters.
#[derive(Clone, Debug)]
pub struct Deeds<'a> {
    /// Its name.
    pub contender: &'a str,
    /// The VM beside that they are of; none for those of the host and of the measured VM.
    pub beside: Option<&'a str>,
    /// Groups of counters, each with its rate per second of VM CPU time.
    pub groups: Vec<(&'static str, Vec<(&'static str, f64)>)>,
}

impl Deeds<'_> {
    /// The contender, and the VM beside if they are of one.
    pub fn title(&self) -> String {
        let to = self.beside.map(|vm| format!(", to {vm} beside"));
        format!("{}{}", self.contender, to.unwrap_or_default())
    }

    /// Rate of one counter of a group, if reported.
    pub fn value(&self, group: &str, name: &str) -> Option<f64> {
        let (_, values) = self.groups.iter().find(|(title, _)| *title == group)?;
        values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

/// Counters of the contenders of `case`, as far as reported.
pub fn deeds<'a>(result: &'a RunResult, experiment: &'a Experiment, case: &Case) -> Vec<Deeds<'a>> {
    let counters = result.scheduler_counters.iter();
    let counters = counters.filter(|c| c.experiment == experiment.name && c.case == case.name);
    let of = |contender: &'a str, beside: Option<&'a str>| {
        let counters =
            counters.clone().filter(|c| c.contender == contender && c.beside.as_deref() == beside);
        let value = |counter: &str| {
            let unit = if counter.ends_with("_ns") { 1e6 } else { 1.0 };
            let found = counters.clone().find(|c| c.counter == counter);
            found.map(|c| c.per_vm_cpu_second / unit)
        };
        let group = |(title, counters): &Group| {
            let values = counters.iter().filter_map(|(name, key)| Some((*name, value(key)?)));
            (*title, values.collect::<Vec<_>>())
        };
        let groups: Vec<_> =
            SHOWN.iter().map(group).filter(|(_, values)| !values.is_empty()).collect();
        (!groups.is_empty()).then_some(Deeds { contender, beside, groups })
    };
    let vms: BTreeSet<Option<&str>> = counters.clone().map(|c| c.beside.as_deref()).collect();
    let contenders = experiment.contenders.iter();
    contenders.flat_map(|c| vms.iter().filter_map(|vm| of(&c.name, *vm))).collect()
}

/// Bounds, in us, for which reports give the number of shorter graces.
pub const GRACE_BOUNDS_US: [u64; 5] = [32, 256, 512, 1024, 2048];

/// The graces that these figures are of.
pub const GRACES: &str = "\
     Graces of the measured VM that ended because the vCPU left its critical section; those that \
     ended at the cap or for want of budget are not among them.";

/// Lengths of the graces of a contender, all cases together.
#[derive(Clone, Debug)]
pub struct Graces<'a> {
    /// Its name.
    pub contender: &'a str,
    /// Graces that ended because the vCPU left its critical section.
    pub released: f64,
    /// Percent of them that were over within each of [`GRACE_BOUNDS_US`].
    pub within: [f64; GRACE_BOUNDS_US.len()],
}

/// Lengths of the graces of contenders that gave and reported some.
pub fn graces<'a>(result: &RunResult, experiment: &'a Experiment) -> Vec<Graces<'a>> {
    let of = |contender: &'a str| {
        let needs = result.grace_needs.iter();
        let needs = needs.filter(|n| n.experiment == experiment.name && n.contender == contender);
        let sum = |buckets: usize| -> f64 {
            needs.clone().flat_map(|n| n.us_log2.iter().take(buckets)).map(|n| *n as f64).sum()
        };
        let released = sum(usize::MAX);
        // Bucket i ends at 2^(i+1).
        let within = GRACE_BOUNDS_US.map(|us| 100.0 * sum(us.ilog2() as usize) / released);
        (released > 0.0).then_some(Graces { contender, released, within })
    };
    experiment.contenders.iter().filter_map(|c| of(&c.name)).collect()
}

/// A case in a line.
pub fn describe(experiment: &Experiment, case: &Case) -> String {
    let mut parts = vec![format!("{} x {}", case.workload, experiment.threads_of(case))];
    let pcpus = experiment.host.pcpus;
    match experiment.guest_of(case) {
        Some((_, guest)) => parts.extend([
            format!("{} vCPUs on {pcpus} pCPUs", guest.vcpus),
            format!("guest kernel {}", guest.kernel),
        ]),
        None => parts.push(format!("on the host of {pcpus} pCPUs")),
    }
    for b in &case.beside {
        let threads = experiment.threads_beside(b);
        parts.push(match experiment.guests.get(&b.on) {
            Some(guest) => {
                format!("beside {} x {threads} on {} vCPUs of {}", b.workload, guest.vcpus, b.on)
            }
            None => format!("beside {} x {threads} on the host", b.workload),
        });
    }
    match experiment.hogs_of(case) {
        0 => parts.push("no hogs".into()),
        1 => parts.push("1 hog".into()),
        n => parts.push(format!("{n} hogs")),
    }
    if !experiment.guests_of(case).is_empty() {
        let pause_exits = if experiment.pause_exits_of(case) { "on" } else { "off" };
        parts.push(format!("pause exits {pause_exits}"));
    }
    if let Some((_, guest)) = experiment.guest_of(case) {
        if !guest.cpu.pv_spinlocks {
            parts.push("no PV spinlocks".into());
        }
        if !guest.cmdline.is_empty() {
            parts.push(guest.cmdline.clone());
        }
    }
    parts.join(", ")
}

/// The figure of an expectation, with its interval where that is judged: `1.49 [1.40, 1.57]`.
pub fn figures(v: &Verdict) -> String {
    let measured = v.measured.map_or_else(|| "not measured".into(), figure);
    let high = v.high.map_or_else(|| "?".into(), figure);
    match v.low {
        Some(low) => format!("{measured} [{}, {high}]", figure(low)),
        None => measured,
    }
}

/// The execution of the host's instructions, in words.
pub fn accelerator(result: &RunResult) -> &str {
    match result.provenance.accelerator.as_str() {
        EMULATED => "emulated host (TCG): ratios carry over in direction, times are not hardware's",
        "kvm" => "virtual host (nested KVM)",
        "here" => "this machine itself",
        other => other,
    }
}

/// Whether the host's clock counted its instructions.
fn counts_instructions(result: &RunResult) -> bool {
    result.provenance.qemu.as_ref().is_some_and(|qemu| qemu.contains("instructions counted"))
}

/// The host's clock, in words.
pub fn clock(result: &RunResult) -> &'static str {
    if counts_instructions(result) { "instructions, counted" } else { "the machine's" }
}

/// Limits of all figures: differences to hardware, and to the documents as a whole. Limits of one
/// replication are in its section.
pub fn not_transferred(result: &RunResult) -> Vec<&'static str> {
    let mut lines = Vec::new();
    if result.provenance.accelerator == EMULATED {
        lines.push(
            "The host is emulated: a program imitates one. Which scheduler is ahead should carry \
             over to hardware, by how much in order of magnitude at best, and times do not. An \
             exit, an interrupt, a page fault or a missed cache costs something else on hardware, \
             also relative to the others. The emulation has no caches, no NUMA nodes and no \
             changing clock rate.",
        );
    }
    if counts_instructions(result) {
        lines.push(
            "Time is counted: the host takes the same nanosecond for every instruction, for a \
             division or an atomic operation on a contended line as for an addition. CPUs take \
             turns of a microsecond. So other load of the machine changes no figure, and no figure \
             has the costs of true concurrency. Windows and warm-ups are a quarter as long as the \
             experiment says, 0.25 to 2 s. The originals ran for minutes: what happens once a \
             minute is hardly ever in a window.",
        );
    }
    if result.experiments.iter().any(|e| replications::of(&e.name).is_some()) {
        lines.push(
            "The documents had 4 to 32 CPUs. The overcommit, which decides how often vCPUs are \
             preempted, is kept. The number of vCPUs, which decides how many siblings wait for a \
             preempted one, is not. Effects that grow with it are smaller here, and an effect that \
             is gone here may be there on a large host.",
        );
        lines.push(
            "The documents had kernels of 2007 to 2012, under Xen or KVM. Today's kernel has other \
             spinlocks (queued, and paravirtual ones that halt), other locks in place of the \
             contended ones, other schedulers with shorter time slices, and directed yields of its \
             own. Any of these may be why an effect is gone, and an older kernel still has it.",
        );
        lines.push(
            "Workloads are small, and our own where the original takes minutes or is not \
             available. They take the same paths, in other proportions. So the direction of \
             changes is compared with the documents', and figures are not.",
        );
    }
    lines
}

/// Provenance of the figures, in a line or two.
pub fn origin(result: &RunResult) -> Vec<String> {
    let p = &result.provenance;
    let mut lines = vec![accelerator(result).to_string()];
    let mut kernels: Vec<String> = Vec::new();
    for facts in p.hosts.iter().chain(&p.guests) {
        let kind = if facts.name == "host" { "host" } else { "guest" };
        let line = format!("{kind} {}", facts.kernel_release);
        if !kernels.contains(&line) {
            kernels.push(line);
        }
    }
    kernels.extend(p.qemu.iter().map(|q| format!("QEMU {q}")));
    kernels.push(format!("{} CPUs of {}", p.machine.nr_cpus, p.machine.cpu_model));
    lines.push(kernels.join(", "));
    let commit = p.holdfast_commit.as_deref().map_or(String::new(), |c| format!(" ({c})"));
    lines.push(format!(
        "holdfast {}{commit}, {}, {:.0} s, seed {}",
        p.holdfast_version, p.date, p.duration_s, p.statistics.seed
    ));
    lines
}

/// Warnings that a reader must know before trusting the figures.
pub fn warnings(result: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    if result.partial {
        lines.push("partial: the run ended before all windows were measured".into());
    }
    lines.extend(result.provenance.notes.iter().cloned());
    let mut problems: Vec<(String, u32)> = Vec::new();
    for window in result.invalid() {
        let Some(problem) = &window.problem else { continue };
        let text = format!("{} {} {}: {problem}", window.experiment, window.case, window.contender);
        match problems.iter_mut().find(|(t, _)| *t == text) {
            Some((_, count)) => *count += 1,
            None => problems.push((text, 1)),
        }
    }
    lines.extend(problems.into_iter().map(|(text, count)| {
        let windows =
            if count == 1 { "1 window does".into() } else { format!("{count} windows do") };
        format!("{windows} not count: {text}")
    }));
    for experiment in &result.experiments {
        if experiment.windows.rounds < crate::stats::MIN_ROUNDS {
            lines.push(format!(
                "{}: {} rounds show a direction and no more; a difference takes {} rounds",
                experiment.name,
                experiment.windows.rounds,
                crate::stats::MIN_ROUNDS
            ));
        }
    }
    lines
}
