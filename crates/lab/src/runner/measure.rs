// SPDX-License-Identifier: GPL-2.0-or-later
//! Measures one window.

use std::collections::BTreeMap;
use std::time::Instant;

use holdfast_agent::protocol::{Counters, Outcome as Answered, Reply, Request};
use holdfast_testbed::scheduler::Counted;

use super::plan::{Group, Planned};
use super::session::{OBSERVER, Outcome, Session, Trouble, failed};
use super::workload::{Job, answers};
use crate::experiment::Experiment;
use crate::window::{GuestTimes, Snapshot, Window};

/// Longest the observer may take for an answer.
const OBSERVER_LIMIT_MS: u64 = 5000;

/// By how much the guest's window may be longer than the host's: this factor, or in short windows
/// this many seconds, in the experiment's own time.
const MAX_STRETCH: f64 = 1.5;
const MAX_STRETCH_S: f64 = 0.5;

/// Brings the host to the state of `planned` and measures it.
///
/// The figures are in `window` even if it then turns out not to count.
pub(super) fn measure(
    session: &mut Session,
    experiment: &Experiment,
    group: &Group,
    planned: Planned,
    began: Instant,
    window: &mut Window,
) -> Outcome<()> {
    let case = &experiment.cases[planned.case];
    session.ensure_guests(&group.guests, group.pause_exits)?;
    session.ensure_hogs(experiment.hogs_of(case))?;
    session.ensure_contender(Some(planned.contender))?;
    let contender = &experiment.contenders[planned.contender];
    session.ensure_observed(experiment.observes(contender))?;
    session.start_workload(planned.case)?;
    session.pass(experiment.windows.warmup_ms / session.shortened())?;
    session.await_warmup(planned.case)?;
    window.vm = session.vm();
    window.hogs = session.hogs();
    window.beside = session.beside();
    window.groups = session.groups.clone();
    window.groups.retain(|name, _| {
        *name == window.vm || window.hogs.contains(name) || window.beside.contains(name)
    });
    if experiment.windows.counters {
        session.start_perf()?;
    }
    window.start_s = began.elapsed().as_secs_f64();
    window.before = Some(snapshot(session, End::Before)?);
    session.pass(experiment.length_ms_of(case) / session.shortened())?;
    let after = snapshot(session, End::After);
    // A program that has ended explains a failed snapshot better.
    if let Some(problem) = session.contender_problem()? {
        return Err(Trouble::Window(problem));
    }
    let after = after?;
    let problem =
        window.before.as_ref().and_then(|before| misaligned(before, &after, session.shortened()));
    let times_spins = experiment.guest_of(case).is_some_and(|(_, guest)| guest.spins);
    if let Some(before) = window.before.as_ref().filter(|_| times_spins) {
        window.spins = session.spins(before.workload.t_ns, after.workload.t_ns)?;
    }
    window.after = Some(after);
    problem.map_or(Ok(()), |problem| Err(Trouble::Window(problem)))
}

/// An empty record of `planned`.
pub(super) fn blank(experiment: &Experiment, planned: Planned, attempt: u32) -> Window {
    Window {
        experiment: experiment.name.clone(),
        case: experiment.cases[planned.case].name.clone(),
        contender: experiment.contenders[planned.contender].name.clone(),
        round: planned.round,
        attempt,
        start_s: 0.0,
        problem: None,
        vm: String::new(),
        hogs: Vec::new(),
        beside: Vec::new(),
        groups: BTreeMap::new(),
        before: None,
        after: None,
        spins: None,
        metrics: BTreeMap::new(),
    }
}

/// An end of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Before,
    After,
}

