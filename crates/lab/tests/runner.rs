// SPDX-License-Identifier: GPL-2.0-or-later
//! The runner against real agents and workloads, without a virtual machine.

mod local;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_agent::protocol::Request;
use holdfast_lab::experiment::Experiment;
use holdfast_lab::metric::Metric;
use holdfast_lab::runner::{self, Host, Measured, Options, Part};
use holdfast_lab::window::{Problem, Window};
use holdfast_policy::VcpuClass;
use holdfast_testbed::Error;
use holdfast_testbed::progress::Progress;

fn options() -> Options {
    Options { observer: vec!["observer".into()], ..Options::default() }
}

fn run_with(
    experiment: &Experiment,
    options: &Options,
    mut keep: impl FnMut(&Window) + Send,
) -> (Measured, Vec<Window>) {
    let mut windows = Vec::new();
    let measured = runner::run(
        experiment,
        options,
        &local::boot,
        &Progress::silent(),
        &Part::whole(),
        &mut |window| {
            // On a busy machine a window may be tried again, which these tests are not about.
            if window
                .problem
                .as_ref()
                .is_none_or(|p| !p.to_string().contains("had to wait too long"))
            {
                keep(&window);
                windows.push(window);
            }
        },
    );
    (measured, windows)
}

/// Every planned window that was measured, valid or not.
fn covered(windows: &[Window]) -> BTreeSet<(u32, &str, &str)> {
    windows.iter().map(|s| (s.round, s.contender.as_str(), s.case.as_str())).collect()
}

#[test]
fn measures_every_window_of_every_contender() {
    let experiment = local::experiment("rounds = 2", "rounds = 2");
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!(measured.notes, [""; 0]);
    assert_eq!((measured.hosts.len(), measured.guests.len()), (1, 1));
    assert_eq!(windows.len(), 8);
    assert_eq!(covered(&windows).len(), 8);
    let mut last = 0.0;
    for window in &windows {
        assert_eq!(window.problem, None);
        assert!(window.start_s > last);
        last = window.start_s;
        let value = |m| window.value(m).unwrap_or_else(|| panic!("{m} of {window:?}"));
        assert!(value(Metric::Throughput) > 0.0);
        assert!(value(Metric::WorkPerVmCpuSecond) > 0.0);
        assert!(value(Metric::VmCpuPercent) > 1.0, "{window:?}");
        let has_hogs = window.case == "lock";
        assert_eq!(window.value(Metric::HogsCpuPercent).is_some(), has_hogs);
        // The observer sees no VM here, so counts are absent, not zero.
        assert!(window.after.as_ref().unwrap().observer.is_some());
        assert_eq!(window.value(Metric::Preemptions(VcpuClass::Holder)), None);
    }
}

#[test]
fn perf_events_are_counted_or_the_reason_is_noted_once() {
    let experiment = local::experiment("rounds = 2", "rounds = 2\ncounters = true");
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    for window in &windows {
        assert_eq!(window.problem, None);
        let perf = window.after.as_ref().unwrap().perf.as_ref();
        let has_cycles = perf.is_some_and(|perf| perf.counts.contains_key("cycles"));
        assert_eq!(window.value(Metric::CyclesPerOp).is_some(), has_cycles, "{perf:?}");
        let is_noted = |note: &&String| note.starts_with("not counted:") && note.contains("cycles");
        let nr_noted = measured.notes.iter().filter(is_noted).count();
        assert_eq!(nr_noted, usize::from(!has_cycles), "{:?}", measured.notes);
    }
}

