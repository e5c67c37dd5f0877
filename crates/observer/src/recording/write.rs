// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes recordings.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::schema::{COLUMNS, KEY};
use super::{About, Note};
use crate::error::ObserverError;

/// Rows that are kept in memory at most: about 5 MB.
const GROUP: usize = 1 << 16;

/// A recording that is being written. It has its name only once it is complete: a file of Parquet
/// cannot be read before.
pub(super) struct Writer {
    path: PathBuf,
    partial: PathBuf,
    file: Option<SerializedFileWriter<File>>,
    rows: Vec<Note>,
}

impl Writer {
    pub(super) fn create(path: &Path) -> std::result::Result<Self, ObserverError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let failed = |source| failed(&partial, source);
        let file = File::create(&partial).map_err(|error| failed(error.into()))?;
        let schema = Arc::new(parse_message_type(COLUMNS).map_err(failed)?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), partial, file: Some(file), rows: Vec::new() })
    }

    /// Adds rows; they are in the file at the latest when it is finished.
    pub(super) fn add(
        &mut self,
        notes: &[Note],
        about: &About,
    ) -> std::result::Result<(), ObserverError> {
        self.rows.extend_from_slice(notes);
        if self.rows.len() >= GROUP { self.flush(about) } else { Ok(()) }
    }

    fn flush(&mut self, about: &About) -> std::result::Result<(), ObserverError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let rows = std::mem::take(&mut self.rows);
        write_group(file, &rows, about).map_err(|source| self.failed(source))
    }

    /// Writes what is left, and gives the file its name.
    pub(super) fn finish(mut self, about: &About) -> std::result::Result<(), ObserverError> {
        self.flush(about)?;
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let json = serde_json::to_string(about)
            .map_err(|error| self.failed(ParquetError::External(error.into())))?;
        file.append_key_value_metadata(KeyValue::new(KEY.to_owned(), json));
        let file = file.into_inner().map_err(|source| self.failed(source))?;
        file.sync_all()
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .map_err(|error| self.failed(error.into()))
    }

    fn failed(&self, source: ParquetError) -> ObserverError {
        failed(&self.path, source)
    }
}

fn failed(path: &Path, source: ParquetError) -> ObserverError {
    let source = match source {
        // What the system said, and no more than that.
        ParquetError::External(said) => said,
        other => other.into(),
    };
    ObserverError::File { action: "write the recording", path: path.to_owned(), source }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Of no use to anybody, and the disk may be full.
        let _ = fs::remove_file(&self.partial);
    }
}

fn write_group(file: &mut SerializedFileWriter<File>, rows: &[Note], about: &About) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let name = |pid: u32| {
        let vm = about.vms.iter().find(|vm| vm.pid == pid);
        vm.map(|vm| vm.label()).unwrap_or_default()
    };
    let int64 = |f: fn(&Note) -> i64| rows.iter().map(f).collect::<Vec<_>>();
    let int32 = |f: fn(&Note) -> u32| rows.iter().map(|n| f(n) as i32).collect::<Vec<_>>();
    let text = |f: &dyn Fn(&Note) -> String| {
        rows.iter().map(|note| ByteArray::from(f(note).as_str())).collect::<Vec<_>>()
    };
    let bool = |f: fn(&Note) -> bool| rows.iter().map(f).collect::<Vec<_>>();

    let mut group = file.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        match (number, column.untyped()) {
            (0, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(&int64(|n| n.begin_ns), None, None)
            }
            (1, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(&int64(|n| n.end_ns), None, None)
            }
            (2, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| n.event.name().into()), None, None)
            }
            (3, ColumnWriter::Int32ColumnWriter(w)) => w.write_batch(&int32(|n| n.vm), None, None),
            (4, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| name(n.vm)), None, None)
            }
            (5, ColumnWriter::Int32ColumnWriter(w)) => w.write_batch(&int32(|n| n.tid), None, None),
            (6, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(|n| n.vcpu), None, None)
            }
            (7, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| n.class.name().into()), None, None)
            }
            (8, ColumnWriter::Int32ColumnWriter(w)) => w.write_batch(&int32(|n| n.cpu), None, None),
            (9, ColumnWriter::Int64ColumnWriter(w)) => {
                w.write_batch(&int64(|n| n.siblings as i64), None, None)
            }
            (10, ColumnWriter::BoolColumnWriter(w)) => {
                w.write_batch(&bool(|n| n.holder_off), None, None)
            }
            (11, ColumnWriter::BoolColumnWriter(w)) => {
                w.write_batch(&bool(|n| n.head_off), None, None)
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
