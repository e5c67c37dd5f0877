// SPDX-License-Identifier: GPL-2.0-or-later
//! Wakeups and directed yields.

use super::path::{SPIN_NS, Stop};
use super::{Event, INITIAL, Job, Kernel, RQ_SELECTED, TaskId, WAKEUP};
use crate::layout as l;
use crate::program::YieldTo;
use crate::task::{Sched, State, Task};

impl Kernel {
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
            self.rqs[cpu].wake_list.borrow_mut().push_back((task.id, flags));
            self.post_in(self.config.ipi_ns, Event::On(cpu, Job::TtwuPending));
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

    /// `sched_ttwu_pending()`.
    pub(super) fn sched_ttwu_pending(&self, cpu: usize) {
        loop {
            let first = self.rqs[cpu].wake_list.borrow().front().copied();
            let Some((id, flags)) = first else { break };
            self.lock_rq(cpu);
            self.rqs[cpu].wake_list.borrow_mut().pop_front();
            self.ttwu_do_activate(cpu, &self.task(id), flags);
            self.unlock_rq(cpu);
        }
    }

    /// `TASK_WAKING`: the task is on the list of the CPU that is to wake it.
    pub(super) fn is_waking(&self, task: &Task) -> bool {
        let list = self.rqs[task.cpu.get()].wake_list.borrow();
        list.iter().any(|(id, _)| *id == task.id)
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
}
