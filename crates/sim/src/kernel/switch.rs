// SPDX-License-Identifier: GPL-2.0-or-later
//! Switches from one task to another, and the tasks of a run queue.

use std::rc::Rc;

use super::{Event, Job, Kernel, TaskId, WAKEUP};
use crate::program::{Cx, FOREVER};
use crate::task::{Sched, State, Task};

impl Kernel {
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

    /// `__schedule()`.
    pub(super) fn schedule(&self, cpu: usize) {
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
        self.rules.chosen(self, next);
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
        self.run_queue_changes();
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
        self.run_queue_changes();
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
        self.run_queue_changes();
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

    pub(super) fn requeue_rt(&self, cpu: usize, id: TaskId) {
        let task = self.task(id);
        self.rqs[cpu].rt.borrow_mut().retain(|other| *other != id);
        self.enqueue_rt(cpu, &task);
    }
}
