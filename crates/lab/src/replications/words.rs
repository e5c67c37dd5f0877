// SPDX-License-Identifier: GPL-2.0-or-later
//! The words for verdicts on published effects.

use std::collections::BTreeMap;
use std::fmt;

use super::compare::{Compared, Leaning, Values, Verdict, Way};
use super::published::Effect;
use crate::markup::figures::percent;
use crate::stats::{self, LIKELY};

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

impl Way {
    fn as_str(self) -> &'static str {
        match self {
            Way::Same => "same way",
            Way::Other => "other way",
            Way::Up => "up",
            Way::Down => "down",
        }
    }
}

impl Compared<'_> {
    /// The verdict in a table: `reproduced`; where it is undecided, `same way, 98 % sure`.
    pub fn outcome(&self) -> String {
        match (self.verdict, self.leaning) {
            (Verdict::Undecided, Some(Leaning { way, sure })) => {
                format!("{}, {} sure", way.as_str(), percent(sure))
            }
            (Verdict::Undecided, None) => format!("{} ({} rounds)", self.verdict, self.nr_rounds),
            (verdict, _) => verdict.to_string(),
        }
    }

    /// Why it is so, according to its document's file.
    fn reason<'b>(&'b self, effect: &'b Effect) -> Option<&'b str> {
        let row = self.row;
        let reason = match self.verdict {
            Verdict::Gone => row.gone.as_deref().unwrap_or(&effect.gone),
            Verdict::Reversed => &effect.reversed,
            Verdict::NotMeasurable => row.missing.as_ref().or(row.unmeasured.as_ref())?,
            _ => return None,
        };
        Some(reason.trim()).filter(|reason| !reason.is_empty())
    }
}

