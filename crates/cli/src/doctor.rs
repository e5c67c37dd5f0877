// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast doctor`.

mod programs;

use std::process::ExitCode;

use holdfast_checks::{Check, Host, Report, SCHEDULER_PROGRAMS, SPINS_PROGRAMS, Verdict, all};

use crate::print;

/// Fix: checks whether this host can be looked at, whether it can run scx_holdfast, and whether
/// that would be safe.
///
/// Changes nothing: BPF programs are given to the kernel, which says whether it takes them, and
/// dropped; none is attached.
/// `scx_holdfast` makes those that can forbid it before it loads, and refuses where one fails;
/// `warn` is for what works, but not as it could. Exits with 0 if nothing fails, else with 1.
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

/// What follows from the checks, a line for each thing that somebody may want to do.
fn conclusions(report: &Report) -> String {
    let named =
        |checks: Vec<&Check>| checks.iter().map(|check| check.name).collect::<Vec<_>>().join(", ");
    let looking = "Looking at VMs (holdfast vms, report, top, ...)";
    let looking = match report.blind().collect::<Vec<_>>() {
        blind if blind.is_empty() => format!("{looking}: nothing it needs is missing."),
        blind => format!("{looking} fails or shows none here: {}.", named(blind)),
    };
    let spins = match report.verdict_of(SPINS_PROGRAMS) {
        Some(Verdict::Fail) => format!("holdfast spins does not work here: {SPINS_PROGRAMS}.\n"),
        _ => String::new(),
    };
    let scheduling = match report.unschedulable().collect::<Vec<_>>() {
        failed if !failed.is_empty() => {
            format!("scx_holdfast would not run here: {}; -> says what to do.", named(failed))
        }
        _ if report.verdict_of(SCHEDULER_PROGRAMS) == Some(Verdict::Ok) => {
            "scx_holdfast can run here.".into()
        }
        _ => format!(
            "scx_holdfast may run here: every check that was made passed, but not \
             {SCHEDULER_PROGRAMS}."
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
    fn a_program_that_does_not_load_is_the_end_of_what_needs_it() {
        let said = |checks: &[Check]| conclusions(&report(checks));
        let all = said(&[ok(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)]);
        assert!(
            all.contains("nothing it needs is missing") && all.contains("can run here"),
            "{all}"
        );

        let none = said(&[fail(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS)]);
        assert!(
            none.contains(&format!("fails or shows none here: {DISCOVERY_PROGRAMS}")),
            "{none}"
        );
        assert!(none.contains(&format!("would not run here: {DISCOVERY_PROGRAMS};")), "{none}");

        let scheduling =
            said(&[ok(SCHEDULER_PROGRAMS), fail(OBSERVER_PROGRAMS), fail(SPINS_PROGRAMS)]);
        assert!(scheduling.contains(&format!("none here: {OBSERVER_PROGRAMS}.")), "{scheduling}");
        assert!(scheduling.contains("spins does not work here"), "{scheduling}");
        assert!(scheduling.contains("scx_holdfast can run here"), "{scheduling}");
    }

    #[test]
    fn what_was_not_tried_is_not_vouched_for() {
        let said = conclusions(&report(&[Check::skip(SCHEDULER_PROGRAMS, "not tried")]));
        assert!(said.contains("may run here") && !said.contains("can run here"), "{said}");
    }
}
