// SPDX-License-Identifier: GPL-2.0-or-later
//! The archive's lists (`Packages`, `Sources`): deb822 paragraphs.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Suite;
use crate::error::{Error, Result};

/// A binary package in the archive. This is also what a result's provenance records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Name.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// Release it was resolved in.
    pub suite: Suite,
    /// SHA-256 of the `.deb`, in hex.
    pub sha256: String,
    /// Size of the `.deb`, in bytes.
    pub bytes: u64,
    /// Path in the archive.
    #[serde(skip)]
    pub filename: String,
}

/// A source package's upstream archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Name.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// SHA-256 of the upstream archive, in hex.
    pub sha256: String,
    /// Size of the upstream archive, in bytes.
    pub bytes: u64,
    /// Path in the archive.
    #[serde(skip)]
    pub filename: String,
}

/// One list, and the place of each package in it.
pub(super) struct Index {
    text: String,
    paragraphs: HashMap<String, Range<usize>>,
    /// Virtual name -> a package that provides it; the first by name.
    provides: BTreeMap<String, String>,
}

impl Index {
    pub(super) fn new(text: String) -> Self {
        let mut paragraphs = HashMap::new();
        let mut provides = BTreeMap::<String, String>::new();
        let mut start = 0;
        for paragraph in text.split("\n\n") {
            let range = start..start + paragraph.len();
            start = range.end + 2;
            let Some(name) = field(paragraph, "Package") else { continue };
            for virtual_name in field(paragraph, "Provides").unwrap_or("").split(',') {
                let word = virtual_name.split_ascii_whitespace().next().unwrap_or("");
                let entry = provides.entry(word.to_owned()).or_insert_with(|| name.to_owned());
                if name < entry.as_str() {
                    name.clone_into(entry);
                }
            }
            // A list may have several versions of a package. The last is the newest in practice,
            // and Debian's lists have one.
            paragraphs.insert(name.to_owned(), range);
        }
        Index { text, paragraphs, provides }
    }

    fn paragraph(&self, name: &str) -> Option<&str> {
        let real = self.paragraphs.get(name);
        let range = real.or_else(|| self.paragraphs.get(self.provides.get(name)?))?;
        Some(&self.text[range.clone()])
    }

    pub(super) fn closure(
        &self,
        suite: Suite,
        names: &[&str],
        follow: impl Fn(&str) -> bool,
    ) -> Result<Vec<Package>> {
        let mut found = BTreeMap::new();
        let mut todo: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        while let Some(name) = todo.pop() {
            let paragraph = self.paragraph(&name).ok_or_else(|| missing(suite, &name))?;
            let package = package(paragraph, suite).ok_or_else(|| missing(suite, &name))?;
            if found.contains_key(&package.name) {
                continue;
            }
            for list in ["Depends", "Pre-Depends"] {
                let depends = field(paragraph, list).unwrap_or("");
                for clause in depends.split(',') {
                    // Of alternatives, the first that exists, as apt does.
                    let mut names = clause.split('|').filter_map(dependency);
                    if let Some(name) = names.find(|n| follow(n) && self.paragraph(n).is_some()) {
                        todo.push(name.to_owned());
                    }
                }
            }
            found.insert(package.name.clone(), package);
        }
        Ok(found.into_values().collect())
    }

    pub(super) fn source(&self, suite: Suite, name: &str) -> Result<Source> {
        let paragraph = self.paragraph(name).ok_or_else(|| missing(suite, name))?;
        let bad = || Error::Packages(format!("source package {name} of {suite} has no .orig.tar"));
        let sums = field(paragraph, "Checksums-Sha256").ok_or_else(bad)?;
        let is_orig = |l: &&str| l.contains(".orig.tar") && !l.ends_with(".asc");
        let line = sums.lines().find(is_orig).ok_or_else(bad)?;
        let [sha256, bytes, file] =
            line.split_ascii_whitespace().collect::<Vec<_>>().try_into().map_err(|_| bad())?;
        let directory = field(paragraph, "Directory").ok_or_else(bad)?;
        Ok(Source {
            name: name.to_owned(),
            version: field(paragraph, "Version").ok_or_else(bad)?.to_owned(),
            sha256: sha256.to_owned(),
            bytes: bytes.parse().map_err(|_| bad())?,
            filename: format!("{directory}/{file}"),
        })
    }
}

