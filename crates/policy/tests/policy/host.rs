// SPDX-License-Identifier: GPL-2.0-or-later
//! A small model of a host: CPUs with one queue, not all of which everybody may run on, tasks that run,
//! sleep and wake, and VMs whose vCPUs claim what they like. It decides nothing: `policy.h` does, as in the scheduler.

use holdfast_policy::{
    Decision, Grace, Params, Siblings, Target, VcpuClass, Verdict, WEIGHT_NICE0, advance, charge,
    is_starving, may_rebase, note_class, swap_places, vtime_before, yield_target,
};

/// What ships.
pub(crate) const PARAMS: Params = Params::DEFAULT;

/// A task, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) weight: u32,
    /// CPUs that it may run on: bit *i* is CPU *i*.
    pub(crate) cpus: u64,
    /// Its VM, whose vCPUs share one bank of grace.
    pub(crate) vm: Option<usize>,
    /// What its guest says: one of these, drawn at each look.
    pub(crate) claims: Vec<VcpuClass>,
    /// At how many looks of a hundred siblings are said to be stuck.
    pub(crate) stuck_percent: u64,
    /// Ends its turns early, and at the end of every other one gives its CPU to a sibling.
    pub(crate) yields: bool,
    /// For how long it runs until it sleeps.
    pub(crate) runs_ns: u64,
    /// For how long it sleeps; 0: never.
    pub(crate) sleeps_ns: u64,
    /// How often of a hundred times it is a sibling that wakes it.
    pub(crate) by_sibling_percent: u64,
    /// For how much longer than a slice it runs, as turns end at ticks.
    pub(crate) overrun_ns: u64,
    pub(crate) ran_ns: u64,
    pub(crate) longest_wait_ns: u64,
    /// The CPU that it ran on last.
    pub(crate) cpu: usize,
    pub(crate) state: State,
    pub(crate) vtime: u64,
    /// What it was when it stopped.
    pub(crate) class: VcpuClass,
    pub(crate) grace: Grace,
    /// CPU time of which its VM has not earned grace yet.
    pub(crate) unearned_ns: u64,
    /// CPU time until it sleeps.
    pub(crate) left_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Running,
    Queued { key: u64, since_ns: u64 },
    Sleeping { until_ns: u64 },
}

impl Task {
    /// One of no VM, that never sleeps.
    pub(crate) fn new(weight: u32) -> Self {
        Self {
            weight,
            cpus: u64::MAX,
            vm: None,
            claims: vec![VcpuClass::Unknown],
            stuck_percent: 0,
            yields: false,
            runs_ns: PARAMS.slice_ns,
            sleeps_ns: 0,
            by_sibling_percent: 0,
            overrun_ns: 0,
            ran_ns: 0,
            longest_wait_ns: 0,
            cpu: 0,
            state: State::Sleeping { until_ns: 0 },
            vtime: 0,
            class: VcpuClass::Unknown,
            grace: Grace::default(),
            unearned_ns: 0,
            left_ns: 0,
        }
    }

    /// A vCPU that always claims the same.
    pub(crate) fn vcpu(vm: usize, weight: u32, class: VcpuClass) -> Self {
        Self { vm: Some(vm), claims: vec![class], ..Self::new(weight) }
    }

    pub(crate) fn may_run_on(&self, cpu: usize) -> bool {
        self.cpus >> cpu & 1 == 1
    }

    /// May it run on one CPU only?
    pub(crate) fn is_pinned(&self) -> bool {
        self.cpus.is_power_of_two()
    }

    /// Does it always want to run?
    pub(crate) fn is_hog(&self) -> bool {
        self.sleeps_ns == 0
    }
}

/// Something that happened to a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) at_ns: u64,
    pub(crate) cpu: usize,
    pub(crate) task: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// It comes to run.
    Runs,
    /// Its turn has ended, and it has another one.
    Kept,
    /// It is looked at, its turn or a step of its grace having ended.
    Looked { verdict: Verdict, step_ns: u64 },
    /// It is preempted, or sleeps.
    Stops,
    /// It wakes, and takes the CPU from whoever runs there.
    Preempts { by_sibling: bool },
}

/// Numbers without a pattern, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy)]
struct Cpu {
    runs: Option<usize>,
    /// Since when what runs has not been charged.
    since_ns: u64,
    /// When there is something to decide.
    until_ns: u64,
    /// Virtual time of those who want it, while somebody waits for it, and since when it has that.
    here: Option<(u64, u64)>,
    /// Is that not the host's?
    has_own_time: bool,
}

