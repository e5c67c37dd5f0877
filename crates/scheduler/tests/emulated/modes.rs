// SPDX-License-Identifier: GPL-2.0-or-later
//! The lock-holder preemption that is left under `scx_holdfast`, and what `spins` reports of it.

use std::time::Duration;

use holdfast_agent::protocol::{Group, Request};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    contend, counted, counting_spec, eventually_within, observe, start_guest, start_observer,
    start_scheduler,
};
use serde_json::Value;

const HOGS: [&str; 2] = ["hog0", "hog1"];

/// An emulated host is slow.
const LIMIT: Duration = Duration::from_secs(240);

/// Window of each, by the host's clock.
const WINDOW_NS: u64 = 4_000_000_000;

#[test]
fn holders_are_hardly_kept_off_the_cpu_and_the_second_mode_is_named_where_there_is_one() {
    let spec = MachineSpec { holdfast_in_guests: true, ..counting_spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    start_guest(&machine, "alone", 2);
    let mut spins = contend(&machine, "alone", 2, &["2"]);
    eprintln!("a guest alone");
    let alone = spins.until(LIMIT, "mode");
    machine.stop_guest("alone").unwrap();

    // As under libvirt: a group for the guest, with one for each vCPU in it, and a group for each
    // of the others.
    let group = |name: &str, group: &str, nr_vcpus: u32| {
        let vcpus = (0..nr_vcpus).map(|vcpu| (format!("CPU {vcpu}/"), format!("vcpu{vcpu}")));
        let (name, group, weight) = (name.into(), group.into(), 100 * nr_vcpus.max(1));
        let group = Group { name, group, weight, threads: vcpus.collect() };
        machine.request(Request::Group(group)).unwrap();
    };

    start_observer(&machine);
    start_guest(&machine, "vm0", 4);
    let mut spins = contend(&machine, "vm0", 4, &["2"]);
    group("guest-vm0", "vm0/libvirt", 4);
    for name in HOGS {
        machine.request(Request::spawn(name, [machine.workload_path("hog")])).unwrap();
        group(name, name, 0);
    }
    eprintln!("in company");
    spins.ready();
    spins.next().unwrap();
    let (stock_off, stock_cpus) = holders_off(&machine);
    let stock = spins.until(LIMIT, "mode");

    eprintln!("under scx_holdfast");
    start_scheduler(&machine, &[]);
    eventually_within(LIMIT, "scx_holdfast reads the guest", || {
        (counted(&machine).counters["nr_vms_readable"] == 1).then_some(())
    });
    let (held_off, held_cpus) = holders_off(&machine);

    println!("alone: {alone}\nstock: {stock}");
    println!(
        "holders off the CPU, of each CPU second: stock {stock_off:.4}, holdfast {held_off:.4}\n\
         CPUs of the VM: stock {stock_cpus:.2}, holdfast {held_cpus:.2}"
    );
    assert!(stock.contains("second mode: ") && stock.contains("lock-holder preemption"), "{stock}");
    assert!(alone.contains("no second mode "), "{alone}");
    // docs/results.md has at most 0.038 of stock's for any workload.
    assert!(stock_off > 0.05, "{stock_off}");
    assert!(held_off < stock_off * 0.05, "{held_off} and {stock_off}");
    // The group's weight is two thirds of all, on two CPUs.
    assert!((held_cpus - 4.0 / 3.0).abs() < 0.1, "{held_cpus}");
    machine.shut_down().unwrap();
}

/// Over a window: the time that preempted lock holders are off the CPU, for each CPU second of the
/// VM, and the CPUs that the VM has.
fn holders_off(machine: &Machine) -> (f64, f64) {
    let sums = |sample: &Value| {
        // A VM that has ended is reported once more, and comes first.
        let vm = sample["vms"].as_array().unwrap().last().unwrap();
        let vcpus = vm["vcpus"].as_array().unwrap();
        let off = vcpus.iter().map(|vcpu| vcpu["offcpu_ns"]["holder"].as_u64().unwrap());
        let ran = vcpus.iter().map(|vcpu| vcpu["run_ns"].as_u64().unwrap());
        (sample["interval_ns"].as_u64().unwrap(), off.sum::<u64>(), ran.sum::<u64>())
    };
    let first = sums(&observe(machine));
    eventually_within(LIMIT, "a window", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = sums(&observe(machine));
        let (passed, off, ran) = (now.0 - first.0, now.1 - first.1, now.2 - first.2);
        let seen = (off as f64 / ran.max(1) as f64, ran as f64 / passed as f64);
        (passed >= WINDOW_NS).then_some(seen)
    })
}
