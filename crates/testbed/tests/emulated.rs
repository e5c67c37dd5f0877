// SPDX-License-Identifier: GPL-2.0-or-later
//! The lab's host and its guests, booted for real.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Hello, Reply, Request, Role};
use holdfast_testbed::Error;
use holdfast_testbed::machine::{Accel, GuestSpec, Machine, MachineSpec};
use holdfast_testbed::packages::Kernel;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    counting_spec, end, eventually, eventually_within, hog, read, shell, spec, uptime,
};
use holdfast_testbed::workloads;
use serde_json::json;

fn write(path: &str, data: &str) -> Request {
    Request::WriteFile { path: path.into(), data: data.into(), mode: 0o644 }
}

/// Guest-physical address of per-CPU symbols, by CPU.
fn witness(machine: &Machine, guest: &str, symbols: &[&str]) -> Vec<BTreeMap<String, u64>> {
    let symbols = symbols.iter().map(|&s| s.to_owned()).collect();
    match machine.request_guest(guest, Request::Witness { symbols }).unwrap() {
        Reply::Witness(witness) => witness.cpus.into_iter().map(|c| c.symbols).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn guests_of_every_kernel_run_and_know_where_their_variables_are() {
    let spec = MachineSpec { guest_kernels: Kernel::ALL.to_vec(), ..spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    let hello = machine.hello();
    assert_eq!((hello.role, hello.nr_cpus), (Role::Host, 2));
    // Debian's current build can be patched.
    let qemu = &machine.provenance().qemu;
    assert!(qemu.ends_with("(patched)"), "{qemu}");
    let config = read(&machine, &format!("/boot/config-{}", hello.kernel_release));
    assert!(config.contains("CONFIG_SCHED_CLASS_EXT=y"));

    for (kernel, release, symbol) in [
        (Kernel::Linux5_10, "5.10.", "__preempt_count"),
        (Kernel::Linux6_1, "6.1.", "__preempt_count"),
        (Kernel::Linux6_12, "6.12.", "pcpu_hot"),
        (Kernel::Linux7, "7.", "__preempt_count"),
        (Kernel::Backports, "7.", "__preempt_count"),
    ] {
        let guest = GuestSpec { kernel, vcpus: 2, ..GuestSpec::new("vm0") };
        let started = Instant::now();
        let hello = machine.start_guest(&guest).unwrap();
        eprintln!("{}: {:?}", hello.kernel_release, started.elapsed());
        assert!(hello.kernel_release.starts_with(release), "{}", hello.kernel_release);
        assert_eq!((hello.role, hello.nr_cpus), (Role::Guest, 2));
        let found = witness(&machine, "vm0", &[symbol, "steal_time"]);
        assert_eq!(found.len(), 2);
        assert_ne!(found[0][symbol], found[1][symbol]);
        let memory = u64::from(guest.memory_mib) << 20;
        assert!(found.iter().flat_map(|c| c.values()).all(|gpa| *gpa < memory), "{found:x?}");
        // The same distance on every CPU: they are copies of one area.
        let distance = |c: &BTreeMap<String, u64>| c["steal_time"].wrapping_sub(c[symbol]);
        assert_eq!(distance(&found[0]), distance(&found[1]));
        machine.stop_guest("vm0").unwrap();
    }
    machine.shut_down().unwrap();
}

#[test]
fn every_workload_has_what_it_needs_in_a_guest() {
    const LIMIT: Duration = Duration::from_secs(600);
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    machine.start_guest(&GuestSpec { vcpus: 2, ..GuestSpec::new("vm0") }).unwrap();
    let ask = |request| machine.request_guest("vm0", request);
    for workload in workloads::IN_GUESTS {
        let counters = format!("/tmp/{workload}.counters");
        let argv = [machine.workload_path(workload), "--counters".into(), counters.clone()];
        ask(Request::spawn(workload, argv)).unwrap();
        // Each of the build's sources once: their includes differ.
        let enough = if workload == "build" { 14_000 } else { 1 };
        let end = |signal| {
            let _ = ask(Request::Kill { name: workload.into(), signal });
            ask(Request::Wait { name: workload.into(), timeout_ms: 240_000 }).unwrap()
        };
        eventually_within(LIMIT, workload, || {
            let status = ask(Request::Status { name: workload.into() }).unwrap();
            if !matches!(status, Reply::Status { running: true, .. }) {
                panic!("{workload}: {:?}", end(0));
            }
            let counted = ask(Request::Counters { path: counters.clone() });
            matches!(counted, Ok(Reply::Counters(c)) if c.ops >= enough).then_some(())
        });
        let Reply::Wait(ended) = end(libc::SIGTERM) else { panic!("{workload} goes on") };
        assert!(ended.status.success(), "{workload}: {ended:?}");
    }
    machine.shut_down().unwrap();
}

/// Endless loops on this machine, for as long as this lives.
struct Hogs(Vec<Child>);

impl Hogs {
    fn new(nr: usize) -> Self {
        let hog = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Hogs((0..nr).map(hog).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

#[test]
fn a_clock_that_counts_instructions_does_not_go_by_the_machines() {
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    let qemu = &machine.provenance().qemu;
    assert!(qemu.ends_with("instructions counted"), "{qemu}");
    let took = || {
        let begin = uptime(&machine);
        shell(&machine, "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done");
        uptime(&machine) - begin
    };
    // Then the kernel's work after boot is over.
    took();
    let alone = took();
    // The machine's CPUs, three times over: the host takes longer, but no more of its own time.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let hogs = Hogs::new(3 * cpus);
    let beside = took();
    drop(hogs);
    eprintln!("{alone:.2} s alone, {beside:.2} s on a machine that is busy");
    assert!((beside / alone - 1.0).abs() < 0.1, "{alone} s, {beside} s");
    // Each has every other turn of the host's CPUs.
    hog(&machine, "hog", "", None);
    let shared = took();
    eprintln!("{shared:.2} s while the host's other CPU is busy");
    assert!((shared / alone - 2.0).abs() < 0.4, "{alone} s, {shared} s");
    end(&machine, "hog", libc::SIGKILL);
    machine.shut_down().unwrap();
}

#[test]
fn a_guest_can_be_measured_reset_grown_and_crashed_and_so_can_the_host() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    let guest = GuestSpec { vcpus: 4, max_vcpus: 5, ..GuestSpec::new("vm0") };
    machine.start_guest(&guest).unwrap();

    // Without pause exits spinners stay in the guest; with them they leave it.
    assert_eq!(pauses_that_exit(&machine), 0);
    let other = GuestSpec { pause_exits: true, ..GuestSpec::new("vm1") };
    let error = machine.start_guest(&other).unwrap_err().to_string();
    assert!(error.contains("all guests that run at the same time"), "{error}");
    machine.stop_guest("vm0").unwrap();
    let hello = machine.start_guest(&GuestSpec { pause_exits: true, ..guest }).unwrap();
    assert_eq!(hello.nr_cpus, 4);
    let exits = pauses_that_exit(&machine);
    assert!(exits > 100, "{exits} exits");

    // A reset boots the same machine again.
    let before = hello.boot_id;
    let hello = machine.reset_guest("vm0").unwrap();
    assert!(hello.nr_cpus == 4 && hello.boot_id != before, "{hello:?}");

    machine.plug_vcpus("vm0", 5).unwrap();
    let online = "/sys/devices/system/cpu/cpu4/online";
    eventually("the fifth CPU", || machine.request_guest("vm0", write(online, "1")).ok());
    let hello = hello_of(&machine, "vm0");
    assert_eq!(hello.nr_cpus, 5);

    // A guest that hangs is reported, and answers again when it goes on.
    machine.qmp("vm0", json!({ "execute": "stop" })).unwrap();
    let error = machine.request_guest("vm0", Request::Hello).unwrap_err().to_string();
    assert!(error.contains("vm0") && error.contains("did not answer within"), "{error}");
    machine.qmp("vm0", json!({ "execute": "cont" })).unwrap();
    assert_eq!(hello_of(&machine, "vm0").nr_cpus, 5);

    // A panic ends the guest, not the host, and is reported with its message.
    let crash = write("/proc/sysrq-trigger", "c");
    let error = machine.request_guest("vm0", crash.clone()).unwrap_err().to_string();
    assert!(error.contains("vm0") && error.contains("sysrq"), "{error}");
    let error = machine.request_guest("vm0", Request::Hello).unwrap_err().to_string();
    assert!(error.contains("its QEMU ended") && error.contains("Kernel panic"), "{error}");
    machine.stop_guest("vm0").unwrap();

    // The host's panic is reported as well.
    assert!(read(&machine, "/proc/version").contains("Linux version"));
    match machine.request(crash).unwrap_err() {
        Error::HostEnded { console, .. } => assert!(console.contains("Kernel panic"), "{console}"),
        other => panic!("{other}"),
    }
    assert!(matches!(machine.request(Request::Hello), Err(Error::HostEnded { .. })));
}

fn hello_of(machine: &Machine, guest: &str) -> Hello {
    match machine.request_guest(guest, Request::Hello).unwrap() {
        Reply::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

/// How many times vCPUs of a guest full of spinners leave it because of PAUSE, while it does
/// 200 000 operations.
fn pauses_that_exit(machine: &Machine) -> u64 {
    const TRACING: &str = "/sys/kernel/tracing";
    let argv = ["/workloads/lock", "--threads", "4", "--counters", "/tmp/counters"];
    machine.request_guest("vm0", Request::spawn("lock", argv)).unwrap();
    // Two endless loops preempt holders.
    for name in ["hog0", "hog1"] {
        machine.request(Request::spawn(name, [machine.workload_path("hog")])).unwrap();
    }
    // SVM_EXIT_PAUSE, EXIT_REASON_PAUSE_INSTRUCTION.
    let reason = if read(machine, "/proc/cpuinfo").contains(" svm") { 0x77 } else { 40 };
    let event = format!("{TRACING}/events/kvm/kvm_exit");
    let set = |file: String, text: &str| drop(machine.request(write(&file, text)).unwrap());
    set(format!("{TRACING}/trace"), "");
    set(format!("{event}/filter"), &format!("exit_reason == {reason}"));
    set(format!("{event}/enable"), "1");
    // None before the workload has made its file.
    let work = || {
        let request = Request::Counters { path: "/tmp/counters".into() };
        match machine.request_guest("vm0", request) {
            Ok(Reply::Counters(counters)) => Some(counters.ops),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    };
    // For as long as a certain amount of contended work takes.
    let start = eventually("the first operation", work);
    eventually("200 000 operations", || work().filter(|ops| *ops > start + 200_000));
    set(format!("{event}/enable"), "0");
    let of_cpu = |cpu: u32| {
        let stats = read(machine, &format!("{TRACING}/per_cpu/cpu{cpu}/stats"));
        let number = |name: &str| -> u64 {
            let line = stats.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_else(|| panic!("{stats}")).trim().parse().unwrap()
        };
        number("entries") + number("overrun")
    };
    let exits = (0..2).map(of_cpu).sum();
    for name in ["hog0", "hog1"] {
        machine.request(Request::Kill { name: name.into(), signal: 9 }).unwrap();
        machine.request(Request::Wait { name: name.into(), timeout_ms: 10_000 }).unwrap();
    }
    let name = "lock".to_owned();
    machine.request_guest("vm0", Request::Kill { name: name.clone(), signal: 9 }).unwrap();
    machine.request_guest("vm0", Request::Wait { name, timeout_ms: 10_000 }).unwrap();
    exits
}

/// Not a test of its own: the program that the next test interrupts.
#[test]
#[ignore = "started by nothing_is_left_of_a_lab_that_is_interrupted_or_killed"]
fn boots_and_waits() {
    // A shell that runs the tests in the background has it ignored, and so it would stay.
    // SAFETY: a plain system call; there is no handler yet.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    holdfast_signals::catch().unwrap();
    let spec = MachineSpec { accel: Accel::Tcg, ..spec() };
    let outcome = Machine::boot(&spec, &Progress::stderr()).and_then(|machine| {
        loop {
            machine.request(Request::Hello)?;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    match outcome {
        Err::<(), _>(Error::Interrupted) => println!("interrupted"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_left_of_a_lab_that_is_interrupted_or_killed() {
    // Built beforehand, so that the lab below only boots.
    let _ =
        Machine::boot(&MachineSpec { accel: Accel::Tcg, ..spec() }, &Progress::stderr()).unwrap();
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let lab = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "boots_and_waits", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = lab.id().cast_signed();
        let machine = eventually("a machine", || child_of(pid));
        // SAFETY: plain system call; the child is not collected yet.
        unsafe { libc::kill(pid, signal) };
        let output = lab.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.contains("interrupted"), signal == libc::SIGINT, "{said}");
        eventually("the end of the machine", || {
            (!Path::new(&format!("/proc/{machine}")).exists()).then_some(())
        });
    }
}

/// A child that is QEMU already, not the fork of its parent.
fn child_of(parent: i32) -> Option<i32> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let ppid: i32 = rest.split(' ').nth(1)?.parse().ok()?;
        let cmdline = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (ppid == parent && cmdline.contains("qemu")).then_some(pid)
    })
}
