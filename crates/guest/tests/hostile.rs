// SPDX-License-Identifier: GPL-2.0-or-later
//! Hostile guests: real BTF, damaged in every way, gives a sound layout or an error.

mod common;

use std::{sync::atomic::Ordering, time::Instant};

use common::{ALL, FakeMemory, inflate};
use holdfast_guest::{
    BtfError, Gpa, GuestMemory, Hva, HvaRange, Layout, LayoutError, MemoryError, Reader, Slot,
    VcpuRecord,
    scan::{Effort, scan},
};
use proptest::prelude::*;

/// A change to a blob.
#[derive(Clone, Debug)]
enum Damage {
    Byte(prop::sample::Index, u8),
    Word(prop::sample::Index, u32),
    Header(usize, u32),
    Cut(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let any_index = any::<prop::sample::Index>;
    let word = prop_oneof![any::<u32>(), 0u32..300, Just(u32::MAX), Just(1 << 31)];
    prop_oneof![
        4 => (any_index(), any::<u8>()).prop_map(|(at, to)| Damage::Byte(at, to)),
        4 => (any_index(), word.clone()).prop_map(|(at, to)| Damage::Word(at, to)),
        1 => (1usize..6, word).prop_map(|(at, to)| Damage::Header(at, to)),
        1 => any_index().prop_map(Damage::Cut),
        1 => (any_index(), any_index()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        2 => (any_index(), any_index()).prop_map(|(a, b)| Damage::Swap(a, b)),
    ]
}

fn apply(blob: &mut Vec<u8>, damage: &[Damage]) {
    for one in damage {
        if blob.len() < 28 {
            return;
        }
        let nr_words = blob.len() / 4;
        let mut put =
            |word: usize, to: u32| blob[word * 4..][..4].copy_from_slice(&to.to_le_bytes());
        match one {
            Damage::Byte(at, to) => {
                let at = at.index(blob.len());
                blob[at] = *to;
            }
            Damage::Word(at, to) => put(at.index(nr_words), *to),
            Damage::Header(at, to) => put(*at, *to),
            Damage::Cut(at) => blob.truncate(at.index(blob.len())),
            Damage::Repeat(from, to) => {
                let (from, to) = (from.index(nr_words) * 4, to.index(nr_words) * 4);
                let piece = blob[from..(from + 64).min(blob.len())].to_vec();
                blob.splice(to..to, piece);
            }
            Damage::Swap(a, b) => {
                let (a, b) = (a.index(nr_words), b.index(nr_words));
                for n in 0..4 {
                    blob.swap(a * 4 + n, b * 4 + n);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damaged_btf_gives_offsets_within_the_area_or_an_error(
        which in 0usize..ALL.len(),
        damage in prop::collection::vec(damage(), 1..12),
    ) {
        let mut blob = ALL[which].1.to_vec();
        apply(&mut blob, &damage);
        if let Ok(layout) = Layout::from_btf(&blob) {
            let (low, high) = layout.span();
            prop_assert!(low < high && high <= layout.area_len);
        }
    }

    #[test]
    fn any_layout_section_gives_offsets_within_the_area_or_an_error(
        which in 0usize..ALL.len(),
        kinds in [20u32..128, 20u32..128],
        layouts in prop::collection::vec(any::<[u8; 2]>(), 0..129),
        damage in prop::collection::vec(damage(), 0..4),
    ) {
        let mut blob = with_unknown_kinds(ALL[which].1, kinds, &layouts);
        apply(&mut blob, &damage);
        if let Ok(layout) = Layout::from_btf(&blob) {
            let (low, high) = layout.span();
            prop_assert!(low < high && high <= layout.area_len);
        }
    }

    #[test]
    fn arbitrary_bytes_are_never_a_layout(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(Layout::from_btf(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_scan_of_damaged_blobs_stays_within_the_slot_and_resident_pages(
        which in 0usize..ALL.len(),
        damage in prop::collection::vec(damage(), 0..6),
        at in prop::sample::select(vec![0usize, 0x70, 0xffd, 0x1_0000 - 7, 0x3_0000]),
        absent in prop::collection::btree_set(0u64..256, 0..64),
        steal_time in 0u64..(1 << 20) - 64,
    ) {
        let mut blob = inflate(ALL[which].1, 300_000);
        apply(&mut blob, &damage);
        let mut mem = FakeMemory::new(1 << 20);
        mem.put(at, &blob[..blob.len().min((1 << 20) - at)]);
        mem.absent = absent;
        for effort in [Effort::Sampled, Effort::Exhaustive] {
            scan(&mem, &[mem.slot()], effort).unwrap();
        }
        let gpa = Gpa::new(common::GPA + steal_time / 64 * 64);
        let record = VcpuRecord::new(0, gpa, mem.slot()).unwrap();
        prop_assert!(Reader::new().resolve_in(&mem, &[mem.slot()], &[record]).is_err());
        prop_assert!(!mem.trespassed.load(Ordering::Relaxed));
    }
}

/// Types as words, and strings, put together with a sound header.
fn blob(types: &[u32], strings: &[u8]) -> Vec<u8> {
    let types_len = types.len() as u32 * 4;
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types_len, types_len, strings.len() as u32] {
        blob.extend_from_slice(&word.to_le_bytes());
    }
    blob.extend(types.iter().flat_map(|word| word.to_le_bytes()));
    blob.extend_from_slice(strings);
    blob
}

/// The same with the header of Linux 7.1 and its `struct btf_layout` for each kind: bytes after the
/// common part, and bytes for each of the parts counted by vlen.
fn blob_with_layouts(types: &[u32], layouts: &[[u8; 2]], strings: &[u8]) -> Vec<u8> {
    let (types_len, layouts_len) = (types.len() as u32 * 4, layouts.len() as u32 * 4);
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    let strings_at = types_len + layouts_len;
    for word in [32, 0, types_len, strings_at, strings.len() as u32, types_len, layouts_len] {
        blob.extend_from_slice(&word.to_le_bytes());
    }
    blob.extend(types.iter().flat_map(|word| word.to_le_bytes()));
    blob.extend(layouts.iter().flat_map(|[fixed, each]| [*fixed, *each, 0, 0]));
    blob.extend_from_slice(strings);
    blob
}

const STRINGS: &[u8] = b"\0.data..percpu\0steal_time\0pcpu_hot\0preempt_count\0preempt_schedule\0";
const PERCPU: u32 = 1;
const STEAL_TIME: u32 = 15;
const PCPU_HOT: u32 = 26;
const fn info(kind: u32, vlen: u32) -> u32 {
    kind << 24 | vlen
}

/// A per-CPU section with `steal_time` and a `pcpu_hot` of type 4, then `more` types from number 4
/// on.
fn with_hot(more: &[u32]) -> Vec<u8> {
    let mut types = vec![
        STEAL_TIME,
        info(14, 0),
        0,
        1, // 1: VAR
        PCPU_HOT,
        info(14, 0),
        4,
        1, // 2: VAR of type 4
        PERCPU,
        info(15, 2),
        4096,
        1,
        64,
        64,
        2,
        128,
        64, // 3: DATASEC
    ];
    types.extend_from_slice(more);
    blob(&types, STRINGS)
}

#[test]
fn types_that_refer_to_themselves_end_in_an_error() {
    // 4: a typedef of itself.
    let error = Layout::from_btf(&with_hot(&[0, info(8, 0), 4])).unwrap_err();
    assert_eq!(error, LayoutError::Btf(BtfError::Depth(4)));
    // 4: a struct with an anonymous member of its own type.
    let error = Layout::from_btf(&with_hot(&[0, info(4, 1), 64, 0, 4, 0])).unwrap_err();
    assert_eq!(error, LayoutError::Btf(BtfError::Depth(4)));
}

#[test]
fn a_pyramid_of_anonymous_structs_is_cut_short() {
    // Each struct has 1000 anonymous members of the next one: 1000^8 paths to the bottom.
    let mut types = Vec::new();
    for level in 0..8u32 {
        types.extend_from_slice(&[0, info(4, 1000), 64]);
        types.extend((0..1000).flat_map(|_| [0, 5 + level, 0]));
    }
    types.extend_from_slice(&[0, info(4, 0), 64]);
    let blob = with_hot(&types);
    let start = Instant::now();
    let error = Layout::from_btf(&blob).unwrap_err();
    assert_eq!(error, LayoutError::Btf(BtfError::Depth(4)));
    assert!(start.elapsed().as_secs() < 5, "took {:?}", start.elapsed());
}

#[test]
fn a_million_sections_with_one_name_of_megabytes_are_read_in_bounded_time() {
    let mut strings = STRINGS.to_vec();
    let long = strings.len() as u32;
    strings.extend(std::iter::repeat_n(b'a', 32 << 20));
    strings.push(0);
    let types: Vec<u32> = (0..1_000_000).flat_map(|_| [long, info(15, 0), 0]).collect();
    let start = Instant::now();
    assert!(Layout::from_btf(&blob(&types, &strings)).is_err());
    assert!(start.elapsed().as_secs() < 20, "took {:?}", start.elapsed());
}

#[test]
fn names_the_error_of_a_blob() {
    let parse = |blob: &[u8]| match Layout::from_btf(blob) {
        Err(LayoutError::Btf(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(parse(b""), BtfError::Header);
    assert_eq!(parse(&blob(&[0, info(30, 0), 0], STRINGS)), BtfError::Kind { id: 1, kind: 30 });
    assert_eq!(parse(&with_hot(&[])), BtfError::Type(4));
    assert!(matches!(parse(&blob(&[0, info(4, 9), 0], STRINGS)), BtfError::Bounds(_)));
    assert!(matches!(parse(&blob(&[0, info(2, 0), 0], b"\0unterminated")), BtfError::Bounds(_)));
    let mut big_endian = common::LINUX_7_2.to_vec();
    big_endian.swap(0, 1);
    assert_eq!(parse(&big_endian), BtfError::Header);
}

/// A kernel's BTF with types of unknown kinds, and one of a known kind, after its own; and layouts
/// of the first kinds.
fn with_unknown_kinds(kernel: &[u8], kinds: [u32; 2], layouts: &[[u8; 2]]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(kernel[at..at + 4].try_into().unwrap());
    let words = |at: usize, len: u32| -> Vec<u32> {
        (0..len as usize / 4).map(|n| word(at + n * 4)).collect()
    };
    let mut types = words(24 + word(8) as usize, word(12));
    // They go at the end, so the numbers of the other types stay.
    types.extend([0, info(kinds[0], 3), 0, 7, 8, 9, 10]);
    types.extend([0, info(kinds[1], 0x1_0001), 0]);
    types.extend((0..0x1_0001).flat_map(|n| [n, n]));
    // An integer, to check that the next type is found.
    types.extend([0, info(1, 0), 4, 32]);
    let strings_at = 24 + word(16) as usize;
    blob_with_layouts(&types, layouts, &kernel[strings_at..][..word(20) as usize])
}

#[test]
fn unknown_kinds_are_skipped_by_the_layout_section() {
    const KINDS: [u32; 2] = [0x28, 0x7f];
    let mut layouts = vec![[0; 2]; 0x80];
    (layouts[0x28], layouts[0x7f]) = ([4, 4], [0, 8]);
    for (version, kernel) in ALL {
        let layout = Layout::from_btf(kernel).unwrap();
        let parse =
            |layouts: &[[u8; 2]]| Layout::from_btf(&with_unknown_kinds(kernel, KINDS, layouts));
        assert_eq!(parse(&layouts), Ok(layout), "{version}");
        let unknown = |layouts: &[[u8; 2]], unknown: u32| match parse(layouts) {
            Err(LayoutError::Btf(BtfError::Kind { kind, .. })) => assert_eq!(kind, unknown),
            other => panic!("{version}: {other:?}"),
        };
        unknown(&[], KINDS[0]);
        unknown(&layouts[..0x28], KINDS[0]);
        unknown(&layouts[..0x7f], KINDS[1]);
        let with = |fixed, each| {
            let mut layouts = layouts.clone();
            layouts[0x28] = [fixed, each];
            layouts
        };
        // The length is not a number of whole words.
        unknown(&with(3, 4), KINDS[0]);
        unknown(&with(4, 5), KINDS[0]);
        // The section is too short, or reaches beyond the end.
        assert!(parse(&with(0, 0)).is_err(), "{version}");
        assert!(parse(&with(252, 252)).is_err(), "{version}");
    }
    // Lengths of known kinds are ignored.
    layouts[1..20].fill([8, 8]);
    let blob = with_unknown_kinds(common::LINUX_7_2, KINDS, &layouts);
    assert_eq!(Layout::from_btf(&blob), Layout::from_btf(common::LINUX_7_2));
}

#[test]
fn false_layout_sections_are_rejected() {
    let kind_30 = [0, info(30, 0), 0];
    let parse = |blob: &[u8]| match Layout::from_btf(blob) {
        Err(LayoutError::Btf(error)) => Some(error),
        Err(LayoutError::NoPerCpu) => None,
        other => panic!("{other:?}"),
    };
    let unknown = Some(BtfError::Kind { id: 1, kind: 30 });
    let sound = blob_with_layouts(&kind_30, &[[0; 2]; 31], STRINGS);
    assert_eq!(parse(&sound), None);
    let with = |at: usize, word: u32| {
        let mut blob = sound.clone();
        blob[at..at + 4].copy_from_slice(&word.to_le_bytes());
        parse(&blob)
    };
    for word in [sound.len() as u32, u32::MAX, u32::MAX - 3, 1 << 31] {
        assert_eq!(with(24, word), unknown, "layout_off {word:#x}");
        assert_eq!(with(28, word), unknown, "layout_len {word:#x}");
    }
    for word in [0, 4, 30 * 4, 30 * 4 + 3] {
        assert_eq!(with(28, word), unknown, "layout_len {word:#x}");
    }
    // The header ends before the section's fields, or within them.
    for header_len in [24, 28] {
        let mut blob = sound.clone();
        blob[4] = header_len;
        // The next sections keep their places.
        for offset in [8, 16] {
            blob[offset] += 32 - header_len;
        }
        assert_eq!(parse(&blob), unknown, "header of {header_len} bytes");
    }
    // Zeroes are no list of types of kind 0.
    let hole = blob_with_layouts(&[0; 30], &[[0; 2]; 31], STRINGS);
    assert_eq!(parse(&hole), Some(BtfError::Kind { id: 1, kind: 0 }));
}

/// Memory of this many GiB that looks like a string section everywhere.
struct Text;

impl Text {
    const GIB: u64 = 4;

    fn slot() -> Slot {
        Slot::new(Gpa::new(0), Hva::new(1 << 40), Self::GIB << 30).unwrap()
    }
}

impl GuestMemory for Text {
    fn read(&self, at: Hva, buf: &mut [u8]) -> Result<(), MemoryError> {
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = if (at.get() + i as u64).is_multiple_of(16) { 0 } else { b'a' };
        }
        Ok(())
    }

    fn resident(&self, range: HvaRange, out: &mut Vec<HvaRange>) -> Result<(), MemoryError> {
        out.extend(range.intersect(Self::slot().hva_range()));
        Ok(())
    }
}

#[test]
fn the_sampled_pass_does_not_read_all_of_a_guest_full_of_text() {
    let found = scan(&Text, &[Text::slot()], Effort::Sampled).unwrap();
    assert!(found.gave_up && found.blobs.is_empty());
    assert!(found.read_bytes < 400 << 20, "{} of {} GiB", found.read_bytes, Text::GIB);
}
