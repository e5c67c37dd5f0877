// SPDX-License-Identifier: GPL-2.0-or-later
//! Colours of plots; fits plotters' SVG to a page that may be light or dark.
//!
//! Plots are drawn with placeholder colours; [`themed`] puts the page's CSS variables in their
//! place.

use plotters::style::RGBColor;

/// Text and axes.
pub(crate) const INK: RGBColor = RGBColor(1, 1, 1);
/// Grid lines and bands.
pub(crate) const GRID: RGBColor = RGBColor(2, 2, 2);
/// Number of distinct colours for series.
pub(crate) const NR_SERIES: usize = 6;

/// Colour of the `i`th contender or class.
pub(crate) fn series(i: usize) -> RGBColor {
    RGBColor(3, 0, (i % NR_SERIES) as u8)
}

/// Turns plotters' output into an element of the page: colours from its style sheet, its font, and
/// the full width.
pub(crate) fn themed(svg: &str, label: &str) -> String {
    let mut out = svg.replace("#010101", "currentColor").replace("#020202", "var(--grid)");
    for i in 0..NR_SERIES {
        out = out.replace(&format!("#0300{i:02}"), &format!("var(--s{i})"));
    }
    let label = super::html::escape(label);
    out.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" class=\"plot\" "), 1)
}
