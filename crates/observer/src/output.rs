// SPDX-License-Identifier: GPL-2.0-or-later
//! Output of commands.

use std::io::{self, Write};

use crate::error::ObserverError;

/// Writes and flushes a piece of output.
pub(crate) fn show(out: &mut impl Write, text: &str) -> Result<(), ObserverError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ObserverError::ReaderLeft),
        Err(source) => Err(ObserverError::Io { action: "write the report", source }),
    }
}

/// A number and its noun.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A line that reports missing events.
pub(crate) fn missing(n: u64, what: &str) -> String {
    format!("LOST: {} {} missing above.\n", count(n, what), if n == 1 { "is" } else { "are" })
}

/// A sentence, wrapped for a terminal; all lines but the first are indented.
pub(crate) fn fill(text: &str) -> String {
    holdfast_checks::fill("", "    ", text) + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn one_event_takes_the_singular_and_several_the_plural() {
        assert_eq!(missing(1, "wait"), "LOST: 1 wait is missing above.\n");
        assert_eq!(missing(3, "event"), "LOST: 3 events are missing above.\n");
    }

    #[test]
    fn a_reader_that_has_left_differs_from_a_full_disk() {
        let (reader, mut writer) = io::pipe().unwrap();
        show(&mut writer, "Watching.\n").unwrap();
        drop(reader);
        let left = show(&mut writer, "Watching.\n");
        assert!(matches!(left, Err(ObserverError::ReaderLeft)), "{left:?}");
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(matches!(show(&mut full, "Watching.\n"), Err(ObserverError::Io { .. })));
    }
}
