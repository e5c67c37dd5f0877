// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast export`.

use std::net::SocketAddr;
use std::process::ExitCode;

use holdfast_args::number_within;
use holdfast_observer::{Export, Series};

use crate::outcome;
use crate::shown::WantedArgs;

/// Serves metrics of every VM to Prometheus, at http://127.0.0.1:9746/metrics.
///
/// Start it as root. It splits into two processes. The server gives up all rights; the collector
/// keeps the rights that observing takes, and talks to the server alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast export
  curl http://127.0.0.1:9746/metrics")]
pub(crate) struct Args {
    /// Loopback address and port to listen at.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9746")]
    #[arg(value_parser = loopback)]
    listen: SocketAddr,

    /// Serve all series of each VM: also those by class, and finer histograms. They are some 130
    /// instead of 20.
    #[arg(long)]
    all: bool,

    /// Ticks of the sampling clock per second and CPU; 0 turns the clock off.
    #[arg(long, value_name = "HZ", default_value_t = 19)]
    #[arg(value_parser = number_within(0..=10_000u32))]
    frequency: u32,

    /// Print a page for each line read from standard input: the server starts its collector so.
    #[arg(long, conflicts_with = "listen", hide = true)]
    collect: bool,

    #[command(flatten)]
    vms: WantedArgs,

    #[command(flatten)]
    guests: crate::btf::Args,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "give an IP address and a port, such as 127.0.0.1:9746".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => {
            Err("not a loopback address; put a proxy with authentication in front of it".into())
        }
    }
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let export = Export {
        // They may begin later, and others may end.
        vms: args.vms.wanted(),
        series: if args.all { Series::All } else { Series::Few },
        frequency_hz: args.frequency,
        btf: args.guests.btf.clone(),
    };
    outcome(if args.collect { export.collect() } else { export.run(args.listen) })
}
