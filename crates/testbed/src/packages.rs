// SPDX-License-Identifier: GPL-2.0-or-later
//! Debian packages without installing any: resolved at run time from the mirror that this machine's
//! apt uses, checked by apt against this machine's keyring, unpacked into a cache by content.
//!
//! ```text
//! ~/.cache/holdfast/
//!   apt/                 private apt root: lists and configuration apart from the machine's
//!   archives/            downloads under way
//!   unpacked/SHA256/     one package each
//! ```

mod apt;
mod fetch;
mod index;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::index::{Package, Source};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// A release of Debian, by code name: names such as `testing` move on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suite {
    /// Debian 11: Linux 5.10.
    Bullseye,
    /// Debian 12: Linux 6.1.
    Bookworm,
    /// Debian 13: Linux 6.12, QEMU 10.
    Trixie,
    /// Newer packages for Debian 13: the newest Linux there is.
    TrixieBackports,
    /// Debian 14: Linux 7.
    Forky,
}

impl Suite {
    /// Name in the archive.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Bullseye => "bullseye",
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
            Suite::TrixieBackports => "trixie-backports",
            Suite::Forky => "forky",
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel of Debian, by release line; the exact version is the archive's current one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Kernel {
    /// Debian 11's: counts no preemption, and its BTF has no per-CPU variables. Not for a host: it
    /// is older than all that Holdfast runs on.
    #[serde(rename = "5.10")]
    Linux5_10,
    /// Debian 12's: `__preempt_count` and `current_task` as per-CPU variables of their own.
    #[serde(rename = "6.1")]
    Linux6_1,
    /// Debian 13's: `pcpu_hot`; no sched_ext in Debian's build.
    #[serde(rename = "6.12")]
    Linux6_12,
    /// Debian testing's: sched_ext. The lab's host runs this one by default.
    #[default]
    #[serde(rename = "7")]
    Linux7,
    /// Debian 13's newest backport, which is often ahead of testing: Debian 13's kernel with
    /// sched_ext.
    #[serde(rename = "backports")]
    Backports,
}

impl Kernel {
    /// All of them, oldest first.
    pub const ALL: [Kernel; 5] =
        [Kernel::Linux5_10, Kernel::Linux6_1, Kernel::Linux6_12, Kernel::Linux7, Kernel::Backports];

    /// Name in experiments.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Linux5_10 => "5.10",
            Kernel::Linux6_1 => "6.1",
            Kernel::Linux6_12 => "6.12",
            Kernel::Linux7 => "7",
            Kernel::Backports => "backports",
        }
    }

    /// Release it comes from.
    pub fn suite(self) -> Suite {
        match self {
            Kernel::Linux5_10 => Suite::Bullseye,
            Kernel::Linux6_1 => Suite::Bookworm,
            Kernel::Linux6_12 => Suite::Trixie,
            Kernel::Linux7 => Suite::Forky,
            Kernel::Backports => Suite::TrixieBackports,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Kernel::ALL.into_iter().find(|k| k.name() == name).ok_or_else(|| {
            let known = Kernel::ALL.map(Kernel::name).join(", ");
            Error::Unsupported(format!("there is no kernel `{name}`; there are {known}"))
        })
    }
}

/// A package in the cache, unpacked.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Its name and version.
    pub package: Package,
    /// Directory that holds its files as if it were `/`.
    pub root: PathBuf,
}

/// Unpacked packages seen as one file system.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// In order of search.
    pub packages: Vec<Unpacked>,
}

impl Tree {
    /// Finds a file by its path below `/`, `/usr/lib` and `/lib` being the same.
    pub fn find(&self, path: &str) -> Option<PathBuf> {
        let path = path.trim_start_matches('/');
        let merged = path.strip_prefix("usr/").unwrap_or(path);
        let candidates = [path.to_owned(), merged.to_owned(), format!("usr/{merged}")];
        let mut all = self.packages.iter().flat_map(|p| candidates.iter().map(|c| p.root.join(c)));
        all.find(|p| p.symlink_metadata().is_ok())
    }

    /// As [`Tree::find`], but a missing file is an error.
    pub fn get(&self, path: &str) -> Result<PathBuf> {
        let none = || {
            let names: Vec<_> = self.packages.iter().map(|p| p.package.name.as_str()).collect();
            Error::Packages(format!("none of the packages {} has {path}", names.join(", ")))
        };
        self.find(path).ok_or_else(none)
    }
}

/// The directory of the package that a file of the cache belongs to. If the directory is removed,
/// the package is fetched again; if only a file is, it is not.
pub(crate) fn package_of(path: &Path) -> &Path {
    let is_package = |dir: &&Path| dir.parent().is_some_and(|parent| parent.ends_with("unpacked"));
    path.ancestors().find(is_package).unwrap_or(path)
}

