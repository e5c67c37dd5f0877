// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast doctor`.

use std::process::ExitCode;

use holdfast_checks::{Host, all};

use crate::print;

/// Fix: checks whether this host can be looked at, whether it can run scx_holdfast, and whether that would be safe.
///
/// Changes nothing. `scx_holdfast` makes those that can forbid it before it loads, and refuses where one fails;
/// `warn` is for what works, but not as it could. Exits with 0 if nothing fails, else with 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object of schema holdfast.doctor/1.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let report = all(&Host::this());
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        let verdict = if report.passed() {
            "scx_holdfast can run here."
        } else {
            "scx_holdfast would refuse to run here; -> says what to do."
        };
        let blind: Vec<_> = report.blind().map(|check| check.name).collect();
        let looking = match blind.as_slice() {
            [] => "Looking at VMs (holdfast vms, report, top, ...): nothing it needs is missing."
                .into(),
            names => format!(
                "Looking at VMs (holdfast vms, report, top, ...) fails or shows none here: {}.",
                names.join(", ")
            ),
        };
        print(&format!("{report}\n{looking}\n{verdict}\n"))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
