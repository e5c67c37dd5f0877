// SPDX-License-Identifier: GPL-2.0-or-later
//! The plots of the HTML page, each as an SVG element.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::experiment::{Case, Experiment};
use crate::markup::chart::{Axes, chart, duration, plot, text};
use crate::markup::figures;
use crate::markup::svg::{GRID, INK, series};
use crate::metric::{CLASSES, Metric};
use crate::result::RunResult;
use crate::window::{self, Window};

/// `values` from 0 to a little above the largest.
fn from_zero(values: impl Iterator<Item = f64>) -> Range<f64> {
    let top = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    0.0..if top > 0.0 { top * 1.08 } else { 1.0 }
}

/// The largest ratio that is drawn to scale. A ratio of a hundred would hide the differences
/// between all others.
const TO_SCALE: f64 = 4.0;

/// Ratio and interval of every contender in every case: a row each, a line at 1. Ratios beyond the
/// axis are written at its end.
pub(super) fn intervals(result: &RunResult, experiment: &Experiment, metric: Metric) -> String {
    let mut rows = Vec::new();
    for case in &experiment.cases {
        for (i, contender) in experiment.contenders.iter().enumerate() {
            if let Some(c) =
                result.comparison(&experiment.name, &case.name, &contender.name, metric)
            {
                rows.push((i, format!("{}: {}", case.name, contender.name), c));
            }
        }
    }
    if rows.is_empty() {
        return "<p>nothing to compare</p>".into();
    }
    let ends = || rows.iter().flat_map(|(_, _, c)| [c.low, c.ratio, c.high.unwrap_or(c.ratio)]);
    let low = ends().fold(1.0, f64::min);
    let high = ends().filter(|end| *end <= TO_SCALE).fold(1.0, f64::max);
    let margin = 0.06 * (high - low).max(0.1);
    let title = format!("{}: contender over {}", metric.title(), experiment.baseline().name);
    let nr_rows = rows.len();
    plot(&title, 70 + 26 * nr_rows as u32, |area| {
        let mut chart = chart(
            area,
            Axes {
                x: (low - margin).max(0.0)..high + margin,
                y: 0.0..nr_rows as f64,
                x_title: &title,
                y_title: "",
                left: 230,
                x_label: &|x| format!("{x:.2}"),
                y_label: &|_| String::new(),
                rows: true,
            },
        )?;
        let one = [(1.0, 0.0), (1.0, nr_rows as f64)];
        chart.draw_series(std::iter::once(PathElement::new(one, INK.stroke_width(1))))?;
        for (row, (i, label, c)) in rows.iter().enumerate() {
            let y = nr_rows as f64 - row as f64 - 0.5;
            let color = series(*i);
            let end = c.high.unwrap_or(f64::MAX).min(high + margin);
            let (pixel_x, pixel_y) = chart.backend_coord(&(high + margin, y));
            if c.ratio > high {
                let shown = format!("{} \u{2192}", figures::figure(c.ratio));
                let style = text(16).color(&color).pos(Pos::new(HPos::Right, VPos::Center));
                area.draw(&Text::new(shown, (pixel_x, pixel_y), style))?;
            } else {
                let line = PathElement::new([(c.low, y), (end, y)], color.stroke_width(3));
                chart.draw_series(std::iter::once(line))?;
                let dot = if c.is_significant() { color.filled() } else { color.stroke_width(2) };
                chart.draw_series(std::iter::once(Circle::new((c.ratio, y), 6, dot)))?;
            }
            let style = text(16).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(label.clone(), (232, pixel_y), style))?;
        }
        Ok(())
    })
}

fn of<'a>(result: &'a RunResult, e: &'a Experiment, case: &'a Case) -> Vec<(usize, &'a Window)> {
    let index = |s: &Window| e.contenders.iter().position(|c| c.name == s.contender);
    result
        .windows
        .iter()
        .filter(|s| s.experiment == e.name && s.case == case.name && s.is_valid())
        .filter_map(|s| Some((index(s)?, s)))
        .collect()
}

