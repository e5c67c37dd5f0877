// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast report`.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use holdfast_observer::Report;

use crate::outcome;

/// Reports at intervals how much VMs lose to preempted lock holders, under any scheduler.
///
/// Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH) and
/// a kernel with BTF; guests need nothing.
///
/// CPU% and STEAL% are percentages of one CPU. PREEMP is preemptions of vCPUs per second; HOLDER is
/// those of lock holders (LHP), HEAD those of next owners (LWP). p99 is the 99th percentile of the
/// off-CPU time of preempted holders. WAIT% is the share of the VM's CPU time spent waiting for any
/// lock; LHP% is the part of it while a holder or next owner was preempted. PLE/s is pause-loop
/// exits per second. `-` means not known.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds between reports.
    #[arg(default_value_t = 1.0, value_parser = seconds)]
    interval: f64,

    /// Number of reports; by default until Ctrl-C.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Print one JSON object of schema holdfast.report/1 per line.
    #[arg(long)]
    json: bool,

    /// Also print a line for each vCPU.
    #[arg(long, short = 'v')]
    vcpus: bool,

    /// Print histograms of the off-CPU time of preempted lock holders.
    #[arg(long, short = 'H')]
    histogram: bool,

    /// Ticks of the sampling clock per second and CPU; 0 leaves the LOCK WAIT columns empty.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    frequency: u32,

    #[command(flatten)]
    guests: crate::btf::Args,
}

/// A number of seconds that a person can wait.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    seconds_within(0.01..=86_400.0, text)
}

pub(crate) fn seconds_within(range: RangeInclusive<f64>, text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let fits = range.contains(&seconds);
    let (least, most) = range.into_inner();
    if fits { Ok(seconds) } else { Err(format!("seconds have to be from {least} to {most}")) }
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let report = Report {
        interval: Duration::from_secs_f64(args.interval),
        count: args.count,
        json: args.json,
        vcpus: args.vcpus,
        histogram: args.histogram,
        frequency_hz: args.frequency,
        btf: args.guests.btf.clone(),
    };
    outcome(report.run())
}
