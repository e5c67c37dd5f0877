// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast vms`.

use std::process::ExitCode;
use std::time::Duration;

use holdfast_args::time_within;

use crate::print;

/// Lists the VMs of this host, their vCPUs, and whether their guest kernels can be read.
///
/// Finds every VMM that uses /dev/kvm. A VM whose vCPUs do not run meanwhile is listed, but its
/// guest is not read. Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE and
/// CAP_DAC_READ_SEARCH) and a kernel with BTF. Guests need nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast vms
  holdfast vms --vcpus --wait 10s    # with vCPUs, and more time for idle VMs to run")]
pub(crate) struct Args {
    /// Print one JSON object of schema holdfast.vms/1.
    #[arg(long)]
    json: bool,

    /// Also print a line for each vCPU.
    #[arg(long, conflicts_with = "json")]
    vcpus: bool,

    /// Longest time to wait for vCPUs to run, 0 to 1h; bare numbers are seconds.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    #[arg(value_parser = time_within(Duration::ZERO..=Duration::from_secs(3600)))]
    wait: Duration,

    #[command(flatten)]
    guests: crate::btf::Args,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let vms = match holdfast_observer::list_vms(args.wait, &args.guests.btf) {
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
