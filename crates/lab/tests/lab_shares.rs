// SPDX-License-Identifier: GPL-2.0-or-later
//! Who gets how much of the host's CPUs under `scx_holdfast`: weights of cgroups, tasks that move between
//! them, and tasks that may run on one CPU only.
//! Needs what `make build` builds, and either the network or packages in the cache; no root.

use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};
use holdfast_lab::machine::Machine;
use holdfast_lab::progress::Progress;

mod emulated;

use emulated::{end, end_scheduler, hog, on_an_emulated_host, shell, spec, start_scheduler};

/// How long shares are measured for: hundreds of turns.
const WINDOW: Duration = Duration::from_secs(3);
/// The host has two CPUs.
const HOST_PERCENT: f64 = 200.0;

fn kill(machine: &Machine, names: &[&str]) {
    for name in names {
        end(machine, name, libc::SIGKILL);
    }
}

/// CPU that each of these children used in a while, in percent of one.
fn used(machine: &Machine, names: &[&str]) -> Vec<f64> {
    let sample = || {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        match machine.request(Request::CpuTimes { names }).unwrap() {
            Reply::CpuTimes(times) => times,
            other => panic!("{other:?}"),
        }
    };
    // What was short until now is made up for first.
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

fn shares_follow_groups() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
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

    // Groups in groups, one of them created while the scheduler runs: `a` has half of half.
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
    // `d` alone is as much as the three, and cannot use more than one CPU.
    assert_shares("nested", &used(&machine, &names), &[50.0, 25.0, 25.0, 100.0]);
    kill(&machine, &names);

    // Two pinned to one CPU, and two that may run anywhere.
    for name in &names[..2] {
        hog(&machine, name, "", Some(vec![0]));
    }
    for name in &names[2..] {
        hog(&machine, name, "", None);
    }
    assert_shares("two of four pinned", &used(&machine, &names), &[50.0; 4]);
    kill(&machine, &names);

    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

#[test]
fn weights_of_groups_are_honoured() {
    on_an_emulated_host(shares_follow_groups);
}
