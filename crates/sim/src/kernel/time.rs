// SPDX-License-Identifier: GPL-2.0-or-later
//! Time passes: steps of programs, CPU time, ticks.

use super::{Event, Job, Kernel, TaskId};
use crate::layout as l;
use crate::program::{Cx, FOREVER, Step};
use crate::task::{Sched, State};

impl Kernel {
    /// The running task stops making progress.
    pub(super) fn leave_user(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        let Some(since) = rq.user_since.take() else { return };
        let Some(curr) = rq.curr.get() else { return };
        let task = self.task(curr);
        if task.left.get() < FOREVER {
            task.left.set(task.left.get().saturating_sub(self.now() - since));
        }
    }

    /// The running task makes progress; its step ends in due course.
    pub(super) fn enter_user(&self, cpu: usize) {
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
    pub(super) fn forget_step(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        rq.step.set(rq.step.get() + 1);
        rq.step_at.set(u64::MAX);
    }

    pub(super) fn step_is_over(&self, cpu: usize) {
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

    pub(super) fn tick(&self, cpu: usize, nr: u64) {
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

    pub(super) fn start_tick(&self, cpu: usize) {
        let rq = &self.rqs[cpu];
        if rq.tick_on.replace(true) {
            return;
        }
        rq.tick.set(rq.tick.get() + 1);
        let tick_ns = self.config.tick_ns;
        let passed = (self.now() + tick_ns - rq.tick_phase) % tick_ns;
        self.post_in(tick_ns - passed, Event::On(cpu, Job::Tick(rq.tick.get())));
    }
}
