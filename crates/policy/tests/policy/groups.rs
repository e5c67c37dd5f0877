// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of groups and their members, whatever members do and claim.

use holdfast_policy::{
    Params, VcpuClass, WEIGHT_NICE0, advance, charge, reweigh, vtime_before, weight_among_all,
    weight_in_group,
};
use proptest::prelude::*;

const PARAMS: Params = Params::DEFAULT;
const MS: u64 = 1_000_000;

/// The share of a group whose members run one after the other, for `burst_ns` each, beside one task
/// of the same weight that never sleeps, on one CPU with slices of `slice_ns`. A woken member
/// claims `class`, and has `woken_weight` until it runs.
fn share_of_a_group_that_runs_in_turn(
    nr_members: usize,
    burst_ns: u64,
    slice_ns: u64,
    class: VcpuClass,
    woken_weight: u32,
) -> f64 {
    const ALL: u32 = WEIGHT_NICE0;
    let start = 1u64 << 40;
    let (mut vtime_now, mut group_vtime, mut other) = (start, start, start);
    let mut members = vec![(start, ALL); nr_members];
    let (mut current, mut left_ns, mut key) = (0, burst_ns, start);
    let (mut group_ran, mut other_ran) = (0u64, 0u64);
    while group_ran + other_ran < 100_000_000_000 {
        vtime_now = advance(vtime_now, if vtime_before(key, other) { key } else { other });
        if !vtime_before(key, other) {
            other = charge(other, slice_ns, ALL);
            other_ran += slice_ns;
            continue;
        }
        let (vtime, weight) = members[current];
        let vtime = PARAMS.place(reweigh(vtime, vtime_now, weight, ALL), vtime_now, ALL, false);
        let ran = left_ns.min(slice_ns);
        members[current] = (charge(vtime, ran, ALL), ALL);
        group_vtime = PARAMS.place_group(charge(group_vtime, ran, ALL), vtime_now, ALL);
        group_ran += ran;
        left_ns -= ran;
        key = if left_ns > 0 {
            let vtime = PARAMS.place_in_group(members[current].0, group_vtime, ALL, ALL, false);
            members[current].0 = vtime;
            vtime
        } else {
            // The next one wakes.
            (current, left_ns) = ((current + 1) % nr_members, burst_ns);
            let (vtime, weight) = members[current];
            let vtime = reweigh(vtime, vtime_now, weight, woken_weight);
            let vtime = PARAMS.place(vtime, vtime_now, woken_weight, true);
            let vtime = PARAMS.place_in_group(vtime, group_vtime, woken_weight, ALL, true);
            members[current] = (vtime, woken_weight);
            PARAMS.queue_key(vtime, class, true, woken_weight)
        };
    }
    group_ran as f64 / (group_ran + other_ran) as f64
}

/// A member of a group.
#[derive(Clone, Copy)]
struct Member {
    vtime: u64,
    weight: u32,
    left_ns: u64,
    key: u64,
}

/// A group on one CPU whose members all wake when the last one sleeps. They run for `burst_ns` each
/// and claim `class` whenever they stop or are woken.
struct Barrier {
    members: Vec<Member>,
    class: VcpuClass,
    vtime: u64,
    vtime_now: u64,
}

impl Barrier {
    fn nr_awake(&self) -> u32 {
        self.members.iter().filter(|m| m.left_ns > 0).count() as u32
    }

    fn queue(&mut self, i: usize, woken: bool) {
        let (all, now, group_vtime) = (WEIGHT_NICE0, self.vtime_now, self.vtime);
        let weight = all / self.nr_awake();
        let m = &mut self.members[i];
        let vtime = PARAMS.place(reweigh(m.vtime, now, m.weight, weight), now, weight, woken);
        let vtime = PARAMS.place_in_group(vtime, group_vtime, weight, all, woken);
        let mut key = PARAMS.queue_key(vtime, self.class, woken, weight);
        if key != vtime {
            let bound = PARAMS.place_in_group(key, group_vtime, weight, all, true);
            key = if vtime_before(vtime, bound) { vtime } else { bound };
        }
        (m.vtime, m.weight, m.key) = (vtime, weight, key);
    }

