// SPDX-License-Identifier: GPL-2.0-or-later
//! The BPF part needs the functions that are checked before it is loaded, and each of its counters
//! is reported.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use holdfast_checks::{MAX_CGROUPS, REQUIRED_KFUNCS};
use holdfast_policy::Target;
use libbpf_rs::skel::SkelBuilder;
use object::{Object, ObjectSymbol};

use crate::bpf_intf::{hf_stat_HF_NR_STATS as NR_STATS, hf_stat_HF_STAT_PROBED as PROBED};
use crate::bpf_skel::BpfSkelBuilder;
use crate::opts::Opts;
use crate::stats::Metrics;

#[test]
fn checks_for_every_kernel_function_that_the_bpf_part_needs() {
    // Allocated, it is aligned as the parser wants it.
    let program = include_bytes!(concat!(env!("OUT_DIR"), "/bpf.bpf.o")).to_vec();
    let program = object::File::parse(program.as_slice()).unwrap();
    let needed: BTreeSet<_> = program
        .symbols()
        .filter(|symbol| symbol.is_undefined() && !symbol.is_weak())
        .filter_map(|symbol| symbol.name().ok())
        // `__kconfig` variables are in capitals.
        .filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase()))
        .collect();
    let checked: BTreeSet<_> = REQUIRED_KFUNCS.into_iter().collect();
    assert_eq!(needed, checked, "REQUIRED_KFUNCS of holdfast-checks lists these");
}

#[test]
fn an_interval_has_a_unit_or_is_in_seconds() {
    let interval = |text| Opts::try_parse_from(["scx_holdfast", "--stats", text]);
    for (text, ms) in [("100ms", 100), ("5s", 5000), ("1m", 60_000), ("2", 2000)] {
        let expected = Some(std::time::Duration::from_millis(ms));
        assert_eq!(interval(text).unwrap().stats, expected, "{text}");
    }
    for (text, why) in [("x", "give 100ms, 5s or 1m"), ("10ms", "from 100ms to 1day")] {
        let said = interval(text).unwrap_err().to_string();
        assert!(said.contains(why), "{text}: {said}");
    }
}

/// Opening an object works without the kernel.
#[test]
fn checks_for_as_many_cgroups_as_the_bpf_part_has_room_for() {
    let mut object = MaybeUninit::uninit();
    let opened = BpfSkelBuilder::default().open(&mut object).unwrap();
    assert_eq!(u64::from(opened.maps.group_indices.max_entries()), MAX_CGROUPS);
}

#[test]
fn reports_every_counter_of_the_bpf_part_once() {
    let read = RefCell::new(Vec::new());
    Metrics::read(|index| {
        read.borrow_mut().push(index);
        0
    });
    let mut read = read.into_inner();
    read.sort_unstable();
    // A probe has no candidate.
    let counted: Vec<u32> =
        (0..NR_STATS).filter(|i| *i != PROBED + Target::ToCandidate as u32).collect();
    assert_eq!(read, counted, "a field of stats.rs for each");
}

#[test]
fn reads_btf_of_guests_before_loading() {
    let kernel = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/tests/data/linux-7.2.btf");
    let parse = |args: &[&str]| Opts::try_parse_from([&["scx_holdfast"], args].concat());
    let opts = parse(&["--btf", kernel, "--btf", kernel]).unwrap();
    assert_eq!(opts.btf.len(), 2);
    // An option of libbpf about the BTF of this host.
    let opts = parse(&["--btf-custom-path", "/nonexistent"]).unwrap();
    assert!(opts.btf.is_empty());
    let error = parse(&["--btf", "/nonexistent"]).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ValueValidation, 2));
    assert!(error.to_string().contains("cannot read /nonexistent: No such file"), "{error}");
}

#[test]
fn examples_of_the_manual_are_commands() {
    let examples = holdfast_manual::examples(&Opts::command());
    assert!(examples.len() > 1, "{examples:?}");
    for words in examples {
        assert!(Opts::try_parse_from(&words).is_ok(), "{words:?}");
    }
}
