// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a recording goes, and the names that its files get.

use std::fs;
use std::path::{Path, PathBuf};

use crate::host::{nodename, realtime_ns};
use crate::report::when;

/// Where a recording goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Into this file, which it replaces.
    File(PathBuf),
    /// Into a new file in the directory of this process.
    NewFile,
}

/// The name of a finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// This one. A file of this name is replaced.
    Given(PathBuf),
    /// This one, or one with a number at its end: no file is replaced.
    New(PathBuf),
}

impl Name {
    /// The name without a number.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given(path) | Self::New(path) => path,
        }
    }
}

impl Target {
    /// The name of its file, if it begins now.
    pub(super) fn name(&self) -> Name {
        match self {
            Self::File(path) => Name::Given(path.clone()),
            Self::NewFile => {
                let begin = file_stem(&nodename(), realtime_ns() as i64);
                let name = |end: &str| PathBuf::from(format!("holdfast-{begin}{end}.parquet"));
                Name::New(free(name))
            }
        }
    }
}

/// The first name with nothing, `-2`, `-3`... in it that no file has.
pub(super) fn free(name: impl Fn(&str) -> PathBuf) -> PathBuf {
    let numbered = |number: u32| match number {
        1 => name(""),
        _ => name(&format!("-{number}")),
    };
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    (1..).map(numbered).find(is_free).expect("there are more names than files")
}

/// Beginning of the name of a file of this host that begins then: `web1-20261129T031608Z`.
pub(super) fn file_stem(host: &str, begin_ns: i64) -> String {
    let begin = when(begin_ns.max(0) as u64);
    let begin: String = begin.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{}-{begin}", escaped(host))
}

/// A host's name in the name of a file or a partition, as Hive escapes it.
pub(super) fn escaped(value: &str) -> String {
    let mut name = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            // Names that begin with a dot are hidden.
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    // Hive's name for no value.
    if name.is_empty() { "__HIVE_DEFAULT_PARTITION__".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_has_its_host_and_its_begin() {
        let stem = |host| file_stem(host, 1_795_922_168_999_999_999);
        assert_eq!(stem("web1.example.org"), "web1.example.org-20261129T031608Z");
        assert_eq!(stem("../a b"), "%2E.%2Fa%20b-20261129T031608Z");
        assert_eq!(stem(""), "__HIVE_DEFAULT_PARTITION__-20261129T031608Z");
        let Name::New(path) = Target::NewFile.name() else { panic!("it replaces") };
        let name = path.to_str().unwrap();
        assert!(name.starts_with("holdfast-") && name.ends_with("Z.parquet"), "{name}");
    }

    #[test]
    fn a_name_that_a_file_has_is_not_free() {
        let dir = tempfile::tempdir().unwrap();
        let name = |end: &str| dir.path().join(format!("a{end}"));
        for expected in ["a", "a-2", "a-3"] {
            let path = free(name);
            assert_eq!(path.file_name().unwrap(), expected);
            fs::write(path, "").unwrap();
        }
    }
}
