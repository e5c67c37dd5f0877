// SPDX-License-Identifier: GPL-2.0-or-later
//! The section of a source in a terminal: what was printed, ours beside it, and what became of it.

use std::fmt::{self, Write};

use super::format::ratio;
use crate::experiment::Experiment;
use crate::result::RunResult;
use crate::sources;
use crate::sources::verdict::{self, Compared, Verdict};
use crate::stats::{self, Estimate};

/// Writes what belongs to `experiment`, if it measures a source again.
pub(super) fn write(out: &mut String, result: &RunResult, experiment: &Experiment) -> fmt::Result {
    let Some(published) = sources::of(&experiment.name) else { return Ok(()) };
    writeln!(out, "\n  {}: {}, {}", published.id, published.author, published.title)?;
    for effect in &published.effects {
        let rows = verdict::compare(result, &experiment.name, effect);
        let overall = verdict::overall(&rows);
        let title = overall.map_or("it depends on the row", Verdict::as_str);
        writeln!(out, "\n  {}: {title}", effect.name)?;
        line(out, ["", "printed", "ours: after/before", "holdfast / stock", "verdict"])?;
        for row in &rows {
            write_row(out, row)?;
        }
    }
    Ok(())
}

fn write_row(out: &mut String, row: &Compared) -> fmt::Result {
    let dash = || "-".to_string();
    let change = row.row.published_ratio().map(|r| format!("{:+.1} %", 100.0 * (r - 1.0)));
    let ours = row.ours.as_ref().map_or_else(dash, interval);
    let verdict = match row.verdict {
        Verdict::Undecided => format!("{} ({} rounds)", row.verdict, row.nr_rounds),
        other => other.to_string(),
    };
    let mut gains = row.gains().into_iter().map(|(_, e)| interval(e));
    let first = gains.next().unwrap_or_else(dash);
    let change = change.unwrap_or_else(dash);
    line(out, [row.row.name.as_str(), &change, &ours, &first, &verdict])?;
    // Before and after are two cases.
    gains.try_for_each(|gain| line(out, ["", "", "", &gain, ""]))
}

fn interval(e: &Estimate) -> String {
    ratio(e.ratio, e.low, e.high, stats::is_significant(e.low, e.high, e.p))
}

fn line(out: &mut String, [name, printed, ours, holdfast, verdict]: [&str; 5]) -> fmt::Result {
    let line = format!("  {name:<24} {printed:>8} {ours:<20} {holdfast:<20} {verdict}");
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata;

    #[test]
    fn has_every_row_and_no_figure_of_its_own() {
        let mut result = testdata::result();
        result.experiments[0].name = "s4".into();
        let mut text = String::new();
        write(&mut text, &result, &result.experiments[0]).unwrap();
        assert!(text.contains("-53.9 %") && text.contains("+88.2 %"), "{text}");
        assert!(text.contains(Verdict::NotMeasured.as_str()), "{text}");
        assert!(text.lines().all(|l| l.chars().count() < 100), "{text}");
        let nr_rows: usize = sources::of("s4").unwrap().effects.iter().map(|e| e.rows.len()).sum();
        assert_eq!(text.lines().filter(|l| l.ends_with("not measured")).count(), nr_rows + 3);
    }
}
