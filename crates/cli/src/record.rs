// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast record`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use holdfast_args::{bounds, interval, number_within, time_within};
use holdfast_observer::{Bounds, Record, Target};

use crate::shown::WantedArgs;
use crate::{Say, complain, outcome, output_file, print, wrong_usage};

/// Records when every vCPU loses its CPU, and the sampling clock's findings, to Parquet files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast record 1m                       # to holdfast-HOST-TIME.parquet
  holdfast record 1m -o monday.parquet
  holdfast record 1m --vm web1 --vm web2
  holdfast record -o rec/ --keep 7d,10GiB  # a file each hour, until Ctrl-C
  holdfast replay monday.parquet

Files:
  A file gets its name when it is complete. What a killed process has left, the
  next `record` in that directory ends and names. DuckDB and Spark read files,
  too.")]
pub(crate) struct Args {
    /// File to write, in place of one of this name. By default a new one, which is called after the
    /// host and the time: holdfast-HOST-20261129T031608Z.parquet. With a slash at the end it is a
    /// directory for one file after another: date=2026-11-29/host=HOST/HOST-TIME.parquet.
    #[arg(long, short, value_name = "FILE|DIR/", value_parser = output_file)]
    output: Option<PathBuf>,

    /// When a file in a directory ends and the next one begins: after a time, at a size, or both as
    /// in 1h,1GiB. By default 1h; also at midnight (UTC).
    #[arg(long, value_name = "TIME|SIZE")]
    #[arg(value_parser = bounds(Duration::from_secs(1)..=DAY, 1 << 20))]
    rotate: Option<holdfast_args::Bounds>,

    /// What is kept of this host's files in the directory, by age, by size, or both as in
    /// 30d,50GiB: the oldest files beyond it are removed. By default everything.
    #[arg(long, value_name = "TIME|SIZE")]
    #[arg(value_parser = bounds(Duration::from_secs(60)..=10_000 * DAY, 1 << 20))]
    keep: Option<holdfast_args::Bounds>,

    /// How long to record, 10ms to 1day; bare numbers are seconds. By default until Ctrl-C.
    #[arg(value_parser = interval)]
    duration: Option<Duration>,

    /// Ticks of the sampling clock per second and CPU; 0 turns the clock off.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = number_within(0..=10_000u32))]
    frequency: u32,

    /// Longest time until what happened is on the disk, 1s to 1h: so much a crash can take.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = sync_time())]
    sync: Duration,

    #[command(flatten)]
    vms: WantedArgs,

    #[command(flatten)]
    guests: crate::btf::Args,
}

const DAY: Duration = Duration::from_secs(86_400);

/// A file each hour.
const ROTATE: Bounds = Bounds { time: Some(Duration::from_secs(3600)), bytes: None };

impl Args {
    fn target(&self) -> anyhow::Result<Target> {
        let [rotate, keep] =
            [self.rotate, self.keep].map(|b| b.map(|(time, bytes)| Bounds { time, bytes }));
        let path = self.output.clone();
        let is_directory =
            |path: &PathBuf| path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir();
        match path {
            Some(path) if is_directory(&path) => {
                let (rotate, keep) = (rotate.unwrap_or(ROTATE), keep.unwrap_or_default());
                Ok(Target::Directory { path, rotate, keep })
            }
            _ if rotate.or(keep).is_some() => Err(wrong_usage(anyhow!(
                "--rotate and --keep are for a directory of files: give one with -o DIR/"
            ))),
            Some(path) => Ok(Target::File(path)),
            None => Ok(Target::NewFile),
        }
    }
}

fn sync_time() -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    time_within(Duration::from_secs(1)..=Duration::from_secs(3600))
}

pub(crate) fn main(args: &Args, say: Say) -> anyhow::Result<ExitCode> {
    let vms = match args.vms.wanted_here() {
        Ok(vms) => vms,
        Err(error) => return outcome(Err(error)),
    };
    let record = Record {
        target: args.target()?,
        vms,
        duration: args.duration,
        frequency_hz: args.frequency,
        sync_every: args.sync,
        quiet: say.quiet,
        btf: args.guests.btf.clone(),
    };
    match record.run(&|error| complain(format_args!("{:#}", anyhow::Error::from(error)))) {
        Ok(done) => {
            if !say.quiet {
                print(&format!("{done}\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => outcome(Err(error)),
    }
}
