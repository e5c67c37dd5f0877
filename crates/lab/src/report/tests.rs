// SPDX-License-Identifier: GPL-2.0-or-later

use std::path::Path;

use serde_json::json;

use super::{html, markdown, terminal};
use crate::markup::html::escape;
use crate::markup::markdown::tests::assert_tables_are_tables;
use crate::metric::Metric;
use crate::replications;
use crate::result::{ResultError, RunResult};
use crate::spins::SpinWaits;
use crate::window::{Problem, Window};
use crate::{analysis, builtin, testdata};

#[test]
fn the_terminal_report_fits_a_terminal() {
    let text = terminal::render(&testdata::result(), false);
    for line in text.lines() {
        assert!(line.chars().count() < 100, "{line}");
        assert!(!line.ends_with(' '), "{line:?}");
    }
}

#[test]
fn the_terminal_report_shows_every_contender_its_interval_and_what_was_missed() {
    let result = testdata::result();
    let text = terminal::render(&result, false);
    let c = result
        .comparison("three-ways", "lock", "holdfast", Metric::WorkPerVmCpuSecond)
        .expect("it was measured");
    let interval = format!("{:.2} [{:.2}, {:.2}]*", c.ratio, c.low, c.high.unwrap());
    let row = text.lines().find(|l| l.starts_with("  holdfast ")).unwrap();
    assert!(row.contains(&interval), "{row}");
    assert_eq!(text.matches("  met    ").count(), 2, "{text}");
    assert_eq!(text.matches("  MISSED ").count(), 1, "{text}");
    assert!(text.contains("1 window does not count"), "{text}");
    assert!(text.contains("the contender ended (exit code 1)"), "{text}");
}

#[test]
fn every_report_has_the_worst_window_beside_the_mean() {
    let mut result = testdata::result();
    let work = Metric::WorkPerVmCpuSecond;
    let base = result.summary("three-ways", "lock", "stock", work).unwrap().mean;
    let is_of = |w: &&mut Window| w.contender == "holdfast" && w.case == "lock";
    let worst = result.windows.iter_mut().filter(is_of).nth(1).unwrap();
    worst.metrics.insert(work, 0.37 * base);
    // A window that does not count is not the worst.
    let invalid = result.windows.iter_mut().filter(is_of).nth(2).unwrap();
    invalid.metrics.insert(work, 0.01 * base);
    invalid.problem = Some(Problem::Stopped);
    let row = |text: String, start: &str| {
        let row = text.lines().find(|line| line.starts_with(start)).expect(start);
        row.to_owned()
    };
    let terminal = row(terminal::render(&result, false), "  holdfast ");
    assert!(terminal.contains("   0.37 "), "{terminal}");
    let html = row(html::render(&result, false), "<tr><td>holdfast</td>");
    assert!(html.contains("<td>0.37</td>"), "{html}");
    let markdown = row(markdown::render(&result, "make"), "| lock | holdfast |");
    assert!(markdown.contains(" | 0.37 | "), "{markdown}");
}

