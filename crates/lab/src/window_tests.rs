// SPDX-License-Identifier: GPL-2.0-or-later

use serde_json::json;

use super::*;

fn task(name: &str, tid: i32, run_ms: u64, wait_ms: u64) -> TaskTime {
    TaskTime {
        name: name.into(),
        pid: if name == "vm" { 100 } else { tid },
        tid,
        comm: name.into(),
        run_ns: run_ms * 1_000_000,
        wait_ns: wait_ms * 1_000_000,
        switches: 1,
    }
}

fn snapshot(t_ms: u64, ops: u64, hist: &[(usize, u64)], tasks: Vec<TaskTime>) -> Snapshot {
    let mut counts = vec![0; 64];
    hist.iter().for_each(|&(i, n)| counts[i] = n);
    Snapshot {
        guest: None,
        cpu: CpuTimes { t_ns: t_ms * 1_000_000, tasks },
        // The guest booted later than the host, so its clock shows less.
        workload: Counters { t_ns: (t_ms - 500) * 1_000_000, ops, hist: counts },
        beside: Vec::new(),
        observer: None,
        scheduler: None,
        perf: None,
    }
}

fn between(before: Snapshot, after: Snapshot) -> Window {
    Window {
        spins: None,
        experiment: "e".into(),
        case: "c".into(),
        contender: "stock".into(),
        round: 0,
        attempt: 0,
        start_s: 0.0,
        problem: None,
        vm: "vm".into(),
        hogs: vec!["hog0".into()],
        beside: Vec::new(),
        groups: BTreeMap::new(),
        before: Some(before),
        after: Some(after),
        metrics: BTreeMap::new(),
    }
}

#[test]
fn relates_work_to_the_cpu_time_of_the_vm() {
    let before = snapshot(1000, 0, &[], vec![task("vm", 1, 100, 0), task("hog0", 9, 50, 50)]);
    let after = snapshot(
        3000,
        4000,
        &[(10, 4000)],
        // tid 2 started within the window.
        vec![task("vm", 1, 1100, 1000), task("vm", 2, 500, 1500), task("hog0", 9, 2050, 50)],
    );
    let mut window = between(before, after);
    window.work_out(2);
    let get = |m| window.value(m).unwrap();
    assert_eq!(get(Metric::Throughput), 2000.0);
    assert_eq!(get(Metric::VmCpuPercent), 75.0);
    assert_eq!(get(Metric::HogsCpuPercent), 100.0);
    assert!((get(Metric::WorkPerVmCpuSecond) - 2000.0 / 0.75).abs() < 1e-9);
    // Three threads wanted a whole CPU each and together had 1.75; others took the rest. So each
    // has a third, and the VM has two of them.
    assert!((get(Metric::VmFairSharePercent) - 350.0 / 3.0).abs() < 1e-9);
    assert!((get(Metric::ShareDeviationPoints) - (75.0 - 350.0 / 3.0)).abs() < 1e-9);
    assert_eq!(get(Metric::OpP50Us), (10.5f64).exp2() / 1000.0);
}

#[test]
fn what_was_not_measured_is_absent() {
    let mut window = between(
        snapshot(1000, 5, &[], vec![task("vm", 1, 100, 0)]),
        snapshot(2000, 6, &[], vec![task("vm", 1, 600, 0)]),
    );
    window.work_out(2);
    assert!(window.value(Metric::Throughput).is_some());
    for absent in [Metric::OpP50Us, Metric::OpP99Us, Metric::Preemptions(VcpuClass::Holder)] {
        assert_eq!(window.value(absent), None, "{absent}");
    }
}

#[test]
fn an_invalid_window_has_no_values() {
    let mut window = between(
        snapshot(1000, 5, &[], vec![task("vm", 1, 100, 0)]),
        snapshot(2000, 6, &[], vec![task("vm", 1, 600, 0)]),
    );
    window.problem = Some(Problem::Contender { why: "the contender ended".into() });
    window.work_out(2);
    assert_eq!(window.value(Metric::Throughput), None);
}

