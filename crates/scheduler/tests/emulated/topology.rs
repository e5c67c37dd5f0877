// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_holdfast` on hosts whose cores have two threads each. One has two sockets, the only host in
//! the lab with more than one last level cache or NUMA node. The other has two cores, where a loop
//! is to find the idle core.

use std::time::Duration;

use holdfast_agent::protocol::{CpuTimes, Reply, Request};
use holdfast_testbed::machine::{Machine, MachineSpec, Topology};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counting_spec, end, end_scheduler, eventually, hog, load_kvm, pass, read, run, shell,
    start_scheduler, wait,
};
use serde_json::Value;

const TOPOLOGY: Topology = Topology { sockets: 2, cores: 1, threads: 2 };
/// CPUs of each socket.
const SOCKETS: [[u32; 2]; 2] = [[0, 1], [2, 3]];
/// One socket of two cores.
const CORES: Topology = Topology { sockets: 1, cores: 2, threads: 2 };
/// Number of starts of the loops, and of probes of their CPUs after each.
const STARTS: usize = 4;
const LOOKS: usize = 20;
const LOOK_S: f64 = 0.05;
/// Part of the probes, at most, with two loops on one core: for a moment, after something short.
const SHARED: f64 = 0.1;
/// Host time in which the processes that started the loops go to sleep again.
const SETTLE_S: f64 = 0.3;
/// One for each CPU of the host and one more, so that equal shares need both sockets.
const HOGS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Host time over which shares are measured: hundreds of slices.
const WINDOW_S: f64 = 2.0;
/// How far a share may be from an equal one.
const TOLERANCE: f64 = 0.1;

/// The kernel's view of the host's CPUs is the requested topology.
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

fn times(machine: &Machine, hogs: &[&str]) -> CpuTimes {
    let names = hogs.iter().map(|&name| name.to_owned()).collect();
    match machine.request(Request::CpuTimes { names }).unwrap() {
        Reply::CpuTimes(times) => times,
        other => panic!("{other:?}"),
    }
}

/// CPU time of each loop since its start, and the host's time, in ns.
fn ran(machine: &Machine, hogs: &[&str]) -> (Vec<u64>, u64) {
    let times = times(machine, hogs);
    let of = |name: &str| times.tasks.iter().filter(|t| t.name == name).map(|t| t.run_ns).sum();
    (hogs.iter().map(|name| of(name)).collect(), times.t_ns)
}

/// Each loop's part of a CPU in a window, in percent.
fn shares(machine: &Machine, hogs: &[&str]) -> Vec<f64> {
    let (before, begin) = ran(machine, hogs);
    pass(machine, WINDOW_S);
    let (after, end) = ran(machine, hogs);
    let part = |(after, before): (&u64, &u64)| (after - before) as f64 / (end - begin) as f64;
    after.iter().zip(&before).map(|times| part(times) * 100.0).collect()
}

fn boot(topology: Topology) -> Machine {
    let spec = MachineSpec { cpus: topology.cpus(), topology: Some(topology), ..counting_spec() };
    Machine::boot(&spec, &Progress::stderr()).unwrap()
}

#[test]
fn shares_are_equal_across_last_level_caches() {
    let machine = boot(TOPOLOGY);
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
    // The host runs Debian's kernel for clouds, which is built without it.
    assert_eq!(cookies["found"], "this kernel has no core scheduling");

    start_scheduler(&machine, &["--no-guest-knowledge"]);
    // Four of five on one socket; the fifth has the other to itself.
    for (i, name) in HOGS.iter().enumerate() {
        hog(&machine, name, "", Some(SOCKETS[usize::from(i == 4)].to_vec()));
    }
    pass(&machine, 0.5);
    let crowded = shares(&machine, &HOGS);
    println!("four on one socket: {crowded:.1?} % of a CPU");
    let all = TOPOLOGY.cpus();
    for tid in threads(&machine, &HOGS) {
        shell(&machine, &format!("taskset -p {:x} {tid}", (1 << all) - 1));
    }
    // Earlier lag is made up for first.
    pass(&machine, 1.0);
    let released = shares(&machine, &HOGS);
    println!("wherever they like: {released:.1?} % of a CPU");
    end_scheduler(&machine);
    for name in HOGS {
        end(&machine, name, libc::SIGKILL);
    }
    machine.shut_down().unwrap();

    // The test's own affinities kept them apart before.
    assert!(crowded[..4].iter().all(|share| (40.0..60.0).contains(share)), "{crowded:?}");
    assert!(crowded[4] > 90.0, "{crowded:?}");
    let equal = released.iter().sum::<f64>() / HOGS.len() as f64;
    for share in &released {
        assert!((share - equal).abs() <= equal * TOLERANCE, "{released:?}, equal {equal:.1}");
    }
}