#[test]
fn what_was_not_measured_is_a_dash_and_never_a_zero() {
    let mut result = testdata::result();
    for window in &mut result.windows {
        window.before.iter_mut().for_each(|s| s.observer = None);
        window.work_out(2);
    }
    let again = crate::analysis::conclude(
        result.provenance.clone(),
        result.experiments.clone(),
        result.windows,
        true,
    );
    let text = terminal::render(&again, false);
    let row = text.lines().find(|l| l.starts_with("  holdfast ")).unwrap();
    assert!(row.ends_with(" -/-"), "{row}");
    assert!(text.contains("warning: partial"), "{text}");
    assert!(text.contains("not measured"), "{text}");
    assert!(html::render(&again, false).contains("Preemptions were not measured."));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = html::render(&testdata::result(), false);
    for outside in ["src=", "href=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // Namespaces of SVG are names, not resources; there is no other address.
    let nr_addresses = page.matches("http").count();
    assert_eq!(nr_addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
}

#[test]
fn the_page_has_every_plot_in_the_colours_of_its_style_sheet() {
    let page = html::render(&testdata::result(), false);
    // Two plots of intervals, one of shares; windows, latencies and preemptions of each of two
    // cases.
    assert_eq!(page.matches("<svg ").count(), 9);
    assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
    for left_over in ["#0101", "#0202", "#0300", "cannot be drawn"] {
        assert!(!page.contains(left_over), "{left_over}");
    }
    for needed in ["var(--s0)", "var(--s2)", "currentColor", "prefers-color-scheme: dark"] {
        assert!(page.contains(needed), "{needed}");
    }
}

#[test]
fn every_report_begins_with_the_answer_and_ends_with_the_caveats() {
    let result = testdata::result();
    let markdown = markdown::render(&result, "make");
    for (text, row) in [
        (terminal::render(&result, false), "\n  holdfast  "),
        (html::render(&result, false), "<tr><td>holdfast</td>"),
        (markdown, "| lock | holdfast |"),
    ] {
        let flat = text.replace("\n  ", " ").replace('\n', " ");
        let at = |part: &str| {
            let part = part.replace('\n', " ");
            flat.find(part.trim_start()).unwrap_or_else(|| panic!("{part} in {text}"))
        };
        let answer = at(
            "For the same CPU time, guests under holdfast did more work than under stock in 2 of 2",
        );
        let case = at("Under holdfast this guest did 1.");
        let (table, caveats) = (at(row), at("1 window does not count"));
        assert!(answer < case && case < caveats && answer < table && table < caveats, "{text}");
        assert!(at("Of 3 expectations 2 are met, 1 missed.") < case, "{text}");
        assert!(answer < at("Some CPU @ 2.00GHz"), "{text}");
    }
}

#[test]
fn what_does_not_transfer_in_general_is_among_the_caveats_of_a_page() {
    let mut result = testdata::result();
    let page = html::render(&result, false);
    assert!(page.contains("The host is emulated") && !page.contains("Time is counted"));
    assert!(!page.contains("The documents had"), "it is none of them");
    result.experiments[0].name = "s5".into();
    result.provenance.qemu = Some("10.0.2 (patched), instructions counted".into());
    let page = html::render(&result, false);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("The host is emulated") < at("Time is counted"));
    assert!(at("</section>") < at("<h2>Caveats</h2>"));
    assert!(at("<h2>Caveats</h2>") < at("The documents had 4 to 32 CPUs"));
    result.provenance.accelerator = "here".into();
    assert!(!html::render(&result, false).contains("The host is emulated"));
}

#[test]
fn a_quick_run_says_which_way_each_row_goes_and_how_sure_that_is() {
    let mut result = result_of_replications();
    result.windows.retain(|window| window.round < 2);
    result.experiments.iter_mut().for_each(|e| e.windows.rounds = 2);
    let RunResult { provenance, experiments, windows, .. } = result;
    let result = analysis::conclude(provenance, experiments, windows, false);
    let text = terminal::render(&result, false);
    let (html, page) = (html::render(&result, false), markdown::render(&result, "make"));
    for line in text.lines() {
        assert!(line.chars().count() < 100 && !line.ends_with(' '), "{line}");
    }
    assert_tables_are_tables(&page);
    let mut nr_rows = 0;
    for e in &result.experiments {
        for effect in replications::of(&e.name).unwrap().effects {
            let rows = replications::compare(&result, &e.name, &effect);
            for row in rows.iter().filter(|r| r.verdict == replications::Verdict::Undecided) {
                let outcome = row.outcome();
                assert!(outcome.ends_with(" % sure"), "{}: {outcome}", row.row.name);
                assert!(text.lines().any(|line| line.ends_with(&outcome)), "{outcome} in {text}");
                assert!(html.contains(&escape(&outcome)), "{outcome}");
                assert!(page.contains(&format!("| {outcome} |")), "{outcome}");
                nr_rows += 1;
            }
        }
    }
    assert!(nr_rows > 50, "{nr_rows}");
    assert!(!text.contains("(2 rounds)"), "{text}");
    assert!(text.contains("That is a direction: 2 rounds show no more."), "{text}");
}

#[test]
fn names_from_an_experiment_cannot_break_the_page() {
    let page = html::render(&testdata::result(), false);
    assert!(page.contains("lock &lt;pause&gt;"));
    assert!(!page.contains("<pause>"));
}

#[test]
fn both_reports_have_the_counters_of_decisions_if_they_are_verbose() {
    let result = testdata::result();
    let text = terminal::render(&result, true);
    let at = text.find("  holdfast, per CPU-s: grace: ").unwrap_or_else(|| panic!("{text}"));
    let lines = text[at..].lines().take(3);
    let said = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    // 300 a second while the VM had four thirds of a CPU.
    assert!(
        said.contains("225 steps, 6.00 ms") && said.contains("yields at pause exits: 9.00"),
        "{said}"
    );
    assert!(said.contains("; all else 0") && !said.contains(" 0 "), "{said}");
    assert!(!text.contains("stock, per CPU-s"), "{text}");
    let page = html::render(&result, true);
    assert!(page.contains("<td>grace: steps</td><td>-</td><td>225</td>"));
    assert!(!terminal::render(&result, false).contains("per CPU-s: grace"));
    assert!(!html::render(&result, false).contains("grace: steps"));
}

#[test]
fn the_page_explains_its_stars_and_has_no_column_twice() {
    let page = html::render(&testdata::result(), false);
    assert!(page.contains("<b>*</b> differs from stock"));
    for row in page.lines().collect::<String>().split("<tr>").filter(|row| row.contains("<th>")) {
        let row = row.split("</tr>").next().unwrap();
        let mut heads: Vec<&str> = row.split("<th>").skip(1).collect();
        let nr_heads = heads.len();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), nr_heads, "{row}");
    }
}

