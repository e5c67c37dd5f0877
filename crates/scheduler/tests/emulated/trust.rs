// SPDX-License-Identifier: GPL-2.0-or-later
//! Trust in the lab's host: a guest that lies gains nothing, and KVM's reports to an honest guest
//! stay true under the scheduler.

use std::time::Duration;

use holdfast_agent::protocol::{Counters, CpuTimes, Reply, Request};
use holdfast_testbed::machine::{GuestSpec, Machine};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::scheduler::Counted;
use holdfast_testbed::share::{self, Party};
use holdfast_testbed::testing::{
    counted, end, end_scheduler, eventually, kill_scheduler, load_kvm, of_vcpus, run, shell, spec,
    start_scheduler,
};
use serde_json::Value;

const HOSTILE: &str = "hostile";
const HOGS: [&str; 4] = ["hog0", "hog1", "hog2", "hog3"];

fn spawn(machine: &Machine, name: &str, argv: &[&str]) {
    machine.request(Request::spawn(name, argv.iter().copied())).unwrap();
}

fn cpu_times(machine: &Machine) -> CpuTimes {
    let names = [&[HOSTILE][..], &HOGS].concat().into_iter().map(str::to_owned).collect();
    match machine.request(Request::CpuTimes { names }).unwrap() {
        Reply::CpuTimes(times) => times,
        other => panic!("{other:?}"),
    }
}

/// The liar's CPU time less its fair share, in percent of one CPU.
fn unfair_points(before: &CpuTimes, after: &CpuTimes) -> f64 {
    let window_ns = (after.t_ns - before.t_ns) as f64;
    let (mut shares, mut parties, mut is_liar) = (Vec::new(), Vec::new(), Vec::new());
    for task in &after.tasks {
        let was = before.tasks.iter().find(|t| t.tid == task.tid);
        let run = (task.run_ns - was.map_or(0, |t| t.run_ns)) as f64 / window_ns;
        let wait = (task.wait_ns - was.map_or(0, |t| t.wait_ns)) as f64 / window_ns;
        shares.push(run);
        parties.push(Party { weight: 1.0, demand: share::demand(run, wait) });
        is_liar.push(task.name == HOSTILE);
    }
    let fair = share::max_min(shares.iter().sum(), &parties);
    let of_liar = |all: &[f64]| -> f64 {
        all.iter().zip(&is_liar).filter(|(_, liar)| **liar).map(|(share, _)| share).sum()
    };
    100.0 * (of_liar(&shares) - of_liar(&fair))
}

