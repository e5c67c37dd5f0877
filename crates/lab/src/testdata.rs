// SPDX-License-Identifier: GPL-2.0-or-later
//! Results as a run leaves them, for tests that read results. Every window has raw counters, and
//! its metrics are worked out by the same code as in a run.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_agent::protocol::{Counters, CpuTimes, PerfCounts, TaskTime};
use holdfast_observer::PREEMPTIONS;
use holdfast_testbed::scheduler::Counted;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::json;

use crate::analysis;
use crate::experiment::Experiment;
use crate::replications;
use crate::result::{KernelFacts, MachineFacts, Provenance, RunResult};
use crate::spins::SpinWaits;
use crate::window::{GuestTimes, Problem, Snapshot, Window};

pub(crate) const TOML: &str = r#"
name = "three-ways"
summary = "The tests' experiment: three contenders, two cases, and one expectation of each kind."
[guests.main]
kernel = "7"
[defaults]
hogs = 2
[windows]
rounds = 8
[[contenders]]
name = "stock"
[[contenders]]
name = "base"
command = ["scx_holdfast", "--no-guest-knowledge"]
[[contenders]]
name = "holdfast"
command = ["scx_holdfast"]
[[cases]]
name = "lock"
workload = "lock"
[[cases]]
name = "lock <pause>"
workload = "lock"
threads = 8
pause_exits = true
[[expect]]
case = "lock"
contender = "holdfast"
metric = "work_per_vm_cpu_second"
of = "low"
min = 1.25
[[expect]]
case = "lock"
contender = "holdfast"
metric = "share_deviation_points"
of = "mean"
min = -5
max = 5
[[expect]]
case = "lock"
contender = "holdfast"
metric = "holder_long_preemptions_per_vm_cpu_second"
max = 0.001
"#;

/// A run of [`TOML`]; `holdfast` is the fastest, and windows of `base` with pause exits fail once.
pub(crate) fn result() -> RunResult {
    let experiment = Experiment::parse(TOML, Path::new("test.toml")).expect("it is well-formed");
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut windows = Vec::new();
    let mut start_s = 12.0;
    for round in 0..experiment.windows.rounds {
        for (c, contender) in experiment.contenders.iter().enumerate() {
            for (k, case) in experiment.cases.iter().enumerate() {
                let speed = [290_000.0, 331_000.0, 420_000.0][c] * if k == 1 { 0.7 } else { 1.0 };
                let drift = 1.0 + 0.1 * f64::sin(start_s / 40.0);
                let noise = 1.0 + 0.1 * (rng.random::<f64>() - 0.5);
                let mut window = Window {
                    experiment: experiment.name.clone(),
                    case: case.name.clone(),
                    contender: contender.name.clone(),
                    round,
                    attempt: 0,
                    start_s,
                    problem: None,
                    vm: "main".into(),
                    hogs: vec!["hog0".into(), "hog1".into()],
                    beside: Vec::new(),
                    groups: BTreeMap::new(),
                    before: Some(snapshot(start_s, 0.0, 0.0, c)),
                    after: Some(snapshot(start_s + 1.5, 1.5, speed * drift * noise, c)),
                    spins: Some(SpinWaits {
                        interval_ns: 1_250_000_000,
                        total_ns: [200_000_000, 90_000_000, 9_000_000][c],
                        hist: [vec![0; 12], vec![900], vec![0; 10], vec![[40, 20, 0][c]]].concat(),
                    }),
                    metrics: BTreeMap::new(),
                };
                if (round, c, k) == (2, 1, 1) {
                    let why = "the contender ended (exit code 1)".into();
                    window.problem = Some(Problem::Contender { why });
                    window.after = None;
                }
                window.work_out(2);
                windows.push(window);
                start_s += 2.1;
            }
        }
    }
    analysis::conclude(provenance(start_s), vec![experiment], windows, false)
}

fn provenance(duration_s: f64) -> Provenance {
    let kernel = |name: &str, nr_cpus| KernelFacts {
        experiment: "three-ways".into(),
        name: name.into(),
        kernel_release: "7.2.12-cloud-amd64".into(),
        cmdline: "console=ttyS0 quiet".into(),
        nr_cpus,
        pause_exits: false,
    };
    Provenance {
        date: "2026-11-20T10:00:00Z".into(),
        duration_s,
        holdfast_version: "0.1.0".into(),
        holdfast_commit: Some("0123abc".into()),
        accelerator: "tcg".into(),
        qemu: Some("10.0.2".into()),
        machine: MachineFacts {
            cpu_model: "Some CPU @ 2.00GHz".into(),
            nr_cpus: 2,
            kernel_release: "6.1.0-1-amd64".into(),
        },
        hosts: vec![kernel("host", 2)],
        guests: vec![kernel("main", 4)],
        packages: [("qemu-system-x86".to_string(), "1:10.0.2".to_string())].into(),
        ..Provenance::default()
    }
}

