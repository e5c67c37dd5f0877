// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs experiments on a host: brings it to the state of each window, measures, goes on after
//! trouble.
//!
//! Nothing is dropped silently. A window that could not be measured stays in the result with the
//! reason, and is tried again. A contender that keeps failing is given up, and every window it then
//! misses is in the result. Windows are handed on as they come, so that an ended run keeps them.

mod contender;
mod host;
mod measure;
mod plan;
mod session;
mod spins;
mod workload;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdfast_testbed::progress::{Progress, Step};
use holdfast_testbed::{Error, Result};

pub use self::host::{Host, HostFacts, LabHost, Place};
use self::measure::{blank, measure};
pub use self::plan::Pace;
use self::plan::{Group, Planned};
use self::session::{Session, Trouble};
use crate::experiment::Experiment;
use crate::result::KernelFacts;
use crate::resume::Done;
use crate::window::{ATTEMPTS, Problem, Window};

/// Failures in a row after which a contender is given up.
const GIVE_UP_AFTER: u32 = 2 * ATTEMPTS;
/// Hosts in a row that may end without measuring anything.
const HOSTS: u32 = 8;

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds instead of the experiment's own.
    pub rounds: Option<u32>,
    /// Command that answers each line with counters of preemptions.
    pub observer: Vec<String>,
    /// Hosts that measure together, if they count their instructions; by default as many as this
    /// machine has CPUs and memory for.
    pub hosts: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        let observer = ["holdfast", "preemptions", "--json", "--stdin"];
        Options { rounds: None, observer: observer.map(str::to_owned).to_vec(), hosts: None }
    }
}

/// The outcome of an experiment.
#[derive(Debug, Default)]
pub struct Measured {
    /// Kernels of the hosts that were booted.
    pub hosts: Vec<KernelFacts>,
    /// Kernels of the guests that were booted.
    pub guests: Vec<KernelFacts>,
    /// Facts about the host; none if none booted.
    pub facts: Option<HostFacts>,
    /// Notes for a reader.
    pub notes: Vec<String>,
    /// Why it ended early, if it did.
    pub ended_by: Option<Error>,
}

/// Boots a host for an experiment.
pub type Boot<'a> = dyn Fn(&Experiment) -> Result<Box<dyn Host + 'a>> + Sync + 'a;

/// Receives each window as soon as it is over.
pub type Keep<'a> = dyn FnMut(Window) + Send + 'a;

/// The run that an experiment is a part of.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Start of the whole run.
    pub began: Instant,
    /// Windows measured before the run was stopped.
    pub done: Done,
    /// The experiments after this one.
    pub later: &'a [Experiment],
}

impl Part<'_> {
    /// The only experiment of a run that begins now.
    pub fn whole() -> Self {
        Part { began: Instant::now(), done: Done::default(), later: &[] }
    }
}

/// Time that an experiment will take at the usual pace.
pub fn estimate(experiment: &Experiment, pace: Pace, done: &Done) -> Duration {
    plan::estimate(experiment, pace, &plan::left(experiment, done))
}