fn missing(suite: Suite, name: &str) -> Error {
    Error::Packages(format!("{suite} has no package {name}"))
}

fn package(paragraph: &str, suite: Suite) -> Option<Package> {
    let get = |name| field(paragraph, name).map(str::to_owned);
    Some(Package {
        name: get("Package")?,
        version: get("Version")?,
        suite,
        sha256: get("SHA256")?,
        bytes: get("Size")?.parse().ok()?,
        filename: get("Filename")?,
    })
}

/// A field's value, its continuation lines included.
fn field<'a>(paragraph: &'a str, name: &str) -> Option<&'a str> {
    let mut at = 0;
    loop {
        let rest = &paragraph[at..];
        let line = rest.split('\n').next()?;
        if let Some(value) = line.strip_prefix(name).and_then(|l| l.strip_prefix(':')) {
            let from = at + line.len() - value.len();
            let mut end = at + line.len();
            while paragraph[end..].starts_with("\n ") {
                end += 1 + paragraph[end + 1..].split('\n').next().unwrap_or("").len();
            }
            return Some(paragraph[from..end].trim());
        }
        at += line.len() + 1;
        if at > paragraph.len() {
            return None;
        }
    }
}

/// The name in `name:any (>= 1) [arch]`.
fn dependency(alternative: &str) -> Option<&str> {
    let word = alternative.split_ascii_whitespace().next()?;
    Some(word.split(['(', ':']).next().unwrap_or(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
Package: qemu
Version: 1:10.0+ds-1
Depends: libc6 (>= 2.38), libfoo0t64 | libfoo0,
 libvirtual1, passwd
Filename: pool/q/qemu.deb
Size: 100
SHA256: aa

Package: libc6
Version: 2.41
Filename: pool/l/libc6.deb
Size: 20
SHA256: bb

Package: libfoo0
Version: 3
Pre-Depends: libc6:any
Filename: pool/l/libfoo0.deb
Size: 3
SHA256: cc

Package: libreal1
Version: 4
Provides: other, libvirtual1 (= 4)
Filename: pool/l/libreal1.deb
Size: 4
SHA256: dd

Package: passwd
Version: 5
Filename: pool/p/passwd.deb
Size: 5
SHA256: ee
";

    #[test]
    fn follows_accepted_dependencies_only() {
        let index = Index::new(LIST.to_owned());
        let found = index.closure(Suite::Trixie, &["qemu"], |n| n.starts_with("lib")).unwrap();
        let names: Vec<_> = found.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["libc6", "libfoo0", "libreal1", "qemu"]);
        assert_eq!(found[3].version, "1:10.0+ds-1");
        assert_eq!((found[0].bytes, found[0].sha256.as_str()), (20, "bb"));
    }

    #[test]
    fn says_which_package_is_missing_where() {
        let index = Index::new(LIST.to_owned());
        let error = index.closure(Suite::Forky, &["nosuch"], |_| true).unwrap_err();
        assert_eq!(error.to_string(), "forky has no package nosuch");
    }

    #[test]
    fn finds_the_upstream_archive_of_a_source() {
        let text = "\
Package: lua5.4
Version: 5.4.7-1
Checksums-Sha256:
 11 5 lua5.4_5.4.7-1.dsc
 22 6 lua5.4_5.4.7.orig.tar.gz
 33 7 lua5.4_5.4.7.orig.tar.gz.asc
Directory: pool/main/l/lua5.4
";
        let source = Index::new(text.to_owned()).source(Suite::Trixie, "lua5.4").unwrap();
        assert_eq!(source.filename, "pool/main/l/lua5.4/lua5.4_5.4.7.orig.tar.gz");
        assert_eq!((source.sha256.as_str(), source.bytes), ("22", 6));
    }
}
