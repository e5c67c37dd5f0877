// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast doctor`.

mod programs;

use std::process::ExitCode;

use clap::ValueEnum;
use holdfast_checks::{
    Check, Group, Host, Report, SCHEDULER_PROGRAMS, SPINS_PROGRAMS, Verdict, all, fill,
};

use crate::{Say, print, print_styled};

/// Checks whether Holdfast can observe VMs on this host and run scx_holdfast, and says what to fix.
///
/// Changes nothing: the kernel verifies the BPF programs, and none is attached. `scx_holdfast`
/// makes the same checks before it loads, and refuses to load if one fails. `warn` marks things
/// that work, but not as well as they could. Exits with 0 if no check fails, else with 1; with
/// --for, only what that use depends on is checked, and counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast doctor                                  # everything, and what to do next
  holdfast doctor --for observe && holdfast top    # top only where it can work
  holdfast doctor --for schedule --quiet           # a gate for a script: the exit code alone
  holdfast doctor --json | jq '.checks[] | select(.verdict == \"fail\")'")]
pub(crate) struct Args {
    /// Check for one use only: the exit code says whether it works here.
    #[arg(long = "for", value_name = "USE")]
    wanted: Option<Use>,

    /// Print one JSON object of schema holdfast.doctor/1.
    #[arg(long)]
    json: bool,
}

/// A use of Holdfast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Use {
    /// Observing VMs, under any scheduler.
    Observe,
    /// Running scx_holdfast.
    Schedule,
}

impl Use {
    /// Does it depend on this check?
    fn depends_on(self, check: &Check) -> bool {
        match self {
            Self::Observe => check.group == Group::Observe,
            Self::Schedule => check.is_for_scheduling(),
        }
    }
}

