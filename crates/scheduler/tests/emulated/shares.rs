// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of the host's CPUs under `scx_holdfast`: weights of cgroups, tasks that move between
//! them, tasks pinned to one CPU, tasks whose CPU a real-time task takes, and groups of short
//! tasks. Light and heavy tasks, and crowds, are in the model (`crates/sim/tests`).

use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counting_spec, end, end_scheduler, hog, pass, read, shell, spec, start_in_group,
    start_scheduler, start_shell,
};

/// Length of a window: hundreds of slices.
const WINDOW: Duration = Duration::from_secs(3);
/// The host has two CPUs.
const HOST_PERCENT: f64 = 200.0;

/// A host with a thread of this machine for each CPU.
fn without_guests() -> Machine {
    let spec = MachineSpec { guest_kernels: Vec::new(), ..spec() };
    Machine::boot(&spec, &Progress::stderr()).unwrap()
}

fn kill(machine: &Machine, names: &[&str]) {
    for name in names {
        end(machine, name, libc::SIGKILL);
    }
}

/// CPU time of each of these children in a window, in percent of one CPU.
fn used(machine: &Machine, names: &[&str]) -> Vec<f64> {
    let sample = || {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        match machine.request(Request::CpuTimes { names }).unwrap() {
            Reply::CpuTimes(times) => times,
            other => panic!("{other:?}"),
        }
    };
    // Earlier lag is made up for first.
    std::thread::sleep(Duration::from_millis(500));
    let before = sample();
    std::thread::sleep(WINDOW);
    let after = sample();
    let passed = (after.t_ns - before.t_ns) as f64;
    let ran = |times: &holdfast_agent::protocol::CpuTimes, name: &str| -> u64 {
        times.tasks.iter().filter(|task| task.name == name).map(|task| task.run_ns).sum()
    };
    names
        .iter()
        .map(|name| (ran(&after, name) - ran(&before, name)) as f64 / passed * 100.0)
        .collect()
}

#[track_caller]
fn assert_shares(what: &str, used: &[f64], expected: &[f64]) {
    println!("{what}: {used:.0?}, expected {expected:.0?}");
    for (used, expected) in used.iter().zip(expected) {
        assert!(
            (used - expected).abs() < HOST_PERCENT * 0.04,
            "{what}: {used:.1} of {expected:.1}"
        );
    }
}

