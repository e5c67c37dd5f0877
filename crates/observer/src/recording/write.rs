// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes recordings.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use tempfile::{NamedTempFile, PersistError};

use super::checkpoint::{HEAD_LEN, MAGIC, Mark, checkpoint, end_of};
use super::encode::encode;
use super::partial::{directory, partial_file, sync_directory};
use super::target::{Name, free};
use super::{About, Note};
use crate::error::{BoxedError, ObserverError};

/// Most rows kept in memory: about 5 MB.
pub(super) const GROUP: usize = 1 << 16;

/// Groups of a file, of at most 32 767, from which on it gets none of fewer rows: for more than
/// three days at the default of `--sync`, 10 s.
const MAX_SMALL_GROUPS: usize = 30_000;

/// Fewest rows for which a group is tried when the disk is full.
const SMALLEST_GROUP: usize = 256;

/// A recording that is being written. A Parquet file cannot be read before it is complete, so until
/// then the recording is a hidden file of its own in the same directory. If the process is killed,
/// [`recover`](super::partial::recover) completes that.
pub(super) struct Writer {
    name: Name,
    partial: NamedTempFile,
    /// The groups in the file.
    groups: Vec<RowGroupMetaData>,
    /// Length of the file after none, one, two... of them.
    ends: Vec<u64>,
    /// Rows that are not in the file yet.
    rows: Vec<Note>,
    added: u64,
    /// Longest time that a row is not on the disk.
    sync_every: Duration,
    synced: Instant,
    /// The metadata in the last checkpoint that has any.
    marked: Option<About>,
    failure: Option<ParquetError>,
}

impl Writer {
    /// Fails if the recording could not get its name at the end, or if there is no room.
    pub(super) fn create(
        name: Name,
        sync_every: Duration,
    ) -> std::result::Result<Self, ObserverError> {
        let path = name.path();
        check_target(path)?;
        let partial = partial_file(directory(path)).and_then(|mut partial| {
            // If the disk is full already, this fails at once.
            partial.write_all(MAGIC)?;
            sync_directory(directory(path))?;
            Ok(partial)
        });
        let partial = partial.map_err(|error| failed(path, error))?;
        Ok(Self {
            name,
            partial,
            groups: Vec::new(),
            ends: vec![MAGIC.len() as u64],
            rows: Vec::new(),
            added: 0,
            sync_every,
            synced: Instant::now(),
            marked: None,
            failure: None,
        })
    }

    /// Adds rows. Afterwards each row that was added `sync_every` ago is on the disk. A failed
    /// write is reported at the end, and the rows in the file are kept.
    pub(super) fn add(&mut self, notes: &[Note], about: &About) {
        self.rows.extend_from_slice(notes);
        self.added += notes.len() as u64;
        let is_due = self.synced.elapsed() >= self.sync_every;
        if self.rows.len() >= GROUP || (is_due && self.groups.len() < MAX_SMALL_GROUPS) {
            self.flush(about);
        }
        if is_due && !self.has_failed() {
            self.failure = self.partial.as_file().sync_data().err().map(ParquetError::from);
            self.synced = Instant::now();
        }
    }

    /// Rows of it have been waiting since then to be on the disk.
    pub(super) fn waits_since(&mut self, at: Instant) {
        self.synced = at;
    }

    /// The name that it is to get.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Bytes that it has on the disk.
    pub(super) fn len(&self) -> u64 {
        self.ends[self.groups.len()]
    }

    /// Has a write failed, so that the recording should end?
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn flush(&mut self, about: &About) {
        if !self.rows.is_empty() && !self.has_failed() {
            self.failure = self.append(self.rows.len(), about).err();
        }
    }

    /// Writes the first rows as a group. If that fails, they are kept in memory.
    fn append(&mut self, rows: usize, about: &About) -> Result<()> {
        let end = self.len();
        let at = end + HEAD_LEN as u64;
        let (pages, group) = encode(&self.rows[..rows], about, at, self.groups.len())?;
        let bytes = checkpoint(&pages, &group, &self.mark(about)?)?;
        let file = self.partial.as_file_mut();
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(&bytes)?;
        // From here on it has something to recover, however this process ends.
        self.partial.disable_cleanup(true);
        self.rows.drain(..rows);
        self.groups.push(group);
        self.ends.push(end + bytes.len() as u64);
        self.marked = Some(about.clone());
        Ok(())
    }

