// SPDX-License-Identifier: GPL-2.0-or-later
//! What grace may never do, whatever a guest claims.

use holdfast_policy::{
    Grace, Params, Siblings, VcpuClass, Verdict, is_worth_extending, note_class,
};
use proptest::prelude::*;

use crate::common::{class, siblings};

fn params() -> impl Strategy<Value = Params> {
    (1_000u64..100_000, 1u64..100, 0u32..=1000, 0u64..50_000_000).prop_map(
        |(grace_step_ns, steps, grace_share_permille, grace_budget_max_ns)| Params {
            grace_max_ns: grace_step_ns * steps,
            grace_step_ns,
            grace_budget_max_ns,
            grace_share_permille,
            ..Params::DEFAULT
        },
    )
}

const ALONE: Siblings = Siblings { holder: false, next: false, queued: false, call_pending: false };

/// Runs one grace to its end; the time granted and the verdict.
fn run_grace(p: &Params, grace: &mut Grace, bank: &mut u64, class: VcpuClass) -> (u64, Verdict) {
    let mut granted = 0;
    for _ in 0..1_000 {
        let decision = p.decide(grace, bank, class, &ALONE);
        match decision.verdict {
            Verdict::Extend => granted += decision.step_ns,
            verdict => return (granted, verdict),
        }
    }
    panic!("a grace without end");
}

