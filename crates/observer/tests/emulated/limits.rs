// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer where a host, a guest or a disk is not as it should be: it reports each in a
//! sentence, with an exit code. And its export agrees with its report.

use std::time::Duration;

use holdfast_agent::protocol::{Ended, Request};
use holdfast_testbed::machine::{GuestSpec, Machine, PV_FEATURES};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    Lines, counted, end, end_scheduler, eventually, pid, replay, run, shell, spec, start_scheduler,
    wait,
};
use serde_json::Value;

const BTF: &str = "/sys/kernel/btf";
const BUSY: &str = "busy";

#[test]
fn defects_are_reported_and_the_export_agrees_with_the_report() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    // Loads KVM, too.
    eprintln!("a guest without steal time");
    a_guest_without_steal_time(&machine);
    eprintln!("a guest without BTF");
    a_guest_that_has_lost_its_btf(&machine);
    eprintln!("no BTF");
    without_btf(&machine);
    eprintln!("export and report");
    exports_what_it_reports(&machine);
    eprintln!("a full disk");
    a_full_disk_ends_a_recording(&machine);
    machine.shut_down().unwrap();
}

fn holdfast(machine: &Machine, args: &[&str], limit: Duration) -> Ended {
    let program = machine.dist_path("holdfast");
    let argv = std::iter::once(program.as_str()).chain(args.iter().copied());
    machine.request(Request::spawn("once", argv)).unwrap();
    wait(machine, "once", limit)
}

/// Its preemptions are counted, and its classes are not invented.
fn a_guest_without_steal_time(machine: &Machine) {
    let features = PV_FEATURES.into_iter().chain(["-kvm-steal-time"]).map(str::to_owned).collect();
    machine.start_guest(&GuestSpec { vcpus: 1, features, ..GuestSpec::new("dark") }).unwrap();
    let argv = ["/workloads/lock", "--threads", "1", "--counters", "/tmp/counters"];
    machine.request_guest("dark", Request::spawn("lock", argv)).unwrap();
    let why = "no vCPU has a steal-time record";
    let list: Value = serde_json::from_str(&run(machine, &["holdfast", "vms", "--json"])).unwrap();
    let vm = &list["vms"][0];
    assert!(vm["unreadable"] == why && vm["kernel"].is_null(), "{list}");
    assert!(vm["tier"] == "none" && vm["remedy"].is_string(), "{list}");
    let list = run(machine, &["holdfast", "vms"]);
    assert!(list.contains("not readable") && list.contains(why), "{list}");
    let report = run(machine, &["holdfast", "report", "2", "1"]);
    assert!(report.contains(why), "{report}");
    let row = report.lines().find(|line| line.starts_with("dark")).unwrap();
    assert!(row.matches(" - ").count() >= 4, "{report}");
    machine.stop_guest("dark").unwrap();
}

/// The observer and the scheduler read it with its BTF from a file.
fn a_guest_that_has_lost_its_btf(machine: &Machine) {
    let spec = GuestSpec { vcpus: 1, ..GuestSpec::new("lost") };
    machine.start_guest(&spec).unwrap();
    let argv = ["/workloads/lock", "--threads", "1", "--counters", "/tmp/counters"];
    machine.request_guest("lost", Request::spawn("lock", argv)).unwrap();
    // Address of the kernel's BTF, by its own symbol table.
    let symbols = "busybox grep -m 2 -E ' (_text|__start_BTF)$' /proc/kallsyms; \
                   busybox grep 'Kernel code' /proc/iomem; echo done";
    let mut lines = Lines::in_guest(machine, "lost", "symbols", &["/bin/sh", "-c", symbols]);
    let said = lines.until(Duration::from_secs(180), "done");
    let number = |line: &str| {
        let line =
            said.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{said}"));
        let digits = line.trim().split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
        u64::from_str_radix(digits, 16).unwrap()
    };
    let gpa = number("__start_BTF") - number("_text") + number("Kernel code");
    // Its first bytes, in the memory of its VMM.
    let (pid, memory_mib) =
        (pid(|ask| machine.request(ask).unwrap(), &spec.child()), spec.memory_mib);
    let lose = format!(
        "while read range rest; do\n\
             begin=$((0x${{range%-*}})); len=$((0x${{range#*-}} - begin))\n\
             [ $len = $(({memory_mib} << 20)) ] && break\n\
         done < /proc/{pid}/maps\n\
         mem=/proc/{pid}/mem; at=$(((begin + {gpa}) / 4))\n\
         header() {{ dd if=$mem bs=4 skip=$at count=1 2> /dev/null | od -An -tx1; }}\n\
         [ \"$(header)\" = ' 9f eb 01 00' ]\n\
         dd if=/dev/zero of=$mem bs=4 seek=$at count=1 conv=notrunc 2> /dev/null\n\
         [ \"$(header)\" = ' 00 00 00 00' ]"
    );
    shell(machine, &lose);

    let list = |more: &[&str]| -> Value {
        let args = [&["holdfast", "vms", "--json", "--wait", "20"], more].concat();
        let mut list: Value = serde_json::from_str(&run(machine, &args)).unwrap();
        list["vms"][0].take()
    };
    let vm = eventually("a search that ends", || {
        let vm = list(&[]);
        (vm["unreadable"] != "its memory is being searched").then_some(vm)
    });
    let why = vm["unreadable"].as_str().unwrap_or_else(|| panic!("{vm}"));
    assert!(why.contains("no kernel BTF in"), "{vm}");
    assert!(vm["remedy"].as_str().is_some_and(|text| text.contains("(--btf)")), "{vm}");
    assert_eq!(
        (vm["name"].as_str(), vm["vmm"].as_str()),
        (Some("lost"), Some("qemu-system-x86_64"))
    );

    // The host has the same kernel.
    shell(machine, &format!("mkdir /tmp/btf; cp {BTF}/vmlinux /tmp/btf/guest"));
    for given in [&format!("{BTF}/vmlinux"), "/tmp/btf"] {
        let vm = list(&["--btf", given]);
        let kernel = vm["kernel"].as_str().unwrap_or_else(|| panic!("{vm}"));
        assert!(
            kernel.starts_with("Linux ") && vm["vcpus"][0]["words"]["preempt_count"].is_u64(),
            "{vm}"
        );
    }
    start_scheduler(machine, &["--btf", "/tmp/btf"]);
    eventually("a guest that it reads", || {
        (counted(machine).counters["nr_vms_readable"] == 1).then_some(())
    });
    end_scheduler(machine);
    machine.stop_guest("lost").unwrap();
}

