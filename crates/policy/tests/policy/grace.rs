// SPDX-License-Identifier: GPL-2.0-or-later
//! What grace never does, whatever a guest claims.

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

const ALONE: Siblings = Siblings { holder: false, next: false, waiter: false, call_pending: false };

/// Runs one grace to its end: the time granted, and the verdict.
fn run_grace(p: &Params, grace: &mut Grace, budget: &mut u64, class: VcpuClass) -> (u64, Verdict) {
    let mut granted = 0;
    for _ in 0..1_000 {
        let decision = p.decide(grace, budget, class, &ALONE);
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
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        let (granted, verdict) = run_grace(&p, &mut grace, &mut budget, VcpuClass::Holder);
        prop_assert_eq!(verdict, Verdict::Capped);
        prop_assert_eq!(granted, p.grace_max_ns);
    }

    #[test]
    fn of_a_likely_holder_is_short(
        p in params(),
        class in prop::sample::select(vec![VcpuClass::LikelyHolder, VcpuClass::LikelyIrq]),
    ) {
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        let (granted, verdict) = run_grace(&p, &mut grace, &mut budget, class);
        prop_assert_eq!(verdict, Verdict::Capped);
        prop_assert_eq!(granted, p.grace_max_ns.min(p.spin_ns));
        prop_assert_eq!(u64::MAX - budget, granted);
    }

    #[test]
    fn never_exceeds_what_the_vm_has_earned(
        p in params(),
        slices in prop::collection::vec((class(), 0u64..10_000_000, 0usize..4), 1..200),
    ) {
        let mut vcpus = [Grace::default(); 4];
        let (mut budget, mut earned, mut granted) = (0u64, 0u128, 0u128);
        for (class, ran_ns, vcpu) in slices {
            budget = p.earn(budget, ran_ns);
            prop_assert!(budget <= p.grace_budget_max_ns);
            earned += u128::from(ran_ns) * u128::from(p.grace_share_permille) / 1000;
            granted += u128::from(run_grace(&p, &mut vcpus[vcpu], &mut budget, class).0);
            prop_assert!(granted <= earned);
        }
    }

    #[test]
    fn is_refused_where_it_does_not_help(
        p in params(),
        class in class(),
        s in siblings(),
        budget: u64,
    ) {
        prop_assume!(!is_worth_extending(class, &s));
        let (mut grace, mut left) = (Grace::default(), budget);
        let decision = p.decide(&mut grace, &mut left, class, &s);
        let waits = class.is_protected() || class.is_likely() || class == VcpuClass::Waiter;
        prop_assert_eq!(decision.verdict, if waits { Verdict::Waits } else { Verdict::Preempt });
        prop_assert_eq!(left, budget);
    }

    #[test]
    fn ends_for_a_holder_that_spins_for_a_preempted_one(
        p in params(),
        class in prop::sample::select(vec![VcpuClass::Holder, VcpuClass::Irq]),
    ) {
        let blockers = Siblings { holder: true, ..ALONE };
        let (mut grace, mut budget, mut granted) = (Grace::default(), u64::MAX, 0);
        let verdict = loop {
            let decision = p.decide(&mut grace, &mut budget, class, &blockers);
            if decision.verdict != Verdict::Extend {
                break decision.verdict;
            }
            // No step begins once the grace has lasted for spin_ns.
            prop_assert!(granted < p.spin_ns);
            granted += decision.step_ns;
        };
        let is_capped = p.grace_max_ns < p.spin_ns;
        prop_assert_eq!(verdict, if is_capped { Verdict::Capped } else { Verdict::Waits });
    }

    #[test]
    fn ends_as_soon_as_the_lock_is_released(p in params(), steps in 1usize..4) {
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        for _ in 0..steps {
            let decision = p.decide(&mut grace, &mut budget, VcpuClass::Holder, &ALONE);
            if decision.verdict != Verdict::Extend {
                return Ok(());
            }
        }
        let decision = p.decide(&mut grace, &mut budget, VcpuClass::Preemptible, &ALONE);
        prop_assert_eq!(decision.verdict, Verdict::Release);
        prop_assert_eq!(grace.granted_ns, 0);
        prop_assert_eq!(grace.capped_streak, 0);
    }

    /// The histogram of how long graces have to be counts these alone.
    #[test]
    fn counts_as_released_only_if_preemptible(p in params(), class in class(), s in siblings()) {
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        let first = p.decide(&mut grace, &mut budget, VcpuClass::Holder, &ALONE);
        prop_assume!(first.verdict == Verdict::Extend);
        let verdict = p.decide(&mut grace, &mut budget, class, &s).verdict;
        prop_assert_eq!(verdict == Verdict::Release, class == VcpuClass::Preemptible);
    }

    #[test]
    fn backs_off_from_a_vcpu_whose_graces_keep_ending_at_the_cap(p in params()) {
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        let mut granted = 0u64;
        const SLICES: u64 = 1_000;
        for _ in 0..SLICES {
            granted += run_grace(&p, &mut grace, &mut budget, VcpuClass::Holder).0;
        }
        // Without back-off it would be all slices; the streak settles at one in 65.
        prop_assert!(granted <= p.grace_max_ns * SLICES / 20, "{granted} ns");
        // The vCPU still gets another chance.
        prop_assert!(granted > p.grace_max_ns * 3);
    }

    #[test]
    fn distrusts_an_apparent_holder_after_four_slices(
        p in params(),
        start in 1u64..1 << 60,
        sights in prop::collection::vec((class(), 0u64..10_000_000), 1..100),
    ) {
        let mut grace = Grace::default();
        let (mut cpu_ns, mut held_since) = (start, None);
        for (class, ran_ns) in sights {
            cpu_ns += ran_ns;
            note_class(&mut grace, class, cpu_ns);
            let holds = matches!(class, VcpuClass::Holder | VcpuClass::Irq);
            held_since = match class {
                // Neither begins nor ends what is known exactly.
                _ if class == VcpuClass::Unknown || class.is_likely() => held_since,
                _ => holds.then_some(held_since.unwrap_or(cpu_ns)),
            };
            let is_trusted = p.trusted(class, &grace, cpu_ns) == class;
            let held_ns = held_since.map_or(0, |from| cpu_ns - from);
            prop_assert_eq!(is_trusted, !holds || held_ns <= 4 * p.slice_ns);
            // Queued vCPUs are always trusted.
            prop_assert_eq!(p.trusted(VcpuClass::Head, &grace, cpu_ns), VcpuClass::Head);
            prop_assert_eq!(p.trusted(VcpuClass::Waiter, &grace, cpu_ns), VcpuClass::Waiter);
        }
    }

    #[test]
    fn probes_are_few(p in params()) {
        let (mut grace, mut budget) = (Grace::default(), u64::MAX);
        let mut probes = 0u32;
        let mut decide = || p.decide(&mut grace, &mut budget, VcpuClass::Holder, &ALONE).verdict;
        while decide() == Verdict::Extend {
            probes += 1;
        }
        let doublings = (p.grace_max_ns / p.grace_step_ns).ilog2();
        prop_assert!(probes <= doublings + 2, "{probes} probes");
    }

    #[test]
    fn is_deterministic(
        p in params(),
        classes in prop::collection::vec(class(), 1..50),
        budget: u64,
    ) {
        let run = || {
            let (mut grace, mut left) = (Grace::default(), budget);
            let decide = |c: &VcpuClass| p.decide(&mut grace, &mut left, *c, &ALONE);
            classes.iter().map(decide).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}