fn threads(machine: &Machine, hogs: &[&str]) -> Vec<i32> {
    times(machine, hogs).tasks.iter().map(|task| task.tid).collect()
}

/// Starts loops, finds their CPUs, and ends them: the CPUs of each probe.
fn placed(machine: &Machine, hogs: &[&str], cpus: Option<&[u32]>) -> Vec<Vec<u32>> {
    for name in hogs {
        hog(machine, name, "", cpus.map(<[u32]>::to_vec));
    }
    // The first thread of each waits for the other one.
    let loops = eventually("loops", || {
        let tasks = times(machine, hogs).tasks.into_iter().filter(|task| task.tid != task.pid);
        let loops: Vec<_> =
            tasks.map(|task| format!("/proc/{}/task/{}/stat", task.pid, task.tid)).collect();
        (loops.len() == hogs.len()).then(|| loops.join(" "))
    });
    // proc_pid_stat(5): field 39. It is read by one script and reported at the end. The agent is a
    // real-time task: each request to it takes a CPU from a loop and drives the loop to another
    // one.
    let look = format!(
        "sleep {SETTLE_S}; for look in $(seq {LOOKS}); do sleep {LOOK_S}; awk '{{printf \"%d \", \
         $39}}' {loops}; echo; done \
         > /tmp/looks; cat /tmp/looks"
    );
    machine.request(Request::spawn("looks", ["/bin/sh", "-ec", &look])).unwrap();
    let ended = wait(machine, "looks", Duration::from_secs(240));
    assert!(ended.status.success(), "{ended:?}");
    for name in hogs {
        end(machine, name, libc::SIGKILL);
    }
    let cpus = |line: &str| line.split_ascii_whitespace().map(|cpu| cpu.parse().unwrap()).collect();
    ended.stdout_tail.lines().map(cpus).collect()
}

/// Number of probes with two loops on one core, whose threads have consecutive numbers.
fn shared(places: &[Vec<u32>]) -> usize {
    places.iter().filter(|cpus| cpus[0] / CORES.threads == cpus[1] / CORES.threads).count()
}

fn boot_two_cores() -> Machine {
    let machine = boot(CORES);
    for cpu in 0..CORES.cpus() {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let first = cpu / CORES.threads * CORES.threads;
        assert_eq!(read(&machine, &path).trim(), format!("{first}-{}", first + 1), "of CPU {cpu}");
    }
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    machine
}

#[test]
fn loops_do_not_share_a_core_while_another_is_idle() {
    let machine = boot_two_cores();
    let two = &HOGS[..2];
    let shown = placed(&machine, two, Some(&[2, 3]));
    println!("two loops that may run on one core only: {shown:?}");
    let free: Vec<_> = (0..STARTS).flat_map(|_| placed(&machine, two, None)).collect();
    println!("two loops: {free:?}");
    end_scheduler(&machine);
    machine.shut_down().unwrap();

    // Loops that have to share a core are seen to do so.
    assert_eq!((shared(&shown), shown.len()), (LOOKS, LOOKS), "{shown:?}");
    assert_eq!(free.len(), STARTS * LOOKS);
    let shared = shared(&free);
    assert!(
        shared as f64 <= SHARED * free.len() as f64,
        "two loops on one core, the other idle, in {shared} of {} looks: {free:?}",
        free.len()
    );
}

/// Random placement puts two of four loops on one core in a third of the probes. Stock never does.

#[test]
fn four_loops_have_four_threads_of_two_cores() {
    let machine = boot_two_cores();
    let four = &HOGS[..4];
    for name in four {
        hog(&machine, name, "", None);
    }
    pass(&machine, SETTLE_S);
    let shares = shares(&machine, four);
    println!("four loops: {shares:.1?} % of a CPU");
    end_scheduler(&machine);
    machine.shut_down().unwrap();
    // The agent, which reads their times, has some CPU time, too.
    assert!(shares.iter().all(|share| *share > 90.0), "a CPU idles beside four loops: {shares:?}");
}
