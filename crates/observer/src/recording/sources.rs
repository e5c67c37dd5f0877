// SPDX-License-Identifier: GPL-2.0-or-later
//! Recordings to read: files, directories of files, and times of these.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::partial::is_partial;
use super::read::{read, read_about};
use super::{About, Recording};
use crate::error::ObserverError;
use crate::report::when;

/// Depth to which directories are searched: those of partitions have two levels.
const MAX_DEPTH: usize = 8;

/// Recordings of one host may overlap by so much: its clock may have been set back.
const OVERLAP_NS: i64 = 60 * 1_000_000_000;

/// From the first time until before the second, in ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeRange {
    from_ns: i64,
    to_ns: i64,
}

impl TimeRange {
    const ALL: Self = Self { from_ns: i64::MIN, to_ns: i64::MAX };

    /// `2026-11-28..2026-11-29T12:00`; either end may be missing.
    fn parse(text: &str) -> Result<Self, String> {
        let Some((from, to)) = text.split_once("..") else {
            return Err("give times as FROM..TO; one of them may be missing".into());
        };
        let end = |text: &str, missing| match text {
            "" => Ok(missing),
            text => time(text),
        };
        let range = Self { from_ns: end(from, i64::MIN)?, to_ns: end(to, i64::MAX)? };
        match range.from_ns < range.to_ns {
            true => Ok(range),
            false => Err(format!("{from} is not before {to}")),
        }
    }

    fn has(&self, ns: i64) -> bool {
        self.from_ns <= ns && ns < self.to_ns
    }

    /// The part of a time that is in it; none if there is no such part.
    fn clip(&self, (begin_ns, end_ns): (i64, i64)) -> Option<(i64, i64)> {
        let part = (begin_ns.max(self.from_ns), end_ns.min(self.to_ns));
        (part.0 < part.1).then_some(part)
    }
}

/// A time (UTC) as `2026-11-29`, `2026-11-29T03:16` or `2026-11-29T03:16:08`.
fn time(text: &str) -> Result<i64, String> {
    let full = match text.trim_end_matches('Z') {
        date if date.len() == 10 => format!("{date}T00:00:00Z"),
        minute if minute.len() == 16 => format!("{minute}:00Z"),
        second => format!("{second}Z"),
    };
    let since = humantime::parse_rfc3339_weak(&full).ok().and_then(|at| {
        let since = at.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_nanos()).ok()
    });
    since.ok_or_else(|| format!("{text} is no time such as 2026-11-29 or 2026-11-29T03:16 (UTC)"))
}

/// A recording, a directory of recordings, or a time of either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The file or directory.
    pub path: PathBuf,
    /// The time.
    pub range: TimeRange,
}

impl Input {
    /// `PATH` or `PATH@FROM..TO`. What exists is a path, whatever its name.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let whole = Self { path: text.into(), range: TimeRange::ALL };
        if whole.path.exists() {
            return Ok(whole);
        }
        match text.to_str().and_then(|text| text.rsplit_once('@')) {
            Some((path, range)) if range.contains("..") && !path.is_empty() => {
                Ok(Self { path: path.into(), range: TimeRange::parse(range)? })
            }
            _ => Ok(whole),
        }
    }

    /// All of a file or directory.
    pub fn all_of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), range: TimeRange::ALL }
    }
}

/// A recording, or a time of it.
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// Its metadata; the times are those of the part that is read.
    pub(super) about: About,
    range: TimeRange,
    /// It was found in a directory.
    is_found: bool,
}

impl Source {
    /// Reads the events that ended in its time. None if a file was found in a directory and is gone
    /// since: recorders remove old ones.
    pub(super) fn read(&self) -> Result<Option<Recording>, ObserverError> {
        let mut recording = match read(&self.path) {
            Err(error) if self.is_found && is_gone(&error) => return Ok(None),
            other => other?,
        };
        if self.range != TimeRange::ALL {
            recording.notes.retain(|note| self.range.has(note.end_ns));
        }
        recording.about.begin_ns = self.about.begin_ns;
        recording.about.end_ns = self.about.end_ns;
        Ok(Some(recording))
    }
}

fn is_gone(error: &ObserverError) -> bool {
    let ObserverError::File { source, .. } = error else { return false };
    source.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound)
}

