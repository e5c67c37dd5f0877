// SPDX-License-Identifier: GPL-2.0-or-later
//! Parts that tests on a booted host share. All of them panic where something fails, as tests do.
//! They need the output of `make build`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Ended, Reply, Request, Spawn};
use serde_json::Value;

use crate::Error;
use crate::images::holdfast_in_guest;
use crate::machine::{Clock, GuestSpec, Machine, MachineSpec};
use crate::scheduler::{self, Counted};

mod lines;

pub use lines::Lines;

/// Name of the child that is the scheduler.
pub const SCHEDULER: &str = "scheduler";

/// The output of `make build`.
pub fn dist() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/dist");
    let dist = std::env::var_os("HOLDFAST_DIST").map_or(built, PathBuf::from);
    for needed in ["holdfast", "holdfast-agent", "scx_holdfast"] {
        assert!(dist.join(needed).exists(), "{} lacks {needed}: make build", dist.display());
    }
    dist
}

/// A host with these programs.
pub fn spec() -> MachineSpec {
    MachineSpec::new(dist())
}

/// A host whose clock counts instructions.
pub fn counting_spec() -> MachineSpec {
    MachineSpec { clock: Clock::Instructions, ..spec() }
}

/// Loads KVM before any guest of the lab does.
pub fn load_kvm(machine: &Machine) {
    let is_amd = read(machine, "/proc/cpuinfo").contains(" svm");
    let name = if is_amd { "kvm_amd" } else { "kvm_intel" }.to_owned();
    machine.request(Request::LoadModule { name, params: String::new() }).unwrap();
}

/// Waits for a child of the host to end by itself.
pub fn wait(machine: &Machine, name: &str, limit: Duration) -> Ended {
    let timeout_ms = limit.as_millis().try_into().unwrap();
    match machine.request(Request::Wait { name: name.into(), timeout_ms }).unwrap() {
        Reply::Wait(ended) => ended,
        other => panic!("{other:?}"),
    }
}

/// Ends a child of the host by a signal.
pub fn end(machine: &Machine, name: &str, signal: i32) -> Ended {
    machine.request(Request::Kill { name: name.into(), signal }).unwrap();
    wait(machine, name, Duration::from_secs(120))
}

/// Runs a program of ours in the host to its end; its output.
pub fn run(machine: &Machine, argv: &[&str]) -> String {
    let program = machine.dist_path(argv[0]);
    let argv = std::iter::once(program.as_str()).chain(argv[1..].iter().copied());
    machine.request(Request::spawn("once", argv)).unwrap();
    // Loading BPF programs takes half a minute on an overcommitted emulated host.
    let ended = wait(machine, "once", Duration::from_secs(240));
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout_tail
}

/// Runs a shell command in the host to its end.
pub fn shell(machine: &Machine, command: &str) -> String {
    machine.request(Request::spawn("shell", ["/bin/sh", "-ec", command])).unwrap();
    let ended = wait(machine, "shell", Duration::from_secs(120));
    assert!(ended.status.success(), "{command}: {ended:?}");
    ended.stdout_tail
}

/// An endless loop in a cgroup; `""` is the root.
pub fn hog(machine: &Machine, name: &str, group: &str, cpus: Option<Vec<u32>>) {
    start_in_group(machine, name, group, cpus, &machine.workload_path("hog"));
}

/// Starts a program in a cgroup, on these CPUs or all.
pub fn start_in_group(
    machine: &Machine,
    name: &str,
    group: &str,
    cpus: Option<Vec<u32>>,
    program: &str,
) {
    let command = format!("echo $$ > /sys/fs/cgroup/{group}/cgroup.procs; exec {program}");
    start_shell(machine, name, cpus, &command);
}

/// Starts a shell command on these CPUs or all.
pub fn start_shell(machine: &Machine, name: &str, cpus: Option<Vec<u32>>, command: &str) {
    let argv = ["/bin/sh", "-ec", command].map(str::to_owned).to_vec();
    let spawn = Spawn { name: name.to_owned(), argv, cpus, ..Spawn::default() };
    machine.request(Request::Spawn(spawn)).unwrap();
}

/// An emulated host that counts instructions loads a scheduler in half a minute, beside another
/// such host in more.
const STATE_LIMIT: Duration = Duration::from_secs(240);

/// Loads `scx_holdfast` in the host.
pub fn start_scheduler(machine: &Machine, args: &[&str]) {
    let program = machine.dist_path("scx_holdfast");
    let argv = std::iter::once(program.as_str()).chain(args.iter().copied());
    machine.request(Request::spawn(SCHEDULER, argv)).unwrap();
    if within(STATE_LIMIT, || is_in_state(machine, "enabled").then_some(())).is_none() {
        // It may have ended, or wait for the kernel.
        let looked = "cat /proc/uptime /sys/kernel/sched_ext/state; \
                      for task in $(grep -lx scx_holdfast /proc/[0-9]*/task/*/comm); do \
                          task=${task%/comm}; grep State $task/status; cat $task/stack \
                          $task/schedstat; done 2>&1; dmesg | tail -n 30";
        machine.request(Request::spawn("looked", ["/bin/sh", "-c", looked])).unwrap();
        let looked = wait(machine, "looked", Duration::from_secs(120)).stdout_tail;
        let _ = machine.request(Request::Kill { name: SCHEDULER.into(), signal: libc::SIGKILL });
        let ended = wait(machine, SCHEDULER, Duration::from_secs(120));
        panic!("sched_ext enabled: not within {STATE_LIMIT:?}: {ended:?}\n{looked}");
    }
}

