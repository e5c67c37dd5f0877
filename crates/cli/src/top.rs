// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast top`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::{interval, number_within};
use holdfast_observer::{Top, top_keys};

use crate::outcome;
use crate::shown::VmArgs;

/// Shows live how much VMs lose to preempted lock holders, the VM that loses most first. Needs a
/// terminal of 80 columns and 12 lines, and the rights of `holdfast report`, which prints to pipes.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Time between updates, 10ms to 1day; bare numbers are seconds.
    #[arg(default_value = "2s", value_parser = interval)]
    interval: Duration,

    #[command(flatten)]
    vms: VmArgs,

    /// Ticks of the sampling clock per second and CPU; 0 leaves WAIT% and LHP% empty.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = number_within(0..=10_000u32))]
    frequency: u32,

    #[command(flatten)]
    guests: crate::btf::Args,
}

const EXAMPLES: &str = "\
Examples:
  holdfast top
  holdfast top 5s --sort lhp
  holdfast top --vm web1 --vm web2";

fn after_help() -> String {
    format!("{EXAMPLES}\n\nKeys:\n{}", top_keys())
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let selection = match args.vms.selection_here() {
        Ok(selection) => selection,
        Err(error) => return outcome(Err(error)),
    };
    let top = Top {
        interval: args.interval,
        selection,
        frequency_hz: args.frequency,
        btf: args.guests.btf.clone(),
    };
    outcome(top.run())
}
