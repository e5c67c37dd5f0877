// SPDX-License-Identifier: GPL-2.0-or-later
//! The classes of vCPUs, and the order of their queues.

mod common;

use std::sync::{Arc, OnceLock};

use common::{
    ALL, DIRECT_MAP, FakeMemory, IDLE_TASK, Spec, area_at, boot, link_address, node_gva,
    put_preempt_count, wait_in_queue,
};
use holdfast_guest::{Gva, Layout, QueueEnd, Reader, ResolvedGuest, Waiting};
use holdfast_policy::VcpuClass;
use proptest::prelude::*;

fn guest(version: &str, nr_vcpus: u32) -> (FakeMemory, Layout, Arc<ResolvedGuest>) {
    let blob = ALL.iter().find(|(v, _)| *v == version).unwrap().1;
    let link_address = link_address(version);
    let (mem, records) = boot(&Spec { blob, blob_at: 0x20_0000, nr_vcpus, link_address });
    let guest = Reader::new().resolve_in(&mem, &[mem.slot()], &records).unwrap();
    (mem, Layout::from_btf(blob).unwrap(), guest)
}

/// Fake vCPU `n` has the KVM number `2 n`.
fn places(queue: &[Waiting]) -> Vec<(u32, u32)> {
    queue.iter().map(|w| (w.vcpu_idx / 2, w.node)).collect()
}

/// HARDIRQ_OFFSET.
fn hardirq(layout: &Layout) -> u32 {
    if layout.wide_count { 1 << 24 } else { 1 << 16 }
}

#[test]
fn a_vcpu_that_disables_interrupts_by_count_may_hold_a_lock() {
    let (mut mem, layout, guest) = guest("7.3", 2);
    put_preempt_count(&mut mem, &layout, 0, 1 << 16);
    assert_eq!(guest.facts(&mem, 0).unwrap().class(), VcpuClass::Holder);
}

#[test]
fn classifies_vcpus() {
    for (version, _) in ALL {
        let (mut mem, layout, guest) = guest(version, 4);
        let class = |mem: &FakeMemory| guest.facts(mem, 0).unwrap().class();
        assert_eq!(class(&mem), VcpuClass::Preemptible);
        put_preempt_count(&mut mem, &layout, 0, 1);
        assert_eq!(class(&mem), VcpuClass::Holder);
        put_preempt_count(&mut mem, &layout, 0, hardirq(&layout));
        assert_eq!(class(&mem), VcpuClass::Irq);
        wait_in_queue(&mut mem, &layout, 0, 0, 0, 0);
        assert_eq!(class(&mem), VcpuClass::Waiter);
        wait_in_queue(&mut mem, &layout, 0, 0, 0, 1);
        assert_eq!(class(&mem), VcpuClass::Head);
        put_preempt_count(&mut mem, &layout, 0, 2);
        assert_eq!(class(&mem), VcpuClass::Holder);
    }
}

#[test]
fn an_idle_vcpu_is_preemptible_until_it_takes_a_lock() {
    for (version, _) in ALL {
        let (mut mem, layout, guest) = guest(version, 4);
        mem.put_u64(area_at(3) + u64::from(layout.current_task.unwrap()), IDLE_TASK + 3 * 0x2000);
        for (value, class) in [
            (1, VcpuClass::Preemptible),
            (2, VcpuClass::Holder),
            (hardirq(&layout) + 1, VcpuClass::Irq),
            (0, VcpuClass::Preemptible),
        ] {
            put_preempt_count(&mut mem, &layout, 3, value);
            let facts = guest.facts(&mem, 6).unwrap();
            assert_eq!((facts.idle, facts.class()), (Some(true), class), "{version} {value:#x}");
        }
        assert_eq!(guest.facts(&mem, 0).unwrap().idle, Some(false));
    }
}

#[test]
fn sees_pending_calls_and_the_running_task() {
    let (mut mem, layout, guest) = guest("7.2", 2);
    let facts = guest.facts(&mem, 2).unwrap();
    assert_eq!(facts.calls_pending, Some(false));
    assert_eq!(facts.task, Some(Gva::new(0xffff_9d00_c123_6000)));
    mem.put_u64(area_at(1) + u64::from(layout.call_queue.unwrap()), DIRECT_MAP + 0x5000);
    assert_eq!(guest.facts(&mem, 2).unwrap().calls_pending, Some(true));
    assert!(guest.facts(&mem, 1).is_err(), "there is no vCPU 1");
}

