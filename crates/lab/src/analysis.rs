// SPDX-License-Identifier: GPL-2.0-or-later
//! From windows to conclusions: summaries, comparisons and verdicts of a result.

use std::collections::BTreeMap;

use crate::experiment::{Contender, Expectation, Experiment, Figure};
use crate::metric::Metric;
use crate::result::{
    Comparison, Provenance, RunResult, SCHEMA, SchedulerCounter, Summary, Verdict,
};
use crate::sample::Sample;
use crate::scheduler;
use crate::stats::{self, Round, Settings};

/// Puts a result together.
pub fn conclude(
    provenance: Provenance,
    experiments: Vec<Experiment>,
    samples: Vec<Sample>,
    partial: bool,
) -> RunResult {
    let mut result = RunResult {
        schema: SCHEMA.into(),
        partial,
        provenance,
        experiments,
        samples,
        summaries: Vec::new(),
        comparisons: Vec::new(),
        scheduler_counters: Vec::new(),
        expectations: Vec::new(),
    };
    let settings = result.provenance.statistics;
    for experiment in &result.experiments {
        for case in &experiment.cases {
            for contender in &experiment.contenders {
                result.scheduler_counters.extend(count(
                    &result.samples,
                    experiment,
                    &case.name,
                    contender,
                ));
                for metric in Metric::all() {
                    let key = Key { experiment, case: &case.name, metric };
                    result.summaries.extend(summarise(&result.samples, key, &contender.name));
                    for over in opponents(experiment, &case.name, &contender.name) {
                        let compared =
                            compare(&result.samples, key, &contender.name, over, &settings);
                        result.comparisons.extend(compared);
                    }
                }
            }
        }
    }
    result.expectations = judge_all(&result);
    result
}

/// A result as it follows from its windows, whatever figures and verdicts it holds: of the counters
/// where they are there, else of the windows' metrics.
pub fn again(result: RunResult) -> RunResult {
    let RunResult { provenance, experiments, mut samples, partial, .. } = result;
    for sample in samples.iter_mut().filter(|s| s.before.is_some() && s.after.is_some()) {
        match experiments.iter().find(|e| e.name == sample.experiment) {
            Some(experiment) => sample.work_out_in(experiment),
            None => sample.work_out(1),
        }
    }
    conclude(provenance, experiments, samples, partial)
}

/// The verdicts that follow from the figures of a result and from what its experiments expect.
pub fn judge_all(result: &RunResult) -> Vec<Verdict> {
    let experiments = result.experiments.iter();
    experiments
        .flat_map(|e| e.expect.iter().map(|expectation| judge(result, e, expectation)))
        .collect()
}

/// Whom a contender is compared with in a case: the baseline, and whom an expectation names.
fn opponents<'a>(experiment: &'a Experiment, case: &str, contender: &str) -> Vec<&'a str> {
    let mut all = vec![experiment.baseline().name.as_str()];
    for e in experiment.expect.iter().filter(|e| e.case == case && e.contender == contender) {
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
fn series(samples: &[Sample], key: Key, contender: &str) -> BTreeMap<u32, f64> {
    samples
        .iter()
        .filter(|s| {
            s.experiment == key.experiment.name && s.case == key.case && s.contender == contender
        })
        .filter_map(|s| Some((s.round, s.value(key.metric)?)))
        .collect()
}

/// Means of what a contender counted of itself.
fn count(
    samples: &[Sample],
    experiment: &Experiment,
    case: &str,
    contender: &Contender,
) -> Vec<SchedulerCounter> {
    if !scheduler::is_understood(contender) {
        return Vec::new();
    }
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let of = |s: &&Sample| {
        s.experiment == experiment.name && s.case == case && s.contender == contender.name
    };
    for (counter, value) in samples.iter().filter(of).flat_map(Sample::scheduler_counters) {
        values.entry(counter).or_default().push(value);
    }
    let counter = |(counter, values): (String, Vec<f64>)| {
        Some(SchedulerCounter {
            experiment: experiment.name.clone(),
            case: case.into(),
            contender: contender.name.clone(),
            counter,
            windows: values.len() as u32,
            per_vm_cpu_second: stats::mean(&values)?,
        })
    };
    values.into_iter().filter_map(counter).collect()
}

fn summarise(samples: &[Sample], key: Key, contender: &str) -> Option<Summary> {
    let values: Vec<f64> = series(samples, key, contender).into_values().collect();
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
    samples: &[Sample],
    key: Key,
    contender: &str,
    baseline: &str,
    settings: &Settings,
) -> Option<Comparison> {
    if !key.metric.has_ratio() {
        return None;
    }
    let theirs = series(samples, key, baseline);
    let rounds: Vec<Round> = series(samples, key, contender)
        .into_iter()
        .filter_map(|(i, contender)| Some(Round { contender, baseline: *theirs.get(&i)? }))
        .collect();
    let e = stats::compare(&rounds, settings)?;
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
        rounds: rounds.len() as u32,
    })
}

fn judge(result: &RunResult, experiment: &Experiment, e: &Expectation) -> Verdict {
    let over = e.over.as_deref().unwrap_or(&experiment.baseline().name);
    let comparison =
        || result.comparison_over(&experiment.name, &e.case, &e.contender, over, e.metric);
    let summary = |contender: &str| result.summary(&experiment.name, &e.case, contender, e.metric);
    let sd = |contender: &str| summary(contender).and_then(|s| s.sd);
    let measured = match e.of {
        Figure::Ratio => comparison().map(|c| c.ratio),
        Figure::Low => comparison().map(|c| c.low),
        Figure::High => comparison().and_then(|c| c.high),
        Figure::Mean => summary(&e.contender).map(|s| s.mean),
        Figure::Sd => sd(&e.contender),
        Figure::SdRatio => match (sd(&e.contender), sd(over)) {
            (Some(theirs), Some(base)) if base > 0.0 => Some(theirs / base),
            _ => None,
        },
    };
    let within = |v: f64| e.min.is_none_or(|min| v >= min) && e.max.is_none_or(|max| v <= max);
    Verdict {
        experiment: experiment.name.clone(),
        case: e.case.clone(),
        contender: e.contender.clone(),
        metric: e.metric,
        of: e.of,
        over: e.over.clone(),
        min: e.min,
        max: e.max,
        measured,
        met: measured.is_some_and(within),
    }
}
