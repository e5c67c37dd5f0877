// SPDX-License-Identifier: GPL-2.0-or-later
//! What pages are made of: figures in words, elements of HTML, Markdown and a terminal's text, and
//! charts. None of it knows an experiment.

pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod svg;
pub(crate) mod text;
