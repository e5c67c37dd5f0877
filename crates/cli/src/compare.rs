// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use holdfast_observer::{Compare, Input};

use crate::replay::input_parser;
use crate::shown::{FormatArgs, WantedArgs};
use crate::{outcome, output_file};

/// Says what changed between recordings: holders preempted, time lost, off-CPU times.
///
/// The first line is the answer. An interval says how sure a change is; where it includes no change
/// the answer is "undecided". It does not say why something changed: compare times of like load.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast compare stock.parquet holdfast.parquet
  holdfast compare rec/@..2026-11-29T12:00 rec/@2026-11-29T12:00..   # before and after noon (UTC)
  holdfast compare rec/@2026-11-22..2026-11-23 rec/@2026-11-29.. --json")]
pub(crate) struct Args {
    /// A recording, or a directory with recordings below it; @FROM..TO after the name is a time of
    /// them in UTC, such as 2026-11-28..2026-11-29T12:00, and either end may be missing.
    #[arg(value_name = "BEFORE[@FROM..TO]", value_parser = input_parser())]
    before: Input,

    /// The same for the time after.
    #[arg(value_name = "AFTER[@FROM..TO]", value_parser = input_parser())]
    after: Input,

    #[command(flatten)]
    vms: WantedArgs,

    #[command(flatten)]
    format: FormatArgs,

    /// Write the same as a page for a browser.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    html: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let compare = Compare {
        before: args.before.clone(),
        after: args.after.clone(),
        format: args.format.format(),
        vms: args.vms.wanted(),
        html: args.html.clone(),
    };
    outcome(compare.run())
}
