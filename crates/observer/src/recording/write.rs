// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes recordings.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use tempfile::NamedTempFile;

use super::schema::{COLUMNS, KEY};
use super::{About, Note, RecordedVm, numbers};
use crate::error::{BoxedError, ObserverError};

/// Most rows kept in memory: about 5 MB.
const GROUP: usize = 1 << 16;

/// A recording that is being written. A Parquet file cannot be read before it is complete, so until
/// then the recording is a hidden file of its own in the same directory.
pub(super) struct Writer {
    path: PathBuf,
    partial: NamedTempFile,
    groups: SerializedFileWriter<File>,
    /// Length of the file after none, one, two... of the groups.
    ends: Vec<u64>,
    rows: Vec<Note>,
    added: u64,
    failure: Option<ParquetError>,
}

impl Writer {
    /// Fails if the recording could not get its name at the end, or if there is no room.
    pub(super) fn create(path: &Path) -> std::result::Result<Self, ObserverError> {
        check_target(path)?;
        let partial = tempfile::Builder::new()
            .prefix(".holdfast-")
            .suffix(".partial")
            // Mode of a new file, reduced by the umask.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory(path))
            .map_err(|error| failed(path, error))?;
        let groups = begin(&partial).map_err(|error| failed(path, system_error(error)))?;
        let ends = vec![groups.bytes_written() as u64];
        let (rows, added, failure) = (Vec::new(), 0, None);
        Ok(Self { path: path.to_owned(), partial, groups, ends, rows, added, failure })
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
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() || self.has_failed() {
            return;
        }
        let written = write_group(&mut self.groups, &rows, about)
            .and_then(|()| self.groups.flush().map_err(ParquetError::from));
        match written {
            Ok(()) => self.ends.push(self.groups.bytes_written() as u64),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Writes the remaining rows, and gives the file its name. After a failed write the file has
    /// the groups that were complete before, and the error says how many events it has.
    pub(super) fn finish(mut self, about: &About) -> std::result::Result<(), ObserverError> {
        self.flush(about);
        let Self { path, mut partial, groups, ends, added, mut failure, .. } = self;
        let mut complete = groups.flushed_row_groups()[..ends.len() - 1].to_vec();
        // The writer flushes its buffer to the file here; the file is truncated below.
        drop(groups);
        let events = loop {
            let events: u64 = complete.iter().map(|group| group.num_rows() as u64).sum();
            if let Some(error) = failure.take_if(|_| complete.is_empty()) {
                return Err(failed(&path, system_error(error)));
            }
            let lost_events = about.lost_events + (added - events);
            let about = About { lost_events, ..about.clone() };
            match close(partial.as_file_mut(), ends[complete.len()], &complete, &about) {
                Ok(()) => break events,
                // Without the last group there is room for the footer.
                Err(error) => {
                    complete.pop();
                    failure.get_or_insert(error);
                }
            }
        };
        if let Err(error) = partial.persist(&path) {
            let why = format!("{}; all of it is in {}", error.error, error.file.path().display());
            // Keeping the file may fail, too, but nothing can be done about that.
            let _ = error.file.keep();
            return Err(failed(&path, why));
        }
        match failure {
            None => Ok(()),
            Some(error) => {
                Err(ObserverError::CutShort { path, events, source: system_error(error) })
            }
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

fn begin(partial: &NamedTempFile) -> Result<SerializedFileWriter<File>> {
    let schema = Arc::new(parse_message_type(COLUMNS)?);
    // No indexes of pages: the writer keeps them in memory until the end, and no reader looks up
    // single rows.
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let file = partial.as_file().try_clone()?;
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    // If the disk is full already, this fails at once.
    writer.flush()?;
    Ok(writer)
}

/// Ends the file after these groups. The library's writer cannot leave out a group for which there
/// was no room.
fn close(file: &mut File, end: u64, groups: &[RowGroupMetaData], about: &About) -> Result<()> {
    let json = serde_json::to_string(about).map_err(|e| ParquetError::External(e.into()))?;
    let schema = SchemaDescriptor::new(Arc::new(parse_message_type(COLUMNS)?));
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

fn write_group(file: &mut SerializedFileWriter<File>, rows: &[Note], about: &About) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
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
    use std::os::unix::fs::{MetadataExt, symlink};
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
    }

    #[test]
    fn groups_that_are_complete_when_the_disk_becomes_full_are_kept() {
        let recording = recording();
        // Times that compress badly, like a real host's.
        let notes = |group: i64| {
            let mut notes = vec![recording.notes[0]; GROUP];
            for (i, note) in (0..).zip(&mut notes) {
                let ns = (group * GROUP as i64 + i) * 7919 % 1_000_000_000;
                (note.begin_ns, note.end_ns) = (note.begin_ns + ns / 2, note.begin_ns + ns);
            }
            notes
        };
        let Some(path) = std::env::var_os(FULL).map(PathBuf::from) else {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a");
            run_with_disk_of(
                1500,
                "groups_that_are_complete_when_the_disk_becomes_full_are_kept",
                &path,
            );
            let kept = read(&path).unwrap();
            let events = kept.notes.len();
            assert!(events >= GROUP && events.is_multiple_of(GROUP), "{events}");
            assert_eq!(kept.notes[..GROUP], notes(0));
            assert_eq!(kept.about.lost_events % GROUP as u64, 5);
            assert_eq!(files(dir.path()), 1);
            return;
        };
        let mut writer = Writer::create(&path).unwrap();
        let full = (0..100).find(|group| {
            writer.add(&notes(*group), &recording.about);
            writer.has_failed()
        });
        let about = About { lost_events: 5, ..recording.about.clone() };
        let error = message(&writer.finish(&about).unwrap_err());
        assert!(full.is_some() && error.contains("File too large"), "{error}");
        assert!(error.contains("events are in"), "{error}");
    }
}