/// Every window of a case in the order of time, to see drift, outliers and alternation.
pub(super) fn windows(result: &RunResult, e: &Experiment, case: &Case, metric: Metric) -> String {
    let mut points: Vec<(usize, f64, f64)> = of(result, e, case)
        .into_iter()
        .filter_map(|(i, s)| Some((i, s.start_s, s.value(metric)?)))
        .collect();
    // They are kept in the order in which they ended, on any of the hosts.
    points.sort_by(|a, b| a.1.total_cmp(&b.1));
    if points.is_empty() {
        return "<p>no window was measured</p>".into();
    }
    let first = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let last = points.iter().map(|p| p.1).fold(0.0, f64::max);
    let label = format!("{}: {} over time", case.name, metric.title());
    plot(&label, 260, |area| {
        let margin = 0.03 * (last - first).max(1.0);
        let mut chart = chart(
            area,
            Axes {
                x: first - margin..last + margin,
                y: from_zero(points.iter().map(|p| p.2)),
                x_title: "time since the run began, s",
                y_title: &metric.title(),
                left: 74,
                x_label: &|x| format!("{x:.0}"),
                y_label: &|y| figures::figure(*y),
                rows: false,
            },
        )?;
        for i in 0..e.contenders.len() {
            let mine = || points.iter().filter(move |p| p.0 == i).map(|p| (p.1, p.2));
            let faint = series(i).mix(0.45);
            chart.draw_series(LineSeries::new(mine(), faint.stroke_width(1)))?;
            chart.draw_series(mine().map(|p| Circle::new(p, 4, series(i).filled())))?;
        }
        Ok(())
    })
}

/// The VM's share against its fair share, a dot for each window; on the line it is fair.
pub(super) fn shares(result: &RunResult, experiment: &Experiment) -> String {
    let points: Vec<(usize, f64, f64)> = experiment
        .cases
        .iter()
        .flat_map(|case| of(result, experiment, case))
        .filter_map(|(i, s)| {
            Some((i, s.value(Metric::VmFairSharePercent)?, s.value(Metric::VmCpuPercent)?))
        })
        .collect();
    if points.is_empty() {
        return "<p>no window was measured</p>".into();
    }
    let all = || points.iter().flat_map(|p| [p.1, p.2]);
    let low = (all().fold(f64::INFINITY, f64::min) - 8.0).max(0.0);
    let high = all().fold(0.0, f64::max) + 8.0;
    plot("the VM's share of CPU against its fair share", 400, |area| {
        let mut chart = chart(
            area,
            Axes {
                x: low..high,
                y: low..high,
                x_title: "fair share of the VM, % of one CPU",
                y_title: "its share, % of one CPU",
                left: 64,
                x_label: &|x| format!("{x:.0}"),
                y_label: &|y| format!("{y:.0}"),
                rows: false,
            },
        )?;
        // Within the axes all the way: points outside would be drawn at their ends.
        let (first, last) = ((low + 5.0).min(high), (high - 5.0).max(low));
        let band =
            [(low, low), (low, first), (last, high), (high, high), (high, last), (first, low)];
        chart.draw_series(std::iter::once(Polygon::new(band, GRID.mix(0.5))))?;
        let fair = [(low, low), (high, high)];
        chart.draw_series(std::iter::once(PathElement::new(fair, INK.stroke_width(1))))?;
        chart.draw_series(
            points.iter().map(|&(i, x, y)| Circle::new((x, y), 4, series(i).filled())),
        )?;
        Ok(())
    })
}

