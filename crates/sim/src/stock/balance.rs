// SPDX-License-Identifier: GPL-2.0-or-later
//! Which CPU a task wakes on, and which tasks move: `select_task_rq_fair()`,
//! `sched_balance_newidle()`, `sched_balance_rq()`.

use super::Stock;
use super::cfs::State;
use crate::kernel::{Kernel, MIGRATING, TaskId};
use crate::layout as l;
use crate::task::Task;

/// `sysctl_sched_migration_cost`: a task that ran so recently has its memory in the cache.
const MIGRATION_COST: u64 = 500_000;

/// `busy_factor` times a millisecond for each CPU.
const BUSY_INTERVAL_PER_CPU: u64 = 16_000_000;

impl State {
    fn cpu_load(&self, cpu: usize) -> u64 {
        self.load(self.rqs[cpu].root)
    }

    /// `select_task_rq_fair()`
    pub(super) fn select_task_rq(
        &self,
        k: &Kernel,
        task: &Task,
        prev: usize,
        wake_flags: u64,
    ) -> usize {
        let here = k.this_cpu();
        let may = |cpu: usize| task.may_run_on(cpu) && k.is_online(cpu);
        let is_idle = |cpu: usize| k.curr(cpu).is_none() && k.nr_running(cpu) == 0;
        let nr = k.config().nr_cpus;
        if wake_flags & l::WAKE_FORK != 0 {
            // sched_balance_find_dst_cpu()
            let cpus = (0..nr).map(|i| (here + i) % nr).filter(|cpu| may(*cpu));
            return cpus.min_by_key(|cpu| self.cpu_load(*cpu)).unwrap_or(prev);
        }
        let sync = wake_flags & l::WAKE_SYNC != 0;
        let target = if may(here) { self.wake_affine(k, task, here, prev, sync) } else { prev };
        // select_idle_sibling()
        let llc = k.config().llc_cpus(k.config().llc_of(target));
        let others = (llc.start..llc.end).map(|i| {
            let nr = llc.end - llc.start;
            llc.start + (target - llc.start + i - llc.start) % nr
        });
        let near = |cpu: usize| k.config().same_llc(cpu, target);
        [target, prev]
            .into_iter()
            .filter(|cpu| near(*cpu))
            .chain(others)
            .find(|cpu| may(*cpu) && is_idle(*cpu))
            .unwrap_or(target)
    }

    /// `wake_affine()`
    fn wake_affine(&self, k: &Kernel, task: &Task, here: usize, prev: usize, sync: bool) -> usize {
        let is_idle = |cpu: usize| k.curr(cpu).is_none() && k.nr_running(cpu) == 0;
        // wake_affine_idle()
        if is_idle(here) && k.config().same_llc(here, prev) {
            return if is_idle(prev) { prev } else { here };
        }
        if (sync && k.nr_running(here) == 1) || !is_idle(prev) && here == prev {
            return here;
        }
        if is_idle(prev) {
            return prev;
        }
        // wake_affine_weight()
        let weight = self.entities[self.task_entity(task.id)].weight;
        let mut this_load = self.cpu_load(here);
        if let Some(curr) = k.curr(here).filter(|_| sync) {
            let curr = self.entities[self.task_entity(curr)].weight;
            if curr > this_load {
                return here;
            }
            this_load -= curr;
        }
        let this_load = (this_load + weight) * 100;
        // WA_BIAS: half of imbalance_pct.
        let prev_load = self.cpu_load(prev) * 108 + u64::from(sync);
        if this_load < prev_load { here } else { prev }
    }

    /// A task of `from` that may move to `to` (`can_migrate_task()`), of at most twice this weight.
    fn movable(&self, k: &Kernel, from: usize, to: usize, most: u64) -> Option<TaskId> {
        k.task_ids().find(|id| {
            let task = k.task(*id);
            if task.cpu.get() != from || !task.on_rq.get() || k.curr(from) == Some(*id) {
                return false;
            }
            let is_ours = task.sched.get() == crate::task::Sched::Class;
            if !is_ours || !task.may_run_on(to) || task.is_migration_disabled() {
                return false;
            }
            let entity = &self.entities[self.task_entity(*id)];
            let is_hot = k.now() - entity.exec_start < MIGRATION_COST;
            !is_hot && entity.weight <= 2 * most
        })
    }
}

impl Stock {
    /// Moves a task from another CPU to `cpu`, whose run queue is locked.
    fn move_task(&self, k: &Kernel, id: TaskId, from: usize, cpu: usize) {
        k.unlock_rq(cpu);
        k.lock_rq(from.min(cpu));
        k.lock_rq(from.max(cpu));
        let task = k.task(id);
        if task.cpu.get() == from && task.on_rq.get() && k.curr(from) != Some(id) {
            k.deactivate_task(from, &task, MIGRATING);
            k.set_task_cpu(&task, cpu);
            k.activate_task(cpu, &task, MIGRATING);
        }
        k.unlock_rq(from);
    }

    fn busiest(&self, k: &Kernel, cpu: usize) -> Option<(usize, u64)> {
        let state = self.state.borrow();
        let others =
            (0..k.config().nr_cpus).filter(|other| *other != cpu && k.nr_running(*other) > 1);
        others.map(|other| (other, state.cpu_load(other))).max_by_key(|(_, load)| *load)
    }

    /// `sched_balance_newidle()`: has it pulled a task?
    pub(super) fn newidle_balance(&self, k: &Kernel, cpu: usize) -> bool {
        let Some((from, _)) = self.busiest(k, cpu) else { return false };
        let found = self.state.borrow().movable(k, from, cpu, u64::MAX / 2);
        let Some(id) = found else { return false };
        self.move_task(k, id, from, cpu);
        true
    }

    /// `nohz_balancer_kick()`: an idle CPU looks for work when a busy one has too much.
    pub(super) fn kick_idle_cpu(&self, k: &Kernel, cpu: usize) {
        let nr = k.config().nr_cpus;
        let others = (1..nr).map(|i| (cpu + i) % nr);
        let idle = others.into_iter().find(|other| k.curr(*other).is_none() && k.is_online(*other));
        if let Some(idle) = idle.filter(|_| k.nr_running(cpu) > 1) {
            k.resched_curr(idle);
        }
    }

    /// `sched_balance_rq()` of a busy CPU.
    pub(super) fn periodic_balance(&self, k: &Kernel, cpu: usize) {
        let now = k.now();
        {
            let rq = &mut self.state.borrow_mut().rqs[cpu];
            if now < rq.next_balance {
                return;
            }
            rq.next_balance = now + BUSY_INTERVAL_PER_CPU * k.config().nr_cpus as u64;
        }
        let Some((from, load)) = self.busiest(k, cpu) else { return };
        let here = self.state.borrow().cpu_load(cpu);
        // imbalance_pct
        if load * 100 <= here * 117 {
            return;
        }
        let found = self.state.borrow().movable(k, from, cpu, (load - here) / 2);
        if let Some(id) = found {
            self.move_task(k, id, from, cpu);
            k.wakeup_preempt(cpu, &k.task(id), 0);
        }
    }
}
