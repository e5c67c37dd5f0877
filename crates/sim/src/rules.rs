// SPDX-License-Identifier: GPL-2.0-or-later
//! Rules that each run is checked against.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::config::{Bounds, Config};
use crate::kernel::{Kernel, TaskId};
use crate::task::{Sched, Task};

/// A rule that a run violates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// When, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// The circumstances.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.6} ms: {}", self.rule, self.at_ns as f64 / 1e6, self.text)
    }
}

pub(crate) struct Rules {
    bounds: Bounds,
    first: RefCell<Option<Violation>>,
    /// A task of each CPU that was granted a yield, until it has stopped.
    yields: RefCell<Vec<Option<TaskId>>>,
    nr_granted: Cell<u64>,
    nr_done: Cell<u64>,
}

impl Rules {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            bounds: config.bounds,
            first: RefCell::default(),
            yields: RefCell::new(vec![None; config.nr_cpus]),
            nr_granted: Cell::new(0),
            nr_done: Cell::new(0),
        }
    }

    pub(crate) fn found(&self, violation: Violation) {
        self.first.borrow_mut().get_or_insert(violation);
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.first.borrow().is_some()
    }

    pub(crate) fn first(&self) -> Option<Violation> {
        self.first.borrow().clone()
    }

    /// Yields that were granted, and those of them after which the task stopped at once.
    pub(crate) fn yields(&self) -> (u64, u64) {
        (self.nr_granted.get(), self.nr_done.get())
    }

    pub(crate) fn yield_granted(&self, k: &Kernel, from: &Task) {
        self.nr_granted.set(self.nr_granted.get() + 1);
        self.yields.borrow_mut()[k.this_cpu()] = Some(from.id);
    }

    /// `next` begins to run on this CPU.
    pub(crate) fn runs(&self, k: &Kernel, next: &Task) {
        let from = self.yields.borrow_mut()[k.this_cpu()].take();
        if from.is_some_and(|from| from != next.id) {
            self.nr_done.set(self.nr_done.get() + 1);
        }
        // The stopper moves a task off whose affinity has changed while it was being switched.
        if !next.may_run_on(k.this_cpu())
            && !next.is_migration_disabled()
            && !k.is_to_move(k.this_cpu(), next.id)
        {
            k.violation("affinity", format!("{} runs on CPU {}", next.name, k.this_cpu()));
        }
        let Some(since) = next.ready_at.take() else { return };
        let waited = k.now() - since;
        next.longest_wait_ns.set(next.longest_wait_ns.get().max(waited));
        self.check_wait(k, next, waited);
    }

    fn check_wait(&self, k: &Kernel, task: &Task, waited: u64) {
        if self.bounds.wait_ns != 0 && waited > self.bounds.wait_ns {
            let ms = waited as f64 / 1e6;
            k.violation("starvation", format!("{} waited for {ms:.3} ms", task.name));
        }
    }

    /// Now and then: tasks that wait still, and CPUs that idle meanwhile.
    pub(crate) fn check(&self, k: &Kernel) {
        for id in k.task_ids() {
            let task = k.task(id);
            let Some(since) = task.ready_at.get() else { continue };
            let waited = k.now() - since;
            self.check_wait(k, &task, waited);
            // It has waited for other CPUs before its affinity changed.
            let waited = k.now() - since.max(task.allowed_at.get());
            if self.bounds.idle_ns == 0
                || waited <= self.bounds.idle_ns
                || task.sched.get() != Sched::Class
                || task.is_migration_disabled()
            {
                continue;
            }
            let idles = (0..k.config.nr_cpus).find(|cpu| {
                k.curr(*cpu).is_none()
                    && k.is_online(*cpu)
                    && task.may_run_on(*cpu)
                    && k.rqs[*cpu].idle_for(k.now()) > self.bounds.idle_ns
            });
            if let Some(cpu) = idles {
                let (name, ms) = (&task.name, waited as f64 / 1e6);
                let (at, allowed) = (task.cpu.get(), task.nr_cpus_allowed());
                let dsq = task.ext.dsq_id().map_or("no DSQ".into(), |id| format!("DSQ {id:#x}"));
                let text = format!(
                    "{name} waits for {ms:.3} ms in {dsq}, its CPU is {at} of {allowed} that it \
                     may run on; CPU {cpu} idles ({:?})",
                    k.config.kernel
                );
                k.violation("idle CPU", text);
            }
        }
    }

    /// At the end: each nanosecond of each CPU is a task's or idleness.
    pub(crate) fn check_times(&self, k: &Kernel) {
        let tasks: u64 = k.task_ids().map(|id| k.cpu_ns(id)).sum();
        let idle: u64 = k.rqs.iter().map(|rq| rq.idle_ns(k.now())).sum();
        let all = k.now() * k.config.nr_cpus as u64;
        if tasks + idle != all {
            k.violation("CPU time", format!("{tasks} ns of tasks, {idle} ns idle, of {all} ns"));
        }
    }
}