#[test]
fn a_case_on_the_host_is_measured_without_any_guest() {
    let to = "name = \"hog\"\nguest = \"host\"\nworkload = \"hog\"";
    let experiment = local::experiment("name = \"hog\"\nworkload = \"hog\"", to);
    let (measured, windows) =
        run_with(&experiment.clone().only(&["hog".into()]), &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!((measured.guests.len(), windows.len()), (0, 4));
    for window in &windows {
        assert_eq!(window.problem, None);
        let value = |m| window.value(m).unwrap_or_else(|| panic!("{m} of {window:?}"));
        assert!(value(Metric::Throughput) > 0.0);
        let percent = value(Metric::VmCpuPercent);
        assert!((1.0..=110.0).contains(&percent), "{percent} % of one loop's CPU");
        // Figures of a guest are absent, not zero.
        assert_eq!(window.after.as_ref().unwrap().guest, None);
        assert_eq!(window.value(Metric::UserUsPerOp), None);
    }
    // Before and after cases that have a guest, too.
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!((measured.guests.len(), windows.len(), covered(&windows).len()), (1, 8, 8));
    assert!(windows.iter().all(Window::is_valid));
}

/// Hosts that count their instructions measure together, and none repeats another's windows.
#[test]
fn two_hosts_share_the_rounds() {
    let experiment = local::experiment("rounds = 2", "rounds = 4");
    for (counts, hosts, nr_expected) in [(true, 2, 2), (true, 1, 1), (false, 2, 1)] {
        let nr_booted = AtomicU32::new(0);
        let boot = |_: &Experiment| -> holdfast_testbed::Result<Box<dyn Host>> {
            nr_booted.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(local::LocalHost::boot(counts)))
        };
        let options = Options { hosts: Some(hosts), ..options() };
        let mut windows = Vec::new();
        let (progress, part) = (Progress::silent(), Part::whole());
        let mut keep = |window| windows.push(window);
        let measured = runner::run(&experiment, &options, &boot, &progress, &part, &mut keep);
        assert!(measured.ended_by.is_none(), "{measured:?}");
        assert_eq!((measured.hosts.len(), measured.guests.len()), (1, 1), "they are alike");
        assert_eq!(nr_booted.load(Ordering::Relaxed), nr_expected);
        let valid: Vec<&Window> = windows.iter().filter(|s| s.is_valid()).collect();
        assert_eq!((valid.len(), covered(&windows).len()), (16, 16));
        // A round is measured on one host: its windows do not overlap.
        for round in 0..4 {
            let mut starts: Vec<f64> =
                valid.iter().filter(|s| s.round == round).map(|s| s.start_s).collect();
            starts.sort_by(f64::total_cmp);
            let length_s = if counts { 0.075 } else { 0.3 };
            assert!(starts.windows(2).all(|two| two[1] - two[0] >= length_s), "{starts:?}");
        }
        let time_of = |round: u32| {
            let starts = valid.iter().filter(|s| s.round == round).map(|s| s.start_s);
            starts.fold((f64::MAX, f64::MIN), |(first, last), s| (first.min(s), last.max(s)))
        };
        let (first, second) = (time_of(0), time_of(1));
        let together = first.0 < second.1 && second.0 < first.1;
        assert_eq!(together, nr_expected == 2, "{first:?} {second:?}");
    }
}

#[test]
fn one_of_two_hosts_does_what_the_other_cannot() {
    let experiment = local::experiment("rounds = 2", "rounds = 4");
    let nr_booted = AtomicU32::new(0);
    let boot = |_: &Experiment| -> holdfast_testbed::Result<Box<dyn Host>> {
        if nr_booted.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err(Error::Unsupported("the machine is full".into()));
        }
        Ok(Box::new(local::LocalHost::boot(true)))
    };
    let options = Options { hosts: Some(2), ..options() };
    let (progress, part) = (Progress::silent(), Part::whole());
    let mut windows = Vec::new();
    let mut keep = |window| windows.push(window);
    let measured = runner::run(&experiment, &options, &boot, &progress, &part, &mut keep);
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert!(measured.notes.iter().any(|note| note.contains("the machine is full")), "{measured:?}");
    assert_eq!(windows.iter().filter(|s: &&Window| s.is_valid()).count(), 16);
}

