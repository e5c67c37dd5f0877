// SPDX-License-Identifier: GPL-2.0-or-later
//! Compares the rows of published effects with the windows of a result.

use std::collections::BTreeMap;

use super::published::{Direction, Effect, Point, Row};
use crate::analysis;
use crate::metric::Metric;
use crate::result::RunResult;
use crate::stats::{self, Estimate, MIN_ROUNDS};

/// The verdict on an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It goes the same way, significantly.
    Reproduced,
    /// It does not, and the interval excludes a change as large as the printed one.
    Gone,
    /// It goes the other way, significantly.
    Reversed,
    /// No change was wanted, none is seen, and one of a tenth would have been.
    Even,
    /// No change was wanted, but there is one, significantly.
    Differs,
    /// The windows are too few or too noisy to tell.
    Undecided,
    /// It cannot be measured here; the row says why.
    NotMeasurable,
    /// This result has no windows of it.
    NotMeasured,
}

/// A row of a document's table with ours beside it.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// The printed row.
    pub row: &'a Row,
    /// Ours before.
    pub before: Option<Values>,
    /// Ours after.
    pub after: Option<Values>,
    /// Holdfast, in the case of before and in that of after.
    pub holdfast_values: [Option<Values>; 2],
    /// Ours after over before.
    pub ours: Option<Estimate>,
    /// Rounds in which both were measured.
    pub nr_rounds: u32,
    /// Holdfast over the kernel's scheduler, in the case of before and in that of after.
    pub holdfast: [Option<Estimate>; 2],
    /// The verdict.
    pub verdict: Verdict,
    /// For an undecided row: its direction so far.
    pub leaning: Option<Leaning>,
}

/// Direction of a row with too few windows for a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leaning {
    /// The direction.
    pub way: Way,
    /// Probability of that, 0.5 to 1 as a rule.
    pub sure: f64,
}

/// Direction of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// As printed.
    Same,
    /// The other way.
    Other,
    /// Up, if no change was wanted or none is known.
    Up,
    /// Down, likewise.
    Down,
}

/// Windows of one contender in one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Values {
    /// Their mean.
    pub mean: f64,
    /// Standard deviation between them; none for a single one.
    pub sd: Option<f64>,
    /// How many there are.
    pub nr_windows: usize,
}

impl Compared<'_> {
    /// Holdfast over the kernel's scheduler in each case of this row, with the case's name.
    pub fn gains(&self) -> Vec<(&str, &Estimate)> {
        let Some(ours) = &self.row.ours else { return Vec::new() };
        let mut all = vec![(&ours.before.0, &self.holdfast[0]), (&ours.after.0, &self.holdfast[1])];
        all.dedup_by(|a, b| a.0 == b.0);
        all.into_iter().filter_map(|(case, e)| Some((case.as_str(), e.as_ref()?))).collect()
    }

    /// Whether before and after are one case under two schedulers.
    pub fn is_one_case(&self) -> bool {
        self.row.ours.as_ref().is_some_and(|ours| ours.before.0 == ours.after.0)
    }
}

/// The contender whose gain is shown beside every row.
pub const HOLDFAST: &str = "holdfast";
/// The contender that it is compared with.
pub const STOCK: &str = "stock";

/// The rows of an effect as `experiment` measured them.
pub fn compare<'a>(result: &RunResult, experiment: &str, effect: &'a Effect) -> Vec<Compared<'a>> {
    let metric = effect.metric;
    let series = |point: &Point| values(result, experiment, point, metric);
    let settings = &result.provenance.statistics;
    let over = |after: &BTreeMap<u32, f64>, before: &BTreeMap<u32, f64>| {
        analysis::over(after, before, settings)
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
                holdfast_values: [None; 2],
                ours: None,
                nr_rounds: 0,
                holdfast: [None; 2],
                verdict: Verdict::NotMeasurable,
                leaning: None,
            };
        };
        let (before, after) = (series(&points.before), series(&points.after));
        let (ours, nr_rounds) = over(&after, &before);
        let mean = |values: &BTreeMap<u32, f64>| {
            let values: Vec<f64> = values.values().copied().collect();
            let (sd, nr_windows) = (stats::standard_deviation(&values), values.len());
            stats::mean(&values).map(|mean| Values { mean, sd, nr_windows })
        };
        let direction = effect.direction_of(row);
        let verdict = match ours {
            _ if row.unmeasured.is_some() => Verdict::NotMeasurable,
            Some(ours) => judge(direction, row.published_ratio(), ours, nr_rounds),
            None => judge_without_ratio(direction, &before, &after),
        };
        let of_holdfast =
            |Point(case, _): &Point| mean(&series(&Point(case.clone(), HOLDFAST.into())));
        Compared {
            row,
            before: mean(&before),
            after: mean(&after),
            holdfast_values: [&points.before, &points.after].map(of_holdfast),
            ours,
            nr_rounds,
            holdfast: [&points.before, &points.after].map(|Point(case, _)| gain(case)),
            verdict,
            leaning: ours.and_then(|ours| lean(direction, ours)),
        }
    };
    effect.rows.iter().map(compared).collect()
}

/// Whether it is zero in every window before, and above zero in every window after.
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
    let mine = |s: &&crate::window::Window| {
        s.experiment == experiment && s.case == *case && s.contender == *contender
    };
    let windows = result.windows.iter().filter(mine);
    windows.filter_map(|s| Some((s.round, s.value(metric)?))).collect()
}

