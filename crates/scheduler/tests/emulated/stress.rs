// SPDX-License-Identifier: GPL-2.0-or-later
//! VMs start under load, run, and are stopped or killed, while CPUs come and go and groups change
//! their weight. `scx_holdfast` keeps scheduling, and the kernel's watchdog never ends it.
//!
//! `HOLDFAST_STRESS_S=1800 cargo test --release -p scx_holdfast --test emulated stress::` goes on
//! for half an hour. The scheduler restarts when a CPU comes or goes, so that each instance
//! of it lives less than a minute. With `HOLDFAST_STRESS_HOTPLUG=0` all CPUs stay, and one instance
//! lives from the first round to the last.

use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};
use holdfast_testbed::machine::{GuestSpec, Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    SCHEDULER, counted, end, end_scheduler, eventually_within, hog, is_in_state, load_kvm, shell,
    spec, start_scheduler, uptime,
};

const VARIABLE: &str = "HOLDFAST_STRESS_S";
const HOTPLUG_VARIABLE: &str = "HOLDFAST_STRESS_HOTPLUG";
const DEFAULT_S: f64 = 15.0;
/// Longest a restart of the scheduler may take on an overcommitted, emulated host.
const RESTART_LIMIT: Duration = Duration::from_secs(180);
/// The third CPU comes and goes.
const CPUS: u32 = 3;
/// A hang of the host's kernel is reported with its stack.
const CMDLINE: &str = "ignore_loglevel softlockup_panic=1 softlockup_all_cpu_backtrace=1";

const HOGS: [&str; 2] = ["hog0", "hog1"];
const HOGS_WEIGHT: &str = "/sys/fs/cgroup/hogs/cpu.weight";
/// Weights of the hogs' group while a guest boots, in turn.
const WEIGHTS: [&str; 2] = ["20", "100"];
/// Its weight in between. Beside that weight no guest boots in time on an emulated host, under the
/// kernel's own scheduler either.
const HEAVY: &str = "500";

/// Events, to be printed, and lost guests, which the emulation does lose.
#[derive(Debug, Default)]
struct Tally {
    rounds: u32,
    guests_started: u32,
    guests_lost: u32,
    cpus_toggled: u32,
    /// By the host's clock, which emulation makes slow.
    host_s: f64,
}

fn seconds() -> f64 {
    let Ok(seconds) = std::env::var(VARIABLE) else { return DEFAULT_S };
    seconds.parse().unwrap_or_else(|e| panic!("{VARIABLE}={seconds}: {e}"))
}

/// Whether a CPU comes and goes.
fn hotplug() -> bool {
    match std::env::var(HOTPLUG_VARIABLE).as_deref() {
        Err(_) | Ok("1") => true,
        Ok("0") => false,
        Ok(other) => panic!("{HOTPLUG_VARIABLE}={other}: 0 or 1"),
    }
}

fn write(machine: &Machine, path: &str, data: &str) {
    let (path, data) = (path.to_owned(), data.as_bytes().to_vec());
    machine.request(Request::WriteFile { path, data, mode: 0o644 }).unwrap();
}

/// The scheduler runs, and the kernel uses it.
fn assert_scheduled(machine: &Machine, after: &str) {
    eventually_within(RESTART_LIMIT, &format!("sched_ext enabled after {after}"), || {
        let name = SCHEDULER.to_owned();
        let Reply::Status { status, .. } = machine.request(Request::Status { name }).unwrap()
        else {
            panic!("not a status")
        };
        assert!(status.is_none(), "the scheduler was ended after {after}: {status:?}");
        is_in_state(machine, "enabled").then_some(())
    });
}

fn toggle_cpu(machine: &Machine, is_online: bool) {
    let cpu = CPUS - 1;
    write(
        machine,
        &format!("/sys/devices/system/cpu/cpu{cpu}/online"),
        &u32::from(is_online).to_string(),
    );
    // It starts again, with the present CPUs.
    assert_scheduled(machine, if is_online { "a CPU came" } else { "a CPU went" });
}

/// A guest that contends for a lock, or one that makes files; false if it did not boot.
fn start_guest(machine: &Machine, name: &str, round: u32) -> bool {
    let guest = GuestSpec { vcpus: 2 + round % 2, ..GuestSpec::new(name) };
    if let Err(e) = machine.start_guest(&guest) {
        println!("{name}: {e}");
        return false;
    }
    let workload = if round.is_multiple_of(2) { "lock" } else { "metadata" };
    let program = format!("/workloads/{workload}");
    let argv = [&program, "--threads", "4", "--counters", "/tmp/counters"];
    machine.request_guest(name, Request::spawn("work", argv)).is_ok()
}

#[test]
fn it_schedules_while_vms_and_cpus_come_and_go() {
    let (seconds, hotplug) = (seconds(), hotplug());
    let machine = Machine::boot(
        &MachineSpec { cpus: CPUS, cmdline: CMDLINE.into(), ..spec() },
        &Progress::stderr(),
    )
    .unwrap();
    shell(&machine, "cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; mkdir hogs");
    for name in HOGS {
        hog(&machine, name, "hogs", None);
    }
    load_kvm(&machine);
    start_scheduler(&machine, &[]);

    let mut tally = Tally::default();
    let begin = uptime(&machine);
    let mut lives: Option<String> = None;
    while tally.rounds < 2 || tally.host_s < seconds {
        let round = tally.rounds;
        let name = format!("vm{round}");
        if start_guest(&machine, &name, round) {
            tally.guests_started += 1;
        } else {
            tally.guests_lost += 1;
            let _ = machine.stop_guest(&name);
        }
        assert_scheduled(&machine, "a VM started");
        // The guest of the round before is killed while it contends; this one goes on beside the
        // next.
        if let Some(old) = lives.replace(name) {
            let _ = machine.stop_guest(&old);
            assert_scheduled(&machine, "a VM was killed");
        }
        if hotplug {
            toggle_cpu(&machine, round % 2 == 1);
            tally.cpus_toggled += 1;
        }
        write(&machine, HOGS_WEIGHT, HEAVY);
        std::thread::sleep(Duration::from_secs(2));
        assert_scheduled(&machine, "a while");
        write(&machine, HOGS_WEIGHT, WEIGHTS[round as usize % WEIGHTS.len()]);
        tally.rounds += 1;
        tally.host_s = uptime(&machine) - begin;
        println!("{tally:?}");
    }
    // The emulation may lose a guest at times, but not most of them.
    let enough = tally.guests_lost <= tally.guests_started;
    assert!(enough, "{tally:?}: of a guest, its agent did not answer");

    // It has made decisions since it was loaded, or since the CPU went or came.
    let made = counted(&machine);
    assert!(made.counters["vcpus"].as_object().is_some_and(|c| !c.is_empty()), "{made:?}");
    end_scheduler(&machine);
    for name in HOGS {
        end(&machine, name, libc::SIGKILL);
    }
    machine.shut_down().unwrap();
}