/// The recordings, by host, in the order of their times.
pub(super) fn sources(inputs: &[Input]) -> Result<BTreeMap<String, Vec<Source>>, ObserverError> {
    let mut hosts = BTreeMap::<String, Vec<Source>>::new();
    let mut seen = HashSet::new();
    for input in inputs {
        let mut others: Option<(i64, i64)> = None;
        let mut any = false;
        for (path, is_found) in files(&input.path)? {
            let file = path.canonicalize().unwrap_or_else(|_| path.clone());
            if !seen.insert((file, input.range)) {
                any = true;
                continue;
            }
            let mut about = match read_about(&path) {
                Err(error) if is_found && is_gone(&error) => continue,
                other => other?,
            };
            let times = (about.begin_ns, about.end_ns);
            let Some(part) = input.range.clip(times) else {
                let (begin, end) = others.unwrap_or(times);
                others = Some((begin.min(times.0), end.max(times.1)));
                continue;
            };
            (about.begin_ns, about.end_ns) = part;
            any = true;
            let source = Source { path, range: input.range, is_found, about };
            hosts.entry(source.about.host.clone()).or_default().push(source);
        }
        if !any {
            let why = match others.map(|(begin, end)| [begin, end].map(|ns| when(ns as u64))) {
                None => "there is no recording in it".into(),
                Some([begin, end]) => {
                    format!("its recordings, from {begin} to {end}, have nothing of that time")
                }
            };
            let path = input.path.clone();
            return Err(ObserverError::File { action: "replay", path, source: why.into() });
        }
    }
    for sources in hosts.values_mut() {
        sources.sort_by_key(|source| (source.about.begin_ns, Reverse(source.about.end_ns)));
        let mut until: Option<&Source> = None;
        for source in sources.iter() {
            if let Some(before) = until
                && source.about.begin_ns + OVERLAP_NS < before.about.end_ns
            {
                // Their events would count twice.
                let paths = [before, source].map(|source| source.path.clone());
                return Err(ObserverError::Overlap { paths });
            }
            until = until.into_iter().chain([source]).max_by_key(|source| source.about.end_ns);
        }
    }
    Ok(hosts)
}

/// This file, or the finished recordings in this directory and those below it; and whether they
/// were found so.
fn files(path: &Path) -> Result<Vec<(PathBuf, bool)>, ObserverError> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), false)]);
    }
    let mut found = Vec::new();
    find(path, MAX_DEPTH, &mut found).map_err(|source| ObserverError::File {
        action: "read the directory",
        path: path.to_owned(),
        source: source.into(),
    })?;
    found.sort();
    Ok(found.into_iter().map(|path| (path, true)).collect())
}

