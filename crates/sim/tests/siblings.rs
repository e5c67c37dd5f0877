// SPDX-License-Identifier: GPL-2.0-or-later
//! What siblings wait for.
//! One alone: `cargo test --release -p holdfast-sim --test siblings NAME`.

use holdfast_sim::guests::{Features, Vm, loads};
use holdfast_sim::stock::Stock;
use holdfast_sim::{MS, Machine, SEC};

/// Operations per CPU-second of a guest of 8 vCPUs, alone on two CPUs.
fn dense_rwlock(seed: u64, readable: bool, holdfast: bool) -> f64 {
    let builder = Machine::new(seed).cpus(2).switch_ns(loads::SWITCH_NS);
    let m = if holdfast { builder.boot() } else { builder.boot_class(Stock::class) };
    loads::host_noise(&m);
    m.run(SEC);
    let vm = Vm::boot(&m, 8, Features { readable, ..Features::default() }, None);
    loads::rwlock(&m, &vm, 8);
    m.run(300 * MS);
    vm.ops() as f64 / (vm.cpu_ns(&m) as f64 / 1e9)
}

/// The lock inside of a queued rwlock is released by the new owner of the rwlock.
#[test]
fn owner_of_a_rwlock_that_kicks_keeps_its_cpu() {
    for (seed, readable) in [(1, true), (2, true), (3, true), (4, false), (5, false)] {
        let [stock, holdfast] =
            [false, true].map(|holdfast| dense_rwlock(seed, readable, holdfast));
        let gain = holdfast / stock;
        assert!(gain > 2.0, "readable: {readable}, {holdfast:.0} operations, stock {stock:.0}");
    }
}
