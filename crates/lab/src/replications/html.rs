// SPDX-License-Identifier: GPL-2.0-or-later
//! The section of a replication: printed figures, ours beside them, and the verdict.

use std::fmt::{self, Write};

use super::plots;
use super::{Compared, Effect, Published, Values, compare, headline, of, reasons, spread};
use crate::experiment::Experiment;
use crate::markup::figures::{figure, ratio};
use crate::markup::html::{escape, prose, write_figure};
use crate::metric::Better;
use crate::result::RunResult;
use crate::stats::Estimate;

/// Writes the section of `experiment`, if it replicates a document.
pub(crate) fn write(out: &mut String, result: &RunResult, experiment: &Experiment) -> fmt::Result {
    let Some(published) = of(&experiment.name) else { return Ok(()) };
    write_head(out, &published)?;
    for effect in &published.effects {
        let rows = compare(result, &experiment.name, effect);
        write_effect(out, experiment, effect, &rows)?;
    }
    write_waits(out, result, experiment)?;
    writeln!(out, "<h3>What does not transfer</h3>\n<ul>")?;
    for line in &published.not_transferred {
        writeln!(out, "<li>{}</li>", prose(line))?;
    }
    writeln!(out, "</ul>\n<h3>All measured</h3>")
}

/// The guest's waits for spinlocks in each case that measured them.
pub(crate) fn write_waits(
    out: &mut String,
    result: &RunResult,
    experiment: &Experiment,
) -> fmt::Result {
    for case in &experiment.cases {
        if let Some(drawn) = plots::spin_waits(result, experiment, case) {
            let caption = format!("{}: the guest's waits for spinlocks, by contender", case.name);
            write_figure(out, &drawn, &caption)?;
        }
    }
    Ok(())
}

fn write_head(out: &mut String, p: &Published) -> fmt::Result {
    writeln!(
        out,
        "<p>{}: {}, <cite>{}</cite>, {}.</p>",
        escape(&p.id),
        escape(&p.author),
        escape(&p.title),
        escape(&p.published)
    )?;
    writeln!(out, "<p><b>There.</b> {}</p>", prose(&p.machine))?;
    writeln!(out, "<p><b>Here.</b> {}</p>", prose(&p.scaling))
}

fn write_effect(
    out: &mut String,
    experiment: &Experiment,
    effect: &Effect,
    rows: &[Compared],
) -> fmt::Result {
    writeln!(out, "<h3>{}: {}</h3>", escape(&effect.name), headline(rows))?;
    writeln!(out, "<p>{}</p>", prose(&effect.what))?;
    write_table(out, effect, rows)?;
    if let Some(spread) = spread(rows) {
        writeln!(out, "<p>{}</p>", escape(&spread))?;
    }
    for reason in reasons(effect, rows) {
        writeln!(out, "<p><b>Why {}.</b> {}</p>", escape(&reason.of()), prose(reason.text))?;
    }
    if let Some(drawn) = plots::changes(experiment, &effect.name, rows) {
        let caption = "Cross: after over before as printed. Below it ours, under the kernel's \
             scheduler unless said; and below that, in its colour, holdfast over the kernel's \
                       scheduler, in the case of before and in that of after. Lines are 95 % \
                       intervals, \
                       filled dots differ from 1.";
        write_figure(out, &drawn, caption)?;
    }
    Ok(())
}

fn write_table(out: &mut String, effect: &Effect, rows: &[Compared]) -> fmt::Result {
    let unit = if effect.unit.is_empty() { String::new() } else { format!(", {}", effect.unit) };
    writeln!(out, "<div class=\"wide\"><table>\n<tr><th></th><th>printed{}</th>", escape(&unit))?;
    writeln!(out, "<th>change</th><th>ours</th><th>after / before</th>")?;
    writeln!(
        out,
        "<th class=\"text\">seen again?</th><th>holdfast</th><th>holdfast / stock</th></tr>"
    )?;
    for r in rows {
        let change =
            r.row.published_ratio().map(|ratio| format!("{:+.1} %", 100.0 * (ratio - 1.0)));
        let ours = r.ours.as_ref().map_or_else(dash, interval);
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{ours}</td><td \
             class=\"text\">{}</td><td>{}</td><td>{}</td></tr>",
            escape(&r.row.name),
            two_lines([printed(&r.row.before), printed(&r.row.after)]),
            change.unwrap_or_else(dash),
            two_lines([r.before, r.after].map(|v| v.map_or_else(dash, values))),
            escape(&r.outcome()),
            two_lines(r.holdfast_values.map(|v| v.map_or_else(dash, values))),
            gains(effect, r),
        )?;
    }
    writeln!(out, "</table></div>")?;
    writeln!(
        out,
        "<p class=\"hint\">Upper line: before, or in its case; lower line: after; mean (standard \
         deviation of windows). Ours and holdfast: {}. [low, high]: 95 % interval; <b>*</b> \
         differs from 1.</p>",
        escape(&effect.metric.title())
    )
}