#[test]
fn weights_of_groups_are_honoured() {
    let machine = without_guests();
    shell(
        &machine,
        "cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; \
         mkdir -p one three; echo 100 > one/cpu.weight; echo 300 > three/cpu.weight",
    );
    // No VM runs here, and KVM is not loaded.
    start_scheduler(&machine, &["--no-guest-knowledge"]);

    // A group's weight is shared by its members, however many.
    let names = ["a", "b", "c", "d"];
    hog(&machine, "a", "one", None);
    for name in &names[1..] {
        hog(&machine, name, "three", None);
    }
    assert_shares("weights 1 and 3", &used(&machine, &names), &[50.0; 4]);

    shell(&machine, "echo 100 > /sys/fs/cgroup/three/cpu.weight");
    let third = 100.0 / 3.0;
    assert_shares("weights 1 and 1", &used(&machine, &names), &[100.0, third, third, third]);

    // Nested groups, one of them created while the scheduler runs: `a` has half of half.
    shell(
        &machine,
        "cd /sys/fs/cgroup; mkdir outer; echo +cpu > outer/cgroup.subtree_control; \
         mkdir outer/x outer/y",
    );
    let pid_of = |name: &str| match machine
        .request(Request::CpuTimes { names: vec![name.to_owned()] })
        .unwrap()
    {
        Reply::CpuTimes(times) => times.tasks[0].pid,
        other => panic!("{other:?}"),
    };
    for (name, group) in [("a", "outer/x"), ("b", "outer/y"), ("c", "outer/y")] {
        let pid = pid_of(name);
        shell(&machine, &format!("echo {pid} > /sys/fs/cgroup/{group}/cgroup.procs"));
    }
    // `d` alone is due as much as the three, and cannot use more than one CPU.
    assert_shares("nested", &used(&machine, &names), &[50.0, 25.0, 25.0, 100.0]);
    // A group in a heavy group gets more than its own weight suggests.
    shell(&machine, "echo 400 > /sys/fs/cgroup/outer/cpu.weight");
    assert_shares("a heavy one", &used(&machine, &names), &[80.0, 40.0, 40.0, 40.0]);
    kill(&machine, &names);

    // Eight that alternate, each asleep while its partner runs, get no more than two that never
    // sleep.
    let pipes = format!("{} --threads 8 --work-us 3000", machine.workload_path("pipes"));
    start_in_group(&machine, "turns", "one", None, &pipes);
    for name in &names[..2] {
        hog(&machine, name, "three", None);
    }
    assert_shares("beside those that take turns", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &["turns", "a", "b"]);

    // An idle group gets the rest.
    shell(&machine, "echo 1 > /sys/fs/cgroup/three/cpu.idle");
    hog(&machine, "a", "one", Some(vec![0]));
    hog(&machine, "b", "three", Some(vec![0]));
    assert_shares("beside an idle group", &used(&machine, &names[..2]), &[99.0, 1.0]);
    shell(&machine, "echo 0 > /sys/fs/cgroup/three/cpu.idle");
    assert_shares("which is idle no more", &used(&machine, &names[..2]), &[50.0, 50.0]);
    // Managers write the weight again of a group that is not idle.
    shell(&machine, "cd /sys/fs/cgroup/three; echo 300 > cpu.weight; echo 0 > cpu.idle");
    assert_shares("which is heavier now", &used(&machine, &names[..2]), &[25.0, 75.0]);
    shell(&machine, "echo 100 > /sys/fs/cgroup/three/cpu.weight");
    kill(&machine, &names[1..2]);

    // Groups at this depth have no weight of their own: `b` counts as a member of the last group
    // that has one.
    let deep = ["deep"].iter().chain(&["d"; 19]).copied().collect::<Vec<_>>().join("/");
    shell(
        &machine,
        "cd /sys/fs/cgroup; mkdir deep; cd deep; \
         for i in $(seq 19); do echo +cpu > cgroup.subtree_control; mkdir d; cd d; echo 10000 > \
         cpu.weight; done",
    );
    hog(&machine, "b", &deep, Some(vec![0]));
    assert_shares("in a group of level 20", &used(&machine, &names[..2]), &[50.0, 50.0]);
    kill(&machine, &names[..2]);

    // Two pinned to one CPU, and two that may run anywhere.
    for name in &names[..2] {
        hog(&machine, name, "", Some(vec![0]));
    }
    for name in &names[2..] {
        hog(&machine, name, "", None);
    }
    assert_shares("two of four pinned", &used(&machine, &names), &[50.0; 4]);
    kill(&machine, &names);

    // A task whose slice ends while it may not migrate waits for the next one like all others.
    let filtered = format!("{} --filters 3", machine.workload_path("hog"));
    start_in_group(&machine, "a", "", Some(vec![0]), &filtered);
    hog(&machine, "b", "", Some(vec![0]));
    assert_shares("beside long filters", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &names[..2]);

    // More tasks want one CPU than the other: weights hold there, too.
    for name in &names[..2] {
        hog(&machine, name, "", Some(vec![0]));
    }
    nice_hog(&machine, "c", -5, Some(vec![1]));
    for name in ["d", "e", "f"] {
        hog(&machine, name, "", Some(vec![1]));
    }
    let all = ["a", "b", "c", "d", "e", "f"];
    let light = 100.0 * 1024.0 / (3121.0 + 3.0 * 1024.0);
    let heavy = 100.0 - 3.0 * light;
    let used_by_all = used(&machine, &all);
    // Shares of their sum: the host's own tasks run on the CPU with fewer loops.
    let of_cpu = |used: &[f64]| -> Vec<f64> {
        let sum: f64 = used.iter().sum();
        used.iter().map(|used| used / sum * 100.0).collect()
    };
    assert_shares("two pinned to a CPU", &of_cpu(&used_by_all[..2]), &[50.0, 50.0]);
    assert_shares("four to another", &of_cpu(&used_by_all[2..]), &[heavy, light, light, light]);
    kill(&machine, &all);

    // A group's weight is shared by all its tasks, also by one that has a CPU to itself: on CPU 1
    // `one` has half of its weight.
    hog(&machine, "a", "one", Some(vec![0]));
    hog(&machine, "b", "one", Some(vec![1]));
    hog(&machine, "c", "three", Some(vec![1]));
    let third = 100.0 / 3.0;
    assert_shares("alone elsewhere", &used(&machine, &names[..3]), &[100.0, third, 2.0 * third]);
    kill(&machine, &names[..3]);

    // A task that a real-time task preempts goes on elsewhere, and does not wait for its end.
    for name in &names[..2] {
        hog(&machine, name, "", None);
    }
    let realtime = format!("{} --real-time 1", machine.workload_path("hog"));
    start_in_group(&machine, "realtime", "", Some(vec![0]), &realtime);
    assert_shares("beside a real-time task", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &["a", "b", "realtime"]);
    woken_by_a_waker_that_goes_on(&machine);

    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// A synchronous wakeup whose waker does not sleep: the woken task runs at once on an idle CPU. A
/// writer to a pipe claims that it is about to sleep, and goes on.
fn woken_by_a_waker_that_goes_on(machine: &Machine) {
    shell(machine, "mkfifo /tmp/lines");
    let on_cpu_0 = |name, command: &str| start_shell(machine, name, Some(vec![0]), command);
    let reader =
        || match machine.request(Request::CpuTimes { names: vec!["reader".into()] }).unwrap() {
            Reply::CpuTimes(times) => (times.t_ns, times.tasks[0].clone()),
            other => panic!("{other:?}"),
        };
    // It goes to sleep on CPU 0, and may run on both when it wakes.
    on_cpu_0("reader", "exec <> /tmp/lines; while read -r line; do :; done");
    std::thread::sleep(Duration::from_secs(1));
    shell(machine, &format!("taskset -p 3 {}", reader().1.pid));
    let line = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); done; echo";
    on_cpu_0("writer", &format!("exec > /tmp/lines; while :; do {line}; done"));
    let (from, before) = reader();
    std::thread::sleep(WINDOW);
    let (to, after) = reader();
    let percent = |ns: u64| ns as f64 / (to - from) as f64 * 100.0;
    let (ran, waited) =
        (percent(after.run_ns - before.run_ns), percent(after.wait_ns - before.wait_ns));
    println!("a reader beside an idle CPU ran for {ran:.0} % and waited for {waited:.0}");
    assert!(ran > 1.0 && waited < 10.0, "{ran} {waited}");
    kill(machine, &["writer", "reader"]);
}

