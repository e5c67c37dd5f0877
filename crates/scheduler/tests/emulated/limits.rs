// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_holdfast` where a host or a guest is not as it should be: it refuses to load and says what
//! to do, and treats an unreadable guest as ordinary tasks.

use std::time::Duration;

use holdfast_agent::protocol::{CpuTimes, Reply, Request};
use holdfast_testbed::machine::{GuestSpec, Machine, MachineSpec, PV_FEATURES};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::scheduler::Counted;
use holdfast_testbed::testing::{
    assert_schedules, counted, counting_spec, end, end_scheduler, eventually, is_in_state,
    load_kvm, pass, pin, read, shell, spec, start_scheduler, wait,
};
use serde_json::Value;

const BTF: &str = "/sys/kernel/btf";
const LOADED: &str = "/sys/kernel/sched_ext/root/ops";
const CPUS: u32 = 3;
const HOGS: [&str; 3] = ["hog0", "hog1", "hog2"];
/// Host time over which decisions are counted, and shares measured.
const WINDOW_S: f64 = 2.0;
/// Half a CPU, in percent, and by how much a share may be off it: two slices of the window.
const HALF: f64 = 50.0;
const TOLERANCE: f64 = 0.4;

#[test]
fn it_refuses_what_it_cannot_do_and_leaves_alone_what_it_cannot_read() {
    let spec = MachineSpec { cpus: CPUS, ..counting_spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    eprintln!("no BTF");
    without_btf(&machine);
    load_kvm(&machine);
    start_scheduler(&machine, &[]);
    eprintln!("two schedulers");
    beside_another(&machine);
    eprintln!("a guest that cannot be read");
    a_dark_guest(&machine);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// Starts a scheduler that must not load, and must say these words.
fn refuses(machine: &Machine, words: &[&str]) {
    machine.request(Request::spawn("refused", [machine.dist_path("scx_holdfast")])).unwrap();
    let ended = wait(machine, "refused", Duration::from_secs(180));
    assert_eq!(ended.status.code, Some(77), "{ended:?}");
    for word in words {
        assert!(ended.stderr_tail.contains(word), "no `{word}`: {ended:?}");
    }
}

#[test]
fn cpus_isolated_at_boot_are_reported_by_the_checks_or_the_kernel() {
    const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
    const CHECK: &str = "isolated-cpus";
    let spec = MachineSpec { cmdline: "isolcpus=1".into(), ..spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    load_kvm(&machine);
    refuses(&machine, &["isolcpus= (CPUs 1)", "To do: boot without isolcpus="]);

    let doctor = [&machine.dist_path("holdfast"), "doctor", "--json"];
    machine.request(Request::spawn("doctor", doctor)).unwrap();
    let ended = wait(&machine, "doctor", Duration::from_secs(240));
    assert_eq!(ended.status.code, Some(1), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout_tail).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let not_ok =
        checks.iter().filter(|check| !["ok", "warn"].contains(&check["verdict"].as_str().unwrap()));
    let not_ok: Vec<_> = not_ok.map(|check| (&check["name"], &check["verdict"])).collect();
    println!("{not_ok:?}");
    assert!(not_ok.contains(&(&CHECK.into(), &"fail".into())), "{report}");
    assert!(not_ok.contains(&(&"scheduler-programs".into(), &"skip".into())), "{report}");
    assert_eq!(not_ok.iter().filter(|(_, verdict)| *verdict == "fail").count(), 1, "{report}");

    // Where the check sees nothing the kernel refuses it, and the kernel's own words are reported.
    shell(&machine, &format!("busybox mount --bind /dev/null {ISOLATED}"));
    refuses(
        &machine,
        &[
            "Failed to attach",
            "sched_ext: Not compatible with \"isolcpus=\"",
            "To do: boot without",
        ],
    );
    assert!(is_in_state(&machine, "disabled"));
    machine.shut_down().unwrap();
}

fn without_btf(machine: &Machine) {
    shell(machine, &format!("mount -t tmpfs none {BTF}"));
    refuses(machine, &["vmlinux is missing", "To do: boot a kernel with CONFIG_DEBUG_INFO_BTF=y"]);
    assert!(is_in_state(machine, "disabled"));
    shell(machine, &format!("busybox umount {BTF}"));
}

fn beside_another(machine: &Machine) {
    let name = read(machine, LOADED);
    assert!(name.starts_with("holdfast"), "{name}");
    refuses(machine, &[name.trim(), "takes one scheduler at a time", "To do: end it first"]);
    assert_schedules(machine);
    assert_eq!(read(machine, LOADED), name);
}

fn until_known(machine: &Machine, gauge: &str) {
    eventually(gauge, || (counted(machine).counters[gauge] == 1).then_some(()));
}

/// The scheduler's decisions about vCPUs in a window.
fn decided(machine: &Machine) -> Counted {
    counted(machine);
    pass(machine, WINDOW_S);
    counted(machine)
}

/// The guest has no steal time, by which guests are found.
fn a_dark_guest(machine: &Machine) {
    let features = PV_FEATURES.into_iter().chain(["-kvm-steal-time"]).map(str::to_owned).collect();
    let guest = GuestSpec { vcpus: 1, features, ..GuestSpec::new("dark") };
    machine.start_guest(&guest).unwrap();
    let argv = ["/workloads/lock", "--threads", "1", "--counters", "/tmp/counters"];
    machine.request_guest("dark", Request::spawn("lock", argv)).unwrap();
    until_known(machine, "nr_vms_unreadable");
    for hog in HOGS {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    // One CPU for the guest and a loop, the others for the rest.
    let child = guest.child();
    let [beside, rest @ ..] = HOGS;
    pin(machine, &[&child, beside], "0");
    pin(machine, &rest, "1-2");

    let sample = || -> CpuTimes {
        let names = [child.as_str(), beside].map(str::to_owned).to_vec();
        match machine.request(Request::CpuTimes { names }).unwrap() {
            Reply::CpuTimes(times) => times,
            other => panic!("{other:?}"),
        }
    };
    // Earlier lag is made up for first.
    pass(machine, 1.0);
    let before = sample();
    let did = decided(machine);
    let after = sample();
    let ran = |times: &CpuTimes, name: &str| -> u64 {
        times.tasks.iter().filter(|task| task.name == name).map(|task| task.run_ns).sum()
    };
    let [dark, loops] = [child.as_str(), beside].map(|name| ran(&after, name) - ran(&before, name));
    let share = 100.0 * dark as f64 / (dark + loops) as f64;
    println!("the guest has {share:.2} % of a CPU that it shares with a loop");
    assert!((share - HALF).abs() < TOLERANCE, "{share} %");
    let decisions = did.counters["vcpus"].as_object().unwrap();
    let counts = decisions.iter().filter_map(|(name, n)| Some((name, n.as_u64()?)));
    let some: Vec<_> = counts.filter(|(_, n)| *n > 0).collect();
    assert!(some.is_empty(), "decisions about a guest that cannot be read: {some:?}");
    for hog in HOGS {
        end(machine, hog, libc::SIGKILL);
    }
    machine.stop_guest("dark").unwrap();
    assert_schedules(machine);
}
