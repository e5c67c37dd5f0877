// SPDX-License-Identifier: GPL-2.0-or-later
//! Changes of a task: its CPUs, weight and control group; tasks and CPUs that come and go.

use std::rc::Rc;

use super::{Kernel, MIGRATING, SAVE_RESTORE, TaskId, WAKEUP};
use crate::cgroup::Cgroup;
use crate::cpuset::CpuSet;
use crate::layout as l;
use crate::program::{Cx, Step};
use crate::task::{Policy, Sched, State, Task};

impl Kernel {
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
        let waking = self.is_waking(task);
        if stays || task.is_migration_disabled() || !(task.on_rq.get() || waking) {
            return;
        }
        if self.is_current(task) || waking {
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
            // flush_smp_call_function_queue(): a task that is being woken is queued first.
            self.sched_ttwu_pending(cpu);
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
        self.class().task_new(self, &task);
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

    pub(super) fn task_dead(&self, task: &Task) {
        self.class().task_dead(self, task);
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
