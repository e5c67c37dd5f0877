// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast record`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::{interval, time_within};
use holdfast_observer::{Record, Target};

use crate::shown::WantedArgs;
use crate::{Say, complain, outcome, output_file, print};

/// Records when every vCPU loses its CPU, and the sampling clock's findings, to a Parquet file.
///
/// `holdfast replay` shows the recording; DuckDB and Spark read it, too. The file gets its name
/// when it is complete. What a killed process has left, the next `record` in that directory ends
/// and names. Needs the same rights as `holdfast report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast record 1m                       # to holdfast-HOST-TIME.parquet
  holdfast record 1m -o monday.parquet
  holdfast record 1m --vm web1 --vm web2
  holdfast replay monday.parquet")]
pub(crate) struct Args {
    /// File to write, in place of one of this name. By default a new one, which is called after the
    /// host and the time: holdfast-HOST-20261129T031608Z.parquet.
    #[arg(long, short, value_name = "FILE", value_parser = output_file)]
    output: Option<PathBuf>,

    /// How long to record, 10ms to 1day; bare numbers are seconds. By default until Ctrl-C.
    #[arg(value_parser = interval)]
    duration: Option<Duration>,

    /// Ticks of the sampling clock per second and CPU; 0 turns the clock off.
    #[arg(long, value_name = "HZ", default_value_t = 199)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    frequency: u32,

    /// Longest time until what happened is on the disk, 1s to 1h: so much a crash can take.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = sync_time())]
    sync: Duration,

    #[command(flatten)]
    vms: WantedArgs,

    #[command(flatten)]
    guests: crate::btf::Args,
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
        target: args.output.clone().map_or(Target::NewFile, Target::File),
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
