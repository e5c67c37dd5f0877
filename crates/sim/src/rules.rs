// SPDX-License-Identifier: GPL-2.0-or-later
//! Rules that each run is checked against.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::config::{Bounds, Config, US};
use crate::ext::Ext;
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

/// A step of grace ends by an interrupt of a timer, and a switch.
const GRACE_SLACK_NS: u64 = 200 * US;

pub(crate) struct Rules {
    bounds: Bounds,
    first: RefCell<Option<Violation>>,
    /// A task of each CPU that was granted a yield, until it has stopped; when, and how often run
    /// queues had changed by then.
    yields: RefCell<Vec<Option<(TaskId, u64, u64)>>>,
    /// A task of each CPU that has grace, and since when.
    graces: RefCell<Vec<Option<(TaskId, u64)>>>,
    nr_granted: Cell<u64>,
    nr_done: Cell<u64>,
}

impl Rules {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            bounds: config.bounds,
            first: RefCell::default(),
            yields: RefCell::new(vec![None; config.nr_cpus]),
            graces: RefCell::new(vec![None; config.nr_cpus]),
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
        self.yields.borrow_mut()[k.this_cpu()] = Some((from.id, k.now(), k.nr_changes()));
    }

    /// This CPU has chosen its next task. A task that was granted a yield has stopped, unless time
    /// has passed or run queues have changed: its target was taken meanwhile.
    pub(crate) fn chosen(&self, k: &Kernel, next: Option<TaskId>) {
        let ended = self.graces.borrow_mut()[k.this_cpu()].take_if(|(has, _)| Some(*has) != next);
        self.check_grace(k, ended);
        let Some((from, at, changes)) = self.yields.borrow_mut()[k.this_cpu()].take() else {
            return;
        };
        if next != Some(from) {
            self.nr_done.set(self.nr_done.get() + 1);
        } else if k.ext.is_some() && (at, changes) == (k.now(), k.nr_changes()) {
            k.violation("yield", format!("{} goes on after its yield", k.task(from).name));
        }
    }

    /// The scheduler may have granted the current task of `cpu` grace, or ended it.
    pub(crate) fn see_grace(&self, k: &Kernel, ext: &Ext, cpu: usize) {
        let task = k.curr(cpu).filter(|task| ext.granted_ns(&k.task(*task)) != 0);
        let grace = &mut self.graces.borrow_mut()[cpu];
        match task {
            Some(task) if grace.is_none_or(|(has, _)| has != task) => {
                *grace = Some((task, k.now()));
            }
            Some(_) => {}
            None => self.check_grace(k, grace.take()),
        }
    }

    /// A grace lasts for no longer than its cap, but for late interrupts.
    fn check_grace(&self, k: &Kernel, grace: Option<(TaskId, u64)>) {
        let Some((task, since)) = grace else { return };
        let ns = k.now() - since;
        if ns > k.config.params.grace_max_ns + GRACE_SLACK_NS {
            let name = &k.task(task).name;
            k.violation("grace", format!("{name} has had {} us of grace", ns / US));
        }
    }

    /// A VM has no more grace than it has earned by running.
    fn check_budgets(&self, k: &Kernel) {
        let Some(ext) = &k.ext else { return };
        for (kvm, granted_ns) in ext.grace_of_vms() {
            let is_of = |task: &Task| task.memory.borrow().as_ref().is_some_and(|m| m.kvm == kvm);
            let ran: u64 =
                k.task_ids().filter(|id| is_of(&k.task(*id))).map(|id| k.cpu_ns(id)).sum();
            let earned_ns = ran * u64::from(k.config.params.grace_share_permille) / 1000;
            if granted_ns > earned_ns {
                let text = format!("a VM was granted {granted_ns} ns of {earned_ns} ns it earned");
                k.violation("budget", text);
            }
        }
    }

    /// `next` begins to run on this CPU.
    pub(crate) fn runs(&self, k: &Kernel, next: &Task) {
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

    /// Now and then: tasks that wait still, and CPUs that idle meanwhile; grace.
    pub(crate) fn check(&self, k: &Kernel) {
        self.check_budgets(k);
        self.graces.borrow().iter().for_each(|grace| self.check_grace(k, *grace));
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
