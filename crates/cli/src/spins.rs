// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast spins`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_observer::Spins;

use crate::outcome;
use crate::report::seconds;

/// See: shows how long this kernel waits for its own contended locks: inside a guest, or on bare
/// metal.
///
/// In a guest whose lock holders are preempted the histogram has a second mode, a thousand times
/// longer than the first; the output names it. Needs root (or CAP_BPF and CAP_PERFMON) and Linux
/// 5.19 or later with BTF, in the guest.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds between reports; one report at Ctrl-C by default.
    #[arg(value_parser = seconds)]
    interval: Option<f64>,

    /// Number of reports; until Ctrl-C by default.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Print a JSON object of schema holdfast.spins/1 on each line.
    #[arg(long)]
    json: bool,

    /// Show other locks than spinlocks, too (JSON always has them).
    #[arg(long, short)]
    all: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let spins = Spins {
        interval: args.interval.map(Duration::from_secs_f64),
        count: args.count,
        json: args.json,
        all: args.all,
    };
    outcome(spins.run())
}