proptest! {
    #[test]
    fn ends_at_the_cap_for_a_guest_that_always_claims_a_lock(p in params()) {
        let (mut grace, mut bank) = (Grace::default(), u64::MAX);
        let (granted, verdict) = run_grace(&p, &mut grace, &mut bank, VcpuClass::Holder);
        prop_assert_eq!(verdict, Verdict::Capped);
        prop_assert_eq!(granted, p.grace_max_ns);
    }

    #[test]
    fn never_exceeds_what_the_vm_earned(
        p in params(),
        turns in prop::collection::vec((class(), 0u64..10_000_000, 0usize..4), 1..200),
    ) {
        let mut vcpus = [Grace::default(); 4];
        let (mut bank, mut earned, mut granted) = (0u64, 0u128, 0u128);
        for (class, ran_ns, vcpu) in turns {
            bank = p.earn(bank, ran_ns);
            prop_assert!(bank <= p.grace_budget_max_ns);
            earned += u128::from(ran_ns) * u128::from(p.grace_share_permille) / 1000;
            granted += u128::from(run_grace(&p, &mut vcpus[vcpu], &mut bank, class).0);
            prop_assert!(granted <= earned);
        }
    }

    #[test]
    fn is_for_nobody_whom_it_does_not_help(p in params(), class in class(), s in siblings(), bank: u64) {
        prop_assume!(!is_worth_extending(class, &s));
        let (mut grace, mut left) = (Grace::default(), bank);
        let decision = p.decide(&mut grace, &mut left, class, &s);
        let waits = class.is_protected() || class == VcpuClass::Waiter;
        prop_assert_eq!(decision.verdict, if waits { Verdict::Waits } else { Verdict::Preempt });
        prop_assert_eq!(left, bank);
    }

    #[test]
    fn who_looks_like_a_holder_for_long_spins_for_one_that_is_preempted(p in params(), class in class()) {
        prop_assume!(class.is_protected() && class != VcpuClass::Head);
        let stuck = Siblings { holder: true, ..ALONE };
        let (mut grace, mut bank, mut granted) = (Grace::default(), u64::MAX, 0);
        let verdict = loop {
            let decision = p.decide(&mut grace, &mut bank, class, &stuck);
            if decision.verdict != Verdict::Extend {
                break decision.verdict;
            }
            // No step is granted once it has been extended for as long as is good for a spinner.
            prop_assert!(granted < p.spin_ns);
            granted += decision.step_ns;
        };
        let is_capped = p.grace_max_ns < p.spin_ns;
        prop_assert_eq!(verdict, if is_capped { Verdict::Capped } else { Verdict::Waits });
    }

    #[test]
    fn is_released_as_soon_as_the_lock_is(p in params(), steps in 1usize..4) {
        let (mut grace, mut bank) = (Grace::default(), u64::MAX);
        for _ in 0..steps {
            if p.decide(&mut grace, &mut bank, VcpuClass::Holder, &ALONE).verdict != Verdict::Extend {
                return Ok(());
            }
        }
        let decision = p.decide(&mut grace, &mut bank, VcpuClass::Preemptible, &ALONE);
        prop_assert_eq!(decision.verdict, Verdict::Release);
        prop_assert_eq!(grace.granted_ns, 0);
        prop_assert_eq!(grace.capped_streak, 0);
    }

    /// The histogram of how long graces have to be is of these alone.
    #[test]
    fn only_who_is_free_counts_as_released(p in params(), class in class(), s in siblings()) {
        let (mut grace, mut bank) = (Grace::default(), u64::MAX);
        prop_assume!(p.decide(&mut grace, &mut bank, VcpuClass::Holder, &ALONE).verdict == Verdict::Extend);
        let verdict = p.decide(&mut grace, &mut bank, class, &s).verdict;
        prop_assert_eq!(verdict == Verdict::Release, class == VcpuClass::Preemptible);
    }

    #[test]
    fn backs_off_from_a_vcpu_whose_graces_keep_ending_at_the_cap(p in params()) {
        let (mut grace, mut bank) = (Grace::default(), u64::MAX);
        let mut granted = 0u64;
        const TURNS: u64 = 1_000;
        for _ in 0..TURNS {
            granted += run_grace(&p, &mut grace, &mut bank, VcpuClass::Holder).0;
        }
        // Without backing off it would be all turns; the streak settles at one in 65.
        prop_assert!(granted <= p.grace_max_ns * TURNS / 20, "{granted} ns");
        // And it is given another chance.
        prop_assert!(granted > p.grace_max_ns * 3);
    }

    #[test]
    fn siblings_do_not_wait_for_who_looks_like_a_holder_for_too_long(
        p in params(),
        start in 1u64..1 << 60,
        sights in prop::collection::vec((class(), 0u64..10_000_000), 1..100),
    ) {
        let mut grace = Grace::default();
        let (mut cpu_ns, mut held_from) = (start, None);
        for (class, ran_ns) in sights {
            cpu_ns += ran_ns;
            note_class(&mut grace, class, cpu_ns);
            let holds = matches!(class, VcpuClass::Holder | VcpuClass::Irq);
            held_from = match class {
                VcpuClass::Unknown => held_from,
                _ => holds.then_some(held_from.unwrap_or(cpu_ns)),
            };
            let is_believed = p.trusted(class, &grace, cpu_ns) == class;
            let held_ns = held_from.map_or(0, |from| cpu_ns - from);
            prop_assert_eq!(is_believed, !holds || held_ns <= 4 * p.slice_ns);
            // Who is in a queue is in a queue, and whoever is seen without a lock once is believed again.
            prop_assert_eq!(p.trusted(VcpuClass::Head, &grace, cpu_ns), VcpuClass::Head);
            prop_assert_eq!(p.trusted(VcpuClass::Waiter, &grace, cpu_ns), VcpuClass::Waiter);
        }
    }

    #[test]
    fn looks_are_few(p in params()) {
        let (mut grace, mut bank) = (Grace::default(), u64::MAX);
        let mut looks = 0u32;
        while p.decide(&mut grace, &mut bank, VcpuClass::Holder, &ALONE).verdict == Verdict::Extend {
            looks += 1;
        }
        let doublings = (p.grace_max_ns / p.grace_step_ns).ilog2();
        prop_assert!(looks <= doublings + 2, "{looks} looks");
    }

    #[test]
    fn is_deterministic(p in params(), classes in prop::collection::vec(class(), 1..50), bank: u64) {
        let run = || {
            let (mut grace, mut bank) = (Grace::default(), bank);
            classes.iter().map(|c| p.decide(&mut grace, &mut bank, *c, &ALONE)).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}
