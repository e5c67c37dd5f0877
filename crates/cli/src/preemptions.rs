// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast preemptions`.

use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long, required = true)]
    json: bool,

    /// Print a line for each line read from standard input, and end with it.
    #[arg(long, required = true)]
    stdin: bool,

    #[command(flatten)]
    guests: crate::btf::Args,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    crate::outcome(holdfast_observer::serve_requests(&args.guests.btf))
}