/// The messages of each command on a host without types, or without KVM's: nothing is wrong, but it
/// cannot be done there.
fn without_btf(machine: &Machine) {
    const OBSERVERS: [&[&str]; 4] =
        [&["vms"], &["report", "1", "1"], &["record", "1", "-o", "/tmp/none.parquet"], &["export"]];
    let refuses = |args: &[&str], why: &str| {
        let ended = holdfast(machine, args, Duration::from_secs(180));
        assert_eq!(ended.status.code, Some(77), "{args:?}: {ended:?}");
        assert!(ended.stderr_tail.contains(why), "{args:?}: {ended:?}");
    };
    shell(machine, &format!("cp {BTF}/vmlinux /tmp/vmlinux; mount -t tmpfs none {BTF}"));
    let no_btf = "this kernel has no BTF (no /sys/kernel/btf/vmlinux)";
    for args in OBSERVERS.iter().chain([&["spins", "1", "1"].as_slice()]) {
        refuses(args, no_btf);
    }
    let said = top(machine);
    assert!(said.contains(no_btf), "{said}");

    // Only the kernel's own types.
    shell(machine, &format!("cp /tmp/vmlinux {BTF}/vmlinux"));
    for args in OBSERVERS {
        refuses(args, "the kvm module of this kernel has no BTF (no /sys/kernel/btf/kvm)");
    }
    shell(machine, &format!("busybox umount {BTF}; ls {BTF}/kvm; [ ! -e /tmp/none.parquet ]"));
}

/// The output of `top` in a terminal.
fn top(machine: &Machine) -> String {
    let program = machine.dist_path("holdfast");
    shell(
        machine,
        &format!(
            "mkdir -p /dev/pts; mount -t devpts devpts /dev/pts\n\
             printf '#!/bin/sh\\n{program} top; echo exit code $?; sleep 1\\n' > /tmp/top.sh; \
             chmod +x /tmp/top.sh"
        ),
    );
    let served = "sleep 60 | busybox telnetd -i -K -l /tmp/top.sh";
    Lines::of(machine, "top", &["/bin/sh", "-ec", served])
        .until(Duration::from_secs(180), "exit code 77")
}

const PREEMPTED: &str = "holdfast_vcpu_preempted_seconds_count";

/// The value of a metric, over all series that have these labels.
fn metric(page: &str, name: &str, labels: &str) -> f64 {
    let values = series(page, name, labels);
    assert!(!values.is_empty(), "no {name} with {labels}: {page}");
    values.iter().sum()
}

/// The same, zero where there is no series yet.
fn metric_or_none(page: &str, name: &str, labels: &str) -> f64 {
    series(page, name, labels).iter().sum()
}

fn series(page: &str, name: &str, labels: &str) -> Vec<f64> {
    let of = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (found, rest) = series.split_once('{').unwrap_or((series, ""));
        (found == name && rest.contains(labels)).then(|| value.parse::<f64>().unwrap())
    };
    page.lines().filter_map(of).collect()
}

/// The page of metrics.
fn scrape(machine: &Machine) -> String {
    shell(machine, "busybox wget -q -O /tmp/page http://127.0.0.1:9746/metrics; wc -c /tmp/page");
    holdfast_testbed::testing::read(machine, "/tmp/page")
}

