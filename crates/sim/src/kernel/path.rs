// SPDX-License-Identifier: GPL-2.0-or-later
//! Paths: what a CPU does from one event on, and the locks that paths wait for.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::VecDeque;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::{Event, Job, Kernel};

/// Why a path stops.
pub(super) enum Stop {
    /// For so many nanoseconds.
    For(u64),
    /// Until another path wakes it.
    Waits,
    /// It is over.
    Done,
}

/// How long a path spins before it looks again.
pub(super) const SPIN_NS: u64 = 100;

pub(super) type Path = Coroutine<(), Stop, (), DefaultStack>;

/// A spinlock. An atomic machine never finds it taken.
#[derive(Default)]
pub(crate) struct Lock {
    owner: Cell<Option<usize>>,
    waiters: RefCell<VecDeque<usize>>,
}

impl Kernel {
    pub(super) fn enter(&self, cpu: usize, job: Job) {
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
    pub(super) fn resume(&self, cpu: usize) {
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

    pub(super) fn suspend(&self, stop: Stop) {
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
    pub(super) fn double_lock(&self, a: usize, b: usize) {
        self.lock_rq(a.min(b));
        if a != b {
            self.lock_rq(a.max(b));
        }
    }

    pub(super) fn double_unlock(&self, a: usize, b: usize) {
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
            Job::TtwuPending => self.sched_ttwu_pending(cpu),
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
}
