// SPDX-License-Identifier: GPL-2.0-or-later
//! The bytes of a recording. One that is being written, or was cut short, has those of the Parquet
//! file that it would be.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::reader::{ChunkReader, Length};

/// The first bytes of a file, and an end in memory.
pub(super) struct Content {
    file: Arc<File>,
    /// Bytes of the file.
    len: u64,
    end: Bytes,
}

impl Content {
    pub(super) fn whole(file: File, len: u64) -> Self {
        Self::new(file, len, Vec::new())
    }

    pub(super) fn new(file: File, len: u64, end: Vec<u8>) -> Self {
        Self { file: Arc::new(file), len, end: end.into() }
    }
}

impl Length for Content {
    fn len(&self) -> u64 {
        self.len + self.end.len() as u64
    }
}

impl ChunkReader for Content {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let file = ReadAt { file: Arc::clone(&self.file), at: start };
        let file = file.take(self.len.saturating_sub(start));
        let skipped = start.saturating_sub(self.len).min(self.end.len() as u64);
        let end = io::Cursor::new(self.end.slice(skipped as usize..));
        Ok(Box::new(BufReader::new(file.chain(end))))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = Vec::new();
        self.get_read(start)?.take(length as u64).read_to_end(&mut bytes)?;
        match bytes.len() == length {
            true => Ok(bytes.into()),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// Reads a file from a place on, whatever else is read of it.
struct ReadAt {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
