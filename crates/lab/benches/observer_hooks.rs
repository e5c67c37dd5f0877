// SPDX-License-Identifier: GPL-2.0-or-later
//! What each hook of the observer costs in the lab's host, with a contended lock in 4 vCPUs and 2 hogs: the
//! figures of docs/observer.md.
//!
//! ```text
//! make build && cargo bench -p holdfast-lab --bench observer_hooks
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request, Spawn};
use holdfast_lab::machine::{GuestSpec, Machine};
use holdfast_lab::progress::Progress;

#[path = "../tests/emulated/mod.rs"]
mod emulated;

use emulated::{load_kvm, read, spec, wait};

fn main() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    machine.start_guest(&GuestSpec::new("vm0")).unwrap();
    let argv = ["/workloads/lock", "--threads", "4", "--counters", "/tmp/counters"];
    machine.request_guest("vm0", Request::spawn("lock", argv)).unwrap();
    let program = machine.dist_path("holdfast");
    let observers = [
        ("export", &[&*program, "export", "--collect"][..]),
        ("report", &[&*program, "report", "1"]),
        ("record", &[&*program, "record", "-o", "/tmp/cost.parquet"]),
    ];
    for (name, argv) in observers {
        let argv = argv.iter().map(|&arg| arg.to_owned()).collect();
        let spawn = Spawn { name: name.into(), argv, stdin: true, ..Spawn::default() };
        machine.request(Request::Spawn(spawn)).unwrap();
        // It is ready once it says something; the collector is to be asked.
        let (name, line) = (name.into(), String::new());
        machine.request(Request::Ask { name, line, timeout_ms: 60_000 }).unwrap();
    }
    for hog in ["hog0", "hog1"] {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
    let enable = Request::WriteFile { path: STATS.into(), data: b"1".to_vec(), mode: 0o644 };
    machine.request(enable).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let all = || observers.map(|(name, _)| (name, costs(&machine, name), cpu_ns(&machine, name)));
    let start = std::time::Instant::now();
    let before = all();
    std::thread::sleep(Duration::from_secs(10));
    let after = all();
    let seconds = start.elapsed().as_secs_f64();
    println!("{:8} {:16} {:>8} {:>8} {:>9}", "", "hook", "runs/s", "ns each", "% of host");
    // Two CPUs.
    let percent = |ns: u64| ns as f64 / 1e9 / seconds / 2.0 * 100.0;
    for ((name, before, cpu_before), (_, after, cpu_after)) in before.into_iter().zip(after) {
        let mut sum = 0;
        for (hook, (ns, runs)) in after {
            let (ns, runs) = (ns - before[&hook].0, runs - before[&hook].1);
            println!(
                "{name:8} {hook:16} {:8.0} {:8.0} {:9.3}",
                runs as f64 / seconds,
                ns as f64 / runs.max(1) as f64,
                percent(ns)
            );
            sum += ns;
        }
        println!("{name:8} {:35}{:9.3}", "all hooks", percent(sum));
        println!("{name:8} {:35}{:9.3}", "its process", percent(cpu_after - cpu_before));
        assert!(percent(sum) > 0.0, "{name}: nothing ran");
    }
    machine.shut_down().unwrap();
}

/// Time spent in each BPF program of a child so far, in ns, and how often it ran.
fn costs(machine: &Machine, child: &str) -> BTreeMap<String, (u64, u64)> {
    // bpf_prog_TAG_NAME
    let argv = ["sh", "-c", "grep -o 'bpf_prog_[^ ]*' /proc/kallsyms"];
    machine.request(Request::spawn("symbols", argv)).unwrap();
    let ended = wait(machine, "symbols", Duration::from_secs(120));
    assert!(ended.status.success(), "{ended:?}");
    let symbols = ended.stdout_tail;
    let name_of = |tag: &str| {
        let symbol = symbols.split_ascii_whitespace().find(|symbol| symbol.contains(tag))?;
        Some(symbol.rsplit_once(tag)?.1.trim_start_matches('_').to_owned())
    };
    let fdinfo = format!("/proc/{}/fdinfo", pid(machine, child));
    let request = Request::ListDir { path: fdinfo.clone() };
    let Ok(Reply::ListDir { names }) = machine.request(request) else { panic!("no {fdinfo}") };
    let of_program = |name: String| {
        let text = read(machine, &format!("{fdinfo}/{name}"));
        let value = |key: &str| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix(key)?.trim_start_matches(':').trim()))
        };
        let number = |key| value(key)?.parse().ok();
        Some((name_of(value("prog_tag")?)?, (number("run_time_ns")?, number("run_cnt")?)))
    };
    names.into_iter().filter_map(of_program).collect()
}

fn cpu_ns(machine: &Machine, child: &str) -> u64 {
    let Reply::CpuTimes(times) =
        machine.request(Request::CpuTimes { names: vec![child.into()] }).unwrap()
    else {
        panic!("no times")
    };
    times.tasks.iter().map(|task| task.run_ns).sum()
}

fn pid(machine: &Machine, child: &str) -> i32 {
    match machine.request(Request::Status { name: child.into() }).unwrap() {
        Reply::Status { pid, running: true, .. } => pid,
        other => panic!("{child}: {other:?}"),
    }
}
