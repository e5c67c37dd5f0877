// SPDX-License-Identifier: GPL-2.0-or-later
//! The plots of a replication's section.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Compared, HOLDFAST, STOCK};
use crate::experiment::{Case, Experiment};
use crate::markup::chart::{Axes, Chart, Drawn, chart, duration, plot, text};
use crate::markup::figures::figure;
use crate::markup::svg::{INK, series};
use crate::result::RunResult;
use crate::stats::{self, Estimate};

/// After over before, as printed and as measured, and the same cases under holdfast.
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
    let scale = Scale::of(ends());
    let (first, last) = (scale.at(scale.low), scale.at(scale.high));
    let margin = 0.05 * (last - first).max(0.1);
    // Figures beside the dots take a line of text each.
    let (height, apart) = if scale.is_log { (80, 0.19) } else { (40, 0.17) };
    let nr_rows = rows.len() as f64;
    let drawn = plot(title, 70 + height * rows.len() as u32, |area| {
        let left = if scale.is_log { first - margin } else { (first - margin).max(0.0) };
        let axes = Axes {
            x: left..last + margin,
            y: 0.0..nr_rows,
            x_title: if scale.is_log { "ratio, logarithmic" } else { "ratio" },
            y_title: "",
            left: 260,
            x_label: &|x| if scale.is_log { figure(x.exp2()) } else { format!("{x:.2}") },
            y_label: &|_| String::new(),
            rows: true,
        };
        let mut chart = chart(area, axes)?;
        let one = [(scale.at(1.0), 0.0), (scale.at(1.0), nr_rows)];
        chart.draw_series(std::iter::once(PathElement::new(one, INK.stroke_width(1))))?;
        // Beside the line, or on its other side where the area ends.
        let tell = |chart: &Chart, value: f64, ends: [f64; 2], y: f64, color: RGBColor| -> Drawn {
            if !scale.is_log {
                return Ok(());
            }
            let [from, to] = ends.map(|x| chart.backend_coord(&(x, y)));
            let has_room = to.0 + 8 + LABEL_WIDTH < area.dim_in_pixel().0 as i32;
            let (x, side) =
                if has_room { (to.0 + 8, HPos::Left) } else { (from.0 - 8, HPos::Right) };
            let style = text(13).color(&color).pos(Pos::new(side, VPos::Center));
            area.draw(&Text::new(scale.label(value), (x, to.1), style))?;
            Ok(())
        };
        for (i, row) in rows.iter().enumerate() {
            let y = nr_rows - i as f64 - 0.45;
            let mut interval = |e: &Estimate, y: f64, color: RGBColor| {
                let x = scale.at(e.ratio);
                let from = scale.at(e.low).min(x);
                // An interval without an end goes on to the end of the axis.
                let to = e.high.map_or(last, |high| scale.at(high)).max(x);
                let line = PathElement::new([(from, y), (to, y)], color.stroke_width(3));
                chart.draw_series(std::iter::once(line))?;
                let is_clear = stats::is_significant(e.low, e.high, e.p);
                let dot = if is_clear { color.filled() } else { color.stroke_width(2) };
                chart.draw_series(std::iter::once(Circle::new((x, y), 5, dot)))?;
                tell(&chart, e.ratio, [from, to], y, color)
            };
            if let Some(e) = &row.ours {
                interval(e, y, color(STOCK))?;
            }
            for (k, (_, e)) in row.gains().into_iter().enumerate() {
                interval(e, y - apart * (k + 1) as f64, color(HOLDFAST))?;
            }
            if let Some(ratio) = row.row.published_ratio() {
                let (x, y) = (scale.at(ratio), y + 0.2);
                let cross = Cross::new((x, y), 6, INK.stroke_width(2));
                chart.draw_series(std::iter::once(cross))?;
                tell(&chart, ratio, [x, x], y, INK)?;
            }
            let (_, pixel_y) = chart.backend_coord(&(first, y));
            let style = text(16).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(row.row.name.clone(), (262, pixel_y), style))?;
        }
        Ok(())
    });
    Some(drawn)
}

/// Pixels a figure beside a dot takes.
const LABEL_WIDTH: i32 = 56;

/// Position of ratios on the axis: one of a hundred must neither hide all others nor be hidden.
struct Scale {
    low: f64,
    high: f64,
    /// Whether the axis has powers of two.
    is_log: bool,
}

impl Scale {
    /// Ratios up to this, and down to its inverse, are drawn to scale.
    const LINEAR: f64 = 4.0;
    /// The farthest end of an axis of powers, also for wider intervals.
    const FARTHEST: f64 = 1e5;

