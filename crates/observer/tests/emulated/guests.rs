// SPDX-License-Identifier: GPL-2.0-or-later
//! Holdfast in the lab's host. It reads guests as they see themselves. Neither a scheduler that is
//! killed nor guests that are reset, grown and killed leave anything wrong behind.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};
use holdfast_testbed::machine::{GuestSpec, Machine, MachineSpec, Topology};
use holdfast_testbed::packages::Kernel;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    SCHEDULER, counted, end_scheduler, eventually, is_in_state, kill_scheduler, load_kvm, observe,
    of_vcpus, pass, preemptions, replay, run, shell, spec, start_observer, start_scheduler, wait,
};
use serde_json::Value;

const HOGS: [&str; 2] = ["hog0", "hog1"];

/// For guests in two sockets.
const VCPUS: u32 = 4;

fn boot(guest_kernels: Vec<Kernel>) -> Machine {
    Machine::boot(&MachineSpec { guest_kernels, ..spec() }, &Progress::stderr()).unwrap()
}

/// Keeps every vCPU of a guest busy.
fn contend(machine: &Machine, guest: &str, threads: &str) {
    let argv = ["/workloads/lock", "--threads", threads, "--counters", "/tmp/counters"];
    machine.request_guest(guest, Request::spawn("lock", argv)).unwrap();
}

fn hogs(machine: &Machine, signal: i32) {
    for name in HOGS {
        machine.request(Request::Kill { name: name.into(), signal }).unwrap();
    }
}

/// The only VM, once this many of its vCPUs are read.
fn readable_vm(machine: &Machine, vcpus: usize, release: &str) -> Value {
    eventually(&format!("{vcpus} readable vCPUs of {release}"), || {
        let sample = observe(machine);
        let vms = sample["vms"].as_array().unwrap();
        let [vm] = vms.as_slice() else { return None };
        let of_kernel = vm["kernel"].as_str().is_some_and(|kernel| kernel.contains(release));
        (of_kernel && nr_readable(vm) == vcpus).then(|| vm.clone())
    })
}

fn nr_readable(vm: &Value) -> usize {
    let vcpus = vm["vcpus"].as_array().unwrap();
    vcpus.iter().filter(|vcpu| vcpu["readable"] == true).count()
}

#[test]
fn guests_of_every_kernel_are_read_where_they_say_their_variables_are() {
    let machine = boot(Kernel::ALL.to_vec());
    are_read(&machine, &Kernel::ALL);
    machine.shut_down().unwrap();
}

#[test]
fn guests_are_observed_on_a_host_of_debian_12() {
    an_older_host(Kernel::Linux6_1);
}

#[test]
fn guests_are_observed_on_a_host_of_debian_13() {
    an_older_host(Kernel::Linux6_12);
}