#[test]
fn a_contender_that_dies_is_reported_and_the_others_go_on() {
    let experiment = local::experiment("good-scheduler", "bad-scheduler");
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!(covered(&windows).len(), 8, "no window is dropped");
    let (stock, other): (Vec<&Window>, Vec<&Window>) =
        windows.iter().partition(|s| s.contender == "stock");
    assert!(stock.len() == 4 && stock.iter().all(|s| s.is_valid()));
    for window in &other {
        let problem = window.problem.as_ref().expect("it cannot count").to_string();
        assert!(
            problem.contains("exit code 3") && problem.contains("it is broken")
                || problem.contains("given up"),
            "{problem}"
        );
    }
    // Two windows were tried four times each; then the contender was given up.
    assert_eq!(other.iter().filter(|s| s.attempt == 3).count(), 2);
    assert_eq!(
        other.iter().filter(|s| matches!(s.problem, Some(Problem::GivenUp { .. }))).count(),
        2
    );
}

#[test]
fn a_contender_may_be_programs_beside_the_kernels_own_scheduler() {
    let two = "programs = [[\"good-program\", \"1\"], [\"good-program\", \"2\"]]";
    let experiment = local::experiment("command = [\"good-scheduler\"]", two);
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!(covered(&windows).len(), 8);
    assert!(windows.iter().all(|window| window.problem.is_none()), "{windows:?}");

    let experiment = local::experiment(
        "command = [\"good-scheduler\"]",
        "programs = [[\"good-program\"], [\"bad-program\"]]",
    );
    let (_, windows) = run_with(&experiment, &options(), |_| ());
    let problems = windows.iter().filter_map(|window| Some(window.problem.as_ref()?.to_string()));
    let said = "the program beside it ended: exit code 3: ready; it is broken";
    assert!(problems.clone().any(|problem| problem.contains(said)), "{windows:?}");
}

#[test]
fn a_contender_that_is_not_there_is_reported() {
    let experiment = local::experiment("good-scheduler", "no-scheduler");
    let (_, windows) = run_with(&experiment, &options(), |_| ());
    assert_eq!(covered(&windows).len(), 8);
    let problem = windows.iter().find_map(|s| s.problem.as_ref()).unwrap().to_string();
    assert!(problem.contains("no-scheduler"), "{problem}");
}

#[test]
fn hosts_that_measure_nothing_end_a_run() {
    let experiment = local::experiment("rounds = 2", "rounds = 2");
    let nr_booted = AtomicU32::new(0);
    let boot = |experiment: &Experiment| {
        nr_booted.fetch_add(1, Ordering::Relaxed);
        let host = local::boot(experiment)?;
        let _ = host.request(Request::spawn("end", ["sh", "-c", "sleep 0.1; kill -KILL $PPID"]));
        Ok(host)
    };
    let (progress, part) = (Progress::silent(), Part::whole());
    let measured = runner::run(&experiment, &options(), &boot, &progress, &part, &mut |window| {
        assert!(window.problem.is_some(), "{window:?}");
    });
    assert!(matches!(measured.ended_by, Some(Error::HostEnded { .. })), "{measured:?}");
    assert_eq!(nr_booted.load(Ordering::Relaxed), 8);
}

