// SPDX-License-Identifier: GPL-2.0-or-later
//! Was it seen again? From the windows of a result.

use std::collections::BTreeMap;
use std::fmt;

use super::published::{Direction, Effect, Point, Row};
use crate::metric::Metric;
use crate::result::RunResult;
use crate::stats::{self, Estimate, MIN_ROUNDS, Round};

/// What became of something that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It goes the same way, significantly.
    Reproduced,
    /// It does not, and the interval excludes a change as large as that printed.
    Gone,
    /// It goes the other way, significantly.
    Reversed,
    /// Where none was wanted, none is seen, and one of a tenth would have been.
    Even,
    /// Where none was wanted, there is one, significantly.
    Differs,
    /// The windows are too few or too noisy to tell.
    Undecided,
    /// It cannot be measured here; the row says why.
    NotMeasurable,
    /// This result has no windows of it.
    NotMeasured,
}

impl Verdict {
    /// In a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Gone => "gone today",
            Verdict::Reversed => "reversed here",
            Verdict::Even => "no difference",
            Verdict::Differs => "differs",
            Verdict::Undecided => "undecided",
            Verdict::NotMeasurable => "not measurable here",
            Verdict::NotMeasured => "not measured",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row of a source's table with ours beside it.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// What was printed.
    pub row: &'a Row,
    /// Ours before.
    pub before: Option<Values>,
    /// Ours after.
    pub after: Option<Values>,
    /// Ours after over before.
    pub ours: Option<Estimate>,
    /// Rounds in which both were measured.
    pub nr_rounds: u32,
    /// Holdfast over the kernel's scheduler, in the case of before and in that of after.
    pub holdfast: [Option<Estimate>; 2],
    /// Was it seen again?
    pub verdict: Verdict,
}

/// Windows of one contender in one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Values {
    /// Their mean.
    pub mean: f64,
    /// Standard deviation between them; none for a single one.
    pub sd: Option<f64>,
}

impl Compared<'_> {
    /// Holdfast over the kernel's scheduler in each case of this row, with the case's name.
    pub fn gains(&self) -> Vec<(&str, &Estimate)> {
        let Some(ours) = &self.row.ours else { return Vec::new() };
        let mut all = vec![(&ours.before.0, &self.holdfast[0]), (&ours.after.0, &self.holdfast[1])];
        all.dedup_by(|a, b| a.0 == b.0);
        all.into_iter().filter_map(|(case, e)| Some((case.as_str(), e.as_ref()?))).collect()
    }
}

/// The contender whose gain is shown beside every row.
pub const HOLDFAST: &str = "holdfast";
/// Whom it is compared with.
pub const STOCK: &str = "stock";

/// The rows of an effect as `experiment` measured them.
pub fn compare<'a>(result: &RunResult, experiment: &str, effect: &'a Effect) -> Vec<Compared<'a>> {
    let metric = effect.metric;
    let series = |point: &Point| values(result, experiment, point, metric);
    let settings = &result.provenance.statistics;
    let over = |after: &BTreeMap<u32, f64>, before: &BTreeMap<u32, f64>| {
        // Windows of two cases are not neighbours in time: their rounds only count them, and the
        // interval is as wide as it is for values drawn independently.
        let both = after.iter().filter_map(|(round, contender)| {
            Some(Round { contender: *contender, baseline: *before.get(round)? })
        });
        let rounds: Vec<Round> = both.collect();
        (stats::compare(&rounds, settings), rounds.len() as u32)
    };
    let gain = |case: &str| {
        let [ours, stock] = [HOLDFAST, STOCK].map(|name| series(&Point(case.into(), name.into())));
        over(&ours, &stock).0
    };
    let compared = |row: &'a Row| {
        let Some(points) = &row.ours else {
            return Compared {
                row,
                before: None,
                after: None,
                ours: None,
                nr_rounds: 0,
                holdfast: [None; 2],
                verdict: Verdict::NotMeasurable,
            };
        };
        let (before, after) = (series(&points.before), series(&points.after));
        let (ours, nr_rounds) = over(&after, &before);
        let mean = |values: &BTreeMap<u32, f64>| {
            let values: Vec<f64> = values.values().copied().collect();
            let sd = stats::standard_deviation(&values);
            stats::mean(&values).map(|mean| Values { mean, sd })
        };
        let direction = effect.direction_of(row);
        let verdict = if begins(&before, &after) {
            // From nothing to something there is no ratio, and no doubt.
            if direction == Some(Direction::Up) { Verdict::Reproduced } else { Verdict::Reversed }
        } else {
            judge(direction, row.published_ratio(), ours, nr_rounds)
        };
        Compared {
            row,
            before: mean(&before),
            after: mean(&after),
            ours,
            nr_rounds,
            holdfast: [&points.before, &points.after].map(|Point(case, _)| gain(case)),
            verdict,
        }
    };
    effect.rows.iter().map(compared).collect()
}

