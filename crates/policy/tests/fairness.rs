// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares under the policy, in a small model of a host: CPUs that always run the runnable task
//! with the smallest key, and tasks that may claim what they like.

use holdfast_policy::{
    Grace, Params, Siblings, VcpuClass, Verdict, WEIGHT_NICE0, advance, charge, is_late, reweigh,
    swap_places, vtime_before, weight_in_group,
};
use proptest::prelude::*;

mod common;

use common::class;

const PARAMS: Params = Params {
    slice_ns: 2_000_000,
    grace_max_ns: 1_000_000,
    grace_step_ns: 30_000,
    grace_bank_max_ns: 20_000_000,
    grace_share_permille: 100,
    resume_boost_permille: 2500,
    spin_ns: 200_000,
    look_ns: 100_000,
    wakeup_margin_permille: 500,
    sibling_margin_permille: 1500,
};

#[derive(Clone, Debug)]
struct Task {
    weight: u32,
    /// What its guest says whenever it is asked.
    claims: VcpuClass,
    /// Runs for a slice and then sleeps for this long; 0: never sleeps.
    sleeps_ns: u64,
    /// For how much longer than a slice it runs, as turns end at ticks.
    overrun_ns: u64,
    /// Its VM, among whose vCPUs it hands its CPU on before its turn ends; 0: none, and it does not.
    vm: usize,
    vtime: u64,
    ran_ns: u64,
    longest_wait_ns: u64,
    runnable_since: u64,
    grace: Grace,
    bank_ns: u64,
}

impl Task {
    fn new(weight: u32, claims: VcpuClass) -> Self {
        Self {
            weight,
            claims,
            sleeps_ns: 0,
            overrun_ns: 0,
            vm: 0,
            vtime: 0,
            ran_ns: 0,
            longest_wait_ns: 0,
            runnable_since: 0,
            grace: Grace::default(),
            bank_ns: 0,
        }
    }
}

struct Cpu {
    runs: Option<usize>,
    /// When its turn ends.
    until: u64,
}

