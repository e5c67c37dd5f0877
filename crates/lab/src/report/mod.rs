// SPDX-License-Identifier: GPL-2.0-or-later
//! Shows a result to people: a table in the terminal, a self-contained HTML page with plots, and
//! Markdown for `docs/results.md`.
//!
//! All begin with the answer ([`answer`]) and show the same rows ([`view`]); caveats come last.
//! None computes a figure: everything is in the result.

use std::path::Path;

use crate::result::{ResultError, write_whole};

pub mod answer;
pub mod html;
pub mod markdown;
mod plots;
pub mod terminal;
pub mod view;

/// Writes `page` to `path`; an older file stays until the page is whole.
fn write_page(page: &str, path: &Path) -> Result<(), ResultError> {
    // A device, or a link such as /dev/stdout, must not be replaced.
    let is_file = path.symlink_metadata().map_or(true, |found| found.is_file());
    let written =
        if is_file { write_whole(path, page.as_bytes()) } else { std::fs::write(path, page) };
    written.map_err(|why| ResultError::Write { path: path.into(), why })
}

#[cfg(test)]
mod tests;
