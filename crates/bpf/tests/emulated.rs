// SPDX-License-Identifier: GPL-2.0-or-later
//! Discovery on an emulated KVM host. It needs the output of `make build`, and either the network
//! or packages in the cache, but no root.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_agent::protocol::{Counters, Reply, Request};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counting_spec, end, eventually_within, load_kvm, run, start_scheduler, wait,
};
use serde_json::Value;

const GUEST: &str = "irql";
const WITNESS: &str = "/opt/irql_witness";

/// The example that compares classes with what the guest says; this package's tests build it.
fn witness() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples/irql_witness");
    assert!(built.exists(), "{} is not built", built.display());
    built
}

/// Starts the VM, and waits until each of its vCPUs has worked.
fn start_guest(machine: &Machine, options: &[&str]) {
    let counters = "/tmp/irql.counters";
    let program = machine.workload_path(GUEST);
    let argv = [&*program, "--threads", "4", "--counters", counters];
    let argv = argv.into_iter().chain(options.iter().copied());
    machine.request(Request::spawn(GUEST, argv)).unwrap();
    eventually_within(Duration::from_secs(240), "an operation of the guest", || {
        match machine.request(Request::Counters { path: counters.into() }) {
            Ok(Reply::Counters(Counters { ops, .. })) => (ops > 1000).then_some(()),
            _ => None,
        }
    });
}

/// What the witness saw within some seconds of the host.
fn compare(machine: &Machine, seconds: &str) -> Value {
    machine.request(Request::spawn("witness", [WITNESS, seconds])).unwrap();
    let ended = wait(machine, "witness", Duration::from_secs(480));
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout_tail).unwrap_or_else(|_| panic!("{ended:?}"))
}

#[test]
fn class_of_a_windows_vcpu_is_what_its_guest_says_of_its_cr8() {
    let extra = vec![(witness(), WITNESS.to_owned())];
    let machine = Machine::boot(&MachineSpec { extra, ..counting_spec() }, &Progress::stderr());
    let machine = machine.unwrap();
    load_kvm(&machine);
    for hog in ["hog0", "hog1"] {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    // Often interrupted: by clocks of 1 ms and many IPIs.
    start_guest(&machine, &["--timer-us", "1000", "--ops-per-ipi", "256", "--device", "20000"]);
    let list = run(&machine, &["holdfast", "vms", "--json", "--wait", "20"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let vm = &list["vms"][0];
    assert!(vm["tier"] == "irql" && vm["kernel"] == "Windows 10.0 build 20348", "{list}");
    assert!(vm["unreadable"].as_str().unwrap().contains("IRQL"), "{list}");

    for scheduler in [false, true] {
        if scheduler {
            start_scheduler(&machine, &[]);
        }
        let seen = compare(&machine, "4");
        eprintln!("scx_holdfast {scheduler}: {seen}");
        assert_eq!(seen["tiers"], serde_json::json!(["irql"]), "{seen}");
        assert_eq!(seen["wrong"], serde_json::json!({}), "{seen}");
        let nr = |class: &str| seen["preempted"][class].as_u64().unwrap_or_default();
        assert!(nr("preemptible") > 100 && nr("unknown") == 0, "{seen}");
        // Grace leaves few of them to be seen.
        assert!(scheduler || nr("likely_holder") > 50 && nr("likely_irq") > 0, "{seen}");
    }
    end(&machine, GUEST, libc::SIGTERM);
    machine.shut_down().unwrap();
}