pub(crate) fn main(args: &Args, say: Say) -> anyhow::Result<ExitCode> {
    let mut report = all(&Host::this());
    if let Some(wanted) = args.wanted {
        report = report.filtered(|check| wanted.depends_on(check));
    }
    let is_wanted = |name| {
        let check = Check::ok(name, "");
        args.wanted.is_none_or(|wanted| wanted.depends_on(&check))
    };
    programs::try_all(&mut report, &is_wanted);
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else if !say.quiet {
        print_styled(&format!("{report:#}\n{}", conclusions(&report, args.wanted)))?;
    }
    let works = match args.wanted {
        None => report.passed(),
        Some(Use::Observe) => report.blind().next().is_none(),
        Some(Use::Schedule) => report.unschedulable().next().is_none(),
    };
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The conclusions: one line for each use of Holdfast that the checks allow or forbid, and what to
/// do next.
fn conclusions(report: &Report, wanted: Option<Use>) -> String {
    let named =
        |checks: &[&Check]| checks.iter().map(|check| check.name).collect::<Vec<_>>().join(", ");
    let blind: Vec<_> = report.blind().collect();
    let unschedulable: Vec<_> = report.unschedulable().collect();
    let mut text = String::new();
    let mut say = |line: &str| text.extend([&fill("", "", line), "\n"]);
    if wanted != Some(Use::Schedule) {
        match &blind[..] {
            [] => say("VMs can be observed here."),
            blind => say(&format!("Observing VMs fails here, or shows no VM: {}.", named(blind))),
        }
        if report.verdict_of(SPINS_PROGRAMS) == Some(Verdict::Fail) {
            say(&format!("holdfast spins does not work here: {SPINS_PROGRAMS}."));
        }
    }
    let ours = report.scheduler.as_ref().filter(|scheduler| scheduler.is_holdfast());
    let tried = report.verdict_of(SCHEDULER_PROGRAMS) == Some(Verdict::Ok);
    if wanted != Some(Use::Observe) {
        match (ours, &unschedulable[..]) {
            (Some(loaded), []) => say(&format!("scx_holdfast runs here: {loaded}.")),
            (Some(_), failed) => say(&format!(
                "scx_holdfast runs here, and would not load again: {}.",
                named(failed)
            )),
            (None, []) if tried => say("scx_holdfast can run here."),
            (None, []) => say(&format!(
                "scx_holdfast may run here: all other checks passed, but {SCHEDULER_PROGRAMS} was \
                 not made."
            )),
            (None, failed) => {
                say(&format!("scx_holdfast would not run here: {}.", named(failed)));
            }
        }
    }
    let again = "do what the lines marked -> say, and run `holdfast doctor` again.";
    say(&match (wanted, &blind[..], &unschedulable[..]) {
        (None | Some(Use::Observe), [_, ..], _) => format!("Next: {again}"),
        (Some(Use::Observe), ..) | (.., []) if ours.is_some() => {
            "Next: `holdfast status` shows what the scheduler does, and what VMs lose.".into()
        }
        (Some(Use::Observe), ..) => "Next: `holdfast report 60 5` tells what VMs lose.".into(),
        (None, [], [_, ..]) => {
            format!("Next: `holdfast report 60 5` tells what VMs lose. To schedule them, {again}")
        }
        (_, _, [_, ..]) => format!("Next: {again}"),
        (Some(Use::Schedule), ..) => {
            "Next: `timeout -s INT 600 scx_holdfast --stats 10s` tries it for ten minutes.".into()
        }
        (None, ..) => "Next: `holdfast report 60 5` tells what VMs lose, and `timeout -s INT 600 \
                       scx_holdfast --stats 10s` tries the scheduler for ten minutes."
            .into(),
    });
    text
}

#[cfg(test)]
mod tests {
    use holdfast_checks::{DISCOVERY_PROGRAMS, OBSERVER_PROGRAMS, Scheduler};

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
        let said = |checks: &[Check]| conclusions(&report(checks), None);
        let all = said(&[ok(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)]);
        assert!(all.contains("VMs can be observed here") && all.contains("can run here"), "{all}");

        let none = said(&[fail(DISCOVERY_PROGRAMS), ok(OBSERVER_PROGRAMS)]);
        assert!(
            none.contains(&format!("fails here, or shows no VM: {DISCOVERY_PROGRAMS}")),
            "{none}"
        );
        assert!(none.contains(&format!("would not run here: {DISCOVERY_PROGRAMS}.")), "{none}");

        let scheduling =
            said(&[ok(SCHEDULER_PROGRAMS), fail(OBSERVER_PROGRAMS), fail(SPINS_PROGRAMS)]);
        assert!(scheduling.contains(&format!("shows no VM: {OBSERVER_PROGRAMS}.")), "{scheduling}");
        assert!(scheduling.contains("spins does not work here"), "{scheduling}");
        assert!(scheduling.contains("scx_holdfast can run here"), "{scheduling}");
    }

    #[test]
    fn the_last_line_says_what_to_do_next() {
        let last = |checks: &[Check], wanted| {
            let said = conclusions(&report(checks), wanted);
            said[said.rfind("Next: ").unwrap()..].replace('\n', " ")
        };
        let all = [ok(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)];
        assert!(last(&all, None).contains("report 60 5` tells what VMs lose, and `timeout"));
        assert!(last(&all, Some(Use::Observe)).ends_with("lose. "));
        assert!(last(&all, Some(Use::Schedule)).contains("tries it for ten minutes"));
        let blind = [fail(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)];
        assert!(last(&blind, None).starts_with("Next: do what the lines marked ->"));
        let stock = [ok(OBSERVER_PROGRAMS), fail(SCHEDULER_PROGRAMS)];
        assert!(last(&stock, None).contains("To schedule them, do what"));
        assert!(last(&stock, Some(Use::Schedule)).starts_with("Next: do what"));
    }

    #[test]
    fn a_scheduler_that_runs_is_named_and_the_next_step_is_to_look_at_it() {
        let scheduler = |name: &str| Scheduler { name: name.into(), pid: Some(12) };
        let said = |name: &str, checks: &[Check], wanted| {
            let mut report = report(checks);
            report.scheduler = Some(scheduler(name));
            conclusions(&report, wanted).replace('\n', " ")
        };
        let all = [ok(OBSERVER_PROGRAMS), ok(SCHEDULER_PROGRAMS)];
        for wanted in [None, Some(Use::Schedule)] {
            let said = said("holdfast_0.1.0", &all, wanted);
            let runs = "scx_holdfast runs here: holdfast_0.1.0 is loaded, by process 12. ";
            assert!(said.contains(runs) && said.contains("Next: `holdfast status`"), "{said}");
        }
        let observes = said("holdfast_0.1.0", &all, Some(Use::Observe));
        assert!(observes.contains("Next: `holdfast status`"), "{observes}");
        let again = said("holdfast_0.1.0", &[ok(OBSERVER_PROGRAMS), fail("cpus")], None);
        assert!(again.contains("runs here, and would not load again: cpus."), "{again}");
        let foreign = [ok(OBSERVER_PROGRAMS), fail("other-scheduler")];
        let foreign = said("lavd_1.1.4", &foreign, None);
        assert!(foreign.contains("would not run here: other-scheduler."), "{foreign}");
        assert!(!foreign.contains("holdfast status"), "{foreign}");
    }

    #[test]
    fn each_use_depends_on_its_checks() {
        for (name, observe, schedule) in [
            ("privileges", true, true),
            ("sched-ext", false, true),
            ("pause-exits", false, false),
            (OBSERVER_PROGRAMS, true, false),
            (SCHEDULER_PROGRAMS, false, true),
            (DISCOVERY_PROGRAMS, true, true),
            (SPINS_PROGRAMS, false, false),
        ] {
            let depends = [Use::Observe, Use::Schedule].map(|of| of.depends_on(&ok(name)));
            assert_eq!(depends, [observe, schedule], "{name}");
        }
    }

    #[test]
    fn a_check_that_was_skipped_is_not_reported_as_passed() {
        let said = conclusions(&report(&[Check::skip(SCHEDULER_PROGRAMS, "not tried")]), None);
        assert!(said.contains("may run here") && !said.contains("can run here"), "{said}");
    }
}