/// Runs one experiment, or the rest of it. Each window is handed to `keep` as soon as it is over.
///
/// A host that counts its instructions uses one CPU and does not notice other load, so several
/// measure together. Each takes one whole round after the other, since windows are compared within
/// a round.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    boot: &Boot,
    progress: &Progress,
    part: &Part,
    keep: &mut Keep,
) -> Measured {
    let mut experiment = experiment.clone();
    experiment.windows.rounds = options.rounds.unwrap_or(experiment.windows.rounds);
    let left = plan::left(&experiment, &part.done);
    if left.is_empty() {
        return Measured::default();
    }
    let wanted = options.hosts.unwrap_or_else(|| room_for(&experiment));
    let first = match boot(&experiment) {
        Ok(host) => host,
        Err(e) => return Measured { ended_by: Some(e), ..Measured::default() },
    };
    let waiting = plan::by_round(left);
    let facts = first.facts();
    let is_alone = !facts.counts_instructions;
    // All hosts are booted alike: if this one is emulated, later ones are.
    let later = part.later.iter().map(|e| {
        let pace = Pace::of(e.host.clock, facts.is_emulated());
        estimate(e, pace, &part.done)
    });
    let later = later.sum();
    let pace = facts.pace();
    let nr_hosts = if is_alone { 1 } else { wanted.clamp(1, waiting.len()) };
    let work = Mutex::new(Work {
        clock: RunClock {
            start: Instant::now(),
            planned: plan::estimate(&experiment, pace, &waiting),
            nr_hosts: nr_hosts as u32,
        },
        nr_all: plan::plan(&experiment).iter().map(|g| g.windows.len()).sum(),
        waiting: waiting.into(),
        taken: vec![Group::default(); nr_hosts],
        step: progress.step(format!("Measuring {}", experiment.name)),
        keep,
        failures: vec![0; experiment.contenders.len()],
        nr_at_work: nr_hosts,
        nr_measured: 0,
        measured: Measured { facts: Some(facts), ..Measured::default() },
    });
    let is_observed = experiment.contenders.iter().any(|c| experiment.observes(c));
    let new_run = |number| Run {
        experiment: &experiment,
        observer: is_observed.then(|| options.observer.clone()),
        work: &work,
        number,
        attempt: 0,
        part,
        pace,
        later,
        nr_measured: 0,
    };
    std::thread::scope(|scope| {
        for number in 1..nr_hosts {
            let (name, beside) = (&experiment.name, number + 1);
            progress.note(&format!("{name}: host {beside} of {nr_hosts} boots and joins in"));
            let run = new_run(number);
            scope.spawn(move || run.measure(None, boot, progress));
        }
        new_run(0).measure(Some(first), boot, progress);
    });
    let work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
    if work.measured.ended_by.is_none() {
        work.step.done(&format!("{} windows", work.nr_measured));
    }
    work.measured
}

/// How many hosts this machine has CPUs and memory for.
fn room_for(experiment: &Experiment) -> usize {
    /// Memory of QEMU beside the host's, in MiB.
    const BESIDE: u64 = 512;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = available_mib() / (u64::from(experiment.host.memory_mib) + BESIDE);
    cpus.min(memory as usize)
}

/// Memory that this machine, or the container that this runs in, has left, MiB.
pub fn available_mib() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let machine = system.available_memory();
    let container =
        system.cgroup_limits().map(|limits| limits.total_memory.saturating_sub(limits.rss));
    container.map_or(machine, |left| left.min(machine)) / 1024 / 1024
}

/// Speed of this machine, relative to the one that the plan's times are from.
struct RunClock {
    start: Instant,
    /// The plan for everything.
    planned: Duration,
    nr_hosts: u32,
}

impl RunClock {
    /// Time that is left, where the plan says `left`, and `later` after that.
    fn left(&self, left: Duration, later: Duration) -> Duration {
        self.left_after(self.start.elapsed(), left, later)
    }

    /// The same after `elapsed`. The usual pace counts for as much as an eighth of the plan: the
    /// first windows carry the start of their guests, which is planned evenly.
    fn left_after(&self, elapsed: Duration, left: Duration, later: Duration) -> Duration {
        let usual = self.planned / 8;
        let planned = self.planned.saturating_sub(left) + usual;
        let took = elapsed + usual / self.nr_hosts;
        (left + later).mul_f64(took.as_secs_f64() / planned.as_secs_f64().max(1.0))
    }
}

/// The rest of an experiment, and its outcome so far: shared by the hosts that measure it.
struct Work<'a> {
    /// Rounds that no host has begun.
    waiting: VecDeque<Group>,
    /// The round of each host.
    taken: Vec<Group>,
    clock: RunClock,
    nr_all: usize,
    step: Step<'a>,
    keep: &'a mut Keep<'a>,
    /// Failures in a row of each contender.
    failures: Vec<u32>,
    /// Hosts that have not ended.
    nr_at_work: usize,
    /// Windows that count.
    nr_measured: u32,
    measured: Measured,
}

