// SPDX-License-Identifier: GPL-2.0-or-later
//! The time `scx_holdfast` takes for a decision does not grow with the number of waiting tasks: 8
//! threads or 400, on all of the host's CPUs, or on some, which costs the others nothing.

use std::collections::BTreeMap;

use holdfast_agent::protocol::{Reply, Request, Spawn};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    SCHEDULER, bpf_symbols, costs, count_costs, counting_spec, end_scheduler, pass, start_scheduler,
};

/// Programs that run at the beginning or end of each slice.
const DECISIONS: [&str; 5] = [
    "holdfast_dispatch",
    "holdfast_enqueue",
    "holdfast_running",
    "holdfast_stopping",
    "holdfast_tick",
];
/// How much longer a program may take with many tasks. The kernel's tree of waiting tasks is O(log
/// n), and log 400 / log 8 is 2.9. But the programs read only its first task, and the kernel queues
/// tasks after they have returned. Only dispatching takes longer, 1.1 to 1.4 times: once a second a
/// CPU searches for starving tasks, among up to 1024 in each queue. A search at each call takes 28
/// times as long.
const GROWTH: f64 = 2.0;
const CPUS: f64 = 2.0;
const FEW: usize = 8;
const MANY: usize = 400;
/// Threads of one `hog`, at most.
const THREADS: usize = 64;
/// Host time over which costs are measured: the kernel's tick ends slices, every 4 ms, so it is 500
/// of them.
const COSTS_S: f64 = 1.0;
/// Host time over which shares are measured: with many loops, six slices of each.
const SHARES_S: f64 = 5.0;
/// By how much a loop's time may differ from an equal part: two slices.
const TOLERANCE_MS: f64 = 8.0;

/// Time and calls of each program, in ns.
type Costs = BTreeMap<String, (u64, u64)>;

/// Starts this many endless loops, on these CPUs or all; the names of their processes.
fn start(machine: &Machine, total: usize, cpus: Option<[u32; 2]>) -> Vec<String> {
    let mut threads = total;
    let mut names = Vec::new();
    while threads > 0 {
        let of_this = threads.min(THREADS);
        let name = format!("{threads} of {total} on {cpus:?}");
        let argv = [&machine.workload_path("hog"), "--threads", &of_this.to_string()];
        let (argv, cpus) = (argv.map(str::to_owned).to_vec(), cpus.map(Vec::from));
        let spawn = Spawn { name: name.clone(), argv, cpus, ..Spawn::default() };
        machine.request(Request::Spawn(spawn)).unwrap();
        names.push(name);
        threads -= of_this;
    }
    names
}

/// Average ns of a call of each program.
fn measure(machine: &Machine, symbols: &str) -> BTreeMap<&'static str, f64> {
    let begin: Costs = costs(machine, SCHEDULER, symbols);
    pass(machine, COSTS_S);
    let end = costs(machine, SCHEDULER, symbols);
    let each = |name| {
        let (ns, calls) = (end[name].0 - begin[name].0, end[name].1 - begin[name].1);
        println!("  {name}: {calls} calls, {} ns each", ns / calls.max(1));
        assert!(calls > 200, "{name}: {calls} calls");
        (name, ns as f64 / calls as f64)
    };
    DECISIONS.into_iter().map(each).collect()
}

/// CPU time of each loop so far, and the host's time, in ms.
fn ran(machine: &Machine, names: &[String]) -> (BTreeMap<i32, f64>, f64) {
    let names = names.to_vec();
    let Reply::CpuTimes(times) = machine.request(Request::CpuTimes { names }).unwrap() else {
        panic!("no times")
    };
    // The first thread of each process waits for the others.
    let loops = times.tasks.iter().filter(|task| task.tid != task.pid);
    (loops.map(|task| (task.tid, task.run_ns as f64 / 1e6)).collect(), times.t_ns as f64 / 1e6)
}

/// Measures beside the loops that `few` starts, and again beside those that `more` adds. The `nr`
/// loops in their result share two CPUs.
fn compare(
    spec: &MachineSpec,
    nr: usize,
    few: impl Fn(&Machine) -> Vec<String>,
    more: impl Fn(&Machine) -> Vec<String>,
) {
    let machine = Machine::boot(spec, &Progress::stderr()).unwrap();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    count_costs(|request| machine.request(request).unwrap());
    let symbols = bpf_symbols(&machine);

    let mut names = few(&machine);
    pass(&machine, 0.5);
    println!("few loops");
    let few = measure(&machine, &symbols);
    names.extend(more(&machine));
    // Each has had its first slice.
    pass(&machine, 2.0);
    println!("{MANY} loops");
    let many = measure(&machine, &symbols);
    let (before, begin) = ran(&machine, &names);
    pass(&machine, SHARES_S);
    let (after, end) = ran(&machine, &names);
    end_scheduler(&machine);
    machine.shut_down().unwrap();

    for name in DECISIONS {
        let growth = many[name] / few[name];
        println!("{name}: {growth:.2} times as long");
        assert!(growth < GROWTH, "{name}: {:.0} ns, then {:.0} ns", few[name], many[name]);
    }
    assert_eq!(after.len(), nr);
    let mut had: Vec<_> = after.iter().map(|(tid, after)| after - before[tid]).collect();
    had.sort_by(f64::total_cmp);
    let (equal, passed) = (had.iter().sum::<f64>() / nr as f64, end - begin);
    let (least, most) = (had[0], had[nr - 1]);
    println!(
        "in {passed:.0} ms each loop had {least:.1} to {most:.1} ms, on average {equal:.1} ms"
    );
    assert!(equal * nr as f64 > 0.95 * CPUS * passed, "{equal} of {passed} ms");
    assert!(equal - least < TOLERANCE_MS && most - equal < TOLERANCE_MS, "{had:.1?}");
}

#[test]
fn decisions_cost_the_same_however_many_wait() {
    let few = |machine: &Machine| start(machine, FEW, None);
    let more = |machine: &Machine| start(machine, MANY - FEW, None);
    compare(&counting_spec(), MANY, few, more);
}

/// Two CPUs with few loops and two with many, by affinity. The host's four CPUs share a cache, so
/// that one queue for all of them would make dispatching 19 times as long.
#[test]
fn decisions_cost_the_same_however_many_wait_for_other_cpus() {
    let spec = MachineSpec { cpus: 4, guest_kernels: Vec::new(), ..counting_spec() };
    let (here, there) = (Some([2, 3]), Some([0, 1]));
    let few = |machine: &Machine| {
        start(machine, FEW, there);
        start(machine, FEW, here)
    };
    let more = |machine: &Machine| {
        start(machine, MANY - FEW, there);
        Vec::new()
    };
    compare(&spec, FEW, few, more);
}
