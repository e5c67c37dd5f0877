// SPDX-License-Identifier: GPL-2.0-or-later
//! What a class means, against the table of the design.

use holdfast_policy::{GuestFacts, VcpuClass, classify, preempt_count};
use proptest::prelude::*;

const NEED_RESCHED_INVERTED: u32 = 1 << 31;

fn facts(preempt_count: u32, queued: u32, at_head: u32) -> GuestFacts {
    GuestFacts { preempt_count, queued, at_head, ..GuestFacts::default() }
}

#[test]
fn follows_the_table() {
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
fn a_wide_count_says_the_same_by_other_bits() {
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
    // Who waits in a queue with interrupts disabled by count, and holds another lock.
    assert_eq!(classify(&facts(preempt_count(1, true), 1, 0)), VcpuClass::Waiter);
    assert_eq!(classify(&facts(preempt_count(0x1_0001, true), 1, 0)), Holder);
}

proptest! {
    #[test]
    fn need_resched_says_nothing_about_locks(pc: u32, queued: u32, at_head: u32) {
        prop_assert_eq!(
            classify(&facts(pc | NEED_RESCHED_INVERTED, queued, at_head)),
            classify(&facts(pc & !NEED_RESCHED_INVERTED, queued, at_head))
        );
    }

    #[test]
    fn any_words_of_a_guest_give_a_class_that_was_read(pc: u32, queued: u32, at_head: u32) {
        let class = classify(&facts(pc, queued, at_head));
        prop_assert!(VcpuClass::ALL.contains(&class));
        prop_assert_ne!(class, VcpuClass::Unknown);
    }

    #[test]
    fn a_waiter_holds_nothing(pc: u32, queued: u32, at_head: u32) {
        if classify(&facts(pc, queued, at_head)) == VcpuClass::Waiter {
            prop_assert_eq!(pc & 0x00ff_ffff, 1);
            prop_assert!(queued > 0);
        }
    }
}

#[test]
fn only_classes_that_siblings_wait_for_are_protected() {
    let protected: Vec<_> =
        VcpuClass::ALL.into_iter().filter(|class| class.is_protected()).collect();
    assert_eq!(protected, [VcpuClass::Holder, VcpuClass::Irq, VcpuClass::Head]);
}

#[test]
fn an_idle_vcpu_holds_no_lock() {
    let idle = |preempt_count| GuestFacts { preempt_count, idle: 1, ..GuestFacts::default() };
    assert_eq!(classify(&idle(1)), VcpuClass::Preemptible);
    assert_eq!(classify(&idle(2)), VcpuClass::Holder);
    assert_eq!(classify(&idle(0x1_0001)), VcpuClass::Irq);
}
