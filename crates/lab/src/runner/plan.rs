// SPDX-License-Identifier: GPL-2.0-or-later
//! The order of windows, and the time that they take.
//!
//! Loading a scheduler takes seconds on an emulated host, and starting a guest longer. So cases
//! that can share a guest share every loaded scheduler. Contenders go ABC CBA ABC ...: a slow drift
//! hits all of them alike, and the last contender of a round is the first of the next and stays
//! loaded. Cases do the same within a contender's turn, so that none is always the first after a
//! change.

use std::collections::VecDeque;
use std::time::Duration;

use holdfast_testbed::machine::Clock;

use crate::experiment::{Case, Experiment};
use crate::resume::Done;

/// Cases that can be measured without restarting a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Names of the guests, that of the cases' own workloads first.
    pub(super) guests: Vec<String>,
    /// Whether PAUSE exits; changing it reloads KVM, which ends the guests.
    pub(super) pause_exits: bool,
    /// Windows to measure, in order.
    pub(super) windows: Vec<Planned>,
}

impl Group {
    /// Whether both can be measured without restarting a guest in between.
    pub(super) fn is_like(&self, other: &Group) -> bool {
        self.guests == other.guests && self.pause_exits == other.pause_exits
    }
}

/// A window to measure; the numbers index the experiment's cases and contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) round: u32,
    pub(super) contender: usize,
    pub(super) case: usize,
}

/// The order of everything.
pub(super) fn plan(experiment: &Experiment) -> Vec<Group> {
    // Groups in the order of their first cases.
    let mut groups: Vec<(Group, Vec<usize>)> = Vec::new();
    for (i, case) in experiment.cases.iter().enumerate() {
        let guests = experiment.guests_of(case).into_iter().map(str::to_owned).collect();
        let pause_exits = experiment.pause_exits_of(case);
        let group = Group { guests, pause_exits, windows: Vec::new() };
        match groups.iter_mut().find(|(g, _)| g.is_like(&group)) {
            Some((_, cases)) => cases.push(i),
            None => groups.push((group, vec![i])),
        }
    }
    let (rounds, nr_contenders) = (experiment.windows.rounds, experiment.contenders.len());
    let planned = |(group, cases): (Group, Vec<usize>)| Group {
        windows: alternate(rounds, nr_contenders, &cases),
        ..group
    };
    groups.into_iter().map(planned).collect()
}

/// The same with a group for each round.
pub(super) fn by_round(groups: Vec<Group>) -> Vec<Group> {
    let rounds = |group: Group| -> Vec<Group> {
        let rounds = group.windows.chunk_by(|a, b| a.round == b.round);
        rounds.map(|windows| Group { windows: windows.to_vec(), ..group.clone() }).collect()
    };
    groups.into_iter().flat_map(rounds).collect()
}

/// The round that host `number` takes next: preferably one for the guests that it runs, or for
/// guests that no other host runs.
pub(super) fn next(waiting: &VecDeque<Group>, taken: &[Group], number: usize) -> usize {
    let mine = waiting.iter().position(|g| g.is_like(&taken[number]));
    let free = || waiting.iter().position(|g| !taken.iter().any(|t| t.is_like(g)));
    mine.or_else(free).unwrap_or(0)
}

/// The rest of a plan after the windows in `done`.
pub(super) fn left(experiment: &Experiment, done: &Done) -> Vec<Group> {
    let mut groups = plan(experiment);
    for group in &mut groups {
        group
            .windows
            .retain(|w| !done.has_round(&experiment.name, &experiment.cases[w.case].name, w.round));
    }
    groups.retain(|group| !group.windows.is_empty());
    groups
}

fn alternate(rounds: u32, nr_contenders: usize, cases: &[usize]) -> Vec<Planned> {
    let mut windows = Vec::new();
    let mut turn = 0;
    for round in 0..rounds {
        let mut contenders: Vec<usize> = (0..nr_contenders).collect();
        if round % 2 == 1 {
            contenders.reverse();
        }
        for contender in contenders {
            let mut cases = cases.to_vec();
            if turn % 2 == 1 {
                cases.reverse();
            }
            turn += 1;
            windows.extend(cases.into_iter().map(|case| Planned { round, contender, case }));
        }
    }
    windows
}

