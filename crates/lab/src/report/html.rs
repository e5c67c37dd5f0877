// SPDX-License-Identifier: GPL-2.0-or-later
//! The report as one HTML file: no script, no external resource, light and dark.

use std::fmt::{self, Write};
use std::path::Path;

use crate::experiment::{Case, Experiment};
use crate::markup::figures::{figure, optional, ratio, two_digits};
use crate::markup::html::{escape, prose, write_figure};
use crate::markup::svg::NR_SERIES;
use crate::metric::Metric;
use crate::replications;
use crate::report::view::{Deeds, GRACE_BOUNDS_US, GRACES, Graces};
use crate::report::{self, answer, plots, view};
use crate::result::{Comparison, ResultError, RunResult, Verdict};
use crate::scheduler::SHOWN;

const STYLE: &str = include_str!("report.css");

/// The page; `verbose` adds the schedulers' own counters.
pub fn render(result: &RunResult, verbose: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut out, result, verbose);
    out
}

/// Writes the page to `path`; an older file stays until the page is whole.
pub fn write(result: &RunResult, path: &Path, verbose: bool) -> Result<(), ResultError> {
    report::write_page(&render(result, verbose), path)
}

fn write_page(out: &mut String, result: &RunResult, verbose: bool) -> fmt::Result {
    let names: Vec<&str> = result.experiments.iter().map(|e| e.name.as_str()).collect();
    let title = format!("Holdfast: {}", names.join(", "));
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<meta name=\"color-scheme\" content=\"light dark\">")?;
    writeln!(out, "<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>", escape(&title))?;
    writeln!(out, "<h1>{}</h1>", escape(&title))?;
    for experiment in &result.experiments {
        let answer = escape(&answer::of_experiment(result, experiment));
        let name = match result.experiments.len() {
            1 => String::new(),
            _ => format!("<b>{}:</b> ", escape(&experiment.name)),
        };
        writeln!(out, "<p class=\"answer\">{name}{answer}</p>")?;
    }
    for experiment in &result.experiments {
        write_experiment(out, result, experiment, verbose)?;
    }
    write_verdicts(out, &result.expectations)?;
    writeln!(out, "{NOTES}")?;
    write_caveats(out, result)?;
    writeln!(out, "</body>\n</html>")
}

/// Caveats that a reader must know, and the provenance of the figures.
fn write_caveats(out: &mut String, result: &RunResult) -> fmt::Result {
    writeln!(out, "<h2>Caveats</h2>")?;
    for line in view::warnings(result) {
        writeln!(out, "<p class=\"warning\">{}</p>", escape(&line))?;
    }
    let not_transferred = view::not_transferred(result);
    if !not_transferred.is_empty() {
        writeln!(out, "<h3>What does not transfer, in general</h3>\n<ul>")?;
        for line in &not_transferred {
            writeln!(out, "<li>{}</li>", prose(line))?;
        }
        writeln!(out, "</ul>")?;
    }
    writeln!(out, "<h3>Where the figures come from</h3>")?;
    for line in view::origin(result) {
        writeln!(out, "<p class=\"origin\">{}</p>", escape(&line))?;
    }
    Ok(())
}

const NOTES: &str = "<h2>How to read this</h2>
<ul>
<li>Contenders alternate in short windows; only windows of one round are compared. A ratio is the
mean of the contender over the mean of the baseline, with its 95 % bootstrap interval; <b>*</b>
and a filled dot mark a difference (the interval excludes 1, and p &lt; 0.05 in a permutation
test).</li>
<li>Fewer than six rounds show a direction, &gt; 1 or &lt; 1, and how sure it is, by Student's
distribution of the logarithms of the ratios.</li>
<li>Operations per CPU-second are operations of the workload for each second of CPU time that its
guest used: more of them take nothing from other tasks.</li>
<li>The worst window is the contender's window with the least work per CPU-second, over the
baseline's mean: what a guest has to reckon with.</li>
<li>Fair is max-min fair: CPU time is poured into all threads at the same rate. A
thread that has all it wants gets no more, and the rest goes to the others.</li>
<li>A lock holder is preempted where a vCPU that holds a spinlock loses its CPU against its will.
A vCPU's class is the one it had when it lost its CPU.</li>
<li>An expectation of a ratio or a mean is missed where the 95 % interval is outside of its limits.
It is unsure where only the figure is.</li>
</ul>
";

