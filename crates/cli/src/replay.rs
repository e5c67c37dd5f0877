// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use holdfast_observer::{Input, Replay};

use crate::shown::{FormatArgs, VmArgs};
use crate::{outcome, output_file};

/// Shows recordings of `holdfast record`: as a table, a trace, a report or a picture.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast replay monday.parquet
  holdfast replay rec/                     # all recordings below it, of all hosts
  holdfast replay rec/@2026-11-28T12:00..2026-11-29
  holdfast replay monday.parquet --html monday.html
  holdfast replay monday.parquet --format csv > monday.csv")]
pub(crate) struct Args {
    /// Recordings, and directories with recordings below them; those of one host are shown as one.
    /// @FROM..TO after a name is a time of them in UTC, such as 2026-11-28..2026-11-29T12:00, and
    /// either end may be missing.
    #[arg(required = true, value_name = "FILE|DIR[@FROM..TO]", value_parser = input_parser())]
    inputs: Vec<Input>,

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

    /// Write a trace for ui.perfetto.dev: vCPUs, preempted holders and waiting siblings over time.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    perfetto: Option<PathBuf>,

    /// Write a report for a browser: table, worst second, histograms.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    html: Option<PathBuf>,

    /// Write a picture (SVG) of the 50 ms around the longest absence in the worst second.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    svg: Option<PathBuf>,
}

/// A parser of recordings.
pub(crate) fn input_parser() -> impl TypedValueParser<Value = Input> {
    OsStringValueParser::new().try_map(|text| Input::parse(&text))
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let replay = Replay {
        inputs: args.inputs.clone(),
        format: args.format.format(),
        selection: args.vms.selection(),
        vcpus: args.vcpus,
        histogram: args.histogram,
        perfetto: args.perfetto.clone(),
        html: args.html.clone(),
        svg: args.svg.clone(),
    };
    outcome(replay.run())
}
