// SPDX-License-Identifier: GPL-2.0-or-later
//! Which vCPU gets the CPU of one that spins.

use holdfast_policy::{
    Params, Reason, Siblings, Spin, Target, VcpuClass, is_worth_extending, prefers_blocker,
    probe_target, yield_target, yields_for,
};
use proptest::prelude::*;

use crate::common::{class, siblings};

#[test]
fn waiter_yields_to_its_holder_and_ipi_sender_to_its_target() {
    use Target::{ToCallPending, ToCandidate, ToHolder, ToNone};
    use VcpuClass::{Head, Holder, Irq, Preemptible, Unknown, Waiter};
    let both = Siblings { holder: true, next: false, waiter: false, call_pending: true };
    let none = Siblings::default();
    for (class, siblings, candidate, spun_long, target) in [
        (Waiter, both, true, false, ToHolder),
        (Head, both, false, false, ToHolder),
        (Head, Siblings { next: true, ..both }, false, false, ToCallPending),
        (Waiter, Siblings { next: true, ..both }, false, false, ToHolder),
        (Holder, both, true, false, ToCallPending),
        (Irq, both, false, false, ToCallPending),
        (Waiter, none, true, false, ToNone),
        (Waiter, none, true, true, ToCandidate),
        (Holder, none, true, false, ToNone),
        (Holder, Siblings { call_pending: false, ..both }, false, false, ToNone),
        (Holder, Siblings { call_pending: false, ..both }, false, true, ToHolder),
        (Preemptible, none, true, false, ToCandidate),
        (Unknown, none, true, false, ToCandidate),
        (Preemptible, both, false, false, ToHolder),
        (Preemptible, Siblings { waiter: true, ..none }, false, false, ToNone),
        (Preemptible, Siblings { call_pending: true, ..none }, false, false, ToNone),
    ] {
        assert_eq!(
            yield_target(class, &siblings, candidate, spun_long),
            target,
            "{class:?} {siblings:?} candidate {candidate} spun long {spun_long}"
        );
    }
}

#[test]
fn vcpu_that_kicks_keeps_its_cpu() {
    for reason in [Reason::ForPause, Reason::ForKick, Reason::ForIpi, Reason::ForOther] {
        assert_eq!(yields_for(reason), reason != Reason::ForKick, "{reason:?}");
    }
}

