// SPDX-License-Identifier: GPL-2.0-or-later
//! The report as Markdown: one command makes every table of it.

use std::fmt::{self, Write};
use std::path::Path;

use crate::experiment::{Case, Experiment};
use crate::report::format::{figure, optional, ratio};
use crate::report::sources::printed;
use crate::report::view::{GRACE_BOUNDS_US, GRACES, Graces};
use crate::report::{self, answer, view};
use crate::result::{Comparison, ResultError, RunResult, Verdict as Expected};
use crate::sources::verdict::{self, Compared, Values};
use crate::sources::{self, Effect, Published};
use crate::stats::Estimate;

/// The page; `command` makes it.
pub fn render(result: &RunResult, command: &str) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut out, result, command);
    out
}

/// Writes the page to `path`; an older file stays until the page is whole.
pub fn write(result: &RunResult, path: &Path, command: &str) -> Result<(), ResultError> {
    report::write_page(&render(result, command), path)
}

/// Text for a paragraph; code between backticks stays code.
fn prose(text: &str) -> String {
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let nr_ticks = text.matches('`').count();
    let mut out = String::with_capacity(text.len());
    let mut nr_seen = 0;
    for c in text.chars() {
        if c == '`' {
            nr_seen += 1;
        }
        // A backtick without a partner is text.
        let is_code = nr_seen % 2 == 1 && nr_seen < nr_ticks;
        match c {
            '`' if nr_ticks % 2 == 1 && nr_seen == nr_ticks => out.push_str("\\`"),
            '\\' | '<' | '*' | '[' | '~' if !is_code => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// Text for a cell: there a bar ends it even within code.
fn cell(text: &str) -> String {
    prose(text).replace('|', "\\|")
}

/// Any text as code.
fn code(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

fn row<const N: usize>(out: &mut String, cells: [String; N]) -> fmt::Result {
    writeln!(out, "| {} |", cells.join(" | "))
}

/// The head of a table with `nr_texts` columns of words and then figures.
fn head<const N: usize>(out: &mut String, nr_texts: usize, cells: [&str; N]) -> fmt::Result {
    row(out, cells.map(cell))?;
    let side = |i: usize| if i < nr_texts { "---" } else { "---:" };
    writeln!(out, "|{}|", (0..N).map(side).collect::<Vec<_>>().join("|"))
}

fn dash() -> String {
    "-".into()
}

fn starred(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "\\<")
}

fn write_page(out: &mut String, result: &RunResult, command: &str) -> fmt::Result {
    let names: Vec<&str> = result.experiments.iter().map(|e| e.name.as_str()).collect();
    // RFC 3339 begins with the day.
    let day = result.provenance.date.get(..10).unwrap_or(&result.provenance.date);
    writeln!(out, "<!-- SPDX-License-Identifier: GPL-2.0-or-later -->")?;
    writeln!(out, "# Results of {}: {}\n", prose(day), prose(&names.join(", ")))?;
    for experiment in &result.experiments {
        let answer = answer::of_experiment(result, experiment);
        writeln!(out, "**{}:** {}\n", prose(&experiment.name), prose(&answer))?;
    }
    writeln!(
        out,
        "`[low, high]` is the 95 % interval of a ratio, \\* differs from 1 (p < 0.05 as well), - \
         was not measured, and a standard deviation is in (brackets). Fewer than six rounds show a \
         direction, and how sure it is.\n"
    )?;
    write_overview(out, result)?;
    write_expectations(out, &result.expectations)?;
    for experiment in &result.experiments {
        writeln!(out, "## {}\n", prose(&experiment.name))?;
        if !experiment.summary.trim().is_empty() {
            writeln!(out, "{}\n", prose(&experiment.summary))?;
        }
        write_contenders(out, experiment)?;
        match sources::of(&experiment.name) {
            Some(published) => write_source(out, result, experiment, &published)?,
            None => write_cases(out, result, experiment)?,
        }
        write_graces(out, &view::graces(result, experiment))?;
    }
    writeln!(out, "## Caveats\n")?;
    let warnings = view::warnings(result);
    for line in &warnings {
        writeln!(out, "- **{}**", prose(line))?;
    }
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    let not_transferred = view::not_transferred(result);
    if !not_transferred.is_empty() {
        writeln!(out, "### What does not transfer, in general\n")?;
        write_list(out, &not_transferred)?;
    }
    writeln!(out, "### Where the figures come from\n")?;
    write_provenance(out, result, command)?;
    // One line ends the file.
    let length = out.trim_end().len();
    out.truncate(length);
    writeln!(out)
}

fn write_list(out: &mut String, lines: &[impl AsRef<str>]) -> fmt::Result {
    for line in lines {
        writeln!(out, "- {}", prose(line.as_ref()))?;
    }
    writeln!(out)
}

fn write_provenance(out: &mut String, result: &RunResult, command: &str) -> fmt::Result {
    let p = &result.provenance;
    let kernels = |all: &[crate::result::KernelFacts]| {
        let mut releases: Vec<String> = all.iter().map(|k| cell(&k.kernel_release)).collect();
        releases.sort();
        releases.dedup();
        if releases.is_empty() { dash() } else { releases.join(", ") }
    };
    let commit = p.holdfast_commit.as_deref().unwrap_or("not known");
    let cpus: Vec<String> = {
        let mut all: Vec<u32> = p.hosts.iter().map(|h| h.nr_cpus).collect();
        all.sort_unstable();
        all.dedup();
        all.iter().map(u32::to_string).collect()
    };
    let nr_failed = result.invalid().count();
    let minutes = if p.duration_s < 60.0 {
        String::new()
    } else {
        format!(" ({:.0} min)", p.duration_s / 60.0)
    };
    row(out, ["provenance", ""].map(str::to_owned))?;
    writeln!(out, "|---|---|")?;
    for (name, value) in [
        ("holdfast", format!("{}, commit {}", cell(&p.holdfast_version), cell(commit))),
        ("began", cell(&p.date)),
        ("took", format!("{:.0} s{minutes}", p.duration_s)),
        ("windows", format!("{}, of which {nr_failed} failed", result.samples.len())),
        ("host", cell(view::accelerator(result))),
        ("clock", view::clock(result).to_owned()),
        ("CPUs of the host", if cpus.is_empty() { dash() } else { cpus.join(", ") }),
        ("kernel of the host", kernels(&p.hosts)),
        ("kernel of guests", kernels(&p.guests)),
        ("QEMU", p.qemu.as_deref().map_or_else(dash, cell)),
        (
            "machine",
            format!(
                "{} CPUs of {}, kernel {}",
                p.machine.nr_cpus,
                cell(&p.machine.cpu_model),
                cell(&p.machine.kernel_release)
            ),
        ),
        ("seed of the statistics", p.statistics.seed.to_string()),
        ("this page", code(command).replace('|', "\\|")),
    ] {
        row(out, [name.to_owned(), value])?;
    }
    writeln!(out)
}

/// Verdicts on the effects of all sources, a line each.
fn write_overview(out: &mut String, result: &RunResult) -> fmt::Result {
    let all: Vec<(&str, Published)> = result
        .experiments
        .iter()
        .filter_map(|e| Some((e.name.as_str(), sources::of(&e.name)?)))
        .collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Published effects and their verdicts\n")?;
    head(out, 3, ["source", "effect", "seen again?"])?;
    for (name, published) in &all {
        for effect in &published.effects {
            let rows = verdict::compare(result, name, effect);
            let title = verdict::headline(&rows);
            row(out, [cell(&published.id), cell(&effect.name), title])?;
        }
    }
    writeln!(out)
}

fn write_expectations(out: &mut String, all: &[Expected]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Expectations\n")?;
    head(out, 4, ["", "case", "contender", "what", "expected", "measured"])?;
    for v in all {
        let expected = match (v.min, v.max) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("at least {min}"),
            (None, Some(max)) => format!("at most {max}"),
            (None, None) => String::new(),
        };
        let over = v.compared_with();
        row(
            out,
            [
                if v.met { v.outcome().to_owned() } else { "**missed**".into() },
                cell(&format!("{}: {}", v.experiment, v.case)),
                cell(&v.contender),
                cell(&format!("{}{over} of {}", v.of, v.metric.title())),
                expected,
                view::figures(v),
            ],
        )?;
    }
    writeln!(out)
}

fn write_contenders(out: &mut String, experiment: &Experiment) -> fmt::Result {
    for contender in &experiment.contenders {
        let scheduler = (!contender.schedules()).then(|| "the kernel's own scheduler".to_owned());
        let commands = contender.commands().map(|command| code(&command.join(" ")));
        let parts: Vec<String> = scheduler.into_iter().chain(commands).collect();
        writeln!(out, "- {}: {}", prose(&contender.name), parts.join(" and "))?;
    }
    writeln!(out)
}

fn write_source(
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
        let rows = verdict::compare(result, &experiment.name, effect);
        write_effect(out, effect, &rows)?;
    }
    writeln!(out, "### {id}: what does not transfer\n")?;
    write_list(out, &p.not_transferred)
}

fn write_effect(out: &mut String, effect: &Effect, rows: &[Compared]) -> fmt::Result {
    writeln!(out, "### {}: {}\n", prose(&effect.name), verdict::headline(rows))?;
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
        let of = |v: Option<Values>| v.map_or_else(dash, report::sources::values);
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
    if let Some(spread) = verdict::spread(rows) {
        writeln!(out, "{spread}\n")?;
    }
    let reasons = verdict::reasons(effect, rows);
    for reason in &reasons {
        writeln!(out, "- **Why {}.** {}", prose(&reason.of()), prose(reason.text))?;
    }
    if !reasons.is_empty() {
        writeln!(out)?;
    }
    Ok(())
}

fn interval(e: &Estimate) -> String {
    starred(&ratio(e))
}

/// The cases of an experiment without a source, a row for each contender.
fn write_cases(out: &mut String, result: &RunResult, experiment: &Experiment) -> fmt::Result {
    let of_case = |case: &Case| {
        format!("**{}**: {}", prose(&case.name), prose(&view::describe(experiment, case)))
    };
    for case in &experiment.cases {
        writeln!(out, "- {}", of_case(case))?;
        if let Some(answer) = answer::of_case(result, experiment, case) {
            writeln!(out, "  {}", prose(&answer))?;
        }
    }
    writeln!(out)?;
    let base = &experiment.baseline().name;
    let work_over = format!("times the work of {base} per CPU-s");
    let rate_over = format!("times the work of {base} per s");
    head(
        out,
        2,
        [
            "case",
            "contender",
            "windows",
            "operations per CPU-s of the guest",
            &work_over,
            "operations per s",
            &rate_over,
            "guest's CPU: had / fair, %",
            "lock holders preempted / for > 1 ms, per CPU-s of the guest",
        ],
    )?;
    for case in &experiment.cases {
        for r in view::rows(result, experiment, case) {
            let against = |c: Option<&Comparison>| match c {
                _ if r.is_baseline => "1".into(),
                Some(c) => interval(&c.estimate(&result.provenance.statistics)),
                None => dash(),
            };
            let pair =
                |a: Option<f64>, b: Option<f64>| format!("{} / {}", optional(a), optional(b));
            row(
                out,
                [
                    cell(&case.name),
                    cell(r.contender),
                    r.windows.to_string(),
                    optional(r.work),
                    against(r.work_ratio),
                    optional(r.throughput),
                    against(r.throughput_ratio),
                    pair(r.share, r.fair),
                    pair(r.holders, r.holders_long),
                ],
            )?;
        }
    }
    writeln!(out)
}

/// Lengths of graces: a row for each scheduler that gave some.
fn write_graces(out: &mut String, all: &[Graces]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "Lengths of graces, in all cases. {GRACES}\n")?;
    let bounds = GRACE_BOUNDS_US.map(|us| format!("within {us} µs, %"));
    let [a, b, c, d, e] = bounds.each_ref().map(String::as_str);
    head(out, 1, ["contender", "graces released", a, b, c, d, e])?;
    for graces in all {
        let [a, b, c, d, e] = graces.within.map(figure);
        row(out, [cell(graces.contender), figure(graces.released), a, b, c, d, e])?;
    }
    writeln!(out)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::tests::effect;
    use crate::sources::verdict::Verdict;
    use crate::testdata;

    const COMMAND: &str = "holdfast lab report results/all --markdown all.md";

    /// Cells of every line of a table; an escaped bar ends none.
    fn widths(table: &str) -> Vec<usize> {
        table.lines().map(|l| l.replace("\\|", "").matches('|').count()).collect()
    }

    fn tables(page: &str) -> Vec<&str> {
        page.split("\n\n").filter(|block| block.starts_with('|')).collect()
    }

    pub(in super::super) fn assert_tables_are_tables(page: &str) {
        let mut nr_rows = 0;
        for table in tables(page) {
            let widths = widths(table);
            assert!(widths.len() > 2 && widths.iter().all(|w| *w == widths[0]), "{table}");
            let ruler = table.lines().nth(1).unwrap();
            assert!(ruler.chars().all(|c| "|-:".contains(c)), "{ruler}");
            assert!(table.lines().all(|l| l.ends_with('|')), "{table}");
            nr_rows += widths.len();
        }
        // No bar is outside of a table, where it would be shown as one.
        assert_eq!(page.lines().filter(|l| l.starts_with('|')).count(), nr_rows);
    }

    #[test]
    fn a_source_has_every_row_as_a_table_and_what_does_not_transfer() {
        let mut result = testdata::result();
        result.experiments[0].name = "s1".into();
        let page = render(&result, COMMAND);
        assert_tables_are_tables(&page);
        assert!(page.starts_with(
            "<!-- SPDX-License-Identifier: GPL-2.0-or-later -->\n# Results of 2026-11-20: s1\n"
        ));
        for needed in [
            "| 273.27 (1.051) | 251.613 (1.155) | -7.9 % |",
            "## What does not transfer, in general",
            "### S1: what does not transfer",
            "**Here.** 2 pCPUs and 2 vCPUs",
            "not measured",
        ] {
            assert!(page.contains(needed), "{needed} in {page}");
        }
        assert!(page.ends_with('\n') && !page.ends_with("\n\n"));
    }

    #[test]
    fn an_effect_has_means_deviations_ratios_and_the_reason() {
        let result = testdata::result();
        let effect = effect();
        let rows = verdict::compare(&result, "three-ways", &effect);
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

    #[test]
    fn an_experiment_of_ones_own_has_a_row_for_each_contender_of_each_case() {
        let page = render(&testdata::result(), COMMAND);
        assert_tables_are_tables(&page);
        for contender in ["stock", "base", "holdfast"] {
            for case in ["lock", "lock \\<pause>"] {
                assert!(page.contains(&format!("| {case} | {contender} | ")), "{page}");
            }
        }
        let nr_stars = page.matches("]\\* |").count();
        assert!(nr_stars >= 4, "{page}");
        assert!(page.contains("| **missed** |"), "{page}");
        assert!(page.contains("1 window does not count"), "{page}");
    }

    #[test]
    fn the_page_says_where_its_figures_come_from() {
        let page = render(&testdata::result(), COMMAND);
        for needed in [
            "commit 0123abc",
            "7.2.12-cloud-amd64",
            "| QEMU | 10.0.2 |",
            "| clock | the machine's |",
            "2 CPUs of Some CPU @ 2.00GHz",
            "| windows | 48, of which 1 failed |",
            "`holdfast lab report results/all --markdown all.md`",
        ] {
            assert!(page.contains(needed), "{needed} in {page}");
        }
        let mut result = testdata::result();
        result.provenance.qemu = Some("10.0.2 (patched), instructions counted".into());
        let page = render(&result, COMMAND);
        assert!(page.contains("| clock | instructions, counted |"), "{page}");
    }

    #[test]
    fn names_cannot_break_a_table() {
        assert_eq!(cell("a | b"), "a \\| b");
        assert_eq!(cell("`dd | cat`"), "`dd \\| cat`");
        assert_eq!(prose("`a < b` < *c* and `d"), "`a < b` \\< \\*c\\* and \\`d");
        assert_eq!(prose("a\nb\u{1b}[2J"), "a b \\[2J");
        assert_eq!(code("a`b"), "`` a`b ``");
        let mut result = testdata::result();
        result.experiments[0].cases[0].name = "lock | <b>`".into();
        assert_tables_are_tables(&render(&result, "holdfast lab report a|b"));
    }
}