/// Fails if the kernel has ended it, and says why.
#[track_caller]
pub fn assert_schedules(machine: &Machine) {
    if !is_in_state(machine, "enabled") {
        let ended = wait(machine, SCHEDULER, Duration::from_secs(120));
        panic!(
            "the scheduler was ended, {:.0} s after boot: {ended:?}\n{}",
            uptime(machine),
            shell(machine, "dmesg | tail -n 30")
        );
    }
}

/// Ends it as its user would. The kernel must not have ended it before.
pub fn end_scheduler(machine: &Machine) {
    assert_schedules(machine);
    let ended = end(machine, SCHEDULER, libc::SIGINT);
    assert!(ended.status.success(), "{ended:?}");
    wait_for_state(machine, "disabled");
}

/// Kills it.
pub fn kill_scheduler(machine: &Machine) {
    end(machine, SCHEDULER, libc::SIGKILL);
    wait_for_state(machine, "disabled");
}

fn wait_for_state(machine: &Machine, state: &str) {
    eventually_within(STATE_LIMIT, &format!("sched_ext {state}"), || {
        is_in_state(machine, state).then_some(())
    });
}

/// Whether sched_ext is in this state: `enabled`, `disabled`.
pub fn is_in_state(machine: &Machine, state: &str) -> bool {
    read(machine, "/sys/kernel/sched_ext/state").trim() == state
}

/// The observer of the lab: it answers requests.
pub fn start_observer(machine: &Machine) {
    let argv = [&machine.dist_path("holdfast"), "preemptions", "--json", "--stdin"];
    let argv = argv.map(str::to_owned).to_vec();
    let spawn = Spawn { name: "observer".into(), argv, stdin: true, ..Spawn::default() };
    machine.request(Request::Spawn(spawn)).unwrap();
    observe(machine);
}