/// Is there none of it in any window before, and some in every one after?
fn begins(before: &BTreeMap<u32, f64>, after: &BTreeMap<u32, f64>) -> bool {
    before.len().min(after.len()) >= MIN_ROUNDS as usize
        && before.values().all(|value| *value == 0.0)
        && after.values().all(|value| *value > 0.0)
}

fn values(
    result: &RunResult,
    experiment: &str,
    Point(case, contender): &Point,
    metric: Metric,
) -> BTreeMap<u32, f64> {
    let mine = |s: &&crate::sample::Sample| {
        s.experiment == experiment && s.case == *case && s.contender == *contender
    };
    let samples = result.samples.iter().filter(mine);
    samples.filter_map(|s| Some((s.round, s.value(metric)?))).collect()
}

/// Smallest change that is looked for where no figure was printed.
const NOTABLE: f64 = 0.1;

fn judge(
    direction: Option<Direction>,
    published: Option<f64>,
    ours: Option<Estimate>,
    nr_rounds: u32,
) -> Verdict {
    let Some(e) = ours else { return Verdict::NotMeasured };
    let Some(direction) = direction else { return Verdict::Undecided };
    let high = e.high.unwrap_or(f64::INFINITY);
    let differs = stats::is_significant(e.low, e.high, e.p);
    let went = match () {
        () if !differs => Direction::None,
        () if e.ratio > 1.0 => Direction::Up,
        () => Direction::Down,
    };
    if nr_rounds < MIN_ROUNDS {
        return Verdict::Undecided;
    }
    if direction == Direction::None && went != Direction::None {
        return Verdict::Differs;
    }
    if went != Direction::None {
        return if went == direction { Verdict::Reproduced } else { Verdict::Reversed };
    }
    let is_smaller = match direction {
        // That nothing changes can be told only if a change would have been seen.
        Direction::None => {
            let is_narrow = e.low > 1.0 - NOTABLE && high < 1.0 + NOTABLE;
            return if is_narrow { Verdict::Even } else { Verdict::Undecided };
        }
        Direction::Up => high < published.unwrap_or(1.0 + NOTABLE),
        Direction::Down => e.low > published.unwrap_or(1.0 - NOTABLE),
    };
    if is_smaller { Verdict::Gone } else { Verdict::Undecided }
}

