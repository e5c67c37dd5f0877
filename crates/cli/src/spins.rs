// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast spins`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::{interval, number_within};
use holdfast_observer::Spins;

use crate::{Say, outcome};

/// Shows how long this kernel waits for its own contended locks: in a guest, or on bare metal.
///
/// In a guest whose lock holders are preempted, the histogram has a second mode, a thousand times
/// longer than the first; the output names it. Run it in the guest, as root (or with CAP_BPF and
/// CAP_PERFMON), on Linux 5.19 or later with BTF.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast spins           # in a guest; one report at Ctrl-C
  holdfast spins 10s 6     # six reports in a minute")]
pub(crate) struct Args {
    /// Time between reports, 10ms to 1day; bare numbers are seconds. By default one report, at
    /// Ctrl-C.
    #[arg(value_parser = interval)]
    interval: Option<Duration>,

    /// Number of reports; by default until Ctrl-C.
    #[arg(value_parser = number_within(1u64..))]
    count: Option<u64>,

    /// Print one JSON object of schema holdfast.spins/1 per line.
    #[arg(long)]
    json: bool,

    /// Also show locks other than spinlocks (JSON always has them).
    #[arg(long, short)]
    all: bool,
}

pub(crate) fn main(args: &Args, say: Say) -> anyhow::Result<ExitCode> {
    let spins = Spins {
        interval: args.interval,
        count: args.count,
        quiet: say.quiet,
        json: args.json,
        all: args.all,
    };
    outcome(spins.run())
}
