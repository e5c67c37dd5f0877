// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast vms`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

/// See: lists the VMs of this host, their vCPUs, and whether their guest kernels can be read.
///
/// Finds every VMM that uses /dev/kvm. Needs root (or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE)
/// and a kernel with BTF. Guests need nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object of schema holdfast.vms/1.
    #[arg(long)]
    json: bool,

    /// Longest time to wait for vCPUs to run, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    wait: f64,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!((0.0..=3600.0).contains(&args.wait), "--wait takes seconds from 0 to 3600");
    let vms = match holdfast_observer::list_vms(Duration::from_secs_f64(args.wait)) {
        Ok(vms) => vms,
        Err(error) => return crate::outcome(Err(error)),
    };
    if args.json {
        println!("{}", serde_json::to_string(&vms)?);
    } else {
        print!("{vms}");
    }
    Ok(ExitCode::SUCCESS)
}
