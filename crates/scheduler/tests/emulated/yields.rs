// SPDX-License-Identifier: GPL-2.0-or-later
//! Directed yields in the lab's host. The scheduler knows KVM's reason for each. The observer sees
//! the exits that ask for them and the result of `yield_to()`, and counts the same. `--monitor`
//! shows them by VM.

use holdfast_agent::protocol::Request;
use holdfast_testbed::machine::{GuestSpec, Machine};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    Lines, counted, counting_spec, end, eventually, load_kvm, of_vcpus, pass, start_scheduler,
};
use serde_json::Value;

const COUNTERS: &str = "/tmp/counters";
const HOGS: [&str; 2] = ["hog0", "hog1"];
/// Host time over which yields are counted.
const WINDOW_S: f64 = 2.0;

fn signal(machine: &Machine, name: &str, signal: i32) {
    machine.request(Request::Kill { name: name.into(), signal }).unwrap();
}

/// Counters of all vCPUs of a VM in reports, each the sum of those since the one before.
fn of_reports(reports: &[Value], pid: u64, counter: &str) -> u64 {
    let vms = reports.iter().flat_map(|report| report["vms"].as_array().unwrap());
    let vcpus = vms.filter(|vm| vm["pid"] == pid).flat_map(|vm| vm["vcpus"].as_array().unwrap());
    vcpus.map(|vcpu| vcpu[counter].as_u64().unwrap()).sum()
}

/// The next report in which the stopped VM no longer runs.
fn at_rest(reports: &mut Lines<'_>, pid: u64) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let report: Value = serde_json::from_str(&reports.next().unwrap()).unwrap();
        assert_eq!(report["lost_events"], 0, "{report}");
        all.push(report);
        if of_reports(&all[all.len() - 1..], pid, "run_ns") == 0 {
            return all;
        }
    }
}

/// Watches with `--monitor`, which has to report yields of a running VM.
fn watch(machine: &Machine, pid: u64) {
    let program = machine.dist_path("scx_holdfast");
    let mut lines = Lines::of(machine, "monitor", &[&program, "--monitor", "1"]);
    let of_vm = format!("  {pid:>8} grace: ");
    // The first report covers no time.
    let shown = (0..5).any(|_| {
        let is_of_vm = |line: &String| line.starts_with(&of_vm);
        lines.find(is_of_vm).expect("it watches until it is ended");
        let [need, preempted, asked] = [(); 3].map(|()| lines.next().unwrap());
        assert!(need.trim_start().starts_with("grace until released, us (log2): ["), "{need}");
        assert!(preempted.trim_start().starts_with("preempted: holder "), "{preempted}");
        assert!(asked.trim_start().starts_with("yields at pause exits: holder "), "{asked}");
        let mut counts = asked.split([' ', ',', ';']).filter_map(|word| word.parse::<u64>().ok());
        counts.any(|n| n > 0)
    });
    assert!(shown, "no yield in five reports");
    let ended = end(machine, "monitor", libc::SIGINT);
    assert!(ended.status.success(), "{ended:?}");
}

/// Yields by reason, requested and granted, and the observer's counts meanwhile.
#[derive(Debug)]
struct Yields {
    pause: [u64; 2],
    kick: [u64; 2],
    ipi: [u64; 2],
    other: u64,
    pause_exits: u64,
    kicks: u64,
    yield_hypercalls: u64,
    done: u64,
}

