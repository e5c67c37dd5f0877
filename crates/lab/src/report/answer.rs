// SPDX-License-Identifier: GPL-2.0-or-later
//! The answer that a result gives, in sentences: the beginning of every report.

use crate::experiment::{Case, Experiment};
use crate::markup::figures::{direction, percent, two_digits};
use crate::metric::Metric;
use crate::replications::{self, Compared, HOLDFAST};
use crate::result::RunResult;
use crate::stats::{Estimate, LIKELY, MIN_ROUNDS};

/// The outcome of an experiment.
pub fn of_experiment(result: &RunResult, experiment: &Experiment) -> String {
    let mut sentences: Vec<String> = Vec::new();
    if result.partial {
        sentences.push("The run ended early.".into());
    }
    if let Some(published) = replications::of(&experiment.name) {
        let compare = |effect| replications::compare(result, &experiment.name, effect);
        let rows: Vec<Compared> = published.effects.iter().flat_map(compare).collect();
        sentences.push(format!(
            "What {} published: {}.",
            published.id,
            replications::headline(&rows)
        ));
    }
    sentences.extend(match experiment.cases.as_slice() {
        [case] => of_case(result, experiment, case),
        cases => of_cases(result, experiment, cases),
    });
    sentences.extend(of_expectations(result, experiment));
    sentences.join(" ")
}

/// The outcome of a case; none if nothing was compared in it.
pub fn of_case(result: &RunResult, experiment: &Experiment, case: &Case) -> Option<String> {
    let sides = Sides::of(experiment)?;
    let (goal, e) = GOALS.iter().find_map(|g| Some((g, sides.compare(result, case, g.metric)?)))?;
    let place = if experiment.guest_of(case).is_some() { "this guest" } else { "this host" };
    let (with, over) = (sides.contender(), sides.base());
    let (than, ratio) = (goal.than, two_digits(e.ratio));
    let did = format!("{} {place} did", capitalised(&with));
    if e.rounds < MIN_ROUNDS {
        let sure = direction(&e).map(|(sign, sure)| {
            let which = if sign == '>' { "more" } else { "less" };
            format!("{which}, {sure} sure")
        });
        let sure = sure.unwrap_or_else(|| "which way is not clear".into());
        return Some(format!(
            "{did} {ratio} times the work that it did {over} {than}: {sure} after {} rounds.",
            e.rounds
        ));
    }
    let high = e.high.map_or_else(|| "any figure".into(), two_digits);
    let interval =
        format!("{} % interval {} to {high}", (100.0 * e.confidence).round(), two_digits(e.low));
    Some(if e.is_significant() {
        format!("{did} {ratio} times the work that it did {over} {than} ({interval}).")
    } else {
        format!(
            "{did} neither clearly more nor clearly less work than {over} {than}: {ratio} times \
             ({interval})."
        )
    })
}

/// The two contenders that an answer is about.
struct Sides<'a> {
    experiment: &'a Experiment,
    /// `holdfast`, or the last one.
    contender: &'a str,
    base: &'a str,
}

impl<'a> Sides<'a> {
    fn of(experiment: &'a Experiment) -> Option<Sides<'a>> {
        let base = experiment.baseline().name.as_str();
        let others = experiment.contenders.iter().map(|c| c.name.as_str());
        let others: Vec<&str> = others.filter(|name| *name != base).collect();
        let holdfast = others.iter().find(|name| **name == HOLDFAST);
        let contender = holdfast.or(others.last())?;
        Some(Sides { experiment, contender, base })
    }

    fn compare(&self, result: &RunResult, case: &Case, metric: Metric) -> Option<Estimate> {
        let c = result.comparison(&self.experiment.name, &case.name, self.contender, metric)?;
        Some(c.estimate(&result.provenance.statistics))
    }

    /// The preposition: schedulers are compared, or programs.
    fn preposition(&self) -> &'static str {
        let all = self.experiment.contenders.iter();
        let schedules = all.filter(|c| c.name == self.contender).any(|c| c.schedules());
        if schedules { "under" } else { "with" }
    }

    fn contender(&self) -> String {
        format!("{} {}", self.preposition(), self.contender)
    }

    fn base(&self) -> String {
        format!("{} {}", self.preposition(), self.base)
    }
}

