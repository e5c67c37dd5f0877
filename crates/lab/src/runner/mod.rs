// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs experiments on a host: brings it to what each window needs, measures, goes on after trouble.
//!
//! Nothing is dropped silently. A window that could not be measured stays in the result with the
//! reason, is tried again, and a contender that fails again and again is given up, with every
//! window it then misses in the result. Samples are handed on as they come, so that a run that is
//! ended keeps what it has.

mod contender;
mod host;
mod measure;
mod plan;
mod session;
mod spins;
mod workload;

use std::time::{Duration, Instant};

pub use self::host::{Host, HostFacts, LabHost, Place};
use self::measure::{blank, measure};
use self::plan::{Group, Window};
use self::session::{Session, Trouble};
use crate::error::{Error, Result};
use crate::experiment::Experiment;
use crate::progress::{Progress, Step};
use crate::result::KernelFacts;
use crate::resume::Done;
use crate::sample::Sample;

/// Attempts at a window, the first one included.
pub(crate) const ATTEMPTS: u32 = 4;
/// Failures in a row after which a contender is given up.
const GIVE_UP_AFTER: u32 = 2 * ATTEMPTS;
/// Hosts in a row that may end without having measured anything.
const HOSTS: u32 = 8;

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds instead of the experiment's own.
    pub rounds: Option<u32>,
    /// Command that answers each line with counters of preemptions.
    pub observer: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        let observer = ["holdfast", "preemptions", "--json", "--stdin"];
        Options { rounds: None, observer: observer.map(str::to_owned).to_vec() }
    }
}

/// What came of an experiment.
#[derive(Debug, Default)]
pub struct Measured {
    /// Kernels of the hosts that were booted.
    pub hosts: Vec<KernelFacts>,
    /// Kernels of the guests that were booted.
    pub guests: Vec<KernelFacts>,
    /// What the host was made of; none if none came up.
    pub facts: Option<HostFacts>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Why it ended early, if it did.
    pub ended_by: Option<Error>,
}

/// Boots a host for an experiment.
pub type Boot<'a> = dyn Fn(&Experiment) -> Result<Box<dyn Host + 'a>> + 'a;

/// What an experiment is a part of.
#[derive(Clone, Debug)]
pub struct Part {
    /// When the whole run began.
    pub began: Instant,
    /// What was measured before it was stopped.
    pub done: Done,
    /// How long the experiments after this one will take.
    pub later: Duration,
}

impl Part {
    /// The only one of a run that begins now.
    pub fn whole() -> Part {
        Part { began: Instant::now(), done: Done::default(), later: Duration::ZERO }
    }
}

/// How long an experiment will take, if everything takes as long as it usually does.
pub fn estimate(experiment: &Experiment, done: &Done) -> Duration {
    let groups = plan::left(experiment, done);
    if groups.is_empty() { Duration::ZERO } else { plan::estimate(experiment, &groups, None) }
}

/// Runs one experiment, or what is left of it. Each window is handed to `keep` as soon as it is over.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    boot: &Boot,
    progress: &Progress,
    part: &Part,
    keep: &mut dyn FnMut(Sample),
) -> Measured {
    let mut experiment = experiment.clone();
    experiment.windows.rounds = options.rounds.unwrap_or(experiment.windows.rounds);
    let is_observed = experiment.contenders.iter().any(|c| experiment.observes(c));
    let observer = is_observed.then(|| options.observer.clone());
    let mut run = Run {
        experiment: &experiment,
        groups: plan::left(&experiment, &part.done).into(),
        attempt: 0,
        failures: vec![0; experiment.contenders.len()],
        last: None,
        part,
        keep,
        nr_measured: 0,
        measured: Measured::default(),
    };
    if run.groups.is_empty() {
        return run.measured;
    }
    let mut nr_in_vain = 0;
    loop {
        let nr_before = run.nr_measured;
        let host = match boot(&experiment) {
            Ok(host) => host,
            Err(e) => {
                run.measured.ended_by = Some(e);
                break;
            }
        };
        run.measured.facts = Some(host.facts());
        let mut session = Session::new(host, &experiment, observer.clone());
        let ended = run.measure_all(&mut session, progress);
        run.note(session);
        nr_in_vain = if run.nr_measured > nr_before { 0 } else { nr_in_vain + 1 };
        match ended {
            Ok(()) => break,
            Err(Error::Interrupted) => {
                run.measured.ended_by = Some(Error::Interrupted);
                break;
            }
            Err(e) if nr_in_vain == HOSTS => {
                run.measured.ended_by = Some(e);
                break;
            }
            Err(e) => {
                let what = format!("{}: the host is booted again, because {e}", experiment.name);
                progress.note(&what);
                run.measured.notes.push(what);
                run.last = None;
            }
        }
    }
    run.measured
}

/// How fast this machine is, compared with the one that the plan's times are from.
struct Pace {
    start: Instant,
    /// What was planned for everything.
    planned: Duration,
}