/// Its counts so far.
pub fn observe(machine: &Machine) -> Value {
    let ask = Request::Ask { name: "observer".into(), line: String::new(), timeout_ms: 120_000 };
    match machine.request(ask).unwrap() {
        Reply::Ask { line } => serde_json::from_str(&line).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Preemptions of a class over all vCPUs of a VM.
pub fn preemptions(vm: &Value, class: &str) -> u64 {
    let vcpus = vm["vcpus"].as_array().unwrap();
    vcpus.iter().map(|vcpu| vcpu["preemptions"][class].as_u64().unwrap()).sum()
}

/// The scheduler's counts since the last request. It answers some time after it schedules.
pub fn counted(machine: &Machine) -> Counted {
    eventually("statistics", || {
        let (socket, line) = (scheduler::SOCKET.into(), scheduler::REQUEST.into());
        match machine.request(Request::Exchange { socket, line, timeout_ms: 30_000 }) {
            Ok(Reply::Exchange { line, t_ns }) => {
                Some(Counted::parse(&line, t_ns).unwrap_or_else(|| panic!("{line}")))
            }
            Err(Error::Refused(_)) => None,
            other => panic!("{other:?}"),
        }
    })
}

/// One of its counters, over all vCPUs of the host.
pub fn of_vcpus(counted: &Counted, counter: &str) -> u64 {
    let value = &counted.counters["vcpus"][counter];
    value.as_u64().unwrap_or_else(|| panic!("no {counter} in {:?}", counted.counters))
}

/// A file of the host.
pub fn read(machine: &Machine, path: &str) -> String {
    read_by(|request| machine.request(request).unwrap(), path)
}

/// A file of the host or of a guest.
fn read_by(ask: impl Fn(Request) -> Reply, path: &str) -> String {
    match ask(Request::ReadFile { path: path.into(), max_bytes: 1 << 20 }) {
        Reply::ReadFile { data, .. } => String::from_utf8_lossy(&data).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Boots a guest.
pub fn start_guest(machine: &Machine, name: &str, vcpus: u32) {
    machine.start_guest(&GuestSpec { vcpus, ..GuestSpec::new(name) }).unwrap();
}

/// Has a guest's vCPUs contend for a lock. `holdfast spins` starts in the guest first: it loads in
/// a fraction of the time while nothing else runs. The guest needs to have the program.
pub fn contend<'m>(machine: &'m Machine, name: &'m str, vcpus: u32, options: &[&str]) -> Lines<'m> {
    let program = holdfast_in_guest();
    let argv = program.iter().map(String::as_str).chain(["spins"]).chain(options.iter().copied());
    let mut spins = Lines::in_guest(machine, name, "spins", &argv.collect::<Vec<_>>());
    spins.next().unwrap();
    let threads = vcpus.to_string();
    let argv = ["/workloads/lock", "--threads", &threads, "--counters", "/tmp/counters"];
    machine.request_guest(name, Request::spawn("lock", argv)).unwrap();
    // A report of the time before.
    spins.next().unwrap();
    spins
}

/// Uptime of the host, in s, by its own clock.
pub fn uptime(machine: &Machine) -> f64 {
    read(machine, "/proc/uptime").split(' ').next().unwrap().parse().unwrap()
}

/// Passes this time by the host's own clock.
pub fn pass(machine: &Machine, seconds: f64) {
    let begin = uptime(machine);
    while uptime(machine) - begin < seconds {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Keeps children of the host on these CPUs, as `taskset` writes them.
pub fn pin(machine: &Machine, names: &[&str], cpus: &str) {
    let pids: Vec<_> = names
        .iter()
        .map(|name| pid(|ask| machine.request(ask).unwrap(), name).to_string())
        .collect();
    let tasks = format!("for pid in {}; do ls /proc/$pid/task; done", pids.join(" "));
    shell(machine, &format!("for task in $({tasks}); do taskset -cp {cpus} $task; done"));
}

/// Has a kernel count the cost of BPF programs from here on.
pub fn count_costs(ask: impl Fn(Request) -> Reply) {
    let path = "/proc/sys/kernel/bpf_stats_enabled".to_owned();
    ask(Request::WriteFile { path, data: b"1".to_vec(), mode: 0o644 });
}

/// The BPF programs that are loaded, each as `bpf_prog_TAG_NAME`.
pub fn bpf_symbols(machine: &Machine) -> String {
    // They are the last symbols. A search among all others takes an emulated host half a minute.
    let argv = ["sh", "-c", "tail -n 500 /proc/kallsyms | grep -o 'bpf_prog_[^ ]*'"];
    machine.request(Request::spawn("symbols", argv)).unwrap();
    let ended = wait(machine, "symbols", Duration::from_secs(120));
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout_tail
}

/// Time spent in each BPF program of a child so far, in ns, and its number of runs.
pub fn costs(machine: &Machine, child: &str, symbols: &str) -> BTreeMap<String, (u64, u64)> {
    let named = |(tag, cost): (String, _)| {
        let symbol = symbols.split_ascii_whitespace().find(|symbol| symbol.contains(&tag))?;
        Some((symbol.rsplit_once(&tag)?.1.trim_start_matches('_').to_owned(), cost))
    };
    costs_by_tag(|request| machine.request(request).unwrap(), child)
        .into_iter()
        .filter_map(named)
        .collect()
}

/// The same by the tags of the programs, for a child of the host's or a guest's agent.
pub fn costs_by_tag(ask: impl Fn(Request) -> Reply, child: &str) -> Vec<(String, (u64, u64))> {
    let fdinfo = format!("/proc/{}/fdinfo", pid(&ask, child));
    let Reply::ListDir { names } = ask(Request::ListDir { path: fdinfo.clone() }) else {
        panic!("no {fdinfo}")
    };
    let of_program = |name: String| {
        let text = read_by(&ask, &format!("{fdinfo}/{name}"));
        let value = |key: &str| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix(key)?.trim_start_matches(':').trim()))
        };
        let number = |key| value(key)?.parse().ok();
        Some((value("prog_tag")?.to_owned(), (number("run_time_ns")?, number("run_cnt")?)))
    };
    names.into_iter().filter_map(of_program).collect()
}

/// Process of a child of the host's or a guest's agent.
pub fn pid(ask: impl Fn(Request) -> Reply, child: &str) -> i32 {
    match ask(Request::Status { name: child.into() }) {
        Reply::Status { pid, running: true, .. } => pid,
        other => panic!("{child}: {other:?}"),
    }
}

/// Directory of files that a test keeps for a look at them.
pub fn kept() -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
    std::fs::create_dir_all(&kept).unwrap();
    kept
}

/// A recording made in the host, replayed by this machine's own `holdfast`. The recording is kept,
/// and so are the files that the options write.
pub fn replay(machine: &Machine, recording: &str, options: &[&str]) -> Value {
    let request = Request::ReadFile { path: recording.into(), max_bytes: 8 << 20 };
    let Reply::ReadFile { data, truncated } = machine.request(request).unwrap() else {
        panic!("no file")
    };
    assert!(!truncated);
    let kept = kept();
    let file = Path::new(recording).file_name().unwrap();
    std::fs::write(kept.join(file), data).unwrap();
    let output = Command::new(spec().dist.canonicalize().unwrap().join("holdfast"))
        .current_dir(&kept)
        .arg("replay")
        .arg(file)
        .arg("--json")
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first result of `done`, which must come within some minutes: this machine may have other
/// work.
pub fn eventually<T>(what: &str, done: impl FnMut() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(180), what, done)
}

/// The same with another limit.
pub fn eventually_within<T>(limit: Duration, what: &str, done: impl FnMut() -> Option<T>) -> T {
    within(limit, done).unwrap_or_else(|| panic!("{what}: not within {limit:?}"))
}

/// The first result of `done` within `limit`, if there is one.
fn within<T>(limit: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        let value = done();
        if value.is_some() || Instant::now() >= deadline {
            return value;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
