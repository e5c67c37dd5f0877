// SPDX-License-Identifier: GPL-2.0-or-later
//! The section of a replication in a terminal: printed figures, ours beside them, and the verdict.

use std::fmt::{self, Write};

use super::html::values;
use super::{Compared, Effect, compare, headline, of, reasons, spread};
use crate::experiment::Experiment;
use crate::markup::figures::ratio;
use crate::markup::text::write_wrapped;
use crate::result::RunResult;

/// Writes the section of `experiment`, if it replicates a document.
pub(crate) fn write(out: &mut String, result: &RunResult, experiment: &Experiment) -> fmt::Result {
    let Some(published) = of(&experiment.name) else { return Ok(()) };
    writeln!(out, "\n  {}: {}, {}", published.id, published.author, published.title)?;
    for effect in &published.effects {
        let rows = compare(result, &experiment.name, effect);
        let title = format!("{}: {}", effect.name, headline(&rows));
        writeln!(out)?;
        write_wrapped(out, "  ", &title)?;
        line(out, ["", "printed", "ours: after/before", "holdfast / stock", "seen again?"])?;
        for row in &rows {
            write_row(out, row)?;
        }
        write_values(out, effect, &rows)?;
        for reason in reasons(effect, &rows) {
            // Code stands out on a page; here it is words like others.
            let text = format!("why {}: {}", reason.of(), reason.text.replace('`', ""));
            write_wrapped(out, "  ", &text)?;
        }
    }
    Ok(())
}

/// Means, and the spread of windows, which ratios do not show.
fn write_values(out: &mut String, effect: &Effect, rows: &[Compared]) -> fmt::Result {
    let series = |r: &Compared| [r.before, r.after, r.holdfast_values[0], r.holdfast_values[1]];
    if rows.iter().all(|r| series(r).iter().all(Option::is_none)) {
        return Ok(());
    }
    write_wrapped(out, "  ", &format!("{}, mean (sd):", effect.metric.title()))?;
    four(out, ["", "before", "after", "holdfast: before", "after"].map(str::to_owned))?;
    for row in rows {
        let [before, after, first, second] =
            series(row).map(|v| v.map_or_else(|| "-".to_owned(), values));
        // One case has one figure.
        let second = if row.is_one_case() { String::new() } else { second };
        four(out, [row.row.name.clone(), before, after, first, second])?;
    }
    match spread(rows) {
        Some(spread) => write_wrapped(out, "  ", &spread),
        None => Ok(()),
    }
}

fn four(out: &mut String, [name, before, after, first, second]: [String; 5]) -> fmt::Result {
    let line = format!("  {name:<24} {before:>17} {after:>17} {first:>17} {second:>17}");
    writeln!(out, "{}", line.trim_end())
}

fn write_row(out: &mut String, row: &Compared) -> fmt::Result {
    let dash = || "-".to_string();
    let change = row.row.published_ratio().map(|r| format!("{:+.1} %", 100.0 * (r - 1.0)));
    let ours = row.ours.as_ref().map_or_else(dash, ratio);
    let mut gains = row.gains().into_iter().map(|(_, e)| ratio(e));
    let first = gains.next().unwrap_or_else(dash);
    let change = change.unwrap_or_else(dash);
    line(out, [row.row.name.as_str(), &change, &ours, &first, &row.outcome()])?;
    // Before and after are two cases.
    gains.try_for_each(|gain| line(out, ["", "", "", &gain, ""]))
}

fn line(out: &mut String, [name, printed, ours, holdfast, verdict]: [&str; 5]) -> fmt::Result {
    let line = format!("  {name:<24} {printed:>8} {ours:<20} {holdfast:<20} {verdict}");
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replications::Verdict;
    use crate::testdata;
    use crate::testdata::effect;

    #[test]
    fn has_every_row_and_no_figure_of_its_own() {
        let mut result = testdata::result();
        result.experiments[0].name = "s4".into();
        let mut text = String::new();
        write(&mut text, &result, &result.experiments[0]).unwrap();
        assert!(text.contains("-53.9 %") && text.contains("+88.2 %"), "{text}");
        assert!(text.contains(Verdict::NotMeasured.as_str()), "{text}");
        assert!(text.lines().all(|l| l.chars().count() < 100), "{text}");
        let nr_rows: usize = of("s4").unwrap().effects.iter().map(|e| e.rows.len()).sum();
        assert_eq!(text.lines().filter(|l| l.ends_with("not measured")).count(), nr_rows + 3);
        assert!(!text.contains("mean (sd)"), "there is none: {text}");
    }

    #[test]
    fn means_and_deviations_of_all_four_series_follow_the_ratios() {
        let result = testdata::result();
        let effect = effect();
        let rows = compare(&result, "three-ways", &effect);
        let mut text = String::new();
        write_values(&mut text, &effect, &rows).unwrap();
        let row = text.lines().find(|l| l.trim_start().starts_with("pauses")).unwrap();
        assert_eq!(row.matches(" (").count(), 4, "{text}");
        assert!(text.contains("Standard deviation in % of the mean"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() < 100 && !l.ends_with(' ')), "{text}");
    }
}
