// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer under load in the lab's host: it tracks five hundred vCPUs and loses none, and
//! counts and reports lost events.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_agent::protocol::{Ended, Request};
use holdfast_testbed::machine::Machine;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{Lines, kept, load_kvm, replay, spec, wait};
use serde_json::Value;

const VMS: usize = 8;
const VCPUS_EACH: usize = 63;
const VCPUS: usize = VMS * VCPUS_EACH;

#[test]
fn many_vcpus_are_tracked_without_loss_and_losses_are_reported() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    let program = machine.dist_path("holdfast");
    let mut reports = Lines::of(&machine, "reports", &[&program, "report", "3", "--json"]);
    reports.next().unwrap();
    let record = [&program, "record", "-o", "/tmp/many.parquet"];
    let mut recorder = Lines::of(&machine, "recorder", &record);
    recorder.next().unwrap();

    // Nearly idle, as most VMs are: each vCPU works for a moment every five seconds.
    let hostile = machine.workload_path("hostile");
    let threads = VCPUS_EACH.to_string();
    for vm in 0..VMS {
        let counters = format!("/tmp/counters{vm}");
        let idle = ["--rounds", "4096", "--rest", "5000"];
        let argv =
            [&[&hostile, "--threads", &threads, "--counters", &counters], &idle[..]].concat();
        machine.request(Request::spawn(format!("vm{vm}"), argv)).unwrap();
    }
    let readable = |report: &Value| {
        let vcpus = report["vms"].as_array().unwrap().iter();
        let vcpus = vcpus.flat_map(|vm| vm["vcpus"].as_array().unwrap());
        vcpus.filter(|vcpu| vcpu["readable"] == true).count()
    };
    let of = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let mut lost = 0;
    let all = reports.by_ref().take(40).map(of).find(|report| {
        lost += report["lost_events"].as_u64().unwrap();
        readable(report) == VCPUS
    });
    assert!(all.is_some(), "not all of them are read");
    // Each of them has been off the CPU and back.
    let mut ran = BTreeMap::new();
    for report in reports.by_ref().take(4).map(of) {
        assert_eq!(readable(&report), VCPUS);
        lost += report["lost_events"].as_u64().unwrap();
        for vm in report["vms"].as_array().unwrap() {
            for vcpu in vm["vcpus"].as_array().unwrap() {
                *ran.entry(vcpu["tid"].as_u64()).or_insert(0) += vcpu["run_ns"].as_u64().unwrap();
            }
        }
    }
    assert_eq!((ran.len(), ran.values().filter(|ns| **ns > 0).count()), (VCPUS, VCPUS));
    assert_eq!(lost, 0);

    // A VM that dies stays in the recording, marked.
    kill(&machine, "vm0", libc::SIGKILL);
    let gone = |report: &Value| readable(report) == VCPUS - VCPUS_EACH;
    assert!(reports.by_ref().take(20).map(of).any(|report| gone(&report)));
    let ended = end(&machine, "recorder");
    assert!(ended.stdout_tail.contains(&format!("of {VMS} VMs")), "{ended:?}");
    assert!(!ended.stdout_tail.contains("missing"), "{ended:?}");
    let recording = replay(&machine, "/tmp/many.parquet", &["--html", "many.html"]);
    let page = kept().join("many.html");
    assert_eq!(std::fs::read_to_string(page).unwrap().matches("(ended)").count(), 1);
    assert_eq!(recording["lost_events"], 0);
    let recorded = recording["vms"].as_array().unwrap().iter();
    let recorded: usize = recorded.map(|vm| vm["vcpus"].as_array().unwrap().len()).sum();
    assert_eq!(recorded, VCPUS, "in the recording");

    kill_all_vms(&machine);
    replaced_vms_are_one(&machine, &mut reports);
    losses_are_reported(&machine);
    machine.shut_down().unwrap();
}

fn kill_all_vms(machine: &Machine) {
    for vm in 1..VMS {
        kill(machine, &format!("vm{vm}"), libc::SIGKILL);
    }
}

/// A process that makes one VM after the other is reported as the last of them, which is read each
/// time. The CPU time of its thread is counted once.
fn replaced_vms_are_one(machine: &Machine, reports: &mut Lines<'_>) {
    let of = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let none = |report: &Value| report["vms"].as_array().unwrap().is_empty();
    // Reports of five hundred vCPUs are long: the agent has not kept all of them.
    reports.forget();
    assert!(
        reports.by_ref().take(20).map(of).any(|report| none(&report)),
        "killed VMs are still there"
    );
    let argv = [&machine.workload_path("hostile"), "--threads", "1", "--replace", "50"];
    machine.request(Request::spawn("replaced", argv)).unwrap();
    let (mut seen, mut read) = (0, 0);
    for report in reports.take(10).map(of) {
        assert_eq!(report["lost_events"], 0);
        let vms = report["vms"].as_array().unwrap();
        let vcpus: Vec<_> = vms.iter().flat_map(|vm| vm["vcpus"].as_array().unwrap()).collect();
        assert!(vcpus.len() <= 1, "{report}");
        for vcpu in vcpus {
            seen += 1;
            read += usize::from(vcpu["readable"] == true);
            let interval_ns = report["interval_ns"].as_u64().unwrap();
            assert!(vcpu["run_ns"].as_u64().unwrap() <= interval_ns * 11 / 10, "{report}");
        }
    }
    assert!(seen >= 5 && read > 0, "seen in {seen} of 10 reports, read in {read}");
    kill(machine, "replaced", libc::SIGKILL);
}

/// A recorder that does not keep up says so, and the recording has the number of lost events.
fn losses_are_reported(machine: &Machine) {
    let argv = [machine.workload_path("hostile"), "--threads".into(), "2".into()];
    machine.request(Request::spawn("busy", argv)).unwrap();
    let mut ended = interrupted_recording(machine, 15);
    // The time until the ring is full depends on this machine's speed.
    for seconds in [30, 60, 120] {
        if ended.stdout_tail.contains("events are missing") {
            break;
        }
        ended = interrupted_recording(machine, seconds);
    }
    let lost = replay(machine, "/tmp/lost.parquet", &[])["lost_events"].as_u64().unwrap();
    let shown = ended.stdout_tail.contains(&format!("{lost} events are missing"));
    assert!(lost > 0 && shown, "{lost}: {ended:?}");
}

/// A recorder that is stopped for this long.
fn interrupted_recording(machine: &Machine, seconds: u64) -> Ended {
    let program = machine.dist_path("holdfast");
    let record = [&program, "record", "-o", "/tmp/lost.parquet", "--frequency", "10000"];
    let mut recorder = Lines::of(machine, "recorder", &record);
    recorder.next().unwrap();
    kill(machine, "recorder", libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(seconds));
    kill(machine, "recorder", libc::SIGCONT);
    end(machine, "recorder")
}

fn kill(machine: &Machine, child: &str, signal: i32) {
    machine.request(Request::Kill { name: child.into(), signal }).unwrap();
}

fn end(machine: &Machine, child: &str) -> Ended {
    kill(machine, child, libc::SIGINT);
    let ended = wait(machine, child, Duration::from_secs(120));
    assert!(ended.status.success(), "{ended:?}");
    ended
}
