// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's scheduler core (`kernel/sched/core.c`): run queues, wakeups, switches, ticks,
//! affinity, and the events that drive them. What a scheduling class decides is in [`Class`].
//!
//! A *path* is what a CPU does in the kernel from one event on: an interrupt, a system call of the
//! running task, or both with the switch that follows. In an atomic machine a path takes no time.
//! In an explored one it is a coroutine that stops for a random moment at each call of a helper or
//! kfunc, so that the paths of other CPUs come in between; run queues are locked as in the kernel.

mod change;
mod event;
mod path;
mod switch;
mod time;
mod wake;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use corosensei::Yielder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::event::Due;
pub(crate) use self::event::{Event, Job};
pub(crate) use self::path::Lock;
use self::path::{Path, Stop};
use crate::cgroup::Cgroup;
use crate::class::Class;
use crate::config::Config;
use crate::ext::Ext;
use crate::layout as l;
use crate::rules::{Rules, Violation};
use crate::task::{State, Task};

/// A task, by the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub(crate) u32);

impl TaskId {
    /// Its number, from 0 on.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Its thread id in the model.
    pub fn tid(self) -> u32 {
        self.0 + 1
    }
}

/// `enqueue_task()` and `dequeue_task()`: the task wakes, or goes to sleep.
pub const WAKEUP: u64 = 1;
/// `ENQUEUE_RESTORE`, `DEQUEUE_SAVE`: a property of the task changes.
pub const SAVE_RESTORE: u64 = 2;
/// `select_task_rq()` has chosen the CPU (`ENQUEUE_RQ_SELECTED`).
pub const RQ_SELECTED: u64 = l::ENQ_CPU_SELECTED;
/// `ENQUEUE_INITIAL`: the task has just been made.
pub const INITIAL: u64 = 0x80;
/// `TASK_ON_RQ_MIGRATING`: the task moves to another CPU and stays runnable.
pub const MIGRATING: u64 = 1 << 31;

/// `struct rq`.
pub(crate) struct Rq {
    pub(crate) lock: Lock,
    /// The task that runs; none: the idle task.
    pub(crate) curr: Cell<Option<TaskId>>,
    pub(crate) need_resched: Cell<bool>,
    /// A reschedule IPI is on its way.
    resched_sent: Cell<bool>,
    pub(crate) nr_running: Cell<u32>,
    pub(crate) online: Cell<bool>,
    /// Runnable tasks of the stop and real-time classes, best first; the running one, too.
    rt: RefCell<Vec<TaskId>>,
    /// Up to when the time of this CPU is accounted, to a task or to idleness.
    exec_start: Cell<u64>,
    pub(crate) in_task: Cell<bool>,
    idle_since: Cell<u64>,
    pub(crate) idle_ns: Cell<u64>,
    /// Since when the task makes progress; none while the CPU is in the kernel.
    user_since: Cell<Option<u64>>,
    step: Cell<u64>,
    step_at: Cell<u64>,
    tick: Cell<u64>,
    tick_on: Cell<bool>,
    tick_phase: u64,
    /// Tasks that this CPU has been asked to wake, with flags (`rq->ttwu_pending`).
    wake_list: RefCell<VecDeque<(TaskId, u64)>>,
    /// Tasks that the stopper has to move off this CPU.
    to_move: RefCell<VecDeque<TaskId>>,
    stopper: Cell<Option<TaskId>>,
    // Explored machines only.
    jobs: RefCell<VecDeque<Job>>,
    busy: Cell<bool>,
    path: RefCell<Option<Path>>,
    yielder: Cell<Option<*const Yielder<(), Stop>>>,
}

/// Counters of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    /// Events handled.
    pub nr_events: u64,
    /// Switches from one task, or idleness, to another.
    pub nr_switches: u64,
    /// Changes with each switch and its moment: two runs that differ anywhere differ here.
    pub trace: u64,
}

/// A model kernel with its machine, tasks and scheduler.
pub struct Kernel {
    pub(crate) config: Config,
    now: Cell<u64>,
    /// Up to when it runs by now.
    until: Cell<u64>,
    this_cpu: Cell<usize>,
    /// A coroutine runs.
    in_path: Cell<bool>,
    events: RefCell<BinaryHeap<Reverse<Due>>>,
    seq: Cell<u64>,
    random: RefCell<ChaCha8Rng>,
    pub(crate) rqs: Vec<Rq>,
    tasks: RefCell<Vec<Rc<Task>>>,
    pub(crate) idle_task: Rc<Task>,
    pub(crate) cgroups: RefCell<Vec<Rc<Cgroup>>>,
    pub(crate) ext: Option<Box<Ext>>,
    stock: Option<Box<dyn Class>>,
    pub(crate) rules: Rules,
    totals: Cell<Totals>,
    /// How often a task came to a run queue, left one, or began to run.
    nr_changes: Cell<u64>,
    on_switch: RefCell<Option<SwitchHook>>,
}

/// Sees each switch: the moment, the CPU, the old and the new task.
pub type SwitchHook = Box<dyn FnMut(u64, usize, Option<&str>, Option<&str>)>;