/// Holdfast's gain in each case of a row; a loss stands out.
fn gains(effect: &Effect, row: &Compared) -> String {
    let all: Vec<String> = row.gains().into_iter().map(|(_, e)| gain(effect, e)).collect();
    if all.is_empty() { dash() } else { all.join("<br>") }
}

fn gain(effect: &Effect, e: &Estimate) -> String {
    let is_worse = match effect.metric.better() {
        // Throughput beside the guest has no direction of its own, but less of it is a loss.
        Better::Higher | Better::Neither => e.high.is_some_and(|high| high < 1.0),
        Better::Lower => e.low > 1.0,
    };
    if is_worse { format!("<span class=\"missed\">{}</span>", interval(e)) } else { interval(e) }
}

fn interval(e: &Estimate) -> String {
    escape(&ratio(e))
}

/// Before and after; a dash for two.
fn two_lines([before, after]: [String; 2]) -> String {
    if before == after { before } else { format!("{before}<br>{after}") }
}

/// As printed: every digit.
pub(super) fn printed(values: &[f64]) -> String {
    match values {
        [] => dash(),
        [mean] => format!("{mean}"),
        [mean, sd, ..] => format!("{mean} ({sd})"),
    }
}

/// `12.3 (0.4)`: mean and standard deviation.
pub(super) fn values(v: Values) -> String {
    let sd = v.sd.map_or_else(String::new, |sd| format!(" ({})", figure(sd)));
    format!("{}{sd}", figure(v.mean))
}

fn dash() -> String {
    "-".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replications::Verdict;
    use crate::testdata;
    use crate::testdata::effect;

    #[test]
    fn every_printed_figure_is_on_the_page_whether_measured_or_not() {
        let mut result = testdata::result();
        // Nothing was measured: the page has printed figures, and dashes beside them.
        result.experiments[0].name = "s1".into();
        let mut page = String::new();
        write(&mut page, &result, &result.experiments[0]).unwrap();
        for figure in ["273.27 (1.051)", "1007.63 (5.707)", "-7.9 %", "-25.5 %"] {
            assert!(page.contains(figure), "{figure}");
        }
        assert!(page.contains(Verdict::NotMeasured.as_str()));
        assert!(!page.contains(Verdict::Reproduced.as_str()));
        assert!(page.contains("What does not transfer"));
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    }

    #[test]
    fn all_four_series_have_a_mean_and_a_deviation() {
        let result = testdata::result();
        let effect = effect();
        let rows = compare(&result, "three-ways", &effect);
        let mut page = String::new();
        write_effect(&mut page, &result.experiments[0], &effect, &rows).unwrap();
        for (case, contender) in [
            ("lock", "stock"),
            ("lock <pause>", "stock"),
            ("lock", "holdfast"),
            ("lock <pause>", "holdfast"),
        ] {
            let s = result
                .summary("three-ways", case, contender, crate::metric::Metric::TimePerOpUs)
                .unwrap();
            let shown = format!("{} ({})", figure(s.mean), figure(s.sd.unwrap()));
            assert!(page.contains(&shown), "{shown} in {page}");
        }
        assert!(page.contains("Standard deviation in % of the mean"), "{page}");
    }

    #[test]
    fn an_experiment_that_replicates_none_has_no_such_section() {
        let result = testdata::result();
        let mut page = String::new();
        write(&mut page, &result, &result.experiments[0]).unwrap();
        assert_eq!(page, "");
    }

    #[test]
    fn waits_are_drawn_where_the_guest_timed_them() {
        let result = testdata::result();
        let e = &result.experiments[0];
        let drawn = plots::spin_waits(&result, e, &e.cases[0]).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("second mode"), "{drawn}");
        let mut short = result.clone();
        for spins in short.windows.iter_mut().filter_map(|s| s.spins.as_mut()) {
            spins.hist.truncate(20);
        }
        let drawn = plots::spin_waits(&short, e, &e.cases[0]).unwrap();
        assert!(!drawn.contains("second mode"), "there is none");
        let mut without = result.clone();
        without.windows.iter_mut().for_each(|s| s.spins = None);
        assert!(plots::spin_waits(&without, e, &e.cases[0]).is_none());
    }
}
