// SPDX-License-Identifier: GPL-2.0-or-later
//! A large host: 256 CPUs, 8 LLCs, 4 nodes, 1000 tasks.
//! Figures: `cargo test --release -p holdfast-sim --test big -- --nocapture`.

use std::time::Instant;

use holdfast_sim::{MS, Machine, Op, SEC, hog, napper, task};

#[test]
fn a_large_host_shares_by_weight() {
    let machine = Machine::new(7).cpus(256).cpus_per_llc(32).llcs_per_node(2).smt(2).boot();
    let mut hogs = Vec::new();
    for nr in 0..1000 {
        let weight = if nr % 7 == 0 { 300 } else { 100 };
        let name = format!("task{nr}");
        if nr % 2 == 0 {
            machine.spawn(task(name, napper(2 * MS, 4 * MS)).weight(weight));
        } else {
            hogs.push((machine.spawn(task(name, hog()).weight(weight)), weight));
        }
    }
    let seconds = 4;
    let began = Instant::now();
    machine.run(seconds * SEC);
    let took = began.elapsed().as_secs_f64();
    println!("{:.1} virtual seconds a second", seconds as f64 / took);
    for op in [Op::Dispatch, Op::Enqueue, Op::SelectCpu, Op::Tick, Op::Running, Op::Stopping] {
        let cost = machine.cost(op);
        println!(
            "{op:?}: {} calls, {:.1} helpers (most {}), {:.1} turns, {:.2} tasks scanned (most {})",
            cost.calls,
            cost.helpers as f64 / cost.calls as f64,
            cost.helpers_max,
            cost.loops as f64 / cost.calls as f64,
            cost.scanned as f64 / cost.calls as f64,
            cost.scanned_max,
        );
    }
    // In parts of the time of 256 CPUs.
    let mean = |weight| {
        let times: Vec<u64> = hogs
            .iter()
            .filter(|(_, of)| *of == weight)
            .map(|(id, _)| machine.cpu_ns(*id))
            .collect();
        times.iter().sum::<u64>() as f64 / times.len() as f64 / (seconds * SEC) as f64
    };
    let (light, heavy) = (mean(100), mean(300));
    println!("of a CPU: weight 100 {light:.3}, weight 300 {heavy:.3}");
    assert!(heavy / light > 2.2 && heavy <= 1.0, "{light} and {heavy}");
}