#[test]
fn a_guest_that_always_claims_to_hold_a_lock_gets_no_more_than_its_share() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    for hog in HOGS {
        spawn(&machine, hog, &[&machine.workload_path("hog")]);
    }
    start_scheduler(&machine, &[]);
    // As many threads as hogs, so that half of the time is fair.
    for claim in ["holder", "irq", "head", "waiter", "called", "flipping"] {
        let program = machine.workload_path(HOSTILE);
        let counters = "/tmp/hostile.counters";
        let argv = [&program, "--threads", "4", "--claim", claim, "--counters", counters];
        spawn(&machine, HOSTILE, &argv);
        eventually("a vCPU of the liar that runs", || {
            match machine.request(Request::Counters { path: counters.into() }) {
                Ok(Reply::Counters(Counters { ops, .. })) => (ops > 0).then_some(()),
                _ => None,
            }
        });
        let list = run(&machine, &["holdfast", "vms", "--json", "--wait", "30"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let vm = &list["vms"][0];
        assert_eq!(vm["vcpus"].as_array().map(Vec::len), Some(4), "{claim}: {list}");
        assert!(vm["kernel"].is_string(), "{claim}: it is not believed to be Linux: {list}");

        // A vCPU that waits behind a preempted one is granted nothing.
        if claim != "waiter" {
            eventually("grace for the liar", || {
                (of_vcpus(&counted(&machine), "nr_extended") > 0).then_some(())
            });
        }
        // Lag from the start is made up for first.
        std::thread::sleep(Duration::from_secs(2));
        let before = cpu_times(&machine);
        std::thread::sleep(Duration::from_secs(8));
        let after = cpu_times(&machine);
        let counted = counted(&machine);
        let points = unfair_points(&before, &after);
        eprintln!("{claim}: {points:+.2} points, {:?}", counted.counters);
        // Unbounded, it would be fifty.
        assert!(points <= 2.0, "{claim}: {points} points more than fair; {counted:?}");
        // The claim was trusted, and its grants were bounded. A vCPU that never lets go is
        // distrusted. Where all vCPUs have calls pending, each is taken for the IPI sender of the
        // others.
        let bounds = ["nr_capped", "nr_over_budget", "nr_backed_off", "nr_waits"];
        let bounded = bounds.iter().any(|bound| of_vcpus(&counted, bound) > 0);
        assert!(["flipping", "waiter"].contains(&claim) || bounded, "{claim}: {counted:?}");
        end(&machine, HOSTILE, libc::SIGTERM);
    }
    left_by_its_vm(&machine);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

#[test]
fn a_windows_guest_that_is_always_at_dispatch_level_gets_no_more_than_its_share() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    for hog in HOGS {
        spawn(&machine, hog, &[&machine.workload_path("hog")]);
    }
    start_scheduler(&machine, &[]);
    for claim in ["dispatch", "flipping"] {
        let program = machine.workload_path("irql");
        let counters = "/tmp/hostile.counters";
        let held = ["--held", "65536", "--threads", "4", "--claim", claim];
        let argv = [&[&*program, "--counters", counters][..], &held].concat();
        spawn(&machine, HOSTILE, &argv);
        eventually("grace for the liar, by its IRQL", || {
            let counted = counted(&machine);
            let graces = of_vcpus(&counted, "nr_extended");
            (counted.counters["nr_vms_irql"] == 1 && graces > 0).then_some(())
        });
        std::thread::sleep(Duration::from_secs(2));
        let before = cpu_times(&machine);
        std::thread::sleep(Duration::from_secs(8));
        let after = cpu_times(&machine);
        let counted = counted(&machine);
        let points = unfair_points(&before, &after);
        eprintln!("{claim}: {points:+.2} points, {:?}", counted.counters);
        assert!(points <= 2.0, "{claim}: {points} points more than fair; {counted:?}");
        // What is likely is neither resumed first nor a blocker.
        for counter in ["nr_resumed_first", "nr_probe_to_holder", "nr_preempted_holder"] {
            assert_eq!(of_vcpus(&counted, counter), 0, "{claim}: {counter}: {counted:?}");
        }
        end(&machine, HOSTILE, libc::SIGTERM);
    }
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// After its VM is closed a thread is like any other, even if the guest's memory still claims a
/// lock.
fn left_by_its_vm(machine: &Machine) {
    let nr_vms = |counted: &Counted| {
        ["nr_vms_readable", "nr_vms_unreadable"]
            .map(|counter| counted.counters[counter].as_u64().unwrap())
    };
    let no_vm = || eventually("no VM", || (nr_vms(&counted(machine)) == [0, 0]).then_some(()));
    no_vm();
    let program = machine.workload_path(HOSTILE);
    spawn(machine, HOSTILE, &[&program, "--claim", "holder", "--leave", "1"]);
    eventually("grace for the thread of a VM", || {
        let counted = counted(machine);
        (nr_vms(&counted) == [1, 0] && of_vcpus(&counted, "nr_extended") > 0).then_some(())
    });
    machine.request(Request::Kill { name: HOSTILE.into(), signal: libc::SIGUSR1 }).unwrap();
    no_vm();
    std::thread::sleep(Duration::from_secs(3));
    let counted = counted(machine);
    for counter in ["nr_extended", "nr_preempted_holder"] {
        assert_eq!(of_vcpus(&counted, counter), 0, "{counter}: {counted:?}");
    }
    end(machine, HOSTILE, libc::SIGTERM);
}

#[test]
fn memory_that_never_answers_keeps_no_other_guest_from_being_read() {
    // The number of searches at a time.
    const AT_ONCE: usize = 4;
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    start_scheduler(&machine, &[]);
    let program = machine.workload_path(HOSTILE);
    let is_read = || counted(&machine).counters["nr_vms_readable"] == 1;
    // Threads of the scheduler that wait in the kernel for a missing page.
    let nr_stuck = || {
        let command = "cat /proc/$(ps | awk '/[s]cx_holdfast/ {print $1; exit}')/task/*/stack \
                       | grep -c handle_userfault || true";
        shell(&machine, command).trim().parse::<usize>().unwrap()
    };
    let mut stalling = Vec::new();
    while stalling.len() < AT_ONCE {
        let name = format!("stall{}", stalling.len());
        spawn(&machine, &name, &[&program, "--stall", "1", "--rest", "20"]);
        let is_stuck = eventually("a search that is stuck, or a VM that is read", || {
            let is_stuck = nr_stuck() > stalling.len();
            (is_stuck || is_read()).then_some(is_stuck)
        });
        if is_stuck {
            stalling.push(name);
        } else {
            end(&machine, &name, libc::SIGKILL);
            eventually("that VM to be forgotten", || (!is_read()).then_some(()));
        }
    }
    spawn(&machine, HOSTILE, &[&program, "--rest", "20"]);
    eventually("a VM beside them that is read", || is_read().then_some(()));
    assert_eq!(nr_stuck(), AT_ONCE);
    kill_scheduler(&machine);
    for name in stalling.iter().map(String::as_str).chain([HOSTILE]) {
        end(&machine, name, libc::SIGKILL);
    }
    machine.shut_down().unwrap();
}

#[test]
fn kvm_reports_preempted_vcpus_truthfully() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    machine.start_guest(&GuestSpec::new("vm0")).unwrap();
    for hog in &HOGS[..2] {
        spawn(&machine, hog, &[&machine.workload_path("hog")]);
    }
    for scheduler in [None, Some(())] {
        if scheduler.is_some() {
            start_scheduler(&machine, &[]);
        }
        let guest = |request| machine.request_guest("vm0", request).unwrap();
        let argv = ["/workloads/stealwitness", "--threads", "4", "--seconds", "10"];
        guest(Request::spawn("witness", argv));
        let ended = match guest(Request::Wait { name: "witness".into(), timeout_ms: 240_000 }) {
            Reply::Wait(ended) => ended,
            other => panic!("{other:?}"),
        };
        assert!(ended.status.success(), "{ended:?}");
        let seen: Value = serde_json::from_str(&ended.stdout_tail).unwrap();
        eprintln!("{}: {seen}", if scheduler.is_some() { "holdfast" } else { "stock" });
        let count = |name: &str| seen[name].as_u64().unwrap();
        assert_eq!(count("lies"), 0, "{seen}");
        assert!(count("flagged") > 0 && count("marked") > 10, "{seen}");
        // KVM's own exception: a vCPU that is preempted while KVM emulates an instruction for it.
        assert!(20 * count("silent") <= count("marked"), "{seen}");
    }
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}
