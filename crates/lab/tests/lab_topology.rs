// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_holdfast` on a host of two sockets whose cores have two threads each: the only one in the lab with more than
//! one last level cache, NUMA node or thread a core.
//! Needs what `make build` builds, and either the network or packages in the cache; no root.

use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};
use holdfast_lab::machine::{Clock, Machine, MachineSpec, Topology};
use holdfast_lab::progress::Progress;
use serde_json::Value;

mod emulated;

use emulated::{
    end, end_scheduler, hog, is_in_state, load_kvm, on_an_emulated_host, read, run, shell, spec,
    start_scheduler, uptime,
};

const TOPOLOGY: Topology = Topology { sockets: 2, cores: 1, threads: 2 };
/// CPUs of each socket.
const SOCKETS: [[u32; 2]; 2] = [[0, 1], [2, 3]];
/// Some for each CPU of the host and one more, which can be even only across the sockets.
const HOGS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Host time over which shares are measured: hundreds of turns.
const WINDOW_S: f64 = 2.0;
/// How far a share may be from an equal one.
const TOLERANCE: f64 = 0.1;

/// What the host's kernel says of its CPUs is what was asked for.
fn assert_topology(machine: &Machine) {
    for socket in SOCKETS {
        for cpu in socket {
            let directory = format!("/sys/devices/system/cpu/cpu{cpu}");
            let shared = read(machine, &format!("{directory}/cache/index3/shared_cpu_list"));
            let siblings = read(machine, &format!("{directory}/topology/thread_siblings_list"));
            let expected = format!("{}-{}", socket[0], socket[1]);
            assert_eq!((shared.trim(), siblings.trim()), (&*expected, &*expected), "of CPU {cpu}");
        }
    }
    assert_eq!(read(machine, "/sys/devices/system/cpu/smt/active").trim(), "1");
    assert_eq!(read(machine, "/sys/devices/system/node/online").trim(), "0-1");
}

fn check<'r>(report: &'r Value, name: &str) -> &'r Value {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {report}"))
}

/// Lets the host run for so long by its own clock.
fn pass(machine: &Machine, seconds: f64) {
    let begin = uptime(machine);
    while uptime(machine) - begin < seconds {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Time that each of the loops ran since it was started, and the host's time now, in ns.
fn ran(machine: &Machine) -> (Vec<u64>, u64) {
    let names = HOGS.map(str::to_owned).to_vec();
    let Reply::CpuTimes(times) = machine.request(Request::CpuTimes { names }).unwrap() else {
        panic!("no times")
    };
    let of = |name: &str| times.tasks.iter().filter(|t| t.name == name).map(|t| t.run_ns).sum();
    (HOGS.iter().map(|name| of(name)).collect(), times.t_ns)
}

/// Each loop's part of a CPU in a window, in percent.
fn shares(machine: &Machine) -> Vec<f64> {
    let (before, begin) = ran(machine);
    pass(machine, WINDOW_S);
    let (after, end) = ran(machine);
    let part = |(after, before): (&u64, &u64)| (after - before) as f64 / (end - begin) as f64;
    after.iter().zip(&before).map(|times| part(times) * 100.0).collect()
}

fn two_sockets() {
    let machine = MachineSpec {
        cpus: TOPOLOGY.cpus(),
        topology: Some(TOPOLOGY),
        clock: Clock::Instructions,
        ..spec()
    };
    let machine = Machine::boot(&machine, &Progress::stderr()).unwrap();
    assert_topology(&machine);
    load_kvm(&machine);

    let report: Value =
        serde_json::from_str(&run(&machine, &["holdfast", "doctor", "--json"])).unwrap();
    let cpus = &check(&report, "cpus")["found"];
    println!("cpus: {cpus}");
    let expected = "4 CPUs online, numbers up to 3; 2 last level caches; 2 NUMA nodes; SMT on";
    assert_eq!(cpus, expected);
    let cookies = check(&report, "core-scheduling");
    println!("core-scheduling: {cookies}");
    assert_eq!(cookies["verdict"], "ok");
    // Debian's kernel for clouds, which the host runs, is built without.
    assert_eq!(cookies["found"], "this kernel has no core scheduling");

    start_scheduler(&machine, &["--no-guest-knowledge"]);
    // Four of five on one socket, of which the fifth has the other to itself.
    for (i, name) in HOGS.iter().enumerate() {
        hog(&machine, name, "", Some(SOCKETS[usize::from(i == 4)].to_vec()));
    }
    pass(&machine, 0.5);
    let crowded = shares(&machine);
    println!("four on one socket: {crowded:.1?} % of a CPU");
    let all = TOPOLOGY.cpus();
    for tid in threads(&machine) {
        shell(&machine, &format!("taskset -p {:x} {tid}", (1 << all) - 1));
    }
    // What was short until now is made up for first.
    pass(&machine, 1.0);
    let released = shares(&machine);
    println!("wherever they like: {released:.1?} % of a CPU");
    assert!(is_in_state(&machine, "enabled"));
    end_scheduler(&machine);
    for name in HOGS {
        end(&machine, name, libc::SIGKILL);
    }
    machine.shut_down().unwrap();

    // The kernel kept them apart before.
    assert!(crowded[..4].iter().all(|share| (40.0..60.0).contains(share)), "{crowded:?}");
    assert!(crowded[4] > 90.0, "{crowded:?}");
    let equal = released.iter().sum::<f64>() / HOGS.len() as f64;
    for share in &released {
        assert!((share - equal).abs() <= equal * TOLERANCE, "{released:?}, equal {equal:.1}");
    }
}

fn threads(machine: &Machine) -> Vec<i32> {
    let names = HOGS.map(str::to_owned).to_vec();
    match machine.request(Request::CpuTimes { names }).unwrap() {
        Reply::CpuTimes(times) => times.tasks.iter().map(|task| task.tid).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn shares_are_equal_across_last_level_caches() {
    on_an_emulated_host(two_sockets);
}