impl Pace {
    /// How long will take what is planned to take `left`, and `later` after that?
    fn left(&self, left: Duration, later: Duration) -> Duration {
        let done = self.planned.saturating_sub(left);
        // Too little was done to tell.
        if done < Duration::from_secs(10) {
            return left + later;
        }
        let slower = self.start.elapsed().as_secs_f64() / done.as_secs_f64();
        (left + later).mul_f64(slower.clamp(0.1, 10.0))
    }
}

struct Run<'a> {
    experiment: &'a Experiment,
    /// What is left to do.
    groups: std::collections::VecDeque<Group>,
    /// Attempts at the window that is next.
    attempt: u32,
    /// Failures in a row of each contender.
    failures: Vec<u32>,
    /// What was measured last on this host.
    last: Option<Window>,
    /// Windows that count.
    nr_measured: u32,
    part: &'a Part,
    keep: &'a mut dyn FnMut(Sample),
    measured: Measured,
}

impl Run<'_> {
    /// Measures what is left; an error is one of the host.
    fn measure_all(&mut self, session: &mut Session, progress: &Progress) -> Result<()> {
        let mut step = progress.step(format!("Measuring {}", self.experiment.name));
        let pace = Pace { start: Instant::now(), planned: self.planned() };
        let nr_all = plan::plan(self.experiment).iter().map(|g| g.windows.len()).sum::<usize>();
        let nr_before = self.nr_measured;
        while let Some(group) = self.groups.front_mut() {
            let Some(&window) = group.windows.first() else {
                self.groups.pop_front();
                self.last = None;
                continue;
            };
            let group = group.clone();
            let nr_left: usize = self.groups.iter().map(|g| g.windows.len()).sum();
            self.tell(&mut step, &pace, window, nr_all - nr_left + 1, nr_all);
            self.nr_measured += u32::from(self.measure_one(session, &group, window)?);
        }
        step.done(&format!("{} windows", self.nr_measured - nr_before));
        Ok(())
    }

    /// What is left to do, if everything takes as long as it usually does.
    fn planned(&self) -> Duration {
        let groups: Vec<Group> = self.groups.iter().cloned().collect();
        plan::estimate(self.experiment, &groups, self.last)
    }

    fn tell(&self, step: &mut Step, pace: &Pace, window: Window, number: usize, nr_all: usize) {
        let left = pace.left(self.planned(), self.part.later);
        step.at(&format!(
            "{}, {}: window {number} of {nr_all}, about {} left",
            self.experiment.cases[window.case].name,
            self.experiment.contenders[window.contender].name,
            minutes(left),
        ));
    }

    /// Measures a window and says whether it counts.
    fn measure_one(
        &mut self,
        session: &mut Session,
        group: &Group,
        window: Window,
    ) -> Result<bool> {
        let mut sample = blank(self.experiment, window, self.attempt);
        sample.start_s = self.part.began.elapsed().as_secs_f64();
        let name = &self.experiment.contenders[window.contender].name;
        if self.failures[window.contender] >= GIVE_UP_AFTER {
            sample.problem = Some(format!(
                "not tried: {name} was given up after {GIVE_UP_AFTER} failures in a row"
            ));
            self.keep(sample, true);
            return Ok(false);
        }
        let measured =
            measure(session, self.experiment, group, window, self.part.began, &mut sample);
        match measured {
            Ok(()) => {
                self.failures[window.contender] = 0;
                self.last = Some(window);
                self.keep(sample, true);
                Ok(true)
            }
            Err(Trouble::Contender(problem)) => {
                sample.problem = Some(problem);
                self.failed(window, sample);
                if session.end_contender().is_err() {
                    session.recover()?;
                }
                self.last = None;
                Ok(false)
            }
            Err(Trouble::Window(problem)) => {
                // Some boots of an emulated host lose one guest after the other, most lose none.
                let is_doubtful = session.is_emulated() && sample.after.is_none();
                sample.problem = Some(problem.clone());
                self.failed(window, sample);
                if is_doubtful {
                    return Err(Error::Doubtful(problem));
                }
                session.recover()?;
                self.last = None;
                Ok(false)
            }
            Err(Trouble::Host(Error::Interrupted)) => Err(Error::Interrupted),
            Err(Trouble::Host(e)) => {
                sample.problem = Some(e.to_string());
                self.failed(window, sample);
                Err(e)
            }
        }
    }

    fn failed(&mut self, window: Window, sample: Sample) {
        self.failures[window.contender] += 1;
        self.attempt += 1;
        let is_over = self.attempt >= ATTEMPTS;
        self.keep(sample, is_over);
    }

    /// Hands on a sample; `is_over` if there is no further attempt at its window.
    fn keep(&mut self, mut sample: Sample, is_over: bool) {
        sample.work_out_in(self.experiment);
        (self.keep)(sample);
        if is_over {
            self.attempt = 0;
            if let Some(group) = self.groups.front_mut() {
                group.windows.remove(0);
            }
        }
    }

    fn note(&mut self, session: Session) {
        for (is_host, facts) in session.facts {
            let list = if is_host { &mut self.measured.hosts } else { &mut self.measured.guests };
            if !list.contains(&facts) {
                list.push(facts);
            }
        }
        for note in session.notes {
            if !self.measured.notes.contains(&note) {
                self.measured.notes.push(note);
            }
        }
    }
}

/// `3:20`.
fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