/// Counts for a guest that contends for locks and sends interrupts to preempted siblings.
fn count(machine: &Machine, reports: &mut Lines<'_>, pause_exits: bool) -> Yields {
    let name = format!("pause-exits-{pause_exits}");
    let mut guest = GuestSpec { pause_exits, ..GuestSpec::new(&name) };
    // With it a shootdown leaves out preempted vCPUs.
    let feature = guest.features.iter_mut().find(|f| f.ends_with("kvm-pv-tlb-flush")).unwrap();
    feature.replace_range(..1, "-");
    machine.start_guest(&guest).unwrap();
    // Enough pages that siblings are preempted in user code, too.
    let argv = ["/workloads/tlb", "--threads", "4", "--pages", "128", "--counters", COUNTERS];
    machine.request_guest(&name, Request::spawn("work", argv)).unwrap();
    let pid = eventually("a VM whose vCPUs are all read", || {
        let report: Value = serde_json::from_str(&reports.next()?).unwrap();
        let vm = report["vms"].as_array().unwrap().last()?;
        let vcpus = vm["vcpus"].as_array().unwrap();
        let is_read = vcpus.len() == 4 && vcpus.iter().all(|vcpu| vcpu["readable"] == true);
        vm["pid"].as_u64().filter(|_| is_read)
    });
    // Nothing yields between the two requests.
    let child = guest.child();
    signal(machine, &child, libc::SIGSTOP);
    at_rest(reports, pid);
    counted(machine);
    signal(machine, &child, libc::SIGCONT);
    pass(machine, WINDOW_S);
    signal(machine, &child, libc::SIGSTOP);
    let seen = at_rest(reports, pid);
    let scheduler = counted(machine);
    if pause_exits {
        signal(machine, &child, libc::SIGCONT);
        watch(machine, pid);
    }
    machine.stop_guest(&name).unwrap();

    let by = |reason: &str| {
        let of = |outcome: &str| of_vcpus(&scheduler, &format!("nr_{reason}_{outcome}"));
        let granted = of("to_holder") + of("to_call_pending") + of("to_candidate");
        [granted + of("refused"), granted]
    };
    Yields {
        pause: by("pause"),
        kick: by("kick"),
        ipi: by("ipi"),
        other: by("other")[0],
        pause_exits: of_reports(&seen, pid, "pause_exits"),
        kicks: of_reports(&seen, pid, "kicks"),
        yield_hypercalls: of_reports(&seen, pid, "yield_hypercalls"),
        done: of_reports(&seen, pid, "yields_done"),
    }
}

#[test]
fn each_yield_is_counted_by_its_reason() {
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    for hog in HOGS {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
        signal(&machine, hog, libc::SIGSTOP);
    }
    load_kvm(&machine);
    let program = machine.dist_path("holdfast");
    let mut reports = Lines::of(&machine, "reports", &[&program, "report", "1", "--json"]);
    reports.next().unwrap();
    // Other mechanisms that keep siblings from waiting would leave little to yield for.
    start_scheduler(&machine, &["--no-grace", "--no-waiters", "--no-resume-first"]);
    for hog in HOGS {
        signal(&machine, hog, libc::SIGCONT);
    }
    let [without, with] = [false, true].map(|pause_exits| {
        let counted = count(&machine, &mut reports, pause_exits);
        println!("pause exits {pause_exits}: {counted:?}");
        counted
    });
    // With pause exits waiters seldom halt, and a window may have no kick.
    assert!(without.kick[0] > 0, "{without:?}");
    for yields in [&without, &with] {
        let granted = yields.pause[1] + yields.ipi[1];
        let ratio = granted as f64 / yields.done as f64;
        assert!((ratio - 1.0).abs() < 0.1, "{granted} granted: {yields:?}");
        // KVM asks for none of these if the target has a CPU.
        assert!(yields.kick[0] <= yields.kicks, "{yields:?}");
        // A vCPU that has released a lock keeps its CPU.
        assert_eq!(yields.kick[1], 0, "{yields:?}");
        assert!(yields.ipi[0] <= yields.yield_hypercalls, "{yields:?}");
        assert_eq!(yields.other, 0, "{yields:?}");
    }
    assert_eq!((without.pause[0], without.pause_exits), (0, 0), "{without:?}");
    // A vCPU that spins for an answer is trusted.
    assert!(without.ipi[1] > 0, "{without:?}");
    assert!(with.pause[1] > 0 && with.pause_exits > 0, "{with:?}");
    machine.shut_down().unwrap();
}
