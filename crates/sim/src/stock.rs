// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel's own scheduler, EEVDF, as far as guests notice it: `kernel/sched/fair.c` of 7.2.
//!
//! Queues per CPU, eligibility and virtual deadlines, lag that a sleep keeps, yields, buddies,
//! wake-up placement and preemption, periodic and idle balance, groups, bandwidth. Loads are sums
//! of weights instead of averages over time (PELT), and queues are searched from end to end.

mod balance;
mod cfs;
mod groups;

use std::cell::RefCell;
use std::rc::Rc;

use self::cfs::{EntityId, State};
use crate::cgroup::Cgroup;
use crate::class::{CgroupEvent, Class};
use crate::config::Config;
use crate::kernel::{Event, INITIAL, Job, Kernel, MIGRATING, TaskId, WAKEUP};
use crate::layout as l;
use crate::task::{Sched, Task};

/// The stock scheduler, for [`Builder::boot_class`](crate::Builder::boot_class).
pub struct Stock {
    state: RefCell<State>,
}

impl Stock {
    /// One for this machine.
    pub fn new(config: &Config) -> Self {
        Self { state: RefCell::new(State::new(config)) }
    }

    /// The same, as `boot_class()` wants it.
    pub fn class(config: &Config) -> Box<dyn Class> {
        Box::new(Self::new(config))
    }

    /// `resched_curr_lazy()`: a task on another CPU goes on until an interrupt (`PREEMPT_LAZY`).
    fn resched_lazy(&self, k: &Kernel, cpu: usize) {
        if cpu == k.this_cpu() {
            k.resched_curr(cpu);
        } else {
            self.state.borrow_mut().rqs[cpu].lazy = true;
        }
    }

    /// `hrtick_start_fair()`: an interrupt at the end of the slice.
    fn start_hrtick(&self, k: &Kernel, cpu: usize) {
        let mut state = self.state.borrow_mut();
        let Some(ns) = state.until_deadline(cpu) else {
            state.rqs[cpu].hrtick_at = 0;
            return;
        };
        let at = k.now() + ns.max(1);
        if state.rqs[cpu].hrtick_at != at {
            state.rqs[cpu].hrtick_at = at;
            k.post(at, Event::On(cpu, Job::Deferred));
        }
    }

    fn entity(&self, task: &Task) -> EntityId {
        self.state.borrow().task_entity(task.id)
    }
}

impl Class for Stock {
    fn task_new(&self, _: &Kernel, task: &Task) {
        if task.sched.get() != Sched::Class {
            return;
        }
        let mut state = self.state.borrow_mut();
        let group = task.cgroup().map_or(0, |group| state.group_of(&group));
        state.add_task(task.id, task.weight(), group, task.is_idle_policy());
    }

    fn task_dead(&self, k: &Kernel, task: &Task) {
        if task.sched.get() != Sched::Class {
            return;
        }
        let se = self.entity(task);
        let cpu = task.cpu.get();
        k.lock_rq(cpu);
        self.state.borrow_mut().forget(se);
        k.unlock_rq(cpu);
    }

    fn select_task_rq(&self, k: &Kernel, task: &Task, prev: usize, wake_flags: u64) -> usize {
        let state = self.state.borrow();
        // ttwu_runnable(): it has not left its queue yet.
        if state.is_delayed(state.task_entity(task.id)) && wake_flags & l::WAKE_FORK == 0 {
            return prev;
        }
        state.select_task_rq(k, task, prev, wake_flags)
    }

    fn enqueue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        self.state.borrow_mut().enqueue(k, cpu, task, flags & INITIAL != 0);
        if k.curr(cpu).is_some() {
            self.start_hrtick(k, cpu);
        }
    }

    fn dequeue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        let sleeps = flags & WAKEUP != 0 && flags & MIGRATING == 0;
        self.state.borrow_mut().dequeue(task, sleeps);
        self.start_hrtick(k, cpu);
    }

    /// `pick_task_fair()`
    fn pick_task(&self, k: &Kernel, cpu: usize, _: Option<&Task>) -> Option<TaskId> {
        self.state.borrow_mut().rqs[cpu].lazy = false;
        loop {
            let picked = self.state.borrow_mut().pick(cpu);
            if picked.is_some() {
                return picked;
            }
            if !self.newidle_balance(k, cpu) {
                return None;
            }
        }
    }

    fn put_prev_task(&self, _: &Kernel, _: usize, task: &Task, _: Option<&Task>) {
        let se = self.entity(task);
        self.state.borrow_mut().put_prev(se);
    }

    fn set_next_task(&self, k: &Kernel, cpu: usize, task: &Task) {
        let se = self.entity(task);
        self.state.borrow_mut().set_next(se, k.now());
        self.start_hrtick(k, cpu);
    }

    /// `update_curr()`
    fn charge(&self, k: &Kernel, cpu: usize, task: &Task, ran_ns: u64) {
        let se = self.entity(task);
        let resched = self.state.borrow_mut().charge(k, se, ran_ns);
        if resched {
            self.resched_lazy(k, cpu);
        }
    }

    fn task_tick(&self, k: &Kernel, cpu: usize, _: &Task) {
        if self.state.borrow().rqs[cpu].lazy {
            k.resched_curr(cpu);
        }
        self.periodic_balance(k, cpu);
        self.kick_idle_cpu(k, cpu);
    }

    /// `yield_task_fair()`: what is left of the slice is forfeited, if the task is eligible.
    fn yield_task(&self, k: &Kernel, cpu: usize) {
        let Some(curr) = k.curr(cpu) else { return };
        if k.nr_running(cpu) == 1 {
            return;
        }
        k.update_curr(cpu);
        self.state.borrow_mut().yield_curr(curr);
    }

    /// `yield_to_task_fair()`
    fn yield_to_task(&self, k: &Kernel, cpu: usize, to: &Task) -> bool {
        let se = self.entity(to);
        let on_rq = self.state.borrow_mut().set_next_buddy(se);
        if on_rq {
            self.yield_task(k, cpu);
        }
        on_rq
    }

    /// `wakeup_preempt_fair()`
    fn wakeup_preempt(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        k.update_curr(cpu);
        let (Some(curr), se) = (k.curr(cpu), self.entity(task)) else { return };
        if flags & INITIAL == 0 && self.state.borrow_mut().preempts(curr, se) {
            self.resched_lazy(k, cpu);
        }
    }

    fn reweight_task(&self, _: &Kernel, _: usize, task: &Task) {
        let se = self.entity(task);
        self.state.borrow_mut().reweigh_task(se, task.weight());
    }

    /// The end of a slice by `hrtick()`, or a period of a group with a limit.
    fn deferred(&self, k: &Kernel, cpu: usize) {
        k.lock_rq(cpu);
        let at = self.state.borrow().rqs[cpu].hrtick_at;
        if at != 0 && at <= k.now() {
            self.state.borrow_mut().rqs[cpu].hrtick_at = 0;
            k.update_curr(cpu);
            if k.curr(cpu).is_some() {
                k.resched_curr(cpu);
            }
        }
        k.unlock_rq(cpu);
        self.refill(k);
    }

    fn cgroup(&self, k: &Kernel, group: &Rc<Cgroup>, event: CgroupEvent) {
        self.group_event(k, group, event);
    }

    fn cgroup_move(&self, _: &Kernel, task: &Task, _: &Rc<Cgroup>, to: &Rc<Cgroup>) {
        let mut state = self.state.borrow_mut();
        let (group, se) = (state.group_of(to), state.task_entity(task.id));
        state.move_to(se, group);
    }
}