/// Numbers without a pattern, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// So many turns on so many CPUs; returns the time that passed.
fn simulate(tasks: &mut [Task], nr_cpus: usize, turns: usize, start_vtime: u64) -> u64 {
    let mut random = Random(start_vtime);
    let mut vtime_now = start_vtime;
    let mut late_check_at = 0;
    let mut keys: Vec<u64> = vec![start_vtime; tasks.len()];
    let mut cpus: Vec<Cpu> = (0..nr_cpus).map(|_| Cpu { runs: None, until: 0 }).collect();
    for task in tasks.iter_mut() {
        task.vtime = start_vtime;
    }
    for _ in 0..turns {
        let cpu = (0..nr_cpus).min_by_key(|cpu| cpus[*cpu].until).unwrap();
        let now = cpus[cpu].until;
        let before = cpus[cpu].runs.take();
        let is_running = |i| cpus.iter().any(|cpu| cpu.runs == Some(i));
        let waits = |tasks: &[Task], i: usize| tasks[i].runnable_since <= now && !is_running(i);
        let mut given = None;
        if let Some(i) = before {
            let others: Vec<usize> =
                (0..tasks.len()).filter(|other| *other != i && waits(tasks, *other)).collect();
            let siblings: Vec<usize> =
                others.iter().copied().filter(|other| tasks[*other].vm == tasks[i].vm).collect();
            if tasks[i].vm != 0 && !siblings.is_empty() {
                let to = siblings[random.below(siblings.len() as u64) as usize];
                let first = others.into_iter().map(|other| keys[other]);
                let first = first.reduce(|a, b| if vtime_before(b, a) { b } else { a }).unwrap();
                let place = |i: usize| (tasks[i].vtime, tasks[i].weight);
                if PARAMS.may_give(place(i), place(to), first) {
                    (tasks[i].vtime, tasks[to].vtime) = swap_places(place(i), place(to));
                    given = Some(to);
                }
            }
            let is_alone = (0..tasks.len()).all(|other| other == i || !waits(tasks, other));
            let task = &mut tasks[i];
            if is_alone && task.sleeps_ns == 0 {
                task.vtime = PARAMS.forgive(task.vtime, vtime_now, task.weight, 1);
            }
            task.vtime = PARAMS.place(task.vtime, vtime_now, task.weight, task.sleeps_ns > 0);
            keys[i] = PARAMS.queue_key(task.vtime, task.claims, task.sleeps_ns > 0, task.weight);
        }
        let waiting = (0..tasks.len()).filter(|i| waits(tasks, *i));
        let Some(first) = waiting.reduce(|a, b| if vtime_before(keys[b], keys[a]) { b } else { a })
        else {
            cpus[cpu].until += PARAMS.slice_ns;
            continue;
        };
        vtime_now = advance(vtime_now, keys[first]);
        // As `LATE_TURNS` of the scheduler has it.
        let may_be_late = |i: &usize| waits(tasks, *i) && is_late(now - tasks[*i].runnable_since);
        let late = (0..tasks.len()).find(may_be_late).filter(|_| now >= late_check_at);
        if late.is_some() {
            late_check_at = now + 3 * PARAMS.slice_ns;
        }
        let next = late.or(given).unwrap_or(first);
        let task = &mut tasks[next];
        task.longest_wait_ns = task.longest_wait_ns.max(now - task.runnable_since);
        if late.is_none() {
            let behind = task.vtime.wrapping_sub(PARAMS.credit(task.weight, false));
            vtime_now = advance(vtime_now, behind);
        }
        let mut ran = PARAMS.slice_ns + task.overrun_ns;
        if task.vm != 0 {
            ran = random.below(PARAMS.slice_ns) + 1;
        }
        while task.vm == 0 {
            let decision = PARAMS.decide(
                &mut task.grace,
                &mut task.bank_ns,
                task.claims,
                &Siblings::default(),
            );
            if decision.verdict != Verdict::Extend {
                break;
            }
            ran += decision.step_ns;
        }
        task.ran_ns += ran;
        task.bank_ns = PARAMS.earn(task.bank_ns, ran);
        task.vtime = charge(task.vtime, ran, task.weight);
        task.runnable_since = now + ran + task.sleeps_ns;
        cpus[cpu] = Cpu { runs: Some(next), until: now + ran };
    }
    cpus.iter().map(|cpu| cpu.until).min().unwrap()
}

/// What each should have of the CPUs: by weight, but nobody more than one.
fn fair_shares(tasks: &[Task], nr_cpus: usize) -> Vec<f64> {
    let mut shares: Vec<Option<f64>> = vec![None; tasks.len()];
    loop {
        let undecided = || (0..tasks.len()).filter(|i| shares[*i].is_none());
        let weights: f64 = undecided().map(|i| f64::from(tasks[i].weight)).sum();
        let left = nr_cpus as f64 - shares.iter().flatten().sum::<f64>();
        let share = |i: usize| left * f64::from(tasks[i].weight) / weights;
        let Some(whole) = undecided().find(|i| share(*i) > 1.0) else {
            return (0..tasks.len()).map(|i| shares[i].unwrap_or_else(|| share(i))).collect();
        };
        shares[whole] = Some(1.0);
    }
}

