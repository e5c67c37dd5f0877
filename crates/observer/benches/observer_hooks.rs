// SPDX-License-Identifier: GPL-2.0-or-later
//! The cost of each hook of the observer in the lab's host, with a contended lock in 4 vCPUs and 2
//! hogs: the figures of docs/results.md.
//!
//! ```text
//! make build && cargo bench -p holdfast-observer --bench observer_hooks
//! ```

use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request, Spawn};
use holdfast_testbed::machine::{GuestSpec, Machine};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{bpf_symbols, costs, count_costs, load_kvm, spec};

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
        // It is ready after its first output; the collector answers requests.
        let (name, line) = (name.into(), String::new());
        machine.request(Request::Ask { name, line, timeout_ms: 60_000 }).unwrap();
    }
    for hog in ["hog0", "hog1"] {
        machine.request(Request::spawn(hog, [machine.workload_path("hog")])).unwrap();
    }
    count_costs(|request| machine.request(request).unwrap());
    std::thread::sleep(Duration::from_secs(3));
    let symbols = bpf_symbols(&machine);
    let all = || {
        observers.map(|(name, _)| (name, costs(&machine, name, &symbols), cpu_ns(&machine, name)))
    };
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

fn cpu_ns(machine: &Machine, child: &str) -> u64 {
    let Reply::CpuTimes(times) =
        machine.request(Request::CpuTimes { names: vec![child.into()] }).unwrap()
    else {
        panic!("no times")
    };
    times.tasks.iter().map(|task| task.run_ns).sum()
}
