// SPDX-License-Identifier: GPL-2.0-or-later
//! Many tasks for few CPUs, and tasks of very different weight.
//! One alone: `cargo test --release -p holdfast-sim --test crowds NAME`.

use holdfast_sim::{MS, Machine, Op, SEC, Source, US, hog, periodic, stat, task};

/// `sched_weight_to_cgroup()` of nice 19 and -20.
const LIGHT: u32 = 1;
const HEAVY: u32 = 8668;

/// What a call of each callback costs: calls of helpers, turns of loops, and tasks stepped over.
fn costs(machine: &Machine) -> [(Op, f64); 5] {
    machine.clear_costs();
    machine.run(SEC);
    [Op::Enqueue, Op::Dispatch, Op::Running, Op::Tick, Op::Stopping].map(|op| {
        let cost = machine.cost(op);
        assert!(cost.calls > 100, "{op:?}: {} calls", cost.calls);
        (op, (cost.helpers + cost.loops + cost.scanned) as f64 / cost.calls as f64)
    })
}

/// Costs beside eight loops on each pair of CPUs, and beside `nr` on the first pair, which have
/// equal shares then.
fn beside_many(nr_pairs: usize, nr: usize) {
    let machine = Machine::new(1).cpus(2 * nr_pairs).boot();
    let start = |pair: usize| machine.spawn(task("loop", hog()).on(2 * pair..2 * pair + 2));
    let mut loops: Vec<_> =
        (0..nr_pairs).rev().flat_map(|pair| [0; 8].map(|_| start(pair))).collect();
    machine.run(SEC);
    let before = costs(&machine);
    loops.extend((8..nr).map(|_| start(0)));
    // Each has had its first slice.
    machine.run(4 * SEC);
    let after = costs(&machine);
    for ((op, before), (_, after)) in before.into_iter().zip(after) {
        println!("{op:?}: {before:.1} beside 8 loops, {after:.1} beside {nr}");
        // Once a second a CPU searches for starving tasks, among many.
        assert!(after < before * 2.0 + 1.0, "{op:?}: {before:.1} and {after:.1}");
    }
    let begin: Vec<_> = loops.iter().map(|id| machine.cpu_ns(*id)).collect();
    machine.run(20 * SEC);
    let ran: Vec<_> =
        loops.iter().zip(begin).map(|(id, begin)| machine.cpu_ns(*id) - begin).collect();
    let crowd = &ran[loops.len() - nr..];
    let (least, most) = (crowd.iter().min().unwrap(), crowd.iter().max().unwrap());
    println!("{} to {} ms each", least / MS, most / MS);
    assert!(most - least <= 8 * MS, "{least} to {most} ns");
}

#[test]
fn decisions_cost_the_same_however_many_wait() {
    for nr in [400, 2000] {
        beside_many(1, nr);
    }
}

/// All four CPUs share a cache. Those with few loops must not go through the loops of the others.
#[test]
fn decisions_cost_the_same_however_many_wait_for_other_cpus() {
    beside_many(2, 400);
}

/// Twelve light loops that may run anywhere, twelve on one CPU, and two heavy ones: the longest
/// wait of a light one in a minute, the slices of starving tasks, and the share of the heavy ones.
fn light_beside_heavy(source: Source) -> (u64, u64, f64) {
    let machine = Machine::new(1).cpus(2).source(source).boot();
    // At time 0 no task begins to wait, for the scheduler.
    machine.run(MS);
    let light: Vec<_> = (0..24)
        .map(|nr| {
            let cpus = if nr < 12 { 0..2 } else { 0..1 };
            machine.spawn(task("light", hog()).weight(LIGHT).on(cpus))
        })
        .collect();
    let heavy = [0, 1].map(|_| machine.spawn(task("heavy", hog()).weight(HEAVY)));
    // A violated rule ends the run.
    let _ = machine.try_run(60 * SEC);
    let wait = light.iter().map(|id| machine.longest_wait_ns(*id)).max().unwrap_or(0);
    let heavy: u64 = heavy.iter().map(|id| machine.cpu_ns(*id)).sum();
    (wait, machine.stat(stat::STARVING), heavy as f64 / (2 * 60 * SEC) as f64)
}

/// The kernel ends a scheduler that lets a task wait for 30 s. After one slice a loop of nice 19
/// would get the next when one of nice -20 has run for 35 s.
#[test]
fn light_tasks_beside_heavy_ones_do_not_starve() {
    let (wait, slices, heavy) = light_beside_heavy(Source::Tree);
    println!("{} ms, {slices} slices of starving tasks, heavy: {heavy:.3}", wait / MS);
    assert!(wait < 8 * SEC, "{} ms", wait / MS);
    // Each starves after 5 s at most so often, and the heavy ones have nearly all.
    assert!((1..=24 * 13).contains(&slices), "{slices}");
    assert!(heavy > 0.97, "{heavy}");
}

#[test]
fn finds_light_tasks_that_starve() {
    let change = ("vtime.h", "return waited_ns >= HF_STARVING_NS;", "return false;");
    let source = Source::patched(change.0, change.1, change.2).expect("it compiles");
    let (wait, ..) = light_beside_heavy(source);
    assert!(wait > 30 * SEC, "{} ms", wait / MS);
}

/// The longest wait of a task that wakes every few ms, in ms, and what light tasks have.
fn wait_beside_light(source: Source) -> (u64, f64) {
    let machine = Machine::new(1).cpus(2).source(source).boot();
    let _loops = [0; 4].map(|_| machine.spawn(task("loop", hog())));
    let light = [0; 8].map(|_| machine.spawn(task("light", hog()).weight(LIGHT)));
    let waking = machine.spawn(task("waking", periodic(50 * US, 3 * MS)));
    machine.run(20 * SEC);
    let light: u64 = light.iter().map(|id| machine.cpu_ns(*id)).sum();
    (machine.longest_wait_ns(waking) / MS, light as f64 / (20 * SEC) as f64)
}

/// After each of its slices a task of little weight is far ahead in virtual time. The host's
/// virtual time must not follow it: a waking task would wait for all others to catch up.
#[test]
fn light_tasks_do_not_delay_waking_tasks() {
    let (wait_ms, light) = wait_beside_light(Source::Tree);
    println!("{wait_ms} ms, light tasks have {light:.3} of a CPU");
    assert!(wait_ms < 32, "{wait_ms} ms");
    // It is not late only because the light tasks do not run.
    assert!((0.002..0.1).contains(&light), "{light}");
}

/// If it follows a light task to where its slice ends.
#[test]
fn finds_waking_tasks_that_light_ones_delay() {
    let old = "least = tctx->vtime - hf_lag_limit(tctx->weight, false, &params);";
    let new = "least = tctx->vtime + hf_scale_by_weight(params.slice_ns, tctx->weight);";
    let source = Source::patched("slice.bpf.h", old, new);
    let (wait_ms, _) = wait_beside_light(source.expect("it compiles"));
    assert!(wait_ms > 100, "{wait_ms} ms");
}