/// Counters `within` seconds into a window of a VM that has two thirds of two CPUs.
fn snapshot(t_s: f64, within: f64, ops_per_cpu_s: f64, contender: usize) -> Snapshot {
    let ns = |s: f64| (s * 1e9) as u64;
    let task = |name: &str, pid, tid, comm: &str, run: f64| TaskTime {
        name: name.into(),
        pid,
        tid,
        comm: comm.into(),
        run_ns: ns(run),
        wait_ns: ns(within - run),
        switches: 400,
    };
    let mut tasks: Vec<TaskTime> =
        (0..4).map(|i| task("main", 100, 101 + i, &format!("CPU {i}/KVM"), within / 3.0)).collect();
    tasks.extend((0..2).map(|i| {
        let name = format!("hog{i}");
        task(&name, 200 + i, 200 + i, "hog", within / 3.0 - 0.01 * within * contender as f64)
    }));
    let ops = (ops_per_cpu_s * within * 4.0 / 3.0) as u64;
    let mut hist = vec![0; 64];
    for (bucket, part) in
        [(9, 2), (10, 5), (11, 20), (12, 100), (16, 1000), (22 - contender, 20_000)]
    {
        hist[bucket] = ops / part;
    }
    let holders = f64::from([180, 170, 12][contender]) * within;
    let by_class = |per: f64| {
        let holder = (holders * per) as u64;
        json!({"preemptible": (300.0 * within * per) as u64, "holder": holder, "irq": holder / 9,
               "waiter": (90.0 * within * per) as u64, "head": holder / 12, "unknown": 0})
    };
    let vcpu = json!({"vcpu": 0, "tid": 101, "readable": true, "kernel": "7.2.12",
        "preemptions": by_class(1.0), "offcpu_ns": by_class(4e6),
        "offcpu_over_cap": by_class(0.7)});
    Snapshot {
        cpu: CpuTimes { t_ns: ns(t_s), tasks },
        workload: Counters { t_ns: ns(t_s - 5.0), ops, hist },
        guest: Some(GuestTimes {
            user_ms: (300.0 * within) as u64,
            system_ms: (900.0 * within) as u64,
            steal_ms: (2500.0 * within) as u64,
            switches: Some((1200.0 * within) as u64),
        }),
        beside: Vec::new(),
        perf: Some(PerfCounts {
            t_ns: ns(t_s),
            counts: ["cycles", "instructions"]
                .map(|event| (event.to_owned(), (2e9 * within) as u64))
                .into(),
            refused: BTreeMap::new(),
        }),
        observer: Some(json!({"schema": PREEMPTIONS, "t_ns": ns(t_s), "interval_ns": 1,
            "lost_events": 0, "vms": [{"pid": 100, "vcpus": [vcpu]}]})),
        scheduler: (contender > 0).then(|| {
            // 120 graces in a window: of 16 us, 0.5 ms and 1 ms at least.
            let need = [(4, 60.0), (9, 16.0), (10, 4.0)];
            let mut need_us_log2 = vec![0; 16];
            need.iter().for_each(|(i, n)| need_us_log2[*i] = (n * within) as u64);
            let decisions = json!({"nr_extended": 300.0 * within, "nr_released": 80.0 * within,
                "grace_ns": 8e6 * within, "nr_pause_to_holder": 12.0 * within,
                "nr_preempted_preemptible": 400.0 * within, "nr_unprotected": 500.0 * within,
                "grace_need_us_log2": need_us_log2});
            // A scheduler that reads no guests reports no VMs.
            let vms = if contender == 2 { json!({"100": decisions}) } else { json!({}) };
            let line = json!({"errno": 0, "args": {"resp": {"nr_vms_readable": 1,
                "nr_kept": 20.0 * within, "nr_wakeup_preempt": 30.0 * within, "nr_starving": 0,
                "vms": vms}}});
            Counted::parse(&line.to_string(), ns(t_s)).expect("it is an answer")
        }),
    }
}

/// The same beside a VM named `other`.
pub(crate) fn with_a_vm_beside() -> RunResult {
    let mut result = result();
    for window in &mut result.windows {
        window.beside = vec!["other".into()];
        for (end, run_ns) in [(&mut window.before, 0), (&mut window.after, 1_000_000_000)] {
            let Some(end) = end else { continue };
            let vm =
                TaskTime { name: "other".into(), pid: 200, run_ns, ..end.cpu.tasks[0].clone() };
            end.cpu.tasks.push(vm);
            if let Some(scheduler) = &mut end.scheduler {
                scheduler.counters["vms"]["200"] = json!({"nr_over_budget": 50});
            }
        }
    }
    analysis::again(result)
}

/// An effect of an imaginary document, with the windows of [`result`].
pub(crate) fn effect() -> replications::Effect {
    let text = r#"
name = "Pauses that exit"
what = "Before: none. After: some."
unit = "s"
metric = "time_per_op_us"
direction = "down"
gone = "It went."
reversed = "It came back."
[[rows]]
name = "pauses"
before = [4.0, 0.1]
after = [3.0, 0.3]
ours = { before = ["lock", "stock"], after = ["lock <pause>", "stock"] }
"#;
    toml::from_str(text).expect("it is well-formed")
}