/// The verdict on an effect as a whole: the number of its rows by verdict.
pub fn headline(rows: &[Compared]) -> String {
    let counts = counts(rows.iter().map(|r| r.verdict));
    let leanings = leanings(rows);
    let shown = |verdict: &Verdict| match verdict {
        Verdict::Undecided => leanings.as_str(),
        _ => "",
    };
    if let [verdict] = counts.keys().collect::<Vec<_>>().as_slice() {
        return format!("{verdict}{}", shown(verdict));
    }
    let parts = counts.iter().enumerate().map(|(i, (verdict, n))| match i {
        0 => format!("{verdict} in {n} of {} rows{}", rows.len(), shown(verdict)),
        _ => format!("{verdict} in {n}{}", shown(verdict)),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Directions of the undecided rows: ` (likely same way in 3, unclear in 1)`; empty if none is
/// likely.
fn leanings(rows: &[Compared]) -> String {
    let undecided = rows.iter().filter(|r| r.verdict == Verdict::Undecided);
    let likely = |r: &Compared| r.leaning.filter(|l| l.sure >= LIKELY).map(|l| l.way);
    let mut counts = counts(undecided.map(likely));
    let unclear = counts.remove(&None).map(|n| format!("unclear in {n}"));
    let ways = counts.iter().map(|(way, n)| format!("{} in {n}", way.map_or("", Way::as_str)));
    match ways.chain(unclear).collect::<Vec<_>>() {
        _ if counts.is_empty() => String::new(),
        parts => format!(" (likely {})", parts.join(", ")),
    }
}

fn counts<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// A reason, and the rows that it explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason<'a> {
    /// The verdict that it explains.
    pub verdict: Verdict,
    /// Its rows; none for all rows of the effect.
    pub rows: Vec<&'a str>,
    /// The reason.
    pub text: &'a str,
}

impl Reason<'_> {
    /// `gone today (A, B)`: the verdict and its rows, in words.
    pub fn of(&self) -> String {
        match self.rows.as_slice() {
            [] => self.verdict.to_string(),
            rows => format!("{} ({})", self.verdict, rows.join("; ")),
        }
    }
}

/// Reasons for the verdicts on `rows`, each once.
pub fn reasons<'a>(effect: &'a Effect, rows: &'a [Compared]) -> Vec<Reason<'a>> {
    let mut all: Vec<Reason> = Vec::new();
    for row in rows {
        let Some(text) = row.reason(effect) else { continue };
        match all.iter_mut().find(|r| r.verdict == row.verdict && r.text == text) {
            Some(reason) => reason.rows.push(&row.row.name),
            None => {
                let rows = vec![row.row.name.as_str()];
                all.push(Reason { verdict: row.verdict, rows, text });
            }
        }
    }
    for reason in all.iter_mut().filter(|r| r.rows.len() == rows.len()) {
        reason.rows.clear();
    }
    all
}

/// Fewest windows for a standard deviation.
const MIN_WINDOWS: usize = 3;

/// Spread of windows: standard deviation over mean, averaged over rows, as a sentence. None if no
/// row has enough windows.
pub fn spread(rows: &[Compared]) -> Option<String> {
    let mean = |of: &dyn Fn(&Compared) -> Option<f64>| {
        let all: Vec<f64> = rows.iter().filter_map(of).collect();
        stats::mean(&all).map(|mean| 100.0 * mean)
    };
    let relative = |v: Option<Values>| {
        let v = v.filter(|v| v.nr_windows >= MIN_WINDOWS && v.mean > 0.0)?;
        Some(v.sd? / v.mean)
    };
    let printed = |figures: &[f64]| match figures {
        [mean, sd, ..] if *mean > 0.0 => Some(sd / mean),
        _ => None,
    };
    let pair = |name: &str, before: Option<f64>, after: Option<f64>| {
        let parts = [(before, "before"), (after, "after")];
        let parts: Vec<String> = parts
            .into_iter()
            .filter_map(|(value, when)| Some(format!("{} {when}", two_digits(value?))))
            .collect();
        (!parts.is_empty()).then(|| format!("{name} {}", parts.join(", ")))
    };
    let ours = pair("ours", mean(&|r| relative(r.before)), mean(&|r| relative(r.after)))?;
    // If before and after are one case, there is one figure.
    let is_one_case = rows.iter().all(Compared::is_one_case);
    let [first, second] = [0, 1].map(|i| mean(&|r| relative(r.holdfast_values[i])));
    let holdfast = if is_one_case {
        first.map(|value| format!("holdfast {}", two_digits(value)))
    } else {
        pair("holdfast", first, second)
    };
    let [before, after] = [mean(&|r| printed(&r.row.before)), mean(&|r| printed(&r.row.after))];
    let parts: Vec<String> =
        pair("printed", before, after).into_iter().chain([ours]).chain(holdfast).collect();
    Some(format!("Standard deviation in % of the mean, averaged over rows: {}.", parts.join("; ")))
}

fn two_digits(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replications::compare;
    use crate::testdata;

    #[test]
    fn an_undecided_row_says_which_way_it_goes_and_how_sure_that_is() {
        let text = "name = \"e\"\nwhat = \"\"\nunit = \"s\"\nmetric = \"time_per_op_us\"\n\
                    direction = \"none\"\n";
        let ours = "ours = { before = [\"lock\", \"stock\"], after = [\"lock\", \"holdfast\"] }";
        let row = |name: &str, before: &str, after: &str| {
            format!("[[rows]]\nname = \"{name}\"\nbefore = [{before}]\nafter = [{after}]\n{ours}\n")
        };
        let rows = [row("fewer", "2.0", "1.0"), row("more", "1.0", "2.0"), row("even", "", "")];
        let effect: Effect = toml::from_str(&(text.to_owned() + &rows.concat())).unwrap();
        let mut result = testdata::result();
        result.windows.retain(|window| window.round < 2);
        let rows = compare(&result, "three-ways", &effect);
        let shown: Vec<String> = rows.iter().map(Compared::outcome).collect();
        let sure = shown[0].strip_prefix("same way, ").unwrap_or_else(|| panic!("{shown:?}"));
        assert_eq!(shown[1], format!("other way, {sure}"));
        assert_eq!(shown[2], format!("down, {sure}"));
        let likely = "undecided (likely same way in 1, other way in 1, down in 1)";
        assert_eq!(headline(&rows), likely);
        let mut rows = rows;
        rows[1].leaning = rows[1].leaning.map(|l| Leaning { sure: 0.6, ..l });
        rows[2].leaning = None;
        assert_eq!(rows[2].outcome(), "undecided (2 rounds)");
        assert_eq!(headline(&rows), "undecided (likely same way in 1, unclear in 2)");
        assert_eq!(headline(&rows[1..]), "undecided");
        rows[1].verdict = Verdict::Gone;
        let shown =
            "gone today in 1 of 3 rows, undecided in 2 (likely same way in 1, unclear in 1)";
        assert_eq!(headline(&rows), shown);
    }

    #[test]
    fn a_reason_is_given_once_for_its_own_rows() {
        let text = "name = \"e\"\nwhat = \"\"\nunit = \"s\"\nmetric = \"time_per_op_us\"\n\
             gone = \"of old\"\nreversed = \"of late\"\n"
            .to_owned();
        let row = |name: &str, more: &str| {
            format!("[[rows]]\nname = \"{name}\"\nbefore = []\nafter = []\n{more}\n")
        };
        let ours = "ours = { before = [\"lock\", \"stock\"], after = [\"lock\", \"holdfast\"] }\n";
        let rows = [
            row("a", ours),
            row("b", ours),
            row("c", &format!("{ours}gone = \"here another\"")),
            row("d", &format!("{ours}gone = \"\"")),
            row("e", ours),
            row("f", &format!("{ours}unmeasured = \"ticks\"")),
        ];
        let effect: Effect = toml::from_str(&(text + &rows.concat())).unwrap();
        let result = testdata::result();
        let mut rows = compare(&result, "three-ways", &effect);
        assert_eq!(rows[5].verdict, Verdict::NotMeasurable, "whatever its windows say");
        assert!(rows[5].ours.is_some());
        rows[..4].iter_mut().for_each(|r| r.verdict = Verdict::Gone);
        rows[4].verdict = Verdict::Reversed;
        let shown: Vec<(String, &str)> =
            reasons(&effect, &rows).iter().map(|r| (r.of(), r.text)).collect();
        let expected = [
            ("gone today (a; b)", "of old"),
            ("gone today (c)", "here another"),
            ("reversed here (e)", "of late"),
            ("not measurable here (f)", "ticks"),
        ];
        assert_eq!(shown, expected.map(|(of, text)| (of.to_owned(), text)));
        let shown = reasons(&effect, &rows[..2]);
        assert_eq!(shown[0].of(), "gone today", "of all of them");
    }
}
