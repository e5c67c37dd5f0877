// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of tasks and groups.
//! One alone: `cargo test --release -p holdfast-sim --test shares NAME`.

use holdfast_sim::{Machine, SEC, hog, task};

#[test]
fn tasks_share_by_weight() {
    let machine = Machine::new(1).cpus(2).boot();
    let tasks = [100, 100, 200].map(|weight| machine.spawn(task("hog", hog()).weight(weight)));
    machine.run(10 * SEC);
    for (id, expected) in tasks.into_iter().zip([5.0, 5.0, 10.0]) {
        let seconds = machine.cpu_ns(id) as f64 / 1e9;
        assert!((seconds - expected).abs() < 0.2, "{seconds} s of {expected}");
    }
}
