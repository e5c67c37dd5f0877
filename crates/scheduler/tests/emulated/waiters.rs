// SPDX-License-Identifier: GPL-2.0-or-later
//! Probes of running vCPUs in the lab's host. Where vCPUs of a VM wait for a preempted one, probes
//! find the waiters. Without contention no probe is armed.

use holdfast_agent::protocol::Request;
use holdfast_testbed::machine::{GuestSpec, Machine};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counted, counting_spec, end_scheduler, eventually, of_vcpus, pass, start_scheduler,
};

const GUEST: &str = "vm0";
/// Host time over which probes are counted.
const WINDOW_S: f64 = 2.0;

/// The scheduler's decisions about a guest while all its vCPUs run a workload.
#[derive(Debug)]
struct Decisions {
    probes: u64,
    /// Probes after which the vCPU had to leave its CPU to a sibling.
    found: u64,
    /// Preempted outside of critical sections and queues.
    preemptible: u64,
}

fn start(machine: &Machine, workload: &str) {
    let program = format!("/workloads/{workload}");
    let argv = [&program, "--threads", "4", "--counters", "/tmp/counters"];
    machine.request_guest(GUEST, Request::spawn(workload, argv)).unwrap();
}

/// Counts in a window, once the guest is read and busy.
fn count(machine: &Machine, workload: &str) -> Decisions {
    // Over all polls: each has the counts since the one before.
    let mut preempted = 0;
    eventually("preempted vCPUs", || {
        preempted += of_vcpus(&counted(machine), "nr_preempted_preemptible");
        (preempted > 10).then_some(())
    });
    pass(machine, WINDOW_S);
    let counted = counted(machine);
    let of = |counter: &str| of_vcpus(&counted, counter);
    let found = of("nr_probe_to_holder") + of("nr_probe_to_call_pending");
    let decisions = Decisions {
        probes: of("nr_probed") + found,
        found,
        preemptible: of("nr_preempted_preemptible"),
    };
    println!("{workload}: {decisions:?}");
    decisions
}

#[test]
fn probes_vcpus_only_where_they_contend() {
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    // Its waiters never halt, and do not exit.
    let cmdline = "nopvspin".to_owned();
    machine.start_guest(&GuestSpec { cmdline, ..GuestSpec::new(GUEST) }).unwrap();
    for hog in ["hog0", "hog1"] {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    start_scheduler(&machine, &[]);
    start(&machine, "hog");
    let loops = count(&machine, "hog");
    machine.request_guest(GUEST, Request::Kill { name: "hog".into(), signal: 9 }).unwrap();
    // With grace there would hardly be a blocker.
    end_scheduler(&machine);
    start_scheduler(&machine, &["--no-grace"]);
    start(&machine, "lock");
    let locks = count(&machine, "lock");
    end_scheduler(&machine);
    machine.shut_down().unwrap();
    // A loop is preempted hundreds of times, now and then in a tick's interrupt, which counts as a
    // blocker.
    assert!(loops.preemptible > 50 && loops.probes * 20 <= loops.preemptible, "{loops:?}");
    assert!(locks.found >= 5, "{locks:?}");
}