#[test]
fn follows_a_queue_in_order_for_both_ways_of_linking_the_per_cpu_section() {
    for (version, _) in ALL {
        let (mut mem, layout, guest) = guest(version, 4);
        assert_eq!(guest.queues(&mem).unwrap(), []);
        // 2 is first and never had a predecessor; then 0, then 3.
        wait_in_queue(&mut mem, &layout, 2, 0, node_gva(&layout, 0, 0), 0);
        wait_in_queue(&mut mem, &layout, 0, 0, node_gva(&layout, 3, 0), 0);
        wait_in_queue(&mut mem, &layout, 3, 0, 0, 0);
        let queues = guest.queues(&mem).unwrap();
        assert_eq!(queues.len(), 1, "{version}");
        assert_eq!(places(&queues[0].waiting), [(2, 0), (0, 0), (3, 0)], "{version}");
        assert_eq!(queues[0].end, QueueEnd::Tail);
        assert_eq!(queues[0].head(), Some(Waiting { vcpu_idx: 4, node: 0 }));
    }
}

#[test]
fn keeps_nested_waits_and_separate_locks_apart() {
    let (mut mem, layout, guest) = guest("6.12", 4);
    // 1 waits for one lock behind 0, and in an interrupt for another lock behind 3.
    wait_in_queue(&mut mem, &layout, 1, 0, 0, 0);
    wait_in_queue(&mut mem, &layout, 1, 1, 0, 0);
    wait_in_queue(&mut mem, &layout, 0, 0, node_gva(&layout, 1, 0), 1);
    wait_in_queue(&mut mem, &layout, 3, 0, node_gva(&layout, 1, 1), 0);
    let queues = guest.queues(&mem).unwrap();
    let orders: Vec<_> = queues.iter().map(|queue| places(&queue.waiting)).collect();
    assert_eq!(orders, [vec![(0, 0), (1, 0)], vec![(3, 0), (1, 1)]]);
}

#[test]
fn ends_a_queue_where_memory_stops_making_sense() {
    let (mut mem, layout, guest) = guest("7.2", 4);
    let end = |mem: &FakeMemory| guest.queues(mem).unwrap()[0].end;
    wait_in_queue(&mut mem, &layout, 0, 0, 0x1234_5678, 0);
    assert_eq!(end(&mem), QueueEnd::Foreign(Gva::new(0x1234_5678)));
    let askew = node_gva(&layout, 1, 0) + 8;
    wait_in_queue(&mut mem, &layout, 0, 0, askew, 0);
    assert_eq!(end(&mem), QueueEnd::Foreign(Gva::new(askew)));
    wait_in_queue(&mut mem, &layout, 0, 0, node_gva(&layout, 1, 0), 0);
    assert_eq!(end(&mem), QueueEnd::Moved);
    // 0 -> 1 -> 2 -> 0, without a head.
    wait_in_queue(&mut mem, &layout, 1, 0, node_gva(&layout, 2, 0), 0);
    wait_in_queue(&mut mem, &layout, 2, 0, node_gva(&layout, 0, 0), 0);
    let queues = guest.queues(&mem).unwrap();
    assert_eq!(queues.len(), 1);
    assert_eq!((queues[0].end, queues[0].head()), (QueueEnd::Repeated, None));
    assert_eq!(queues[0].waiting.len(), 3);
}

proptest! {
    #[test]
    fn any_tangle_of_pointers_puts_each_waiter_in_one_queue(
        links in proptest::collection::vec((0u32..4, 0u32..8, any::<bool>()), 8),
    ) {
        static GUEST: OnceLock<(FakeMemory, Layout, Arc<ResolvedGuest>)> = OnceLock::new();
        let (mem, layout, guest) = GUEST.get_or_init(|| guest("6.1", 8));
        let mut mem = mem.clone();
        for (n, (node, target, astray)) in links.iter().enumerate() {
            let next = node_gva(layout, *target, *node) + u64::from(*astray) * 0x1000;
            wait_in_queue(&mut mem, layout, n as u32, *node, next, 0);
        }
        let queues = guest.queues(&mem).unwrap();
        let mut all: Vec<Waiting> = queues.iter().flat_map(|q| q.waiting.clone()).collect();
        all.sort();
        let expected: Vec<Waiting> = links
            .iter()
            .enumerate()
            .flat_map(|(n, (top, ..))| {
                (0..=*top).map(move |node| Waiting { vcpu_idx: n as u32 * 2, node })
            })
            .collect();
        prop_assert_eq!(all, expected);
    }
}
