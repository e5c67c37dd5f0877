// SPDX-License-Identifier: GPL-2.0-or-later
//! A small model of a host: CPUs with one queue, tasks that run, sleep and wake and may not run on
//! all CPUs, and VMs with any claims of their vCPUs. All decisions are those of `policy.h`, as in
//! the scheduler.

use holdfast_policy::{
    Decision, Grace, Params, Siblings, Target, VcpuClass, Verdict, WEIGHT_NICE0, advance, charge,
    is_starving, may_rebase, note_class, swap_places, vtime_before, yield_target,
};

/// The defaults of the scheduler.
pub(crate) const PARAMS: Params = Params::DEFAULT;

/// A task and its state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) weight: u32,
    /// CPUs that it may run on: bit *i* is CPU *i*.
    pub(crate) cpus: u64,
    /// Its VM, whose vCPUs share one budget of grace.
    pub(crate) vm: Option<usize>,
    /// Classes that its guest claims; each probe draws one.
    pub(crate) claims: Vec<VcpuClass>,
    /// Probes of a hundred that find blockers.
    pub(crate) blockers_percent: u64,
    /// Ends its slices early, and at the end of every other one yields to a sibling.
    pub(crate) yields: bool,
    /// How long it runs until it sleeps.
    pub(crate) runs_ns: u64,
    /// How long it sleeps; 0: never.
    pub(crate) sleeps_ns: u64,
    /// Wakeups of a hundred by a sibling.
    pub(crate) by_sibling_percent: u64,
    /// How much longer than a slice it runs, as slices end at ticks.
    pub(crate) overrun_ns: u64,
    pub(crate) ran_ns: u64,
    pub(crate) longest_wait_ns: u64,
    /// The CPU that it ran on last.
    pub(crate) cpu: usize,
    pub(crate) state: State,
    pub(crate) vtime: u64,
    /// Its class when it stopped.
    pub(crate) class: VcpuClass,
    pub(crate) grace: Grace,
    /// CPU time for which its VM has not earned grace yet.
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
    /// A task of no VM that never sleeps.
    pub(crate) fn new(weight: u32) -> Self {
        Self {
            weight,
            cpus: u64::MAX,
            vm: None,
            claims: vec![VcpuClass::Unknown],
            blockers_percent: 0,
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

    /// A vCPU that always claims `class`.
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

/// An event in the life of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) at_ns: u64,
    pub(crate) cpu: usize,
    pub(crate) task: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// It begins to run.
    Runs,
    /// Its slice has ended, and it has another one.
    Kept,
    /// It is probed at the end of its slice or of a step of its grace.
    Probed { verdict: Verdict, step_ns: u64 },
    /// It is preempted, or sleeps.
    Stops,
    /// It wakes, and preempts the running task.
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
    /// When the running task was last charged.
    since_ns: u64,
    /// When there is a decision to make.
    until_ns: u64,
    /// While it is contended: virtual time of the tasks that want it, and since when it has that.
    here: Option<(u64, u64)>,
    /// Is that time apart from the host's?
    has_own_time: bool,
}

struct Host<'a> {
    tasks: &'a mut [Task],
    cpus: Vec<Cpu>,
    /// The budget of each VM.
    budgets_ns: Vec<u64>,
    vtime_now: u64,
    now_ns: u64,
    starving_check_at_ns: u64,
    random: Random,
    trace: Vec<Event>,
}

