// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares and waits under the default parameters, in a small model of a host, whatever guests
//! claim.

use holdfast_policy::{
    Params, VcpuClass, Verdict, WEIGHT_NICE0, advance, charge, reweigh, swap_places, vtime_before,
};
use proptest::prelude::*;

use crate::common::class;
use crate::host::{Event, PARAMS, Task, What, fair_shares, simulate};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How far a resume boost brings a task ahead, in CPU time.
const BOOST_NS: u64 = PARAMS.slice_ns * PARAMS.resume_boost_permille as u64 / 1000;

/// How far ahead of its share a task comes: by a boost, a slice and its grace.
const MOST_AHEAD_NS: u64 = BOOST_NS + PARAMS.slice_ns + PARAMS.grace_max_ns;

/// So much of a CPU may be lost where it lacks contention now and then and lag is clamped.
const LOST_SHARE: f64 = 0.1;

fn weight() -> impl Strategy<Value = u32> {
    WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0
}

/// How long a task runs, and sleeps then: never, or between bursts of work.
fn sleeps() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![Just((PARAMS.slice_ns, 0)), (10_000..10 * MS, 10_000..50 * MS)]
}

/// Tasks of no VM.
fn tasks(nr: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Task>> {
    let task = (weight(), sleeps()).prop_map(|(weight, (runs_ns, sleeps_ns))| Task {
        runs_ns,
        sleeps_ns,
        ..Task::new(weight)
    });
    prop::collection::vec(task, nr)
}

/// The vCPUs of a VM, with any claims, sleeps, yields and wakeups of siblings.
fn guest(nr_vcpus: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Task>> {
    let claims = prop::collection::vec(class(), 1..4);
    let vcpu = (claims, sleeps(), any::<bool>());
    let vcpus = prop::collection::vec(vcpu, nr_vcpus);
    (weight(), prop_oneof![Just(0u64), 0..=100u64], 0..=100u64, vcpus).prop_map(
        |(weight, blockers_percent, by_sibling_percent, vcpus)| {
            let vcpu = |(claims, (runs_ns, sleeps_ns), yields)| Task {
                vm: Some(0),
                claims,
                blockers_percent,
                by_sibling_percent,
                yields,
                runs_ns,
                sleeps_ns,
                ..Task::new(weight)
            };
            vcpus.into_iter().map(vcpu).collect()
        },
    )
}

/// The vCPUs of several VMs.
fn guests(nr: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Task>> {
    prop::collection::vec(guest(1..5), nr).prop_map(|guests| {
        let numbered = guests.into_iter().enumerate();
        numbered
            .flat_map(|(vm, vcpus)| {
                vcpus.into_iter().map(move |vcpu| Task { vm: Some(vm), ..vcpu })
            })
            .collect()
    })
}

/// CPU time of tasks beyond their due.
fn excess_ns<'a>(tasks: impl Iterator<Item = (&'a Task, &'a f64)>, duration_ns: u64) -> f64 {
    tasks.map(|(task, fair)| task.ran_ns as f64 - fair * duration_ns as f64).sum()
}

#[test]
fn heavy_task_keeps_its_lag_when_a_light_holder_runs_ahead() {
    let mut tasks = vec![Task::vcpu(0, 20_480, VcpuClass::Holder), Task::new(351_429)];
    simulate(&mut tasks, 1, 40 * SECOND, 0, 0);
    let share = tasks[0].ran_ns as f64 / (40 * SECOND) as f64;
    let fair = 20_480.0 / (20_480.0 + 351_429.0);
    assert!((share - fair).abs() < 0.002, "{share} instead of {fair}");
}

/// A boost costs others CPU time. Their lag for that stays when a CPU lacks contention for a
/// moment.
#[test]
fn guest_that_claims_and_sleeps_takes_nothing_of_a_hog_due_almost_a_cpu() {
    use VcpuClass::{Head, Holder, Irq, Preemptible, Waiter};
    let vcpu = |claims: &[VcpuClass], runs_ns, sleeps_ns| Task {
        vm: Some(0),
        claims: claims.to_vec(),
        runs_ns,
        sleeps_ns,
        ..Task::new(138_817)
    };
    let mut tasks = vec![
        vcpu(&[Head, Irq, Preemptible], 9_340_000, 39_900_000),
        vcpu(&[Waiter, Holder, Head], PARAMS.slice_ns, 0),
        vcpu(&[Irq, Irq, Preemptible], 8_300_000, 8_400_000),
        Task::new(377_014),
    ];
    let fair = fair_shares(&tasks, 2)[3];
    simulate(&mut tasks, 2, 10 * SECOND, 0, 0);
    let share = tasks[3].ran_ns as f64 / (10 * SECOND) as f64;
    assert!(share > 0.98 * fair, "{share} instead of {fair}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn shares_follow_weights_whatever_guests_claim(
        guests in guests(1..4),
        others in tasks(1..4),
        nr_cpus in 1usize..6,
        seed: u64,
    ) {
        let mut tasks = [guests, others].concat();
        tasks.iter_mut().for_each(|task| task.sleeps_ns = 0);
        let fair = fair_shares(&tasks, nr_cpus);
        simulate(&mut tasks, nr_cpus, 40 * SECOND, 0, seed);
        // vCPUs of a VM may yield to each other: their CPU time together counts.
        for of_one in 0..tasks.len() {
            let vm = tasks[of_one].vm;
            let is_one = |i: &usize| *i == of_one || (vm.is_some() && tasks[*i].vm == vm);
            let of_one = (0..tasks.len()).filter(is_one).map(|i| (&tasks[i], &fair[i]));
            let nr = of_one.clone().count() as f64;
            let error = excess_ns(of_one, 40 * SECOND) / (40 * SECOND) as f64;
            prop_assert!(error.abs() < 0.01 * nr, "{error} of {nr}: {tasks:?}");
        }
    }

    #[test]
    fn task_waits_no_longer_than_its_weight_says(
        guests in guests(1..4),
        others in tasks(1..6),
        nr_cpus in 1usize..6,
        seed: u64,
    ) {
        let mut tasks = [guests, others].concat();
        simulate(&mut tasks, nr_cpus, 10 * SECOND, 0, seed);
        let run_ns = (PARAMS.slice_ns + PARAMS.grace_max_ns) as f64;
        let each = tasks.len().div_ceil(nr_cpus) as f64 + 1.0;
        for (task, fair) in tasks.iter().zip(fair_shares(&tasks, nr_cpus)) {
            // Its slice is paid for by its share; all may have had a boost, or have slept. A vCPU
            // that yields waits in the place of a sibling, which may have had a boost.
            let given_ns = if task.vm.is_some() { BOOST_NS as f64 } else { 0.0 };
            let bound = (run_ns + given_ns) / fair + each * (BOOST_NS + PARAMS.slice_ns) as f64;
            prop_assert!(task.longest_wait_ns as f64 <= bound, "{bound} ns: {task:?}");
        }
    }

    #[test]
    fn no_weight_makes_the_kernel_end_the_scheduler(
        heavy in prop::collection::vec(WEIGHT_NICE0..100 * WEIGHT_NICE0, 1..4),
        light in prop::collection::vec((class(), WEIGHT_NICE0 / 800..WEIGHT_NICE0 / 5), 1..40),
        nr_cpus in 1usize..4,
    ) {
        let heavy = heavy.into_iter().map(Task::new);
        let light = light.into_iter().enumerate();
        let light = light.map(|(i, (class, weight))| Task::vcpu(i / 4, weight, class));
        let mut tasks: Vec<Task> = heavy.chain(light).collect();
        tasks.iter_mut().for_each(|task| task.overrun_ns = PARAMS.slice_ns);
        simulate(&mut tasks, nr_cpus, 80 * SECOND, 0, 0);
        let longest_ns = tasks.iter().map(|task| task.longest_wait_ns).max().unwrap();
        // Three such waits in a row are less than a grace period of RCU may take.
        prop_assert!(longest_ns < 7 * SECOND, "{longest_ns} ns");
        // A starving task has a slice now and then, with its grace: no more of a share than one
        // slice in 20 s.
        let run_ns = (2 * PARAMS.slice_ns + PARAMS.grace_max_ns) as f64;
        let runs_ns = run_ns * tasks.len() as f64 / 20e9;
        for (task, fair) in tasks.iter().zip(fair_shares(&tasks, nr_cpus)) {
            let share = task.ran_ns as f64 / (80 * SECOND) as f64;
            prop_assert!((share - fair).abs() < 0.01 + runs_ns, "{share}, not {fair}: {task:?}");
        }
    }

    #[test]
    fn task_that_comes_back_takes_no_more_than_its_lag_limit(sleep_ms in 1u64..10_000) {
        let mut tasks = vec![Task::new(WEIGHT_NICE0), Task::new(WEIGHT_NICE0)];
        tasks[1].sleeps_ns = sleep_ms * 1_000_000;
        simulate(&mut tasks, 1, 40 * SECOND, 0, 0);
        // However long it slept, the other task waits for its slice and for the lag, no longer.
        prop_assert!(tasks[0].longest_wait_ns <= 4 * PARAMS.slice_ns, "{:?}", tasks[0]);
    }
}

/// After each slice that it gets for starving a task is further ahead than before.
#[test]
fn starving_tasks_do_not_delay_waking_ones_however_long_that_goes_on() {
    for heavy in [vec![8668 * (WEIGHT_NICE0 / 100)], vec![WEIGHT_NICE0; 100]] {
        let mut tasks: Vec<Task> = heavy.iter().map(|weight| Task::new(*weight)).collect();
        tasks.extend([WEIGHT_NICE0 / 100; 2].map(Task::new));
        tasks.iter_mut().for_each(|task| task.overrun_ns = PARAMS.slice_ns);
        let mut sleeper = Task::new(WEIGHT_NICE0);
        sleeper.sleeps_ns = 100_000_000;
        tasks.push(sleeper);
        // Twenty minutes.
        simulate(&mut tasks, 1, 1200 * SECOND, 0, 0);
        // Its slice is paid for by its share, and another task has begun one.
        let weights: u64 = tasks.iter().map(|task| u64::from(task.weight)).sum();
        let bound_ns = 2 * PARAMS.slice_ns * (weights / u64::from(WEIGHT_NICE0) + 1);
        let longest_ns = tasks.last().unwrap().longest_wait_ns;
        assert!(longest_ns <= bound_ns, "{longest_ns} ns of {bound_ns}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn light_tasks_do_not_delay_waking_ones(
        hogs in 1usize..8,
        light in prop::collection::vec(
            (WEIGHT_NICE0 / 100..WEIGHT_NICE0 / 5, 0u64..8_000_000),
            1..4,
        ),
        sleep_ms in 1u64..1_000,
        overrun_ns in 0u64..8_000_000,
    ) {
        let mut tasks = vec![Task::new(WEIGHT_NICE0); hogs];
        tasks.iter_mut().for_each(|task| task.overrun_ns = overrun_ns);
        let mut longest_run_ns = PARAMS.slice_ns + overrun_ns;
        for (weight, overrun_ns) in light {
            let mut task = Task::new(weight);
            task.overrun_ns = overrun_ns;
            longest_run_ns = longest_run_ns.max(PARAMS.slice_ns + overrun_ns);
            tasks.push(task);
        }
        let mut sleeper = Task::new(WEIGHT_NICE0);
        sleeper.sleeps_ns = sleep_ms * 1_000_000;
        tasks.push(sleeper);
        simulate(&mut tasks, 1, 30 * SECOND, 0, 0);
        // At first all are equal; later no task is further behind than the waking one for long.
        let sleeper = tasks.last().unwrap();
        let at_first = longest_run_ns * (tasks.len() as u64 - 1);
        prop_assert!(sleeper.longest_wait_ns <= at_first, "{sleeper:?}");
    }

    #[test]
    fn clamps_lag_of_a_task_that_ran_without_contention(
        vtime_now in 1u64 << 52..1 << 60,
        ahead in -(1i64 << 40)..1 << 40,
        slices in 1u32..8,
        weight in WEIGHT_NICE0 / 100..100 * WEIGHT_NICE0,
    ) {
        let vtime = vtime_now.wrapping_add_signed(ahead);
        let clamped = PARAMS.clamp_lag(vtime, vtime_now, weight, slices);
        // A boost stays when a CPU lacks contention for a moment.
        let boost = charge(0, BOOST_NS, weight.min(WEIGHT_NICE0));
        let least = vtime_now - PARAMS.lag_limit(weight, true) - boost;
        let most_ns = (PARAMS.slice_ns * u64::from(slices)).max(PARAMS.slice_ns + BOOST_NS);
        let most = charge(vtime_now, most_ns, weight);
        prop_assert_eq!(clamped, vtime.clamp(least, most));
    }

    #[test]
    fn task_is_placed_within_its_bounds(
        vtime: u64,
        vtime_now: u64,
        weight in WEIGHT_NICE0 / 800..100 * WEIGHT_NICE0,
        slept: bool,
    ) {
        let place = PARAMS.place(vtime, vtime_now, weight, slept);
        let lightest = charge(vtime_now, 8 * PARAMS.slice_ns, WEIGHT_NICE0 / 800);
        prop_assert!(!vtime_before(lightest, place));
        let limit = PARAMS.lag_limit(weight, slept);
        prop_assert!(!vtime_before(place, vtime_now.wrapping_sub(limit)));
    }

    #[test]
    fn task_that_cannot_run_does_not_stop_time(
        behind: u64,
        runs in 0u64..1 << 50,
        weight in WEIGHT_NICE0 / 800..100 * WEIGHT_NICE0,
    ) {
        // It is furthest behind all the while. The others' time goes on at a distance.
        let start = behind.wrapping_add(runs);
        let least = start.wrapping_sub(PARAMS.lag_limit(weight, false));
        let vtime_now = advance(advance(behind, behind), least);
        let place = PARAMS.place(behind, vtime_now, WEIGHT_NICE0, true);
        let bound = PARAMS.lag_limit(weight, false) + PARAMS.lag_limit(WEIGHT_NICE0, true);
        prop_assert!(start.wrapping_sub(place) <= bound, "{} ns", start.wrapping_sub(place));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..Default::default() })]

    #[test]
    fn yields_win_a_vm_nothing_however_long(
        vms in prop::collection::vec((2usize..6, WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0), 1..4),
        others in prop::collection::vec(WEIGHT_NICE0 / 5..4 * WEIGHT_NICE0, 1..5),
        nr_cpus in 1usize..4,
        start_vtime: u64,
    ) {
        let mut tasks: Vec<Task> = others.into_iter().map(Task::new).collect();
        for (vm, (nr_vcpus, weight)) in vms.iter().enumerate() {
            let mut vcpu = Task::vcpu(vm, *weight, VcpuClass::Unknown);
            vcpu.yields = true;
            tasks.extend(std::iter::repeat_n(vcpu, *nr_vcpus));
        }
        let fair = fair_shares(&tasks, nr_cpus);
        // A whole CPU leaves nothing to yield.
        prop_assume!(fair.iter().all(|share| *share < 0.9));
        // A boost and a slice of each vCPU; not more after a hundred times as long. It may lack as
        // much as all others may be ahead.
        let most_ns = PARAMS.slice_ns + BOOST_NS;
        for duration_ns in [SECOND / 2, 5 * SECOND, 50 * SECOND] {
            let mut tasks = tasks.clone();
            simulate(&mut tasks, nr_cpus, duration_ns, start_vtime, start_vtime);
            for vm in 0..vms.len() {
                let of_vm = || tasks.iter().zip(&fair).filter(|(task, _)| task.vm == Some(vm));
                let ran: u64 = of_vm().map(|(task, _)| task.ran_ns).sum();
                let due: f64 = of_vm().map(|(_, share)| share * duration_ns as f64).sum();
                let bound = (most_ns * of_vm().count() as u64) as f64;
                let of_others = (most_ns * (tasks.len() - of_vm().count()) as u64) as f64;
                let error = ran as f64 - due;
                prop_assert!(error <= bound, "{error} ns of {bound} after {duration_ns} ns");
                prop_assert!(-error <= of_others.max(bound), "{error} ns after {duration_ns} ns");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn hostile_guest_gains_nothing_on_honest_tasks(
        hostile in guest(1..6),
        (nr_cpus, honest) in (1usize..4).prop_flat_map(|nr_cpus| {
            (Just(nr_cpus), prop::collection::vec(weight(), 1..7))
        }),
        seed: u64,
    ) {
        let nr_honest = honest.len();
        let honest = honest.into_iter().map(Task::new);
        let tasks: Vec<Task> = hostile.into_iter().chain(honest).collect();
        let fair = fair_shares(&tasks, nr_cpus);
        // With no more honest tasks than CPUs hf_clamp_lag() may cut lag when a CPU lacks
        // contention for a moment. It does so for a guest without claims as well.
        let lost_share = if nr_honest <= nr_cpus { LOST_SHARE } else { 0.0 };
        for duration_ns in [SECOND / 2, 5 * SECOND, 50 * SECOND] {
            let mut tasks = tasks.clone();
            simulate(&mut tasks, nr_cpus, duration_ns, 0, seed);
            let of_guest = tasks.iter().zip(&fair).filter(|(task, _)| task.vm.is_some());
            let bound_ns = (MOST_AHEAD_NS * of_guest.clone().count() as u64) as f64
                + lost_share * duration_ns as f64;
            let excess_ns = excess_ns(of_guest, duration_ns);
            prop_assert!(excess_ns <= bound_ns, "{excess_ns} ns after {duration_ns} ns: {tasks:?}");
            for (task, fair) in tasks.iter().zip(&fair).filter(|(task, _)| task.vm.is_none()) {
                // Among each other the honest tasks have a slice more, or less.
                let bound_ns = bound_ns + (PARAMS.slice_ns * tasks.len() as u64) as f64;
                let lack_ns = fair * duration_ns as f64 - task.ran_ns as f64;
                prop_assert!(lack_ns <= bound_ns, "{lack_ns} ns after {duration_ns} ns: {tasks:?}");
            }
        }
    }

    #[test]
    fn grace_ends_at_the_cap_and_within_the_budget(
        guests in guests(1..4),
        others in tasks(1..4),
        nr_cpus in 1usize..5,
        seed: u64,
    ) {
        let mut tasks = [guests, others].concat();
        let trace = simulate(&mut tasks, nr_cpus, 10 * SECOND, 0, seed);
        let mut usage = vec![Usage::default(); tasks.len()];
        // In thousandths of a nanosecond, as the share is.
        let mut budgets = vec![0u64; tasks.len()];
        for Event { at_ns, task, what, .. } in trace {
            let of = &mut usage[task];
            match what {
                What::Preempts { .. } => continue,
                What::Runs => of.since_ns = at_ns,
                What::Kept | What::Stops | What::Probed { .. } => {
                    of.unearned_ns += at_ns - of.since_ns;
                    of.since_ns = at_ns;
                }
            }
            if let Some(extended_at_ns) = of.extended_at_ns {
                prop_assert!(at_ns - extended_at_ns <= PARAMS.grace_max_ns, "{at_ns}: {tasks:?}");
            }
            let What::Probed { verdict, step_ns } = what else {
                of.extended_at_ns = None;
                continue;
            };
            let budget = &mut budgets[tasks[task].vm.unwrap()];
            *budget += std::mem::take(&mut of.unearned_ns) * u64::from(PARAMS.grace_share_permille);
            *budget = (*budget).min(PARAMS.grace_budget_max_ns * 1000);
            prop_assert_eq!(verdict == Verdict::Extend, step_ns > 0);
            prop_assert!(step_ns * 1000 <= *budget, "{step_ns} ns at {at_ns}: {tasks:?}");
            *budget -= step_ns * 1000;
            if step_ns > 0 {
                of.extended_at_ns.get_or_insert(at_ns);
            }
        }
    }

    #[test]
    fn simulation_is_deterministic(
        guests in guests(1..4),
        others in tasks(1..4),
        nr_cpus in 1usize..5,
        start_vtime in prop_oneof![Just(u64::MAX - SECOND), any::<u64>()],
        seed: u64,
    ) {
        let tasks = [guests, others].concat();
        let run = |start_vtime| {
            let mut tasks = tasks.clone();
            let trace = simulate(&mut tasks, nr_cpus, 5 * SECOND, start_vtime, seed);
            (trace, tasks)
        };
        let (trace, after) = run(start_vtime);
        prop_assert!(run(start_vtime) == (trace.clone(), after), "another run, another trace");
        // The trace does not depend on where virtual time begins, and wraps.
        prop_assert!(run(0).0 == trace, "from {start_vtime} on another trace than from 0");
    }

    #[test]
    fn vcpu_that_a_sibling_wakes_preempts_less_often(
        nr_others in 2usize..6,
        weight in weight(),
        seed: u64,
    ) {
        let preemptions = |by_sibling_percent| {
            let sleeper = Task {
                vm: Some(0),
                sleeps_ns: 3 * MS,
                runs_ns: MS / 10,
                by_sibling_percent,
                ..Task::new(weight)
            };
            let mut tasks = vec![Task::new(weight); nr_others];
            tasks.push(sleeper);
            let trace = simulate(&mut tasks, 1, 10 * SECOND, 0, seed);
            trace.iter().filter(|event| matches!(event.what, What::Preempts { .. })).count()
        };
        let (at_once, later) = (preemptions(0), preemptions(100));
        prop_assert!(later < at_once, "{later} times, not fewer than {at_once}");
    }
}

/// CPU time of a vCPU, from a trace.
#[derive(Clone, Default)]
struct Usage {
    since_ns: u64,
    unearned_ns: u64,
    extended_at_ns: Option<u64>,
}

proptest! {
    #[test]
    fn change_of_weight_keeps_the_lag(
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
    fn swapped_places_win_a_vm_nothing(
        from: u64,
        ahead in -1_000_000_000i64..1_000_000_000,
        from_weight in 128..100 * WEIGHT_NICE0,
        to_weight in 128..100 * WEIGHT_NICE0,
    ) {
        let to = from.wrapping_add_signed(ahead);
        let (from_after, to_after) = swap_places((from, from_weight), (to, to_weight));
        // The loss of each, in CPU time times the weight of nice 0; a division rounds down.
        let cost = |before: u64, after: u64, weight| {
            i128::from(after.wrapping_sub(before) as i64) * i128::from(weight)
        };
        let cost = cost(from, from_after, from_weight) + cost(to, to_after, to_weight);
        prop_assert!(cost.unsigned_abs() <= u128::from(from_weight.max(to_weight)), "{cost}");
        // The vCPU that gets the CPU does not go beyond the place of the other.
        let first = if vtime_before(from, to) { from } else { to };
        prop_assert!(!vtime_before(to_after, first));
        if from_weight == to_weight {
            prop_assert!(!vtime_before(from_after, to_after));
        }
    }

    #[test]
    fn vcpus_that_yield_to_each_other_lose_the_cpu(step_ns in 1_000u64..1_000_000, start: u64) {
        // Two vCPUs of a VM yield to each other after each step, while another task is next.
        let (mut runs, mut waits, mut ran_ns) = (start, start, 0u64);
        let nice0 = |vtime| (vtime, WEIGHT_NICE0);
        while PARAMS.may_give(nice0(runs), nice0(waits), start) {
            let after = charge(runs, step_ns, WEIGHT_NICE0);
            (waits, runs) = swap_places(nice0(after), nice0(waits));
            ran_ns += step_ns;
            prop_assert!(ran_ns < 100 * PARAMS.slice_ns, "a run without end");
        }
        let boost_ns = PARAMS.slice_ns * u64::from(PARAMS.resume_boost_permille) / 1000;
        prop_assert!(ran_ns <= 2 * (boost_ns + step_ns), "{ran_ns} ns");
    }

    #[test]
    fn resume_boost_is_worth_the_same_cpu_time_to_every_weight(weight in 128..100 * WEIGHT_NICE0) {
        // The CPU time that it runs until it is as far as without the boost.
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
    fn long_sleeper_preempts_at_any_moment_of_a_slice(
        slice_ns in 100_000u64..100_000_000,
        vtime_now in 1u64 << 40..1 << 60,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        let p = Params { slice_ns, ..PARAMS };
        // At the beginning and just before the end of the slice that virtual time follows.
        let place = p.place(0, vtime_now, weight, true);
        prop_assert!(p.wakeup_preempts(place, vtime_now, weight, false));
        prop_assert!(p.wakeup_preempts(place, vtime_now + slice_ns - 1, weight, false));
    }

    #[test]
    fn vcpu_that_a_sibling_wakes_waits_for_half_a_slice(
        vtime_now in 1u64 << 40..1 << 60,
        weight in 128..100 * WEIGHT_NICE0,
    ) {
        // However long it has slept; half a slice by its own weight.
        let place = PARAMS.place(0, vtime_now, weight, true);
        let half = charge(0, PARAMS.slice_ns / 2, weight);
        prop_assert!(!PARAMS.wakeup_preempts(place, vtime_now + half - 1, weight, true));
        prop_assert!(PARAMS.wakeup_preempts(place, vtime_now + half + 2, weight, true));
    }
}
