// SPDX-License-Identifier: GPL-2.0-or-later
//! What commands print.

use std::io::{self, Write};

use crate::error::ObserverError;

/// Writes and flushes a piece of output. False if whoever read it has seen enough and left, which
/// is no failure: there is nobody left to write for.
pub(crate) fn show(out: &mut impl Write, text: &str) -> Result<bool, ObserverError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(ObserverError::Io { action: "write the report", source }),
    }
}

/// So many of something.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Says that so many of something are missing.
pub(crate) fn missing(n: u64, what: &str) -> String {
    format!("LOST: {} {} missing above.\n", count(n, what), if n == 1 { "is" } else { "are" })
}

/// A sentence on as many lines of a terminal as it takes, all but the first indented.
pub(crate) fn fill(text: &str) -> String {
    let options = textwrap::Options::new(79).subsequent_indent("    ");
    textwrap::fill(text, options) + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn one_is_missing_and_several_are() {
        assert_eq!(missing(1, "wait"), "LOST: 1 wait is missing above.\n");
        assert_eq!(missing(3, "event"), "LOST: 3 events are missing above.\n");
    }

    #[test]
    fn a_reader_that_left_is_no_failure_and_a_full_disk_is() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(show(&mut writer, "Watching.\n").unwrap());
        drop(reader);
        assert!(!show(&mut writer, "Watching.\n").unwrap());
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(matches!(show(&mut full, "Watching.\n"), Err(ObserverError::Io { .. })));
    }
}
