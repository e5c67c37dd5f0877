// SPDX-License-Identifier: GPL-2.0-or-later
//! Text for a terminal.

use std::fmt::{self, Write};

/// Widest line.
const COLUMNS: usize = 99;

/// Writes `text` after `head`, broken between words; further lines are indented as far as `head`.
pub(crate) fn write_wrapped(out: &mut String, head: &str, text: &str) -> fmt::Result {
    let indent = " ".repeat(head.chars().count());
    // Reasons and last words come from consoles: none of it may change the terminal.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let options = textwrap::Options::new(COLUMNS)
        .initial_indent(head)
        .subsequent_indent(&indent)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    writeln!(out, "{}", textwrap::fill(&text, options).trim_end())
}