impl Work<'_> {
    /// Gives a host its next round.
    fn take(&mut self, number: usize) -> Option<()> {
        let next = plan::next(&self.waiting, &self.taken, number);
        self.taken[number] = self.waiting.remove(next)?;
        Some(())
    }

    /// All rounds that are left.
    fn left(&self) -> impl Iterator<Item = &Group> {
        self.taken.iter().chain(&self.waiting)
    }

    /// Whether there is nothing more to do.
    fn is_over(&self) -> bool {
        self.measured.ended_by.is_some() || self.left().all(|group| group.windows.is_empty())
    }

    /// Notes `what` on the terminal and in the result.
    fn tell(&mut self, progress: &Progress, what: String) {
        progress.note(&what);
        self.measured.notes.push(what);
    }
}

/// The part of one host in an experiment, or of the hosts that take its place.
struct Run<'a, 'w> {
    experiment: &'a Experiment,
    /// Command of the observer, if one is wanted.
    observer: Option<Vec<String>>,
    work: &'a Mutex<Work<'w>>,
    /// Number of this host among those that measure together.
    number: usize,
    /// Attempts at the next window.
    attempt: u32,
    part: &'a Part<'a>,
    /// How fast its hosts are.
    pace: Pace,
    /// How long the experiments after this one will take.
    later: Duration,
    /// Windows that count.
    nr_measured: u32,
}

impl<'a, 'w> Run<'a, 'w> {
    /// Measures until nothing is left, on one host after the other if need be.
    fn measure(mut self, first: Option<Box<dyn Host + '_>>, boot: &Boot, progress: &Progress) {
        let why = self.measure_on_hosts(first, boot, progress).err();
        let mut work = self.work();
        work.nr_at_work -= 1;
        match why {
            None => (),
            Some(why) if matches!(why, Error::Interrupted) || work.nr_at_work == 0 => {
                work.measured.ended_by = Some(why);
            }
            // The other hosts do the rest.
            Some(why) => {
                let group = std::mem::take(&mut work.taken[self.number]);
                if !group.windows.is_empty() {
                    work.waiting.push_front(group);
                }
                let name = &self.experiment.name;
                work.tell(progress, format!("{name}: one host fewer measures, because {why}"));
            }
        }
    }

    fn measure_on_hosts(
        &mut self,
        first: Option<Box<dyn Host + '_>>,
        boot: &Boot,
        progress: &Progress,
    ) -> Result<()> {
        let mut nr_in_vain = 0;
        let mut booted = first;
        while !self.work().is_over() {
            let nr_before = self.nr_measured;
            let host = booted.take().map_or_else(|| boot(self.experiment), Ok)?;
            self.compare(&host.facts());
            let mut session = Session::new(host, self.experiment, self.observer.clone());
            let ended = self.measure_all(&mut session);
            self.note(session);
            nr_in_vain = if self.nr_measured > nr_before { 0 } else { nr_in_vain + 1 };
            match ended {
                Ok(()) => break,
                Err(e) if nr_in_vain == HOSTS || matches!(e, Error::Interrupted) => return Err(e),
                Err(e) => {
                    let name = &self.experiment.name;
                    let what = format!("{name}: the host is booted again, because {e}");
                    self.work().tell(progress, what);
                }
            }
        }
        Ok(())
    }

    /// Notes that a host differs from the first one.
    fn compare(&self, facts: &HostFacts) {
        let mut work = self.work();
        if work.measured.facts.as_ref().is_some_and(|first| first != facts) {
            let name = &self.experiment.name;
            let what = format!("{name}: a later host was made of other packages than the first");
            work.measured.notes.push(what);
        }
    }

    fn work(&self) -> MutexGuard<'a, Work<'w>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures the rest; an error is one of the host.
    fn measure_all(&mut self, session: &mut Session) -> Result<()> {
        while let Some((group, planned)) = self.next() {
            let counts = u32::from(self.measure_one(session, &group, planned)?);
            self.nr_measured += counts;
            self.work().nr_measured += counts;
        }
        Ok(())
    }

    fn next(&self) -> Option<(Group, Planned)> {
        let mut work = self.work();
        if work.measured.ended_by.is_some() {
            return None;
        }
        if work.taken[self.number].windows.is_empty() {
            work.take(self.number)?;
        }
        let group = work.taken[self.number].clone();
        let planned = *group.windows.first()?;
        self.tell(&mut work, planned);
        Some((group, planned))
    }