fn find(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && depth > 0 {
            match find(&path, depth - 1, found) {
                // A recorder has removed an empty one.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        } else if path.extension() == Some(OsStr::new("parquet")) && !is_partial(&path) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SYNC, recording, writer};
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn input(text: &str) -> Result<Input, String> {
        Input::parse(OsStr::new(text))
    }

    #[test]
    fn an_input_is_a_path_or_a_time_of_it() {
        let range = |text: &str| input(text).unwrap().range;
        assert_eq!(input("rec").unwrap(), Input::all_of("rec"));
        assert_eq!(input("a@b.parquet").unwrap(), Input::all_of("a@b.parquet"));
        let noon_ns = 1_795_953_600 * SECOND_NS;
        let day = range("rec@2026-11-29..2026-11-30");
        assert_eq!((day.to_ns - day.from_ns) / SECOND_NS, 86_400);
        for from in ["2026-11-29T12:00", "2026-11-29T12:00:00", "2026-11-29T12:00:00Z"] {
            let open = range(&format!("rec@{from}.."));
            assert_eq!(open, TimeRange { from_ns: noon_ns, to_ns: i64::MAX }, "{from}");
        }
        assert_eq!(range("a@b@..2026-11-29T12:00").to_ns, noon_ns);
        for (text, why) in [
            ("rec@yesterday..", "yesterday is no time such as 2026-11-29"),
            ("rec@2026-11-30..2026-11-29", "is not before"),
            ("rec@2026-13-01..", "is no time"),
        ] {
            let said = input(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a@b..c");
        fs::write(&odd, "").unwrap();
        assert_eq!(Input::parse(odd.as_os_str()).unwrap(), Input::all_of(odd));
    }

    /// Writes a recording of this host that begins so many seconds later.
    pub(super) fn write(path: &Path, host: &str, later_s: i64) -> Recording {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut moved = recording();
        moved.about.host = host.into();
        moved.about.begin_ns += later_s * SECOND_NS;
        moved.about.end_ns += later_s * SECOND_NS;
        for note in &mut moved.notes {
            note.begin_ns += later_s * SECOND_NS;
            note.end_ns += later_s * SECOND_NS;
        }
        let mut writer = writer(path, SYNC);
        writer.add(&moved.notes, &moved.about);
        writer.finish(&moved.about).unwrap();
        moved
    }

    fn names(hosts: &BTreeMap<String, Vec<Source>>) -> Vec<(&str, Vec<&str>)> {
        let name = |source: &Source| -> &'static str {
            source.path.file_name().unwrap().to_str().unwrap().to_owned().leak()
        };
        hosts.iter().map(|(host, of)| (host.as_str(), of.iter().map(name).collect())).collect()
    }

    #[test]
    fn directories_have_the_recordings_below_them_by_host_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        write(&in_dir("date=2/host=a/z.parquet"), "a", 0);
        write(&in_dir("date=2/host=a/y.parquet"), "a", 1);
        write(&in_dir("date=2/host=b/x.parquet"), "b", 0);
        write(&in_dir("w.parquet"), "a", 5);
        fs::write(in_dir("notes.txt"), "").unwrap();
        fs::write(in_dir(".holdfast-1.partial"), "").unwrap();
        let found = sources(&[Input::all_of(dir.path()), Input::all_of(in_dir("w.parquet"))]);
        let found = found.unwrap();
        assert_eq!(
            names(&found),
            [("a", vec!["z.parquet", "y.parquet", "w.parquet"]), ("b", vec!["x.parquet"])]
        );
        fs::remove_file(in_dir("w.parquet")).unwrap();
        assert!(found["a"][2].read().unwrap().is_none(), "it was removed since");
        fs::create_dir(in_dir("none")).unwrap();
        let error = sources(&[Input::all_of(in_dir("none"))]).err().unwrap();
        assert!(matches!(&error, ObserverError::File { action: "replay", .. }), "{error}");
        assert!(sources(&[Input::all_of(in_dir("w.parquet"))]).is_err(), "a name that was given");
    }

    #[test]
    fn a_time_has_the_events_that_ended_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let whole = write(&path, "a", 0);
        let begin_ns = whole.about.begin_ns;
        let range = |from_ms: i64, to_ms: i64| TimeRange {
            from_ns: begin_ns + from_ms * 1_000_000,
            to_ns: begin_ns + to_ms * 1_000_000,
        };
        let read = |range| {
            let found = sources(&[Input { path: path.clone(), range }])?;
            Ok::<_, ObserverError>(found["a"][0].read().unwrap().unwrap())
        };
        let part = read(range(10, 20)).unwrap();
        let ends = |r: &Recording| r.notes.iter().map(|n| n.end_ns - begin_ns).collect::<Vec<_>>();
        assert_eq!(ends(&part), [12_000_000, 14_000_000, 14_000_000]);
        assert_eq!(part.about.end_ns - part.about.begin_ns, 10_000_000);
        assert_eq!(read(range(-5, 9000)).unwrap(), whole);
        assert!(read(range(1000, 2000)).is_err());
    }

    #[test]
    fn recordings_of_one_time_and_host_are_not_added() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
        write(&a, "a", 0);
        fs::copy(&a, &b).unwrap();
        assert!(sources(&[Input::all_of(dir.path())]).is_ok(), "a second may overlap");
        let mut long = recording();
        long.about.end_ns += 100 * SECOND_NS;
        for path in [&a, &b] {
            let mut writer = writer(path, SYNC);
            writer.add(&long.notes, &long.about);
            writer.finish(&long.about).unwrap();
        }
        let error = sources(&[Input::all_of(dir.path())]).err().unwrap().to_string();
        assert!(error.contains("a.parquet and ") && error.contains("both have"), "{error}");
    }
}