impl Kernel {
    pub(crate) fn new(
        config: Config,
        ext: Option<Box<Ext>>,
        stock: Option<Box<dyn Class>>,
    ) -> Box<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(config.seed);
        let rqs = (0..config.nr_cpus)
            .map(|_| {
                let phase = match config.ticks_aligned {
                    true => 0,
                    false => random.random_range(0..config.tick_ns),
                };
                Rq::new(phase)
            })
            .collect();
        let idle_task = Rc::new(Task::idle());
        let rules = Rules::new(&config);
        let root = Rc::new(Cgroup::root());
        Box::new(Self {
            config,
            now: Cell::new(0),
            until: Cell::new(0),
            this_cpu: Cell::new(0),
            in_path: Cell::new(false),
            events: RefCell::default(),
            seq: Cell::new(0),
            random: RefCell::new(random),
            rqs,
            tasks: RefCell::default(),
            idle_task,
            cgroups: RefCell::new(vec![root]),
            ext,
            stock,
            rules,
            totals: Cell::default(),
            nr_changes: Cell::new(0),
            on_switch: RefCell::default(),
        })
    }

    /// The scheduling class of ordinary tasks.
    pub(crate) fn class(&self) -> &dyn Class {
        match (&self.ext, &self.stock) {
            (Some(ext), _) => &**ext,
            (None, Some(stock)) => &**stock,
            (None, None) => unreachable!("a machine has a scheduler"),
        }
    }

    /// Nanoseconds since the machine booted.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// The CPU whose path runs.
    pub fn this_cpu(&self) -> usize {
        self.this_cpu.get()
    }

    /// The machine.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters so far.
    pub fn totals(&self) -> Totals {
        self.totals.get()
    }

    /// A random number below `bound`; 0 for a bound of 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.random.borrow_mut().random_range(0..bound) }
    }

    pub(crate) fn random_u32(&self) -> u32 {
        self.random.borrow_mut().random()
    }

    pub(crate) fn set_switch_hook(&self, hook: SwitchHook) {
        *self.on_switch.borrow_mut() = Some(hook);
    }

    pub(crate) fn violation(&self, rule: &'static str, text: String) {
        self.rules.found(Violation { rule, at_ns: self.now(), text });
    }

    /// The task with this id.
    pub fn task(&self, id: TaskId) -> Rc<Task> {
        Rc::clone(&self.tasks.borrow()[id.index()])
    }

    pub(crate) fn nr_tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(crate) fn task_ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.nr_tasks() as u32).map(TaskId)
    }

    /// The task that runs on `cpu`; none: it idles.
    pub fn curr(&self, cpu: usize) -> Option<TaskId> {
        self.rqs[cpu].curr.get()
    }

    /// Tasks on the run queue of `cpu`, of all classes.
    pub fn nr_running(&self, cpu: usize) -> u32 {
        self.rqs[cpu].nr_running.get()
    }

    /// Is the CPU online?
    pub fn is_online(&self, cpu: usize) -> bool {
        self.rqs[cpu].online.get()
    }

    pub(crate) fn cpu_ns(&self, id: TaskId) -> u64 {
        let task = self.task(id);
        let cpu = task.cpu.get();
        let running = self.rqs[cpu].curr.get() == Some(id);
        let more = if running { self.now() - self.rqs[cpu].exec_start.get() } else { 0 };
        task.raw.get::<u64>(l::TASK_SUM_EXEC) + more
    }

    /// `p->on_cpu`.
    pub(crate) fn is_current(&self, task: &Task) -> bool {
        self.curr(task.cpu.get()) == Some(task.id)
    }

    pub(crate) fn is_running(&self, id: TaskId) -> bool {
        let task = self.task(id);
        self.is_current(&task) && task.state.get() == State::Running
    }

    pub(crate) fn is_asleep(&self, id: TaskId) -> bool {
        self.task(id).state.get() != State::Running
    }

    /// Has the task exited?
    pub(crate) fn is_gone(&self, id: TaskId) -> bool {
        self.task(id).is_gone.get()
    }

    pub(crate) fn nr_changes(&self) -> u64 {
        self.nr_changes.get()
    }

    fn run_queue_changes(&self) {
        self.nr_changes.set(self.nr_changes.get() + 1);
    }

    fn count(&self, change: impl FnOnce(&mut Totals)) {
        let mut totals = self.totals.get();
        change(&mut totals);
        self.totals.set(totals);
    }

    fn note(&self, words: [u64; 3]) {
        self.count(|totals| {
            for word in words {
                totals.trace = (totals.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
            }
        });
    }
}

impl Rq {
    fn new(tick_phase: u64) -> Self {
        Self {
            lock: Lock::default(),
            curr: Cell::new(None),
            need_resched: Cell::new(false),
            resched_sent: Cell::new(false),
            nr_running: Cell::new(0),
            online: Cell::new(true),
            rt: RefCell::default(),
            exec_start: Cell::new(0),
            in_task: Cell::new(false),
            idle_since: Cell::new(0),
            idle_ns: Cell::new(0),
            user_since: Cell::new(None),
            step: Cell::new(0),
            step_at: Cell::new(u64::MAX),
            tick: Cell::new(0),
            tick_on: Cell::new(false),
            tick_phase,
            wake_list: RefCell::default(),
            to_move: RefCell::default(),
            stopper: Cell::new(None),
            jobs: RefCell::default(),
            busy: Cell::new(false),
            path: RefCell::new(None),
            yielder: Cell::new(None),
        }
    }

    /// How long it idles by now.
    pub(crate) fn idle_for(&self, now: u64) -> u64 {
        if self.curr.get().is_none() { now - self.idle_since.get() } else { 0 }
    }

    /// Idle time so far.
    pub(crate) fn idle_ns(&self, now: u64) -> u64 {
        let more = if self.curr.get().is_none() { now - self.exec_start.get() } else { 0 };
        self.idle_ns.get() + more
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for rq in &self.rqs {
            if let Some(mut path) = rq.path.borrow_mut().take() {
                // SAFETY: what lives on its stack are borrows of this kernel, which ends, and
                // frames of the scheduler, which need no clean-up.
                unsafe { path.force_reset() };
            }
        }
    }
}
