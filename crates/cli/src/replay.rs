// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::path::PathBuf;
use std::process::ExitCode;

use holdfast_observer::Replay;

use crate::shown::{FormatArgs, VmArgs};
use crate::{outcome, output_file};

/// Shows a recording of `holdfast record`: as a table, a trace, a report or a picture.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast replay monday.parquet
  holdfast replay monday.parquet --html monday.html
  holdfast replay monday.parquet --format csv > monday.csv")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,

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

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let replay = Replay {
        path: args.file.clone(),
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
