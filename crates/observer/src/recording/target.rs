// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a recording goes, and the names that its files get.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::About;
use super::partial::{directory, sync_directory};
use crate::error::ObserverError;
use crate::report::when;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Where a recording goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Into this file, which it replaces.
    File(PathBuf),
    /// Into a new file in the directory of this process.
    NewFile,
    /// Into one file after another, in partitions of this directory.
    Directory {
        /// The directory; it is made.
        path: PathBuf,
        /// When a file ends, and the next one begins. One also does at midnight (UTC), because a
        /// partition is a day.
        rotate: Bounds,
        /// What is kept of this host's files.
        keep: Bounds,
    },
}

/// A time, a size, or both: what is reached first counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The time.
    pub time: Option<Duration>,
    /// The size in bytes.
    pub bytes: Option<u64>,
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
    /// The file or directory.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Directory { path, .. } => path,
            Self::NewFile => Path::new("."),
        }
    }

    /// The name of the file of a recording that begins then. Makes its partition.
    pub(super) fn begin(&self, about: &About) -> Result<Name, ObserverError> {
        let stem = file_stem(&about.host, about.begin_ns);
        match self {
            Self::File(path) => Ok(Name::Given(path.clone())),
            Self::NewFile => {
                let name = |end: &str| PathBuf::from(format!("holdfast-{stem}{end}.parquet"));
                Ok(Name::New(free(name)))
            }
            Self::Directory { path, .. } => {
                let day = path.join(format!("{DATE}{}", date(about.begin_ns)));
                let dir = day.join(format!("{HOST}{}", escaped(&about.host)));
                let made = fs::create_dir_all(&dir).and_then(|()| {
                    // So that a file in it is there after a loss of power.
                    sync_directory(&day)?;
                    sync_directory(path)
                });
                made.map_err(|source| ObserverError::File {
                    action: "make the directory",
                    path: dir.clone(),
                    source: source.into(),
                })?;
                Ok(Name::New(dir.join(format!("{stem}.parquet"))))
            }
        }
    }

    /// Is it one file after another?
    pub(super) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// When the file ends that begins then, and the next one begins; none if that is no matter of
    /// time.
    pub(super) fn next_ns(&self, begin_ns: i64) -> Option<i64> {
        let Self::Directory { rotate, .. } = self else { return None };
        let day_ns = DAY.as_nanos() as i64;
        let period_ns = rotate.time.map_or(day_ns, |time| time.as_nanos() as i64).clamp(1, day_ns);
        // From midnight on, so that files of all hosts and days begin at the same times of day.
        let midnight_ns = begin_ns.div_euclid(day_ns) * day_ns;
        let periods = (begin_ns - midnight_ns) / period_ns + 1;
        Some((midnight_ns + periods * period_ns).min(midnight_ns + day_ns))
    }

    /// Is a file of this length full?
    pub(super) fn is_full(&self, len: u64) -> bool {
        match self {
            Self::Directory { rotate, .. } => rotate.bytes.is_some_and(|most| len >= most),
            Self::File(_) | Self::NewFile => false,
        }
    }

    /// Directories in which this host's recorders may have left something.
    pub(super) fn directories(&self, host: &str) -> Vec<PathBuf> {
        match self {
            Self::File(path) => vec![directory(path).to_owned()],
            Self::NewFile => vec![PathBuf::from(".")],
            Self::Directory { path, .. } => partitions(path, host),
        }
    }

    /// Removes files of this host that are beyond what is kept, the oldest first. There are
    /// `unfinished` bytes more, of the file that is being written.
    pub(super) fn remove_old(&self, host: &str, unfinished: u64) -> Vec<ObserverError> {
        let Self::Directory { path, keep, .. } = self else { return Vec::new() };
        let files: Vec<(PathBuf, Metadata)> =
            partitions(path, host).iter().flat_map(|dir| files(dir, host)).collect();
        let mut all = unfinished + files.iter().map(|(_, about)| about.len()).sum::<u64>();
        let mut failed = Vec::new();
        for (path, about) in files {
            // A file was last written when it ended.
            let age = about.modified().ok().and_then(|at| at.elapsed().ok());
            let is_old = keep.time.zip(age).is_some_and(|(most, age)| age > most);
            if !is_old && keep.bytes.is_none_or(|most| all <= most) {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => all -= about.len(),
                // Another recorder of this host has the same task.
                Err(error) if error.kind() == ErrorKind::NotFound => all -= about.len(),
                Err(source) => {
                    let source = source.into();
                    failed.push(ObserverError::File { action: "remove the old", path, source });
                    continue;
                }
            }
            // The partition and its day, once they are empty.
            for dir in path.ancestors().skip(1).take(2) {
                let _ = fs::remove_dir(dir);
            }
        }
        failed
    }
}

const DATE: &str = "date=";
const HOST: &str = "host=";

/// The host's partitions that are there, the oldest first.
fn partitions(dir: &Path, host: &str) -> Vec<PathBuf> {
    let host = format!("{HOST}{}", escaped(host));
    let days = fs::read_dir(dir).into_iter().flatten().flatten();
    let days = days.filter(|day| day.file_name().to_string_lossy().starts_with(DATE));
    let mut found: Vec<PathBuf> =
        days.map(|day| day.path().join(&host)).filter(|dir| dir.is_dir()).collect();
    found.sort();
    found
}