struct Host<'a> {
    tasks: &'a mut [Task],
    cpus: Vec<Cpu>,
    /// The grace that each VM has saved.
    budgets_ns: Vec<u64>,
    vtime_now: u64,
    now_ns: u64,
    late_check_at_ns: u64,
    random: Random,
    trace: Vec<Event>,
}

/// Runs `tasks`, all of which wake at first, on so many CPUs for so long.
pub(crate) fn simulate(
    tasks: &mut [Task],
    nr_cpus: usize,
    duration_ns: u64,
    start_vtime: u64,
    seed: u64,
) -> Vec<Event> {
    let nr_vms = tasks.iter().filter_map(|task| task.vm).max().map_or(0, |vm| vm + 1);
    for task in tasks.iter_mut() {
        task.vtime = start_vtime;
        task.cpu = (0..nr_cpus).find(|cpu| task.may_run_on(*cpu)).expect("it may run somewhere");
    }
    let mut host = Host {
        tasks,
        cpus: vec![
            Cpu {
                runs: None,
                since_ns: 0,
                until_ns: u64::MAX,
                here: None,
                has_own_time: false
            };
            nr_cpus
        ],
        budgets_ns: vec![0; nr_vms],
        vtime_now: start_vtime,
        now_ns: 0,
        late_check_at_ns: 0,
        random: Random(seed),
        trace: Vec::new(),
    };
    host.run(duration_ns);
    host.trace
}

