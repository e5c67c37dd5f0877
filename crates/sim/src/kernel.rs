// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's scheduler core (`kernel/sched/core.c`): run queues, wakeups, switches, ticks,
//! affinity, and the events that drive them. What a scheduling class decides is in [`Class`].
//!
//! A *path* is what a CPU does in the kernel from one event on: an interrupt, a system call of the
//! running task, or both with the switch that follows. In an atomic machine a path takes no time.
//! In an explored one it is a coroutine that stops for a random moment at each call of a helper or
//! kfunc, so that the paths of other CPUs come in between; run queues are locked as in the kernel.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cgroup::Cgroup;
use crate::class::Class;
use crate::config::Config;
use crate::cpuset::CpuSet;
use crate::ext::Ext;
use crate::layout as l;
use crate::program::{Cx, FOREVER, Step, YieldTo};
use crate::rules::{Rules, Violation};
use crate::task::{Policy, Sched, State, Task};

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

/// What happens at a moment.
pub(crate) enum Event {
    /// On a CPU.
    On(usize, Job),
    /// The path of a CPU goes on.
    Resume(usize),
}

/// What starts a path.
pub(crate) enum Job {
    /// The timer interrupt; of the tick sequence with this number.
    Tick(u64),
    /// The running task's step is over; of the step with this number.
    Step(u64),
    /// A BPF timer expires: its index, and which start of it.
    Timer(usize, u64),
    /// An IPI that asks for a reschedule.
    Resched,
    /// A wakeup that another CPU has passed on, with flags for the enqueue.
    TtwuPending(TaskId, u64),
    /// A timer interrupt that wakes a task.
    Wake(TaskId),
    /// Deferred work of a run queue.
    Deferred,
    /// Whatever the machine's owner asks for, in interrupt context.
    Call(Box<dyn FnOnce(&Kernel)>),
}

struct Due {
    at: u64,
    seq: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// Why a path stops.
enum Stop {
    /// For so many nanoseconds.
    For(u64),
    /// Until another path wakes it.
    Waits,
    /// It is over.
    Done,
}

/// How long a path spins before it looks again.
const SPIN_NS: u64 = 100;

type Path = Coroutine<(), Stop, (), DefaultStack>;

/// A spinlock. An atomic machine never finds it taken.
#[derive(Default)]
pub(crate) struct Lock {
    owner: Cell<Option<usize>>,
    waiters: RefCell<VecDeque<usize>>,
}

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

    // ---- events and paths ----

    pub(crate) fn post(&self, at: u64, event: Event) {
        let seq = self.seq.get();
        self.seq.set(seq + 1);
        self.events.borrow_mut().push(Reverse(Due { at, seq, event }));
    }

    pub(crate) fn post_in(&self, ns: u64, event: Event) {
        self.post(self.now() + ns, event);
    }