    /// What the next checkpoint tells.
    fn mark(&self, about: &About) -> Result<Mark> {
        let name = self.name.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (end_ns, lost_events) = (about.end_ns, about.lost_events);
        let is_new = |marked: &About| *about != About { end_ns, lost_events, ..marked.clone() };
        let about = self.marked.as_ref().is_none_or(is_new).then(|| serde_json::to_value(about));
        let about = about.transpose().map_err(|error| ParquetError::External(error.into()))?;
        Ok(Mark { name, end_ns, lost_events, about })
    }

    /// Writes the remaining rows, and gives the file its name. After a failed write the file has as
    /// many events as there is room for, and the error says how many. Returns its path.
    pub(super) fn finish(mut self, about: &About) -> std::result::Result<PathBuf, ObserverError> {
        self.flush(about);
        if self.has_failed() {
            // Smaller groups may fit.
            let mut rows = self.rows.len() / 2;
            while rows >= SMALLEST_GROUP {
                if self.append(rows.min(self.rows.len()), about).is_err() {
                    rows /= 2;
                }
            }
        }
        let Self { name, mut partial, mut groups, ends, added, mut failure, .. } = self;
        let events = loop {
            let events: u64 = groups.iter().map(|group| group.num_rows() as u64).sum();
            if let Some(error) = failure.take_if(|_| groups.is_empty()) {
                partial.disable_cleanup(false);
                let why = format!("{}; nothing of it is kept", system_error(error));
                return Err(failed(name.path(), why));
            }
            let lost_events = about.lost_events + (added - events);
            let about = About { lost_events, ..about.clone() };
            match close(partial.as_file_mut(), ends[groups.len()], &groups, &about) {
                Ok(()) => break events,
                // Without the last group there is room for the footer.
                Err(error) => {
                    groups.pop();
                    failure.get_or_insert(error);
                }
            }
        };
        let (path, persisted) = persist(partial, name);
        if let Err(error) = persisted {
            let at = error.file.path().to_owned();
            // Keeping the file may fail, too, but nothing can be done about that.
            let _ = error.file.keep();
            let kept = match at.exists() {
                true => format!("all of it is in {}", at.display()),
                false => "its directory is gone, and the recording with it".into(),
            };
            return Err(failed(&path, format!("{}; {kept}", error.error)));
        }
        // Its data is on the disk; what may fail is to know when its name is.
        let _ = sync_directory(directory(&path));
        match failure {
            None => Ok(path),
            Some(error) => {
                Err(ObserverError::CutShort { path, events, source: system_error(error) })
            }
        }
    }
}

/// Gives the file its name, and returns the path with it.
fn persist(
    mut partial: NamedTempFile,
    name: Name,
) -> (PathBuf, std::result::Result<File, PersistError>) {
    let path = match name {
        Name::Given(path) => {
            let persisted = partial.persist(&path);
            return (path, persisted);
        }
        Name::New(path) => path,
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    loop {
        let path = free(|end| path.with_file_name(format!("{stem}{end}.parquet")));
        match partial.persist_noclobber(&path) {
            // Another recorder has taken the name since.
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => partial = error.file,
            persisted => return (path, persisted),
        }
    }
}

/// A recording may replace a file only, and not a device.
fn check_target(path: &Path) -> std::result::Result<(), ObserverError> {
    let kind = match fs::symlink_metadata(path) {
        Ok(target) => target.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match path.file_name() {
                Some(_) if !path.as_os_str().as_bytes().ends_with(b"/") => match directory(path) {
                    there if there.is_dir() => Ok(()),
                    _ => Err(failed(path, "there is no such directory; make it first")),
                },
                _ => Err(failed(path, "that is no name of a file; name one")),
            };
        }
        Err(error) => return Err(failed(path, error)),
    };
    Err(failed(
        path,
        match () {
            () if kind.is_file() => return Ok(()),
            () if kind.is_dir() => "it is a directory; name a file in it",
            () if kind.is_symlink() => "it is a symbolic link; name the file itself",
            () => {
                "it is a device, a pipe or a socket, which a recording would replace; name a file"
            }
        },
    ))
}

