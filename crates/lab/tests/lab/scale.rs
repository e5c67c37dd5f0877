// SPDX-License-Identifier: GPL-2.0-or-later
//! What `scx_holdfast` takes for a decision does not grow with how many wait: 8 threads, and 400;
//! for all of the host's CPUs, or for some, which is nothing to the others.

use std::collections::BTreeMap;

use holdfast_agent::protocol::{Reply, Request, Spawn};
use holdfast_lab::machine::{Machine, MachineSpec};
use holdfast_lab::progress::Progress;

use crate::emulated::{
    SCHEDULER, bpf_symbols, costs, count_costs, counting_spec, end_scheduler, on_an_emulated_host,
    pass, start_scheduler,
};

/// Programs that run at each turn's beginning or end.
const DECISIONS: [&str; 5] = [
    "holdfast_dispatch",
    "holdfast_enqueue",
    "holdfast_running",
    "holdfast_stopping",
    "holdfast_tick",
];
/// How much longer one of them may take with many. The kernel's tree of those who wait is O(log n),
/// log 400 / log 8 being 2.9; but it is only its first that they look at, and who is queued is put
/// there after they have ended. Dispatching took 1.1 to 1.4 times as long (2026-11-25), because a
/// CPU looks once a second for those that wait for ever, at up to 1024 in each queue; the others
/// 0.9 to 1.0 times. It took 28 times as long where it looked for them at each call.
const GROWTH: f64 = 2.0;
const CPUS: f64 = 2.0;
const FEW: usize = 8;
const MANY: usize = 400;
/// Threads of one `hog`, at most.
const THREADS: usize = 64;
/// Host time over which costs are measured: the kernel's tick ends turns, every 4 ms, so it is 500
/// of them.
const COSTS_S: f64 = 1.0;
/// Host time over which shares are measured: six turns of each of many.
const SHARES_S: f64 = 5.0;
/// By how much the time that a loop had may differ from an equal part: two turns.
const TOLERANCE_MS: f64 = 8.0;

/// Time and calls of each program, in ns.
type Costs = BTreeMap<String, (u64, u64)>;

/// Starts this many endless loops, on these CPUs or all; the names of the processes they are
/// threads of.
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

/// ns that each call of a program took, on average, in a while.
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

/// Host time in which each loop ran so far, and the host's time now, in ms.
fn ran(machine: &Machine, names: &[String]) -> (BTreeMap<i32, f64>, f64) {
    let names = names.to_vec();
    let Reply::CpuTimes(times) = machine.request(Request::CpuTimes { names }).unwrap() else {
        panic!("no times")
    };
    // The first thread of each process waits for the others.
    let loops = times.tasks.iter().filter(|task| task.tid != task.pid);
    (loops.map(|task| (task.tid, task.run_ns as f64 / 1e6)).collect(), times.t_ns as f64 / 1e6)
}

/// Starts what `few` does, measures, and does so again beside what `more` starts. The `nr` loops
/// that they name share two CPUs.
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
    // Each has had its first turn.
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

fn few_and_many() {
    let few = |machine: &Machine| start(machine, FEW, None);
    let more = |machine: &Machine| start(machine, MANY - FEW, None);
    compare(&counting_spec(), MANY, few, more);
}

/// Two CPUs with few loops and two with many, which may run there only. The host's four have one
/// cache in common, so that all of them would be in one queue if that did not go by where they may
/// run: dispatching took 19 times as long then.
fn few_beside_many() {
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

#[test]
fn decisions_cost_the_same_however_many_wait_for_other_cpus() {
    on_an_emulated_host(few_beside_many);
}

#[test]
fn decisions_cost_the_same_however_many_wait() {
    on_an_emulated_host(few_and_many);
}