    fn run(&mut self, i: usize, slice_ns: u64) -> u64 {
        let now = self.vtime_now;
        let weight = WEIGHT_NICE0 / self.nr_awake();
        let m = &mut self.members[i];
        let vtime = PARAMS.place(reweigh(m.vtime, now, m.weight, weight), now, weight, false);
        let ran = m.left_ns.min(slice_ns);
        (m.vtime, m.weight) = (charge(vtime, ran, weight), weight);
        m.left_ns -= ran;
        self.vtime = PARAMS.place_group(charge(self.vtime, ran, WEIGHT_NICE0), now, weight);
        ran
    }
}

/// The share of such a group of a CPU, beside loops of another group of the same weight.
fn share_of_a_group_that_wakes_at_once(
    nr_members: usize,
    burst_ns: u64,
    slice_ns: u64,
    class: VcpuClass,
    nr_others: usize,
) -> f64 {
    let start = 1u64 << 40;
    let fresh = Member { vtime: start, weight: WEIGHT_NICE0, left_ns: 0, key: start };
    let members = vec![fresh; nr_members];
    let mut group = Barrier { members, class, vtime: start, vtime_now: start };
    let weight_of_others = WEIGHT_NICE0 / nr_others as u32;
    let mut others = vec![start; nr_others];
    // The running task, until the next slice; a member, or one of the others after those.
    let mut prev: Option<usize> = None;
    let (mut group_ran, mut other_ran) = (0u64, 0u64);
    while group_ran + other_ran < 60_000_000_000 {
        if group.nr_awake() == 0 {
            for i in 0..nr_members {
                group.members[i].left_ns = burst_ns;
                group.queue(i, true);
            }
        }
        let key = |i: usize| match i.checked_sub(nr_members) {
            None => (group.members[i].left_ns > 0).then_some(group.members[i].key),
            Some(other) => Some(others[other]),
        };
        let waiting = (0..nr_members + nr_others).filter(|i| Some(*i) != prev);
        let waiting = waiting.filter_map(|i| Some((i, key(i)?)));
        let first = waiting.reduce(|a, b| if vtime_before(b.1, a.1) { b } else { a });
        let vtime_of_prev = prev.map(|i| match i.checked_sub(nr_members) {
            None => group.members[i].vtime,
            Some(other) => others[other],
        });
        let (mut next, mut least) = first.unwrap();
        if let (Some(i), Some(vtime)) = (prev, vtime_of_prev)
            && !vtime_before(least, vtime)
        {
            (next, least) = (i, vtime);
        }
        group.vtime_now = advance(group.vtime_now, least);
        if let Some(i) = prev.filter(|i| *i < nr_members && *i != next) {
            group.queue(i, false);
        }
        match next.checked_sub(nr_members) {
            None => group_ran += group.run(next, slice_ns),
            Some(other) => {
                others[other] = charge(others[other], slice_ns, weight_of_others);
                other_ran += slice_ns;
            }
        }
        let is_asleep = next < nr_members && group.members[next].left_ns == 0;
        prev = (!is_asleep).then_some(next);
    }
    group_ran as f64 / (group_ran + other_ran) as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn claims_win_nothing_for_a_group_that_wakes_at_once(
        nr_members in 2usize..6,
        burst_ns in 1_000_000u64..40_000_000,
        slice_ns in 2 * MS..4 * MS,
        nr_others in 1usize..4,
        class in prop::sample::select(vec![VcpuClass::Holder, VcpuClass::Irq, VcpuClass::Head]),
    ) {
        let part = |class| {
            share_of_a_group_that_wakes_at_once(nr_members, burst_ns, slice_ns, class, nr_others)
        };
        let (liar, honest) = (part(class), part(VcpuClass::Preemptible));
        prop_assert!(liar < 0.52 || liar < honest + 0.02, "{liar}, and {honest} without claims");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn running_in_turn_wins_a_group_nothing(
        nr_members in 1usize..64,
        burst_ns in 50_000u64..20_000_000,
        slice_ns in 2 * MS..4 * MS,
        class in prop::sample::select(
            vec![VcpuClass::Preemptible, VcpuClass::Irq, VcpuClass::Head],
        ),
    ) {
        let part_if_woken_with = |weight| {
            share_of_a_group_that_runs_in_turn(nr_members, burst_ns, slice_ns, class, weight)
        };
        let part = part_if_woken_with(WEIGHT_NICE0);
        prop_assert!((part - 0.5).abs() < 0.01, "{part}");
        // As long as its waker runs a member weighs half, and may pay twice for its CPU time.
        let part = part_if_woken_with(WEIGHT_NICE0 / 2);
        prop_assert!(part < 0.51, "{part}");
    }
}

proptest! {
    #[test]
    fn member_keeps_a_lag_of_a_few_slices(
        group_vtime in 1u64 << 40..1 << 60,
        behind_slices in 0u64..4,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        let vtime = group_vtime - charge(0, PARAMS.slice_ns * behind_slices, weight);
        prop_assert_eq!(PARAMS.place_in_group(vtime, group_vtime, weight, weight, false), vtime);
        // A member that slept keeps a slice more.
        let slept = PARAMS.place_in_group(0, group_vtime, weight, weight, true);
        let running = PARAMS.place_in_group(0, group_vtime, weight, weight, false);
        prop_assert!((running - slept).abs_diff(PARAMS.lag_limit(weight, true)) <= 1);
    }

    #[test]
    fn members_share_the_weight_of_their_group(
        group_weight in 1u32..10_000,
        weights in prop::collection::vec(1u32..10_000, 1..300),
    ) {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        let unit = WEIGHT_NICE0 / 100;
        let shared: u64 = weights
            .iter()
            .map(|w| u64::from(weight_in_group(w * unit, group_weight, total)))
            .sum();
        let whole = u64::from(group_weight) * u64::from(unit);
        // Rounding takes or gives each member less than one unit.
        prop_assert!(shared.abs_diff(whole) <= weights.len() as u64, "{shared} of {whole}");
    }

    /// A group may weigh more than its own weight: the group that it is in has more.
    #[test]
    fn group_weighs_as_much_as_its_members_together(
        weight in 1u32..10_000,
        levels in prop::collection::vec((100u32..10_000, 0u64..10_000), 1..4),
    ) {
        let unit = WEIGHT_NICE0 / 100;
        // From the task up: the weight of each group, and its other active members. The last one is
        // a member of the root.
        let mut own = weight;
        let mut members = Vec::new();
        for (group_weight, others) in levels {
            members.push((own, u64::from(own) + others, group_weight));
            own = group_weight;
        }
        let top = own * unit;
        let mut below = weight * unit;
        for (_, total, group_weight) in &members {
            below = weight_in_group(below, *group_weight, *total);
        }
        // Fractions are cut off on the way: a small part of a group does not give its weight.
        prop_assume!(below > 10_000);
        let above = members.iter().fold(below, |below, (own, total, _)| {
            weight_among_all(*total, *own, below)
        });
        let error = f64::from(above) / f64::from(top) - 1.0;
        prop_assert!(error.abs() < 0.01, "{above} instead of {top}");
    }

    #[test]
    fn member_weighs_no_more_than_its_group(weight: u32, group_weight in 1u32..10_000, total: u64) {
        let share = weight_in_group(weight, group_weight, total);
        prop_assert!((1..=group_weight * (WEIGHT_NICE0 / 100)).contains(&share));
    }
}
