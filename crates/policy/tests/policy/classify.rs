// SPDX-License-Identifier: GPL-2.0-or-later
//! Classes of vCPUs, against the table of the design.

use holdfast_policy::{
    CountKind, GuestFacts, Mode, VcpuClass, classify, classify_irql, is_in_spin, is_windows,
    preempt_count, still_spins,
};
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

#[test]
fn without_a_count_queues_interrupts_and_user_mode_are_known() {
    use VcpuClass::{Head, Irq, LikelyHolder, Preemptible, Unknown, Waiter};
    let idle = |facts| GuestFacts { idle: 1, ..facts };
    for (facts, unknown, kernel, user) in [
        (facts(0, 0, 0), Unknown, LikelyHolder, Preemptible),
        // A count of preemption is none in such a kernel.
        (facts(1, 0, 0), Unknown, LikelyHolder, Preemptible),
        (idle(facts(0, 0, 0)), Preemptible, Preemptible, Preemptible),
        // The mode of a vCPU that runs is that of its last exit.
        (facts(0, 1, 0), Waiter, Waiter, Waiter),
        (facts(0, 1, 1), Head, Head, Head),
        (idle(facts(0, 1, 1)), Head, Head, Head),
        (facts(0x100, 1, 0), Irq, Irq, Irq),
        (facts(0x1_0000, 0, 0), Irq, Irq, Irq),
    ] {
        let classes = [Mode::Unknown, Mode::Kernel, Mode::User].map(|mode| {
            let count_kind = CountKind::Interrupts as u32;
            classify(&GuestFacts { count_kind, mode: mode as u32, ..facts })
        });
        assert_eq!(classes, [unknown, kernel, user], "{facts:?}");
    }
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
fn irql_tells_what_a_vcpu_of_windows_is_likely_to_do() {
    use VcpuClass::{LikelyHolder, LikelyIrq, Preemptible};
    // PASSIVE, APC and DISPATCH_LEVEL, a device, CLOCK, IPI and HIGH_LEVEL.
    let classes = [Preemptible, Preemptible, LikelyHolder, LikelyIrq, LikelyIrq, LikelyIrq];
    for (irql, class) in [0, 1, 2, 3, 13, 15].into_iter().zip(classes) {
        assert_eq!(classify_irql(irql << 4, false), class, "IRQL {irql}");
        assert_eq!(classify_irql(irql << 4 | 0xf, false), class, "IRQL {irql}, with a subclass");
        let spins = if class == LikelyHolder { VcpuClass::LikelyWaiter } else { class };
        assert_eq!(classify_irql(irql << 4, true), spins, "IRQL {irql}, and it spins");
        assert!(!class.is_protected(), "{class:?} is not known exactly");
    }
}

#[test]
fn vcpu_spins_near_the_place_of_its_pause_and_soon_after_an_exit() {
    let pause = 0xffff_f802_1234_5678;
    assert!([pause - 32, pause, pause + 8, pause + 32].iter().all(|rip| is_in_spin(*rip, pause)));
    assert!(![pause - 33, pause + 33, 0, u64::MAX].iter().any(|rip| is_in_spin(*rip, pause)));
    assert!(still_spins(10_000, 10_000) && still_spins(20_000, 10_000));
    assert!(!still_spins(20_001, 10_000));
    // The exit before the last was that of another spin.
    assert!(!still_spins(100_001, u64::MAX / 4));
}

#[test]
fn windows_is_told_from_other_guests_with_an_os_id() {
    // Server 2022, Windows 7, Linux 6.1, Hyper-V's own, none.
    let (server, seven) = (0x0001_040a_0000_4f7c, 0x0001_0406_0101_1db1);
    assert!(is_windows(server) && is_windows(seven));
    for other in [0x8100_0006_0100_0000, 0x0001_0000_0000_0000, 0x8001_040a_0000_4f7c, 0] {
        assert!(!is_windows(other), "{other:#x}");
    }
}

#[test]
fn idle_vcpu_holds_no_lock() {
    let idle = |preempt_count| GuestFacts { preempt_count, idle: 1, ..GuestFacts::default() };
    assert_eq!(classify(&idle(1)), VcpuClass::Preemptible);
    assert_eq!(classify(&idle(2)), VcpuClass::Holder);
    assert_eq!(classify(&idle(0x1_0001)), VcpuClass::Irq);
}