/// What became of an effect as a whole: what its rows agree on, undecided ones aside.
pub fn overall(rows: &[Compared]) -> Option<Verdict> {
    let of = |set: &[Verdict]| -> Vec<Verdict> {
        let mut all: Vec<Verdict> = rows.iter().map(|r| r.verdict).collect();
        all.retain(|v| set.contains(v));
        all.sort();
        all.dedup();
        all
    };
    use Verdict::{Differs, Even, Gone, Reproduced, Reversed};
    match of(&[Reproduced, Gone, Reversed, Even, Differs]).as_slice() {
        [one] => Some(*one),
        // Nothing is settled: either some windows could not settle it, or there are none.
        [] => rows.iter().map(|r| r.verdict).min(),
        // It depends on the row.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata;

    fn estimate(low: f64, ratio: f64, high: f64) -> Option<Estimate> {
        let p = if low > 1.0 || high < 1.0 { 0.01 } else { 0.5 };
        Some(Estimate { ratio, low, high: Some(high), p })
    }

    fn insignificant(low: f64, ratio: f64, high: f64) -> Option<Estimate> {
        estimate(low, ratio, high).map(|e| Estimate { p: 0.0625, ..e })
    }

    #[test]
    fn verdicts_follow_from_intervals() {
        use Direction::{Down, None as Nowhere, Up};
        use Verdict::*;
        for (direction, published, ours, rounds, expected) in [
            (Some(Down), Some(0.8), estimate(0.7, 0.75, 0.8), 6, Reproduced),
            (Some(Down), Some(0.8), estimate(1.1, 1.2, 1.3), 6, Reversed),
            (Some(Down), Some(0.8), estimate(0.95, 1.0, 1.05), 6, Gone),
            // As large a change as was printed may still be there.
            (Some(Down), Some(0.8), estimate(0.75, 0.95, 1.1), 6, Undecided),
            (Some(Down), Some(0.8), estimate(0.7, 0.75, 0.8), 5, Undecided),
            // Larger than was printed, and not significant by its p.
            (Some(Down), None, insignificant(0.01, 0.02, 0.6), 6, Undecided),
            (Some(Up), Some(1.2), insignificant(1.3, 1.4, 9.0), 6, Undecided),
            (Some(Up), None, estimate(1.2, 1.3, 1.4), 6, Reproduced),
            (Some(Up), None, estimate(0.98, 1.0, 1.02), 6, Gone),
            (Some(Nowhere), None, estimate(0.98, 1.0, 1.02), 6, Even),
            (Some(Nowhere), None, estimate(0.5, 1.0, 1.5), 6, Undecided),
            (Some(Nowhere), None, estimate(1.1, 1.2, 1.3), 6, Differs),
            (Some(Down), Some(0.8), None, 0, NotMeasured),
        ] {
            assert_eq!(judge(direction, published, ours, rounds), expected, "{ours:?}");
        }
    }

    #[test]
    fn what_comes_from_nothing_has_no_ratio_and_begins() {
        let series = |values: &[f64]| (0..).zip(values.iter().copied()).collect();
        let (nothing, something) = (series(&[0.0; 6]), series(&[1.0, 2.0, 1.0, 9.0, 1.0, 3.0]));
        assert!(begins(&nothing, &something));
        assert!(!begins(&something, &something) && !begins(&nothing, &nothing));
        assert!(!begins(&series(&[0.0; 5]), &something), "too few rounds");
        assert!(!begins(&nothing, &series(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.0])), "not in every window");
    }

    #[test]
    fn rows_are_compared_within_a_result() {
        let point = |contender: &str| format!("[\"lock\", \"{contender}\"]");
        let text = format!(
            "name = \"e\"\nwhat = \"\"\nunit = \"s\"\nmetric = \"time_per_op_us\"\n\
             [[rows]]\nname = \"there\"\nbefore = [4.0, 0.1]\nafter = [3.0]\n\
             ours = {{ before = {}, after = {} }}\n\
             [[rows]]\nname = \"not there\"\nbefore = [1.0]\nafter = [2.0]\nmissing = \"no PMU\"\n",
            point("stock"),
            point("holdfast")
        );
        let effect: Effect = toml::from_str(&text).unwrap();
        let result = testdata::result();
        let rows = compare(&result, "three-ways", &effect);
        assert_eq!(rows[0].verdict, Verdict::Reproduced);
        assert_eq!(rows[0].nr_rounds, 8);
        let ratio = rows[0].ours.unwrap().ratio;
        let paired = result.comparison("three-ways", "lock", "holdfast", Metric::TimePerOpUs);
        assert_eq!(ratio, paired.unwrap().ratio, "it is what the result has for the same case");
        assert_eq!(rows[0].holdfast[0].unwrap().ratio, ratio);
        assert_eq!(rows[1].verdict, Verdict::NotMeasurable);
        assert_eq!(overall(&rows), Some(Verdict::Reproduced));
        assert_eq!(overall(&rows[1..]), Some(Verdict::NotMeasurable));
        let elsewhere = compare(&result, "another", &effect);
        assert_eq!(elsewhere[0].verdict, Verdict::NotMeasured);
    }
}
