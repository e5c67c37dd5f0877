// SPDX-License-Identifier: GPL-2.0-or-later
//! From windows to conclusions: summaries, comparisons and verdicts of a result.

use std::collections::BTreeMap;

use crate::experiment::{Contender, Expectation, Experiment, Figure};
use crate::metric::Metric;
use crate::result::{
    Comparison, GraceNeed, Provenance, RunResult, SCHEMA, SchedulerCounter, Summary, Verdict,
    is_within,
};
use crate::scheduler;
use crate::stats::{self, Estimate, MIN_ROUNDS, Round, Settings};
use crate::window::Window;

/// Puts a result together.
pub fn conclude(
    provenance: Provenance,
    experiments: Vec<Experiment>,
    windows: Vec<Window>,
    partial: bool,
) -> RunResult {
    let mut result = RunResult {
        schema: SCHEMA.into(),
        partial,
        provenance,
        experiments,
        windows,
        summaries: Vec::new(),
        comparisons: Vec::new(),
        scheduler_counters: Vec::new(),
        grace_needs: Vec::new(),
        expectations: Vec::new(),
    };
    let settings = result.provenance.statistics;
    for experiment in &result.experiments {
        for case in &experiment.cases {
            for contender in &experiment.contenders {
                result.scheduler_counters.extend(count(
                    &result.windows,
                    experiment,
                    &case.name,
                    contender,
                ));
                result.grace_needs.extend(sum_graces(
                    &result.windows,
                    experiment,
                    &case.name,
                    contender,
                ));
                for metric in Metric::all() {
                    let key = Key { experiment, case: &case.name, metric };
                    result.summaries.extend(summarise(&result.windows, key, &contender.name));
                    for over in opponents(experiment, &case.name, &contender.name) {
                        let compared =
                            compare(&result.windows, key, &contender.name, over, &settings);
                        result.comparisons.extend(compared);
                    }
                }
            }
        }
    }
    result.expectations = judge_all(&result);
    result
}

/// Draws the conclusions of a result again, from its windows alone: from their counters if it has
/// them, else from their metrics.
pub fn again(result: RunResult) -> RunResult {
    let RunResult { provenance, experiments, mut windows, partial, .. } = result;
    for window in windows.iter_mut().filter(|s| s.before.is_some() && s.after.is_some()) {
        match experiments.iter().find(|e| e.name == window.experiment) {
            Some(experiment) => window.work_out_in(experiment),
            None => window.work_out(1),
        }
    }
    conclude(provenance, experiments, windows, partial)
}

/// Verdicts on what the experiments of a result expect, from its figures.
pub fn judge_all(result: &RunResult) -> Vec<Verdict> {
    let experiments = result.experiments.iter();
    experiments
        .flat_map(|e| e.expect.iter().map(|expectation| judge(result, e, expectation)))
        .collect()
}

/// Contenders that one is compared with in a case: the baseline, and those that expectations name.
fn opponents<'a>(experiment: &'a Experiment, case: &str, contender: &str) -> Vec<&'a str> {
    let mut all = vec![experiment.baseline().name.as_str()];
    let is_of_it =
        |e: &&Expectation| e.case == case && e.contender == contender && e.over_case.is_none();
    for e in experiment.expect.iter().filter(is_of_it) {
        if let Some(over) = e.over.as_deref().filter(|over| !all.contains(over)) {
            all.push(over);
        }
    }
    all.retain(|name| *name != contender);
    all
}

#[derive(Clone, Copy)]
struct Key<'a> {
    experiment: &'a Experiment,
    case: &'a str,
    metric: Metric,
}

/// Values of one metric by round.
fn series(windows: &[Window], key: Key, contender: &str) -> BTreeMap<u32, f64> {
    windows
        .iter()
        .filter(|s| {
            s.experiment == key.experiment.name && s.case == key.case && s.contender == contender
        })
        .filter_map(|s| Some((s.round, s.value(key.metric)?)))
        .collect()
}