#[test]
fn what_a_heavy_task_is_owed_stays_when_a_light_holder_runs_ahead() {
    let mut tasks =
        vec![Task::new(20_480, VcpuClass::Holder), Task::new(351_429, VcpuClass::Unknown)];
    let total = simulate(&mut tasks, 1, 20_000, 0);
    let share = tasks[0].ran_ns as f64 / total as f64;
    let fair = 20_480.0 / (20_480.0 + 351_429.0);
    assert!((share - fair).abs() < 0.002, "{share} instead of {fair}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn shares_follow_weights_whatever_guests_claim(
        claims in prop::collection::vec((class(), WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0), 2..10),
        nr_cpus in 1usize..6,
        start_vtime in prop_oneof![Just(0u64), Just(u64::MAX - 10_000_000), any::<u64>()],
    ) {
        let mut tasks: Vec<Task> =
            claims.iter().map(|(class, weight)| Task::new(*weight, *class)).collect();
        let total = simulate(&mut tasks, nr_cpus, 20_000 * nr_cpus, start_vtime);
        for (task, fair) in tasks.iter().zip(fair_shares(&tasks, nr_cpus)) {
            let share = task.ran_ns as f64 / total as f64;
            prop_assert!((share - fair).abs() < 0.01, "{share} instead of {fair}: {task:?}");
        }
    }

    #[test]
    fn nobody_starves(
        claims in prop::collection::vec(class(), 2..12),
        nr_cpus in 1usize..6,
        start_vtime: u64,
    ) {
        let mut tasks: Vec<Task> = claims.iter().map(|class| Task::new(WEIGHT_NICE0, *class)).collect();
        simulate(&mut tasks, nr_cpus, 5_000 * nr_cpus, start_vtime);
        let turn = PARAMS.slice_ns + PARAMS.grace_max_ns;
        for task in &tasks {
            // Everybody's turn, and the boost of each of them, may come first.
            let bound = (tasks.len().div_ceil(nr_cpus) as u64 + 1) * turn * 4;
            prop_assert!(task.longest_wait_ns <= bound, "{} ns: {task:?}", task.longest_wait_ns);
        }
    }

    #[test]
    fn nobody_waits_longer_than_its_weight_says(
        claims in prop::collection::vec((class(), WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0), 2..12),
        nr_cpus in 1usize..6,
        start_vtime: u64,
    ) {
        let mut tasks: Vec<Task> =
            claims.iter().map(|(class, weight)| Task::new(*weight, *class)).collect();
        simulate(&mut tasks, nr_cpus, 5_000 * nr_cpus, start_vtime);
        let turn_ns = (PARAMS.slice_ns + PARAMS.grace_max_ns) as f64;
        let boost_ns = (PARAMS.slice_ns * u64::from(PARAMS.resume_boost_permille) / 1000) as f64;
        let each = tasks.len().div_ceil(nr_cpus) as f64 + 1.0;
        for (task, fair) in tasks.iter().zip(fair_shares(&tasks, nr_cpus)) {
            // Its turn is paid for by its share, and everybody may have gone ahead of theirs.
            let bound = turn_ns / fair + each * boost_ns;
            prop_assert!(task.longest_wait_ns as f64 <= bound, "{bound} ns: {task:?}");
        }
    }

    #[test]
    fn no_weight_makes_the_watchdog_bite(
        heavy in prop::collection::vec(WEIGHT_NICE0..100 * WEIGHT_NICE0, 1..4),
        light in prop::collection::vec((class(), WEIGHT_NICE0 / 800..WEIGHT_NICE0 / 5), 1..40),
        nr_cpus in 1usize..4,
    ) {
        let heavy = heavy.into_iter().map(|weight| Task::new(weight, VcpuClass::Unknown));
        let light = light.into_iter().map(|(class, weight)| Task::new(weight, class));
        let mut tasks: Vec<Task> = heavy.chain(light).collect();
        tasks.iter_mut().for_each(|task| task.overrun_ns = PARAMS.slice_ns);
        let total = simulate(&mut tasks, nr_cpus, 20_000 * nr_cpus, 0) as f64;
        let longest_ns = tasks.iter().map(|task| task.longest_wait_ns).max().unwrap();
        prop_assert!(longest_ns < 30_000_000_000, "{longest_ns} ns");
        // What each has for having waited is a turn now and then, with what is granted beyond it.
        let turn_ns = (2 * PARAMS.slice_ns + PARAMS.grace_max_ns) as f64;
        let turns_ns = turn_ns * tasks.len() as f64 / 20e9;
        for (task, fair) in tasks.iter().zip(fair_shares(&tasks, nr_cpus)) {
            let share = task.ran_ns as f64 / total;
            prop_assert!((share - fair).abs() < 0.01 + turns_ns, "{share}, not {fair}: {task:?}");
        }
    }

    #[test]
    fn a_task_that_comes_back_takes_no_more_than_its_credit(sleep_ms in 1u64..10_000) {
        let mut tasks = vec![Task::new(WEIGHT_NICE0, VcpuClass::Free), Task::new(WEIGHT_NICE0, VcpuClass::Free)];
        tasks[1].sleeps_ns = sleep_ms * 1_000_000;
        simulate(&mut tasks, 1, 2_000, 0);
        // However long it slept, the other one waits for its turn and for the credit, no longer.
        prop_assert!(tasks[0].longest_wait_ns <= 4 * PARAMS.slice_ns, "{:?}", tasks[0]);
    }
}

