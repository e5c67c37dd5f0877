// SPDX-License-Identifier: GPL-2.0-or-later
//! What the BPF part needs of a kernel is what is checked before it is loaded.

use std::collections::BTreeSet;

use holdfast_checks::REQUIRED_KFUNCS;
use object::{Object, ObjectSymbol};

#[test]
fn functions_checked_for_are_those_the_bpf_part_cannot_do_without() {
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
    assert_eq!(needed, checked, "put what is needed into REQUIRED_KFUNCS of holdfast-checks");
}