/// Means of a contender's own counters.
fn count(
    windows: &[Window],
    experiment: &Experiment,
    case: &str,
    contender: &Contender,
) -> Vec<SchedulerCounter> {
    if !scheduler::is_understood(contender) {
        return Vec::new();
    }
    let mut values: BTreeMap<(Option<String>, String), Vec<f64>> = BTreeMap::new();
    let of = |s: &&Window| {
        s.experiment == experiment.name && s.case == case && s.contender == contender.name
    };
    for window in windows.iter().filter(of) {
        for (counter, value) in window.scheduler_counters() {
            values.entry((None, counter)).or_default().push(value);
        }
        for vm in &window.beside {
            for (counter, value) in window.scheduler_counters_beside(vm) {
                values.entry((Some(vm.clone()), counter)).or_default().push(value);
            }
        }
    }
    let counter = |((beside, counter), values): ((Option<String>, String), Vec<f64>)| {
        Some(SchedulerCounter {
            experiment: experiment.name.clone(),
            case: case.into(),
            contender: contender.name.clone(),
            beside,
            counter,
            windows: values.len() as u32,
            per_vm_cpu_second: stats::mean(&values)?,
        })
    };
    values.into_iter().filter_map(counter).collect()
}

/// Lengths of a contender's graces, over all windows; none if it gave none.
fn sum_graces(
    windows: &[Window],
    experiment: &Experiment,
    case: &str,
    contender: &Contender,
) -> Option<GraceNeed> {
    if !scheduler::is_understood(contender) {
        return None;
    }
    let of = |s: &&Window| {
        s.experiment == experiment.name && s.case == case && s.contender == contender.name
    };
    let (mut nr_windows, mut us_log2) = (0, Vec::new());
    for need in windows.iter().filter(of).map(Window::grace_need_us_log2) {
        nr_windows += u32::from(!need.is_empty());
        us_log2.resize(us_log2.len().max(need.len()), 0u64);
        for (sum, n) in us_log2.iter_mut().zip(need) {
            *sum = sum.saturating_add(n);
        }
    }
    us_log2.iter().any(|n| *n > 0).then(|| GraceNeed {
        experiment: experiment.name.clone(),
        case: case.into(),
        contender: contender.name.clone(),
        windows: nr_windows,
        us_log2,
    })
}

fn summarise(windows: &[Window], key: Key, contender: &str) -> Option<Summary> {
    let values: Vec<f64> = series(windows, key, contender).into_values().collect();
    Some(Summary {
        experiment: key.experiment.name.clone(),
        case: key.case.into(),
        contender: contender.into(),
        metric: key.metric,
        windows: values.len() as u32,
        mean: stats::mean(&values)?,
        sd: stats::standard_deviation(&values),
    })
}

fn compare(
    windows: &[Window],
    key: Key,
    contender: &str,
    baseline: &str,
    settings: &Settings,
) -> Option<Comparison> {
    if !key.metric.has_ratio() {
        return None;
    }
    let theirs = series(windows, key, baseline);
    let (e, rounds) = over(&series(windows, key, contender), &theirs, settings);
    let e = e?;
    Some(Comparison {
        experiment: key.experiment.name.clone(),
        case: key.case.into(),
        metric: key.metric,
        contender: contender.into(),
        baseline: baseline.into(),
        ratio: e.ratio,
        low: e.low,
        high: e.high,
        p: e.p,
        rounds,
    })
}

/// Values of `contender` over those of `baseline` by round, and the number of rounds that have
/// both.
///
/// Windows of two cases are not neighbours in time: then rounds only count them, and the interval
/// is as wide as for values drawn independently.
pub(crate) fn over(
    contender: &BTreeMap<u32, f64>,
    baseline: &BTreeMap<u32, f64>,
    settings: &Settings,
) -> (Option<Estimate>, u32) {
    let both = contender.iter().filter_map(|(round, contender)| {
        Some(Round { contender: *contender, baseline: *baseline.get(round)? })
    });
    let rounds: Vec<Round> = both.collect();
    (stats::compare(&rounds, settings), rounds.len() as u32)
}