/// Reads all counters in one request, so that they belong together.
///
/// Requests to the observer and the scheduler take CPU time, in the windows that have them. It is
/// outside of the intervals of workloads and CPU times. A request to a guest takes as long as its
/// agent waits for a CPU, which is outside of the interval of CPU times.
fn snapshot(session: &mut Session, end: End) -> Outcome<Snapshot> {
    let mut names = vec![session.vm()];
    names.extend(session.beside());
    names.extend(session.hogs());
    let mut all = Vec::new();
    if session.counts {
        all.push((Asked::Scheduler, session.counters_request()));
    }
    if session.is_observed() {
        let (name, line) = (OBSERVER.into(), "sample".into());
        let ask = Request::Ask { name, line, timeout_ms: OBSERVER_LIMIT_MS };
        all.push((Asked::Observer, ask));
    }
    let jobs = session.running_jobs();
    let counters = jobs.iter().enumerate();
    all.extend(counters.map(|(i, job)| (Asked::Job(i), job.batch(job.counters_requests()))));
    if session.counts_perf {
        all.push((Asked::Perf, Request::PerfRead { name: session.vm() }));
    }
    all.push((Asked::Cpu, Request::CpuTimes { names }));
    if end == End::After {
        all.reverse();
    }
    let (asked, requests): (Vec<Asked>, Vec<Request>) = all.into_iter().unzip();
    let Reply::Batch { responses } = session.ask(Request::Batch { requests })? else {
        return Err(Trouble::Window("a batch was answered with something else".into()));
    };

    let (mut cpu, mut observer, mut scheduler, mut guest) = (None, None, None, None);
    let mut perf = None;
    let mut workloads: Vec<Option<Counters>> = vec![None; jobs.len()];
    for (asked, answer) in asked.into_iter().zip(responses) {
        match (asked, answer) {
            (Asked::Cpu, Answered::Ok(Reply::CpuTimes(times))) => cpu = Some(times),
            (Asked::Cpu, Answered::Error(e)) => return Err(failed("reading CPU times", &e)),
            (Asked::Job(i), Answered::Ok(reply)) => {
                let mut answered = answers(reply)?;
                workloads[i] = Some(counters_of(session, &jobs[i], &mut answered)?);
                // The host's CPU times are not those of a guest.
                let is_guests = i == 0 && jobs[i].guest.is_some();
                if let (true, Some(Answered::Ok(Reply::ReadFile { data, .. }))) =
                    (is_guests, answered.pop())
                {
                    guest = GuestTimes::parse(&String::from_utf8_lossy(&data));
                }
            }
            (Asked::Job(_), Answered::Error(e)) => {
                return Err(failed("reading the workload's counters", &e));
            }
            (Asked::Observer, Answered::Ok(Reply::Ask { line })) => {
                match serde_json::from_str(&line) {
                    Ok(value) => observer = Some(value),
                    Err(e) => session.observer_failed(&format!("it said {line:?}: {e}")),
                }
            }
            (Asked::Observer, Answered::Error(e)) => session.observer_failed(&e.to_string()),
            (Asked::Scheduler, Answered::Ok(Reply::Exchange { line, t_ns })) => {
                scheduler = Counted::parse(&line, t_ns);
            }
            // A contender that has ended is noticed after the window.
            (Asked::Scheduler, Answered::Error(_)) => session.counts = false,
            (Asked::Perf, Answered::Ok(Reply::Perf(counts))) => perf = session.counted(counts),
            (Asked::Perf, Answered::Error(e)) => return Err(failed("reading perf events", &e)),
            (_, Answered::Ok(other)) => return Err(unexpected("counters", &other)),
        }
    }
    let mut workloads = workloads.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default();
    match cpu {
        Some(cpu) if !workloads.is_empty() => {
            let workload = workloads.remove(0);
            let beside = workloads;
            Ok(Snapshot { cpu, workload, guest, beside, observer, scheduler, perf })
        }
        _ => Err(Trouble::Window("a batch was answered in part".into())),
    }
}

/// The purpose of one request of a snapshot.
#[derive(Clone, Copy)]
enum Asked {
    Cpu,
    Observer,
    Scheduler,
    Perf,
    /// The workload of this number.
    Job(usize),
}

/// The counters, if the workload that counts in them is running.
fn counters_of(session: &Session, job: &Job, answered: &mut Vec<Answered>) -> Outcome<Counters> {
    if let Some(problem) = session.workload_problem(job, answered.pop())? {
        return Err(Trouble::Window(problem));
    }
    match answered.pop() {
        Some(Answered::Ok(Reply::Counters(counters))) => Ok(counters),
        Some(Answered::Error(e)) => Err(failed("reading the workload's counters", &e)),
        other => Err(unexpected("the workload's counters", &other)),
    }
}

/// Why the two ends of a window do not belong together, if they do not.
fn misaligned(before: &Snapshot, after: &Snapshot, shortened: u64) -> Option<String> {
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
    let host_s = seconds(before.cpu.t_ns, after.cpu.t_ns);
    let ends = |s: &Snapshot| -> Vec<u64> {
        std::iter::once(&s.workload).chain(&s.beside).map(|c| c.t_ns).collect()
    };
    let mut guests_s = ends(before).into_iter().zip(ends(after)).map(|(b, a)| seconds(b, a));
    let guest_s = guests_s
        .find(|s| *s > MAX_STRETCH * host_s && s - host_s > MAX_STRETCH_S / shortened as f64)?;
    Some(format!(
        "the guest's agent had to wait too long for a CPU: its planned has {guest_s:.2} s, the \
         host's {host_s:.2} s"
    ))
}

fn unexpected(what: &str, answer: &impl std::fmt::Debug) -> Trouble {
    Trouble::Window(format!("reading {what} gave {answer:?}"))
}
