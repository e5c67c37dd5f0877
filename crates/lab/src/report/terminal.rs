// SPDX-License-Identifier: GPL-2.0-or-later
//! The report for a terminal: less than 100 columns, no colour needed to read it.

use std::fmt::{self, Write};

use crate::experiment::Experiment;
use crate::report::format::{figure, optional, ratio};
use crate::report::sources_text;
use crate::report::view::{self, Deeds, Row};
use crate::result::{Comparison, RunResult, Verdict};

/// Widest line.
const COLUMNS: usize = 99;

/// The whole report.
pub fn render(result: &RunResult) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, result);
    out
}

fn write_report(out: &mut String, result: &RunResult) -> fmt::Result {
    for experiment in &result.experiments {
        write_experiment(out, result, experiment)?;
    }
    writeln!(out, "[low, high]: 95 % interval of the ratio; * differs from 1 (p < 0.05 as well).")?;
    writeln!(
        out,
        "share: CPU of the VM, and what would be fair (max-min), % of one CPU. holders: preemptions that"
    )?;
    writeln!(
        out,
        "hit a lock holder, and those longer than 1 ms, per VM-CPU-second. -: not measured.\n"
    )?;
    for line in view::origin(result) {
        write_wrapped(out, "", &line)?;
    }
    for line in view::warnings(result) {
        write_wrapped(out, "warning: ", &line)?;
    }
    if !result.expectations.is_empty() {
        writeln!(out, "\nexpectations")?;
        for verdict in &result.expectations {
            write_verdict(out, verdict)?;
        }
    }
    Ok(())
}

fn write_experiment(out: &mut String, result: &RunResult, experiment: &Experiment) -> fmt::Result {
    writeln!(out, "{}", experiment.name)?;
    if !experiment.summary.is_empty() {
        write_wrapped(out, "  ", &experiment.summary)?;
    }
    sources_text::write(out, result, experiment)?;
    let base = &experiment.baseline().name;
    for case in &experiment.cases {
        writeln!(out)?;
        let what = format!("{}: {}", case.name, view::describe(experiment, case));
        write_wrapped(out, "  ", &what)?;
        writeln!(
            out,
            "  {:<12} {:>9} {:<21} {:<21} {:>11}  {:>14}",
            "",
            "work per",
            format!(" that, {base} = 1"),
            " throughput",
            "share/",
            "holders/"
        )?;
        writeln!(
            out,
            "  {:<12} {:>9} {:<21} {:<21} {:>11}  {:>14}",
            "contender", "VM-CPU-s", " [low, high]", " [low, high]", "fair, %", "longer, per s"
        )?;
        for row in view::rows(result, experiment, case) {
            write_row(out, &row)?;
        }
        for deeds in view::deeds(result, experiment, case) {
            let head = format!("  {}, per VM-CPU-s: ", shorten(&deeds.title(), 40));
            write_wrapped(out, &head, &tell(&deeds))?;
        }
    }
    writeln!(out)
}

fn write_row(out: &mut String, row: &Row) -> fmt::Result {
    let against = |c: Option<&Comparison>| match c {
        _ if row.is_baseline => " 1".into(),
        Some(c) => format!(" {}", ratio(c.ratio, c.low, c.high, c.is_significant())),
        None => " -".into(),
    };
    let pair = |a: Option<f64>, b: Option<f64>, show: fn(f64) -> String| {
        let show = |v: Option<f64>| v.map_or_else(|| "-".into(), show);
        format!("{}/{}", show(a), show(b))
    };
    let line = format!(
        "  {:<12} {:>9} {:<21} {:<21} {:>11}  {:>14}",
        shorten(row.contender, 12),
        optional(row.work),
        against(row.work_ratio),
        against(row.throughput_ratio),
        pair(row.share, row.fair, |v| if v < 1e4 { format!("{v:.0}") } else { figure(v) }),
        pair(row.holders, row.holders_long, figure),
    );
    writeln!(out, "{}", line.trim_end())
}

/// `grace: 12 steps, 11 released; resumed: 3.1 first; all else 0`.
fn tell(deeds: &Deeds) -> String {
    let mut told = Vec::new();
    for (title, values) in &deeds.groups {
        let counts = values.iter().filter(|(_, value)| *value != 0.0);
        let counts: Vec<String> =
            counts.map(|(name, value)| format!("{} {name}", figure(*value))).collect();
        if !counts.is_empty() {
            told.push(format!("{title}: {}", counts.join(", ")));
        }
    }
    if deeds.groups.iter().flat_map(|(_, values)| values).any(|(_, value)| *value == 0.0) {
        told.push("all else 0".into());
    }
    told.join("; ")
}

fn write_verdict(out: &mut String, v: &Verdict) -> fmt::Result {
    let wanted = match (v.min, v.max) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!(">= {min}"),
        (None, Some(max)) => format!("<= {max}"),
        (None, None) => "anything".into(),
    };
    let measured = v.measured.map_or_else(|| "not measured".into(), figure);
    let verdict = if v.met { "met   " } else { "MISSED" };
    let line = format!(
        "{} {}, {}: {}{} of {} {wanted}: {measured}",
        v.experiment,
        v.case,
        v.contender,
        v.of,
        v.compared_with(),
        v.metric
    );
    write_wrapped(out, &format!("  {verdict} "), &line)
}

/// Writes `text` after `head`, broken between words; further lines are indented as far as `head`.
pub(super) fn write_wrapped(out: &mut String, head: &str, text: &str) -> fmt::Result {
    let indent = " ".repeat(head.chars().count());
    // What ended and what was said last comes from consoles: nothing of it may change the terminal.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let options = textwrap::Options::new(COLUMNS)
        .initial_indent(head)
        .subsequent_indent(&indent)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    writeln!(out, "{}", textwrap::fill(&text, options).trim_end())
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width - 1).chain(['~']).collect()
}