fn write_verdicts(out: &mut String, verdicts: &[Verdict]) -> fmt::Result {
    if verdicts.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Expectations</h2>\n<div class=\"wide\"><table>")?;
    writeln!(
        out,
        "<tr><th></th><th class=\"text\">case</th><th class=\"text\">contender</th><th \
         class=\"text\">what</th><th>expected</th><th>measured</th></tr>"
    )?;
    for v in verdicts {
        let text = v.outcome();
        let expected = match (v.min, v.max) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("≥ {min}"),
            (None, Some(max)) => format!("≤ {max}"),
            (None, None) => String::new(),
        };
        writeln!(
            out,
            "<tr><td class=\"{text}\">{text}</td><td class=\"text\">{}: {}</td>\
             <td class=\"text\">{}</td><td class=\"text\">{}{} of {}</td><td>{expected}</td>\
             <td>{}</td></tr>",
            escape(&v.experiment),
            escape(&v.case),
            escape(&v.contender),
            v.of,
            escape(&v.compared_with()),
            escape(&v.metric.title()),
            view::figures(v),
        )?;
    }
    writeln!(out, "</table></div>")
}

fn write_experiment(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
    verbose: bool,
) -> fmt::Result {
    writeln!(out, "<section>\n<h2>{}</h2>", escape(&experiment.name))?;
    writeln!(out, "<p>{}</p>", prose(&experiment.summary))?;
    write_legend(out, experiment)?;
    replications::html::write(out, result, experiment)?;
    for metric in [Metric::WorkPerVmCpuSecond, Metric::Throughput] {
        let drawn = plots::intervals(result, experiment, metric);
        write_figure(out, &drawn, &format!("{}, with 95 % intervals", metric.title()))?;
    }
    write_figure(
        out,
        &plots::shares(result, experiment),
        "Share of CPU against fair share, a dot for each window; the band is 5 points wide either \
         way",
    )?;
    if verbose {
        write_graces(out, &view::graces(result, experiment))?;
    }
    for case in &experiment.cases {
        write_case(out, result, experiment, case, verbose)?;
    }
    writeln!(out, "</section>")
}

fn write_legend(out: &mut String, experiment: &Experiment) -> fmt::Result {
    write!(out, "<p class=\"legend\">")?;
    for (i, contender) in experiment.contenders.iter().enumerate() {
        let scheduler = (!contender.schedules()).then(|| "the kernel's own scheduler".to_owned());
        let commands = contender.commands().map(|command| command.join(" "));
        let command = scheduler.into_iter().chain(commands).collect::<Vec<_>>().join(" + ");
        write!(
            out,
            "<span><i style=\"background:var(--s{})\"></i>{} <small>{}</small></span> ",
            i % NR_SERIES,
            escape(&contender.name),
            escape(&command)
        )?;
    }
    writeln!(out, "</p>")
}

fn write_case(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
    case: &Case,
    verbose: bool,
) -> fmt::Result {
    writeln!(out, "<h3>{}</h3>", escape(&case.name))?;
    if let Some(answer) = answer::of_case(result, experiment, case) {
        writeln!(out, "<p>{}</p>", escape(&answer))?;
    }
    writeln!(out, "<p class=\"hint\">{}</p>", escape(&view::describe(experiment, case)))?;
    write_table(out, result, experiment, case)?;
    if verbose {
        write_deeds(out, &view::deeds(result, experiment, case))?;
    }
    let metric = Metric::WorkPerVmCpuSecond;
    let drawn = plots::windows(result, experiment, case, metric);
    write_figure(out, &drawn, &format!("{} of every window", metric.title()))?;
    if let Some(drawn) = plots::latencies(result, experiment, case) {
        write_figure(out, &drawn, "Operation times")?;
    }
    match plots::preemptions(result, experiment, case) {
        Some(drawn) => write_figure(
            out,
            &drawn,
            "Preemptions of vCPUs by class; the line in a bar marks those longer than 1 ms",
        ),
        None => writeln!(out, "<p>Preemptions were not measured.</p>"),
    }
}