/// After each turn that it has for having waited a task is further ahead than before.
#[test]
fn late_turns_do_not_keep_those_waiting_who_wake_however_long_that_goes_on() {
    for heavy in [vec![8668 * (WEIGHT_NICE0 / 100)], vec![WEIGHT_NICE0; 100]] {
        let mut tasks: Vec<Task> =
            heavy.iter().map(|weight| Task::new(*weight, VcpuClass::Unknown)).collect();
        tasks.extend([WEIGHT_NICE0 / 100; 2].map(|weight| Task::new(weight, VcpuClass::Unknown)));
        tasks.iter_mut().for_each(|task| task.overrun_ns = PARAMS.slice_ns);
        let mut sleeper = Task::new(WEIGHT_NICE0, VcpuClass::Unknown);
        sleeper.sleeps_ns = 100_000_000;
        tasks.push(sleeper);
        // Twenty minutes.
        let total_ns = simulate(&mut tasks, 1, 300_000, 0);
        assert!(total_ns > 1_100_000_000_000, "{total_ns}");
        // Its turn is paid for by its share, and somebody has begun one.
        let weights: u64 = tasks.iter().map(|task| u64::from(task.weight)).sum();
        let bound_ns = 2 * PARAMS.slice_ns * (weights / u64::from(WEIGHT_NICE0) + 1);
        let longest_ns = tasks.last().unwrap().longest_wait_ns;
        assert!(longest_ns <= bound_ns, "{longest_ns} ns of {bound_ns}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn light_tasks_do_not_keep_those_waiting_who_wake(
        hogs in 1usize..8,
        light in prop::collection::vec((WEIGHT_NICE0 / 100..WEIGHT_NICE0 / 5, 0u64..8_000_000), 1..4),
        sleep_ms in 1u64..1_000,
        overrun_ns in 0u64..8_000_000,
    ) {
        let mut tasks = vec![Task::new(WEIGHT_NICE0, VcpuClass::Unknown); hogs];
        tasks.iter_mut().for_each(|task| task.overrun_ns = overrun_ns);
        let mut longest_turn_ns = PARAMS.slice_ns + overrun_ns;
        for (weight, overrun_ns) in light {
            let mut task = Task::new(weight, VcpuClass::Unknown);
            task.overrun_ns = overrun_ns;
            longest_turn_ns = longest_turn_ns.max(PARAMS.slice_ns + overrun_ns);
            tasks.push(task);
        }
        let mut sleeper = Task::new(WEIGHT_NICE0, VcpuClass::Unknown);
        sleeper.sleeps_ns = sleep_ms * 1_000_000;
        tasks.push(sleeper);
        simulate(&mut tasks, 1, 10_000, 0);
        // At first all are equal; later nobody is further behind than who wakes, not for long.
        let sleeper = tasks.last().unwrap();
        let at_first = longest_turn_ns * (tasks.len() as u64 - 1);
        prop_assert!(sleeper.longest_wait_ns <= at_first, "{sleeper:?}");
    }

    #[test]
    fn who_ran_while_nobody_waited_is_neither_far_ahead_nor_far_behind(
        vtime_now in 1u64 << 52..1 << 60,
        ahead in -(1i64 << 40)..1 << 40,
        slices in 1u32..8,
        weight in WEIGHT_NICE0 / 100..100 * WEIGHT_NICE0,
    ) {
        let vtime = vtime_now.wrapping_add_signed(ahead);
        let forgiven = PARAMS.forgive(vtime, vtime_now, weight, slices);
        let least = vtime_now - PARAMS.credit(weight, true);
        let most = charge(vtime_now, PARAMS.slice_ns * u64::from(slices), weight);
        prop_assert_eq!(forgiven, vtime.clamp(least, most));
    }

    #[test]
    fn nobody_is_placed_further_ahead_than_some_turns_of_the_lightest(
        vtime: u64,
        vtime_now: u64,
        weight in WEIGHT_NICE0 / 800..100 * WEIGHT_NICE0,
        slept: bool,
    ) {
        let place = PARAMS.place(vtime, vtime_now, weight, slept);
        let lightest = charge(vtime_now, 8 * PARAMS.slice_ns, WEIGHT_NICE0 / 800);
        prop_assert!(!vtime_before(lightest, place));
        let credit = PARAMS.credit(weight, slept);
        prop_assert!(!vtime_before(place, vtime_now.wrapping_sub(credit)));
    }

    #[test]
    fn one_who_cannot_run_does_not_stop_time(stuck: u64, runs in 0u64..1 << 50, weight in WEIGHT_NICE0 / 800..100 * WEIGHT_NICE0) {
        // He is furthest behind all the while; the others' time goes on at a distance.
        let start = stuck.wrapping_add(runs);
        let vtime_now = advance(advance(stuck, stuck), start.wrapping_sub(PARAMS.credit(weight, false)));
        let place = PARAMS.place(stuck, vtime_now, WEIGHT_NICE0, true);
        let bound = PARAMS.credit(weight, false) + PARAMS.credit(WEIGHT_NICE0, true);
        prop_assert!(start.wrapping_sub(place) <= bound, "{} ns", start.wrapping_sub(place));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..Default::default() })]

    #[test]
    fn handing_on_the_cpu_wins_a_vm_nothing_however_long(
        vms in prop::collection::vec((2usize..6, WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0), 1..4),
        others in prop::collection::vec(WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0, 1..5),
        nr_cpus in 1usize..4,
        start_vtime: u64,
    ) {
        let mut tasks: Vec<Task> =
            others.iter().map(|weight| Task::new(*weight, VcpuClass::Unknown)).collect();
        for (i, (nr_vcpus, weight)) in vms.iter().enumerate() {
            let mut vcpu = Task::new(*weight, VcpuClass::Unknown);
            vcpu.vm = i + 1;
            tasks.extend(std::iter::repeat_n(vcpu, *nr_vcpus));
        }
        let fair = fair_shares(&tasks, nr_cpus);
        // Of a whole CPU there is nothing to hand on.
        prop_assume!(fair.iter().all(|share| *share < 0.9));
        // Going first, and a turn, of each of them; not more after a hundred times as long. What it may lack is
        // what all others may be ahead: with the bound of its own one of a thousand cases failed, by up to 4 ms.
        let most_ns = PARAMS.slice_ns * (1000 + u64::from(PARAMS.resume_boost_permille)) / 1000;
        for turns in [400, 4_000, 40_000] {
            let mut tasks = tasks.clone();
            let total = simulate(&mut tasks, nr_cpus, turns * nr_cpus, start_vtime) as f64;
            for vm in 1..=vms.len() {
                let of_vm = || tasks.iter().zip(&fair).filter(|(task, _)| task.vm == vm);
                let ran: u64 = of_vm().map(|(task, _)| task.ran_ns).sum();
                let due: f64 = of_vm().map(|(_, share)| share * total).sum();
                let bound = (most_ns * of_vm().count() as u64) as f64;
                let of_others = (most_ns * (tasks.len() - of_vm().count()) as u64) as f64;
                let error = ran as f64 - due;
                prop_assert!(error <= bound, "{error} ns of {bound} after {turns} turns");
                prop_assert!(-error <= of_others.max(bound), "{error} ns after {turns} turns");
            }
        }
    }
}

