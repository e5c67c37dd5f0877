// SPDX-License-Identifier: GPL-2.0-or-later
//! The report as Markdown: one command makes every table of it.

use std::fmt::{self, Write};
use std::path::Path;

use crate::experiment::{Case, Experiment};
use crate::markup::figures::{figure, optional, two_digits};
use crate::markup::markdown::{cell, code, dash, head, interval, prose, row, write_list};
use crate::replications;
use crate::report::view::{GRACE_BOUNDS_US, GRACES, Graces};
use crate::report::{self, answer, view};
use crate::result::{Comparison, ResultError, RunResult, Verdict as Expected};

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
    replications::markdown::write_overview(out, result)?;
    write_expectations(out, &result.expectations)?;
    for experiment in &result.experiments {
        writeln!(out, "## {}\n", prose(&experiment.name))?;
        if !experiment.summary.trim().is_empty() {
            writeln!(out, "{}\n", prose(&experiment.summary))?;
        }
        write_contenders(out, experiment)?;
        match replications::of(&experiment.name) {
            Some(published) => {
                replications::markdown::write(out, result, experiment, &published)?;
            }
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
        ("windows", format!("{}, of which {nr_failed} failed", result.windows.len())),
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

/// The cases of an experiment that replicates none, a row for each contender.
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
    let worst_over = format!("worst window, over the mean of {base}");
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
            &worst_over,
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
                    r.worst.map_or_else(dash, two_digits),
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
mod tests {
    use super::*;
    use crate::markup::markdown::tests::assert_tables_are_tables;
    use crate::testdata;

    const COMMAND: &str = "holdfast lab report results/all --markdown all.md";

    #[test]
    fn a_replication_has_every_row_as_a_table_and_what_does_not_transfer() {
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
        let mut result = testdata::result();
        result.experiments[0].cases[0].name = "lock | <b>`".into();
        assert_tables_are_tables(&render(&result, "holdfast lab report a|b"));
    }
}