/// Durations on a host; the emulated ones are for two CPUs.
struct Costs {
    guest_start: Duration,
    scheduler_load: Duration,
    workload_start: Duration,
    /// Reading the counters at both ends of a window.
    counters: Duration,
    /// Factor on each ms of an experiment.
    slowdown: u32,
    /// The same beside hogs: endless loops are quickly emulated.
    slowdown_with_hogs: u32,
}

/// How a host's time relates to the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It counts its instructions, and another such host measures beside it.
    Counting,
    /// It is emulated, and its clock is the machine's.
    Emulated,
    /// The machine's CPUs run it: KVM, or the machine itself.
    Real,
}

impl Pace {
    /// The pace of an experiment whose host has this `clock`, emulated or not.
    pub fn of(clock: Clock, is_emulated: bool) -> Pace {
        match (clock, is_emulated) {
            (Clock::Instructions, _) | (Clock::Auto, true) => Pace::Counting,
            (Clock::Machine, true) => Pace::Emulated,
            (Clock::Auto | Clock::Machine, false) => Pace::Real,
        }
    }

    fn costs(self) -> Costs {
        match self {
            Pace::Counting => COUNTING,
            Pace::Emulated => BY_THE_MACHINES_CLOCK,
            Pace::Real => REAL,
        }
    }
}

/// Not measured: a guest boots in a second or two there, and loads wait for quiet in steps of 150
/// ms. After the first windows the estimate follows the run.
const REAL: Costs = Costs {
    guest_start: Duration::from_secs(3),
    scheduler_load: Duration::from_millis(1500),
    workload_start: Duration::from_millis(200),
    counters: Duration::from_millis(100),
    slowdown: 1,
    slowdown_with_hogs: 1,
};

const BY_THE_MACHINES_CLOCK: Costs = Costs {
    guest_start: Duration::from_secs(7),
    scheduler_load: Duration::from_millis(2500),
    workload_start: Duration::from_millis(600),
    counters: Duration::from_millis(600),
    slowdown: 1,
    slowdown_with_hogs: 1,
};

/// A host that counts its instructions, beside another such host. Emulated hosts do so by default.
const COUNTING: Costs = Costs {
    guest_start: Duration::from_secs(26),
    scheduler_load: Duration::from_secs(8),
    slowdown: 2,
    slowdown_with_hogs: 2,
    ..BY_THE_MACHINES_CLOCK
};

