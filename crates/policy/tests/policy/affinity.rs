// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares and waiting where CPUs are not for everybody, and where one task is due all of one.

use holdfast_policy::{VcpuClass, WEIGHT_NICE0};
use proptest::prelude::*;

use crate::host::{PARAMS, Task, fair_shares, simulate};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// For how long shares are looked at.
const LONG_NS: u64 = 40 * SECOND;

fn have_their_shares(tasks: &[Task], fair: &[f64]) -> Result<(), TestCaseError> {
    for (task, fair) in tasks.iter().zip(fair) {
        let share = task.ran_ns as f64 / LONG_NS as f64;
        // Of two CPUs that are nearly far enough from the others only one may begin anew.
        prop_assert!((share - fair).abs() < 0.002 + 0.02 * fair, "{share}, not {fair}: {tasks:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// By affinity more may want one CPU than another. There all would be as far behind the host's virtual time as one
    /// may be, whatever they weigh, if they were placed by that.
    #[test]
    fn weights_hold_where_more_want_a_cpu_than_elsewhere(
        here in prop::collection::vec(WEIGHT_NICE0 / 20..4 * WEIGHT_NICE0, 1..8),
        there in prop::collection::vec(WEIGHT_NICE0 / 20..4 * WEIGHT_NICE0, 1..8),
        each in 1usize..3,
    ) {
        let nr_cpus = 2 * each;
        let half = |weights: &[u32], cpus| -> Vec<Task> {
            weights.iter().map(|weight| Task { cpus, ..Task::new(*weight) }).collect()
        };
        let (here, there) = (half(&here, (1 << each) - 1), half(&there, ((1 << each) - 1) << each));
        let fair = [fair_shares(&here, each), fair_shares(&there, each)].concat();
        let mut tasks = [here, there].concat();
        simulate(&mut tasks, nr_cpus, LONG_NS, 0, 0);
        have_their_shares(&tasks, &fair)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// However far they are apart, and although turns end at ticks.
    #[test]
    fn weights_hold_among_those_that_are_pinned_to_a_cpu(
        here in prop::collection::vec(1u32..1000, 1..6),
        there in prop::collection::vec(1u32..1000, 2..12),
        overrun_ns in 0..2 * MS,
    ) {
        let pinned = |cpus, weight: &u32| {
            Task { cpus, overrun_ns, ..Task::new(weight * WEIGHT_NICE0 / 100) }
        };
        let here = here.iter().map(|weight| pinned(1, weight));
        let there: Vec<Task> = there.iter().map(|weight| pinned(2, weight)).collect();
        let fair = fair_shares(&there, 1);
        let mut tasks: Vec<Task> = there.into_iter().chain(here).collect();
        simulate(&mut tasks, 2, LONG_NS, 0, 0);
        have_their_shares(&tasks, &fair)?;
    }

    /// Whoever comes from a CPU that more want to one that fewer want neither gains nor loses by that.
    #[test]
    fn who_moves_takes_along_how_far_behind_it_was(
        here in 1u64 << 40..1 << 60,
        apart in -10 * SECOND as i64..10 * SECOND as i64,
        ahead in -(SECOND as i64)..SECOND as i64,
    ) {
        let there = here.wrapping_add_signed(apart);
        let moved = PARAMS.move_to(there.wrapping_add_signed(ahead), there, here);
        let is_near = apart.unsigned_abs() <= PARAMS.far_apart();
        prop_assert_eq!(moved, here.wrapping_add_signed(ahead + if is_near { apart } else { 0 }));
    }
}

#[test]
fn who_wakes_on_a_cpu_that_more_want_than_others_does_not_wait_for_all_of_them() {
    let pinned = |cpus, percent| Task { cpus, ..Task::new(WEIGHT_NICE0 / 100 * percent) };
    // Twice as many, hardly more, or few that weigh much.
    for hogs in [vec![100; 4], vec![101; 2], vec![104; 2], vec![1000, 10], vec![1000, 1000, 10]] {
        let mut tasks = vec![pinned(1, 100), pinned(1, 100)];
        tasks.extend(hogs.iter().map(|percent| pinned(2, *percent)));
        tasks.push(Task { runs_ns: 500_000, sleeps_ns: 10 * MS, ..pinned(2, 100) });
        simulate(&mut tasks, 2, 20 * SECOND, 0, 0);
        let sleeper = tasks.last().unwrap();
        let share = sleeper.ran_ns as f64 / (20 * SECOND) as f64;
        // It wants 0.5 of 10.5 ms.
        assert!(share > 0.045, "{share}");
        // Until the two CPUs are a turn apart each of the others there goes before it.
        let weights: u32 = tasks[2..].iter().map(|task| task.weight).sum();
        let turn_ns = 4 * PARAMS.slice_ns * u64::from(weights) / u64::from(WEIGHT_NICE0);
        let longest_ns = sleeper.longest_wait_ns;
        assert!(longest_ns < turn_ns, "{longest_ns} ns beside {hogs:?}");
    }
}

#[test]
fn whoever_is_due_a_cpu_and_more_takes_nobody_along() {
    for seed in 0..8 {
        let vcpu = |vm, weight| Task::vcpu(vm, weight, VcpuClass::Unknown);
        let mut tasks = vec![
            vcpu(0, 126_015),
            Task { yields: true, ..vcpu(0, 126_015) },
            Task { runs_ns: 18_769, sleeps_ns: 20 * MS, ..vcpu(0, 126_015) },
            Task { yields: true, ..vcpu(1, 25_343) },
            vcpu(1, 25_343),
            Task::new(43_948),
        ];
        simulate(&mut tasks, 4, 10 * SECOND, 0, seed);
        // The first two are ever further behind. Who wakes on their CPUs is not, and does not go before them for long.
        let longest_ns = tasks[..2].iter().map(|task| task.longest_wait_ns).max().unwrap();
        assert!(longest_ns < 2 * PARAMS.slice_ns, "{longest_ns} ns");
    }
}
