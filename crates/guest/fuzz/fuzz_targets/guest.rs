// SPDX-License-Identifier: GPL-2.0-or-later
//! A booted guest with arbitrary bytes written over it gives distances or an error. The distances
//! lead to resident bytes within the slot, and no others are read. From crates/guest:
//! `cargo +nightly fuzz run guest`

#![no_main]

use std::sync::{LazyLock, Mutex, atomic::Ordering};

use common::{ALL, FakeMemory, Spec, area_at, boot, link_address};
use holdfast_guest::{GuestMemory, Hva, Layout, Reader, VcpuRecord};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/mod.rs"]
mod common;

const BLOB_AT: usize = 0x1070;

struct Kernel {
    mem: FakeMemory,
    records: Vec<VcpuRecord>,
    /// Places of patches: offsets that the reader reads.
    places: Vec<u64>,
}

static KERNELS: LazyLock<Vec<Mutex<Kernel>>> = LazyLock::new(|| {
    ALL.iter()
        .map(|(version, blob)| {
            let link_address = link_address(version);
            let (mut mem, records) =
                boot(&Spec { blob, blob_at: BLOB_AT, nr_vcpus: 4, link_address });
            let layout = Layout::from_btf(blob).unwrap();
            let queue = layout.queue.unwrap();
            let mut words =
                vec![layout.steal_time, layout.preempt_count, layout.cpu_number, queue.at];
            words.extend(
                [layout.current_task, layout.this_cpu_off, layout.call_queue].iter().flatten(),
            );
            words.extend(layout.self_pointer.map(|place| place.pointer));
            words.extend((0..queue.nr_nodes).map(|n| queue.at + n * queue.node_size));
            let blob_pages = 0..(BLOB_AT + blob.len()) as u64 / 4096 + 1;
            let area = |page: &u64| {
                (0..4).any(|n| {
                    words.iter().any(|word| (area_at(n) + u64::from(*word)) / 4096 == *page)
                })
            };
            mem.absent = (0..mem.bytes.len() as u64 / 4096)
                .filter(|page| !blob_pages.contains(page) && !area(page))
                .collect();
            let mut places: Vec<u64> = (0..4)
                .flat_map(|n| words.iter().map(move |word| area_at(n) + u64::from(*word)))
                .collect();
            places.extend((0..blob.len() as u64 / 4).map(|n| BLOB_AT as u64 + n * 4));
            Mutex::new(Kernel { mem, records, places })
        })
        .collect()
});

// Input: which kernel, then patches of 2 bytes place, 1 byte shift, 8 bytes value.
fuzz_target!(|data: &[u8]| {
    let Some((which, patches)) = data.split_first() else { return };
    let kernel = &mut *KERNELS[usize::from(*which) % KERNELS.len()].lock().unwrap();
    let mem = &mut kernel.mem;
    let mut undo = Vec::new();
    for patch in patches.chunks_exact(11) {
        let place = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % kernel.places.len();
        let at = kernel.places[place] as usize + usize::from(patch[2] % 16);
        undo.push((at, mem.bytes[at..at + 8].to_vec()));
        mem.put(at, &patch[3..]);
    }
    if let Ok(guest) = Reader::new().resolve_in(mem, &[mem.slot()], &kernel.records) {
        let deltas = guest.deltas();
        let words = [deltas.current_task, deltas.idle_task, deltas.call_queue];
        let nodes = deltas.queue.map_or([None; 3], |q| [q.count, q.locked, q.next].map(Some));
        for record in &kernel.records {
            for delta in words.into_iter().chain(nodes).flatten().chain([deltas.preempt_count]) {
                let at = record.steal_time.get().wrapping_add_signed(delta);
                mem.read_u32(Hva::new(at)).unwrap();
            }
        }
    }
    assert!(!mem.trespassed.load(Ordering::Relaxed));
    for (at, bytes) in undo.iter().rev() {
        mem.put(*at, bytes);
    }
});
