// SPDX-License-Identifier: GPL-2.0-or-later
//! Costs and waits that a reader of the scheduler suspects to be unbounded.

use holdfast_sim::{
    CpuSet, FOREVER, KernelVersion, MS, Machine, Op, SEC, Step, US, hog, napper, periodic, task,
};

/// An idle CPU helps other LLCs. Tasks there that may not leave their node must not be walked each
/// time the CPU goes idle.
#[test]
fn an_idle_cpu_does_not_walk_tasks_pinned_to_another_node() {
    let machine = Machine::new(1).cpus(16).cpus_per_llc(8).llcs_per_node(1).boot();
    // All of node 0, so that they wait in its affinity DSQ or its LLC's.
    for nr in 0..400 {
        machine.spawn(task(format!("pinned{nr}"), hog()).on(0..8));
    }
    // CPUs of node 1 go idle often.
    for cpu in 8..16 {
        machine.spawn(task("short", periodic(100 * US, 300 * US)).on([cpu]));
    }
    machine.run(SEC);
    machine.clear_costs();
    machine.run(SEC);
    let cost = machine.cost(Op::Dispatch);
    println!("{cost:?}");
    // A search for starving tasks looks at many, once a second.
    let steps = cost.scanned / cost.calls;
    assert!(steps <= 20, "{steps} tasks stepped over in a dispatch");
}

/// Sets of CPUs that tasks had once cost nothing after these tasks are gone.
#[test]
fn affinity_sets_that_are_gone_cost_nothing() {
    let helpers_of = |sets: usize| {
        let machine = Machine::new(1).cpus(8).boot();
        let tasks: Vec<_> = (0..16).map(|_| machine.spawn(task("hog", hog()))).collect();
        let odd = machine.spawn(task("odd", periodic(MS, MS)));
        for set in 0..sets {
            let cpus: CpuSet = (0..8).filter(|cpu| (set + 1) >> cpu & 1 != 0).collect();
            machine.set_affinity(odd, cpus.iter());
            machine.run(20 * MS);
        }
        machine.set_affinity(odd, 0..8);
        machine.run(3 * SEC);
        machine.clear_costs();
        machine.run(2 * SEC);
        drop(tasks);
        let cost = machine.cost(Op::Dispatch);
        cost.helpers as f64 / cost.calls as f64
    };
    let (none, many) = (helpers_of(0), helpers_of(200));
    println!("helpers per dispatch: {none:.1} without sets, {many:.1} after 200");
    assert!(many < none * 1.5, "{none:.1} and {many:.1}");
}

/// A kernel thread of one CPU preempts at each wakeup. At 95 % duty it leaves the rest.
#[test]
fn a_busy_kernel_thread_leaves_its_cpu_to_others_now_and_then() {
    let machine = Machine::new(1).cpus(1).boot();
    let thread = task("kworker", periodic(950 * US, 50 * US)).kthread().on([0]);
    let thread = machine.spawn(thread);
    let loops = [0, 1].map(|_| machine.spawn(task("hog", hog())));
    machine.run(20 * SEC);
    let share = machine.cpu_ns(thread) as f64 / 20e9;
    let wait = loops.map(|id| machine.longest_wait_ns(id)).into_iter().max().unwrap_or(0);
    println!("the thread has {share:.3} of its CPU; a loop waits for {} ms", wait / MS);
    assert!(share < 0.6, "{share}");
    assert!(wait < 200 * MS, "{} ms", wait / MS);
}

/// The cost of a decision is that of a small host.
#[test]
fn a_dispatch_on_a_large_host_costs_little_more() {
    let helpers_of = |cpus: usize, per_llc: usize| {
        let machine = Machine::new(3).cpus(cpus).cpus_per_llc(per_llc).llcs_per_node(2).boot();
        let groups = [machine.cgroup(100), machine.cgroup(200)];
        let deep = machine.cgroup_in(&groups[0], 100);
        for nr in 0..cpus * 3 {
            let group = [&groups[0], &groups[1], &deep][nr % 3];
            let mut n = 0;
            let program = move |cx: &holdfast_sim::Cx<'_>| {
                n += 1;
                match n % 2 {
                    0 => Step::Sleep(MS),
                    _ if nr % 2 == 0 => Step::Run(FOREVER),
                    _ => Step::Run(1 + cx.random(3 * MS)),
                }
            };
            machine.spawn(task(format!("task{nr}"), program).in_cgroup(group));
        }
        machine.run(300 * MS);
        machine.clear_costs();
        machine.run(300 * MS);
        let cost = machine.cost(Op::Dispatch);
        println!("{cpus} CPUs: {cost:?}");
        (cost.helpers + cost.scanned + cost.loops) as f64 / cost.calls as f64
    };
    let (small, large) = (helpers_of(2, 2), helpers_of(256, 32));
    println!("{small:.1} calls, turns and steps in a dispatch with 2 CPUs, {large:.1} with 256");
    assert!(large < small * 1.5, "{small:.1} and {large:.1}");
}

