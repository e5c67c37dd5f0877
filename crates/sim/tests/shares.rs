// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of tasks and groups.
//! One alone: `cargo test --release -p holdfast-sim --test shares NAME`.

use holdfast_sim::{
    Explore, KernelVersion, MS, Machine, Policy, SEC, Source, US, hog, napper, pair, periodic, task,
};

#[test]
fn tasks_share_by_weight() {
    let machine = Machine::new(1).cpus(2).boot();
    let tasks = [100, 100, 200].map(|weight| machine.spawn(task("hog", hog()).weight(weight)));
    machine.run(10 * SEC);
    for (id, expected) in tasks.into_iter().zip([5.0, 5.0, 10.0]) {
        let seconds = machine.cpu_ns(id) as f64 / 1e9;
        assert!((seconds - expected).abs() < 0.2, "{seconds} s of {expected}");
    }
}

/// What `beside_two_that_wake_each_other()` of the lab runs: the longest wait of a loop, in ms.
fn wait_beside_a_pair(source: Source) -> u64 {
    let machine = Machine::new(1).cpus(3).source(source).boot();
    let loops = [0, 1].map(|cpu| machine.spawn(task("loop", hog()).on([cpu])));
    for program in pair(1500 * US, 2 * US) {
        machine.spawn(task("pair", program).on([0, 1]));
    }
    machine.run(6 * SEC);
    loops.map(|id| machine.longest_wait_ns(id)).into_iter().max().unwrap_or(0) / MS
}

#[test]
fn a_loop_runs_beside_two_that_wake_each_other() {
    let wait_ms = wait_beside_a_pair(Source::Tree);
    assert!(wait_ms < 30, "{wait_ms} ms");
}

/// The model finds the fault that the condition is there for.
#[test]
fn a_loop_starves_if_wakers_are_trusted_while_others_wait() {
    let source = Source::patched(
        "base/wakeup.bpf.h",
        "cctx && !others_wait(here, cctx) && sleeps_soon(cctx, now)",
        "cctx && sleeps_soon(cctx, now)",
    );
    let wait_ms = wait_beside_a_pair(source.expect("it compiles"));
    assert!(wait_ms > 1000, "{wait_ms} ms");
}

#[test]
fn groups_share_by_weight_at_each_level() {
    let machine = Machine::new(1).cpus(2).boot();
    let heavy = machine.cgroup(300);
    let light = machine.cgroup(100);
    let parts = [machine.cgroup_in(&heavy, 200), machine.cgroup_in(&heavy, 100)];
    // Two tasks in each, as one alone could not use its part of two CPUs.
    let groups = [&parts[0], &parts[1], &light];
    let tasks =
        groups.map(|group| [0, 1].map(|_| machine.spawn(task("hog", hog()).in_cgroup(group))));
    machine.run(20 * SEC);
    for (tasks, expected) in tasks.into_iter().zip([0.5, 0.25, 0.25]) {
        let share = tasks.map(|id| machine.cpu_ns(id)).iter().sum::<u64>() as f64 / 40e9;
        assert!((share - expected).abs() < 0.02, "{share} of {expected}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let machine = Machine::new(seed).cpus(4).smt(2).explore(Explore { pause_ns: 300 }).boot();
        for nr in 0..9 {
            machine.spawn(task(format!("{nr}"), napper(3 * MS, 2 * MS)));
        }
        machine.run(SEC);
        machine.totals().trace
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// The longest wait of tasks that a real-time task displaces from a CPU while others are free.
fn wait_of_the_displaced(kernel: KernelVersion, source: Source) -> u64 {
    let machine = Machine::new(1).cpus(4).kernel(kernel).source(source).boot();
    let displaced: Vec<_> = (0..4)
        .map(|nr| machine.spawn(task(format!("task{nr}"), napper(3 * MS, 500 * US))))
        .collect();
    // Short kernel threads push tasks to the local DSQ of their CPU.
    machine.spawn(task("kworker", periodic(50 * US, 300 * US)).kthread().on([0]));
    machine.spawn(task("rt", periodic(40 * MS, 7 * MS)).policy(Policy::Fifo(10)).on([0]));
    machine.run(20 * SEC);
    displaced.iter().map(|id| machine.longest_wait_ns(*id)).max().unwrap_or(0) / MS
}

#[test]
fn a_task_that_a_real_time_task_displaces_goes_elsewhere() {
    for kernel in [KernelVersion::V6_12, KernelVersion::V6_16, KernelVersion::V7_2] {
        let wait_ms = wait_of_the_displaced(kernel, Source::Tree);
        assert!(wait_ms < 20, "{kernel:?}: {wait_ms} ms");
    }
}

/// By ops.cpu_release, or by the tracepoint where the kernel has what that needs.
#[test]
fn a_task_waits_for_the_end_of_a_real_time_task_that_nothing_tells_of() {
    for (kernel, call) in [
        (KernelVersion::V6_12, "\t\tscx_bpf_reenqueue_local();"),
        (KernelVersion::V7_2, "\t\tscx_bpf_reenqueue_local_from_anywhere();"),
    ] {
        let source = Source::patched("main.bpf.c", call, "\t\t;").unwrap();
        let wait_ms = wait_of_the_displaced(kernel, source);
        assert!(wait_ms >= 39, "{kernel:?}: {wait_ms} ms");
    }
}