#[test]
fn a_window_is_settled_where_another_attempt_would_change_nothing() {
    let snapshots = || snapshot(1000, 5, &[], Vec::new());
    let mut window = between(snapshots(), snapshots());
    assert!(window.is_settled(), "it counts");
    let why = || "not tried: so says the contender".to_owned();
    let problems = [
        (Problem::Contender { why: why() }, false),
        (Problem::Window { why: why() }, false),
        (Problem::Host { why: why() }, false),
        (Problem::Stopped, false),
        (Problem::GivenUp { failures: 8 }, true),
    ];
    for (problem, settled) in problems {
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
        window.problem = Some(problem);
        assert_eq!(window.is_settled(), settled, "{window:?}");
    }
    let json = serde_json::to_value(Problem::GivenUp { failures: 8 }).unwrap();
    assert_eq!(json, serde_json::json!({"kind": "given_up", "failures": 8}));
}

#[test]
fn a_workload_that_was_restarted_has_no_throughput() {
    let mut window = between(
        snapshot(1000, 500, &[], vec![task("vm", 1, 100, 0)]),
        snapshot(2000, 6, &[], vec![task("vm", 1, 600, 0)]),
    );
    window.work_out(2);
    assert_eq!(window.value(Metric::Throughput), None);
    assert_eq!(window.value(Metric::WorkPerVmCpuSecond), None);
}

#[test]
fn percentiles_lie_in_their_bucket() {
    let mut hist = vec![0; 64];
    hist[3] = 98;
    hist[20] = 2;
    let p50 = percentile_ns(&hist, 0.5).unwrap();
    let p99 = percentile_ns(&hist, 0.99).unwrap();
    assert!((8.0..16.0).contains(&p50), "{p50}");
    assert!((f64::from(1 << 20)..f64::from(1 << 21)).contains(&p99), "{p99}");
    assert_eq!(percentile_ns(&[0; 64], 0.5), None);
}

#[test]
fn what_runs_beside_the_vm_has_a_share_of_its_own() {
    let before = snapshot(1000, 0, &[], vec![task("vm", 1, 0, 0), task("second", 2, 0, 0)]);
    let tasks = vec![
        task("vm", 1, 800, 200),
        task("second", 2, 600, 400),
        task("second", 3, 100, 0),
        task("hog0", 9, 500, 500),
    ];
    let after = snapshot(2000, 1000, &[], tasks);
    let mut window = between(before, after);
    window.beside = vec!["second".into()];
    for (ops, end) in [(0, &mut window.before), (500, &mut window.after)] {
        let end = end.as_mut().unwrap();
        end.beside = vec![Counters { ops, ..end.workload.clone() }];
    }
    window.work_out(2);
    let near = |m, expected: f64| {
        let value = window.value(m).unwrap();
        assert!((value - expected).abs() < 1e-6, "{m} is {value}, not {expected}");
    };
    near(Metric::BesideThroughput, 500.0);
    near(Metric::BesideCpuPercent, 70.0);
    let work = window.metrics[&Metric::WorkPerVmCpuSecond];
    near(Metric::WorkOverBeside, work / (500.0 / 0.7));
    near(Metric::ShareOverBesidePoints, 10.0);
    // One thread wants a tenth of a CPU. The others want all and share the rest of the 1.9 CPUs
    // used.
    near(Metric::VmFairSharePercent, 190.0 / 3.0);
    near(Metric::BesideShareDeviationPoints, 70.0 - (10.0 + 190.0 / 3.0));
    near(Metric::TimePerOpUs, 1000.0);
}

