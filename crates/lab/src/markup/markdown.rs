// SPDX-License-Identifier: GPL-2.0-or-later
//! Elements of Markdown.

use std::fmt::{self, Write};

use super::figures::ratio;
use crate::stats::Estimate;

/// Text for a paragraph; code between backticks stays code.
pub(crate) fn prose(text: &str) -> String {
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let nr_ticks = text.matches('`').count();
    let mut out = String::with_capacity(text.len());
    let mut nr_seen = 0;
    for c in text.chars() {
        if c == '`' {
            nr_seen += 1;
        }
        // A backtick without a partner is text.
        let is_code = nr_seen % 2 == 1 && nr_seen < nr_ticks;
        match c {
            '`' if nr_ticks % 2 == 1 && nr_seen == nr_ticks => out.push_str("\\`"),
            '\\' | '<' | '*' | '[' | '~' if !is_code => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// Text for a cell: there a bar ends it even within code.
pub(crate) fn cell(text: &str) -> String {
    prose(text).replace('|', "\\|")
}

/// Any text as code.
pub(crate) fn code(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// A row of a table.
pub(crate) fn row<const N: usize>(out: &mut String, cells: [String; N]) -> fmt::Result {
    writeln!(out, "| {} |", cells.join(" | "))
}

/// The head of a table with `nr_texts` columns of words and then figures.
pub(crate) fn head<const N: usize>(
    out: &mut String,
    nr_texts: usize,
    cells: [&str; N],
) -> fmt::Result {
    row(out, cells.map(cell))?;
    let side = |i: usize| if i < nr_texts { "---" } else { "---:" };
    writeln!(out, "|{}|", (0..N).map(side).collect::<Vec<_>>().join("|"))
}

/// What was not measured.
pub(crate) fn dash() -> String {
    "-".into()
}

fn starred(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "\\<")
}

/// A list.
pub(crate) fn write_list(out: &mut String, lines: &[impl AsRef<str>]) -> fmt::Result {
    for line in lines {
        writeln!(out, "- {}", prose(line.as_ref()))?;
    }
    writeln!(out)
}

/// A ratio with its interval.
pub(crate) fn interval(e: &Estimate) -> String {
    starred(&ratio(e))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Cells of every line of a table; an escaped bar ends none.
    fn widths(table: &str) -> Vec<usize> {
        table.lines().map(|l| l.replace("\\|", "").matches('|').count()).collect()
    }

    fn tables(page: &str) -> Vec<&str> {
        page.split("\n\n").filter(|block| block.starts_with('|')).collect()
    }

    pub(crate) fn assert_tables_are_tables(page: &str) {
        let mut nr_rows = 0;
        for table in tables(page) {
            let widths = widths(table);
            assert!(widths.len() > 2 && widths.iter().all(|w| *w == widths[0]), "{table}");
            let ruler = table.lines().nth(1).unwrap();
            assert!(ruler.chars().all(|c| "|-:".contains(c)), "{ruler}");
            assert!(table.lines().all(|l| l.ends_with('|')), "{table}");
            nr_rows += widths.len();
        }
        // No bar is outside of a table, where it would be shown as one.
        assert_eq!(page.lines().filter(|l| l.starts_with('|')).count(), nr_rows);
    }

    #[test]
    fn code_and_bars_are_kept_apart() {
        assert_eq!(cell("a | b"), "a \\| b");
        assert_eq!(cell("`dd | cat`"), "`dd \\| cat`");
        assert_eq!(prose("`a < b` < *c* and `d"), "`a < b` \\< \\*c\\* and \\`d");
        assert_eq!(prose("a\nb\u{1b}[2J"), "a b \\[2J");
        assert_eq!(code("a`b"), "`` a`b ``");
    }
}