/// An endless loop of this nice value, on these CPUs or all.
fn nice_hog(machine: &Machine, name: &str, nice: i32, cpus: Option<Vec<u32>>) {
    let command = format!("renice -n {nice} -p $$; exec {}", machine.workload_path("hog"));
    start_shell(machine, name, cpus, &command);
}

/// Groups are charged for short tasks, too, which end before they have run for an eighth of a
/// slice. Without that, such a group gets 80 to 85 % of both CPUs, beside a group of two loops.
#[test]
fn a_group_of_short_tasks_has_no_more_than_its_share() {
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    shell(&machine, "cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; mkdir short loops");
    for name in ["a", "b"] {
        hog(&machine, name, "loops", None);
    }
    let short = format!("{} --threads 64 --lives-us 100", machine.workload_path("hog"));
    start_in_group(&machine, "short", "short", None, &short);
    let ran = |group: &str| -> f64 {
        let stat = read(&machine, &format!("/sys/fs/cgroup/{group}/cpu.stat"));
        stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap().parse().unwrap()
    };
    let ran = || ["short", "loops"].map(ran);
    // By the host's clock. Lag from the start is made up for first.
    pass(&machine, 0.5);
    let before = ran();
    pass(&machine, 2.0);
    let after = ran();
    let [short, loops] = [0, 1].map(|group| after[group] - before[group]);
    let part = short / (short + loops);
    println!("a group of short tasks has {part:.3} of the CPU time of it and two loops");
    assert!((part - 0.5).abs() < 0.04, "{part}");
    kill(&machine, &["short", "a", "b"]);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}
