// SPDX-License-Identifier: GPL-2.0-or-later
//! The cost of a context switch on the lab's host where no VM runs: round trips of a byte between
//! two processes, as in `perf bench sched pipe`. `scx_holdfast` with and without its knowledge of
//! guests is compared with the stock scheduler. The host counts its instructions, so a noisy
//! machine changes nothing.
//!
//! ```text
//! make build && cargo bench -p holdfast-lab --bench host_switches
//! ```

use std::io::Write;

use holdfast_agent::protocol::{Counters, Reply, Request};
use holdfast_lab::stats::{self, Round, Settings};
use holdfast_testbed::machine::{Clock, Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{end, end_scheduler, load_kvm, spec, start_scheduler};

const ROUNDS: usize = 10;
const WARMUP_MS: u64 = 500;
const LENGTH_MS: u64 = 1000;
const STOCK: &str = "stock";
/// Name, and the arguments of `scx_holdfast`; stock has none.
const CONTENDERS: [(&str, Option<&[&str]>); 3] =
    [(STOCK, None), ("base", Some(&["--no-guest-knowledge"])), ("holdfast", Some(&[]))];

fn main() {
    let machine =
        Machine::boot(&MachineSpec { clock: Clock::Instructions, ..spec() }, &Progress::stderr())
            .unwrap();
    load_kvm(&machine);
    let mut rates = CONTENDERS.map(|_| Vec::new());
    for round in 0..ROUNDS {
        print!("round {:2} of {ROUNDS}:", round + 1);
        for turn in 0..CONTENDERS.len() {
            // The contenders rotate through first, second and third place.
            let index = (round + turn) % CONTENDERS.len();
            let (name, args) = CONTENDERS[index];
            let rate = round_trips_per_s(&machine, args);
            rates[index].push(rate);
            print!(" {name} {rate:.0}/s");
            std::io::stdout().flush().unwrap();
        }
        println!();
    }
    machine.shut_down().unwrap();
    println!("\n{:10} {:>14} {:>24}", "", "round trips/s", "over stock [low, high]");
    for ((name, _), of_it) in CONTENDERS.iter().zip(&rates) {
        let mean = stats::mean(of_it).unwrap();
        let rounds = of_it.iter().zip(&rates[0]);
        let rounds = rounds.map(|(&contender, &baseline)| Round { contender, baseline });
        let over = stats::compare(&rounds.collect::<Vec<_>>(), &Settings::default()).unwrap();
        let over = match *name {
            STOCK => "1".to_owned(),
            _ => format!("{:.3} [{:.3}, {:.3}]", over.ratio, over.low, over.high.unwrap()),
        };
        println!("{name:10} {mean:14.0} {over:>24}");
    }
}

fn round_trips_per_s(machine: &Machine, scheduler: Option<&[&str]>) -> f64 {
    const PIPES: &str = "pipes";
    const COUNTERS: &str = "/tmp/pipes";
    if let Some(args) = scheduler {
        start_scheduler(machine, args);
    }
    let argv = [&machine.workload_path(PIPES), "--threads", "2", "--counters", COUNTERS];
    machine.request(Request::spawn(PIPES, argv)).unwrap();
    pass(machine, WARMUP_MS);
    let before = counters(machine, COUNTERS);
    pass(machine, LENGTH_MS);
    let after = counters(machine, COUNTERS);
    end(machine, PIPES, libc::SIGTERM);
    if scheduler.is_some() {
        end_scheduler(machine);
    }
    let ops = after.ops - before.ops;
    assert!(ops > 0, "no byte came back");
    ops as f64 / ((after.t_ns - before.t_ns) as f64 / 1e9)
}

/// Passes time of the host's clock.
fn pass(machine: &Machine, ms: u64) {
    machine.request(Request::Sleep { ms }).unwrap();
}

fn counters(machine: &Machine, path: &str) -> Counters {
    match machine.request(Request::Counters { path: path.into() }).unwrap() {
        Reply::Counters(counters) => counters,
        other => panic!("{other:?}"),
    }
}