fn write_table(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
    case: &Case,
) -> fmt::Result {
    let against = |is_baseline: bool, c: Option<&Comparison>| match c {
        _ if is_baseline => "1".into(),
        Some(c) => escape(&ratio(&c.estimate(&result.provenance.statistics))),
        None => "-".into(),
    };
    let base = escape(&experiment.baseline().name);
    writeln!(out, "<div class=\"wide\"><table>\n<tr><th>contender</th><th>windows</th>")?;
    writeln!(out, "<th>operations per CPU-second</th>")?;
    writeln!(out, "<th>times the work of {base} for the same CPU time</th>")?;
    writeln!(out, "<th>worst window, over the mean of {base}</th>")?;
    writeln!(out, "<th>operations per second</th>")?;
    writeln!(out, "<th>times the work of {base} in the same time</th>")?;
    writeln!(out, "<th>guest's CPU, %</th><th>fair, %</th>")?;
    writeln!(out, "<th>lock holders preempted, per CPU-second</th><th>for &gt; 1 ms</th></tr>")?;
    for row in view::rows(result, experiment, case) {
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(row.contender),
            row.windows,
            optional(row.work),
            against(row.is_baseline, row.work_ratio),
            row.worst.map_or_else(|| "-".into(), two_digits),
            optional(row.throughput),
            against(row.is_baseline, row.throughput_ratio),
            optional(row.share),
            optional(row.fair),
            optional(row.holders),
            optional(row.holders_long),
        )?;
    }
    writeln!(out, "</table></div>")?;
    writeln!(out, "<p class=\"hint\">[low, high]: 95 % interval; <b>*</b> differs from {base}</p>")
}

/// The schedulers' own counters: a row for each counter, a column for each scheduler.
fn write_deeds(out: &mut String, all: &[Deeds]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<details><summary>What the scheduler decided, per CPU-second of the guest</summary>"
    )?;
    write!(out, "<div class=\"wide\"><table>\n<tr><th>counter</th>")?;
    for deeds in all {
        write!(out, "<th>{}</th>", escape(&deeds.title()))?;
    }
    writeln!(out, "</tr>")?;
    for (title, counters) in SHOWN {
        for (name, _) in counters {
            // A scheduler that reads no guests has no counters of them.
            let values: Vec<_> = all.iter().map(|deeds| deeds.value(title, name)).collect();
            if values.iter().all(Option::is_none) {
                continue;
            }
            write!(out, "<tr><td>{title}: {name}</td>")?;
            for value in values {
                write!(out, "<td>{}</td>", optional(value))?;
            }
            writeln!(out, "</tr>")?;
        }
    }
    writeln!(out, "</table></div></details>")
}

/// Lengths of graces: a row for each scheduler that gave some.
fn write_graces(out: &mut String, all: &[Graces]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "<details><summary>Lengths of graces, in all cases</summary>")?;
    write!(out, "<div class=\"wide\"><table>\n<tr><th>contender</th><th>graces released</th>")?;
    for us in GRACE_BOUNDS_US {
        write!(out, "<th>within {us} µs, %</th>")?;
    }
    writeln!(out, "</tr>")?;
    for graces in all {
        write!(out, "<tr><td>{}</td>", escape(graces.contender))?;
        for value in std::iter::once(graces.released).chain(graces.within) {
            write!(out, "<td>{}</td>", figure(value))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table></div>\n<p class=\"hint\">{GRACES}</p></details>")
}