    fn tell(&self, work: &mut Work, planned: Planned) {
        let nr_left: usize = work.left().map(|group| group.windows.len()).sum();
        let estimate = plan::estimate(self.experiment, self.pace, work.left());
        let left = work.clock.left(estimate, self.later);
        let is_one = work.taken.len() == 1;
        let on = if is_one { String::new() } else { format!(" on {} hosts", work.taken.len()) };
        work.step.at(&format!(
            "{}, {}: window {} of {}{on}, about {} left",
            self.experiment.cases[planned.case].name,
            self.experiment.contenders[planned.contender].name,
            work.nr_all - nr_left + 1,
            work.nr_all,
            minutes(left),
        ));
    }

    /// Measures a window and says whether it counts.
    fn measure_one(
        &mut self,
        session: &mut Session,
        group: &Group,
        planned: Planned,
    ) -> Result<bool> {
        let mut window = blank(self.experiment, planned, self.attempt);
        window.start_s = self.part.began.elapsed().as_secs_f64();
        let failures = self.work().failures[planned.contender];
        if failures >= GIVE_UP_AFTER {
            window.problem = Some(Problem::GivenUp { failures });
            self.keep(window, true);
            return Ok(false);
        }
        let measured =
            measure(session, self.experiment, group, planned, self.part.began, &mut window);
        match measured {
            Ok(()) => {
                self.work().failures[planned.contender] = 0;
                self.keep(window, true);
                Ok(true)
            }
            Err(Trouble::Contender(why)) => {
                window.problem = Some(Problem::Contender { why });
                self.failed(planned, window);
                if session.end_contender().is_err() {
                    session.recover()?;
                }
                Ok(false)
            }
            Err(Trouble::Window(why)) => {
                // Some boots of an emulated host lose one guest after the other; most lose none.
                let is_doubtful = session.is_emulated() && window.after.is_none();
                window.problem = Some(Problem::Window { why: why.clone() });
                self.failed(planned, window);
                if is_doubtful {
                    return Err(Error::Doubtful(why));
                }
                session.recover()?;
                Ok(false)
            }
            Err(Trouble::Host(Error::Interrupted)) => Err(Error::Interrupted),
            Err(Trouble::Host(e)) => {
                window.problem = Some(Problem::Host { why: e.to_string() });
                self.failed(planned, window);
                Err(e)
            }
        }
    }

    fn failed(&mut self, planned: Planned, window: Window) {
        self.work().failures[planned.contender] += 1;
        self.attempt += 1;
        let is_over = self.attempt >= ATTEMPTS;
        self.keep(window, is_over);
    }

    /// Hands on a window; `is_over` if there is no further attempt at it.
    fn keep(&mut self, mut window: Window, is_over: bool) {
        window.work_out_in(self.experiment);
        let mut work = self.work();
        (work.keep)(window);
        if is_over {
            self.attempt = 0;
            work.taken[self.number].windows.remove(0);
        }
    }

    fn note(&self, session: Session) {
        let measured = &mut self.work().measured;
        for (is_host, facts) in session.facts {
            let list = if is_host { &mut measured.hosts } else { &mut measured.guests };
            if !list.contains(&facts) {
                list.push(facts);
            }
        }
        for note in session.notes {
            if !measured.notes.contains(&note) {
                measured.notes.push(note);
            }
        }
    }
}

/// `3:20`.
fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_machine_and_not_the_first_windows() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let clock = RunClock { start: Instant::now(), planned: minutes(160), nr_hosts: 2 };
        let left = |elapsed: u64, done: u64| {
            clock.left_after(minutes(elapsed), minutes(160 - done), minutes(0)).as_secs() / 60
        };
        assert_eq!(left(0, 0), 80);
        // Both hosts have started guests for two minutes, little of which was planned.
        assert!((80..95).contains(&left(2, 1)), "{}", left(2, 1));
        // A machine of half the speed is recognised long before the end.
        assert!((70..80).contains(&left(80, 80)), "{}", left(80, 80));
        assert_eq!(left(160, 160), 0);
    }
}
