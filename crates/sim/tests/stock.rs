// SPDX-License-Identifier: GPL-2.0-or-later
//! The model of the kernel's own scheduler.
//! One alone: `cargo test --release -p holdfast-sim --test stock NAME`.

use holdfast_sim::stock::Stock;
use holdfast_sim::{Cx, FOREVER, MS, Machine, SEC, Step, TaskId, US, YieldTo, hog, periodic, task};

fn machine(cpus: usize) -> Machine {
    Machine::new(1).cpus(cpus).boot_class(Stock::class)
}

fn seconds(m: &Machine, id: TaskId) -> f64 {
    m.cpu_ns(id) as f64 / 1e9
}

#[test]
fn tasks_share_a_cpu_by_weight() {
    let m = machine(1);
    let tasks = [100, 200, 700].map(|weight| m.spawn(task("hog", hog()).weight(weight)));
    m.run(10 * SEC);
    for (id, expected) in tasks.into_iter().zip([1.0, 2.0, 7.0]) {
        let had = seconds(&m, id);
        assert!((had - expected).abs() < 0.05, "{had} s of {expected}");
    }
}

#[test]
fn groups_share_by_weight_whatever_they_hold() {
    let m = machine(1);
    let (light, heavy) = (m.cgroup(100), m.cgroup(300));
    let one = m.spawn(task("alone", hog()).in_cgroup(&heavy));
    let many = [(); 4].map(|()| m.spawn(task("many", hog()).in_cgroup(&light)));
    m.run(8 * SEC);
    assert!((seconds(&m, one) - 6.0).abs() < 0.1, "{}", seconds(&m, one));
    for id in many {
        assert!((seconds(&m, id) - 0.5).abs() < 0.05, "{}", seconds(&m, id));
    }
}

#[test]
fn a_slice_of_two_cpus_is_1400_us() {
    let m = machine(2);
    for cpu in 0..2 {
        for _ in 0..2 {
            m.spawn(task("hog", hog()).on([cpu]));
        }
    }
    m.run(SEC);
    let before = m.totals().nr_switches;
    m.run(7 * SEC);
    let switches = m.totals().nr_switches - before;
    assert!((9_900..10_100).contains(&switches), "{switches}, not 10 000");
}

#[test]
fn a_task_that_sleeps_runs_soon_after_it_wakes() {
    let m = machine(1);
    m.spawn(task("hog", hog()));
    let napper = m.spawn(task("napper", periodic(100 * US, 10 * MS)));
    m.run(5 * SEC);
    let waited = m.longest_wait_ns(napper);
    // It is owed service, but the hog's slice is protected (RUN_TO_PARITY).
    assert!(waited <= 2 * MS, "waited for {} us", waited / US);
}

#[test]
fn balance_spreads_tasks_that_start_on_one_cpu() {
    let m = machine(2);
    let tasks = [(); 4].map(|()| m.spawn(task("hog", hog()).on([0])));
    m.run(100 * MS);
    tasks.iter().for_each(|id| m.set_affinity(*id, [0, 1]));
    m.run(4 * SEC);
    for id in tasks {
        assert!((seconds(&m, id) - 2.0).abs() < 0.15, "{}", seconds(&m, id));
    }
}

#[test]
fn yields_forfeit_what_is_left_of_a_slice() {
    let m = machine(1);
    m.spawn(task("hog", hog()));
    let mut ran = false;
    let yields = m.spawn(task("yields", move |_: &Cx<'_>| {
        ran = !ran;
        if ran { Step::Run(100 * US) } else { Step::Yield }
    }));
    m.run(5 * SEC);
    // 100 us of each slice of 700 us.
    let had = seconds(&m, yields);
    assert!((0.4..1.2).contains(&had), "{had} s of 5, not about an eighth");
}

#[test]
fn a_directed_yield_runs_its_target_next() {
    let m = machine(1);
    for _ in 0..6 {
        m.spawn(task("hog", hog()));
    }
    let target = m.spawn(task("target", hog()));
    let mut asks = false;
    let from = m.spawn(task("from", move |cx: &Cx<'_>| {
        asks = !asks;
        if asks && cx.yield_to(target) == YieldTo::Refused {
            cx.violation("a yield to a runnable task is refused".into());
        }
        Step::Run(50 * US)
    }));
    m.run(2 * SEC);
    let (granted, done) = m.yields();
    assert!(granted > 50 && done * 10 >= granted * 9, "{done} of {granted} done");
    // Its own slices are forfeited.
    assert!(seconds(&m, from) < seconds(&m, target) / 2.0);
}

#[test]
fn idle_cpu_takes_a_task_that_waits() {
    let m = machine(2);
    m.spawn(task("hog", hog()).on([0]));
    let moves = m.spawn(task("moves", hog()).on([0]));
    m.run(20 * MS);
    m.set_affinity(moves, [0, 1]);
    // A task of CPU 1 wakes and sleeps: newly idle, it looks for work.
    m.spawn(task("wakes", periodic(MS, 5 * MS)).on([1]));
    m.run(SEC);
    assert!(seconds(&m, moves) > 0.75, "{}", seconds(&m, moves));
}

#[test]
fn same_seed_gives_same_run() {
    let run = |seed| {
        let m = Machine::new(seed).cpus(4).boot_class(Stock::class);
        for _ in 0..9 {
            m.spawn(task("naps", holdfast_sim::napper(3 * MS, 2 * MS)));
        }
        m.spawn(task("hog", |_: &Cx<'_>| Step::Run(FOREVER)));
        m.run(SEC);
        m.totals().trace
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
