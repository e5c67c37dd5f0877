// SPDX-License-Identifier: GPL-2.0-or-later
//! What the scheduler says when something is wrong.
//! One alone: `cargo test --release -p holdfast-sim --test errors NAME`.

use holdfast_sim::{MS, Machine, SEC, Source, hog, periodic, task};

/// The violation of a host on which the scheduler runs with a change in `main.bpf.c`.
fn violation_with(old: &str, new: &str) -> String {
    let source = Source::patched("main.bpf.c", old, new).unwrap();
    let machine = Machine::new(1).cpus(2).source(source).boot();
    for nr in 0..4 {
        machine.spawn_asleep(task(format!("task{nr}"), periodic(MS, MS)));
    }
    machine.try_run(MS).unwrap_err().to_string()
}

#[test]
fn task_without_a_context_ends_the_scheduler() {
    let said = violation_with(
        "BPF_LOCAL_STORAGE_GET_F_CREATE);\n\tif (!tctx)\n\t\treturn -ENOMEM;",
        "p->pid == 3 ? 0 : BPF_LOCAL_STORAGE_GET_F_CREATE);\n\tif (!tctx)\n\t\treturn 0;",
    );
    assert!(said.contains("scx_error") && said.contains("thread 3 has no task_ctx"), "{said}");
}

#[test]
fn dump_tells_who_waits_where_and_for_how_long() {
    let machine = Machine::new(1).cpus(2).boot();
    for (name, cpus) in [("pinned", 0..1), ("other", 0..1), ("free", 0..2), ("beside", 0..2)] {
        machine.spawn(task(name, hog()).on(cpus));
    }
    machine.run(SEC);
    let dump = machine.dump();
    println!("{dump}");
    for line in
        ["LLC 0: DSQ has 1", "own DSQ has 1; contended 1", "queued 1 in DSQ 10000;", "queued 0 in"]
    {
        assert!(dump.contains(line), "{line}");
    }
    assert_eq!(dump.matches("weight 102400/1024").count(), 4, "each task that is runnable");
}
