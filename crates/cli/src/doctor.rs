// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast doctor`.

mod programs;

use std::process::ExitCode;

use holdfast_checks::{Check, Host, Report, SCHEDULER_PROGRAMS, SPINS_PROGRAMS, Verdict, all};

use crate::print;

/// Checks whether Holdfast can observe VMs on this host and run scx_holdfast, and says what to fix.
///
/// Changes nothing: the kernel verifies the BPF programs, and none is attached. `scx_holdfast`
/// makes the same checks before it loads, and refuses to load if one fails. `warn` marks things
/// that work, but not as well as they could. Exits with 0 if no check fails, else with 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object of schema holdfast.doctor/1.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut report = all(&Host::this());
    programs::try_all(&mut report);
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        print(&format!("{report}\n{}", conclusions(&report)))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The conclusions: one line for each use of Holdfast that the checks allow or forbid.
fn conclusions(report: &Report) -> String {
    let named =
        |checks: Vec<&Check>| checks.iter().map(|check| check.name).collect::<Vec<_>>().join(", ");
    let looking = "Observing VMs (holdfast vms, report, top, ...)";
    let looking = match report.blind().collect::<Vec<_>>() {
        blind if blind.is_empty() => format!("{looking}: nothing that it needs is missing."),
        blind => format!("{looking} fails here, or shows no VM: {}.", named(blind)),
    };
    let spins = match report.verdict_of(SPINS_PROGRAMS) {
        Some(Verdict::Fail) => format!("holdfast spins does not work here: {SPINS_PROGRAMS}.\n"),
        _ => String::new(),
    };
    let scheduling = match report.unschedulable().collect::<Vec<_>>() {
        failed if !failed.is_empty() => {
            format!(
                "scx_holdfast would not run here: {}; the lines marked -> say how to fix it.",
                named(failed)
            )
        }
        _ if report.verdict_of(SCHEDULER_PROGRAMS) == Some(Verdict::Ok) => {
            "scx_holdfast can run here.".into()
        }
        _ => format!(
            "scx_holdfast may run here: all other checks passed, but {SCHEDULER_PROGRAMS} was not \
             made."
        ),
    };
    format!("{looking}\n{spins}{scheduling}\n")
}

#[cfg(test)]
mod tests {
    use holdfast_checks::{DISCOVERY_PROGRAMS, OBSERVER_PROGRAMS};

    use super::*;

    /// A report of these checks alone.
    fn report(checks: &[Check]) -> Report {
        let mut report = Report::default();
        checks.iter().cloned().for_each(|check| report.add(check));
        report
    }

    fn ok(name: &'static str) -> Check {
        Check::ok(name, "taken")
    }

    fn fail(name: &'static str) -> Check {
        Check::fail(name, "refused", "report it")
    }

    #[test]
    fn a_program_that_does_not_load_rules_out_the_commands_that_need_it() {
        let said = |checks: &[Check]| conclusions(&report(checks));
        let all = said(&[ok(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)]);
        assert!(
            all.contains("nothing that it needs is missing") && all.contains("can run here"),
            "{all}"
        );

        let none = said(&[fail(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS)]);
        assert!(
            none.contains(&format!("fails here, or shows no VM: {DISCOVERY_PROGRAMS}")),
            "{none}"
        );
        assert!(none.contains(&format!("would not run here: {DISCOVERY_PROGRAMS};")), "{none}");

        let scheduling =
            said(&[ok(SCHEDULER_PROGRAMS), fail(OBSERVER_PROGRAMS), fail(SPINS_PROGRAMS)]);
        assert!(scheduling.contains(&format!("shows no VM: {OBSERVER_PROGRAMS}.")), "{scheduling}");
        assert!(scheduling.contains("spins does not work here"), "{scheduling}");
        assert!(scheduling.contains("scx_holdfast can run here"), "{scheduling}");
    }

    #[test]
    fn a_check_that_was_skipped_is_not_reported_as_passed() {
        let said = conclusions(&report(&[Check::skip(SCHEDULER_PROGRAMS, "not tried")]));
        assert!(said.contains("may run here") && !said.contains("can run here"), "{said}");
    }
}
