// SPDX-License-Identifier: GPL-2.0-or-later
//! Text files of users.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads a file of at most `max_mib`. What is longer is no file of ours: /dev/zero has no end.
pub(crate) fn read_text(path: &Path, max_mib: u64) -> io::Result<String> {
    if path.metadata()?.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let mut bytes = Vec::new();
    let max = max_mib << 20;
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_and_one_that_is_not_text_are_errors() {
        let kind = |path: &str| read_text(Path::new(path), 1).unwrap_err().kind();
        assert_eq!(kind("/dev/zero"), ErrorKind::FileTooLarge);
        assert_eq!(kind("/"), ErrorKind::IsADirectory);
        assert_eq!(kind("/nonexistent"), ErrorKind::NotFound);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\xff").unwrap();
        assert_eq!(read_text(file.path(), 1).unwrap_err().to_string(), "it is not text");
        std::fs::write(file.path(), "text").unwrap();
        assert_eq!(read_text(file.path(), 1).unwrap(), "text");
    }
}