/// Time of the workload's operations, all windows of a contender together; both axes logarithmic.
pub(super) fn latencies(result: &RunResult, e: &Experiment, case: &Case) -> Option<String> {
    let mut sums = vec![vec![0u64; 64]; e.contenders.len()];
    for (i, window) in of(result, e, case) {
        sums[i]
            .iter_mut()
            .zip(window.histogram())
            .for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    let used = |bucket: &usize| sums.iter().any(|h| h[*bucket] > 0);
    let first = (0..64).find(used)?;
    let last = (0..64).rev().find(used)?;
    // log10 of the part of all operations; one in ten million is drawn at the bottom.
    let floor = -7.0;
    let part = |h: &[u64], b: usize| {
        if h[b] == 0 { floor } else { (h[b] as f64 / window::total(h)).log10().max(floor) }
    };
    let drawn = plot(&format!("{}: operation times", case.name), 260, |area| {
        let mut chart = chart(
            area,
            Axes {
                x: first as f64..last as f64 + 1.0,
                y: floor..0.0,
                x_title: "time of an operation (buckets of a factor of 2)",
                y_title: "part of all operations",
                left: 74,
                x_label: &|x| duration(x.exp2()),
                y_label: &|y| power_of_ten(*y),
                rows: false,
            },
        )?;
        for (i, h) in sums.iter().enumerate().filter(|(_, h)| h.iter().any(|n| *n > 0)) {
            let steps = (first..=last).flat_map(|b| {
                let y = part(h, b);
                [(b as f64, y), (b as f64 + 1.0, y)]
            });
            chart.draw_series(LineSeries::new(steps, series(i).stroke_width(2)))?;
        }
        Ok(())
    });
    Some(drawn)
}

fn power_of_ten(exponent: f64) -> String {
    match exponent.round() as i32 {
        0 => "1".into(),
        -1 => "0.1".into(),
        -2 => "1 %".into(),
        -3 => "0.1 %".into(),
        n => format!("1e{n}"),
    }
}

/// Preemptions per VM-CPU-second by class, a bar for each contender; none if nothing was observed.
pub(super) fn preemptions(result: &RunResult, e: &Experiment, case: &Case) -> Option<String> {
    let mean = |contender: &str, metric| {
        result.summary(&e.name, &case.name, contender, metric).map(|s| s.mean)
    };
    let classes = CLASSES;
    let value = |i: usize, class| mean(&e.contenders[i].name, Metric::Preemptions(class));
    let all: Vec<f64> = classes
        .iter()
        .flat_map(|c| (0..e.contenders.len()).filter_map(move |i| value(i, *c)))
        .collect();
    if all.is_empty() {
        return None;
    }
    let nr_bars = e.contenders.len() as f64;
    let drawn = plot(&format!("{}: preemptions by class", case.name), 260, |area| {
        let mut chart = chart(
            area,
            Axes {
                x: 0.0..classes.len() as f64,
                y: from_zero(all.into_iter()),
                x_title: "",
                y_title: "per VM-CPU-second",
                left: 74,
                x_label: &|_| String::new(),
                y_label: &|y| figures::figure(*y),
                rows: false,
            },
        )?;
        let width = 0.8 / nr_bars;
        for (at, class) in classes.iter().enumerate() {
            for i in 0..e.contenders.len() {
                let Some(height) = value(i, *class) else { continue };
                let left = at as f64 + 0.1 + i as f64 * width;
                let bar =
                    Rectangle::new([(left, 0.0), (left + width * 0.9, height)], series(i).filled());
                chart.draw_series(std::iter::once(bar))?;
                let long = mean(&e.contenders[i].name, Metric::LongPreemptions(*class));
                if let Some(long) = long.filter(|l| *l > 0.0) {
                    let mark = [(left, long), (left + width * 0.9, long)];
                    let line = PathElement::new(mark, INK.stroke_width(2));
                    chart.draw_series(std::iter::once(line))?;
                }
            }
            let (x, y) = chart.backend_coord(&(at as f64 + 0.5, 0.0));
            let style = text(16).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(class.name().to_string(), (x, y + 8), style))?;
        }
        Ok(())
    });
    Some(drawn)
}
