// SPDX-License-Identifier: GPL-2.0-or-later
//! From memory to a guest that can be read, on fake guests made from real kernels' layouts.

mod common;

use std::{fs, io::Write, os::unix::fs::symlink, process::Command, sync::atomic::Ordering};

use common::{
    ALL, DIRECT_MAP, GPA, LINUX_6_12, LINUX_7_2, LINUX_7_3, Spec, area_at, boot, inflate,
    link_address,
};
use holdfast_guest::{
    BtfFiles, BuildId, Gpa, GuestMemory, Hva, Layout, Misfit, ReadError, Reader, Slot, VcpuRecord,
    scan::{Effort, scan},
};

fn guest(version: &str, blob: &[u8]) -> (common::FakeMemory, Vec<VcpuRecord>) {
    let link_address = link_address(version);
    boot(&Spec { blob, blob_at: 0x20_085c, nr_vcpus: 4, link_address })
}

#[test]
fn resolves_every_kernel_with_the_sampled_pass_alone() {
    for (version, reduced) in ALL {
        let blob = inflate(reduced, 600_000);
        let (mem, records) = guest(version, &blob);
        let sampled = scan(&mem, &[mem.slot()], Effort::Sampled).unwrap();
        assert_eq!(sampled.blobs.len(), 1, "{version}");
        assert_eq!(sampled.blobs[0].bytes, blob, "{version}");
        assert!(sampled.read_bytes < 4 << 20, "{version} read {}", sampled.read_bytes);

        let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(*guest.layout(), Layout::from_btf(reduced).unwrap(), "{version}");
        assert_eq!(guest.kernel().build, BuildId::of(&blob));
        for (n, vcpu) in guest.vcpus().iter().enumerate() {
            assert_eq!((vcpu.vcpu_idx, vcpu.cpu), (n as u32 * 2, n as u32));
            assert_eq!(vcpu.area, Gpa::new(GPA + area_at(n as u32)));
        }
        assert!(!mem.trespassed.load(Ordering::Relaxed));
    }
}

#[test]
fn distances_lead_from_the_steal_time_record_to_each_word() {
    for (version, blob) in ALL {
        let (mut mem, records) = guest(version, blob);
        let layout = Layout::from_btf(blob).unwrap();
        let call = DIRECT_MAP + 0x5000;
        common::wait_in_queue(&mut mem, &layout, 2, common::node_gva(&layout, 3));
        mem.put_u64(area_at(2) + u64::from(layout.call_queue.unwrap()), call);
        let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(guest.direct_map(), Some(DIRECT_MAP), "{version}");

        let deltas = guest.deltas();
        let queue = deltas.queue.unwrap();
        let at = |delta| Hva::new(records[2].steal_time.get().wrapping_add_signed(delta));
        let short = |delta| mem.read_u32(at(delta)).unwrap();
        let long = |delta: Option<i64>| mem.read_u64(at(delta.unwrap())).unwrap();
        assert_eq!(short(deltas.preempt_count) & !(1 << 31), 1, "{version}");
        assert_eq!(short(deltas.cpu_number), 2, "{version}");
        assert_eq!(long(deltas.current_task), 0xffff_9d00_c123_8000, "{version}");
        assert_eq!(long(deltas.idle_task), common::IDLE_TASK + 0x4000, "{version}");
        assert_eq!(long(deltas.call_queue), call, "{version}");
        assert_eq!([short(queue.count), short(queue.locked)], [1, 1], "{version}");
        assert_eq!(long(Some(queue.next)), common::node_gva(&layout, 3), "{version}");
    }
}

#[test]
fn finds_a_blob_too_small_for_the_sampled_pass() {
    for (version, blob) in ALL {
        let (mem, records) = guest(version, blob);
        assert!(scan(&mem, &[mem.slot()], Effort::Sampled).unwrap().blobs.is_empty());
        let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(guest.kernel().build, BuildId::of(blob), "{version}");
    }
}