/// Both count a VM that they know from one standstill to the next, and see the same.
fn exports_what_it_reports(machine: &Machine) {
    let program = machine.dist_path("holdfast");
    let mut export = Lines::of(machine, "export", &[&program, "export", "--all"]);
    let mut reports = Lines::of(machine, "reports", &[&program, "report", "1", "--json"]);
    export.until(Duration::from_secs(120), "metrics");
    reports.next().unwrap();

    let argv = [machine.workload_path("hostile"), "--threads".into(), "2".into()];
    machine.request(Request::spawn(BUSY, argv)).unwrap();
    for name in ["hog0", "hog1"] {
        machine.request(Request::spawn(name, [machine.workload_path("hog")])).unwrap();
    }
    let signal = |name: &str, signal| {
        machine.request(Request::Kill { name: name.into(), signal }).unwrap();
    };
    let stand_still = || {
        signal(BUSY, libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(3));
    };
    // Each reads the guest for itself, and has seen holders once it has.
    eventually("a page that has holders", || {
        let page = scrape(machine);
        (metric_or_none(&page, PREEMPTED, "class=\"holder\"") > 0.0).then_some(())
    });
    reports.until(Duration::from_secs(180), "\"readable\":true");
    stand_still();
    let before = scrape(machine);
    reports.ready();
    signal(BUSY, libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(8));
    stand_still();
    let page = scrape(machine);
    for name in ["hog0", "hog1"] {
        signal(name, libc::SIGKILL);
    }
    let reports: Vec<Value> =
        reports.ready().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let vcpus = || {
        let vms = reports.iter().flat_map(|report| report["vms"].as_array().unwrap());
        vms.flat_map(|vm| vm["vcpus"].as_array().unwrap())
    };
    let sum = |of: &dyn Fn(&Value) -> u64| vcpus().map(of).sum::<u64>() as f64;

    assert_eq!(metric(&page, "holdfast_lost_events_total", ""), 0.0);
    assert_eq!(metric(&page, "holdfast_sched_ext_info", "scheduler=\"\""), 1.0);
    assert_eq!(metric(&page, "holdfast_vm_info", "readable=\"true\""), 1.0);
    assert_eq!(metric(&page, "holdfast_vm_vcpus", ""), 2.0);
    let exported = |name: &str, labels: &str| {
        metric(&page, name, labels) - metric_or_none(&before, name, labels)
    };
    let mut pairs = vec![(
        "CPU time",
        exported("holdfast_vcpu_run_seconds_total", ""),
        sum(&|vcpu| vcpu["run_ns"].as_u64().unwrap()) / 1e9,
    )];
    for class in ["preemptible", "holder", "irq", "waiter", "head"] {
        let label = format!("class=\"{class}\"");
        let count = exported(PREEMPTED, &label);
        let reported = sum(&|vcpu| vcpu["preemptions"][class].as_u64().unwrap());
        if reported.max(count) >= 50.0 {
            pairs.push((class, count, reported));
            let time = exported("holdfast_vcpu_preempted_seconds_sum", &label);
            let reported = sum(&|vcpu| vcpu["offcpu_ns"][class].as_u64().unwrap()) / 1e9;
            pairs.push((class, time, reported));
        }
    }
    println!("exported and reported: {pairs:?}");
    assert!(pairs.len() > 1, "nothing was preempted: {page}");
    for (what, exported, reported) in &pairs {
        assert!((exported / reported - 1.0).abs() < 0.1, "{what} of {pairs:?}");
    }
    assert!(end(machine, "reports", libc::SIGINT).status.success());
    assert!(end(machine, "export", libc::SIGINT).status.success());
}

/// The recording ends by itself and says why, and its complete part can be read.
fn a_full_disk_ends_a_recording(machine: &Machine) {
    machine.request(Request::Kill { name: BUSY.into(), signal: libc::SIGCONT }).unwrap();
    shell(machine, "mkdir /tmp/small; mount -t tmpfs -o size=2m none /tmp/small");
    let path = "/tmp/small/full.parquet";
    let args = ["record", "-o", path, "--frequency", "10000"];
    let full = holdfast(machine, &args, Duration::from_secs(300));
    println!("{}", full.stderr_tail);
    assert_eq!(full.status.code, Some(1), "{full:?}");
    assert!(full.stderr_tail.contains("events are in /tmp/small/full.parquet"), "{full:?}");
    assert!(full.stderr_tail.contains("No space left on device"), "{full:?}");
    let kept = replay(machine, path, &[]);
    assert_eq!(kept["vms"].as_array().unwrap().len(), 1, "{kept}");
    assert!(kept["lost_events"].as_u64().unwrap() > 0, "{kept}");
    assert_eq!(shell(machine, "ls -A /tmp/small"), "full.parquet\n");
    end(machine, BUSY, libc::SIGKILL);
}
