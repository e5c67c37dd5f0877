// SPDX-License-Identifier: GPL-2.0-or-later
//! Rules hold where nothing is wrong. What they find: `explored.rs`.
//! One alone: `cargo test --release -p holdfast-sim --test rules NAME`.

use holdfast_sim::{Bounds, Explore, MS, Machine, SEC, hog, task};

/// The affinity of a task that has waited for one CPU changes while another idles. The rules look
/// in the middle of the change, when the task is in no DSQ.
#[test]
fn a_cpu_that_a_task_may_run_on_for_a_moment_has_not_idled_for_long() {
    for before_ns in (100..10_000).step_by(300) {
        let machine = Machine::new(1)
            .cpus(2)
            .explore(Explore { pause_ns: 2000 })
            .bounds(Bounds { wait_ns: 8 * SEC, idle_ns: 20 * MS })
            .boot();
        machine.spawn(task("heavy", hog()).weight(1000).on([0]));
        let light = machine.spawn(task("light", hog()).weight(1).on([0]));
        machine.run(100 * MS - before_ns);
        machine.set_affinity(light, [0, 1]);
        machine.run(100 * MS);
        assert!(machine.cpu_ns(light) > 98 * MS);
    }
}