#[test]
fn finds_a_blob_at_any_place_relative_to_chunks_windows_and_slots() {
    // Chunks are 256 KiB, windows 64 MiB; the fake mapping begins at a multiple of both.
    for around in [256 << 10, 64 << 20] {
        for blob_at in
            [around - 40, around - 24, around - 23, around - 4, around - 3, around - 1, around]
        {
            let mut mem = common::FakeMemory::new((64 << 20) + (1 << 20));
            mem.put(blob_at as usize, LINUX_7_2);
            let near = (around - 0x8000) / 4096..(around + 0x8000) / 4096;
            mem.absent = (0..65 << 8).filter(|page| !near.contains(page)).collect();
            let found = scan(&mem, &[mem.slot()], Effort::Exhaustive).unwrap();
            assert_eq!(found.blobs.len(), 1, "blob at {blob_at:#x}");
            assert_eq!(found.blobs[0].gpa(), Gpa::new(GPA + blob_at));
        }
    }
    let mut mem = common::FakeMemory::new(1 << 20);
    let last = (1 << 20) - LINUX_7_2.len();
    mem.put(last, LINUX_7_2);
    assert_eq!(scan(&mem, &[mem.slot()], Effort::Exhaustive).unwrap().blobs.len(), 1);
    // One byte less in the slot, and the blob would reach outside.
    let short = Slot::new(Gpa::new(GPA), Hva::new(common::BASE), (1 << 20) - 1).unwrap();
    assert!(scan(&mem, &[short], Effort::Exhaustive).unwrap().blobs.is_empty());
    assert!(!mem.trespassed.load(Ordering::Relaxed));
}

#[test]
fn does_not_touch_pages_that_are_not_resident() {
    let blob = inflate(LINUX_7_2, 600_000);
    let (mut mem, records) = guest("7.2", &blob);
    let pages = mem.bytes.len() as u64 / 4096;
    let blob_pages = 0x200..0x200 + blob.len() as u64 / 4096 + 2;
    let area_pages: Vec<u64> =
        (0..4).flat_map(|n| area_at(n) / 4096..area_at(n) / 4096 + 64).collect();
    mem.absent =
        (0..pages).filter(|p| !blob_pages.contains(p) && !area_pages.contains(p)).collect();
    Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
    assert!(!mem.trespassed.load(Ordering::Relaxed));

    // A hole in place of a vCPU's words is not a running kernel's.
    mem.absent.insert(area_at(3) / 4096 + 213_120 / 4096);
    let error = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(
        matches!(error, ReadError::Stale { source: Misfit::Absent { vcpu: 6 }, .. }),
        "{error}"
    );

    // A hole in the blob makes the blob unusable.
    mem.absent.insert(0x220);
    let error = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(matches!(error, ReadError::NoBtf { .. }), "{error}");
    assert!(!mem.trespassed.load(Ordering::Relaxed));
}

#[test]
fn picks_the_running_kernel_and_not_an_earlier_one() {
    for (running, old) in [("6.12", "7.2"), ("7.2", "6.12"), ("6.1", "7.2")] {
        let blob = |version| ALL.iter().find(|(v, _)| *v == version).unwrap().1;
        let (mut mem, records) = guest(running, &inflate(blob(running), 600_000));
        mem.put(0x10_0000, &inflate(blob(old), 600_000));
        let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(*guest.layout(), Layout::from_btf(blob(running)).unwrap(), "{running}");
    }
}

#[test]
fn reports_a_stale_blob_as_stale() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    mem.bytes[0x20_0000..0x20_0000 + 0x4000].fill(0);
    mem.put(0x20_0000, LINUX_6_12);
    let error = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(matches!(error, ReadError::Stale { candidates: 1, .. }), "{error}");
}

#[test]
fn two_builds_with_the_same_offsets_count_as_one() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    // A second build, whose per-CPU area is longer at its end.
    let mut other = LINUX_7_2.to_vec();
    let len = Layout::from_btf(LINUX_7_2).unwrap().area_len;
    let at = other.windows(4).position(|w| w == len.to_le_bytes()).unwrap();
    other[at..at + 4].copy_from_slice(&(len + 4096).to_le_bytes());
    assert_eq!(Layout::from_btf(&other).unwrap().area_len, len + 4096);
    mem.put(0x10_0000, &other);
    assert!(Reader::new().resolve_in(&mem, &[mem.slot()], &records).is_ok());
}