#[test]
fn what_the_scheduler_counted_is_related_to_the_vms_time() {
    let mut window = between(
        snapshot(1000, 0, &[], vec![task("vm", 1, 0, 0), task("other", 2, 100, 0)]),
        snapshot(2000, 10, &[], vec![task("vm", 1, 500, 0), task("other", 2, 350, 0)]),
    );
    let counted = |t_ms: u64, steps: u64| {
        let resp = json!({"nr_extended": steps, "vms": {"2": {"nr_capped": steps / 10}}});
        let line = json!({"errno": 0, "args": {"resp": resp}}).to_string();
        Counted::parse(&line, t_ms * 1_000_000)
    };
    window.before.as_mut().unwrap().scheduler = counted(1050, 5);
    window.after.as_mut().unwrap().scheduler = counted(3050, 100);
    window.work_out(2);
    // 50 a second while the VM had half a CPU.
    assert_eq!(window.scheduler_counters(), BTreeMap::from([("nr_extended".into(), 100.0)]));
    // 5 a second while the other VM had a quarter.
    let beside = window.scheduler_counters_beside("other");
    assert_eq!(beside, BTreeMap::from([("nr_capped".into(), 20.0)]));
    assert!(window.scheduler_counters_beside("none").is_empty());
    window.after.as_mut().unwrap().scheduler = None;
    assert!(window.scheduler_counters().is_empty());
}

#[test]
fn perf_events_are_per_operation_and_absent_if_not_counted() {
    let counted = |t_ms: u64, counts: &[(&str, u64)]| {
        let counts = counts.iter().map(|(event, n)| ((*event).to_owned(), *n)).collect();
        Some(PerfCounts { t_ns: t_ms * 1_000_000, counts, refused: BTreeMap::new() })
    };
    let vm = |run_ms| vec![task("vm", 1, run_ms, 0)];
    let mut before = snapshot(1000, 0, &[], vm(0));
    let mut after = snapshot(3000, 4000, &[], vm(2000));
    // Read at other moments than the workload: over 2.5 s, not 2 s.
    before.perf = counted(900, &[("cycles", 1000), ("instructions", 500), ("branches", 7)]);
    after.perf =
        counted(3400, &[("cycles", 10_001_000), ("instructions", 5_000_500), ("cache_misses", 9)]);
    let mut window = between(before, after);
    window.work_out(2);
    let value = |metric| window.value(metric);
    assert_eq!(value(Metric::CyclesPerOp), Some(2000.0));
    assert_eq!(value(Metric::InstructionsPerOp), Some(1000.0));
    assert_eq!(value(Metric::CyclesPerInstruction), Some(2.0));
    for metric in [Metric::CacheMissesPerOp, Metric::CacheMissRate, Metric::BranchesPerOp] {
        assert_eq!(value(metric), None, "{metric} was not counted at both ends");
    }
}

#[test]
fn guest_times_are_per_operation() {
    let stat = |user: u64, switches: &str| {
        format!("cpu  {user} 1 20 900 0 3 4 5 0 0\ncpu0 1 1 1\nintr 9 0\n{switches}btime 1\n")
    };
    let mut before = snapshot(1000, 0, &[], vec![task("vm", 1, 100, 0)]);
    let mut after = snapshot(2000, 100, &[], vec![task("vm", 1, 900, 0)]);
    before.guest = GuestTimes::parse(&stat(10, "ctxt 400\n"));
    after.guest = GuestTimes::parse(&stat(12, "ctxt 700\n"));
    let old = GuestTimes { user_ms: 110, system_ms: 270, steal_ms: 50, switches: Some(400) };
    assert_eq!(before.guest, Some(old));
    let mut window = between(before.clone(), after.clone());
    window.work_out(2);
    assert_eq!(window.value(Metric::UserUsPerOp), Some(200.0));
    assert_eq!(window.value(Metric::GuestSwitchesPerOp), Some(3.0));
    // Recorded without them.
    before.guest = GuestTimes::parse(&stat(10, ""));
    let mut window = between(before, after);
    window.work_out(2);
    assert_eq!(window.value(Metric::GuestSwitchesPerOp), None);
}
