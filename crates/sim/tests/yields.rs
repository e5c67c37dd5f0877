// SPDX-License-Identifier: GPL-2.0-or-later
//! Directed yields and graces: what they cost, and when they end.
//! One alone: `cargo test --release -p holdfast-sim --test yields NAME`.

use std::cell::Cell;
use std::rc::Rc;

use holdfast_policy::Verdict;
use holdfast_sim::guest::Words;
use holdfast_sim::{Cx, MS, Machine, Op, SEC, Step, TaskId, US, YieldTo, hog, stat, task};

/// A vCPU that asks to yield to a sibling every 100 us.
fn spins_for(sibling: TaskId) -> impl FnMut(&Cx<'_>) -> Step {
    move |cx: &Cx<'_>| {
        cx.yield_to(sibling);
        Step::Run(100 * US)
    }
}

/// The task that is next need not be known for a yield to a sibling that cannot have the CPU.
#[test]
fn yield_to_a_sibling_that_is_pinned_elsewhere_looks_into_no_dsq() {
    let m = Machine::new(1).cpus(4).cpus_per_llc(2).boot();
    let memory = m.memory(64);
    let elsewhere = m.spawn_asleep(task("elsewhere", hog()).on([1]).memory(&memory));
    let spins = m.spawn_asleep(task("spins", spins_for(elsewhere)).on([0]).memory(&memory));
    for (index, id) in [elsewhere, spins].into_iter().enumerate() {
        m.make_vcpu(id, &memory, index as u32, None);
        m.wake(id);
    }
    for cpu in [0, 1, 1, 1] {
        m.spawn(task("beside", hog()).on([cpu]));
    }
    m.run(SEC);
    let cost = m.cost(Op::Yield);
    println!("{cost:?}");
    assert!(cost.calls > 1000, "{}", cost.calls);
    // One that looks makes ten calls more, and goes through tasks.
    assert!(cost.helpers_max <= 15 && cost.scanned == 0, "{cost:?}");
}

/// Steps of grace that a vCPU has in 50 ms, from which its rival leaves in the first.
#[test]
fn grace_ends_when_no_task_waits_any_longer() {
    for hz in [250, 1000] {
        let m = Machine::new(1).cpus(2).hz(hz).boot();
        let memory = m.memory(64);
        memory.write_u32(0, 1);
        let holder = m.spawn_asleep(task("holder", hog()).on([0]).memory(&memory));
        m.make_vcpu(holder, &memory, 0, Some(Words::default()));
        m.wake(holder);
        m.run(SEC);
        let rival = m.spawn(task("rival", hog()).on([0]));
        let steps = || m.stat(stat::VERDICT + Verdict::Extend as u32);
        while steps() == 0 {
            m.run(10 * US);
        }
        m.set_affinity(rival, [1]);
        m.run(50 * MS);
        let verdict = |verdict: Verdict| m.stat(stat::VERDICT + verdict as u32);
        let (steps, capped) = (steps(), verdict(Verdict::Capped));
        println!("{hz} Hz: {steps} steps, {capped} capped");
        assert!(steps == 1 && capped == 0, "{steps} steps, {capped} capped");
    }
}

/// A vCPU may have promised its CPU when a starving task gets it.
#[test]
fn yield_that_a_starving_task_comes_before_counts_as_missed() {
    let m = Machine::new(1).cpus(1).boot();
    let memory = m.memory(64);
    let siblings: Rc<[Cell<Option<TaskId>>; 2]> = Rc::default();
    let promised = Rc::new(Cell::new(false));
    for me in 0..2 {
        let (siblings, promised) = (Rc::clone(&siblings), Rc::clone(&promised));
        let all = Rc::clone(&siblings);
        let spins = move |cx: &Cx<'_>| {
            let to = all[1 - me].get().expect("it is made before this one runs");
            promised.set(cx.yield_to(to) == YieldTo::Yielded);
            Step::Run(100 * US)
        };
        let id = m.spawn_asleep(task("vcpu", spins).weight(10_000).memory(&memory));
        m.make_vcpu(id, &memory, me as u32, None);
        siblings[me].set(Some(id));
    }
    // A slice of it is worth hours of the two.
    m.spawn(task("light", hog()).weight(1));
    siblings.iter().for_each(|id| m.wake(id.get().expect("both are made")));
    let came_before = Rc::new(Cell::new(0));
    let count = Rc::clone(&came_before);
    m.on_switch(Box::new(move |_, _, _, to| {
        if promised.take() && to == Some("light") {
            count.set(count.get() + 1);
        }
    }));
    m.run(60 * SEC);
    let (starving, missed) = (m.stat(stat::STARVING), m.stat(stat::MISSED));
    println!("{} of {starving} slices came before a yield, {missed} missed", came_before.get());
    assert!(came_before.get() > 0 && missed >= came_before.get());
}
