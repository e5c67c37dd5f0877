// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares and waits where tasks may not run on all CPUs, and where one task is due all of a CPU.

use holdfast_policy::{VcpuClass, WEIGHT_NICE0};
use proptest::prelude::*;

use crate::host::{PARAMS, Task, fair_shares, simulate};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How long shares are measured.
const LONG_NS: u64 = 40 * SECOND;

fn have_their_shares(tasks: &[Task], fair: &[f64]) -> Result<(), TestCaseError> {
    for (task, fair) in tasks.iter().zip(fair) {
        let share = task.ran_ns as f64 / LONG_NS as f64;
        // Of two CPUs that are nearly far enough from the others only one may be rebased.
        prop_assert!((share - fair).abs() < 0.002 + 0.02 * fair, "{share}, not {fair}: {tasks:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// Affinity can make one CPU more contended than another. By the host's virtual time all tasks
    /// there would be at the lag limit, whatever they weigh.
    #[test]
    fn shares_follow_weights_where_one_cpu_is_more_contended(
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

    /// However far their weights are apart, and although slices end at ticks.
    #[test]
    fn shares_follow_weights_among_pinned_tasks(
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

    /// A task that moves to a less contended CPU neither gains nor loses by that.
    #[test]
    fn moving_task_keeps_its_lag(
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
fn waking_task_does_not_wait_for_all_tasks_of_a_more_contended_cpu() {
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
        // Until the two CPUs are a run apart each of the other tasks there goes before it.
        let weights: u32 = tasks[2..].iter().map(|task| task.weight).sum();
        let run_ns = 4 * PARAMS.slice_ns * u64::from(weights) / u64::from(WEIGHT_NICE0);
        let longest_ns = sleeper.longest_wait_ns;
        assert!(longest_ns < run_ns, "{longest_ns} ns beside {hogs:?}");
    }
}

#[test]
fn task_that_is_due_more_than_a_cpu_takes_no_other_along() {
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
        // The first two are ever further behind. Tasks that wake on their CPUs are not, and do not
        // go before them for long.
        let longest_ns = tasks[..2].iter().map(|task| task.longest_wait_ns).max().unwrap();
        assert!(longest_ns < 2 * PARAMS.slice_ns, "{longest_ns} ns");
    }
}
