// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest kernels' BTF from files: raw, or the `.BTF` section of an ELF image.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::{
    btf::{BLOB_MAX, MAGIC},
    layout::{BuildId, Layout, LayoutError},
};

const ELF_MAGIC: &[u8; 4] = b"\x7fELF";
/// Most sections read; a vmlinux has about 50.
const SECTIONS_MAX: u16 = 4096;

/// A path as text that does not steer a terminal: names of files are their owners' choice.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// Reasons why a file gives no BTF of a guest kernel; each text is one line.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read {}: {why}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// The directory has no files.
    #[error(
        "{} is a directory without files: put copies of the guests' /sys/kernel/btf/vmlinux \
         there, under any names",
        shown(path)
    )]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// The file is neither raw BTF nor an ELF file.
    #[error(
        "{} is neither raw BTF nor an ELF file: give a copy of the guest's \
         /sys/kernel/btf/vmlinux, or its vmlinux (scripts/extract-vmlinux in the sources of Linux \
         makes one of a vmlinuz)",
        shown(path)
    )]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// The file is an ELF file without BTF.
    #[error(
        "{} has no .BTF section of a sane size: not a kernel with CONFIG_DEBUG_INFO_BTF; give \
         a copy of the guest's /sys/kernel/btf/vmlinux",
        shown(path)
    )]
    NoSection {
        /// The file.
        path: PathBuf,
    },
    /// The BTF has no layout of a guest kernel.
    #[error(
        "{}: {why}; give BTF of a kernel that guests run, such as a copy of a guest's \
         /sys/kernel/btf/vmlinux",
        shown(path)
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// The error in the BTF.
        why: LayoutError,
    },
}

/// Guest kernels whose BTF was given as a file, or as a directory of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BtfFiles {
    path: PathBuf,
    pub(crate) kernels: Vec<(BuildId, Layout)>,
}

impl BtfFiles {
    /// Reads a file, or every regular file in a directory: raw BTF (as in
    /// `/sys/kernel/btf/vmlinux`) or an ELF file with a `.BTF` section (`vmlinux`). Every file has
    /// to be usable.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, SourceError> {
        let path = path.into();
        let read_error = |path: &Path| {
            let path = path.to_owned();
            move |why| SourceError::Read { path, why }
        };
        let mut files = vec![path.clone()];
        if fs::metadata(&path).map_err(read_error(&path))?.is_dir() {
            let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            files = entries.map_err(read_error(&path))?.iter().map(fs::DirEntry::path).collect();
            files.retain(|file| fs::metadata(file).is_ok_and(|found| found.is_file()));
            files.sort();
            if files.is_empty() {
                return Err(SourceError::Empty { path });
            }
        }
        let kernel = |path: &PathBuf| {
            let blob = load(path)?;
            let layout = Layout::from_btf(&blob);
            let layout = layout.map_err(|why| SourceError::Layout { path: path.clone(), why })?;
            Ok((BuildId::of(&blob), layout))
        };
        let kernels = files.iter().map(kernel).collect::<Result<_, _>>()?;
        Ok(Self { path, kernels })
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads the BTF blob in `path`.
pub fn load(path: &Path) -> Result<Vec<u8>, SourceError> {
    let path_buf = || path.to_owned();
    let read_error = |why| SourceError::Read { path: path_buf(), why };
    // Opening a pipe may block for ever.
    if !fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(SourceError::Kind { path: path_buf() });
    }
    let mut file = File::open(path).map_err(read_error)?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|_| SourceError::Kind { path: path_buf() })?;
    if magic == MAGIC {
        return read_part(&mut file, 0, None).map_err(read_error);
    }
    if magic != *ELF_MAGIC {
        return Err(SourceError::Kind { path: path_buf() });
    }
    let section = match btf_section(&mut file) {
        Ok(section) => section,
        // Tables beyond the end of the file, or of what a file can have.
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput) => None,
        Err(e) => return Err(read_error(e)),
    };
    let Some((at, len)) = section.filter(|(_, len)| (1..=BLOB_MAX).contains(len)) else {
        return Err(SourceError::NoSection { path: path_buf() });
    };
    let blob = read_part(&mut file, at, Some(len)).map_err(read_error)?;
    match blob.len() as u64 == len {
        true => Ok(blob),
        false => Err(SourceError::NoSection { path: path_buf() }),
    }
}

/// Offset and length of `.BTF` in a little-endian 64-bit ELF file (elf(5)).
fn btf_section(file: &mut File) -> io::Result<Option<(u64, u64)>> {
    let header = read_exactly::<64>(file, 0)?;
    if header[4..6] != [2, 1] {
        return Ok(None);
    }
    let sections_at = u64_at(&header, 0x28);
    let (entry_len, count) = (u16_at(&header, 0x3a), u16_at(&header, 0x3c).min(SECTIONS_MAX));
    let names_index = u16_at(&header, 0x3e);
    if entry_len != 64 || names_index >= count {
        return Ok(None);
    }
    let section = |file: &mut File, index: u16| {
        read_exactly::<64>(file, sections_at.saturating_add(u64::from(index) * 64))
    };
    let names_at = u64_at(&section(file, names_index)?, 0x18);
    for index in 0..count {
        let entry = section(file, index)?;
        let name = u32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
        match read_exactly::<5>(file, names_at.saturating_add(name.into())) {
            Ok(name) if name == *b".BTF\0" => {
                return Ok(Some((u64_at(&entry, 0x18), u64_at(&entry, 0x20))));
            }
            Ok(_) => {}
            // The name may be shorter, at the very end of the file.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

fn read_part(file: &mut File, at: u64, len: Option<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(len.unwrap_or(BLOB_MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_exactly<const N: usize>(file: &mut File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8; 64], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u64_at(bytes: &[u8; 64], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
