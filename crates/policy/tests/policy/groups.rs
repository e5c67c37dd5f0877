// SPDX-License-Identifier: GPL-2.0-or-later
//! What groups and their members have, whatever members do and claim.

use holdfast_policy::{
    Params, VcpuClass, WEIGHT_NICE0, advance, charge, reweigh, vtime_before, weight_among_all,
    weight_in_group,
};
use proptest::prelude::*;

const PARAMS: Params = Params::DEFAULT;
const MS: u64 = 1_000_000;

/// Members of a group that take turns in running, `burst_ns` each, beside one task of the same weight that never sleeps,
/// on one CPU where turns end after `turn_ns`: the group's part of it. Who is woken says that it is of this class, and
/// has this weight until it runs.
fn part_of_a_group_that_takes_turns(
    nr_members: usize,
    burst_ns: u64,
    turn_ns: u64,
    class: VcpuClass,
    woken_weight: u32,
) -> f64 {
    const ALL: u32 = WEIGHT_NICE0;
    let start = 1u64 << 40;
    let (mut vtime_now, mut served, mut other) = (start, start, start);
    let mut members = vec![(start, ALL); nr_members];
    let (mut turn, mut left_ns, mut key) = (0, burst_ns, start);
    let (mut group_ran, mut other_ran) = (0u64, 0u64);
    while group_ran + other_ran < 100_000_000_000 {
        vtime_now = advance(vtime_now, if vtime_before(key, other) { key } else { other });
        if !vtime_before(key, other) {
            other = charge(other, turn_ns, ALL);
            other_ran += turn_ns;
            continue;
        }
        let (vtime, weight) = members[turn];
        let vtime = PARAMS.place(reweigh(vtime, vtime_now, weight, ALL), vtime_now, ALL, false);
        let ran = left_ns.min(turn_ns);
        members[turn] = (charge(vtime, ran, ALL), ALL);
        served = PARAMS.place_group(charge(served, ran, ALL), vtime_now, ALL);
        group_ran += ran;
        left_ns -= ran;
        key = if left_ns > 0 {
            let vtime = PARAMS.place_in_group(members[turn].0, served, ALL, ALL, false);
            members[turn].0 = vtime;
            vtime
        } else {
            // The next one wakes.
            (turn, left_ns) = ((turn + 1) % nr_members, burst_ns);
            let (vtime, weight) = members[turn];
            let vtime = reweigh(vtime, vtime_now, weight, woken_weight);
            let vtime = PARAMS.place(vtime, vtime_now, woken_weight, true);
            let vtime = PARAMS.place_in_group(vtime, served, woken_weight, ALL, true);
            members[turn] = (vtime, woken_weight);
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

/// A group on one CPU, all of whose members wake when the last one sleeps, run for `burst_ns` each and say that they are
/// of this class whenever they stop or are woken.
struct Barrier {
    members: Vec<Member>,
    class: VcpuClass,
    served: u64,
    vtime_now: u64,
}

impl Barrier {
    fn nr_awake(&self) -> u32 {
        self.members.iter().filter(|m| m.left_ns > 0).count() as u32
    }

    fn queue(&mut self, i: usize, woken: bool) {
        let (all, now, served) = (WEIGHT_NICE0, self.vtime_now, self.served);
        let weight = all / self.nr_awake();
        let m = &mut self.members[i];
        let vtime = PARAMS.place(reweigh(m.vtime, now, m.weight, weight), now, weight, woken);
        let vtime = PARAMS.place_in_group(vtime, served, weight, all, woken);
        let mut key = PARAMS.queue_key(vtime, self.class, woken, weight);
        if key != vtime {
            let bound = PARAMS.place_in_group(key, served, weight, all, true);
            key = if vtime_before(vtime, bound) { vtime } else { bound };
        }
        (m.vtime, m.weight, m.key) = (vtime, weight, key);
    }

    fn run(&mut self, i: usize, turn_ns: u64) -> u64 {
        let now = self.vtime_now;
        let weight = WEIGHT_NICE0 / self.nr_awake();
        let m = &mut self.members[i];
        let vtime = PARAMS.place(reweigh(m.vtime, now, m.weight, weight), now, weight, false);
        let ran = m.left_ns.min(turn_ns);
        (m.vtime, m.weight) = (charge(vtime, ran, weight), weight);
        m.left_ns -= ran;
        self.served = PARAMS.place_group(charge(self.served, ran, WEIGHT_NICE0), now, weight);
        ran
    }
}

/// What such a group has of a CPU beside loops of another group of the same weight.
fn part_of_a_group_that_wakes_at_once(
    nr_members: usize,
    burst_ns: u64,
    turn_ns: u64,
    class: VcpuClass,
    nr_others: usize,
) -> f64 {
    let start = 1u64 << 40;
    let fresh = Member { vtime: start, weight: WEIGHT_NICE0, left_ns: 0, key: start };
    let members = vec![fresh; nr_members];
    let mut group = Barrier { members, class, served: start, vtime_now: start };
    let weight_of_others = WEIGHT_NICE0 / nr_others as u32;
    let mut others = vec![start; nr_others];
    // Whoever runs, until the next turn; a member, or one of the others after those.
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
            None => group_ran += group.run(next, turn_ns),
            Some(other) => {
                others[other] = charge(others[other], turn_ns, weight_of_others);
                other_ran += turn_ns;
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
    fn claims_win_a_group_nothing_that_wakes_at_once(
        nr_members in 2usize..6,
        burst_ns in 1_000_000u64..40_000_000,
        turn_ns in 2 * MS..4 * MS,
        nr_others in 1usize..4,
        class in prop::sample::select(vec![VcpuClass::Holder, VcpuClass::Irq, VcpuClass::Head]),
    ) {
        let part = |class| {
            part_of_a_group_that_wakes_at_once(nr_members, burst_ns, turn_ns, class, nr_others)
        };
        let (liar, honest) = (part(class), part(VcpuClass::Preemptible));
        prop_assert!(liar < 0.52 || liar < honest + 0.02, "{liar}, and {honest} without claims");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn taking_turns_wins_a_group_nothing(
        nr_members in 1usize..64,
        burst_ns in 50_000u64..20_000_000,
        turn_ns in 2 * MS..4 * MS,
        class in prop::sample::select(vec![VcpuClass::Preemptible, VcpuClass::Irq, VcpuClass::Head]),
    ) {
        let part_if_woken_with = |weight| {
            part_of_a_group_that_takes_turns(nr_members, burst_ns, turn_ns, class, weight)
        };
        let part = part_if_woken_with(WEIGHT_NICE0);
        prop_assert!((part - 0.5).abs() < 0.01, "{part}");
        // As long as its waker runs it weighs half, and may pay twice for what it ran.
        let part = part_if_woken_with(WEIGHT_NICE0 / 2);
        prop_assert!(part < 0.51, "{part}");
    }
}

proptest! {
    #[test]
    fn a_member_that_is_a_few_turns_behind_keeps_them(
        served in 1u64 << 40..1 << 60,
        behind_slices in 0u64..4,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        let vtime = served - charge(0, PARAMS.slice_ns * behind_slices, weight);
        prop_assert_eq!(PARAMS.place_in_group(vtime, served, weight, weight, false), vtime);
        // And who ran on another's behalf keeps what it slept for.
        let slept = PARAMS.place_in_group(0, served, weight, weight, true);
        let running = PARAMS.place_in_group(0, served, weight, weight, false);
        prop_assert!((running - slept).abs_diff(PARAMS.lag_limit(weight, true)) <= 1);
    }

    #[test]
    fn members_share_what_their_group_has(
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

    /// A group may weigh more than its own weight is: what it is in has more.
    #[test]
    fn a_group_weighs_what_its_members_weigh_together(
        weight in 1u32..10_000,
        levels in prop::collection::vec((100u32..10_000, 0u64..10_000), 1..4),
    ) {
        let unit = WEIGHT_NICE0 / 100;
        // From the task up: the weight of each group, and what else is active in it. The uppermost is of the root.
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
        // Fractions are cut off on the way: a small part of a group does not tell what that weighs.
        prop_assume!(below > 10_000);
        let above = members.iter().fold(below, |below, (own, total, _)| {
            weight_among_all(*total, *own, below)
        });
        let error = f64::from(above) / f64::from(top) - 1.0;
        prop_assert!(error.abs() < 0.01, "{above} instead of {top}");
    }

    #[test]
    fn no_member_has_more_than_its_group(weight: u32, group_weight in 1u32..10_000, total: u64) {
        let share = weight_in_group(weight, group_weight, total);
        prop_assert!((1..=group_weight * (WEIGHT_NICE0 / 100)).contains(&share));
    }
}
