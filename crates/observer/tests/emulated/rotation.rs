// SPDX-License-Identifier: GPL-2.0-or-later
//! A recorder that writes one file after another, is killed, and begins again.

use std::time::Duration;

use holdfast_agent::protocol::Request;
use holdfast_testbed::machine::Machine;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{Lines, end, eventually, load_kvm, run, shell, spec};
use serde_json::Value;

const FILES: &str = "/tmp/rec/date=*/host=*/*.parquet";

#[test]
fn files_of_a_recorder_that_was_killed_and_its_successor_are_one_recording() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    let hostile = machine.workload_path("hostile");
    // It works for a moment, and rests for longer than a file is long.
    let argv = [hostile.as_str(), "--threads", "2", "--counters", "/tmp/counters"];
    let idle = ["--rounds", "4096", "--rest", "2500"];
    machine.request(Request::spawn("vm", [&argv[..], &idle].concat())).unwrap();

    let program = machine.dist_path("holdfast");
    let record: [&str; 8] =
        [&program, "record", "-o", "/tmp/rec/", "--rotate", "1s", "--sync", "1s"];
    let mut first = Lines::of(&machine, "first", &record);
    assert!(first.next().unwrap().starts_with("Recording what vCPUs lose to /tmp/rec/"));
    let finished = |least: usize| {
        eventually("finished files", || {
            let files = shell(&machine, &format!("ls {FILES} 2> /dev/null || :"));
            (files.lines().count() >= least).then_some(files)
        })
    };
    finished(4);
    end(&machine, "first", libc::SIGKILL);
    let mut second = Lines::of(&machine, "second", &[&record[..], &["--keep", "1h"]].concat());
    let said = second.next().unwrap();
    let is_recovered = said.starts_with("A recording that was cut short is in /tmp/rec/date=");
    if is_recovered {
        second.next().unwrap();
    }
    let files = finished(8);
    assert_eq!(files.contains(".recovered.parquet"), is_recovered, "{files}");
    let ended = end(&machine, "second", libc::SIGINT);
    assert!(ended.status.success() && ended.stdout_tail.contains(" files"), "{ended:?}");

    let files = shell(&machine, &format!("ls {FILES}"));
    let replay = |paths: &[&str]| -> Value {
        let said = run(&machine, &[&["holdfast", "replay", "--json"], paths].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let all = replay(&["/tmp/rec/"]);
    // Both recorders say the same of the VM: it is one.
    let vms = all["vms"].as_array().unwrap();
    assert_eq!((vms.len(), vms[0]["vcpus"].as_array().unwrap().len()), (1, 2), "{all}");
    assert_eq!(all["lost_events"], 0);
    let preempted = |replayed: &Value| -> u64 {
        let vcpus = replayed["vms"].as_array().unwrap().iter();
        let vcpus = vcpus.flat_map(|vm| vm["vcpus"].as_array().unwrap());
        let classes = vcpus.flat_map(|vcpu| vcpu["preemptions"].as_object().unwrap().values());
        classes.map(|count| count.as_u64().unwrap()).sum()
    };
    let each = files.lines().map(|file| replay(&[file])).collect::<Vec<_>>();
    assert_eq!(preempted(&all), each.iter().map(preempted).sum::<u64>());
    let recorded_ns = each.iter().map(|one| one["interval_ns"].as_u64().unwrap()).sum::<u64>();
    let interval_ns = all["interval_ns"].as_u64().unwrap();
    assert!(recorded_ns.abs_diff(interval_ns) < 1000, "{recorded_ns} {interval_ns}");
    // The first file of each recorder and the one that was recovered may be short: of eight, five
    // have their second.
    let length = Duration::from_nanos(interval_ns);
    assert!(length > Duration::from_secs(5), "{length:?}");
    let said = run(&machine, &["holdfast", "compare", "/tmp/rec/", "/tmp/rec/"]);
    assert!(said.starts_with("Undecided: "), "{said}");
    machine.shut_down().unwrap();
}
