// SPDX-License-Identifier: GPL-2.0-or-later
//! The report for a terminal: less than 100 columns, no colour needed to read it.

use std::fmt::{self, Write};

use crate::experiment::Experiment;
use crate::markup::figures::{figure, optional, ratio, two_digits};
use crate::markup::text::write_wrapped;
use crate::replications;
use crate::report::answer;
use crate::report::view::{self, Deeds, Row};
use crate::result::{Comparison, RunResult, Verdict};

/// The whole report; `verbose` adds the schedulers' own counters.
pub fn render(result: &RunResult, verbose: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, result, verbose);
    out
}

fn write_report(out: &mut String, result: &RunResult, verbose: bool) -> fmt::Result {
    for experiment in &result.experiments {
        let answer = answer::of_experiment(result, experiment);
        write_wrapped(out, "", &format!("{}: {answer}", experiment.name))?;
    }
    writeln!(out)?;
    for experiment in &result.experiments {
        write_experiment(out, result, experiment, verbose)?;
    }
    if !result.expectations.is_empty() {
        writeln!(out, "expectations")?;
        for verdict in &result.expectations {
            write_verdict(out, verdict)?;
        }
        writeln!(out)?;
    }
    writeln!(out, "how to read this")?;
    for line in LEGEND {
        write_wrapped(out, "  ", line)?;
    }
    writeln!(out, "\ncaveats")?;
    for line in view::warnings(result) {
        write_wrapped(out, "  warning: ", &line)?;
    }
    for line in view::origin(result) {
        write_wrapped(out, "  ", &line)?;
    }
    Ok(())
}

const LEGEND: [&str; 6] = [
    "operations per CPU-s: operations of the workload for each second of CPU time its guest used.",
    "1.49 [1.40, 1.57]: 1.49 times the baseline's, with the 95 % interval; *: chance does not \
     explain the difference (the interval excludes 1, and p < 0.05). Fewer than six rounds show a \
     direction, and how sure it is.",
    "worst window: the work per CPU-s of the contender's worst window, over the baseline's mean.",
    "guest CPU: the guest's CPU time / its fair share (max-min), in percent of one CPU.",
    "lock holders preempted: vCPUs that held a spinlock when they lost their CPU, per CPU-second \
     of the guest / those that stayed off it for more than 1 ms.",
    "-: not measured.",
];

fn write_experiment(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
    verbose: bool,
) -> fmt::Result {
    writeln!(out, "{}", experiment.name)?;
    if !experiment.summary.is_empty() {
        write_wrapped(out, "  ", &experiment.summary)?;
    }
    replications::text::write(out, result, experiment)?;
    let base = shorten(&experiment.baseline().name, 8);
    for case in &experiment.cases {
        writeln!(out)?;
        let answer = answer::of_case(result, experiment, case).unwrap_or_default();
        write_wrapped(out, "  ", &format!("{}: {answer}", case.name))?;
        write_wrapped(out, "  ", &view::describe(experiment, case))?;
        line(
            out,
            [
                "",
                "operations",
                "times the work of",
                "worst",
                "times the work of",
                "guest CPU",
                "lock holders",
            ],
        )?;
        let over = [format!("{base} per CPU-s"), format!("{base} per second")];
        line(
            out,
            ["contender", "per CPU-s", &over[0], "window", &over[1], "had/fair %", "preempt/>1ms"],
        )?;
        for row in view::rows(result, experiment, case) {
            write_row(out, result, &row)?;
        }
        let deeds = if verbose { view::deeds(result, experiment, case) } else { Vec::new() };
        for deeds in deeds {
            let head = format!("  {}, per CPU-s: ", shorten(&deeds.title(), 40));
            write_wrapped(out, &head, &tell(&deeds))?;
        }
    }
    writeln!(out)
}

fn line(
    out: &mut String,
    [name, work, ratio, worst, rate, share, holders]: [&str; 7],
) -> fmt::Result {
    let line = format!(
        "  {name:<12} {work:>10} {ratio:<20} {worst:>6} {rate:<20} {share:>10} {holders:>12}"
    );
    writeln!(out, "{}", line.trim_end())
}

fn write_row(out: &mut String, result: &RunResult, row: &Row) -> fmt::Result {
    let settings = &result.provenance.statistics;
    let against = |c: Option<&Comparison>| match c {
        _ if row.is_baseline => "1".into(),
        Some(c) => ratio(&c.estimate(settings)),
        None => "-".into(),
    };
    let pair = |a: Option<f64>, b: Option<f64>, show: fn(f64) -> String| {
        let show = |v: Option<f64>| v.map_or_else(|| "-".into(), show);
        format!("{}/{}", show(a), show(b))
    };
    line(
        out,
        [
            &shorten(row.contender, 12),
            &optional(row.work),
            &against(row.work_ratio),
            &row.worst.map_or_else(|| "-".into(), two_digits),
            &against(row.throughput_ratio),
            &pair(row.share, row.fair, |v| if v < 1e4 { format!("{v:.0}") } else { figure(v) }),
            &pair(row.holders, row.holders_long, figure),
        ],
    )
}

/// `grace: 12 steps, 11 released; resumed: 3.1 first; all else 0`.
fn tell(deeds: &Deeds) -> String {
    let mut shown = Vec::new();
    for (title, values) in &deeds.groups {
        let counts = values.iter().filter(|(_, value)| *value != 0.0);
        let counts: Vec<String> =
            counts.map(|(name, value)| format!("{} {name}", figure(*value))).collect();
        if !counts.is_empty() {
            shown.push(format!("{title}: {}", counts.join(", ")));
        }
    }
    if deeds.groups.iter().flat_map(|(_, values)| values).any(|(_, value)| *value == 0.0) {
        shown.push("all else 0".into());
    }
    shown.join("; ")
}

fn write_verdict(out: &mut String, v: &Verdict) -> fmt::Result {
    let wanted = match (v.min, v.max) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!(">= {min}"),
        (None, Some(max)) => format!("<= {max}"),
        (None, None) => "anything".into(),
    };
    let verdict = match v.outcome() {
        "missed" => "MISSED",
        outcome => outcome,
    };
    let line = format!(
        "{} {}, {}: {}{} of {} {wanted}: {}",
        v.experiment,
        v.case,
        v.contender,
        v.of,
        v.compared_with(),
        v.metric,
        view::figures(v)
    );
    write_wrapped(out, &format!("  {verdict:<6} "), &line)
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width - 1).chain(['~']).collect()
}
