// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes recordings.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescriptor, Type};
use rustix::fs::{Mode, OFlags};
use tempfile::NamedTempFile;

use super::schema::{COLUMNS, KEY};
use super::{About, Note, RecordedVm, numbers};
use crate::error::{BoxedError, ObserverError};

/// Most rows kept in memory: about 5 MB.
const GROUP: usize = 1 << 16;

/// Fewest rows for which a group is tried when the disk is full.
const SMALLEST_GROUP: usize = 256;

/// A recording that is being written. A Parquet file cannot be read before it is complete, so until
/// then the recording is a hidden file of its own in the same directory.
pub(super) struct Writer {
    path: PathBuf,
    partial: NamedTempFile,
    /// The groups in the file.
    groups: Vec<RowGroupMetaData>,
    /// Length of the file after none, one, two... of them.
    ends: Vec<u64>,
    /// Rows that are not in the file yet.
    rows: Vec<Note>,
    added: u64,
    failure: Option<ParquetError>,
}

impl Writer {
    /// Fails if the recording could not get its name at the end, or if there is no room.
    pub(super) fn create(path: &Path) -> std::result::Result<Self, ObserverError> {
        check_target(path)?;
        let partial = partial_file(directory(path)).and_then(|mut partial| {
            // If the disk is full already, this fails at once.
            partial.write_all(MAGIC)?;
            Ok(partial)
        });
        let partial = partial.map_err(|error| failed(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            groups: Vec::new(),
            ends: vec![MAGIC.len() as u64],
            rows: Vec::new(),
            added: 0,
            failure: None,
        })
    }

    /// Adds rows; the file has them at the latest when it is finished. A failed write is reported
    /// then, too, and the rows in the file are kept.
    pub(super) fn add(&mut self, notes: &[Note], about: &About) {
        self.rows.extend_from_slice(notes);
        self.added += notes.len() as u64;
        if self.rows.len() >= GROUP {
            self.flush(about);
        }
    }

    /// Has a write failed, so that the recording should end?
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    fn flush(&mut self, about: &About) {
        if !self.rows.is_empty() && !self.has_failed() {
            self.failure = self.append(self.rows.len(), about).err();
        }
    }

    /// Writes the first rows as a group. If that fails, they are kept in memory.
    fn append(&mut self, rows: usize, about: &About) -> Result<()> {
        let end = self.ends[self.groups.len()];
        let (pages, group) = encode(&self.rows[..rows], about, end, self.groups.len())?;
        let file = self.partial.as_file_mut();
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(&pages)?;
        self.rows.drain(..rows);
        self.groups.push(group);
        self.ends.push(end + pages.len() as u64);
        Ok(())
    }