    fn of(ends: impl Iterator<Item = f64>) -> Scale {
        let ends: Vec<f64> = ends.filter(|end| end.is_finite()).collect();
        let is_log = ends.iter().any(|end| *end > Self::LINEAR || *end < 1.0 / Self::LINEAR);
        let drawn = |end: &&f64| !is_log || (1.0 / Self::FARTHEST..=Self::FARTHEST).contains(*end);
        let drawn: Vec<f64> = ends.iter().filter(drawn).copied().collect();
        let low = drawn.iter().copied().fold(1.0, f64::min);
        let high = drawn.iter().copied().fold(1.0, f64::max);
        Scale { low, high, is_log }
    }

    /// Position of `ratio` on the axis; at its end if it is farther away.
    fn at(&self, ratio: f64) -> f64 {
        let ratio = ratio.clamp(self.low, self.high);
        if self.is_log { ratio.log2() } else { ratio }
    }

    /// The figure, with an arrow if it is beyond the end.
    fn label(&self, ratio: f64) -> String {
        match ratio {
            r if r > self.high => format!("{} \u{2192}", figure(r)),
            r if r < self.low => format!("\u{2190} {}", figure(r)),
            r => figure(r),
        }
    }
}

/// Smallest rate of waits that is drawn, log10 of one per second.
const FLOOR: f64 = -1.0;
/// From here on a wait is in the second mode: 2^20 ns.
const SECOND_MODE: f64 = 20.0;

/// The guest's waits for spinlocks by their length, a line for each contender; both axes
/// logarithmic.
pub(super) fn spin_waits(result: &RunResult, e: &Experiment, case: &Case) -> Option<String> {
    let mut sums = vec![(0u64, [0u64; 64]); e.contenders.len()];
    for window in &result.windows {
        let is_mine = window.experiment == e.name && window.case == case.name && window.is_valid();
        let contender = e.contenders.iter().position(|c| c.name == window.contender);
        let (true, Some(i), Some(spins)) = (is_mine, contender, &window.spins) else { continue };
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
    let last = (0..64).rev().find(used)?;
    // The second mode is named only if it is there.
    let has_second_mode = last >= SECOND_MODE as usize;
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
            y_label: &|y| figure(10f64.powf(*y)),
            rows: false,
        };
        let mut chart = chart(area, axes)?;
        if has_second_mode {
            let mark = [(SECOND_MODE, FLOOR), (SECOND_MODE, top + 0.3)];
            chart.draw_series(std::iter::once(PathElement::new(mark, INK.stroke_width(1))))?;
            // The text is on the side that has room for it.
            let (x, y) = chart.backend_coord(&(SECOND_MODE, top + 0.3));
            let is_left = SECOND_MODE - first as f64 > last as f64 + 1.0 - SECOND_MODE;
            let (x, side) = if is_left { (x - 6, HPos::Right) } else { (x + 6, HPos::Left) };
            let shown = if is_left {
                "second mode, a holder did not run: \u{2192}"
            } else {
                "second mode: a holder did not run"
            };
            let style = text(14).pos(Pos::new(side, VPos::Top));
            area.draw(&Text::new(shown, (x, y + 4), style))?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replications::compare;
    use crate::testdata;
    use crate::testdata::effect;

    fn drawn(ratio: f64, low: f64) -> String {
        let result = testdata::result();
        let effect = effect();
        let mut rows = compare(&result, "three-ways", &effect);
        let high = Some(2.0 * ratio);
        rows[0].ours = Some(Estimate { ratio, low, high, ..rows[0].ours.unwrap() });
        changes(&result.experiments[0], "t", &rows).unwrap()
    }

    #[test]
    fn a_ratio_of_eighty_is_drawn_to_scale_with_its_figure() {
        let page = drawn(80.2, 18.0);
        assert!(page.contains("logarithmic") && page.contains("80.2"), "{page}");
        // The printed figure is there, too.
        assert!(page.contains("0.750"), "{page}");
        let page = drawn(1.1, 0.9);
        assert!(!page.contains("logarithmic"), "{page}");
    }

    #[test]
    fn a_scale_is_logarithmic_only_where_a_ratio_needs_it() {
        assert!(!Scale::of([0.25, 4.0].into_iter()).is_log);
        let scale = Scale::of([0.9, 45.0, 80.0].into_iter());
        assert!(scale.is_log && scale.at(45.0) < scale.at(80.0));
        let scale = Scale::of([0.0, 1.1, 1e9, f64::INFINITY].into_iter());
        assert!(scale.is_log && scale.at(0.0) == scale.at(scale.low));
        assert_eq!((scale.low, scale.high), (1.0, 1.1));
        assert!(scale.label(0.0).starts_with('\u{2190}'));
        assert!(scale.label(1e9).ends_with('\u{2192}'));
    }
}