/// The resource that work is measured against.
struct Goal {
    metric: Metric,
    than: &'static str,
}

/// The first one that was measured is reported.
const GOALS: [Goal; 2] = [
    Goal { metric: Metric::WorkPerVmCpuSecond, than: "for the same CPU time" },
    Goal { metric: Metric::Throughput, than: "in the same time" },
];

fn of_cases(result: &RunResult, experiment: &Experiment, cases: &[Case]) -> Option<String> {
    let sides = Sides::of(experiment)?;
    let compare = |metric| -> Vec<(&Case, Estimate)> {
        cases.iter().filter_map(|c| Some((c, sides.compare(result, c, metric)?))).collect()
    };
    let nr_compared = GOALS.iter().map(|goal| compare(goal.metric).len()).max()?;
    let (goal, all) = GOALS
        .iter()
        .map(|goal| (goal, compare(goal.metric)))
        .find(|(_, all)| all.len() == nr_compared && nr_compared > 0)?;
    let is_guest = all.iter().all(|(case, _)| experiment.guest_of(case).is_some());
    let place = if is_guest { "guests" } else { "workloads" };
    let rounds = all.iter().map(|(_, e)| e.rounds).min()?;
    let parts = [Kind::More, Kind::Less, Kind::Unclear].into_iter().filter_map(|kind| {
        let of_it = all.iter().map(|(_, e)| e).filter(|e| Kind::of(e) == kind);
        let of_it: Vec<&Estimate> = of_it.collect();
        (!of_it.is_empty()).then_some((kind, of_it))
    });
    let parts = parts.enumerate().map(|(i, (kind, of_it))| {
        let shown = kind.as_str();
        let what = match i {
            0 => format!("{shown} work than {}", sides.base()),
            _ => shown.to_owned(),
        };
        let nr = match i {
            0 => format!("{} of {} cases", of_it.len(), all.len()),
            _ => of_it.len().to_string(),
        };
        format!("{what} in {nr} ({})", range(&of_it))
    });
    let parts = parts.collect::<Vec<_>>().join(", ");
    let than = capitalised(goal.than);
    let direction = match rounds < MIN_ROUNDS {
        true => format!(" That is a direction: {rounds} rounds show no more."),
        false => String::new(),
    };
    Some(format!("{than}, {place} {} did {parts}.{direction}", sides.contender()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    More,
    Less,
    Unclear,
}

impl Kind {
    fn of(e: &Estimate) -> Kind {
        let is_clear = if e.rounds < MIN_ROUNDS {
            e.likely_above_1().is_some_and(|above| !(1.0 - LIKELY..LIKELY).contains(&above))
        } else {
            e.is_significant()
        };
        match is_clear {
            true if e.ratio > 1.0 => Kind::More,
            true => Kind::Less,
            false => Kind::Unclear,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Kind::More => "more",
            Kind::Less => "less",
            Kind::Unclear => "neither clearly more nor clearly less",
        }
    }
}

/// `1.14 to 41.2 times`, and with few rounds how sure the least sure one is.
fn range(all: &[&Estimate]) -> String {
    let ratios = || all.iter().map(|e| e.ratio);
    let low = two_digits(ratios().fold(f64::INFINITY, f64::min));
    let high = two_digits(ratios().fold(0.0, f64::max));
    let ratios = if low == high { low } else { format!("{low} to {high}") };
    let few = all.iter().filter(|e| e.rounds < MIN_ROUNDS);
    let sure = few.filter_map(|e| e.likely_above_1()).map(|above| above.max(1.0 - above));
    match sure.reduce(f64::min) {
        Some(sure) => format!("{ratios} times, at least {} sure", percent(sure.min(0.99))),
        None => format!("{ratios} times"),
    }
}

fn of_expectations(result: &RunResult, experiment: &Experiment) -> Option<String> {
    let verdicts = result.expectations.iter().filter(|v| v.experiment == experiment.name);
    let outcomes: Vec<&str> = verdicts.map(|v| v.outcome()).collect();
    let count = |outcome| outcomes.iter().filter(|o| **o == outcome).count();
    let nr = outcomes.len();
    let (unsure, missed) = (count("unsure"), count("missed"));
    match nr {
        0 => None,
        1 => Some(format!("Its one expectation is {}.", outcomes[0])),
        _ if unsure + missed == 0 => Some(format!("All {nr} expectations are met.")),
        _ => {
            let rest = [(missed, "missed"), (unsure, "unsure")].into_iter();
            let rest = rest.filter(|(n, _)| *n > 0).map(|(n, outcome)| format!(", {n} {outcome}"));
            let rest: String = rest.collect();
            Some(format!("Of {nr} expectations {} are met{rest}.", count("met")))
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{analysis, testdata};

    /// The answer about the first case if Holdfast's windows have `factor` times the operations.
    fn answer(factor: f64, nr_rounds: u32) -> String {
        let mut result = testdata::result();
        result.windows.retain(|window| window.round < nr_rounds);
        for window in result.windows.iter_mut().filter(|s| s.contender == HOLDFAST) {
            let ops = window.after.as_mut().map(|after| &mut after.workload.ops);
            ops.into_iter().for_each(|ops| *ops = (*ops as f64 * factor) as u64);
        }
        let result = analysis::again(result);
        let experiment = &result.experiments[0];
        of_case(&result, experiment, &experiment.cases[0]).unwrap()
    }

    #[test]
    fn a_sentence_says_how_much_work_a_guest_did() {
        let shown = answer(1.0, 8);
        let rest = shown
            .strip_prefix("Under holdfast this guest did 1.4")
            .unwrap_or_else(|| panic!("{shown}"));
        let expected =
            " times the work that it did under stock for the same CPU time (95 % interval 1.4";
        assert!(rest[1..].starts_with(expected) && rest.ends_with(")."), "{shown}");
    }

    #[test]
    fn a_difference_that_may_be_chance_is_called_none() {
        let shown = answer(290.0 / 420.0, 8);
        let expected =
            "neither clearly more nor clearly less work than under stock for the same CPU time: ";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn few_rounds_give_a_direction_and_how_sure_it_is() {
        let shown = answer(1.0, 2);
        let expected = " times the work that it did under stock for the same CPU time: more, ";
        assert!(shown.contains(expected) && shown.ends_with(" % sure after 2 rounds."), "{shown}");
        assert!(answer(0.3, 2).contains(": less, "));
    }

    #[test]
    fn cases_are_counted_by_outcome() {
        let mut result = testdata::result();
        for c in &mut result.comparisons {
            let is_one = c.case != "lock" && c.contender == HOLDFAST;
            if is_one && c.metric == Metric::WorkPerVmCpuSecond {
                (c.ratio, c.low, c.high) = (0.7, 0.6, Some(0.8));
            }
        }
        let experiment = &result.experiments[0];
        let shown = of_experiment(&result, experiment);
        let start = "For the same CPU time, guests under holdfast did more work than under stock \
             in 1 of 2 cases (1.4";
        assert!(shown.starts_with(start), "{shown}");
        assert!(shown.contains(" times), less in 1 (0.70 times)."), "{shown}");
    }

    #[test]
    fn work_in_the_same_time_is_shown_where_no_cpu_time_is_known() {
        let mut result = testdata::result();
        result.comparisons.retain(|c| c.metric != Metric::WorkPerVmCpuSecond || c.case == "lock");
        let experiment = &result.experiments[0];
        let shown = of_case(&result, experiment, &experiment.cases[1]).unwrap();
        assert!(shown.contains(" in the same time ("), "{shown}");
        assert!(of_experiment(&result, experiment).starts_with("In the same time, guests under"));
        result.comparisons.clear();
        assert_eq!(of_case(&result, &result.experiments[0], &result.experiments[0].cases[1]), None);
        let shown = of_experiment(&result, &result.experiments[0]);
        assert_eq!(shown, "Of 3 expectations 2 are met, 1 missed.");
    }

    #[test]
    fn programs_beside_a_scheduler_are_compared_as_such() {
        let mut result = testdata::result();
        result.experiments[0].contenders.iter_mut().for_each(|c| c.command.clear());
        let shown = of_case(&result, &result.experiments[0], &result.experiments[0].cases[0]);
        assert!(shown.unwrap().starts_with("With holdfast this guest did "));
    }
}
