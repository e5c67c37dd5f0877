// SPDX-License-Identifier: GPL-2.0-or-later
//! `workloads/guest-files.txt`: files that workloads need in the guest besides themselves.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Manifest;
use crate::error::{Error, Result};
use crate::packages::Tree;

/// Files of packages in the guest image.
#[derive(Clone, Debug, Default)]
pub struct GuestFiles {
    files: Vec<(String, String)>,
    sources: Vec<SourceFiles>,
}

#[derive(Clone, Debug)]
struct SourceFiles {
    name: String,
    path: String,
    target: String,
}

impl GuestFiles {
    /// The list of the workloads that come with the lab.
    pub fn standard() -> Self {
        let text = include_str!("../../../../workloads/guest-files.txt");
        GuestFiles::parse(text).expect("a test parses it")
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut list = GuestFiles::default();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (package, path) =
                line.split_once(' ').ok_or_else(|| format!("`{line}` has no path"))?;
            let Some(name) = package.strip_prefix("src:") else {
                list.files.push((package.to_owned(), path.trim().to_owned()));
                continue;
            };
            let (path, target) =
                path.split_once("->").ok_or_else(|| format!("`{line}` has no `->`"))?;
            let [path, target] = [path, target].map(|s| s.trim().trim_matches('/').to_owned());
            list.sources.push(SourceFiles { name: name.to_owned(), path, target });
        }
        Ok(list)
    }

    /// Binary packages named.
    pub(super) fn packages(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.files.iter().map(|(package, _)| package.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Source packages named.
    pub(super) fn sources(&self) -> Vec<&str> {
        self.sources.iter().map(|s| s.name.as_str()).collect()
    }

    pub(super) fn add(
        &self,
        image: &mut Manifest,
        tree: &Tree,
        sources: &BTreeMap<String, PathBuf>,
    ) -> Result<()> {
        for (_, path) in &self.files {
            let found = tree.get(path)?;
            // A link may be absolute, which is right in the image and wrong here: add its target.
            if path.ends_with('/') {
                image.cached_tree(path.trim_end_matches('/'), &found)?;
            } else {
                let mut real = found;
                while let Ok(target) = real.read_link() {
                    real = match target.strip_prefix("/") {
                        Ok(absolute) => tree.get(&absolute.to_string_lossy())?,
                        Err(_) => real.with_file_name("").join(target),
                    };
                }
                image.cached(path, &real)?;
            }
        }
        for source in &self.sources {
            let root = sources.get(&source.name).ok_or_else(|| Error::Image {
                image: "guest".into(),
                why: format!("the source of {} was not fetched", source.name),
            })?;
            image.cached_tree(&source.target, &root.join(&source.path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_list_that_comes_with_the_workloads() {
        let list = GuestFiles::standard();
        assert!(list.packages().contains(&"tcc"), "{:?}", list.packages());
        assert_eq!(list.sources(), ["lua5.4"]);
        assert_eq!(list.sources[0].path, "src");
        assert_eq!(list.sources[0].target, "usr/src/lua");
    }

    #[test]
    fn refuses_a_line_without_a_path() {
        assert!(GuestFiles::parse("busybox-static\n").unwrap_err().contains("busybox-static"));
        assert!(GuestFiles::parse("src:lua src/\n").unwrap_err().contains("->"));
    }
}
