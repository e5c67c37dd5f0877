// SPDX-License-Identifier: GPL-2.0-or-later
//! The plots of a source's section.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plots::{Axes, chart, duration, plot, text};
use super::svg::{INK, series};
use crate::experiment::{Case, Experiment};
use crate::result::RunResult;
use crate::sources::verdict::{Compared, HOLDFAST, STOCK};
use crate::stats::{self, Estimate};

/// After over before, as printed and as measured, and what holdfast makes of the same cases.
pub(super) fn changes(e: &Experiment, title: &str, rows: &[Compared]) -> Option<String> {
    let color = |name: &str| series(e.contenders.iter().position(|c| c.name == name).unwrap_or(0));
    let rows: Vec<&Compared> = rows.iter().filter(|r| r.ours.is_some()).collect();
    let ends = || {
        rows.iter().flat_map(|r| {
            let mine = r.ours.iter().chain(r.holdfast.iter().flatten());
            let mine = mine.flat_map(|e| [e.low, e.ratio, e.high.unwrap_or(e.ratio)]);
            mine.chain(r.row.published_ratio())
        })
    };
    if rows.is_empty() {
        return None;
    }
    // A window that collapsed must not hide all others.
    let low = ends().fold(1.0, f64::min).max(0.0);
    let high = ends().fold(1.0, f64::max).min(4.0);
    let margin = 0.05 * (high - low).max(0.1);
    let nr_rows = rows.len() as f64;
    let drawn = plot(title, 70 + 40 * rows.len() as u32, |area| {
        let axes = Axes {
            x: (low - margin).max(0.0)..high + margin,
            y: 0.0..nr_rows,
            x_title: "ratio",
            y_title: "",
            left: 260,
            x_label: &|x| format!("{x:.2}"),
            y_label: &|_| String::new(),
            rows: true,
        };
        let mut chart = chart(area, axes)?;
        let one = [(1.0, 0.0), (1.0, nr_rows)];
        chart.draw_series(std::iter::once(PathElement::new(one, INK.stroke_width(1))))?;
        for (i, row) in rows.iter().enumerate() {
            let y = nr_rows - i as f64 - 0.5;
            let mut interval = |e: &Estimate, y: f64, color: RGBColor| {
                let end = e.high.unwrap_or(high).min(high);
                let line =
                    PathElement::new([(e.low.min(high), y), (end, y)], color.stroke_width(3));
                chart.draw_series(std::iter::once(line))?;
                let is_clear = stats::is_significant(e.low, e.high, e.p);
                let dot = if is_clear { color.filled() } else { color.stroke_width(2) };
                chart.draw_series(std::iter::once(Circle::new((e.ratio.min(high), y), 5, dot)))?;
                Ok::<(), Box<dyn std::error::Error>>(())
            };
            if let Some(e) = &row.ours {
                interval(e, y, color(STOCK))?;
            }
            for (k, (_, e)) in row.gains().into_iter().enumerate() {
                interval(e, y - 0.17 - 0.16 * k as f64, color(HOLDFAST))?;
            }
            if let Some(ratio) = row.row.published_ratio() {
                let cross = Cross::new((ratio.min(high), y + 0.2), 6, INK.stroke_width(2));
                chart.draw_series(std::iter::once(cross))?;
            }
            let (_, pixel_y) = chart.backend_coord(&(low, y));
            let style = text(16).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(row.row.name.clone(), (262, pixel_y), style))?;
        }
        Ok(())
    });
    Some(drawn)
}

/// Smallest rate of waits that is drawn, log10 of one per second.
const FLOOR: f64 = -1.0;
/// From here on a wait is in the second mode: 2^20 ns.
const SECOND_MODE: f64 = 20.0;

/// The guest's waits for spinlocks by their length, a line for each contender; both axes logarithmic.
pub(super) fn spin_waits(result: &RunResult, e: &Experiment, case: &Case) -> Option<String> {
    let mut sums = vec![(0u64, [0u64; 64]); e.contenders.len()];
    for sample in &result.samples {
        let is_mine = sample.experiment == e.name && sample.case == case.name && sample.is_valid();
        let contender = e.contenders.iter().position(|c| c.name == sample.contender);
        let (true, Some(i), Some(spins)) = (is_mine, contender, &sample.spins) else { continue };
        let (interval_ns, hist) = &mut sums[i];
        *interval_ns = interval_ns.saturating_add(spins.interval_ns);
        hist.iter_mut().zip(&spins.hist).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }
    let rate = |(ns, hist): &(u64, [u64; 64]), slot: usize| {
        let per_second = hist[slot] as f64 * 1e9 / (*ns).max(1) as f64;
        if per_second > 0.0 { per_second.log10().max(FLOOR) } else { FLOOR }
    };
    let used = |slot: &usize| sums.iter().any(|(_, hist)| hist[*slot] > 0);
    let first = (0..64).find(used)?;
    let last = (0..64).rev().find(used)?.max(SECOND_MODE as usize + 2);
    let slots = || first..=last;
    let top = slots().flat_map(|slot| sums.iter().map(move |s| rate(s, slot))).fold(0.0, f64::max);
    let drawn = plot(&format!("{}: waits for spinlocks", case.name), 260, |area| {
        let axes = Axes {
            x: first as f64..last as f64 + 1.0,
            y: FLOOR..top + 0.3,
            x_title: "length of a wait (buckets of a factor of 2)",
            y_title: "waits per second",
            left: 74,
            x_label: &|x| duration(x.exp2()),
            y_label: &|y| super::format::figure(10f64.powf(*y)),
            rows: false,
        };
        let mut chart = chart(area, axes)?;
        let mark = [(SECOND_MODE, FLOOR), (SECOND_MODE, top + 0.3)];
        chart.draw_series(std::iter::once(PathElement::new(mark, INK.stroke_width(1))))?;
        let (x, y) = chart.backend_coord(&(SECOND_MODE, top + 0.3));
        area.draw(&Text::new("second mode: somebody did not run", (x + 6, y + 4), text(14)))?;
        for (i, sum) in sums.iter().enumerate().filter(|(_, (ns, _))| *ns > 0) {
            let steps = slots().flat_map(|slot| {
                let y = rate(sum, slot);
                [(slot as f64, y), (slot as f64 + 1.0, y)]
            });
            chart.draw_series(LineSeries::new(steps, series(i).stroke_width(2)))?;
        }
        Ok(())
    });
    Some(drawn)
}