/// The figure of an expectation, and the interval that is judged in its place, if any.
struct Judged {
    figure: Option<f64>,
    interval: Option<(f64, Option<f64>)>,
}

impl From<Option<f64>> for Judged {
    fn from(figure: Option<f64>) -> Judged {
        Judged { figure, interval: None }
    }
}

fn judge(result: &RunResult, experiment: &Experiment, e: &Expectation) -> Verdict {
    let opponent = e.over.as_deref().unwrap_or(&experiment.baseline().name);
    let over_case = e.over_case.as_deref().unwrap_or(&e.case);
    let settings = &result.provenance.statistics;
    let series = |case: &str, contender: &str| {
        series(&result.windows, Key { experiment, case, metric: e.metric }, contender)
    };
    let comparison = || {
        if over_case == e.case {
            let (name, case) = (&experiment.name, &e.case);
            let c = result.comparison_over(name, case, &e.contender, opponent, e.metric)?;
            return Some(c.estimate(settings));
        }
        over(&series(&e.case, &e.contender), &series(over_case, opponent), settings).0
    };
    let summary =
        |case: &str, contender: &str| result.summary(&experiment.name, case, contender, e.metric);
    let sd = |case: &str, contender: &str| summary(case, contender).and_then(|s| s.sd);
    let judged: Judged = match e.of {
        Figure::Ratio => match comparison() {
            Some(c) => {
                let interval = (c.rounds >= MIN_ROUNDS).then_some((c.low, c.high));
                Judged { figure: Some(c.ratio), interval }
            }
            None => None.into(),
        },
        Figure::Mean => {
            let values: Vec<f64> = series(&e.case, &e.contender).into_values().collect();
            let interval = stats::mean_interval(&values, settings.confidence);
            let interval = interval.filter(|_| values.len() >= MIN_ROUNDS as usize);
            let interval = interval.map(|(low, high)| (low, Some(high)));
            Judged { figure: stats::mean(&values), interval }
        }
        Figure::Low => comparison().map(|c| c.low).into(),
        Figure::High => comparison().and_then(|c| c.high).into(),
        Figure::Sd => sd(&e.case, &e.contender).into(),
        Figure::SdRatio => match (sd(&e.case, &e.contender), sd(over_case, opponent)) {
            (Some(theirs), Some(base)) if base > 0.0 => Some(theirs / base).into(),
            _ => None.into(),
        },
    };
    let met = match (judged.interval, judged.figure) {
        (Some((low, high)), _) => is_within(low, high.unwrap_or(f64::INFINITY), e.min, e.max),
        (None, Some(figure)) => is_within(figure, figure, e.min, e.max),
        (None, None) => false,
    };
    Verdict {
        experiment: experiment.name.clone(),
        case: e.case.clone(),
        contender: e.contender.clone(),
        metric: e.metric,
        of: e.of,
        over: e.over.clone(),
        over_case: e.over_case.clone(),
        min: e.min,
        max: e.max,
        measured: judged.figure,
        low: judged.interval.map(|(low, _)| low),
        high: judged.interval.and_then(|(_, high)| high),
        met,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testdata;

    /// The verdict on an expectation of holdfast in case "lock" of the test data.
    fn verdict(expect: &str) -> (RunResult, Verdict) {
        let text = testdata::TOML.split("[[expect]]").next().unwrap();
        let expect = format!("[[expect]]\ncase = \"lock\"\ncontender = \"holdfast\"\n{expect}");
        let experiment =
            Experiment::parse(&format!("{text}{expect}"), Path::new("x.toml")).unwrap();
        let RunResult { provenance, windows, .. } = testdata::result();
        let result = conclude(provenance, vec![experiment], windows, false);
        let verdict = result.expectations[0].clone();
        (result, verdict)
    }

    #[test]
    fn a_contender_in_one_case_is_held_against_another_in_another() {
        let over = "metric = \"time_per_op_us\"\nover = \"stock\"\nover_case = \"lock <pause>\"\n";
        let (result, v) = verdict(&format!("{over}max = 0.6"));
        let mean = |case, contender| {
            result.summary("three-ways", case, contender, Metric::TimePerOpUs).unwrap().mean
        };
        let ratio = mean("lock", "holdfast") / mean("lock <pause>", "stock");
        assert!((v.measured.unwrap() - ratio).abs() < 1e-9, "{v:?}");
        assert!(v.met && v.over_case.as_deref() == Some("lock <pause>"), "{v:?}");
        let (_, high) = verdict(&format!("{over}of = \"high\"\nmax = {ratio}"));
        assert!(high.measured.unwrap() > ratio && !high.met, "an end of its interval: {high:?}");
        let (_, sd) = verdict(&format!("{over}of = \"sd_ratio\"\nmax = 100.0"));
        assert!(sd.met && sd.measured.unwrap() > 0.0, "{sd:?}");
        let same =
            result.comparison("three-ways", "lock", "holdfast", Metric::TimePerOpUs).unwrap();
        let (_, plain) = verdict("metric = \"time_per_op_us\"\nmax = 1.0");
        assert_eq!(plain.measured, Some(same.ratio), "without another case nothing changes");
    }

    #[test]
    fn an_expectation_is_missed_only_where_chance_does_not_explain_it() {
        let metric = "metric = \"work_per_vm_cpu_second\"\n";
        let (result, _) = verdict(&format!("{metric}min = 0.0"));
        let c = result
            .comparison("three-ways", "lock", "holdfast", Metric::WorkPerVmCpuSecond)
            .unwrap();
        let (low, high) = (c.low, c.high.unwrap());
        let outcome = |bound: &str, of: f64| {
            let (_, v) = verdict(&format!("{metric}{bound} = {of}"));
            assert_eq!((v.measured, v.low, v.high), (Some(c.ratio), Some(low), Some(high)));
            (v.met, v.outcome())
        };
        assert_eq!(outcome("min", c.ratio - 1e-6), (true, "met"));
        assert_eq!(outcome("min", c.ratio + 1e-6), (true, "unsure"));
        assert_eq!(outcome("min", high + 1e-6), (false, "missed"));
        assert_eq!(outcome("max", c.ratio - 1e-6), (true, "unsure"));
        assert_eq!(outcome("max", low - 1e-6), (false, "missed"));
        // A limit for an end of the interval judges that end.
        let (_, v) = verdict(&format!("{metric}of = \"low\"\nmin = {}", low + 1e-6));
        assert_eq!((v.outcome(), v.low), ("missed", None));

        let mean = |bound: f64| verdict(&format!("{metric}of = \"mean\"\nmin = {bound}")).1;
        let v = mean(0.0);
        let (low, mid, high) = (v.low.unwrap(), v.measured.unwrap(), v.high.unwrap());
        assert!((mid - (low + high) / 2.0).abs() < 1e-6 * mid && low < mid, "{v:?}");
        assert_eq!(mean((mid + high) / 2.0).outcome(), "unsure");
        assert_eq!(mean(high * 1.001).outcome(), "missed");
    }

    #[test]
    fn of_few_rounds_the_figure_itself_is_judged() {
        let (result, _) = verdict("metric = \"work_per_vm_cpu_second\"\nmin = 0.0");
        let RunResult { provenance, mut windows, mut experiments, .. } = result;
        windows.retain(|window| window.round + 1 < MIN_ROUNDS);
        let mut judge = |of, min| {
            experiments[0].expect[0].of = of;
            experiments[0].expect[0].min = Some(min);
            conclude(provenance.clone(), experiments.clone(), windows.clone(), false).expectations
                [0]
            .clone()
        };
        for of in [Figure::Ratio, Figure::Mean] {
            let figure = judge(of, 0.0).measured.unwrap();
            let v = judge(of, figure * 1.0001);
            assert_eq!((v.outcome(), v.low, v.high), ("missed", None, None));
            assert_eq!(judge(of, figure * 0.9999).outcome(), "met");
        }
    }
}
