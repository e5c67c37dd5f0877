// SPDX-License-Identifier: GPL-2.0-or-later
//! Rows of a recording as a group of a Parquet file.

use std::collections::HashMap;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;

use super::checkpoint::MAGIC;
use super::schema::COLUMNS;
use super::{About, Note, RecordedVm, numbers};

pub(super) fn columns() -> Result<Arc<Type>> {
    Ok(Arc::new(parse_message_type(COLUMNS)?))
}

/// Rows as the group of this number that begins at `at` of the file: its bytes, and where its
/// columns are. The library's writer cannot write a group again, smaller, if there is no room.
pub(super) fn encode(
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
    let of_vm = |f: &dyn Fn(&RecordedVm) -> Option<ByteArray>| {
        optional(rows.iter().map(|note| vms.get(&note.vm).and_then(|vm| f(vm))))
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
            (7, ColumnWriter::ByteArrayColumnWriter(w)) => {
                let uuid = |vm: &RecordedVm| vm.uuid.as_deref().map(ByteArray::from);
                let (values, levels) = of_vm(&uuid);
                w.write_batch(&values, Some(&levels), None)
            }
            (8, ColumnWriter::ByteArrayColumnWriter(w)) => {
                let tier = |vm: &RecordedVm| vm.guest.tier.map(|tier| ByteArray::from(tier.name()));
                let (values, levels) = of_vm(&tier);
                w.write_batch(&values, Some(&levels), None)
            }
            (9, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.tid), None, None)
            }
            (10, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.vcpu), None, None)
            }
            (11, ColumnWriter::ByteArrayColumnWriter(w)) => {
                w.write_batch(&text(&|n| n.class.name().into()), None, None)
            }
            (12, ColumnWriter::Int32ColumnWriter(w)) => {
                w.write_batch(&int32(&|n| n.cpu), None, None)
            }
            (13, ColumnWriter::Int64ColumnWriter(w)) => {
                let (values, levels) = optional(rows.iter().map(|n| n.siblings.map(|s| s as i64)));
                w.write_batch(&values, Some(&levels), None)
            }
            (14, ColumnWriter::BoolColumnWriter(w)) => {
                let (values, levels) = bool(|n| n.holder_off);
                w.write_batch(&values, Some(&levels), None)
            }
            (15, ColumnWriter::BoolColumnWriter(w)) => {
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
