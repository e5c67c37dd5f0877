// SPDX-License-Identifier: GPL-2.0-or-later
//! Charts, each an SVG element of a page.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::figures::figure;
use super::html::escape;
use super::svg::{GRID, INK, themed};

/// What a plot is drawn on.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Axes with what is drawn between them.
pub(crate) type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// Whether it could be drawn.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

const WIDTH: u32 = 860;
const FONT: &str = "sans-serif";

/// Text of this size in the colour of the axes.
pub(crate) fn text(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Draws with `draw` on a canvas of `height`; a plot that cannot be drawn says so in its place.
pub(crate) fn plot(label: &str, height: u32, draw: impl FnOnce(&Area) -> Drawn) -> String {
    let mut out = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut out, (WIDTH, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present().map_err(Into::into))
    };
    match drawn {
        Ok(()) => themed(&out, label),
        Err(e) => format!("<p>{}: cannot be drawn: {e}</p>", escape(label)),
    }
}

/// The axes of a chart: ranges, titles, labels, and whether rows take the place of `y`.
pub(crate) struct Axes<'a> {
    pub(crate) x: Range<f64>,
    pub(crate) y: Range<f64>,
    pub(crate) x_title: &'a str,
    pub(crate) y_title: &'a str,
    pub(crate) left: u32,
    pub(crate) x_label: &'a dyn Fn(&f64) -> String,
    pub(crate) y_label: &'a dyn Fn(&f64) -> String,
    pub(crate) rows: bool,
}

/// The axes, drawn.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    axes: Axes,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>>
where
    'b: 'a,
{
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(36)
        .x_label_area_size(46)
        .y_label_area_size(axes.left)
        .build_cartesian_2d(axes.x, axes.y)?;
    let mut mesh = chart.configure_mesh();
    mesh.axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(16))
        .axis_desc_style(text(16))
        .x_desc(axes.x_title)
        .y_desc(axes.y_title)
        .x_label_formatter(axes.x_label)
        .y_label_formatter(axes.y_label)
        .x_labels(9)
        .y_labels(6);
    if axes.rows {
        mesh.disable_y_mesh().y_labels(0);
    }
    mesh.draw()?;
    Ok(chart)
}

/// A time, `12.3 µs`.
pub(crate) fn duration(ns: f64) -> String {
    match ns {
        v if v < 999.5 => format!("{v:.0} ns"),
        v if v < 999.5e3 => format!("{} µs", figure(v / 1e3)),
        v if v < 999.5e6 => format!("{} ms", figure(v / 1e6)),
        v => format!("{} s", figure(v / 1e9)),
    }
}
