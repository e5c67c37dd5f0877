// SPDX-License-Identifier: GPL-2.0-or-later
//! The stock scheduler against itself, on recorded windows. There is no difference, and the
//! statistics must not find one more often than they promise.
//!
//! `data/aa-*.json` are results of `holdfast lab run experiments/aa.toml`, without the raw
//! counters.

use std::path::Path;

use holdfast_lab::experiment::{Case, Experiment};
use holdfast_lab::metric::Metric;
use holdfast_lab::result::RunResult;
use holdfast_lab::stats::{self, Round, Settings};

/// The figures that decide about a run.
const METRICS: [Metric; 2] = [Metric::WorkPerVmCpuSecond, Metric::Throughput];

fn recorded() -> Vec<RunResult> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let results: Vec<_> = paths
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| RunResult::read(p).unwrap())
        .collect();
    assert!(!results.is_empty(), "there is no recorded run");
    results
}

/// Values of a metric in the order of measurement, all under the same scheduler.
fn series(result: &RunResult, e: &Experiment, case: &Case, metric: Metric) -> Vec<f64> {
    assert!(e.contenders.iter().all(|c| c.is_stock()), "this run is not one of stock alone");
    result
        .windows
        .iter()
        .filter(|s| s.experiment == e.name && s.case == case.name)
        .filter_map(|s| s.value(metric))
        .collect()
}

/// Neighbours in time are a round, as in a run. The bits of `labels` say which of the two is the
/// contender.
fn split(values: &[f64], labels: u64) -> Vec<Round> {
    let pairs = values.chunks_exact(2).enumerate();
    let round = |(i, pair): (usize, &[f64])| {
        let contender = (labels >> i & 1) as usize;
        Round { contender: pair[contender], baseline: pair[1 - contender] }
    };
    pairs.map(round).collect()
}

/// Every possible split, because a choice of some would be a matter of luck.
#[test]
fn stock_against_stock_is_significant_in_no_more_than_one_of_twenty_splits() {
    let settings = Settings { resamples: 500, ..Settings::default() };
    for result in recorded() {
        for e in &result.experiments {
            for case in &e.cases {
                for metric in METRICS {
                    let values = series(&result, e, case, metric);
                    let nr_rounds = values.len() / 2;
                    assert!(nr_rounds >= 6, "{}: {nr_rounds} rounds", case.name);
                    // The other half of the splits swaps the contenders. Beyond 12 rounds there are
                    // too many to try.
                    let values = &values[..2 * nr_rounds.min(12)];
                    let nr_splits = 1u64 << (values.len() / 2 - 1);
                    let is_significant = |labels: &u64| {
                        let e = stats::compare(&split(values, *labels), &settings).unwrap();
                        stats::is_significant(e.low, e.high, e.p)
                    };
                    let nr_significant = (0..nr_splits).filter(is_significant).count() as u64;
                    println!("{} {metric}: {nr_significant} of {nr_splits}", case.name);
                    assert!(20 * nr_significant <= nr_splits, "{} {metric}", case.name);
                }
            }
        }
    }
}

#[test]
fn the_recorded_runs_themselves_found_no_difference() {
    for result in recorded() {
        for c in result.comparisons.iter().filter(|c| METRICS.contains(&c.metric)) {
            println!("{} {}: {:.3} [{:.3}, {:?}]", c.case, c.metric, c.ratio, c.low, c.high);
            assert!(!c.is_significant(), "{c:?}");
            assert!(c.rounds >= stats::MIN_ROUNDS);
        }
    }
}

/// The tests above must be able to fail: an added quarter is found in the recorded windows.
#[test]
fn a_real_difference_would_be_found_in_the_recorded_windows() {
    let (mut nr_series, mut nr_found) = (0, 0);
    for result in recorded() {
        for e in &result.experiments {
            for case in &e.cases {
                let values = series(&result, e, case, Metric::WorkPerVmCpuSecond);
                let faster: Vec<Round> = split(&values, 0)
                    .into_iter()
                    .map(|r| Round { contender: 1.25 * r.contender, ..r })
                    .collect();
                let e = stats::compare(&faster, &Settings::default()).unwrap();
                nr_series += 1;
                nr_found += u32::from(stats::is_significant(e.low, e.high, e.p));
            }
        }
    }
    assert!(2 * nr_found > nr_series, "a quarter more was found in {nr_found} of {nr_series}");
}