    /// Writes the remaining rows, and gives the file its name. After a failed write the file has as
    /// many events as there is room for, and the error says how many.
    pub(super) fn finish(mut self, about: &About) -> std::result::Result<(), ObserverError> {
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
        let Self { path, mut partial, mut groups, ends, added, mut failure, .. } = self;
        let events = loop {
            let events: u64 = groups.iter().map(|group| group.num_rows() as u64).sum();
            if let Some(error) = failure.take_if(|_| groups.is_empty()) {
                let why = format!("{}; nothing of it is kept", system_error(error));
                return Err(failed(&path, why));
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
        if let Err(error) = partial.persist(&path) {
            let at = error.file.path().to_owned();
            // Keeping the file may fail, too, but nothing can be done about that.
            let _ = error.file.keep();
            let kept = match at.exists() {
                true => format!("all of it is in {}", at.display()),
                false => "its directory is gone, and the recording with it".into(),
            };
            return Err(failed(&path, format!("{}; {kept}", error.error)));
        }
        match failure {
            None => Ok(()),
            Some(error) => {
                Err(ObserverError::CutShort { path, events, source: system_error(error) })
            }
        }
    }
}

/// Age from which a partial file that is not locked was left by a process that was killed: others
/// lock theirs as soon as they have made it.
const ABANDONED: Duration = Duration::from_secs(60);

/// A hidden file for something that gets its name once it is complete. Removes what processes that
/// were killed have left of theirs.
pub(super) fn partial_file(dir: &Path) -> io::Result<NamedTempFile> {
    remove_abandoned(dir, ABANDONED);
    let partial = tempfile::Builder::new()
        .prefix(PARTIAL.0)
        .suffix(PARTIAL.1)
        // Mode of a new file, reduced by the umask.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)?;
    // Where files cannot be locked, none is removed either.
    let _ = partial.as_file().lock();
    Ok(partial)
}

/// Beginning and end of their names.
const PARTIAL: (&str, &str) = (".holdfast-", ".partial");

/// Removes partial files of this user that are as old as this, and that no process has locked.
fn remove_abandoned(dir: &Path, age: Duration) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with(PARTIAL.0) && name.ends_with(PARTIAL.1)) {
            continue;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(entry.path(), flags, Mode::empty()).map(File::from) else {
            continue;
        };
        let is_abandoned = file.metadata().is_ok_and(|about| {
            let old = about.modified().ok().and_then(|at| at.elapsed().ok());
            about.is_file()
                && about.uid() == rustix::process::geteuid().as_raw()
                && old.is_some_and(|old| old >= age)
        });
        if is_abandoned && file.try_lock().is_ok() {
            // It may be gone already.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file's final path.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A recording may replace a file only, and not a device.
fn check_target(path: &Path) -> std::result::Result<(), ObserverError> {
    let kind = match fs::symlink_metadata(path) {
        Ok(target) => target.file_type(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
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

/// The first bytes of a Parquet file.
const MAGIC: &[u8] = b"PAR1";

fn columns() -> Result<Arc<Type>> {
    Ok(Arc::new(parse_message_type(COLUMNS)?))
}

/// Rows as the group of this number that begins at `at` of the file: its bytes, and where its
/// columns are. The library's writer cannot write a group again, smaller, if there is no room.
fn encode(
    rows: &[Note],
    about: &About,
    at: u64,
    number: usize,
) -> Result<(Vec<u8>, RowGroupMetaData)> {
    // No indexes of pages: no reader looks up single rows.
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let mut file = SerializedFileWriter::new(Vec::new(), columns()?, Arc::new(properties))?;
    write_group(&mut file, rows, about)?;
    file.flush()?;
    let group = file.flushed_row_groups()[0].clone();
    let pages = std::mem::take(file.inner_mut()).split_off(MAGIC.len());
    let moved = at as i64 - MAGIC.len() as i64;
    let move_column = |column: &ColumnChunkMetaData| {
        let dictionary = column.dictionary_page_offset();
        let column = column.clone();
        let data = column.data_page_offset();
        column
            .into_builder()
            .set_data_page_offset(data + moved)
            .set_dictionary_page_offset(dictionary.map(|offset| offset + moved))
            .build()
    };
    let columns = group.columns().iter().map(move_column).collect::<Result<Vec<_>>>()?;
    let number = i16::try_from(number)
        .map_err(|_| ParquetError::General("it has the most groups that a file can have".into()))?;
    let group = group.into_builder().set_column_metadata(columns).set_ordinal(number);
    Ok((pages, group.set_file_offset(at as i64).build()?))
}

/// Ends the file after these groups. The library's writer cannot leave out a group for which there
/// was no room.
fn close(file: &mut File, end: u64, groups: &[RowGroupMetaData], about: &About) -> Result<()> {
    let json = serde_json::to_string(about).map_err(|e| ParquetError::External(e.into()))?;
    let schema = SchemaDescriptor::new(columns()?);
    let about = KeyValue::new(KEY.to_owned(), json);
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let written_by = concat!("holdfast ", env!("CARGO_PKG_VERSION")).to_owned();
    let metadata =
        FileMetaData::new(1, rows, Some(written_by), Some(vec![about]), Arc::new(schema), None);
    let metadata = ParquetMetaData::new(metadata, groups.to_vec());
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
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

fn write_group(
    file: &mut SerializedFileWriter<Vec<u8>>,
    rows: &[Note],
    about: &About,
) -> Result<()> {
    let vms: HashMap<u32, &RecordedVm> = numbers(&about.vms).into_iter().zip(&about.vms).collect();
    let pid = |vm: u32| vms.get(&vm).map_or(vm, |vm| vm.pid);
    let begin_ns = |vm: u32| vms.get(&vm).and_then(|vm| vm.begin_ns);
    let name = |vm: u32| vms.get(&vm).map(|vm| vm.label()).unwrap_or_default();
    let int64 = |f: &dyn Fn(&Note) -> i64| rows.iter().map(f).collect::<Vec<_>>();
    let int32 = |f: &dyn Fn(&Note) -> u32| rows.iter().map(|n| f(n) as i32).collect::<Vec<_>>();
    let text = |f: &dyn Fn(&Note) -> String| {
        rows.iter().map(|note| ByteArray::from(f(note).as_str())).collect::<Vec<_>>()
    };
    let bool = |f: fn(&Note) -> Option<bool>| optional(rows.iter().map(f));

    let mut group = file.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        match (number, column.untyped()) {
            (0, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(&int64(&|n| n.begin_ns), None, None)
            }
            (1, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(&int64(&|n| n.end_ns), None, None)
            }
            (2, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| n.event.name().into()), None, None)
            }
            (3, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|_| about.host.clone()), None, None)
            }
            (4, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| pid(n.vm)), None, None)
            }
            (5, ColumnWriter::Int64ColumnWriter(w)) => {
                let (values, levels) = optional(rows.iter().map(|n| begin_ns(n.vm)));
                w.write_batch(&values, Some(&levels), None)
            }
            (6, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| name(n.vm)), None, None)
            }
            (7, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.tid), None, None)
            }
            (8, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.vcpu), None, None)
            }
            (9, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| n.class.name().into()), None, None)
            }
            (10, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.cpu), None, None)
            }
            (11, ColumnWriter::Int64ColumnWriter(w)) => {
                let (values, levels) = optional(rows.iter().map(|n| n.siblings.map(|s| s as i64)));
                w.write_batch(&values, Some(&levels), None)
            }
            (12, ColumnWriter::BoolColumnWriter(w)) => {
                let (values, levels) = bool(|n| n.holder_off);
                w.write_batch(&values, Some(&levels), None)
            }
            (13, ColumnWriter::BoolColumnWriter(w)) => {
                let (values, levels) = bool(|n| n.head_off);
                w.write_batch(&values, Some(&levels), None)
            }
            (number, _) => {
                Err(ParquetError::General(format!("column {number} is of no such type")))
            }
        }?;
        column.close()?;
        number += 1;
    }
    group.close()?;
    Ok(())
}

