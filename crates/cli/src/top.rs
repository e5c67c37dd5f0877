// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast top`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::interval;

use crate::outcome;

/// Shows live how much VMs lose to preempted lock holders, the VM that loses most first.
///
/// Enter opens a VM, h shows help, q quits. Needs a terminal, and the same rights as `holdfast
/// report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast top
  holdfast top 5s")]
pub(crate) struct Args {
    /// Time between updates: 500ms, 2s, 1m; bare numbers are seconds.
    #[arg(default_value = "2s", value_parser = interval)]
    interval: Duration,

    /// Ticks of the sampling clock per second and CPU; 0 leaves WAIT% and LHP% empty.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    frequency: u32,

    #[command(flatten)]
    guests: crate::btf::Args,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    outcome(holdfast_observer::top(args.interval, args.frequency, &args.guests.btf))
}