#[test]
fn what_a_summary_quotes_is_shown_as_code() {
    let mut result = testdata::result();
    result.experiments[0].summary = "`a < b` and `c".into();
    let page = html::render(&result, false);
    assert!(page.contains("<p><code>a &lt; b</code> and `c</p>"));
}

#[test]
fn huge_figures_break_no_line() {
    let mut result = testdata::result();
    for s in &mut result.summaries {
        s.mean *= 1e17;
    }
    for c in &mut result.comparisons {
        (c.ratio, c.low, c.high) = (c.ratio * 1e12, c.low * 1e-9, c.high.map(|h| h * 1e15));
    }
    for line in terminal::render(&result, false).lines() {
        assert!(line.chars().count() < 100, "{line}");
    }
}

#[test]
fn an_older_page_stays_where_the_new_one_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    std::fs::write(&path, "an older page").unwrap();
    let result = testdata::result();
    type Write = fn(&RunResult, &Path) -> Result<(), ResultError>;
    let writes: [Write; 2] =
        [|r, path| html::write(r, path, false), |r, path| markdown::write(r, path, "")];
    for write in writes {
        // A full disk for the file beside it.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("report.html.new")).unwrap();
        write(&result, &path).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older page");
        assert!(!dir.path().join("report.html.new").exists());
    }
}

/// A result of all five replications, with arbitrary figures.
fn result_of_replications() -> RunResult {
    let mut result = testdata::result();
    let window = result.windows[0].clone();
    let names = ["s1", "s2", "s3", "s4", "s5"];
    result.experiments = names.iter().map(|name| builtin::find(name).unwrap().remove(0)).collect();
    let (mut windows, mut seed) = (Vec::new(), 1u64);
    for e in &result.experiments {
        for (case, contender) in
            e.cases.iter().flat_map(|c| e.contenders.iter().map(move |k| (c, k)))
        {
            let level = 10f64.powi(case.name.len() as i32 % 5);
            for round in 0..6 {
                let mut window = window.clone();
                (window.experiment, window.case) = (e.name.clone(), case.name.clone());
                (window.contender, window.round) = (contender.name.clone(), round);
                window.metrics = Metric::all()
                    .into_iter()
                    .map(|metric| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (metric, level * (1.0 + (seed >> 40) as f64 / (1u64 << 24) as f64))
                    })
                    .collect();
                windows.push(window);
            }
        }
    }
    result.windows = windows;
    result.provenance.statistics.resamples = 100;
    result
}