#[test]
fn a_guest_that_dies_is_started_again() {
    let experiment = local::experiment("hogs = 1", "hogs = 0");
    let mut nr_killed = 0;
    let (measured, windows) = run_with(&experiment, &options(), |window| {
        if window.is_valid() && nr_killed == 0 {
            nr_killed += 1;
            let vm = window.after.as_ref().unwrap().cpu.tasks.iter().find(|t| t.name == window.vm);
            // SAFETY: plain system call; the process is one that this test started.
            unsafe { libc::kill(vm.unwrap().pid, libc::SIGKILL) };
        }
    });
    assert!(measured.ended_by.is_none(), "{measured:?}");
    assert_eq!(windows.iter().filter(|s| s.is_valid()).count(), 8, "{windows:?}");
    let failed: Vec<&Window> = windows.iter().filter(|s| !s.is_valid()).collect();
    // A busy machine may lose more windows, which are measured again as well.
    assert!(!failed.is_empty());
    for failed in failed {
        let next = |s: &&Window| s.attempt == failed.attempt + 1;
        let again = windows.iter().filter(next).find(|s| {
            (s.round, &s.case, &s.contender) == (failed.round, &failed.case, &failed.contender)
        });
        assert!(again.is_some(), "{failed:?} was not measured again");
    }
}

#[test]
fn without_an_observer_everything_else_is_measured() {
    let experiment = local::experiment("rounds = 2", "rounds = 2");
    let absent = Options { observer: vec!["no-observer".into()], ..Options::default() };
    let (measured, windows) = run_with(&experiment, &absent, |_| ());
    assert!(windows.iter().all(Window::is_valid));
    assert!(measured.notes[0].contains("preemptions were not observed"), "{measured:?}");
    assert_eq!(measured.notes.len(), 1);
}

#[test]
fn a_workload_that_ends_is_reported() {
    let experiment =
        local::experiment("workload = \"hog\"", "workload = \"hog\"\nargs = [\"--nonsense\"]");
    let (_, windows) = run_with(&experiment, &options(), |_| ());
    assert_eq!(covered(&windows).len(), 8);
    let hog = windows.iter().filter(|s| s.case == "hog");
    for window in hog {
        let problem = window.problem.as_ref().unwrap().to_string();
        assert!(
            problem.contains("the workload ended: exit code 2") || problem.contains("given up"),
            "{problem}"
        );
    }
}

#[test]
fn what_runs_beside_a_guest_is_measured_and_ends_with_its_case() {
    let beside = "name = \"lock\"\nworkload = \"lock\"\n\
                  [[cases.beside]]\non = \"second\"\nworkload = \"hog\"\nthreads = 1";
    let text = local::TOML
        .replace("[guests.main]", "[guests.second]\nvcpus = 1\n[guests.main]")
        .replace("hogs = 1\n", "hogs = 1\nguest = \"main\"\n")
        .replace("name = \"lock\"\nworkload = \"lock\"", beside)
        + "[[cases]]\nname = \"program\"\nworkload = \"lock\"\n\
           [[cases.beside]]\non = \"host\"\nworkload = \"pipes\"\n";
    let experiment = Experiment::parse(&text, std::path::Path::new("two.toml")).unwrap();
    let (measured, windows) = run_with(&experiment, &options(), |_| ());
    assert!(measured.ended_by.is_none(), "{measured:?}");
    let mut guests: Vec<&str> = measured.guests.iter().map(|g| g.name.as_str()).collect();
    guests.sort_unstable();
    assert_eq!(guests, ["main", "second"]);
    assert_eq!(covered(&windows).len(), 12);
    for window in &windows {
        assert_eq!(window.problem, None);
        let expected: &[&str] = match window.case.as_str() {
            "lock" => &["guest-second"],
            "program" => &["beside0"],
            _ => &[],
        };
        assert_eq!(window.beside, expected, "{}", window.case);
        for metric in [
            Metric::BesideCpuPercent,
            Metric::BesideShareDeviationPoints,
            Metric::ShareOverBesidePoints,
            Metric::BesideThroughput,
        ] {
            assert_eq!(window.value(metric).is_some(), !expected.is_empty(), "{metric}");
        }
        let names: BTreeSet<&str> =
            window.after.iter().flat_map(|s| &s.cpu.tasks).map(|t| t.name.as_str()).collect();
        let hogs = usize::from(window.case != "hog");
        assert_eq!(names.len(), 1 + expected.len() + hogs, "{names:?}");
    }
}