/// Smallest change that counts where no figure was printed.
const NOTABLE: f64 = 0.1;

/// If before is zero throughout, or too few windows have a partner.
fn judge_without_ratio(
    direction: Option<Direction>,
    before: &BTreeMap<u32, f64>,
    after: &BTreeMap<u32, f64>,
) -> Verdict {
    if before.is_empty() || after.is_empty() {
        return Verdict::NotMeasured;
    }
    // From nothing to something in every window there is no ratio, and no doubt.
    if begins(before, after) {
        return match direction {
            Some(Direction::Up) => Verdict::Reproduced,
            Some(Direction::Down) => Verdict::Reversed,
            Some(Direction::None) => Verdict::Differs,
            None => Verdict::Undecided,
        };
    }
    let is_enough = before.len().min(after.len()) >= MIN_ROUNDS as usize;
    let is_nothing = before.values().chain(after.values()).all(|value| *value == 0.0);
    match direction {
        Some(Direction::Up) if is_enough && is_nothing => Verdict::Gone,
        Some(Direction::None) if is_enough && is_nothing => Verdict::Even,
        // Nothing cannot shrink.
        _ => Verdict::Undecided,
    }
}

fn judge(
    direction: Option<Direction>,
    published: Option<f64>,
    e: Estimate,
    nr_rounds: u32,
) -> Verdict {
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
        // "No change" holds only if a change would have been seen.
        Direction::None => {
            let is_narrow = e.low > 1.0 - NOTABLE && high < 1.0 + NOTABLE;
            return if is_narrow { Verdict::Even } else { Verdict::Undecided };
        }
        Direction::Up => high < published.unwrap_or(1.0 + NOTABLE),
        Direction::Down => e.low > published.unwrap_or(1.0 - NOTABLE),
    };
    if is_smaller { Verdict::Gone } else { Verdict::Undecided }
}

fn lean(direction: Option<Direction>, e: Estimate) -> Option<Leaning> {
    let above = e.likely_above_1()?;
    let (went, sure) =
        if e.ratio > 1.0 { (Direction::Up, above) } else { (Direction::Down, 1.0 - above) };
    let way = match direction.filter(|direction| *direction != Direction::None) {
        Some(direction) if direction == went => Way::Same,
        Some(_) => Way::Other,
        None if went == Direction::Up => Way::Up,
        None => Way::Down,
    };
    Some(Leaning { way, sure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replications::words;
    use crate::testdata;

    fn estimate(low: f64, ratio: f64, high: f64) -> Option<Estimate> {
        let p = if low > 1.0 || high < 1.0 { 0.01 } else { 0.5 };
        Some(Estimate { ratio, low, high: Some(high), p, rounds: MIN_ROUNDS, confidence: 0.95 })
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
            // A change as large as the printed one may still be there.
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
        ] {
            assert_eq!(judge(direction, published, ours.unwrap(), rounds), expected, "{ours:?}");
        }
    }

    #[test]
    fn windows_without_a_ratio_are_not_taken_for_no_windows() {
        use Direction::{Down, None as Nowhere, Up};
        use Verdict::*;
        let series = |values: &[f64]| (0..).zip(values.iter().copied()).collect();
        let (nothing, something) = (series(&[0.0; 6]), series(&[1.0, 2.0, 1.0, 9.0, 1.0, 3.0]));
        let (some, few) = (series(&[0.0, 2.0, 1.0, 9.0, 1.0, 3.0]), series(&[0.0; 2]));
        for (direction, before, after, expected) in [
            (Some(Up), &nothing, &something, Reproduced),
            (Some(Down), &nothing, &something, Reversed),
            (Some(Nowhere), &nothing, &something, Differs),
            (None, &nothing, &something, Undecided),
            (Some(Up), &nothing, &some, Undecided),
            (Some(Up), &nothing, &nothing, Gone),
            (Some(Nowhere), &nothing, &nothing, Even),
            (Some(Down), &nothing, &nothing, Undecided),
            (Some(Up), &few, &nothing, Undecided),
            (Some(Up), &series(&[]), &something, NotMeasured),
            (Some(Up), &nothing, &series(&[]), NotMeasured),
        ] {
            assert_eq!(judge_without_ratio(direction, before, after), expected, "{after:?}");
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
        assert_eq!(words::headline(&rows), "reproduced in 1 of 2 rows, not measurable here in 1");
        assert_eq!(words::headline(&rows[1..]), "not measurable here");
        assert_eq!(rows[0].holdfast_values[0], rows[0].after, "it is the same windows");
        assert!(rows[0].after.unwrap().nr_windows == 8 && rows[0].is_one_case());
        let spread = words::spread(&rows).unwrap();
        // 0.1 of 4 was printed before, and nothing after.
        assert!(spread.contains("rows: printed 2.5 before; ours "), "{spread}");
        assert!(spread.contains(" before, ") && spread.contains("; holdfast "), "{spread}");
        assert_eq!(words::spread(&rows[1..]), None, "nothing was measured");
        let elsewhere = compare(&result, "another", &effect);
        assert_eq!(elsewhere[0].verdict, Verdict::NotMeasured);
    }
}
