// SPDX-License-Identifier: GPL-2.0-or-later
//! The section of a replication in Markdown: printed figures, ours beside them, and the verdict.

use std::fmt::{self, Write};

use super::html::{printed, values};
use super::{Compared, Effect, Published, Values, compare, headline, of, reasons, spread};
use crate::experiment::Experiment;
use crate::markup::markdown::{cell, dash, head, interval, prose, row, write_list};
use crate::result::RunResult;
use crate::stats::Estimate;

/// Verdicts on the effects of all documents, a line each.
pub(crate) fn write_overview(out: &mut String, result: &RunResult) -> fmt::Result {
    let all: Vec<(&str, Published)> =
        result.experiments.iter().filter_map(|e| Some((e.name.as_str(), of(&e.name)?))).collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Published effects and their verdicts\n")?;
    head(out, 3, ["document", "effect", "seen again?"])?;
    for (name, published) in &all {
        for effect in &published.effects {
            let rows = compare(result, name, effect);
            let title = headline(&rows);
            row(out, [cell(&published.id), cell(&effect.name), title])?;
        }
    }
    writeln!(out)
}

/// Writes the section of `experiment`, which replicates `p`.
pub(crate) fn write(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
    p: &Published,
) -> fmt::Result {
    let [id, author, title, published] =
        [&p.id, &p.author, &p.title, &p.published].map(|t| prose(t));
    writeln!(out, "{id}: {author}, *{title}*, {published}.\n")?;
    writeln!(out, "**There.** {}\n", prose(&p.machine))?;
    writeln!(out, "**Here.** {}\n", prose(&p.scaling))?;
    for effect in &p.effects {
        let rows = compare(result, &experiment.name, effect);
        write_effect(out, effect, &rows)?;
    }
    writeln!(out, "### {id}: what does not transfer\n")?;
    write_list(out, &p.not_transferred)
}

fn write_effect(out: &mut String, effect: &Effect, rows: &[Compared]) -> fmt::Result {
    writeln!(out, "### {}: {}\n", prose(&effect.name), headline(rows))?;
    let unit = if effect.unit.is_empty() {
        String::new()
    } else {
        format!(" Printed: {}.", prose(&effect.unit))
    };
    let what = prose(&effect.what);
    writeln!(out, "{what} Ours and holdfast: {}.{unit}\n", prose(&effect.metric.title()))?;
    head(
        out,
        1,
        [
            "",
            "printed: before",
            "after",
            "change",
            "ours: before",
            "after",
            "after / before",
            "seen again?",
            "holdfast: before's case",
            "after's case",
            "holdfast / stock: before's case",
            "after's case",
        ],
    )?;
    for r in rows {
        let change = r.row.published_ratio();
        let change = change.map_or_else(dash, |ratio| format!("{:+.1} %", 100.0 * (ratio - 1.0)));
        let of = |v: Option<Values>| v.map_or_else(dash, values);
        let gain = |e: &Option<Estimate>| e.as_ref().map_or_else(dash, interval);
        let mut holdfast = r.holdfast_values.map(of);
        let mut gains = [&r.holdfast[0], &r.holdfast[1]].map(gain);
        if r.is_one_case() {
            // There is one figure.
            (holdfast[1], gains[1]) = (String::new(), String::new());
        }
        let [in_before, in_after] = holdfast;
        let [gain_before, gain_after] = gains;
        row(
            out,
            [
                cell(&r.row.name),
                printed(&r.row.before),
                printed(&r.row.after),
                change,
                of(r.before),
                of(r.after),
                r.ours.as_ref().map_or_else(dash, interval),
                cell(&r.outcome()),
                in_before,
                in_after,
                gain_before,
                gain_after,
            ],
        )?;
    }
    writeln!(out)?;
    if let Some(spread) = spread(rows) {
        writeln!(out, "{spread}\n")?;
    }
    let reasons = reasons(effect, rows);
    for reason in &reasons {
        writeln!(out, "- **Why {}.** {}", prose(&reason.of()), prose(reason.text))?;
    }
    if !reasons.is_empty() {
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markup::markdown::tests::assert_tables_are_tables;
    use crate::replications::Verdict;
    use crate::testdata::{self, effect};

    #[test]
    fn an_effect_has_means_deviations_ratios_and_the_reason() {
        let result = testdata::result();
        let effect = effect();
        let rows = compare(&result, "three-ways", &effect);
        assert_eq!(rows[0].verdict, Verdict::Reversed);
        let mut page = String::new();
        write_effect(&mut page, &effect, &rows).unwrap();
        assert_tables_are_tables(&page);
        let line = page.lines().find(|l| l.starts_with("| pauses |")).unwrap();
        // Two printed figures, ours before and after, and holdfast's in both cases.
        assert_eq!(line.matches(" (").count(), 6, "{line}");
        assert_eq!(line.matches("\\*").count(), 3, "{line}");
        assert!(page.contains("- **Why reversed here.** It came back."), "{page}");
        assert!(!page.contains("It went."), "{page}");
        assert!(page.contains("Standard deviation in % of the mean"), "{page}");
    }
}