/// The values of an optional column, and a definition level for each row: 0 is null.
fn optional<T>(column: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let rows: Vec<Option<T>> = column.collect();
    let levels = rows.iter().map(|value| i16::from(value.is_some())).collect();
    (rows.into_iter().flatten().collect(), levels)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::super::read::read;
    use super::super::tests::recording;
    use super::*;

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
            let error = message(&Writer::create(&path).err().expect("it is refused"));
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(files(dir.path()), 4, "nothing is left");
        assert!(Writer::create(&in_dir("old")).is_ok());
        assert_eq!(fs::read(in_dir("old")).unwrap(), b"old", "nothing was recorded");
    }

    #[test]
    fn two_recordings_of_one_name_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mine = dir.path().join("a.parquet.partial");
        fs::write(&mine, "mine").unwrap();
        let recording = recording();
        let mut first = Writer::create(&path).unwrap();
        let mut second = Writer::create(&path).unwrap();
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
    fn a_recording_that_cannot_get_its_name_is_kept_under_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let recording = recording();
        let mut writer = Writer::create(&path).unwrap();
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
        let mut writer = Writer::create(&inside.join("a.parquet")).unwrap();
        writer.add(&recording.notes, &recording.about);
        fs::remove_dir_all(&inside).unwrap();
        let error = message(&writer.finish(&recording.about).unwrap_err());
        assert!(error.contains("its directory is gone, and the recording with it"), "{error}");
        assert!(!error.contains(".partial"), "{error}");
    }

    #[test]
    fn what_killed_processes_have_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        for name in [".holdfast-killed.partial", ".holdfast-notes", "x.partial"] {
            fs::write(in_dir(name), "x").unwrap();
        }
        symlink("x.partial", in_dir(".holdfast-link.partial")).unwrap();
        fs::create_dir(in_dir(".holdfast-dir.partial")).unwrap();
        let running = partial_file(dir.path()).unwrap();
        assert!(in_dir(".holdfast-killed.partial").exists(), "it may be new and not locked yet");
        remove_abandoned(dir.path(), Duration::ZERO);
        assert!(!in_dir(".holdfast-killed.partial").exists());
        assert!(running.path().exists(), "it is locked");
        assert_eq!(files(dir.path()), 5);
        drop(running);
        assert_eq!(files(dir.path()), 4);
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
        let finished = Writer::create(&path).and_then(|mut writer| {
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
        let mut writer = Writer::create(path).unwrap();
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
