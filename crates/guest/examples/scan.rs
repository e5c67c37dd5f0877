// SPDX-License-Identifier: GPL-2.0-or-later
//! Measures how long finding BTF in a guest takes: `scan [GIB] [BLOB]`.
//!
//! A child process stands in for the VMM. Its memory resembles a guest's: files (libraries and
//! programs with their string tables, in pages scattered as in a page cache), text, heaps full of
//! pointers, zeroed pages, and BLOB near the end (a raw kernel BTF; by default the reduced one of
//! the tests, padded to real size). Prints one line for each pass and backing of memory.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use holdfast_guest::{
    BuildId, Gpa, Hva, Layout, ProcessMemory, Slot,
    scan::{Effort, scan},
};

const CHILD: &str = "HOLDFAST_SCAN_CHILD";
const PAGE: usize = 4096;

/// xorshift64: enough to scatter pages, and the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Up to `limit` bytes of this machine's own libraries, programs and texts.
fn files(limit: usize) -> Vec<u8> {
    let mut todo: Vec<PathBuf> =
        ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/share/doc"].map(Into::into).into();
    let mut bytes = Vec::new();
    while let Some(dir) = todo.pop() {
        let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::path);
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() && bytes.len() < limit {
                bytes.extend(fs::read(entry.path()).unwrap_or_default());
                bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
            }
        }
    }
    bytes
}

/// The padded reduced blob, or the given file.
fn blob(path: Option<&String>) -> Vec<u8> {
    if let Some(path) = path {
        return fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    let mut blob = include_bytes!("../tests/data/linux-6.12.btf").to_vec();
    let before = blob.len();
    for n in 0.. {
        if blob.len() > before + (2 << 20) {
            break;
        }
        blob.extend_from_slice(format!("kernel_symbol_{n}\0").as_bytes());
    }
    let strings = u32::from_le_bytes(blob[20..24].try_into().unwrap());
    let grown = strings + (blob.len() - before) as u32;
    blob[20..24].copy_from_slice(&grown.to_le_bytes());
    blob
}

fn fill(memory: &mut [u8], blob: &[u8]) {
    let (files, mut random) = (files(1 << 30), Random(0x9e37_79b9_7f4a_7c15));
    let nr_pages = (files.len() / PAGE).max(1) as u64;
    let mut at = 0;
    while at < memory.len() {
        // Folios of the page cache and heaps come in pieces of 1 to 64 pages.
        let len = ((1 + random.next() as usize % 64) * PAGE).min(memory.len() - at);
        let piece = &mut memory[at..at + len];
        match random.next() % 8 {
            0..=3 if !files.is_empty() => {
                let from = (random.next() % nr_pages) as usize * PAGE;
                let len = len.min(files.len() - from);
                piece[..len].copy_from_slice(&files[from..from + len]);
            }
            4 => piece.fill(0),
            _ => {
                for word in piece.chunks_exact_mut(8) {
                    let value = random.next();
                    let word_value =
                        if value % 3 == 0 { 0x7f00_0000_0000 | value >> 20 } else { value % 4096 };
                    word.copy_from_slice(&word_value.to_le_bytes());
                }
            }
        }
        at += len;
    }
    let at = memory.len() / 100 * 93 / PAGE * PAGE + 0x85c;
    memory[at..at + blob.len()].copy_from_slice(blob);
}

/// The VMM's side: maps memory, fills it, prints its address, and waits.
fn child(order: &str) {
    let mut parts = order.splitn(3, ' ');
    let (backing, len) = (parts.next().unwrap(), parts.next().unwrap().parse::<usize>().unwrap());
    let path = parts.next().filter(|path| !path.is_empty()).map(str::to_owned);
    let sharing = if backing == "shared" { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | sharing);
    // SAFETY: a new anonymous mapping of our own.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let advice = if backing == "huge" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: advice about the mapping just made.
    unsafe { libc::madvise(map, len, advice) };
    // SAFETY: `len` mapped, zeroed bytes without another reference.
    let memory = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
    fill(memory, &blob(path.as_ref()));
    println!("{}", map as usize);
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// CPU time of this process so far, all threads. On a busy machine it says more than elapsed time.
fn cpu_ms() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

fn main() {
    if let Ok(order) = env::var(CHILD) {
        return child(&order);
    }
    let args: Vec<String> = env::args().collect();
    let gib: u64 = args.get(1).map_or(4, |arg| arg.parse().expect("GIB is a number"));
    let path = args.get(2);
    let expected = BuildId::of(&blob(path));
    println!("{gib} GiB guest, blob of {} kB, build {expected}", blob(path).len() >> 10);
    println!(
        "{:<8} {:<11} {:>10} {:>14} {:>12}",
        "memory", "pass", "time_ms", "resident_MiB", "read_MiB"
    );
    for backing in ["private", "huge", "shared"] {
        let order = format!("{backing} {} {}", gib << 30, path.map_or("", String::as_str));
        let mut vmm = Command::new(env::current_exe().expect("our own path"))
            .env(CHILD, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts itself");
        let mut line = String::new();
        BufReader::new(vmm.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = Hva::new(line.trim().parse().expect("the child fills its memory"));
        let slot = Slot::new(Gpa::new(0), address, gib << 30).unwrap();
        let mem = ProcessMemory::open(vmm.id()).unwrap();
        for effort in [Effort::Sampled, Effort::Exhaustive] {
            let (start, cpu_start) = (Instant::now(), cpu_ms());
            let found = scan(&mem, &[slot], effort).unwrap();
            let time = start.elapsed();
            println!(
                "{backing:<8} {:<11} {:>10.1} {:>10.1} {:>14} {:>12}",
                format!("{effort:?}").to_lowercase(),
                time.as_secs_f64() * 1e3,
                cpu_ms() - cpu_start,
                found.resident_bytes >> 20,
                found.read_bytes >> 20,
            );
            let hit = found.blobs.iter().any(|blob| BuildId::of(&blob.bytes) == expected);
            assert!(hit, "the {effort:?} pass found {:?}", found.blobs);
        }
        let found = scan(&mem, &[slot], Effort::Sampled).unwrap();
        let start = Instant::now();
        let layout = Layout::from_btf(&found.blobs[0].bytes).expect("a layout");
        println!("{backing:<8} {:<11} {:>10.1}", "layout", start.elapsed().as_secs_f64() * 1e3);
        assert!(layout.area_len > 0);
        drop(vmm.stdin.take());
        vmm.wait().unwrap();
    }
}