/// Neither kernel has sched_ext; the observer needs none.
fn an_older_host(host_kernel: Kernel) {
    let guest_kernels = vec![Kernel::Linux6_1, Kernel::Linux6_12, Kernel::Linux7];
    let spec = MachineSpec { host_kernel, guest_kernels: guest_kernels.clone(), ..spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    are_read(&machine, &guest_kernels);

    machine.start_guest(&GuestSpec { vcpus: 2, ..GuestSpec::new("vm0") }).unwrap();
    let report = run(&machine, &["holdfast", "report", "1", "2", "--json"]);
    let report: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_eq!(nr_readable(&report["vms"][0]), 2, "{report}");
    run(&machine, &["holdfast", "record", "-o", "/tmp/host.parquet", "1"]);
    let replayed = replay(&machine, "/tmp/host.parquet", &[]);
    assert_eq!(replayed["vms"][0]["name"], "vm0", "{replayed}");
    run(&machine, &["holdfast", "spins", "1", "1"]);
    machine.shut_down().unwrap();
}

/// Guests of these kernels, one after the other. Their vCPUs are in two sockets of three, so that
/// APIC ids have a gap. For one of them KVM has more memory slots than hold memory that a kernel
/// lies in.
fn are_read(machine: &Machine, kernels: &[Kernel]) {
    for &kernel in kernels {
        let release = match kernel {
            Kernel::Linux5_10 => "5.10.",
            Kernel::Linux6_1 => "6.1.",
            Kernel::Linux6_12 => "6.12.",
            Kernel::Linux7 | Kernel::Backports => "7.",
        };
        let topology = Some(Topology { sockets: 2, cores: 3, threads: 1 });
        // The kernel takes long to find that it cannot use them.
        let dimms = if kernel == Kernel::Linux7 { 40 } else { 0 };
        let guest = GuestSpec { kernel, vcpus: VCPUS, topology, dimms, ..GuestSpec::new("vm0") };
        machine.start_guest(&guest).unwrap();
        // The guest's own symbol table and page tables are the witness, read while it is idle.
        let symbols = match kernel {
            Kernel::Linux6_12 => ["steal_time", "qnodes", "pcpu_hot", "pcpu_hot"],
            _ => ["steal_time", "qnodes", "__preempt_count", "current_task"],
        };
        let request = Request::Witness { symbols: symbols.map(str::to_owned).to_vec() };
        let Reply::Witness(witness) = machine.request_guest("vm0", request).unwrap() else {
            panic!("not a witness")
        };
        assert_eq!(witness.cpus.len(), VCPUS as usize);
        contend(machine, "vm0", &VCPUS.to_string());

        let list: Value =
            serde_json::from_str(&run(machine, &["holdfast", "vms", "--json", "--wait", "30"]))
                .unwrap();
        let vm = &list["vms"][0];
        assert!(vm["kernel"].as_str().is_some_and(|k| k.contains(release)), "{list}");
        assert_eq!(vm["tier"], if release == "5.10." { "queue" } else { "exact" }, "{list}");
        let vcpus = vm["vcpus"].as_array().unwrap();
        let numbers: Vec<_> = vcpus.iter().map(|vcpu| vcpu["vcpu"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3], "{list}");

        for (vcpu, cpu) in vcpus.iter().zip(&witness.cpus) {
            let at = |symbol: &str| cpu.symbols[symbol];
            // struct pcpu_hot begins with current_task and preempt_count.
            let preempt_count = at(symbols[2]) + if kernel == Kernel::Linux6_12 { 8 } else { 0 };
            let expected = BTreeMap::from([
                ("current_task".to_owned(), Value::from(at(symbols[3]))),
                ("preempt_count".to_owned(), Value::from(preempt_count)),
                ("qnodes".to_owned(), Value::from(at("qnodes"))),
            ]);
            let read: BTreeMap<String, Value> =
                serde_json::from_value(vcpu["words"].clone()).unwrap();
            assert_eq!(read, expected, "{release}, vCPU {}", vcpu["vcpu"]);
            assert_eq!(vcpu["steal_time_gpa"], at("steal_time"));
        }
        machine.stop_guest("vm0").unwrap();
    }
}

/// The first test to fail where a new kernel declares, names or packs something differently.
#[test]
fn the_newest_kernel_is_scheduled_and_read() {
    let kernel = Kernel::Backports;
    let spec = MachineSpec { host_kernel: kernel, guest_kernels: vec![kernel], ..spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    load_kvm(&machine);
    let said = run(&machine, &["holdfast", "doctor"]);
    println!("{said}");
    for name in ["discovery", "observer", "spins", "scheduler"] {
        let line = format!("ok    {name}-programs ");
        assert!(said.lines().any(|said| said.starts_with(&line)), "{name}: {said}");
    }
    for conclusion in ["VMs can be observed here.", "scx_holdfast can run here."] {
        assert!(said.contains(conclusion), "{conclusion}: {said}");
    }
    start_observer(&machine);
    start_scheduler(&machine, &[]);
    machine.start_guest(&GuestSpec { kernel, ..GuestSpec::new("vm0") }).unwrap();
    contend(&machine, "vm0", "4");
    for hog in HOGS {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    readable_vm(&machine, 4, "7.");
    // It is no other scheduler to its own doctor.
    let said = run(&machine, &["holdfast", "doctor", "--for", "schedule"]);
    assert!(said.contains("scx_holdfast runs here: holdfast"), "{said}");
    for counter in ["nr_extended", "nr_preempted_preemptible"] {
        eventually(counter, || (of_vcpus(&counted(&machine), counter) > 0).then_some(()));
    }
    end_scheduler(&machine);
    for class in ["preemptible", "holder"] {
        eventually(&format!("{class} vCPUs preempted by the stock scheduler"), || {
            (preemptions(&readable_vm(&machine, 4, "7."), class) > 0).then_some(())
        });
    }
    machine.shut_down().unwrap();
}

#[test]
fn it_ends_as_asked_with_any_reader_of_its_log() {
    let machine = boot(Vec::new());
    let program = machine.dist_path("scx_holdfast");
    let stuck = "mkfifo /tmp/log; sleep 1000 < /tmp/log & exec 3> /tmp/log; \
                 dd if=/dev/zero of=/tmp/log bs=4096 count=100 oflag=nonblock 2>/dev/null || true;";
    for (reader, before, after) in [("gone", "", "2>&1 | true"), ("stuck", stuck, "2>&3")] {
        let command = format!(
            "{before} {{ {program} --no-guest-knowledge; echo $? > /tmp/{reader}; }} {after}"
        );
        machine.request(Request::spawn(reader, ["/bin/sh", "-c", &command])).unwrap();
        eventually(reader, || is_in_state(&machine, "enabled").then_some(()));
        shell(&machine, "kill -TERM $(ps | awk '/[s]cx_holdfast --no/ && !/sh -c/ {print $1}')");
        eventually(reader, || is_in_state(&machine, "disabled").then_some(()));
        let code = shell(
            &machine,
            &format!("until [ -s /tmp/{reader} ]; do sleep 1; done; cat /tmp/{reader}"),
        );
        assert_eq!(code.trim(), "0", "{reader}");
    }

    start_scheduler(&machine, &["--no-guest-knowledge"]);
    let (path, data) = ("/proc/sysrq-trigger".into(), b"S".to_vec());
    machine.request(Request::WriteFile { path, data, mode: 0o200 }).unwrap();
    let ended = wait(&machine, SCHEDULER, Duration::from_secs(120));
    assert!(ended.status.success() && ended.stderr_tail.contains("sysrq"), "{ended:?}");
    machine.shut_down().unwrap();
}

#[test]
fn host_and_reader_survive_kills_resets_and_hotplug() {
    let machine = boot(vec![Kernel::Linux7, Kernel::Linux6_1]);
    let guest = GuestSpec { vcpus: 2, max_vcpus: 3, ..GuestSpec::new("vm0") };
    machine.start_guest(&guest).unwrap();
    contend(&machine, "vm0", "2");
    for hog in HOGS {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    start_observer(&machine);
    start_scheduler(&machine, &[]);
    readable_vm(&machine, 2, "7.");

    // The scheduler is killed: the host returns to its own, and the guest does not notice.
    kill_scheduler(&machine);
    let vm = readable_vm(&machine, 2, "7.");
    let before = preemptions(&vm, "preemptible");
    eventually("preemptions under the stock scheduler", || {
        (preemptions(&readable_vm(&machine, 2, "7."), "preemptible") > before).then_some(())
    });
    start_scheduler(&machine, &[]);

    // Another boot of the same VM: other addresses, and a moment at which it cannot be read.
    // Booting takes a while; hogs would make it three times as long.
    hogs(&machine, libc::SIGSTOP);
    machine.reset_guest("vm0").unwrap();
    hogs(&machine, libc::SIGCONT);
    contend(&machine, "vm0", "2");
    let vm = readable_vm(&machine, 2, "7.");
    let unknown = preemptions(&vm, "unknown");
    let known = preemptions(&vm, "preemptible");
    let vm = eventually("preemptions after the reset", || {
        let vm = readable_vm(&machine, 2, "7.");
        (preemptions(&vm, "preemptible") > known + 20).then_some(vm)
    });
    assert!(preemptions(&vm, "unknown") <= unknown + 2, "{vm}");

    // One more vCPU.
    machine.plug_vcpus("vm0", 3).unwrap();
    let online = |data: &str| Request::WriteFile {
        path: "/sys/devices/system/cpu/cpu2/online".into(),
        data: data.into(),
        mode: 0o644,
    };
    eventually("the guest's third CPU", || {
        machine.request_guest("vm0", online("1")).is_ok().then_some(())
    });
    readable_vm(&machine, 3, "7.");

    // The guest does without it, which is no news of the others. This shows only if the vCPU is
    // read between giving up its record and sleeping for good.
    for _ in 0..2 {
        machine.request_guest("vm0", online("0")).unwrap();
        pass(&machine, 0.3);
        let readable = eventually("two or three readable vCPUs", || {
            let readable = nr_readable(&observe(&machine)["vms"][0]);
            (readable >= 2).then_some(readable)
        });
        println!("without its third CPU: {readable} readable vCPUs");
        machine.request_guest("vm0", online("1")).unwrap();
        readable_vm(&machine, 3, "7.");
    }

    // The VM is killed under load, and another kernel runs in the next VM.
    machine.stop_guest("vm0").unwrap();
    eventually("the VM to be forgotten", || {
        observe(&machine)["vms"].as_array().unwrap().is_empty().then_some(())
    });
    let other = GuestSpec { kernel: Kernel::Linux6_1, vcpus: 2, ..GuestSpec::new("vm1") };
    hogs(&machine, libc::SIGSTOP);
    machine.start_guest(&other).unwrap();
    hogs(&machine, libc::SIGCONT);
    contend(&machine, "vm1", "2");
    readable_vm(&machine, 2, "6.1.");

    assert_eq!(observe(&machine)["lost_events"], 0);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}
