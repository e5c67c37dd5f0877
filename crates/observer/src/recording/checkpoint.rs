// SPDX-License-Identifier: GPL-2.0-or-later
//! Checkpoints of a recording that is being written.
//!
//! A Parquet file has the places of its groups at its end, so one without an end cannot be read. A
//! file in the making therefore has a head before each group and a footer of that group alone after
//! it. With these, all groups before a torn one are found again. In the finished file they are
//! bytes between groups, which readers of Parquet skip.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::schema::types::SchemaDescriptor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::About;
use super::encode::columns;
use super::schema::KEY;

/// The first bytes of a Parquet file.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// The first bytes of a checkpoint.
const HEAD_MAGIC: &[u8; 8] = b"HFCHECK1";
/// Bytes before a group: those, its length, that of its footer, and a checksum of both.
pub(super) const HEAD_LEN: usize = 32;
/// Key of a [`Mark`] in the footer of a group.
const MARK: &str = "holdfast.checkpoint";
/// Longest footer of a group: names of very many VMs are in it.
const MAX_FOOTER_LEN: u64 = 64 << 20;
/// The footer's own length and the magic end a Parquet file.
const END_LEN: usize = 8;

/// What a checkpoint tells of the recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The name that the file is to get.
    pub(super) name: String,
    /// End of the recording so far.
    pub(super) end_ns: i64,
    /// Notes that were lost so far.
    pub(super) lost_events: u64,
    /// The metadata, if it differs from that of the checkpoint before in more than these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<Value>,
}

/// A group as a checkpoint.
pub(super) fn checkpoint(pages: &[u8], group: &RowGroupMetaData, mark: &Mark) -> Result<Vec<u8>> {
    let json = json(mark)?;
    let schema = Arc::new(SchemaDescriptor::new(columns()?));
    let mark = KeyValue::new(MARK.to_owned(), json);
    let footer = footer(schema, std::slice::from_ref(group), vec![mark])?;
    let mut bytes = Vec::with_capacity(HEAD_LEN + pages.len() + footer.len());
    bytes.extend_from_slice(HEAD_MAGIC);
    for number in [pages.len() as u64, footer.len() as u64, checksum(&[pages, &footer])] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(pages);
    bytes.extend_from_slice(&footer);
    Ok(bytes)
}

/// The end of a file with these groups.
pub(super) fn end_of(groups: &[RowGroupMetaData], about: &About) -> Result<Vec<u8>> {
    let schema = Arc::new(SchemaDescriptor::new(columns()?));
    footer(schema, groups, vec![KeyValue::new(KEY.to_owned(), json(about)?)])
}

pub(super) fn json(what: &impl Serialize) -> Result<String> {
    serde_json::to_string(what).map_err(|error| ParquetError::External(error.into()))
}

fn footer(
    schema: Arc<SchemaDescriptor>,
    groups: &[RowGroupMetaData],
    pairs: Vec<KeyValue>,
) -> Result<Vec<u8>> {
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let written_by = concat!("holdfast ", env!("CARGO_PKG_VERSION")).to_owned();
    let about = FileMetaData::new(1, rows, Some(written_by), Some(pairs), schema, None);
    let mut footer = Vec::new();
    let metadata = ParquetMetaData::new(about, groups.to_vec());
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
    Ok(footer)
}

/// Differs with any part of a group that was not written. It need not resist an attacker.
fn checksum(parts: &[&[u8]]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut add =
        |word: u64| sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    for part in parts {
        let mut words = part.chunks_exact(8);
        for word in words.by_ref() {
            add(u64::from_le_bytes(word.try_into().expect("it has 8 bytes")));
        }
        words.remainder().iter().for_each(|byte| add(u64::from(*byte)));
    }
    sum
}