/// The finished files of this host in one of its partitions, the oldest first.
fn files(dir: &Path, host: &str) -> Vec<(PathBuf, Metadata)> {
    let begin = format!("{}-", escaped(host));
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&begin) && name.ends_with(".parquet")
        })
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .filter(|(_, about)| about.is_file())
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// The day (UTC): `2026-11-29`.
fn date(at_ns: i64) -> String {
    when(at_ns.max(0) as u64).chars().take_while(|c| *c != 'T').collect()
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
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    /// 2026-11-29T03:16:08.999999999Z
    const AT_NS: i64 = 1_795_922_168_999_999_999;
    const HOUR: Duration = Duration::from_secs(3600);

    fn archive(path: &Path, rotate: Bounds, keep: Bounds) -> Target {
        Target::Directory { path: path.to_owned(), rotate, keep }
    }

    fn time(time: Duration) -> Bounds {
        Bounds { time: Some(time), bytes: None }
    }

    #[test]
    fn partitions_are_called_as_hive_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let target = archive(dir.path(), Bounds::default(), Bounds::default());
        let about = About { host: "web 1".into(), begin_ns: AT_NS, ..About::default() };
        let name = target.begin(&about).unwrap();
        let partition = dir.path().join("date=2026-11-29/host=web%201");
        assert_eq!(name, Name::New(partition.join("web%201-20261129T031608Z.parquet")));
        assert_eq!(target.directories("web 1"), [partition]);
        assert!(target.directories("web").is_empty());
    }

    #[test]
    fn files_end_at_full_periods_of_the_day_and_at_midnight() {
        const HOUR_NS: i64 = 3_600_000_000_000;
        let midnight_ns = AT_NS - AT_NS % (24 * HOUR_NS);
        let next = |bounds, hour| {
            let target = archive(Path::new("x"), bounds, Bounds::default());
            (target.next_ns(midnight_ns + hour * HOUR_NS).unwrap() - midnight_ns) / HOUR_NS
        };
        assert_eq!([0, 1, 23].map(|hour| next(time(HOUR), hour)), [1, 2, 24]);
        assert_eq!([0, 6, 7, 23].map(|hour| next(time(7 * HOUR), hour)), [7, 7, 14, 24]);
        assert_eq!(next(Bounds { time: None, bytes: Some(1) }, 3), 24);
        assert_eq!(Target::NewFile.next_ns(0), None);
    }

    /// A file of this size, so many hours old.
    fn file(dir: &Path, name: &str, hours: u32, bytes: u64) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(SystemTime::now() - HOUR * hours - HOUR / 2).unwrap();
    }

    fn left(dir: &Path) -> Vec<String> {
        let mut left = Vec::new();
        for day in fs::read_dir(dir).unwrap().map(|day| day.unwrap().path()) {
            for host in fs::read_dir(&day).unwrap().map(|host| host.unwrap().path()) {
                left.extend(fs::read_dir(host).unwrap().map(|file| {
                    let path = file.unwrap().path();
                    path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned()
                }));
            }
        }
        left.sort();
        left
    }

    #[test]
    fn only_the_oldest_files_of_this_host_are_removed() {
        const OTHERS: [&str; 4] = [
            "date=2026-11-27/host=b/b-20261127T000000Z.parquet",
            "date=2026-11-28/host=a/.holdfast-x.partial",
            "date=2026-11-28/host=a/notes.txt",
            "date=2026-11-28/host=a/mine.parquet",
        ];
        const OWN: [&str; 4] = [
            "date=2026-11-27/host=a/a-20261127T230000Z.parquet",
            "date=2026-11-28/host=a/a-20261128T220000Z.recovered.parquet",
            "date=2026-11-28/host=a/a-20261128T230000Z.parquet",
            "date=2026-11-29/host=a/a-20261129T000000Z.parquet",
        ];
        for (keep, own) in [
            (Bounds::default(), 4),
            (time(2 * HOUR), 2),
            (Bounds { time: None, bytes: Some(2500) }, 2),
            (Bounds { time: None, bytes: Some(4500) }, 4),
            (Bounds { time: Some(HOUR), bytes: Some(3500) }, 1),
            (Bounds { time: Some(100 * HOUR), bytes: Some(0) }, 0),
        ] {
            let dir = tempfile::tempdir().unwrap();
            OTHERS.iter().for_each(|name| file(dir.path(), name, 99, 5000));
            for (name, hours) in OWN.into_iter().zip((0..4).rev()) {
                file(dir.path(), name, hours, 1000);
            }
            let target = archive(dir.path(), Bounds::default(), keep);
            assert!(target.remove_old("a", 500).is_empty());
            let mut expected = [&OTHERS[..], &OWN[4 - own..]].concat();
            expected.sort();
            assert_eq!(left(dir.path()), expected, "{keep:?}");
            // A day without files has no directory.
            let days = fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(days, if own == 0 { 2 } else { 3 }, "{keep:?}");
        }
    }

    #[test]
    fn the_name_of_a_file_has_its_host_and_its_begin() {
        let stem = |host| file_stem(host, AT_NS);
        assert_eq!(stem("web1.example.org"), "web1.example.org-20261129T031608Z");
        assert_eq!(stem("../a b"), "%2E.%2Fa%20b-20261129T031608Z");
        assert_eq!(stem(""), "__HIVE_DEFAULT_PARTITION__-20261129T031608Z");
        let about = About { host: "web1".into(), begin_ns: AT_NS, ..About::default() };
        let Name::New(path) = Target::NewFile.begin(&about).unwrap() else { panic!("it replaces") };
        assert_eq!(path, Path::new("holdfast-web1-20261129T031608Z.parquet"));
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