#[test]
fn refuses_two_kernels_that_fit_and_differ() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    // The same kernel, except that its queue nodes are elsewhere.
    let mut other = LINUX_7_2.to_vec();
    let offset = 209_664u32.to_le_bytes();
    let at = other.windows(4).position(|w| w == offset).unwrap();
    other[at..at + 4].copy_from_slice(&(209_664u32 + 1024).to_le_bytes());
    mem.put(0x10_0000, &other);
    let error = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(matches!(error, ReadError::Ambiguous(..)), "{error}");

    // The advice of the error helps.
    let mut files = Vec::new();
    for blob in [LINUX_7_2, &other] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(blob).unwrap();
        files.push(BtfFiles::load(file.path()).unwrap());
        let reader = Reader::with_files(&files[files.len() - 1..]);
        let guest = reader.resolve_in(&mem, &[mem.slot()], &records).unwrap();
        assert_eq!(*guest.layout(), Layout::from_btf(blob).unwrap());
    }
    let error = Reader::with_files(&files).resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(matches!(error, ReadError::Ambiguous(..)), "{error}");
}

#[test]
fn names_the_reason_why_records_do_not_fit() {
    let misfit = |spoil: &dyn Fn(&mut common::FakeMemory, &Layout)| {
        let (mut mem, records) = guest("7.2", LINUX_7_2);
        spoil(&mut mem, &Layout::from_btf(LINUX_7_2).unwrap());
        match Reader::new().resolve_in(&mem, &[mem.slot()], &records) {
            Err(ReadError::Stale { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    };
    let at = |n: u32, offset: u32| area_at(n) + u64::from(offset);
    let same = misfit(&|mem, l| mem.put_u32(at(1, l.cpu_number), 3));
    assert_eq!(same, Misfit::SameCpu { vcpus: [2, 6], cpu: 3 });
    let wild = misfit(&|mem, l| mem.put_u32(at(1, l.cpu_number), 70_000));
    assert!(matches!(wild, Misfit::Value { vcpu: 2, name: "cpu_number", value: 70_000 }));
    let off = misfit(&|mem, l| mem.put_u64(at(2, l.this_cpu_off.unwrap()), 1));
    assert!(matches!(off, Misfit::Distance { vcpus: [0, 4], name: "this_cpu_off" }));
    let task = misfit(&|mem, l| mem.put_u64(at(0, l.current_task.unwrap()), 0x1000));
    assert!(matches!(task, Misfit::Value { vcpu: 0, name: "current_task", .. }));
    let count = misfit(&|mem, l| mem.put_u32(at(0, l.preempt_count), 0x0100_0000));
    assert!(matches!(count, Misfit::Value { vcpu: 0, name: "preempt_count", .. }));
    // Of the upper half of a count of 64 bits only the highest bit is used.
    let (mut mem, records) = guest("7.3", LINUX_7_3);
    let layout = Layout::from_btf(LINUX_7_3).unwrap();
    mem.put_u32(at(0, layout.preempt_count) + 4, 0x8000_0001);
    match Reader::new().resolve_in(&mem, &[mem.slot()], &records) {
        Err(ReadError::Stale { source: Misfit::Value { name: "preempt_count", .. }, .. }) => (),
        other => panic!("{other:?}"),
    }
    let clock = misfit(&|mem, l| mem.put_u64(at(3, l.self_pointer.unwrap().pointer), 0x1234));
    assert!(matches!(clock, Misfit::Value { vcpu: 6, .. }));
}

#[test]
fn waits_for_a_kernel_that_has_not_set_up_its_clocks() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    let clock = Layout::from_btf(LINUX_7_2).unwrap().self_pointer.unwrap();
    for n in 0..4 {
        mem.put_u64(area_at(n) + u64::from(clock.pointer), 0);
    }
    let resolve = |mem: &common::FakeMemory| Reader::new().resolve_in(mem, &[mem.slot()], &records);
    match resolve(&mem) {
        Err(ReadError::Stale { source: Misfit::Booting, .. }) => (),
        other => panic!("{other:?}"),
    }
    // One clock is enough for all CPUs: offline CPUs have none.
    let pointer = common::DIRECT_MAP + common::GPA + area_at(2) + u64::from(clock.target);
    mem.put_u64(area_at(2) + u64::from(clock.pointer), pointer);
    assert_eq!(resolve(&mem).unwrap().direct_map(), Some(common::DIRECT_MAP));
}

#[test]
fn refuses_records_that_contradict_themselves_or_leave_the_slot() {
    let (mem, records) = guest("7.2", LINUX_7_2);
    let slots = [mem.slot()];
    let resolve = |records: &[VcpuRecord]| Reader::new().resolve_in(&mem, &slots, records);
    assert!(matches!(resolve(&[]), Err(ReadError::NoStealTime)));
    let elsewhere = VcpuRecord { steal_time: Hva::new(0x1000), ..records[0] };
    assert!(matches!(resolve(&[elsewhere]), Err(ReadError::BadRecord { vcpu: 0, .. })));
    let shifted = VcpuRecord::new(9, Gpa::new(GPA + 0x70_0040), mem.slot()).unwrap();
    let error = resolve(&[shifted]).unwrap_err();
    assert!(
        matches!(error, ReadError::Stale { source: Misfit::Unaligned { vcpu: 9, .. }, .. }),
        "{error}"
    );
    // The record is in the slot, but the area it belongs to begins before it.
    let layout = Layout::from_btf(LINUX_7_2).unwrap();
    let low = Gpa::new(GPA + u64::from(layout.steal_time) % 4096);
    let error = resolve(&[VcpuRecord::new(9, low, mem.slot()).unwrap()]).unwrap_err();
    assert!(
        matches!(error, ReadError::Stale { source: Misfit::OutsideSlot { vcpu: 9 }, .. }),
        "{error}"
    );
    assert!(!mem.trespassed.load(Ordering::Relaxed));
}

#[test]
fn takes_btf_from_files_when_memory_has_none() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    mem.bytes[0x20_0000..0x20_4000].fill(0);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        BtfFiles::load(path).unwrap()
    };
    let resolve =
        |files: &[BtfFiles]| Reader::with_files(files).resolve_in(&mem, &[mem.slot()], &records);
    let text = |files: &[BtfFiles]| match resolve(files) {
        Err(error @ ReadError::NoBtf { resident_mib: 8, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let none = text(&[]);
    assert!(none.contains("guest memory: "), "{none}");
    let other = file("b", LINUX_6_12);
    let unfit = text(std::slice::from_ref(&other));
    assert!(unfit.contains("guest memory, and the BTF given does not fit: "), "{unfit}");
    let others = text(&[other.clone(), file("c", LINUX_7_3)]);
    assert!(others.contains("guest memory, and none of the 2 given fits: "), "{others}");

    let build = BuildId::of(LINUX_7_2);
    let right = file("a", &elf_with_btf(LINUX_7_2));
    assert_eq!(resolve(&[other, right]).unwrap().kernel().build, build);
    // A directory with all of them, and with entries that are no files.
    fs::create_dir(dir.path().join("d")).unwrap();
    symlink("nowhere", dir.path().join("e")).unwrap();
    let all = BtfFiles::load(dir.path()).unwrap();
    assert_eq!(all.path(), dir.path());
    assert_eq!(resolve(std::slice::from_ref(&all)).unwrap().kernel().build, build);
    // A booting guest is reported as booting.
    let clock = Layout::from_btf(LINUX_7_2).unwrap().self_pointer.unwrap();
    for n in 0..4 {
        mem.put_u64(area_at(n) + u64::from(clock.pointer), 0);
    }
    match Reader::with_files(&[all]).resolve_in(&mem, &[mem.slot()], &records) {
        Err(ReadError::Stale { candidates: 3, source: Misfit::Booting }) => (),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unusable_files_are_errors_with_advice() {
    const COPY: &str = "/sys/kernel/btf/vmlinux";
    let dir = tempfile::tempdir().unwrap();
    let with = |at: usize, byte: u8| {
        let mut blob = LINUX_7_2.to_vec();
        blob[at] = byte;
        blob
    };
    let strings_at = 24 + u32::from_le_bytes(LINUX_7_2[16..20].try_into().unwrap()) as usize;
    let per_cpu = LINUX_7_2.windows(8).position(|name| name == b"..percpu").unwrap();
    let path = dir.path().join("btf");
    for (bytes, why) in [
        (b"MZ something".as_slice(), "neither raw BTF nor an ELF file"),
        (b"", "neither raw BTF nor an ELF file"),
        (b"\x7fELF", "no .BTF section"),
        (&LINUX_7_2[..100], "lies outside the blob"),
        (&with(strings_at, b'x'), "split BTF of a module"),
        (&with(per_cpu, b'x'), "no per-CPU variables"),
    ] {
        fs::write(&path, bytes).unwrap();
        for given in [&*path, dir.path()] {
            let said = BtfFiles::load(given).unwrap_err().to_string();
            assert!(said.contains(path.to_str().unwrap()), "{said}");
            assert!(said.contains(why) && said.contains(COPY) && !said.contains('\n'), "{said}");
        }
    }
    fs::remove_file(&path).unwrap();
    let said = BtfFiles::load("/none/\u{1b}[31m").unwrap_err().to_string();
    assert!(said.contains("/none/\\u{1b}[31m") && !said.contains('\u{1b}'), "{said}");
    let said = BtfFiles::load(dir.path()).unwrap_err().to_string();
    assert!(said.contains("a directory without files") && said.contains(COPY), "{said}");
    let said = BtfFiles::load(&path).unwrap_err().to_string();
    assert!(said.contains("cannot read") && said.contains("No such file"), "{said}");
    // A pipe without a writer.
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let said = BtfFiles::load(&path).unwrap_err().to_string();
    assert!(said.contains("neither"), "{said}");
}

/// A minimal ELF file: header, contents, names, and a table of three sections.
fn elf_with_btf(blob: &[u8]) -> Vec<u8> {
    let names = b"\0.BTF\0.shstrtab\0";
    let (blob_at, names_at) = (64, 64 + blob.len());
    let table_at = names_at + names.len();
    let mut elf = vec![0u8; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[0x28..0x30].copy_from_slice(&(table_at as u64).to_le_bytes());
    elf[0x3a..0x40].copy_from_slice(&[64, 0, 3, 0, 2, 0]);
    elf.extend_from_slice(blob);
    elf.extend_from_slice(names);
    for (name, at, len) in [(0u32, 0, 0), (1, blob_at, blob.len()), (6, names_at, names.len())] {
        let mut section = [0u8; 64];
        section[..4].copy_from_slice(&name.to_le_bytes());
        section[0x18..0x20].copy_from_slice(&(at as u64).to_le_bytes());
        section[0x20..0x28].copy_from_slice(&(len as u64).to_le_bytes());
        elf.extend_from_slice(&section);
    }
    elf
}

#[test]
fn finds_the_release_if_the_banner_is_before_the_blob() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    mem.put(0x12_3460, b"Linux version 7.2.12+deb14-cloud-amd64 (debian-kernel@lists.debian.org)");
    let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
    assert_eq!(guest.kernel().release.as_deref(), Some("7.2.12+deb14-cloud-amd64"));
    assert_eq!(guest.kernel().to_string(), "Linux 7.2.12+deb14-cloud-amd64");
}

#[test]
fn gives_up_on_a_guest_full_of_decoys() {
    let (mut mem, records) = guest("7.2", LINUX_7_2);
    // A sound header in every 32 bytes of 1 MiB, each of a blob of 4 MiB.
    let mut decoy = vec![0x9f, 0xeb, 1, 0];
    for word in [24u32, 0, 12, 12, 4 << 20, 0, 0] {
        decoy.extend_from_slice(&word.to_le_bytes());
    }
    for at in (0..1 << 20).step_by(decoy.len()) {
        mem.put(at, &decoy);
    }
    mem.bytes[0x20_0000..0x20_4000].fill(0);
    let error = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap_err();
    assert!(matches!(error, ReadError::Decoys), "{error}");
}
