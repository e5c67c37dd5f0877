// SPDX-License-Identifier: GPL-2.0-or-later
//! Elements of HTML.

use std::fmt::{self, Write};

/// Text as it may stand in an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escaped text with code between backticks.
pub(crate) fn prose(text: &str) -> String {
    let mut out = String::new();
    let parts: Vec<&str> = text.split('`').collect();
    for (i, part) in parts.iter().enumerate() {
        // A backtick without a partner stays one.
        let (open, close) = match i % 2 {
            0 => ("", ""),
            _ if i + 1 < parts.len() => ("<code>", "</code>"),
            _ => ("`", ""),
        };
        out.push_str(&format!("{open}{}{close}", escape(part)));
    }
    out
}

pub(crate) fn write_figure(out: &mut String, drawn: &str, caption: &str) -> fmt::Result {
    writeln!(out, "<figure>\n{drawn}\n<figcaption>{}</figcaption>\n</figure>", escape(caption))
}
