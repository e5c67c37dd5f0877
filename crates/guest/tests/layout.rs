// SPDX-License-Identifier: GPL-2.0-or-later
//! Layouts of real kernels. The expected numbers are from `bpftool btf dump` of the whole blobs.

mod common;

use holdfast_guest::{
    BuildId, CountKind, Layout, LayoutError,
    layout::{QueueLayout, SelfPointer},
};

fn queue(at: u32) -> Option<QueueLayout> {
    Some(QueueLayout { at, node_size: 32, nr_nodes: 4, next: 0, locked: 8, count: 12 })
}

fn linux_6_1() -> Layout {
    Layout {
        area_len: 209_156,
        steal_time: 209_024,
        preempt_count: 129_856,
        count_kind: CountKind::Narrow,
        cpu_number: 102_752,
        current_task: Some(129_920),
        idle_task: Some(131_064),
        this_cpu_off: Some(102_760),
        queue: queue(206_528),
        call_queue: Some(207_616),
        self_pointer: Some(SelfPointer { target: 142_976, pointer: 142_976 + 64 }),
    }
}

fn linux_6_12() -> Layout {
    Layout {
        area_len: 229_632,
        steal_time: 229_504,
        preempt_count: 217_088 + 8,
        count_kind: CountKind::Narrow,
        cpu_number: 217_088 + 12,
        current_task: Some(217_088),
        idle_task: Some(136_320),
        this_cpu_off: Some(104_984),
        queue: queue(224_384),
        call_queue: Some(225_536),
        self_pointer: Some(SelfPointer { target: 155_200, pointer: 155_200 + 64 }),
    }
}

fn linux_7_2() -> Layout {
    Layout {
        area_len: 213_248,
        steal_time: 213_120,
        preempt_count: 98_352,
        count_kind: CountKind::Narrow,
        cpu_number: 98_356,
        current_task: Some(98_328),
        idle_task: Some(117_984),
        this_cpu_off: Some(98_344),
        queue: queue(209_664),
        call_queue: Some(210_944),
        self_pointer: Some(SelfPointer { target: 137_088, pointer: 137_088 + 128 }),
    }
}

fn linux_7_3() -> Layout {
    Layout {
        area_len: 217_344,
        steal_time: 217_216,
        preempt_count: 98_344,
        count_kind: CountKind::Wide,
        cpu_number: 98_360,
        current_task: Some(98_328),
        idle_task: Some(118_016),
        this_cpu_off: Some(98_352),
        queue: queue(211_136),
        call_queue: Some(212_416),
        self_pointer: Some(SelfPointer { target: 137_408, pointer: 137_408 + 128 }),
    }
}

#[test]
fn reads_the_layouts_of_debian_kernels() {
    assert_eq!(Layout::from_btf(common::LINUX_6_1), Ok(linux_6_1()));
    assert_eq!(Layout::from_btf(common::LINUX_6_12), Ok(linux_6_12()));
    assert_eq!(Layout::from_btf(common::LINUX_7_2), Ok(linux_7_2()));
    assert_eq!(Layout::from_btf(common::LINUX_7_3), Ok(linux_7_3()));
}

#[test]
fn distances_are_signed_and_relative_to_the_steal_time_record() {
    let layout = linux_7_2();
    assert_eq!(layout.from_steal_time(layout.preempt_count), 98_352 - 213_120);
    assert_eq!(layout.from_steal_time(layout.steal_time), 0);
}

#[test]
fn a_longer_string_section_changes_the_build_but_not_the_layout() {
    let inflated = common::inflate(common::LINUX_6_12, 300_000);
    assert_eq!(Layout::from_btf(&inflated), Ok(linux_6_12()));
    assert_ne!(BuildId::of(&inflated), BuildId::of(common::LINUX_6_12));
}

/// Renames a string of the blob to another of the same length.
fn rename(blob: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let needle = format!("\0{from}\0");
    let at = blob.windows(needle.len()).position(|w| w == needle.as_bytes()).unwrap();
    let mut out = blob.to_vec();
    out[at + 1..at + 1 + to.len()].copy_from_slice(to.as_bytes());
    out
}

#[test]
fn names_the_missing_variable() {
    let without = |name: &str| {
        Layout::from_btf(&rename(common::LINUX_7_2, name, &"x".repeat(name.len()))).unwrap_err()
    };
    assert_eq!(without("steal_time"), LayoutError::Missing("steal_time"));
    assert_eq!(without("__preempt_count"), LayoutError::Missing("__preempt_count"));
    assert_eq!(without(".data..percpu"), LayoutError::NoPerCpu);
    assert_eq!(without("locked"), LayoutError::Missing("locked"));
}

#[test]
fn a_kernel_that_counts_no_preemption_has_a_layout_with_queues_alone() {
    let uncounted = |blob| rename(blob, "preempt_schedule", &"x".repeat(16));
    let layout = Layout { count_kind: CountKind::Interrupts, ..linux_6_12() };
    assert_eq!(Layout::from_btf(&uncounted(common::LINUX_6_12)), Ok(layout));
    // Without them nothing is known of its locks.
    let blob = rename(&uncounted(common::LINUX_6_12), "qnodes", "xnodes");
    assert_eq!(Layout::from_btf(&blob), Err(LayoutError::NotCounted));
    // No kernel has a wide count that counts no preemption.
    let wide = Layout::from_btf(&uncounted(common::LINUX_7_3));
    assert_eq!(wide, Err(LayoutError::NotCounted));
}

#[test]
fn optional_variables_may_be_missing() {
    let blob = rename(common::LINUX_7_2, "qnodes", "xnodes");
    let expected = Layout { queue: None, ..linux_7_2() };
    assert_eq!(Layout::from_btf(&blob), Ok(expected));
    let blob = rename(common::LINUX_7_2, "clock_base", "xlock_base");
    let expected = Layout { self_pointer: None, ..linux_7_2() };
    assert_eq!(Layout::from_btf(&blob), Ok(expected));
}

#[test]
fn every_truncation_is_an_error() {
    for (version, blob) in common::ALL {
        for len in 0..blob.len() {
            assert!(Layout::from_btf(&blob[..len]).is_err(), "{version} cut to {len} bytes");
        }
    }
}