#[test]
fn a_hostile_guest_gains_nothing_on_an_honest_one() {
    let mut tasks =
        vec![Task::new(WEIGHT_NICE0, VcpuClass::Free), Task::new(WEIGHT_NICE0, VcpuClass::Holder)];
    let total = simulate(&mut tasks, 1, 100_000, 0);
    let honest = tasks[0].ran_ns as f64 / total as f64;
    assert!((honest - 0.5).abs() < 0.002, "{honest}");
}

/// Members of a group that take turns in running, `burst_ns` each, beside one task of the same weight that never sleeps,
/// on one CPU: the group's part of it.
fn part_of_a_group_that_takes_turns(nr_members: usize, burst_ns: u64) -> f64 {
    let start = 1u64 << 40;
    let (mut vtime_now, mut served, mut other) = (start, start, start);
    let mut members = vec![start; nr_members];
    let (mut turn, mut left_ns) = (0, burst_ns);
    let (mut group_ran, mut other_ran) = (0u64, 0u64);
    while group_ran + other_ran < 100_000_000_000 {
        let member = &mut members[turn];
        vtime_now = advance(vtime_now, if vtime_before(*member, other) { *member } else { other });
        if vtime_before(*member, other) {
            let ran = left_ns.min(PARAMS.slice_ns);
            *member = charge(*member, ran, WEIGHT_NICE0);
            served = PARAMS.place_group(charge(served, ran, WEIGHT_NICE0), vtime_now, WEIGHT_NICE0);
            group_ran += ran;
            left_ns -= ran;
        } else {
            other = charge(other, PARAMS.slice_ns, WEIGHT_NICE0);
            other_ran += PARAMS.slice_ns;
        }
        if left_ns == 0 {
            (turn, left_ns) = ((turn + 1) % nr_members, burst_ns);
            // The next one wakes.
            let vtime = PARAMS.place(members[turn], vtime_now, WEIGHT_NICE0, true);
            members[turn] = PARAMS.place_in_group(vtime, served, WEIGHT_NICE0, true);
        }
    }
    group_ran as f64 / (group_ran + other_ran) as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn taking_turns_wins_a_group_nothing(
        nr_members in 1usize..64,
        burst_ns in 50_000u64..20_000_000,
    ) {
        let part = part_of_a_group_that_takes_turns(nr_members, burst_ns);
        prop_assert!((part - 0.5).abs() < 0.01, "{part}");
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
        prop_assert_eq!(PARAMS.place_in_group(vtime, served, weight, false), vtime);
        // And who ran on another's behalf keeps what it slept for.
        let slept = PARAMS.place_in_group(0, served, weight, true);
        let running = PARAMS.place_in_group(0, served, weight, false);
        prop_assert!((running - slept).abs_diff(PARAMS.credit(weight, true)) <= 1);
    }

    #[test]
    fn who_weighs_another_amount_is_owed_as_much_cpu_time(
        vtime_now: u64,
        ahead in -12_800_000_000i64..12_800_000_000,
        from in 128..100 * WEIGHT_NICE0,
        to in 128..100 * WEIGHT_NICE0,
    ) {
        let vtime = vtime_now.wrapping_add_signed(ahead);
        let after = reweigh(vtime, vtime_now, from, to).wrapping_sub(vtime_now) as i64;
        // In units of CPU time times a weight; a division rounds down.
        let error = i128::from(after) * i128::from(to) - i128::from(ahead) * i128::from(from);
        prop_assert!(error.unsigned_abs() < u128::from(to), "{error}");
        prop_assert!(after == 0 || (after < 0) == (ahead < 0));
    }

    #[test]
    fn swapping_places_wins_a_vm_nothing(
        from: u64,
        ahead in -1_000_000_000i64..1_000_000_000,
        from_weight in 128..100 * WEIGHT_NICE0,
        to_weight in 128..100 * WEIGHT_NICE0,
    ) {
        let to = from.wrapping_add_signed(ahead);
        let (from_after, to_after) = swap_places((from, from_weight), (to, to_weight));
        // What each has coming less, in CPU time times the weight of nice 0; a division rounds down.
        let cost = |before: u64, after: u64, weight| {
            i128::from(after.wrapping_sub(before) as i64) * i128::from(weight)
        };
        let cost = cost(from, from_after, from_weight) + cost(to, to_after, to_weight);
        prop_assert!(cost.unsigned_abs() <= u128::from(from_weight.max(to_weight)), "{cost}");
        // Whoever gets the CPU does not go beyond the place of the one whose turn it was.
        let first = if vtime_before(from, to) { from } else { to };
        prop_assert!(!vtime_before(to_after, first));
        if from_weight == to_weight {
            prop_assert!(!vtime_before(from_after, to_after));
        }
    }

    #[test]
    fn vcpus_that_hand_on_their_cpu_come_to_an_end(step_ns in 1_000u64..1_000_000, start: u64) {
        // Two of a VM give the CPU to one another after each step, while somebody else is next.
        let (mut runs, mut waits, mut ran_ns) = (start, start, 0u64);
        let nice0 = |vtime| (vtime, WEIGHT_NICE0);
        while PARAMS.may_give(nice0(runs), nice0(waits), start) {
            let after = charge(runs, step_ns, WEIGHT_NICE0);
            (waits, runs) = swap_places(nice0(after), nice0(waits));
            ran_ns += step_ns;
            prop_assert!(ran_ns < 100 * PARAMS.slice_ns, "a turn without end");
        }
        let boost_ns = PARAMS.slice_ns * u64::from(PARAMS.resume_boost_permille) / 1000;
        prop_assert!(ran_ns <= 2 * (boost_ns + step_ns), "{ran_ns} ns");
    }

    #[test]
    fn going_first_is_worth_the_same_cpu_time_to_every_weight(weight in 128..100 * WEIGHT_NICE0) {
        // Of the CPU time that it runs until it is as far as without going first.
        let start = 1u64 << 60;
        let ahead = start - PARAMS.queue_key(start, VcpuClass::Holder, false, weight);
        let boost_ns = PARAMS.slice_ns * u64::from(PARAMS.resume_boost_permille) / 1000;
        prop_assert!(charge(0, boost_ns, weight).abs_diff(ahead) <= 1, "{ahead}");
        for (by_sibling, permille) in
            [(false, PARAMS.wakeup_margin_permille), (true, PARAMS.sibling_margin_permille)]
        {
            let margin_ns = PARAMS.slice_ns * u64::from(permille) / 1000;
            let behind = start - charge(0, margin_ns, weight);
            prop_assert!(!PARAMS.wakeup_preempts(behind, start, weight, by_sibling));
            prop_assert!(PARAMS.wakeup_preempts(behind - 1, start, weight, by_sibling));
        }
    }

    #[test]
    fn who_has_slept_for_long_waits_for_the_end_of_no_turn(
        slice_ns in 100_000u64..100_000_000,
        vtime_now in 1u64 << 40..1 << 60,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        let p = Params { slice_ns, ..PARAMS };
        // At the earliest, and just before the end, of the turn of whom virtual time follows.
        let place = p.place(0, vtime_now, weight, true);
        prop_assert!(p.wakeup_preempts(place, vtime_now, weight, false));
        prop_assert!(p.wakeup_preempts(place, vtime_now + slice_ns - 1, weight, false));
    }

    #[test]
    fn whom_a_sibling_wakes_waits_for_half_a_turn(
        vtime_now in 1u64 << 40..1 << 60,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        // However long it has slept; half a turn as its own weight makes it.
        let place = PARAMS.place(0, vtime_now, weight, true);
        let half = charge(0, PARAMS.slice_ns / 2, weight);
        prop_assert!(!PARAMS.wakeup_preempts(place, vtime_now + half - 1, weight, true));
        prop_assert!(PARAMS.wakeup_preempts(place, vtime_now + half + 2, weight, true));
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

    #[test]
    fn no_member_has_more_than_its_group(weight: u32, group_weight in 1u32..10_000, total: u64) {
        let share = weight_in_group(weight, group_weight, total);
        prop_assert!((1..=group_weight * (WEIGHT_NICE0 / 100)).contains(&share));
    }
}