proptest! {
    #[test]
    fn first_probe_is_within_its_bounds(random: u32, probe_ns in 20_000..100_000_000u64) {
        let params = Params { probe_ns, ..Params::default() };
        let first = params.first_probe(random, false);
        prop_assert!(first <= probe_ns && first >= probe_ns / 32);
        prop_assert!(params.first_probe(random, true) > probe_ns);
    }

    #[test]
    fn spinner_runs_no_longer_than_under_stock(slice_ns in 100_000..=2_000_000u64) {
        // base_slice_ns of kernel/sched/fair.c on two CPUs.
        let params = Params { slice_ns, ..Params::default() };
        prop_assert!((1..=1_400_000).contains(&params.spinner_slice()));
    }

    /// At least one probe of a hundred is within 5 % of any moment.
    #[test]
    fn first_probes_reach_every_moment(
        probe_ns in 20_000..1_000_000u64,
        at in 0.0..0.99f64,
        first: u32,
    ) {
        let params = Params { probe_ns, ..Params::default() };
        let moment = probe_ns as f64 / 32f64.powf(at);
        let random = |i: u32| first.wrapping_add(i.wrapping_mul(2_654_435_761));
        let probes = (0..10_000).map(|i| params.first_probe(random(i), false) as f64);
        let hits = probes.filter(|ns| (ns / moment - 1.0).abs() < 0.05).count();
        // A fifth of the probes is in its halving: 200 to 400 are as close, fewer at the ends.
        prop_assert!((100..500).contains(&hits), "{hits} of 10000 hit {moment} ns");
    }

    #[test]
    fn trusts_candidate_of_a_spinner_after_spin_ns(
        start in 1u64..1 << 60,
        first_gap in 1_000u64..=100_000,
        doubles: bool,
        candidates in 1u64..8,
    ) {
        let params = Params::DEFAULT;
        let (mut spin, mut exit_ns, mut gap) = (Spin::default(), start, first_gap);
        while exit_ns < start + 2 * params.spin_ns {
            // KVM tries one candidate after the other, a moment apart.
            for moment in 0..candidates {
                let at_ns = exit_ns + 100 * moment;
                let long = params.spun_long(&mut spin, at_ns);
                let spun_ns = at_ns - start;
                prop_assert_eq!(long, spun_ns >= params.spin_ns, "{} ns after {}", spun_ns, gap);
            }
            exit_ns += gap;
            gap *= 1 + u64::from(doubles);
        }
    }

    #[test]
    fn candidate_of_an_ipi_sender_is_trusted_at_once(at_ns in 1u64..1 << 60, seen: bool) {
        let params = Params::DEFAULT;
        let mut spin = Spin::default();
        prop_assert!(params.trusts_candidate(Reason::ForIpi, &mut spin, at_ns, false));
        prop_assert_eq!(spin.last_ns, 0, "an IPI is no pause exit");
        for reason in [Reason::ForPause, Reason::ForOther] {
            let mut spin = Spin::default();
            prop_assert_eq!(params.trusts_candidate(reason, &mut spin, at_ns, seen), seen);
            prop_assert_eq!(spin.last_ns, at_ns, "a pause exit, also where it is not asked for");
        }
    }

    #[test]
    fn short_spins_far_apart_are_not_a_long_one(
        start in 1u64..1 << 60,
        gaps in prop::collection::vec(300_001u64..1 << 40, 1..50),
    ) {
        // Between its spins the vCPU runs for more than three times the first gap.
        let params = Params::DEFAULT;
        let (mut spin, mut at_ns) = (Spin::default(), start);
        prop_assert!(!params.spun_long(&mut spin, at_ns));
        for gap in gaps {
            at_ns += gap;
            prop_assert!(!params.spun_long(&mut spin, at_ns));
        }
    }

    #[test]
    fn only_a_queued_vcpu_that_has_pause_exits_leaves_the_choice_to_kvm(c in class()) {
        let queued = matches!(c, VcpuClass::Waiter | VcpuClass::Head);
        prop_assert_eq!(prefers_blocker(Reason::ForPause, c, true), !queued);
        prop_assert!(prefers_blocker(Reason::ForPause, c, false));
        prop_assert!(prefers_blocker(Reason::ForIpi, c, true));
    }

    #[test]
    fn target_is_a_known_vcpu(c in class(), s in siblings(), candidate: bool, long: bool) {
        match yield_target(c, &s, candidate, long) {
            Target::ToNone => {}
            Target::ToHolder => prop_assert!(s.holder),
            Target::ToCallPending => prop_assert!(s.call_pending),
            Target::ToCandidate => prop_assert!(candidate),
        }
    }

    #[test]
    fn probe_leaves_the_next_owner_to_waiters_with_pause_exits(c in class(), s in siblings()) {
        let (silent, seen) = (probe_target(c, &s, false, false), probe_target(c, &s, true, false));
        prop_assert_eq!(silent, yield_target(c, &s, false, false));
        let left = silent == Target::ToHolder && s.next;
        prop_assert_eq!(seen, if left { Target::ToNone } else { silent });
    }

    #[test]
    fn two_heads_do_not_wait_for_one_another(s in siblings(), candidate: bool, long: bool) {
        let others = Siblings { next: true, ..s };
        prop_assert!(yield_target(VcpuClass::Head, &others, candidate, long) != Target::ToHolder);
    }

    #[test]
    fn vcpu_that_a_probe_stops_is_not_worth_extending(c in class(), s in siblings()) {
        // Waiters and IPI senders that are probed while they run.
        prop_assume!(c != VcpuClass::Head);
        if yield_target(c, &s, false, false) != Target::ToNone {
            prop_assert!(!is_worth_extending(c, &s));
        }
    }
}