/// What the checkpoints of an unfinished file have kept.
pub(super) struct Kept {
    /// The name that the file was to get.
    pub(super) name: String,
    /// Rows in the groups.
    pub(super) events: u64,
    /// End of the last group and its footer.
    pub(super) end: u64,
    /// What has to follow there, so that it is a Parquet file.
    pub(super) footer: Vec<u8>,
}

/// The checkpoints of a file up to the first that is not all there, and at most `max` of them. None
/// if there is none.
pub(super) fn kept(file: &File, max: usize) -> io::Result<Option<Kept>> {
    let len = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    if len < MAGIC.len() as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut magic, 0)?;
    if magic != MAGIC {
        return Ok(None);
    }
    let mut end = MAGIC.len() as u64;
    let (mut groups, mut schema, mut about, mut last) = (Vec::new(), None, None, None);
    while groups.len() < max
        && let Some((bytes, pages_len)) = checkpoint_at(file, end, len)?
        && let Some((group, of_file, mark)) = parsed(&bytes[pages_len..])
    {
        end += (HEAD_LEN + bytes.len()) as u64;
        groups.push(group);
        schema.get_or_insert(of_file);
        about = mark.about.clone().or(about);
        last = Some(mark);
    }
    let (Some(schema), Some(mut about), Some(mark)) = (schema, about, last) else {
        return Ok(None);
    };
    // Whatever else this version of the metadata has.
    about["end_ns"] = mark.end_ns.into();
    about["lost_events"] = mark.lost_events.into();
    let pairs = vec![KeyValue::new(KEY.to_owned(), about.to_string())];
    let footer = footer(schema, &groups, pairs).map_err(io::Error::other)?;
    let events = groups.iter().map(|group| group.num_rows().max(0) as u64).sum();
    Ok(Some(Kept { name: mark.name, events, end, footer }))
}

/// The group and its footer at this place, and the length of the group. None if they are not there,
/// or not all of them.
fn checkpoint_at(file: &File, at: u64, len: u64) -> io::Result<Option<(Vec<u8>, usize)>> {
    let mut head = [0; HEAD_LEN];
    let Some(room) = len.checked_sub(at + HEAD_LEN as u64) else { return Ok(None) };
    file.read_exact_at(&mut head, at)?;
    let number = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().expect("it has 8 bytes"));
    let (pages_len, footer_len, sum) = (number(8), number(16), number(24));
    let all = pages_len.checked_add(footer_len).filter(|all| *all <= room);
    let Some(all) = all.filter(|_| head[..8] == *HEAD_MAGIC && footer_len <= MAX_FOOTER_LEN) else {
        return Ok(None);
    };
    let mut bytes = vec![0; all as usize];
    file.read_exact_at(&mut bytes, at + HEAD_LEN as u64)?;
    let (pages, footer) = bytes.split_at(pages_len as usize);
    Ok((checksum(&[pages, footer]) == sum).then_some((bytes, pages_len as usize)))
}

fn parsed(footer: &[u8]) -> Option<(RowGroupMetaData, Arc<SchemaDescriptor>, Mark)> {
    let footer = &footer[..footer.len().checked_sub(END_LEN)?];
    let metadata = ParquetMetaDataReader::decode_metadata(footer).ok()?;
    let about = metadata.file_metadata();
    let pair = about.key_value_metadata()?.iter().find(|pair| pair.key == MARK)?;
    let mark: Mark = serde_json::from_str(pair.value.as_deref()?).ok()?;
    mark.about.as_ref().is_none_or(Value::is_object).then_some(())?;
    let [group] = metadata.row_groups() else { return None };
    Some((group.clone(), about.schema_descr_ptr(), mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_that_was_not_written_changes_the_checksum() {
        let bytes: Vec<u8> = (1..=99).collect();
        let whole = checksum(&[&bytes]);
        for torn in 0..bytes.len() {
            let mut zeroed = bytes.clone();
            zeroed[torn..].fill(0);
            assert_ne!(checksum(&[&zeroed]), whole, "from {torn}");
        }
    }
}
