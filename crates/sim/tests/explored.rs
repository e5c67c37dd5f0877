// SPDX-License-Identifier: GPL-2.0-or-later
//! Random small hosts keep to the rules, and faults that are put in on purpose are found.
//! More hosts: `cargo run --release -p holdfast-sim --example explore -- --seeds 100000`.

use holdfast_sim::{Source, hosts};

#[track_caller]
fn keep_to_the_rules(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(violation) = hosts::run(seed, &Source::Tree) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn random_hosts_keep_to_the_rules() {
    keep_to_the_rules(0..200);
}

/// The affinity of a task changes while the CPU that is to run it has not woken it yet.
#[test]
fn a_task_that_is_being_woken_does_not_run_where_it_may_not() {
    keep_to_the_rules([10004, 32114]);
}

/// On these hosts a rival of another LLC comes, or time passes, between yield() and dispatch().
#[test]
fn granted_yields_are_not_judged_anew() {
    keep_to_the_rules([14917, 29529, 38922, 76997, 286]);
}

/// The weight of a vCPU changes while the timer of its CPU grants it grace.
#[test]
fn grace_does_not_outlive_the_probe_at_its_end() {
    keep_to_the_rules([17154]);
}

/// What ran before on this thread changes nothing: no host reads memory of an earlier one.
#[test]
fn same_seed_gives_same_host_after_any_other() {
    let trace = |seed| hosts::run(seed, &Source::Tree).map(|totals| totals.trace);
    let up: Vec<_> = (0..40).map(trace).collect();
    let mut down: Vec<_> = (0..40).rev().map(trace).collect();
    down.reverse();
    assert_eq!(up, down);
}

/// The first seed below `seeds` whose host violates `rule` when `old` in `file` is `new`.
fn first_seed(seeds: u64, rule: &str, (file, old, new): (&str, &str, &str)) -> Option<u64> {
    let source = Source::patched(file, old, new).expect("it compiles");
    (0..seeds).find(|seed| hosts::run(*seed, &source).is_err_and(|found| found.rule == rule))
}

#[test]
fn finds_a_group_that_is_left_without_a_count() {
    let change =
        ("base/groups.bpf.h", "\tgroup_count(group_of(tctx), tctx->own_weight, false);\n", "");
    let found = first_seed(1000, "groups", change);
    assert!(found.is_some());
}

#[test]
fn finds_a_cpu_that_idles_although_a_task_waits() {
    let change = ("enqueue.bpf.h", "WRITE_ONCE(cctx->has_pinned, true);", ";");
    let found = first_seed(1000, "idle CPU", change);
    assert!(found.is_some());
}

#[test]
fn finds_a_blocker_that_is_never_forgotten() {
    let change = (
        "vcpu/siblings.bpf.h",
        "\tif (was.blocker)\n\t\t__sync_fetch_and_sub(&nr_blockers, 1);\n",
        "",
    );
    let found = first_seed(1000, "blockers", change);
    assert!(found.is_some());
}

#[test]
fn finds_a_grace_beyond_its_cap() {
    let change =
        ("grace.h", "\tif (!left_ns) {", "\tleft_ns = prm->grace_max_ns;\n\tif (!left_ns) {");
    let found = first_seed(1000, "grace", change);
    assert!(found.is_some());
}

#[test]
fn finds_grace_that_a_vm_has_not_earned() {
    let found = first_seed(1000, "budget", ("grace.h", "\t*budget_ns -= step_ns;\n", ""));
    assert!(found.is_some());
}

#[test]
fn finds_a_yield_that_is_not_done() {
    let change =
        ("slice.bpf.h", "\tif (is_directed(yield.kind) && give_away", "\tif (false && give_away");
    let found = first_seed(1000, "yield", change);
    assert!(found.is_some());
}