/// The cache, and the archive's lists.
pub struct Packages {
    apt: apt::Root,
    cache: PathBuf,
    indices: BTreeMap<(Suite, apt::Kind), index::Index>,
}

impl Packages {
    /// Opens the cache.
    pub fn open(cache: &Path) -> Result<Self> {
        let apt = apt::Root::open(&cache.join("apt"))?;
        Ok(Packages { apt, cache: cache.to_owned(), indices: BTreeMap::new() })
    }

    /// The default cache: `$XDG_CACHE_HOME/holdfast`, or `.cache/holdfast` in the user's home.
    /// Programs in it are run, so other users must never be able to write there, as in a directory
    /// for temporary files. Without a home it is a directory that only root can write.
    pub fn default_cache() -> PathBuf {
        let set = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::home_dir().map(|home| home.join(".cache"));
        let base = set.filter(|dir| dir.is_absolute()).or_else(home);
        base.filter(|dir| dir.is_absolute()).unwrap_or("/var/cache".into()).join("holdfast")
    }

    /// Reads the lists of these releases, refreshing those older than a day in one go.
    pub fn prepare(
        &mut self,
        suites: &[Suite],
        sources: &[Suite],
        progress: &Progress,
    ) -> Result<()> {
        let binary = suites.iter().map(|&s| (s, apt::Kind::Binary));
        let source = sources.iter().map(|&s| (s, apt::Kind::Source));
        let wanted: Vec<_> =
            binary.chain(source).filter(|key| !self.indices.contains_key(key)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let lock = fetch::lock(&self.cache, progress)?;
        self.apt.refresh(&wanted, progress)?;
        drop(lock);
        for key in wanted {
            let text = self.apt.list(key)?;
            self.indices.insert(key, index::Index::new(text));
        }
        Ok(())
    }

    /// Forgets lists that the archive may have replaced; whether there were any.
    pub fn expire(&mut self) -> Result<bool> {
        const RECENT: Duration = Duration::from_secs(600);
        self.indices.clear();
        self.apt.expire(RECENT)
    }

    fn index(&self, suite: Suite, kind: apt::Kind) -> Result<&index::Index> {
        let unread = || Error::Packages(format!("the lists of {suite} have not been read"));
        self.indices.get(&(suite, kind)).ok_or_else(unread)
    }

    /// These packages and their dependencies, as far as `follow` accepts their names.
    pub fn resolve(
        &self,
        suite: Suite,
        names: &[&str],
        follow: impl Fn(&str) -> bool,
    ) -> Result<Vec<Package>> {
        self.index(suite, apt::Kind::Binary)?.closure(suite, names, follow)
    }

    /// A kernel: its image, modules and configuration.
    pub fn kernel(&self, kernel: Kernel) -> Result<Vec<Package>> {
        const META: &str = "linux-image-cloud-amd64";
        // The image is one package or, in newer releases, several, with the version in their names.
        let versioned =
            |name: &str| name.starts_with("linux-") && name.contains(|c: char| c.is_ascii_digit());
        let mut found = self.resolve(kernel.suite(), &[META], versioned)?;
        found.retain(|p| p.name != META);
        let version = |p: &Package| p.version.clone();
        let (major, minor) = match kernel {
            Kernel::Linux5_10 => (5, Some(10)),
            Kernel::Linux6_1 => (6, Some(1)),
            Kernel::Linux6_12 => (6, Some(12)),
            Kernel::Linux7 | Kernel::Backports => (7, None),
        };
        let right = found.first().is_some_and(|p| {
            let mut numbers = p.version.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
            let (a, b) = (numbers.next(), numbers.next());
            if minor.is_some() { (a, b) == (Some(major), minor) } else { a >= Some(major) }
        });
        if !right {
            let have: Vec<_> = found.iter().map(version).collect();
            let suite = kernel.suite();
            return Err(Error::Packages(format!("{suite} has {have:?} where Linux {kernel} was")));
        }
        Ok(found)
    }

    /// A source package.
    pub fn source(&self, suite: Suite, name: &str) -> Result<Source> {
        self.index(suite, apt::Kind::Source)?.source(suite, name)
    }

    /// Downloads and unpacks packages that the cache lacks; survives being stopped at any point.
    pub fn fetch(&self, packages: &[Package], progress: &Progress) -> Result<Tree> {
        fetch::packages(&self.apt, &self.cache, packages, progress)
    }

    /// As [`Packages::fetch`]: the directory of the unpacked upstream archive.
    pub fn fetch_source(&self, source: &Source, progress: &Progress) -> Result<PathBuf> {
        fetch::source(&self.apt, &self.cache, source, progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_kernels_as_experiments_do() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.name().parse::<Kernel>().unwrap(), kernel);
            let json = serde_json::to_string(&kernel).unwrap();
            assert_eq!(json, format!("\"{kernel}\""));
        }
        assert!("5.15".parse::<Kernel>().unwrap_err().to_string().contains("6.12"));
    }
}
