// SPDX-License-Identifier: GPL-2.0-or-later
//! Classes of vCPUs, against the table of the design.

use holdfast_policy::{GuestFacts, VcpuClass, classify, preempt_count};
use proptest::prelude::*;

const NEED_RESCHED_INVERTED: u32 = 1 << 31;

fn facts(preempt_count: u32, queued: u32, at_head: u32) -> GuestFacts {
    GuestFacts { preempt_count, queued, at_head, ..GuestFacts::default() }
}

#[test]
fn class_follows_the_table() {
    use VcpuClass::{Head, Holder, Irq, Preemptible, Waiter};
    for (preempt_count, queued, at_head, class) in [
        (0, 0, 0, Preemptible),
        (1, 0, 0, Holder),
        (2, 1, 0, Holder),
        (2, 1, 1, Holder),
        (1, 1, 0, Waiter),
        (1, 1, 1, Head),
        (0x100, 0, 0, Irq),
        (0x1_0000, 0, 0, Irq),
        (0x10_0000, 0, 0, Irq),
        (0x1_0001, 1, 0, Irq),
    ] {
        assert_eq!(
            classify(&facts(preempt_count, queued, at_head)),
            class,
            "preempt_count {preempt_count:#x}, queued {queued}, at head {at_head}"
        );
    }
}

#[test]
fn wide_count_gives_the_same_classes() {
    use VcpuClass::{Holder, Irq, Preemptible};
    // PREEMPT, SOFTIRQ, HARDIRQ_DISABLE, HARDIRQ and NMI_OFFSET of Linux 7.3.
    for (word, class) in [
        (0, Preemptible),
        (1, Holder),
        (0x100, Irq),
        (0x1_0000, Holder),
        (0xff_0000, Holder),
        (0x100_0000, Irq),
        (0x1000_0000, Irq),
        (0x8000_0000, Irq),
        (0x101_0001, Irq),
    ] {
        assert_eq!(classify(&facts(preempt_count(word, true), 0, 0)), class, "{word:#x}");
        assert_eq!(preempt_count(word, false), word);
    }
    // A vCPU in a queue; one that has disabled interrupts by count holds another lock.
    assert_eq!(classify(&facts(preempt_count(1, true), 1, 0)), VcpuClass::Waiter);
    assert_eq!(classify(&facts(preempt_count(0x1_0001, true), 1, 0)), Holder);
}

proptest! {
    #[test]
    fn need_resched_does_not_change_the_class(pc: u32, queued: u32, at_head: u32) {
        prop_assert_eq!(
            classify(&facts(pc | NEED_RESCHED_INVERTED, queued, at_head)),
            classify(&facts(pc & !NEED_RESCHED_INVERTED, queued, at_head))
        );
    }

    #[test]
    fn any_words_of_a_guest_give_a_known_class(pc: u32, queued: u32, at_head: u32) {
        let class = classify(&facts(pc, queued, at_head));
        prop_assert!(VcpuClass::ALL.contains(&class));
        prop_assert_ne!(class, VcpuClass::Unknown);
    }

    #[test]
    fn waiter_holds_no_lock(pc: u32, queued: u32, at_head: u32) {
        if classify(&facts(pc, queued, at_head)) == VcpuClass::Waiter {
            prop_assert_eq!(pc & 0x00ff_ffff, 1);
            prop_assert!(queued > 0);
        }
    }
}

#[test]
fn protects_only_classes_that_siblings_wait_for() {
    let protected: Vec<_> =
        VcpuClass::ALL.into_iter().filter(|class| class.is_protected()).collect();
    assert_eq!(protected, [VcpuClass::Holder, VcpuClass::Irq, VcpuClass::Head]);
}

#[test]
fn idle_vcpu_holds_no_lock() {
    let idle = |preempt_count| GuestFacts { preempt_count, idle: 1, ..GuestFacts::default() };
    assert_eq!(classify(&idle(1)), VcpuClass::Preemptible);
    assert_eq!(classify(&idle(2)), VcpuClass::Holder);
    assert_eq!(classify(&idle(0x1_0001)), VcpuClass::Irq);
}