/// Runs `tasks`, all of which wake at first, on `nr_cpus` CPUs for `duration_ns`.
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
        starving_check_at_ns: 0,
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

    /// The first of the tasks that wait for `cpu`, and its key.
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

    /// The task furthest behind of those that want `cpu` has come to `least`.
    fn time_passes(&mut self, cpu: usize, least: u64) {
        self.vtime_now = advance(self.vtime_now, least);
        self.time_passes_here(cpu, least);
    }

    fn time_passes_here(&mut self, cpu: usize, least: u64) {
        if let Some((here, since_ns)) = self.cpus[cpu].here {
            self.cpus[cpu].here = Some((advance(here, least), since_ns));
        }
    }

    /// `first` waits for `cpu`, or no task does.
    fn set_contended(&mut self, cpu: usize, first: Option<(usize, u64)>) {
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
        // A running task that may run elsewhere does not count here.
        let (i, least) = match runs.filter(|i| self.tasks[*i].is_pinned()) {
            Some(i) => (i, least),
            None => (i, key),
        };
        self.time_passes_here(cpu, least);
        let (task, had) = (&self.tasks[i], self.cpus[cpu].has_own_time);
        self.cpus[cpu].has_own_time =
            PARAMS.has_own_time(self.vtime_now, least, task.weight, task.is_pinned(), had);
    }

    /// Moves the tasks of `cpu` by `further`, and the keys of those in its own queue.
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

    /// A starving task, for one slice of `STARVING_SLICES` as in the scheduler.
    fn starving(&mut self, cpu: usize) -> Option<usize> {
        let now_ns = self.now_ns;
        let starves = |task: &Task| match task.state {
            State::Queued { since_ns, .. } => {
                task.may_run_on(cpu) && is_starving(now_ns - since_ns)
            }
            _ => false,
        };
        let is_due = now_ns >= self.starving_check_at_ns;
        let first = self.tasks.iter().position(starves).filter(|_| is_due);
        if first.is_some() {
            self.starving_check_at_ns = now_ns + 3 * PARAMS.slice_ns;
        }
        first
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

    /// The running task of `cpu` has come to the end of its slice, of a step of its grace or of its
    /// work, or a task wakes that is further behind.
    fn dispatch(&mut self, cpu: usize) {
        self.charge(cpu);
        let mut prev = self.cpus[cpu].runs;
        if let Some(i) = prev.filter(|i| self.tasks[*i].left_ns == 0) {
            self.sleep(cpu, i);
            prev = None;
        }
        let first = self.first(cpu);
        self.set_contended(cpu, first);
        let first = first.map(|(i, _)| (i, self.key(i).expect("it waits")));
        if let Some(starving) = self.starving(cpu) {
            if let Some(i) = prev {
                self.preempt(cpu, i);
            }
            return self.start(cpu, starving, true);
        }
        let mut next = first.map(|(i, _)| i);
        if let Some(i) = prev {
            match self.end_slice(cpu, i, first.map(|(_, key)| key)) {
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

    /// `i` would run on; `first_key` is that of the first task that waits, if there is one.
    fn end_slice(&mut self, cpu: usize, i: usize, first_key: Option<u64>) -> Ended {
        let mut to = match self.tasks[i].yields && self.random.percent(50) {
            true => self.waits_for(i, true),
            false => None,
        };
        if to.is_none() {
            if first_key.is_none_or(|key| !vtime_before(key, self.tasks[i].vtime)) {
                self.renew_slice(cpu, i, first_key.is_none());
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

    /// Does `i`, whose slice has ended, run on?
    fn grant_grace(&mut self, cpu: usize, i: usize) -> bool {
        let Some(vm) = self.tasks[i].vm else { return false };
        let (class, siblings) = (self.claim(i), self.siblings(i));
        let (task, budget_ns) = (&mut self.tasks[i], &mut self.budgets_ns[vm]);
        note_class(&mut task.grace, class, task.ran_ns);
        *budget_ns = PARAMS.earn(*budget_ns, std::mem::take(&mut task.unearned_ns));
        let Decision { verdict, step_ns } =
            PARAMS.decide(&mut task.grace, budget_ns, class, &siblings);
        self.cpus[cpu].until_ns = self.now_ns + step_ns.min(task.left_ns);
        self.record(cpu, i, What::Probed { verdict, step_ns });
        verdict == Verdict::Extend
    }

    /// A sibling that `i` yields to: one that waits for a CPU, if the policy says so.
    fn waits_for(&mut self, i: usize, candidate: bool) -> Option<usize> {
        let vm = self.tasks[i].vm?;
        let (class, siblings) = (self.claim(i), self.siblings(i));
        if yield_target(class, &siblings, candidate, false) == Target::ToNone {
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

    /// Draws a class that the guest of `i` claims.
    fn claim(&mut self, i: usize) -> VcpuClass {
        let claims = &self.tasks[i].claims;
        claims[self.random.below(claims.len() as u64) as usize]
    }

    fn siblings(&mut self, i: usize) -> Siblings {
        if !self.random.percent(self.tasks[i].blockers_percent) {
            return Siblings::default();
        }
        let mut draw = || self.random.percent(50);
        Siblings { holder: draw(), next: draw(), waiter: draw(), call_pending: draw() }
    }

    /// `i` begins a slice on `cpu`.
    fn begin_slice(&mut self, cpu: usize, i: usize) {
        let task = &mut self.tasks[i];
        (task.grace.granted_ns, task.grace.nr_steps) = (0, 0);
        let slice_ns = match task.yields {
            true => self.random.below(PARAMS.slice_ns) + 1,
            false => PARAMS.slice_ns + task.overrun_ns,
        };
        self.cpus[cpu].until_ns = self.now_ns + slice_ns.min(task.left_ns);
    }

    fn renew_slice(&mut self, cpu: usize, i: usize, is_alone: bool) {
        if is_alone {
            self.clamp_lag(i);
        } else {
            self.place(i, cpu, false);
        }
        self.record(cpu, i, What::Kept);
        self.begin_slice(cpu, i);
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
        self.begin_slice(cpu, i);
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

/// How a slice ended.
enum Ended {
    RunsOn,
    Preempted,
    GivesTo(usize),
}

/// The part of the CPUs that is due to each task: by weight, and at most one CPU.
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