/// A dispatch looks at other LLCs for a task that has fallen behind, and they may have many DSQs.
#[test]
fn affinity_sets_of_another_llc_cost_a_dispatch_little() {
    let helpers_of = |kernel, sets: bool| {
        let machine = Machine::new(1).cpus(12).cpus_per_llc(6).kernel(kernel).boot();
        for nr in 0..40 {
            let set = if sets { nr + 3 } else { 63 };
            let cpus = (0..6).filter(|cpu| set >> cpu & 1 != 0).map(|cpu| cpu + 6);
            machine.spawn(task("there", hog()).on(cpus));
        }
        // So many that none of these CPUs idles, and helps others.
        for _ in 0..24 {
            machine.spawn(task("here", periodic(100 * US, 60 * US)).on(0..6));
        }
        machine.run(SEC);
        machine.clear_costs();
        machine.run(SEC);
        let cost = machine.cost(Op::Dispatch);
        println!("{kernel:?}, sets: {sets}: {cost:?}");
        assert!(cost.calls > 20_000, "{}", cost.calls);
        cost.helpers as f64 / cost.calls as f64
    };
    for kernel in [KernelVersion::V6_12, KernelVersion::V7_2] {
        let (none, many) = (helpers_of(kernel, false), helpers_of(kernel, true));
        println!("helpers per dispatch: {none:.1} without sets, {many:.1} with");
        assert!(many < none * 2.0, "{kernel:?}: {none:.1} and {many:.1}");
    }
}

/// All CPUs read the host's virtual time, and each write takes the cache line from all of them.
#[test]
fn time_of_a_large_host_is_written_in_steps() {
    let machine = Machine::new(5).cpus(64).cpus_per_llc(16).boot();
    for nr in 0..256 {
        machine.spawn(task(format!("task{nr}"), napper(2 * MS, 2 * MS)));
    }
    machine.run(500 * MS);
    let time = || machine.variable::<u64>("vtime_now").expect("it is there");
    let (start, switches) = (time(), machine.totals().nr_switches);
    let (mut writes, mut last) = (0, start);
    for _ in 0..20_000 {
        machine.run(5 * US);
        writes += u64::from(time() != last);
        last = time();
    }
    let (passed, switches) = (last - start, machine.totals().nr_switches - switches);
    println!("{writes} writes in {} us and {switches} switches", passed / US);
    assert!(passed > 10 * MS && writes <= passed / (60 * US) + 1, "{writes} in {passed} ns");
}

/// Hash tables that all callbacks of a task in four levels of groups ask, for each of its slices.
#[test]
fn groups_cost_no_hash_lookup_while_tasks_run() {
    let machine = Machine::new(1).cpus(2).boot();
    // As libvirt has it: machine.slice/machine-qemu.scope/libvirt/vcpuN.
    let slice = machine.cgroup(100);
    for _ in 0..2 {
        let vm = machine.cgroup_in(&machine.cgroup_in(&slice, 100), 100);
        for _ in 0..3 {
            let vcpu = machine.cgroup_in(&vm, 100);
            machine.spawn(task("vcpu", napper(MS, MS)).in_cgroup(&vcpu));
        }
    }
    machine.run(SEC);
    machine.clear_costs();
    machine.run(SEC);
    let ops = [
        Op::Runnable,
        Op::SelectCpu,
        Op::Enqueue,
        Op::Dispatch,
        Op::Running,
        Op::Tick,
        Op::Stopping,
        Op::Quiescent,
    ];
    let lookups: u64 = ops.map(|op| machine.cost(op).hash_lookups).into_iter().sum();
    let slices = machine.cost(Op::Running).calls;
    println!("{lookups} look-ups in {slices} slices");
    assert!(slices > 1000 && lookups == 0, "{lookups} in {slices}");
}
