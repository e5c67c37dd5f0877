// SPDX-License-Identifier: GPL-2.0-or-later
//! Any bytes as BTF give an error, or a layout whose offsets all lie in the per-CPU area. From
//! crates/guest, seeded with real kernels' (reduced) BTF: `cargo +nightly fuzz run layout
//! fuzz/corpus/layout tests/data`

#![no_main]

use holdfast_guest::Layout;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|blob: &[u8]| {
    let Ok(layout) = Layout::from_btf(blob) else { return };
    let (low, high) = layout.span();
    assert!(low < high && high <= layout.area_len);
    if let Some(queue) = layout.queue {
        assert!(queue.nr_nodes >= 1 && queue.next + 8 <= queue.node_size);
        assert!(queue.locked + 4 <= queue.node_size && queue.count + 4 <= queue.node_size);
    }
});
