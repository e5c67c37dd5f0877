// SPDX-License-Identifier: GPL-2.0-or-later
//! Addresses of per-CPU variables, by the guest's own symbol table and its own view of its memory.
//! The reader on the host uses neither, so that this is an independent witness.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use holdfast_agent::protocol::{Failure, Reply, Witness, WitnessCpu};

const OFFSETS: &str = "__per_cpu_offset";

pub(crate) fn witness(symbols: &[String]) -> Result<Reply, Failure> {
    let failed = |what: &str, e: String| Failure::new(format!("{what}: {e}"));
    let table = fs::read_to_string("/proc/kallsyms")
        .map_err(|e| failed("reading /proc/kallsyms", e.to_string()))?;
    let address = |name: &str| {
        find_symbol(&table, name)
            .ok_or_else(|| Failure::new(format!("/proc/kallsyms has no symbol {name}")))
    };
    let core = Core::open().map_err(|e| failed("reading /proc/kcore", e))?;
    let offsets = address(OFFSETS)?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut cpus = Vec::new();
    for cpu in cpu_list(online.trim()) {
        let at = offsets + 8 * u64::from(cpu);
        let offset = core.u64(at).map_err(|e| failed(OFFSETS, e))?;
        let mut found = BTreeMap::new();
        for name in symbols {
            // Absolute symbols near 0 before Linux 6.15, addresses in the image since; both add up.
            let va = address(name)?.wrapping_add(offset);
            let gpa = core.physical(va).map_err(|e| failed(name, e))?;
            found.insert(name.clone(), gpa);
        }
        cpus.push(WitnessCpu { cpu, symbols: found });
    }
    Ok(Reply::Witness(Witness { cpus }))
}

fn find_symbol(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().map(|l| l.split_ascii_whitespace());
    // A module's symbol has a fourth word.
    let mut line = lines.find(|l| {
        let mut words = l.clone().skip(2);
        words.next() == Some(name) && words.next().is_none()
    })?;
    u64::from_str_radix(line.next()?, 16).ok()
}

/// `0-3,5` as in `/sys/devices/system/cpu/online`.
fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

/// A `PT_LOAD` program header of `/proc/kcore`.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    vaddr: u64,
    paddr: u64,
    bytes: u64,
}

struct Core {
    file: File,
    segments: Vec<Segment>,
}

impl Core {
    fn open() -> Result<Self, String> {
        let file = File::open("/proc/kcore").map_err(|e| e.to_string())?;
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).map_err(|e| e.to_string())?;
        let count = usize::from(u16::from_le_bytes([head[56], head[57]]));
        let mut table = vec![0; count * 56];
        file.read_exact_at(&mut table, word(&head, 32)).map_err(|e| e.to_string())?;
        Ok(Core { file, segments: segments(&table) })
    }

    fn u64(&self, va: u64) -> Result<u64, String> {
        let s = self.segment(va)?;
        let mut bytes = [0; 8];
        let at = s.offset + (va - s.vaddr);
        self.file.read_exact_at(&mut bytes, at).map_err(|e| format!("at {va:#x}: {e}"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn physical(&self, va: u64) -> Result<u64, String> {
        let s = self.segment(va)?;
        match s.paddr {
            u64::MAX => Err(format!("/proc/kcore does not say what {va:#x} is mapped to")),
            paddr => Ok(paddr + (va - s.vaddr)),
        }
    }

    fn segment(&self, va: u64) -> Result<&Segment, String> {
        let holds = |s: &&Segment| va.checked_sub(s.vaddr).is_some_and(|d| d < s.bytes);
        self.segments.iter().find(holds).ok_or_else(|| format!("/proc/kcore lacks {va:#x}"))
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn segments(table: &[u8]) -> Vec<Segment> {
    const PT_LOAD: [u8; 4] = 1u32.to_le_bytes();
    let headers = table.chunks_exact(56).filter(|h| h[..4] == PT_LOAD);
    headers
        .map(|h| Segment {
            offset: word(h, 8),
            vaddr: word(h, 16),
            paddr: word(h, 24),
            bytes: word(h, 40),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_symbols_of_the_kernel_and_not_of_modules() {
        let table = "0000000000034980 A pcpu_hot\nffffffffc0000000 t steal_time\t[kvm]\n\
                     0000000000035040 A steal_time\n";
        assert_eq!(find_symbol(table, "steal_time"), Some(0x35040));
        assert_eq!(find_symbol(table, "pcpu_hot"), Some(0x34980));
        assert_eq!(find_symbol(table, "pcpu"), None);
    }

    #[test]
    fn reads_cpu_lists() {
        assert_eq!(cpu_list("0-3,5"), [0, 1, 2, 3, 5]);
        assert_eq!(cpu_list("0"), [0]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn reads_program_headers() {
        let mut header = vec![0u8; 56];
        header[0] = 1;
        for (at, value) in [(8, 0x1000u64), (16, 0xffff_8880_0000_0000), (24, 0), (40, 0x2000)] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let mut note = header.clone();
        note[0] = 4;
        let table = [note, header].concat();
        let found = segments(&table);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].vaddr, 0xffff_8880_0000_0000);
        assert_eq!(found[0].bytes, 0x2000);
    }
}
