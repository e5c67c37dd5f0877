// SPDX-License-Identifier: GPL-2.0-or-later
//! Five hundred vCPUs with work under `scx_holdfast`, more of one VM than it has slots for: it keeps scheduling, what
//! it counts adds up, and it ends as asked.
//! Needs what `make build` builds, and either the network or packages in the cache; no root.

use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Counters, Reply, Request};
use holdfast_lab::machine::{Clock, Machine, MachineSpec};
use holdfast_lab::progress::Progress;
use serde_json::Value;

mod emulated;

use emulated::{
    counted, end, end_scheduler, eventually_within, is_in_state, load_kvm, of_vcpus,
    on_an_emulated_host, spec, start_scheduler, uptime,
};

/// vCPUs of the first VM, three of which share each slot (`HF_VM_SLOTS` in `crates/scheduler/src/bpf/intf.h`), and of
/// the others, which have a slot for each.
const LARGE: usize = 192;
const SMALL: usize = 63;
const NR_SMALL: usize = 5;
const VCPUS: usize = LARGE + NR_SMALL * SMALL;
/// Most vCPUs of a VM that its counter file has room for.
const COUNTED: usize = 64;
/// Host time that all of them have work for: two rounds of turns. Such a host is slow.
const WINDOW_S: f64 = 1.0;
/// Longest it may take until they all exist and are read: loading, and reading five hundred, by an emulated host.
const READ_LIMIT: Duration = Duration::from_secs(240);

const COUNTERS: &str = "/tmp/large";

fn start_vm(machine: &Machine, name: &str, vcpus: usize, counters: &str) {
    let (threads, more) = (vcpus.min(COUNTED), vcpus.saturating_sub(COUNTED));
    let (threads, more) = (threads.to_string(), more.to_string());
    let program = machine.workload_path("hostile");
    let argv = [&program, "--threads", &threads, "--more", &more, "--counters", counters];
    machine.request(Request::spawn(name, argv)).unwrap();
}

/// Time that all threads of these children ran, how many of them have, and the host's time; in ns.
fn ran(machine: &Machine, names: &[String]) -> (u64, usize, u64) {
    let request = Request::CpuTimes { names: names.to_vec() };
    let Reply::CpuTimes(times) = machine.request(request).unwrap() else { panic!("no times") };
    let vcpus = || times.tasks.iter().filter(|task| task.tid != task.pid);
    (
        vcpus().map(|task| task.run_ns).sum(),
        vcpus().filter(|task| task.run_ns > 0).count(),
        times.t_ns,
    )
}

fn operations(machine: &Machine) -> Counters {
    match machine.request(Request::Counters { path: COUNTERS.into() }).unwrap() {
        Reply::Counters(counters) => counters,
        other => panic!("{other:?}"),
    }
}

/// Sum over all VMs of one of the counters that each has of its own.
fn of_vms(counters: &Value, counter: &str) -> u64 {
    let vms = counters["vms"].as_object().unwrap().values();
    vms.map(|vm| vm[counter].as_u64().unwrap()).sum()
}

fn hundreds_of_vcpus() {
    // By the machine's clock the emulation does not survive so many vCPUs that never rest.
    let spec = MachineSpec { clock: Clock::Instructions, ..spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    load_kvm(&machine);
    start_scheduler(&machine, &[]);
    let names: Vec<String> = (0..=NR_SMALL).map(|vm| format!("vm{vm}")).collect();
    for (vm, name) in names.iter().enumerate() {
        let vcpus = if vm == 0 { LARGE } else { SMALL };
        let counters = if vm == 0 { COUNTERS.to_owned() } else { format!("/tmp/small{vm}") };
        start_vm(&machine, name, vcpus, &counters);
    }
    eventually_within(READ_LIMIT, "all of them read, and each has run", || {
        let counters = counted(&machine).counters;
        let (_, running, _) = ran(&machine, &names);
        let read = counters["nr_vms_readable"].as_u64().unwrap();
        (read == names.len() as u64 && running == VCPUS).then_some(())
    });

    let begin = counted(&machine);
    let (ran_before, _, from) = ran(&machine, &names);
    let (start, wall) = (uptime(&machine), Instant::now());
    while uptime(&machine) - start < WINDOW_S {
        std::thread::sleep(Duration::from_millis(500));
    }
    let (ran_after, running, to) = ran(&machine, &names);
    let made = counted(&machine);
    drop(begin);
    assert!(is_in_state(&machine, "enabled"));
    assert_eq!(running, VCPUS);
    let used = (ran_after - ran_before) as f64 / (to - from) as f64 * 100.0;
    println!(
        "{VCPUS} vCPUs of {} VMs used {used:.0} % of a CPU in {:.1} s of the host's time ({:.0?} of this machine's)",
        names.len(),
        (to - from) as f64 / 1e9,
        wall.elapsed()
    );
    println!("{:?}", made.counters["vcpus"]);
    // Nobody else wants the two CPUs.
    assert!((150.0..=205.0).contains(&used), "{used} % of a CPU");

    // What is counted of VMs is what is counted of the host, and graces are as much as was earned.
    let counters = Value::Object(made.counters.clone());
    for counter in ["nr_preempted_holder", "nr_extended", "grace_ns", "nr_resumed_first"] {
        let (host, vms) = (of_vcpus(&made, counter), of_vms(&counters, counter));
        // They are not read at one moment.
        let apart = host.abs_diff(vms) as f64;
        assert!(apart <= 100.0 + host as f64 * 0.2, "{counter}: {host} of the host, {vms} of VMs");
    }
    let preempted = of_vcpus(&made, "nr_preempted_holder");
    assert!(preempted > 0, "{made:?}");
    let (granted, ran_ns) = (of_vcpus(&made, "grace_ns"), ran_after - ran_before);
    let saved_ns = 20_000_000 * names.len() as u64;
    assert!(granted <= ran_ns / 5 + saved_ns, "grace of {granted} ns in {ran_ns} ns");
    assert!(operations(&machine).ops > 0);

    end_scheduler(&machine);
    for name in &names {
        end(&machine, name, libc::SIGKILL);
    }
    machine.shut_down().unwrap();
}

#[test]
fn hundreds_of_vcpus_are_scheduled() {
    on_an_emulated_host(hundreds_of_vcpus);
}
