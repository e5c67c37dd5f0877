// SPDX-License-Identifier: GPL-2.0-or-later
//! Whole BTF of real kernels of any version, from the lab's cache.
//!
//! Without kernels each test prints that it is skipped. `HOLDFAST_KERNELS` names another directory
//! with files called `vmlinuz*`.

mod common;

use std::{
    env, fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use common::{FakeMemory, start_vcpus};
use holdfast_guest::{
    BuildId, Layout, LayoutError, Reader,
    scan::{Effort, scan},
    source,
};

struct Kernel {
    name: String,
    btf: Vec<u8>,
    /// The whole uncompressed image.
    image: PathBuf,
    _dir: tempfile::TempDir,
}

fn find(dir: &Path, depth: u32, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            find(&entry.path(), depth - 1, out);
        } else if kind.is_file() && entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            out.push(entry.path());
        }
    }
}

/// The vmlinux in a vmlinuz: Documentation/arch/x86/boot.rst, `setup_sects` and `payload_offset`.
fn unpack(vmlinuz: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(vmlinuz[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(&vmlinuz[0x202..0x206], b"HdrS", "an x86 boot image");
    let start = (usize::from(vmlinuz[0x1f1]) + 1) * 512 + word(0x248);
    let payload = &vmlinuz[start..start + word(0x24c)];
    let mut image = Vec::new();
    match &payload[..4] {
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(payload).unwrap();
            decoder.read_to_end(&mut image).unwrap();
        }
        // Legacy frame: blocks of at most 8 MiB, each after its length; the payload's last word is
        // the length of the image.
        [0x02, 0x21, 0x4c, 0x18] => {
            let (mut at, end) = (4, payload.len() - 4);
            while at < end {
                let len = u32::from_le_bytes(payload[at..at + 4].try_into().unwrap()) as usize;
                let block = &payload[at + 4..at + 4 + len];
                image.extend(lz4_flex::block::decompress(block, 8 << 20).unwrap());
                at += 4 + len;
            }
        }
        other => panic!("kernel compressed in an unknown way: {other:x?}"),
    }
    image
}

/// The kernels in the lab's cache, unpacked once.
fn kernels() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let from = |name: &str| env::var_os(name).map(PathBuf::from);
        let cache = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")));
        let dir = from("HOLDFAST_KERNELS").or_else(|| cache.map(|dir| dir.join("holdfast")));
        let mut paths = Vec::new();
        find(&dir.clone().unwrap_or_default(), 8, &mut paths);
        paths.sort();
        if paths.is_empty() {
            eprintln!("skipped: no kernels in {dir:?}; run a lab experiment first");
        }
        paths
            .iter()
            .map(|path| {
                let dir = tempfile::tempdir().unwrap();
                let image = dir.path().join("vmlinux");
                fs::write(&image, unpack(&fs::read(path).unwrap())).unwrap();
                let btf = source::load(&image).unwrap();
                Kernel { name: path.display().to_string(), btf, image, _dir: dir }
            })
            .collect()
    })
}

/// None of Debian 11's kernel, whose BTF has no variables: in the emulated tests its layout is that
/// of its symbol table.
fn layout_of(kernel: &Kernel) -> Option<Layout> {
    match Layout::from_btf(&kernel.btf) {
        Err(LayoutError::NoPerCpu) if kernel.name.contains("vmlinuz-5.10.") => None,
        layout => Some(layout.unwrap_or_else(|e| panic!("{}: {e}", kernel.name))),
    }
}

#[test]
fn layouts_agree_with_bpftool() {
    for kernel in kernels() {
        let Some(layout) = layout_of(kernel) else { continue };
        assert!(layout.queue.is_some() && layout.self_pointer.is_some(), "{}", kernel.name);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &kernel.btf).unwrap();
        let dump = Command::new("bpftool")
            .args(["btf", "dump", "file"])
            .arg(file.path())
            .args(["format", "raw"])
            .output();
        let Ok(dump) = dump else {
            eprintln!("skipped: no bpftool to compare {} with", kernel.name);
            continue;
        };
        let dump = String::from_utf8_lossy(&dump.stdout);
        let offset = |name: &str| {
            let suffix = format!("(VAR '{name}')");
            let line = dump.lines().find(|line| line.ends_with(&suffix))?;
            let (_, rest) = line.split_once("offset=")?;
            rest.split(' ').next()?.parse::<u32>().ok()
        };
        assert_eq!(offset("steal_time"), Some(layout.steal_time), "{}", kernel.name);
        assert_eq!(offset("qnodes"), layout.queue.map(|queue| queue.at), "{}", kernel.name);
        assert_eq!(offset("this_cpu_off"), layout.this_cpu_off, "{}", kernel.name);
        assert_eq!(offset("idle_threads"), layout.idle_task, "{}", kernel.name);
        assert_eq!(offset("call_single_queue"), layout.call_queue, "{}", kernel.name);
        // `struct pcpu_hot` is { current_task, preempt_count, cpu_number, .. } in all that have it.
        let hot = offset("pcpu_hot");
        let count = offset("__preempt_count").or(hot.map(|hot| hot + 8));
        assert_eq!(count, Some(layout.preempt_count), "{}", kernel.name);
        let number = offset("cpu_number").or(hot.map(|hot| hot + 12));
        assert_eq!(number, Some(layout.cpu_number), "{}", kernel.name);
    }
}

#[test]
fn the_sampled_pass_finds_the_blob_in_a_kernel_image() {
    for kernel in kernels() {
        let Some(layout) = layout_of(kernel) else { continue };
        // The image as in guest memory, except for relocations, followed by vCPUs.
        let image = fs::read(&kernel.image).unwrap();
        let mut mem = FakeMemory::new((8 << 20) + image.len().next_multiple_of(1 << 20));
        mem.put(8 << 20, &image);
        let records = start_vcpus(&mut mem, &layout, 4, 0);
        let found = scan(&mem, &[mem.slot()], Effort::Sampled).unwrap();
        let builds: Vec<_> = found.blobs.iter().map(|blob| BuildId::of(&blob.bytes)).collect();
        assert_eq!(builds, [BuildId::of(&kernel.btf)], "{}", kernel.name);
        let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(*guest.layout(), layout, "{}", kernel.name);
        let release = guest.kernel().release.clone().expect("the banner is in the image");
        assert!(kernel.name.contains(&release), "{release} is not {}", kernel.name);
    }
}

#[test]
fn a_cut_blob_of_real_size_is_an_error() {
    for kernel in kernels() {
        for eighth in 0..8 {
            let cut = kernel.btf.len() / 8 * eighth;
            assert!(Layout::from_btf(&kernel.btf[..cut]).is_err(), "{} at {cut}", kernel.name);
        }
    }
}
