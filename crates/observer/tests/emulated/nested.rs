// SPDX-License-Identifier: GPL-2.0-or-later
//! A guest that is a hypervisor itself.

use holdfast_agent::protocol::Request;
use holdfast_testbed::machine::{GuestSpec, Machine, MachineSpec, PV_FEATURES};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counting_spec, eventually, hog, observe, preemptions, start_observer,
};

/// KVM enters a guest with preemption off. A vCPU that runs a nested guest (L2) holds no lock
/// because of it.
#[test]
fn a_vcpu_that_runs_a_nested_guest_is_no_lock_holder() {
    let machine =
        Machine::boot(&MachineSpec { kvm_in_guests: true, ..counting_spec() }, &Progress::stderr())
            .unwrap();
    let features = PV_FEATURES.into_iter().chain(["+svm"]).map(str::to_owned).collect();
    machine.start_guest(&GuestSpec { vcpus: 1, features, ..GuestSpec::new("vm0") }).unwrap();
    let ask = |request| machine.request_guest("vm0", request).unwrap();
    ask(Request::LoadModule { name: "kvm_amd".into(), params: String::new() });
    // A VM of one vCPU that computes.
    ask(Request::spawn("l2", ["/workloads/hostile", "--threads", "1"]));
    for name in ["hog0", "hog1"] {
        hog(&machine, name, "", None);
    }
    start_observer(&machine);
    let vm = eventually("preemptions of the hypervisor's vCPU", || {
        let vm = observe(&machine)["vms"][0].clone();
        let seen = vm["kernel"].is_string() && preemptions(&vm, "preemptible") > 0;
        let nr: u64 =
            ["preemptible", "holder", "irq"].map(|class| preemptions(&vm, class)).iter().sum();
        (seen && nr >= 200).then_some(vm)
    });
    let [preemptible, holder] = ["preemptible", "holder"].map(|class| preemptions(&vm, class));
    eprintln!("preempted: preemptible {preemptible}, holder {holder}");
    assert!(holder * 10 < preemptible, "{vm}");
    machine.shut_down().unwrap();
}
