// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast export`.

use std::net::SocketAddr;
use std::process::ExitCode;

use crate::outcome;

/// See: serves metrics of every VM to Prometheus, at http://127.0.0.1:9746/metrics.
///
/// Started as root; the process that serves then gives up all rights, and only another one, which
/// talks to nobody else, keeps what it takes to observe.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen at; it has to be of this machine only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9746", value_parser = loopback)]
    listen: SocketAddr,

    /// Ticks of the sampling clock per second and CPU; 0 for none.
    #[arg(long, value_name = "HZ", default_value_t = 19, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    frequency: u32,

    /// Print a page for each line read from standard input: what the serving process starts.
    #[arg(long, conflicts_with = "listen", hide = true)]
    collect: bool,

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
    outcome(match args.collect {
        true => holdfast_observer::collect(args.frequency, &args.guests.btf),
        false => holdfast_observer::export(args.listen, args.frequency, &args.guests.btf),
    })
}
