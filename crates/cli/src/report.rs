// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast report`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::{interval, number_within};
use holdfast_observer::Report;

use crate::shown::{FormatArgs, VmArgs};
use crate::{Say, outcome};

/// Reports at intervals how much VMs lose to preempted lock holders, under any scheduler.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  CPU%, STEAL%   CPU time, time waiting for a CPU; in percent of one CPU
  PREEMP         preemptions of vCPUs per second
  HOLDER, HEAD   those of lock holders (LHP), those of next owners (LWP)
  p99            99th percentile of the off-CPU time of preempted holders
  WAIT%          share of the VM's CPU time spent waiting for any lock
  LHP%           the part of it while a holder or next owner was preempted
  PLE/s          pause-loop exits per second
  -  ~           not known; a share of fewer than 400 clock samples

Examples:
  holdfast report 5s                       # every 5 s, until Ctrl-C
  holdfast report 1m 5 --top 10            # five minutes, the ten that lose most
  holdfast report 10s --vm web1 --vcpus    # one VM and its vCPUs
  holdfast report 1m --format csv > losses.csv")]
pub(crate) struct Args {
    /// Time between reports, 10ms to 1day; bare numbers are seconds.
    #[arg(default_value = "5s", value_parser = interval)]
    interval: Duration,

    /// Number of reports; by default until Ctrl-C.
    #[arg(value_parser = number_within(1u64..))]
    count: Option<u64>,

    #[command(flatten)]
    vms: VmArgs,

    #[command(flatten)]
    format: FormatArgs,

    /// Also print a line for each vCPU.
    #[arg(long)]
    vcpus: bool,

    /// Print histograms of the off-CPU time of preempted lock holders.
    #[arg(long, short = 'H')]
    histogram: bool,

    /// Ticks of the sampling clock per second and CPU; 0 leaves the LOCK WAIT columns empty.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = number_within(0..=10_000u32))]
    frequency: u32,

    #[command(flatten)]
    guests: crate::btf::Args,
}

pub(crate) fn main(args: &Args, say: Say) -> anyhow::Result<ExitCode> {
    let selection = match args.vms.selection_here() {
        Ok(selection) => selection,
        Err(error) => return outcome(Err(error)),
    };
    let report = Report {
        interval: args.interval,
        count: args.count,
        quiet: say.quiet,
        format: args.format.format(),
        selection,
        vcpus: args.vcpus,
        histogram: args.histogram,
        frequency_hz: args.frequency,
        btf: args.guests.btf.clone(),
    };
    outcome(report.run())
}
