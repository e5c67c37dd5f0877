// SPDX-License-Identifier: GPL-2.0-or-later
//! Shows a result to people: a table in the terminal, and a self-contained HTML page with plots.
//!
//! Both show the same rows ([`view`]). Neither computes a figure: everything is in the result.

pub mod format;
pub mod html;
mod plots;
mod source_plots;
mod sources;
mod sources_text;
mod svg;
pub mod terminal;
pub mod view;

#[cfg(test)]
mod tests;