/// Ends the file after these groups. The library's writer cannot leave out a group for which there
/// was no room.
fn close(file: &mut File, end: u64, groups: &[RowGroupMetaData], about: &About) -> Result<()> {
    let footer = end_of(groups, about)?;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    file.write_all(&footer)?;
    Ok(file.sync_all()?)
}

fn failed(path: &Path, source: impl Into<BoxedError>) -> ObserverError {
    let (path, source) = (path.to_owned(), source.into());
    ObserverError::File { action: "write the recording", path, source }
}

/// The system's error alone.
fn system_error(error: ParquetError) -> BoxedError {
    match error {
        ParquetError::External(said) => said,
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::process::Command;

    use super::super::read::read;
    use super::super::tests::{SYNC, recording};
    use super::*;

    fn create(path: &Path) -> std::result::Result<Writer, ObserverError> {
        Writer::create(Name::Given(path.to_owned()), SYNC)
    }

    fn message(error: &ObserverError) -> String {
        let source = std::error::Error::source(error).map_or(String::new(), ToString::to_string);
        format!("{error}: {source}")
    }

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn replaces_nothing_but_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name| dir.path().join(name);
        fs::write(in_dir("old"), "old").unwrap();
        symlink(in_dir("old"), in_dir("link")).unwrap();
        symlink("nowhere", in_dir("dangling")).unwrap();
        std::os::unix::net::UnixListener::bind(in_dir("socket")).unwrap();
        for (path, why) in [
            (PathBuf::from("/dev/null"), "a device"),
            (in_dir("socket"), "or a socket"),
            (in_dir("link"), "a symbolic link"),
            (in_dir("dangling"), "a symbolic link"),
            (in_dir(""), "a directory"),
            (in_dir("none/"), "no name of a file"),
            (in_dir("none/x"), "no such directory"),
            (in_dir("old/x"), "Not a directory"),
            (PathBuf::new(), "no name of a file"),
        ] {
            let error = message(&create(&path).err().expect("it is refused"));
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(files(dir.path()), 4, "nothing is left");
        assert!(create(&in_dir("old")).is_ok());
        assert_eq!(fs::read(in_dir("old")).unwrap(), b"old", "nothing was recorded");
    }

    #[test]
    fn two_recordings_of_one_name_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mine = dir.path().join("a.parquet.partial");
        fs::write(&mine, "mine").unwrap();
        let recording = recording();
        let mut first = create(&path).unwrap();
        let mut second = create(&path).unwrap();
        first.add(&recording.notes, &recording.about);
        second.add(&recording.notes[..1], &recording.about);
        first.finish(&recording.about).unwrap();
        assert_eq!(read(&path).unwrap().notes.len(), recording.notes.len());
        drop(second);
        assert_eq!(read(&path).unwrap().notes.len(), recording.notes.len());
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert_eq!(files(dir.path()), 2);
        // Other users may read it as any new file.
        fs::write(dir.path().join("new"), "").unwrap();
        let mode = |name| fs::metadata(dir.path().join(name)).unwrap().mode();
        assert_eq!(mode("a.parquet"), mode("new"));
    }

    #[test]
    fn a_new_file_takes_no_name_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web1-20261129T031608Z.parquet");
        let recording = recording();
        let create = || Writer::create(Name::New(path.clone()), SYNC).unwrap();
        let named: Vec<_> = [create(), create(), create()]
            .into_iter()
            .map(|mut writer| {
                writer.add(&recording.notes, &recording.about);
                let path = writer.finish(&recording.about).unwrap();
                assert_eq!(read(&path).unwrap(), recording);
                path.file_name().unwrap().to_str().unwrap().to_owned()
            })
            .collect();
        let names = ["", "-2", "-3"].map(|end| format!("web1-20261129T031608Z{end}.parquet"));
        assert_eq!(named, names);
    }

    #[test]
    fn a_recording_that_cannot_get_its_name_is_kept_under_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let recording = recording();
        let mut writer = create(&path).unwrap();
        writer.add(&recording.notes, &recording.about);
        fs::create_dir(&path).unwrap();
        let error = message(&writer.finish(&recording.about).unwrap_err());
        let kept = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let kept = kept.filter(|kept| *kept != path).collect::<Vec<_>>();
        assert!(kept.len() == 1 && error.contains(kept[0].to_str().unwrap()), "{error} {kept:?}");
        assert_eq!(read(&kept[0]).unwrap(), recording);
    }

    #[test]
    fn no_file_is_named_that_is_gone_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let recording = recording();
        let mut writer = create(&inside.join("a.parquet")).unwrap();
        writer.add(&recording.notes, &recording.about);
        fs::remove_dir_all(&inside).unwrap();
        let error = message(&writer.finish(&recording.about).unwrap_err());
        assert!(error.contains("its directory is gone, and the recording with it"), "{error}");
        assert!(!error.contains(".partial"), "{error}");
    }

    const FULL: &str = "HOLDFAST_TEST_FULL_DISK";

    /// Runs a test of this program again with a limit of the file size in KiB, which acts like a
    /// full disk.
    fn run_with_disk_of(kib: u32, test: &str, path: &Path) {
        let script = "ulimit -f $(($1 * 2)) && trap '' XFSZ && exec \"$2\" --exact \"$3\"";
        let output = Command::new("sh")
            .args(["-c", script, "sh", &kib.to_string()])
            .arg(std::env::current_exe().unwrap())
            .arg(format!("recording::write::tests::{test}"))
            .env(FULL, path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn a_full_disk_is_a_clear_error() {
        let recording = recording();
        let Some(path) = std::env::var_os(FULL).map(PathBuf::from) else {
            let dir = tempfile::tempdir().unwrap();
            run_with_disk_of(1, "a_full_disk_is_a_clear_error", &dir.path().join("a"));
            run_with_disk_of(0, "a_full_disk_is_a_clear_error", &dir.path().join("a"));
            assert_eq!(files(dir.path()), 0);
            return;
        };
        let finished = create(&path).and_then(|mut writer| {
            writer.add(&recording.notes, &recording.about);
            writer.finish(&recording.about)
        });
        let error = message(&finished.unwrap_err());
        assert!(error.contains("cannot write the recording"), "{error}");
        assert!(error.contains("File too large"), "{error}");
        assert!(path.exists() || !error.contains("is in"), "{error}");
    }

    /// A group's worth of events with times that compress badly, like a real host's.
    fn notes(group: i64) -> Vec<Note> {
        let mut notes = vec![recording().notes[0]; GROUP];
        for (i, note) in (0..).zip(&mut notes) {
            let ns = (group * GROUP as i64 + i) * 7919 % 1_000_000_000;
            (note.begin_ns, note.end_ns) = (note.begin_ns + ns / 2, note.begin_ns + ns);
        }
        notes
    }

    /// Records until the disk is full.
    fn fill_the_disk(path: &Path) {
        let mut writer = create(path).unwrap();
        let recording = recording();
        let mut full = None;
        for group in 0..100 {
            writer.add(&notes(group), &recording.about);
            full = writer.has_failed().then_some(group);
            if full.is_some() {
                break;
            }
        }
        let about = About { lost_events: 5, ..recording.about };
        let error = message(&writer.finish(&about).unwrap_err());
        assert!(full.is_some() && error.contains("File too large"), "{error}");
        assert!(error.contains("events are in"), "{error}");
    }

    /// The events of a recording that filled a disk of this size.
    fn kept_on_a_disk_of(kib: u32, test: &str) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        run_with_disk_of(kib, test, &path);
        let kept = read(&path).unwrap();
        let events = kept.notes.len();
        let all: Vec<Note> = (0..10).flat_map(notes).take(events).collect();
        assert!(kept.notes == all, "they are the first");
        let lost = (5 + GROUP - events % GROUP) as u64;
        assert_eq!(kept.about.lost_events % GROUP as u64, lost % GROUP as u64);
        assert_eq!(files(dir.path()), 1);
        let len = fs::metadata(&path).unwrap().len();
        assert!(len > u64::from(kib) * 1024 * 8 / 10, "{len} bytes: there was more room");
        events
    }

    #[test]
    fn all_that_fits_is_kept_when_the_disk_becomes_full() {
        const NAME: &str = "all_that_fits_is_kept_when_the_disk_becomes_full";
        if let Some(path) = std::env::var_os(FULL).map(PathBuf::from) {
            return fill_the_disk(&path);
        }
        let many = kept_on_a_disk_of(1500, NAME);
        assert!(many > GROUP, "{many}");
        // There is no room for the first group.
        let few = kept_on_a_disk_of(100, NAME);
        assert!((SMALLEST_GROUP..GROUP).contains(&few), "{few}");
    }
}
