// SPDX-License-Identifier: GPL-2.0-or-later
//! Text for people, and text that is not trusted: from processes, guests and files.

use std::env;

/// The widest line: what fits a terminal of 80 columns.
const WIDEST: usize = 79;
/// Fewer columns are not worth a thought.
const NARROWEST: usize = 30;

/// Columns of lines for people: those of the terminal at standard output, or else of the variable
/// COLUMNS, and 79 at most.
pub fn columns() -> usize {
    let given = || env::var("COLUMNS").ok()?.parse().ok();
    terminal_columns().or_else(given).unwrap_or(WIDEST).clamp(NARROWEST, WIDEST)
}

fn terminal_columns() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a `winsize`, which is valid for the call.
    let known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    Some(usize::from(size.ws_col)).filter(|columns| known == 0 && *columns > 0)
}

/// A paragraph after a head, of lines of [`columns`], all but the first of them indented. Words
/// stay whole, so that paths and commands can be copied.
pub fn fill(head: &str, indent: &str, text: &str) -> String {
    let options = textwrap::Options::new(columns())
        .initial_indent(head)
        .subsequent_indent(indent)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::fill(text, options)
}

/// Makes text safe: nothing in it steers a terminal, reorders a line or begins a new one.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Does a terminal interpret this character instead of showing it? These are controls, line
/// separators and Unicode's format characters (Cf), some of which reverse the direction of text.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