    /// Runs until the moment `until`, or until a rule is violated.
    pub(crate) fn run_until(&self, until: u64) {
        let _entered = crate::kfuncs::Entered::new(self);
        self.until.set(until);
        while !self.rules.is_violated() {
            let due = {
                let mut events = self.events.borrow_mut();
                match events.peek() {
                    Some(Reverse(due)) if due.at <= until => events.pop(),
                    _ => None,
                }
            };
            let Some(Reverse(due)) = due else { break };
            debug_assert!(due.at >= self.now());
            self.now.set(due.at);
            self.count(|totals| totals.nr_events += 1);
            match due.event {
                Event::On(cpu, job) => self.enter(cpu, job),
                Event::Resume(cpu) => self.resume(cpu),
            }
        }
        if !self.rules.is_violated() {
            self.now.set(until);
        }
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

    fn enter(&self, cpu: usize, job: Job) {
        if self.config.explore.is_none() {
            self.this_cpu.set(cpu);
            self.path(cpu, job);
            return;
        }
        let rq = &self.rqs[cpu];
        rq.jobs.borrow_mut().push_back(job);
        if !rq.busy.get() {
            self.resume(cpu);
        }
    }

    /// Lets the path of `cpu` go on, or start with the next job.
    fn resume(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        let mut path = rq.path.borrow_mut();
        let path = path.get_or_insert_with(|| self.new_path(cpu));
        rq.busy.set(true);
        self.this_cpu.set(cpu);
        self.in_path.set(true);
        let stopped = path.resume(());
        self.in_path.set(false);
        match stopped {
            CoroutineResult::Yield(Stop::For(ns)) => self.post_in(ns, Event::Resume(cpu)),
            CoroutineResult::Yield(Stop::Waits) => {}
            CoroutineResult::Yield(Stop::Done) | CoroutineResult::Return(()) => rq.busy.set(false),
        }
    }

    fn new_path(&self, cpu: usize) -> Path {
        let stack = DefaultStack::new(256 << 10).expect("there is memory for a stack");
        let kernel: *const Self = self;
        Coroutine::with_stack(stack, move |yielder, ()| {
            // SAFETY: a path is resumed by its kernel only, which therefore lives.
            let kernel = unsafe { &*kernel };
            kernel.rqs[cpu].yielder.set(Some(yielder));
            loop {
                let job = kernel.rqs[cpu].jobs.borrow_mut().pop_front();
                match job {
                    Some(job) => kernel.path(cpu, job),
                    None => yielder.suspend(Stop::Done),
                }
            }
        })
    }

    fn suspend(&self, stop: Stop) {
        let cpu = self.this_cpu();
        let yielder = self.rqs[cpu].yielder.get().expect("only a path of an explored machine");
        // SAFETY: the yielder lives as long as the coroutine, which is the one that runs.
        unsafe { &*yielder }.suspend(stop);
    }

    /// A helper or kfunc is called: other CPUs may come in between.
    pub(crate) fn pause(&self) {
        let Some(explore) = &self.config.explore else { return };
        if !self.in_path.get() || explore.pause_ns == 0 {
            return;
        }
        // Half of all calls take no time at all.
        let ns = self.random_below(2 * explore.pause_ns);
        if ns >= explore.pause_ns && !self.passes(ns - explore.pause_ns) {
            self.suspend(Stop::For(ns - explore.pause_ns));
        }
    }

    /// Lets time pass on the path that runs. False if another event comes before its end.
    fn passes(&self, ns: u64) -> bool {
        let at = self.now() + ns;
        let is_next = self.events.borrow().peek().is_none_or(|Reverse(due)| due.at > at);
        let passes = is_next && at <= self.until.get() && !self.rules.is_violated();
        if passes {
            self.now.set(at);
            self.count(|totals| totals.nr_events += 1);
        }
        passes
    }

    pub(crate) fn lock(&self, lock: &Lock) {
        let me = self.this_cpu();
        while let Some(owner) = lock.owner.get() {
            assert!(owner != me, "CPU {me} takes a lock twice");
            assert!(self.in_path.get(), "CPU {me} waits for a lock outside of a path");
            lock.waiters.borrow_mut().push_back(me);
            self.suspend(Stop::Waits);
        }
        lock.owner.set(Some(me));
    }

    pub(crate) fn try_lock(&self, lock: &Lock) -> bool {
        let free = lock.owner.get().is_none();
        if free {
            lock.owner.set(Some(self.this_cpu()));
        }
        free
    }

    pub(crate) fn unlock(&self, lock: &Lock) {
        debug_assert_eq!(lock.owner.get(), Some(self.this_cpu()));
        lock.owner.set(None);
        if let Some(waiter) = lock.waiters.borrow_mut().pop_front() {
            self.post_in(0, Event::Resume(waiter));
        }
    }

    pub(crate) fn lock_rq(&self, cpu: usize) {
        self.lock(&self.rqs[cpu].lock);
    }

    pub(crate) fn unlock_rq(&self, cpu: usize) {
        self.unlock(&self.rqs[cpu].lock);
    }

    /// `switch_rq_lock()`.
    pub(crate) fn switch_rq_lock(&self, from: usize, to: usize) {
        if from != to {
            self.unlock_rq(from);
            self.lock_rq(to);
        }
    }

    /// Locks two run queues in the order of CPUs (`double_rq_lock()`).
    fn double_lock(&self, a: usize, b: usize) {
        self.lock_rq(a.min(b));
        if a != b {
            self.lock_rq(a.max(b));
        }
    }

    fn double_unlock(&self, a: usize, b: usize) {
        self.unlock_rq(a);
        if a != b {
            self.unlock_rq(b);
        }
    }

    /// What a CPU does from one event on.
    fn path(&self, cpu: usize, job: Job) {
        self.leave_user(cpu);
        let rq = &self.rqs[cpu];
        rq.in_task.set(false);
        match job {
            Job::Tick(nr) => self.tick(cpu, nr),
            Job::Step(nr) => {
                rq.in_task.set(true);
                if nr == rq.step.get() {
                    self.step_is_over(cpu);
                }
            }
            Job::Timer(index, start) => {
                if let Some(ext) = &self.ext {
                    ext.timer_expires(self, index, start);
                }
            }
            Job::Resched => {
                rq.resched_sent.set(false);
            }
            Job::TtwuPending(task, flags) => self.ttwu_pending(cpu, task, flags),
            Job::Wake(task) => {
                self.try_to_wake_up(task, false);
            }
            Job::Deferred => self.class().deferred(self, cpu),
            Job::Call(call) => call(self),
        }
        loop {
            self.class().irq_work(self, cpu);
            if !rq.need_resched.get() {
                break;
            }
            rq.in_task.set(true);
            self.schedule(cpu);
        }
        self.enter_user(cpu);
    }

    /// The running task stops making progress.
    fn leave_user(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        let Some(since) = rq.user_since.take() else { return };
        let Some(curr) = rq.curr.get() else { return };
        let task = self.task(curr);
        if task.left.get() < FOREVER {
            task.left.set(task.left.get().saturating_sub(self.now() - since));
        }
    }

    /// The running task makes progress; its step ends in due course.
    fn enter_user(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        let Some(curr) = rq.curr.get() else { return };
        let task = self.task(curr);
        rq.user_since.set(Some(self.now()));
        let at = match task.poked.get() && task.spins.get() {
            true => self.now(),
            false if task.left.get() >= FOREVER => u64::MAX,
            false => self.now() + task.left.get(),
        };
        // Most paths, such as ticks, change nothing of that.
        if at != rq.step_at.get() {
            rq.step.set(rq.step.get() + 1);
            rq.step_at.set(at);
            if at != u64::MAX {
                self.post(at, Event::On(cpu, Job::Step(rq.step.get())));
            }
        }
    }

    /// The step that was due on `cpu` is not any more.
    fn forget_step(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        rq.step.set(rq.step.get() + 1);
        rq.step_at.set(u64::MAX);
    }

    fn step_is_over(&self, cpu: usize) {
        self.forget_step(cpu);
        let Some(curr) = self.rqs[cpu].curr.get() else { return };
        let task = self.task(curr);
        let cx = Cx { kernel: self, task: curr };
        task.left.set(0);
        if task.spins.replace(false) {
            task.poked.set(false);
        }
        loop {
            let step = task.program.borrow_mut().next(&cx);
            match step {
                Step::Run(ns) => task.left.set(ns.max(1)),
                Step::Spin(ns) => {
                    if task.poked.take() {
                        continue;
                    }
                    task.spins.set(true);
                    task.left.set(ns.max(1));
                }
                Step::Yield => {
                    task.left.set(self.config.syscall_ns.max(1));
                    self.lock_rq(cpu);
                    match task.sched.get() {
                        Sched::Class => self.class().yield_task(self, cpu),
                        _ => self.requeue_rt(cpu, curr),
                    }
                    self.unlock_rq(cpu);
                    self.rqs[cpu].need_resched.set(true);
                }
                Step::Sleep(ns) => {
                    task.set_state(State::Sleeping);
                    self.post_in(ns, Event::On(cpu, Job::Wake(curr)));
                    self.rqs[cpu].need_resched.set(true);
                }
                Step::Block => {
                    if task.wake_pending.take() {
                        continue;
                    }
                    task.set_state(State::Sleeping);
                    self.rqs[cpu].need_resched.set(true);
                }
                Step::Exit => {
                    let flags = task.raw.get::<u32>(l::TASK_FLAGS);
                    task.raw.set(l::TASK_FLAGS, flags | crate::task::PF_EXITING);
                    task.set_state(State::Dead);
                    self.rqs[cpu].need_resched.set(true);
                }
            }
            break;
        }
    }

    pub(crate) fn poke(&self, id: TaskId) {
        let task = self.task(id);
        task.poked.set(true);
        let cpu = task.cpu.get();
        // On another CPU the task makes progress: its step ends at once.
        if task.spins.get()
            && self.rqs[cpu].curr.get() == Some(id)
            && self.rqs[cpu].user_since.get().is_some()
        {
            self.forget_step(cpu);
            self.rqs[cpu].step_at.set(self.now());
            self.post(self.now(), Event::On(cpu, Job::Step(self.rqs[cpu].step.get())));
        }
    }

    // ---- time ----

    /// `update_curr_common()`, and what the class makes of it.
    pub(crate) fn update_curr(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        let ran = self.now() - rq.exec_start.get();
        if ran == 0 {
            return;
        }
        rq.exec_start.set(self.now());
        let Some(curr) = rq.curr.get() else {
            rq.idle_ns.set(rq.idle_ns.get() + ran);
            return;
        };
        let task = self.task(curr);
        task.raw.set(l::TASK_SUM_EXEC, task.raw.get::<u64>(l::TASK_SUM_EXEC) + ran);
        if task.sched.get() == Sched::Class {
            self.class().charge(self, cpu, &task, ran);
        }
    }

    fn tick(&self, cpu: usize, nr: u64) {
        let rq = &self.rqs[cpu];
        if nr != rq.tick.get() {
            return;
        }
        // An idle CPU stops its tick (NO_HZ_IDLE).
        let Some(curr) = rq.curr.get() else {
            rq.tick_on.set(false);
            return;
        };
        self.post_in(self.config.tick_ns, Event::On(cpu, Job::Tick(nr)));
        self.lock_rq(cpu);
        // It may have changed while this CPU waited for the lock.
        if rq.curr.get() == Some(curr) {
            self.update_curr(cpu);
            let task = self.task(curr);
            if task.sched.get() == Sched::Class {
                self.class().task_tick(self, cpu, &task);
            }
        }
        self.unlock_rq(cpu);
    }

    fn start_tick(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        if rq.tick_on.replace(true) {
            return;
        }
        rq.tick.set(rq.tick.get() + 1);
        let tick_ns = self.config.tick_ns;
        let passed = (self.now() + tick_ns - rq.tick_phase) % tick_ns;
        self.post_in(tick_ns - passed, Event::On(cpu, Job::Tick(rq.tick.get())));
    }

    /// `resched_curr()`: this CPU reschedules at the end of its path, another one by an interrupt.
    pub fn resched_curr(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        if rq.need_resched.replace(true) || cpu == self.this_cpu() {
            return;
        }
        if !rq.resched_sent.replace(true) {
            self.post_in(self.config.ipi_ns, Event::On(cpu, Job::Resched));
        }
    }

    // ---- switches ----

    /// `__schedule()`.
    fn schedule(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        self.lock_rq(cpu);
        let prev = rq.curr.get();
        self.update_curr(cpu);
        if let Some(prev) = prev.map(|prev| self.task(prev))
            && prev.state.get() != State::Running
            && prev.on_rq.get()
        {
            self.deactivate_task(cpu, &prev, WAKEUP);
        }
        let next = self.pick_next_task(cpu, prev);
        rq.need_resched.set(false);
        if next != prev {
            self.context_switch(cpu, prev, next);
        }
        self.class().balance_callbacks(self, cpu);
        self.unlock_rq(cpu);
        let Some(prev) = prev.map(|prev| self.task(prev)) else { return };
        if prev.state.get() == State::Dead && !self.is_current(&prev) && !prev.is_gone.replace(true)
        {
            self.task_dead(&prev);
        }
    }

    /// `pick_next_task()` with `put_prev_set_next_task()`.
    fn pick_next_task(&self, cpu: usize, prev: Option<TaskId>) -> Option<TaskId> {
        let rq = &self.rqs[cpu];
        loop {
            let prev_task = prev.map(|prev| self.task(prev));
            let first = rq.rt.borrow().first().copied();
            if let Some(next) = first {
                if prev != Some(next) {
                    self.put_prev_set_next(cpu, prev_task.as_deref(), Some(next));
                }
                return Some(next);
            }
            let in_class = prev_task.as_deref().filter(|prev| prev.sched.get() == Sched::Class);
            match self.class().pick_task(self, cpu, in_class) {
                // A task of a higher class came while the run queue was unlocked.
                _ if !rq.rt.borrow().is_empty() => {}
                next => {
                    if next != prev {
                        self.put_prev_set_next(cpu, prev_task.as_deref(), next);
                    } else if next.is_none() {
                        self.class().update_idle(self, cpu, true, false);
                    }
                    return next;
                }
            }
        }
    }

    fn put_prev_set_next(&self, cpu: usize, prev: Option<&Task>, next: Option<TaskId>) {
        let next = next.map(|next| self.task(next));
        match prev {
            None => self.class().update_idle(self, cpu, false, true),
            Some(prev) if prev.sched.get() == Sched::Class => {
                self.update_curr(cpu);
                if prev.on_rq.get() {
                    self.ready(prev);
                }
                self.class().put_prev_task(self, cpu, prev, next.as_deref());
            }
            Some(prev) => {
                if prev.on_rq.get() {
                    self.ready(prev);
                }
            }
        }
        match next.as_deref() {
            None => self.class().update_idle(self, cpu, true, true),
            Some(next) if next.sched.get() == Sched::Class => {
                self.class().set_next_task(self, cpu, next);
            }
            Some(_) => {}
        }
    }

    fn context_switch(&self, cpu: usize, prev: Option<TaskId>, next: Option<TaskId>) {
        let rq = &self.rqs[cpu];
        self.count(|totals| totals.nr_switches += 1);
        self.note([self.now(), cpu as u64, next.map_or(0, |next| u64::from(next.tid()))]);
        let prev = prev.map(|prev| self.task(prev));
        let next = next.map(|next| self.task(next));
        if let Some(hook) = &mut *self.on_switch.borrow_mut() {
            let name = |task: &Option<Rc<Task>>| task.as_ref().map(|task| task.name.clone());
            hook(self.now(), cpu, name(&prev).as_deref(), name(&next).as_deref());
        }
        self.forget_step(cpu);
        if let Some(prev) = &prev {
            let preempted = prev.state.get() == State::Running;
            if prev.state.get() != State::Dead {
                let cx = Cx { kernel: self, task: prev.id };
                prev.program.borrow_mut().switched_out(&cx, preempted);
            }
        }
        rq.curr.set(next.as_ref().map(|next| next.id));
        match (&prev, &next) {
            (None, Some(_)) => self.start_tick(cpu),
            (Some(_), None) => rq.idle_since.set(self.now()),
            _ => {}
        }
        if let Some(next) = &next {
            self.rules.runs(self, next);
            if next.left.get() < FOREVER {
                next.left.set(next.left.get() + self.config.switch_ns);
            }
            let cx = Cx { kernel: self, task: next.id };
            next.program.borrow_mut().switched_in(&cx);
        }
    }

    /// The task waits for a CPU from now on.
    fn ready(&self, task: &Task) {
        if task.ready_at.get().is_none() {
            task.ready_at.set(Some(self.now()));
        }
    }

    pub(crate) fn activate_task(&self, cpu: usize, task: &Task, flags: u64) {
        debug_assert!(!task.on_rq.get(), "{} is queued twice", task.name);
        task.on_rq.set(true);
        let rq = &self.rqs[cpu];
        rq.nr_running.set(rq.nr_running.get() + 1);
        if self.rqs[cpu].curr.get() != Some(task.id) {
            self.ready(task);
        }
        match task.sched.get() {
            Sched::Class => self.class().enqueue_task(self, cpu, task, flags),
            _ => self.enqueue_rt(cpu, task),
        }
    }

    pub(crate) fn deactivate_task(&self, cpu: usize, task: &Task, flags: u64) {
        task.on_rq.set(false);
        let rq = &self.rqs[cpu];
        rq.nr_running.set(rq.nr_running.get() - 1);
        if flags & WAKEUP != 0 {
            task.ready_at.set(None);
        }
        match task.sched.get() {
            Sched::Class => self.class().dequeue_task(self, cpu, task, flags),
            _ => rq.rt.borrow_mut().retain(|id| *id != task.id),
        }
    }

    fn enqueue_rt(&self, cpu: usize, task: &Task) {
        let mut rt = self.rqs[cpu].rt.borrow_mut();
        let at = rt.iter().position(|other| self.task(*other).sched.get() < task.sched.get());
        let at = at.unwrap_or(rt.len());
        rt.insert(at, task.id);
    }

    fn requeue_rt(&self, cpu: usize, id: TaskId) {
        let task = self.task(id);
        self.rqs[cpu].rt.borrow_mut().retain(|other| *other != id);
        self.enqueue_rt(cpu, &task);
    }

    // ---- wakeups ----

    pub(crate) fn wake_from_program(&self, id: TaskId, sync: bool) {
        if !self.try_to_wake_up(id, sync) {
            self.task(id).wake_pending.set(true);
        }
    }

    /// `try_to_wake_up()`. False if the task does not sleep.
    pub(crate) fn try_to_wake_up(&self, id: TaskId, sync: bool) -> bool {
        let task = self.task(id);
        self.lock(&task.pi_lock);
        let woken = self.try_to_wake_up_locked(&task, sync);
        self.unlock(&task.pi_lock);
        woken
    }

    fn try_to_wake_up_locked(&self, task: &Task, sync: bool) -> bool {
        if task.state.get() != State::Sleeping {
            return false;
        }
        // ttwu_runnable(): it is about to sleep, and its CPU has not dequeued it yet.
        if task.on_rq.get() {
            let cpu = task.cpu.get();
            self.lock_rq(cpu);
            let on_rq = task.on_rq.get();
            if on_rq {
                task.set_state(State::Running);
            }
            self.unlock_rq(cpu);
            if on_rq {
                return true;
            }
        }
        // Its CPU switches away from it still.
        while self.is_current(task) {
            self.suspend(Stop::For(SPIN_NS));
        }
        task.set_state(State::Running);
        let is_new = task.is_new.take();
        let kind = if is_new { l::WAKE_FORK } else { l::WAKE_TTWU };
        let wake_flags = kind | if sync { l::WAKE_SYNC } else { 0 };
        let (cpu, mut flags) = self.select_task_rq(task, wake_flags);
        if is_new {
            // wake_up_new_task().
            flags = flags & !WAKEUP | INITIAL;
        }
        self.set_task_cpu(task, cpu);
        if self.ttwu_queues(task, cpu) {
            let job = Job::TtwuPending(task.id, flags);
            self.post_in(self.config.ipi_ns, Event::On(cpu, job));
        } else {
            self.lock_rq(cpu);
            self.ttwu_do_activate(cpu, task, flags);
            self.unlock_rq(cpu);
        }
        true
    }

    /// `select_task_rq()`: the CPU, and flags for the enqueue.
    fn select_task_rq(&self, task: &Task, wake_flags: u64) -> (usize, u64) {
        let prev = task.cpu.get();
        let allowed = task.cpus();
        let (cpu, flags) = if task.sched.get() == Sched::Class
            && task.nr_cpus_allowed() > 1
            && !task.is_migration_disabled()
        {
            let cpu = self.class().select_task_rq(self, task, prev, wake_flags);
            (cpu, WAKEUP | RQ_SELECTED)
        } else if task.is_migration_disabled() {
            (prev, WAKEUP)
        } else {
            (if allowed.has(prev) { prev } else { allowed.iter().next().unwrap_or(prev) }, WAKEUP)
        };
        // is_cpu_allowed(), select_fallback_rq().
        let fits = self.is_online(cpu) && (allowed.has(cpu) || task.is_migration_disabled());
        (if fits { cpu } else { self.fallback_rq(task) }, flags)
    }

    /// `select_fallback_rq()`.
    pub(crate) fn fallback_rq(&self, task: &Task) -> usize {
        let allowed = task.cpus();
        let online = allowed.iter().find(|cpu| self.is_online(*cpu));
        online.or_else(|| (0..self.rqs.len()).find(|cpu| self.is_online(*cpu))).unwrap_or(0)
    }

    /// `ttwu_queue_cond()`: does the CPU of the task wake it, by an interrupt?
    fn ttwu_queues(&self, task: &Task, cpu: usize) -> bool {
        let here = self.this_cpu();
        if task.sched.get() != Sched::Class || !self.class().allows_queued_wakeup() {
            return false;
        }
        if !self.config.same_llc(here, cpu) {
            return true;
        }
        cpu != here && self.rqs[cpu].nr_running.get() == 0
    }

    fn ttwu_pending(&self, cpu: usize, id: TaskId, flags: u64) {
        let task = self.task(id);
        self.lock_rq(cpu);
        self.ttwu_do_activate(cpu, &task, flags);
        self.unlock_rq(cpu);
    }

    fn ttwu_do_activate(&self, cpu: usize, task: &Task, flags: u64) {
        self.activate_task(cpu, task, flags);
        self.wakeup_preempt(cpu, task, flags);
        self.class().task_woken(self, cpu);
    }

    /// `wakeup_preempt()`.
    pub(crate) fn wakeup_preempt(&self, cpu: usize, task: &Task, flags: u64) {
        let curr = self.rqs[cpu].curr.get().map(|curr| self.task(curr));
        match curr {
            None => self.resched_curr(cpu),
            Some(curr) if curr.sched.get() < task.sched.get() => self.resched_curr(cpu),
            Some(curr) if curr.sched.get() == Sched::Class && task.sched.get() == Sched::Class => {
                self.class().wakeup_preempt(self, cpu, task, flags);
            }
            Some(_) => {}
        }
    }

    /// `set_task_cpu()`.
    pub(crate) fn set_task_cpu(&self, task: &Task, cpu: usize) {
        if task.cpu.replace(cpu) != cpu {
            self.class().migrate_task_rq(self, task, cpu);
        }
    }

    // ---- yields ----

    pub(crate) fn yield_to(&self, id: TaskId) -> YieldTo {
        let here = self.this_cpu();
        let task = self.task(id);
        self.lock(&task.pi_lock);
        let answer = loop {
            let there = task.cpu.get();
            if self.rqs[here].nr_running.get() == 1 && self.rqs[there].nr_running.get() == 1 {
                break YieldTo::NoPoint;
            }
            self.double_lock(here, there);
            if task.cpu.get() != there {
                self.double_unlock(here, there);
                continue;
            }
            let answer = self.yield_to_locked(here, there, &task);
            self.double_unlock(here, there);
            break answer;
        };
        self.unlock(&task.pi_lock);
        answer
    }

    fn yield_to_locked(&self, here: usize, there: usize, task: &Task) -> YieldTo {
        let Some(curr) = self.rqs[here].curr.get().map(|curr| self.task(curr)) else {
            return YieldTo::Refused;
        };
        let both = curr.sched.get() == Sched::Class && task.sched.get() == Sched::Class;
        if !both || self.is_current(task) || task.state.get() != State::Running || !task.on_rq.get()
        {
            return YieldTo::Refused;
        }
        if !self.class().yield_to_task(self, here, task) {
            return YieldTo::Refused;
        }
        self.rules.yield_granted(self, &curr);
        if here != there {
            self.resched_curr(there);
        }
        self.rqs[here].need_resched.set(true);
        YieldTo::Yielded
    }

    // ---- changes of a task ----

    /// `task_rq_lock()`: the CPU whose run queue is locked, which the task has not left meanwhile.
    fn task_rq_lock(&self, task: &Task) -> usize {
        self.lock(&task.pi_lock);
        loop {
            let cpu = task.cpu.get();
            self.lock_rq(cpu);
            if task.cpu.get() == cpu {
                return cpu;
            }
            self.unlock_rq(cpu);
        }
    }

    fn task_rq_unlock(&self, cpu: usize, task: &Task) {
        self.unlock_rq(cpu);
        self.unlock(&task.pi_lock);
    }

    /// `sched_change_begin()` and `sched_change_end()`: the task is dequeued, changed, and queued
    /// again. Its run queue is locked.
    pub(crate) fn sched_change(&self, task: &Task, change: impl FnOnce()) {
        let cpu = task.cpu.get();
        let queued = task.on_rq.get();
        let running = self.rqs[cpu].curr.get() == Some(task.id);
        self.update_curr(cpu);
        if queued {
            self.deactivate_task(cpu, task, SAVE_RESTORE);
        }
        if running && task.sched.get() == Sched::Class {
            self.class().put_prev_task(self, cpu, task, None);
        }
        change();
        if queued {
            self.activate_task(cpu, task, SAVE_RESTORE);
        }
        if running && task.sched.get() == Sched::Class {
            self.class().set_next_task(self, cpu, task);
        }
    }

    /// `__set_cpus_allowed_ptr()`.
    pub fn set_cpus_allowed(&self, id: TaskId, cpus: &CpuSet) {
        let _entered = crate::kfuncs::Entered::new(self);
        let task = self.task(id);
        assert!(!cpus.is_empty(), "{} may run nowhere", task.name);
        let cpu = self.task_rq_lock(&task);
        if task.state.get() != State::Dead {
            self.sched_change(&task, || {
                task.set_cpus(cpus);
                task.allowed_at.set(self.now());
                if task.sched.get() == Sched::Class {
                    self.class().set_cpus_allowed(self, cpu, &task);
                }
            });
            self.affine_move_task(cpu, &task);
        }
        self.task_rq_unlock(cpu, &task);
    }

    /// `set_user_nice()`, by weight.
    pub(crate) fn set_weight(&self, id: TaskId, weight: u32) {
        let task = self.task(id);
        let cpu = self.task_rq_lock(&task);
        self.sched_change(&task, || {
            task.raw.set(l::TASK_SCX_WEIGHT, weight);
            self.class().reweight_task(self, cpu, &task);
        });
        self.task_rq_unlock(cpu, &task);
    }

    /// `sched_move_task()`.
    pub(crate) fn move_to_cgroup(&self, id: TaskId, group: &Rc<Cgroup>) {
        let task = self.task(id);
        let cpu = self.task_rq_lock(&task);
        let from = task.cgroup().unwrap_or_else(|| Rc::clone(&self.cgroups.borrow()[0]));
        self.sched_change(&task, || {
            *task.cgroup.borrow_mut() = Some(Rc::clone(group));
            self.class().cgroup_move(self, &task, &from, group);
        });
        self.task_rq_unlock(cpu, &task);
    }

    /// `affine_move_task()`: moves a task that may not stay.
    fn affine_move_task(&self, cpu: usize, task: &Task) {
        let stays = task.cpus().has(cpu) && self.is_online(cpu);
        if stays || task.is_migration_disabled() || !task.on_rq.get() {
            return;
        }
        if self.is_current(task) {
            self.rqs[cpu].to_move.borrow_mut().push_back(task.id);
            self.wake_stopper(cpu);
        } else {
            self.move_queued_task(cpu, task, self.fallback_rq(task));
        }
    }

    /// `move_queued_task()`: from the locked run queue of `cpu` to that of `to`.
    fn move_queued_task(&self, cpu: usize, task: &Task, to: usize) {
        self.deactivate_task(cpu, task, MIGRATING);
        self.set_task_cpu(task, to);
        self.switch_rq_lock(cpu, to);
        self.activate_task(to, task, MIGRATING);
        self.wakeup_preempt(to, task, 0);
        self.switch_rq_lock(to, cpu);
    }

    /// `migrate_disable()`, `migrate_enable()`.
    pub(crate) fn set_migration_disabled(&self, id: TaskId, disabled: bool) {
        let task = self.task(id);
        task.raw.set(l::TASK_MIGRATION_DISABLED, u16::from(disabled));
        task.allowed_at.set(self.now());
        if !disabled {
            let cpu = task.cpu.get();
            self.lock_rq(cpu);
            self.affine_move_task(cpu, &task);
            self.unlock_rq(cpu);
        }
    }

    /// The stopper of `cpu` (`migration/N`) preempts all other tasks.
    fn wake_stopper(&self, cpu: usize) {
        let stopper = self.rqs[cpu].stopper.get().expect("each CPU has one");
        let task = self.task(stopper);
        if task.state.get() == State::Sleeping && !task.on_rq.get() {
            task.set_state(State::Running);
            self.activate_task(cpu, &task, WAKEUP);
            self.resched_curr(cpu);
        }
    }

    /// Has the stopper of `cpu` been asked to move this task?
    pub(crate) fn is_to_move(&self, cpu: usize, id: TaskId) -> bool {
        self.rqs[cpu].to_move.borrow().contains(&id)
    }

    /// `migration_cpu_stop()` of each task that has to leave.
    fn stopper_runs(&self, cpu: usize) {
        loop {
            let id = self.rqs[cpu].to_move.borrow_mut().pop_front();
            let Some(task) = id.map(|id| self.task(id)) else { break };
            self.lock(&task.pi_lock);
            self.lock_rq(cpu);
            let may_stay = task.cpus().has(cpu) && self.is_online(cpu);
            if task.cpu.get() == cpu && task.on_rq.get() && !may_stay {
                self.move_queued_task(cpu, &task, self.fallback_rq(&task));
            }
            self.unlock_rq(cpu);
            self.unlock(&task.pi_lock);
        }
    }

    // ---- tasks and CPUs come and go ----

    pub(crate) fn add_task(&self, mut task: Task) -> TaskId {
        let id = TaskId(self.nr_tasks() as u32);
        task.id = id;
        task.raw.set(l::TASK_PID, id.tid());
        if task.raw.get::<u32>(l::TASK_TGID) == 0 {
            task.raw.set(l::TASK_TGID, id.tid());
        }
        task.raw.set(l::TASK_START_TIME, self.now());
        let task = Rc::new(task);
        self.tasks.borrow_mut().push(Rc::clone(&task));
        if task.sched.get() == Sched::Class {
            self.class().task_new(self, &task);
        }
        id
    }

    /// Makes the stopper of each CPU.
    pub(crate) fn add_stoppers(&self) {
        for cpu in 0..self.rqs.len() {
            let program = move |cx: &Cx<'_>| {
                cx.kernel.stopper_runs(cpu);
                Step::Block
            };
            let task = Task::new(format!("migration/{cpu}"), Policy::Stop, Box::new(program));
            task.set_cpus(&CpuSet::one(cpu));
            task.cpu.set(cpu);
            task.raw.set(l::TASK_FLAGS, crate::task::PF_KTHREAD);
            let id = self.add_task(task);
            self.rqs[cpu].stopper.set(Some(id));
        }
    }

    fn task_dead(&self, task: &Task) {
        if task.sched.get() == Sched::Class {
            self.class().task_dead(self, task);
        }
    }

    /// Takes a CPU offline or back (`sched_cpu_deactivate()`, `sched_cpu_activate()`).
    pub(crate) fn set_online(&self, cpu: usize, online: bool) {
        let _entered = crate::kfuncs::Entered::new(self);
        if self.rqs[cpu].online.replace(online) == online {
            return;
        }
        self.class().set_online(self, cpu, online);
        if online {
            return;
        }
        for id in self.task_ids() {
            let task = self.task(id);
            if task.cpu.get() != cpu || !task.on_rq.get() || task.sched.get() != Sched::Class {
                continue;
            }
            self.lock_rq(cpu);
            self.affine_move_task(cpu, &task);
            self.unlock_rq(cpu);
        }
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
