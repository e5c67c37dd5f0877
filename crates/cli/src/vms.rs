// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast vms`.

use std::process::ExitCode;
use std::time::Duration;

use crate::print;
use crate::report::seconds_within;

/// Lists the VMs of this host, their vCPUs, and whether their guest kernels can be read.
///
/// Finds every VMM that uses /dev/kvm. A VM whose vCPUs do not run meanwhile is listed, but its
/// guest is not read. Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE and
/// CAP_DAC_READ_SEARCH) and a kernel with BTF. Guests need nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object of schema holdfast.vms/1.
    #[arg(long)]
    json: bool,

    /// Also print a line for each vCPU.
    #[arg(long, short = 'v', conflicts_with = "json")]
    vcpus: bool,

    /// Longest time to wait for vCPUs to run, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = wait)]
    wait: f64,

    #[command(flatten)]
    guests: crate::btf::Args,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let wait = Duration::from_secs_f64(args.wait);
    let vms = match holdfast_observer::list_vms(wait, &args.guests.btf) {
        Ok(vms) => vms,
        Err(error) => return crate::outcome(Err(error)),
    };
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&vms)?))?;
    } else if args.vcpus {
        print(&format!("{vms:#}"))?;
    } else {
        print(&vms.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wait(text: &str) -> Result<f64, String> {
    seconds_within(0.0..=3600.0, text)
}