#[test]
fn all_five_replications_fit_a_terminal_and_make_tables() {
    let result = result_of_replications();
    let text = terminal::render(&result, false);
    let page = markdown::render(&result, "holdfast lab report results/all --markdown all.md");
    let html = html::render(&result, false);
    for line in text.lines() {
        assert!(line.chars().count() < 100 && !line.ends_with(' '), "{line}");
    }
    assert!(text.contains("why not measurable here"), "{text}");
    assert_tables_are_tables(&page);
    for (name, effect) in result.experiments.iter().flat_map(|e| {
        replications::of(&e.name).unwrap().effects.into_iter().map(move |effect| (&e.name, effect))
    }) {
        let rows = replications::compare(&result, name, &effect);
        let headline = replications::headline(&rows);
        let at_top = format!("| {} | {} | {headline} |", name.to_uppercase(), effect.name);
        assert!(page.contains(&at_top), "{at_top}");
        assert!(html.contains(&format!("<h3>{}: {headline}</h3>", escape(&effect.name))));
    }
}

#[test]
fn lengths_of_graces_are_shown_for_schedulers_that_gave_some() {
    let result = testdata::result();
    let need: Vec<_> = result.grace_needs.iter().map(|n| (&*n.case, n.windows)).collect();
    assert_eq!(need, [("lock", 8), ("lock <pause>", 8)]);
    assert_eq!(result.grace_needs[0].us_log2[4..11], [720, 0, 0, 0, 0, 192, 48]);
    // Three quarters of the 1920 graces in both cases were the shortest.
    let page = markdown::render(&result, "make");
    assert!(page.contains("| holdfast | 1920 | 75.0 | 75.0 | 75.0 | 95.0 | 100 |"), "{page}");
    let html = html::render(&result, true);
    let row = "<tr><td>holdfast</td><td>1920</td><td>75.0</td><td>75.0</td><td>75.0</td>\
         <td>95.0</td><td>100</td></tr>";
    assert_eq!(html.matches(row).count(), 1, "{html}");

    let mut none = result;
    none.grace_needs.clear();
    assert!(!markdown::render(&none, "make").contains("graces"));
    assert!(!html::render(&none, true).contains("graces released"));
}

#[test]
fn a_counter_of_one_scheduler_is_a_dash_for_others() {
    let html = html::render(&testdata::result(), true);
    let row = |name: &str, base: &str, holdfast: &str| {
        let row = format!("<tr><td>{name}</td><td>{base}</td><td>{holdfast}</td></tr>");
        assert!(html.contains(&row), "{row} in {html}");
    };
    // 30 and 500 a second, in which the VM has four thirds of a CPU.
    row("tasks: preempted by a waking task", "22.5", "22.5");
    row("grace: nothing to protect", "-", "375");
    assert!(!html.contains("yields after IPIs"), "no scheduler counts them");
}

#[test]
fn counters_of_a_vm_beside_are_shown() {
    let result = testdata::with_a_vm_beside();
    assert!(html::render(&result, true).contains("<th>holdfast, to other beside</th>"));
    let terminal = terminal::render(&result, true);
    assert!(terminal.contains("holdfast, to other beside, per CPU-s: grace: "), "{terminal}");
}

#[test]
fn counters_of_any_size_are_drawn() {
    let mut result = testdata::result();
    for window in &mut result.windows {
        window.attempt = u32::MAX;
        window.spins =
            Some(SpinWaits { interval_ns: u64::MAX, total_ns: u64::MAX, hist: vec![u64::MAX; 64] });
        let Some(after) = &mut window.after else { continue };
        after.workload.hist.fill(u64::MAX);
        if let Some(scheduler) = &mut after.scheduler {
            scheduler.counters["vms"] = json!({"100": {"grace_need_us_log2": vec![u64::MAX; 64]}});
        }
        let observer = after.observer.as_mut().unwrap();
        let vcpus = observer["vms"][0]["vcpus"].as_array_mut().unwrap();
        for counters in ["preemptions", "offcpu_ns", "offcpu_over_cap"] {
            vcpus[0][counters]["holder"] = u64::MAX.into();
        }
        let another = vcpus[0].clone();
        vcpus.push(another);
    }
    let result = analysis::again(result);
    assert!(terminal::render(&result, false).contains("holdfast"));
    assert!(html::render(&result, false).contains("</html>"));
    let experiment = &result.experiments[0];
    let mut section = String::new();
    replications::html::write_waits(&mut section, &result, experiment).unwrap();
    assert!(section.contains("waits for spinlocks"), "{section}");
}
