// SPDX-License-Identifier: GPL-2.0-or-later
//! Files that a program needs to start: its loader, its libraries, and their libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection};

use crate::error::{Error, Result};

/// Loader and libraries that one file names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// `PT_INTERP`; none in libraries and static programs.
    pub(super) loader: Option<String>,
    /// `DT_NEEDED`.
    pub(super) libraries: Vec<String>,
}

/// Loader and libraries of one file; none if it is not an ELF file, e.g. a script.
pub(super) fn needs(path: &Path) -> Result<Needs> {
    let data = fs::read(path).map_err(Error::io("reading", path))?;
    if !data.starts_with(&elf::ELFMAG) {
        return Ok(Needs::default());
    }
    parse(&data).map_err(|e| Error::Image {
        image: "host".into(),
        why: format!("{} cannot be read as an ELF file: {e}", path.display()),
    })
}

fn parse(data: &[u8]) -> object::Result<Needs> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut found = Needs::default();
    for segment in segments {
        if let Some(loader) = segment.interpreter(endian, data)? {
            found.loader = Some(String::from_utf8_lossy(loader).into_owned());
        }
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let value = |tag: u32| {
            let entry = entries.iter().find(|d| d.d_tag(endian) == u64::from(tag));
            entry.map_or(0, |d| d.d_val(endian))
        };
        let strings = bytes_at(segments, endian, data, value(elf::DT_STRTAB), value(elf::DT_STRSZ));
        for entry in entries.iter().filter(|d| d.d_tag(endian) == u64::from(elf::DT_NEEDED)) {
            let name = strings.get(entry.d_val(endian) as usize..).unwrap_or_default();
            let name = name.split(|&b| b == 0).next().unwrap_or_default();
            found.libraries.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(found)
}

/// File contents at a virtual address.
fn bytes_at<'d>(
    segments: &[elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    data: &'d [u8],
    address: u64,
    bytes: u64,
) -> &'d [u8] {
    let mut found = segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD);
    found.find_map(|s| s.data_range(endian, data, address, bytes).ok()?).unwrap_or_default()
}

/// All libraries of a program, by name, and its loader; `find` locates a library.
pub(super) fn closure(
    program: &Path,
    find: impl Fn(&str) -> Option<PathBuf>,
) -> Result<(Option<String>, BTreeMap<String, PathBuf>)> {
    let Needs { loader, libraries: mut todo } = needs(program)?;
    let mut found = BTreeMap::new();
    while let Some(name) = todo.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let path = find(&name).ok_or_else(|| Error::Image {
            image: "host".into(),
            why: format!("{} needs {name}, which was not found", program.display()),
        })?;
        todo.extend(needs(&path)?.libraries);
        found.insert(name, path);
    }
    Ok((loader, found))
}

/// A library of this machine.
pub(super) fn find_on_machine(name: &str) -> Option<PathBuf> {
    const DIRECTORIES: [&str; 6] = [
        "/usr/local/lib",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/usr/lib",
    ];
    DIRECTORIES.iter().map(|d| Path::new(d).join(name)).find(|p| p.exists())
}

/// `depends=` of a kernel module.
pub(super) fn module_needs(module: &[u8]) -> Vec<String> {
    let Ok(file) = ElfFile64::<Endianness>::parse(module) else { return Vec::new() };
    let info = file.section_by_name(".modinfo").and_then(|s| s.data().ok()).unwrap_or_default();
    let depends = info.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(b"depends="));
    let text = String::from_utf8_lossy(depends.unwrap_or_default()).into_owned();
    text.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_this_very_program_needs() {
        let program = std::env::current_exe().unwrap();
        let (loader, libraries) = closure(&program, find_on_machine).unwrap();
        assert!(loader.unwrap().contains("ld-linux"));
        assert!(libraries.contains_key("libc.so.6"), "{libraries:?}");
        assert!(libraries["libc.so.6"].exists());
    }

    #[test]
    fn names_the_program_and_its_missing_library() {
        let program = std::env::current_exe().unwrap();
        let error = closure(&program, |_| None).unwrap_err().to_string();
        assert!(error.contains(".so") && error.contains("not found"), "{error}");
    }

    #[test]
    fn a_script_needs_nothing_known_here() {
        let script = tempfile::NamedTempFile::new().unwrap();
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(needs(script.path()).unwrap(), Needs::default());
    }
}