/// Time for these groups on one host at the usual pace, each on its own, whatever the host did
/// before.
pub(super) fn estimate<'a>(
    experiment: &Experiment,
    pace: Pace,
    groups: impl IntoIterator<Item = &'a Group>,
) -> Duration {
    let costs = pace.costs();
    let asked = |ms, case: &Case| {
        let hogs = experiment.hogs_of(case) > 0;
        Duration::from_millis(ms) * if hogs { costs.slowdown_with_hogs } else { costs.slowdown }
    };
    let mut sum = Duration::ZERO;
    for group in groups.into_iter().filter(|group| !group.windows.is_empty()) {
        let mut last = None::<Planned>;
        sum += costs.guest_start * group.guests.len() as u32;
        for &planned in &group.windows {
            let changes = last.is_none_or(|last| last.contender != planned.contender);
            if changes && !experiment.contenders[planned.contender].is_stock() {
                sum += costs.scheduler_load;
            }
            let case = &experiment.cases[planned.case];
            let window_ms = experiment.windows.warmup_ms + experiment.length_ms_of(case);
            sum += costs.workload_start + asked(window_ms, case) + costs.counters;
            last = Some(planned);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn experiment(name: &str) -> Experiment {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        Experiment::read(&dir.join(format!("{name}.toml"))).unwrap()
    }

    #[test]
    fn measures_every_case_of_every_contender_once_a_round() {
        let e = experiment("demo");
        let groups = plan(&e);
        let mut all: Vec<Planned> = groups.iter().flat_map(|g| g.windows.clone()).collect();
        let nr_windows = e.windows.rounds as usize * e.contenders.len() * e.cases.len();
        assert_eq!(all.len(), nr_windows);
        all.sort_by_key(|w| (w.round, w.contender, w.case));
        all.dedup();
        assert_eq!(all.len(), nr_windows);
    }

    #[test]
    fn restarts_the_guest_only_where_it_or_pause_exits_change() {
        let groups = plan(&experiment("contention"));
        assert_eq!(
            groups.iter().map(|g| g.pause_exits).collect::<Vec<_>>(),
            [false, false, true, true]
        );
    }

    #[test]
    fn hosts_that_measure_together_are_given_whole_rounds() {
        let e = experiment("contention");
        let whole = plan(&e);
        let rounds = by_round(whole.clone());
        assert_eq!(rounds.len(), whole.len() * e.windows.rounds as usize);
        for round in &rounds {
            assert!(round.windows.iter().all(|w| w.round == round.windows[0].round));
        }
        let windows = |groups: &[Group]| -> Vec<Planned> {
            groups.iter().flat_map(|g| g.windows.clone()).collect()
        };
        assert_eq!(windows(&rounds), windows(&whole));
    }

    #[test]
    fn a_host_keeps_its_guests_and_leaves_others_to_others() {
        let group = |name: &str| Group { guests: vec![name.into()], ..Group::default() };
        let waiting: VecDeque<Group> = ["a", "a", "b", "b"].map(group).into();
        let nothing = Group::default();
        assert_eq!(next(&waiting, &[nothing.clone(), nothing.clone()], 0), 0);
        assert_eq!(next(&waiting, &[group("a"), nothing], 1), 2, "the other has a");
        assert_eq!(next(&waiting, &[group("a"), group("b")], 1), 2, "it has b");
        assert_eq!(next(&waiting, &[group("a"), group("b")], 0), 0);
        // Together is better than not at all.
        let left: VecDeque<Group> = ["a"].map(group).into();
        assert_eq!(next(&left, &[group("a"), group("b")], 1), 0);
    }

    #[test]
    fn the_scheduler_does_not_change_without_need() {
        let e = experiment("demo");
        for group in plan(&e) {
            let turns = e.windows.rounds as usize * e.contenders.len();
            let pairs = group.windows.windows(2);
            let changes = pairs.filter(|pair| pair[0].contender != pair[1].contender).count();
            // Each boundary of two rounds keeps the contender.
            assert_eq!(changes, turns - e.windows.rounds as usize);
        }
    }

    #[test]
    fn a_contender_is_on_average_as_late_as_any_other() {
        let e = experiment("demo");
        for group in plan(&e) {
            let mean_place = |contender: usize| {
                let places = group.windows.iter().enumerate();
                let mine: Vec<usize> =
                    places.filter(|(_, w)| w.contender == contender).map(|(i, _)| i).collect();
                mine.iter().sum::<usize>() as f64 / mine.len() as f64
            };
            assert_eq!(mean_place(0), mean_place(1));
            assert_eq!(mean_place(0), mean_place(2));
        }
    }

    #[test]
    fn the_demo_is_measured_in_ten_minutes_and_the_smoke_test_in_one() {
        for (name, limit_s) in [("demo", 600), ("smoke", 60)] {
            let e = experiment(name);
            let time = estimate(&e, Pace::of(e.host.clock, true), &plan(&e));
            assert!(time < Duration::from_secs(limit_s), "{name}: {time:?}");
        }
    }

    #[test]
    fn only_an_emulated_host_is_as_slow_as_one_that_counts_its_instructions() {
        use Clock::{Auto, Instructions, Machine};
        for (clock, is_emulated, pace) in [
            (Auto, true, Pace::Counting),
            (Auto, false, Pace::Real),
            (Machine, true, Pace::Emulated),
            (Machine, false, Pace::Real),
            // Such a host is emulated on any machine.
            (Instructions, false, Pace::Counting),
        ] {
            assert_eq!(Pace::of(clock, is_emulated), pace, "{clock:?}, {is_emulated}");
        }
        let e = experiment("demo");
        let windows_ms = |c: &Case| e.windows.warmup_ms + e.length_ms_of(c);
        let turns = u64::from(e.windows.rounds) * e.contenders.len() as u64;
        let least = Duration::from_millis(e.cases.iter().map(windows_ms).sum::<u64>() * turns);
        let real = estimate(&e, Pace::Real, &plan(&e));
        // Windows take the time that they say, and the time between them is shorter.
        assert!(least < real && real < 2 * least, "{least:?}: {real:?}");
        assert!(real < estimate(&e, Pace::Counting, &plan(&e)) / 2);
    }

    #[test]
    fn the_estimate_shrinks_with_every_window() {
        let e = experiment("demo");
        let mut groups = plan(&e);
        let left = |groups: &[Group]| estimate(&e, Pace::Counting, groups);
        let mut before = left(&groups);
        let windows = groups[0].windows.clone();
        for _ in windows {
            groups[0].windows.remove(0);
            let after = left(&groups);
            assert!(after < before);
            before = after;
        }
    }
}