impl Host<'_> {
    fn run(&mut self, duration_ns: u64) {
        loop {
            let wakes = (0..self.tasks.len()).filter_map(|i| match self.tasks[i].state {
                State::Sleeping { until_ns } => Some((until_ns, i)),
                _ => None,
            });
            let wakes = wakes.min();
            let (ends_ns, cpu) =
                (0..self.cpus.len()).map(|cpu| (self.cpus[cpu].until_ns, cpu)).min().unwrap();
            let wakes_ns = wakes.map_or(u64::MAX, |(at_ns, _)| at_ns);
            self.now_ns = ends_ns.min(wakes_ns).min(duration_ns);
            match wakes {
                _ if self.now_ns == duration_ns => break,
                Some((at_ns, task)) if at_ns <= ends_ns => self.wake(task),
                _ => self.dispatch(cpu),
            }
        }
        (0..self.cpus.len()).for_each(|cpu| self.charge(cpu));
    }

    fn record(&mut self, cpu: usize, task: usize, what: What) {
        self.trace.push(Event { at_ns: self.now_ns, cpu, task, what });
    }

    fn charge(&mut self, cpu: usize) {
        let ran_ns = self.now_ns - std::mem::replace(&mut self.cpus[cpu].since_ns, self.now_ns);
        if let Some(i) = self.cpus[cpu].runs {
            let task = &mut self.tasks[i];
            task.ran_ns += ran_ns;
            task.unearned_ns += ran_ns;
            task.left_ns -= ran_ns.min(task.left_ns);
            task.vtime = charge(task.vtime, ran_ns, task.weight);
        }
    }

    fn key(&self, i: usize) -> Option<u64> {
        match self.tasks[i].state {
            State::Queued { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whoever is first of those who wait for `cpu`, and its key.
    fn first(&self, cpu: usize) -> Option<(usize, u64)> {
        let may = (0..self.tasks.len()).filter(|i| self.tasks[*i].may_run_on(cpu));
        let queued = may.filter_map(|i| Some((i, self.key(i)?)));
        queued.reduce(|a, b| if vtime_before(b.1, a.1) { b } else { a })
    }

    /// Virtual time at `cpu`.
    fn time_at(&self, cpu: usize) -> u64 {
        let Cpu { here, has_own_time, .. } = self.cpus[cpu];
        here.filter(|_| has_own_time).map_or(self.vtime_now, |(here, _)| here)
    }

    /// `i` becomes runnable on `cpu`, or runs there.
    fn place(&mut self, i: usize, cpu: usize, slept: bool) {
        let Task { vtime, weight, cpu: from, .. } = self.tasks[i];
        let (there, here) = (self.time_at(from), self.time_at(cpu));
        let moved = if from == cpu { vtime } else { PARAMS.move_to(vtime, there, here) };
        let task = &mut self.tasks[i];
        task.cpu = cpu;
        task.vtime = PARAMS.place(moved, here, weight, slept);
    }

    fn clamp_lag(&mut self, i: usize) {
        let time = self.time_at(self.tasks[i].cpu);
        let task = &mut self.tasks[i];
        task.vtime = PARAMS.clamp_lag(task.vtime, time, task.weight, 1);
    }

    /// Whoever is furthest behind of those who want `cpu` has come to `least`.
    fn time_passes(&mut self, cpu: usize, least: u64) {
        self.vtime_now = advance(self.vtime_now, least);
        self.time_passes_here(cpu, least);
    }

    fn time_passes_here(&mut self, cpu: usize, least: u64) {
        if let Some((here, since_ns)) = self.cpus[cpu].here {
            self.cpus[cpu].here = Some((advance(here, least), since_ns));
        }
    }

    /// `first` waits for `cpu`, or nobody does.
    fn set_wanted(&mut self, cpu: usize, first: Option<(usize, u64)>) {
        let since_ns = self.cpus[cpu].here.map(|(_, since_ns)| since_ns);
        if since_ns.is_some_and(|since_ns| first.is_none() || may_rebase(self.now_ns, since_ns)) {
            let here = self.time_at(cpu);
            self.rebase(cpu, PARAMS.rebase(self.vtime_now, here));
            self.cpus[cpu].has_own_time &=
                PARAMS.has_own_time(self.vtime_now, here, WEIGHT_NICE0, false, true);
        }
        let Some((i, _)) = first else {
            (self.cpus[cpu].here, self.cpus[cpu].has_own_time) = (None, false);
            return;
        };
        let here = self.cpus[cpu].here.map_or(self.vtime_now, |(here, _)| here);
        self.cpus[cpu].here = Some((here, self.now_ns));
        let key = self.key(i).expect("it waits");
        let runs = self.cpus[cpu].runs.filter(|i| vtime_before(self.tasks[*i].vtime, key));
        let least = runs.map_or(key, |i| self.tasks[i].vtime);
        self.vtime_now = advance(self.vtime_now, least);
        // Who runs and may run elsewhere does not count here.
        let (i, least) = match runs.filter(|i| self.tasks[*i].is_pinned()) {
            Some(i) => (i, least),
            None => (i, key),
        };
        self.time_passes_here(cpu, least);
        let (task, had) = (&self.tasks[i], self.cpus[cpu].has_own_time);
        self.cpus[cpu].has_own_time =
            PARAMS.has_own_time(self.vtime_now, least, task.weight, task.is_pinned(), had);
    }

    /// Tasks of `cpu` are so much `further` from now on, and those in its own queue are queued there.
    fn rebase(&mut self, cpu: usize, further: u64) {
        for task in self.tasks.iter_mut().filter(|task| task.cpu == cpu) {
            task.vtime = task.vtime.wrapping_add(further);
            let is_pinned = task.is_pinned();
            if let State::Queued { key, .. } = &mut task.state
                && is_pinned
            {
                *key = key.wrapping_add(further);
            }
        }
        if let Some((here, _)) = &mut self.cpus[cpu].here {
            *here = here.wrapping_add(further);
        }
    }

    /// Whoever has waited for so long that it has a turn: one of `LATE_TURNS`, as in the scheduler.
    fn late(&mut self, cpu: usize) -> Option<usize> {
        let now_ns = self.now_ns;
        let is_starving = |task: &Task| match task.state {
            State::Queued { since_ns, .. } => {
                task.may_run_on(cpu) && is_starving(now_ns - since_ns)
            }
            _ => false,
        };
        let late =
            self.tasks.iter().position(is_starving).filter(|_| now_ns >= self.late_check_at_ns);
        if late.is_some() {
            self.late_check_at_ns = now_ns + 3 * PARAMS.slice_ns;
        }
        late
    }

    fn wake(&mut self, i: usize) {
        (0..self.cpus.len()).for_each(|cpu| self.charge(cpu));
        let idle = |cpu: &usize| self.cpus[*cpu].runs.is_none() && self.tasks[i].may_run_on(*cpu);
        let idle = (0..self.cpus.len()).find(idle);
        self.place(i, idle.unwrap_or(self.tasks[i].cpu), true);
        let task = &mut self.tasks[i];
        task.left_ns = if task.is_hog() { u64::MAX } else { task.runs_ns };
        let key = PARAMS.queue_key(task.vtime, task.class, true, task.weight);
        let weight = task.weight;
        task.state = State::Queued { key, since_ns: self.now_ns };
        if let Some(idle) = idle {
            return self.start(idle, i, false);
        }
        let by_sibling = self.random.percent(self.tasks[i].by_sibling_percent);
        let running = (0..self.cpus.len())
            .filter(|cpu| self.tasks[i].may_run_on(*cpu))
            .map(|cpu| (cpu, self.tasks[self.cpus[cpu].runs.unwrap()].vtime))
            .reduce(|a, b| if vtime_before(a.1, b.1) { b } else { a });
        let (victim, victim_vtime) = running.unwrap();
        if PARAMS.wakeup_preempts(key, victim_vtime, weight, by_sibling) {
            self.record(victim, i, What::Preempts { by_sibling });
            self.dispatch(victim);
        }
    }

    /// What runs on `cpu` has come to the end of its turn, of a step of its grace or of its work, or
    /// somebody wakes who is further behind.
    fn dispatch(&mut self, cpu: usize) {
        self.charge(cpu);
        let mut prev = self.cpus[cpu].runs;
        if let Some(i) = prev.filter(|i| self.tasks[*i].left_ns == 0) {
            self.sleep(cpu, i);
            prev = None;
        }
        let first = self.first(cpu);
        self.set_wanted(cpu, first);
        let first = first.map(|(i, _)| (i, self.key(i).expect("it waits")));
        if let Some(late) = self.late(cpu) {
            if let Some(i) = prev {
                self.preempt(cpu, i);
            }
            return self.start(cpu, late, true);
        }
        let mut next = first.map(|(i, _)| i);
        if let Some(i) = prev {
            match self.end_turn(cpu, i, first.map(|(_, key)| key)) {
                Ended::RunsOn => return,
                Ended::GivesTo(sibling) => next = Some(sibling),
                Ended::Preempted => {}
            }
        }
        match next {
            Some(i) => self.start(cpu, i, false),
            None => self.cpus[cpu].until_ns = u64::MAX,
        }
    }

    /// `i` would run on, but `first_key` may be that of somebody who waits.
    fn end_turn(&mut self, cpu: usize, i: usize, first_key: Option<u64>) -> Ended {
        let mut to = match self.tasks[i].yields && self.random.percent(50) {
            true => self.waits_for(i, true),
            false => None,
        };
        if to.is_none() {
            if first_key.is_none_or(|key| !vtime_before(key, self.tasks[i].vtime)) {
                self.next_turn(cpu, i, first_key.is_none());
                return Ended::RunsOn;
            }
            if self.grant_grace(cpu, i) {
                return Ended::RunsOn;
            }
            to = self.waits_for(i, false);
        }
        let to = to.filter(|to| self.tasks[*to].may_run_on(cpu));
        let to = to.filter(|to| first_key.is_some_and(|key| self.give(i, *to, key)));
        self.preempt(cpu, i);
        to.map_or(Ended::Preempted, Ended::GivesTo)
    }

    /// Does `i`, whose turn has ended, run on?
    fn grant_grace(&mut self, cpu: usize, i: usize) -> bool {
        let Some(vm) = self.tasks[i].vm else { return false };
        let (class, siblings) = (self.claim(i), self.siblings(i));
        let (task, budget_ns) = (&mut self.tasks[i], &mut self.budgets_ns[vm]);
        note_class(&mut task.grace, class, task.ran_ns);
        *budget_ns = PARAMS.earn(*budget_ns, std::mem::take(&mut task.unearned_ns));
        let Decision { verdict, step_ns } =
            PARAMS.decide(&mut task.grace, budget_ns, class, &siblings);
        self.cpus[cpu].until_ns = self.now_ns + step_ns.min(task.left_ns);
        self.record(cpu, i, What::Looked { verdict, step_ns });
        verdict == Verdict::Extend
    }

    /// The sibling that `i` gives its CPU to: one of those that wait, if it waits for one.
    fn waits_for(&mut self, i: usize, named: bool) -> Option<usize> {
        let vm = self.tasks[i].vm?;
        let (class, siblings) = (self.claim(i), self.siblings(i));
        if yield_target(class, &siblings, named, false) == Target::ToNone {
            return None;
        }
        let waits = |i: &usize| self.tasks[*i].vm == Some(vm) && self.key(*i).is_some();
        let waiting: Vec<usize> = (0..self.tasks.len()).filter(waits).collect();
        let drawn = self.random.below(waiting.len().max(1) as u64) as usize;
        waiting.get(drawn).copied()
    }

    /// `from` and `to` swap places, if they may.
    fn give(&mut self, from: usize, to: usize, first_key: u64) -> bool {
        let place = |i: usize| (self.tasks[i].vtime, self.tasks[i].weight);
        if !PARAMS.may_give(place(from), place(to), first_key) {
            return false;
        }
        let (from_vtime, to_vtime) = swap_places(place(from), place(to));
        self.tasks[from].vtime = from_vtime;
        self.tasks[to].vtime = to_vtime;
        true
    }

    /// What the guest of `i` says now.
    fn claim(&mut self, i: usize) -> VcpuClass {
        let claims = &self.tasks[i].claims;
        claims[self.random.below(claims.len() as u64) as usize]
    }

    fn siblings(&mut self, i: usize) -> Siblings {
        if !self.random.percent(self.tasks[i].stuck_percent) {
            return Siblings::default();
        }
        let mut draw = || self.random.percent(50);
        Siblings { holder: draw(), next: draw(), queued: draw(), call_pending: draw() }
    }

    /// `i` begins a turn on `cpu`.
    fn turn(&mut self, cpu: usize, i: usize) {
        let task = &mut self.tasks[i];
        (task.grace.granted_ns, task.grace.nr_steps) = (0, 0);
        let turn_ns = match task.yields {
            true => self.random.below(PARAMS.slice_ns) + 1,
            false => PARAMS.slice_ns + task.overrun_ns,
        };
        self.cpus[cpu].until_ns = self.now_ns + turn_ns.min(task.left_ns);
    }

    fn next_turn(&mut self, cpu: usize, i: usize, is_alone: bool) {
        if is_alone {
            self.clamp_lag(i);
        } else {
            self.place(i, cpu, false);
        }
        self.record(cpu, i, What::Kept);
        self.turn(cpu, i);
    }

    fn start(&mut self, cpu: usize, i: usize, is_starving: bool) {
        self.place(i, cpu, false);
        let task = &mut self.tasks[i];
        if let State::Queued { since_ns, .. } = task.state {
            task.longest_wait_ns = task.longest_wait_ns.max(self.now_ns - since_ns);
        }
        task.state = State::Running;
        task.class = VcpuClass::Unknown;
        if !is_starving {
            let behind = task.vtime.wrapping_sub(PARAMS.lag_limit(task.weight, false));
            self.time_passes(cpu, behind);
        }
        let (since_ns, until_ns) = (self.now_ns, 0);
        self.cpus[cpu] = Cpu { runs: Some(i), since_ns, until_ns, ..self.cpus[cpu] };
        self.record(cpu, i, What::Runs);
        self.turn(cpu, i);
    }

    fn preempt(&mut self, cpu: usize, i: usize) {
        let class = self.claim(i);
        self.place(i, cpu, false);
        let task = &mut self.tasks[i];
        note_class(&mut task.grace, class, task.ran_ns);
        task.class = PARAMS.trusted(class, &task.grace, task.ran_ns);
        let key = PARAMS.queue_key(task.vtime, task.class, false, task.weight);
        task.state = State::Queued { key, since_ns: self.now_ns };
        self.cpus[cpu].runs = None;
        self.record(cpu, i, What::Stops);
    }

    fn sleep(&mut self, cpu: usize, i: usize) {
        let (class, is_alone) = (self.claim(i), self.first(cpu).is_none());
        if is_alone {
            self.clamp_lag(i);
        }
        let task = &mut self.tasks[i];
        note_class(&mut task.grace, VcpuClass::Preemptible, 0);
        task.class = class;
        task.state = State::Sleeping { until_ns: self.now_ns + task.sleeps_ns };
        self.cpus[cpu].runs = None;
        self.record(cpu, i, What::Stops);
    }
}

/// How a turn ended.
enum Ended {
    RunsOn,
    Preempted,
    GivesTo(usize),
}

/// What each should have of the CPUs: by weight, but nobody more than one.
pub(crate) fn fair_shares(tasks: &[Task], nr_cpus: usize) -> Vec<f64> {
    let mut shares: Vec<Option<f64>> = vec![None; tasks.len()];
    loop {
        let undecided = || (0..tasks.len()).filter(|i| shares[*i].is_none());
        let weights: f64 = undecided().map(|i| f64::from(tasks[i].weight)).sum();
        let left = nr_cpus as f64 - shares.iter().flatten().sum::<f64>();
        let share = |i: usize| left * f64::from(tasks[i].weight) / weights;
        let Some(whole) = undecided().find(|i| share(*i) > 1.0) else {
            return (0..tasks.len()).map(|i| shares[i].unwrap_or_else(|| share(i))).collect();
        };
        shares[whole] = Some(1.0);
    }
}
