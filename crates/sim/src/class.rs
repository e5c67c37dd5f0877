// SPDX-License-Identifier: GPL-2.0-or-later
//! What a scheduling class decides: `struct sched_class` of `kernel/sched/sched.h`.
//!
//! The core (`kernel`) calls a class with the run queue of `cpu` locked, unless it says otherwise.
//! A class keeps its own state by CPU and by [`TaskId`](crate::TaskId); the core keeps which task
//! runs ([`Kernel::curr`]), CPU times, wakeups, ticks and affinities. `sched_ext` is in `ext`.

use std::rc::Rc;

use crate::cgroup::Cgroup;
use crate::kernel::{Kernel, TaskId};
use crate::task::Task;

/// A scheduling class of ordinary tasks. Real-time tasks and stoppers are above it.
pub trait Class {
    /// A task is made, of this or a higher class; it sleeps. No run queue is locked.
    fn task_new(&self, k: &Kernel, task: &Task);

    /// A task has exited, and its CPU has left it. No run queue is locked.
    fn task_dead(&self, k: &Kernel, task: &Task);

    /// The CPU for a task that wakes. `wake_flags` are of `WAKE_TTWU` and `WAKE_SYNC`. No run queue
    /// is locked.
    fn select_task_rq(&self, k: &Kernel, task: &Task, prev_cpu: usize, wake_flags: u64) -> usize;

    /// The task becomes runnable on `cpu`; `flags` are those of [`crate::kernel`].
    fn enqueue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64);

    /// The task is not runnable on `cpu` any longer; it may be the one that runs.
    fn dequeue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64);

    /// The next task for `cpu`, which may be `prev`; none: it idles. `prev` is the task that runs,
    /// if it is of this class; it may have gone to sleep, and is dequeued then.
    fn pick_task(&self, k: &Kernel, cpu: usize, prev: Option<&Task>) -> Option<TaskId>;

    /// `task` stops running on `cpu`; if it is runnable it waits from now on. `next` takes its
    /// place; none: it idles, or `task` is only being changed.
    fn put_prev_task(&self, k: &Kernel, cpu: usize, task: &Task, next: Option<&Task>);

    /// `task` begins to run on `cpu`.
    fn set_next_task(&self, k: &Kernel, cpu: usize, task: &Task);

    /// The running task has used `ran_ns` more.
    fn charge(&self, k: &Kernel, cpu: usize, task: &Task, ran_ns: u64);

    /// A timer interrupt, once per tick of a busy CPU.
    fn task_tick(&self, k: &Kernel, cpu: usize, task: &Task);

    /// The running task of `cpu` calls `sched_yield(2)`; the core reschedules then.
    fn yield_task(&self, k: &Kernel, cpu: usize);

    /// The running task of `cpu` yields to `to` (`yield_to()`). Both run queues are locked.
    fn yield_to_task(&self, k: &Kernel, cpu: usize, to: &Task) -> bool;

    /// `task` was queued on `cpu`, where a task of this class runs.
    fn wakeup_preempt(&self, _k: &Kernel, _cpu: usize, _task: &Task, _flags: u64) {}

    /// After a wakeup, with the run queue locked.
    fn task_woken(&self, _k: &Kernel, _cpu: usize) {}

    /// `task` belongs to another CPU's run queue now (`set_task_cpu()`).
    fn migrate_task_rq(&self, _k: &Kernel, _task: &Task, _to: usize) {}

    /// The CPUs that `task` may run on have changed.
    fn set_cpus_allowed(&self, _k: &Kernel, _cpu: usize, _task: &Task) {}

    /// The weight of `task` has changed.
    fn reweight_task(&self, _k: &Kernel, _cpu: usize, _task: &Task) {}

    /// `cpu` begins (`idle`) or ends to idle; `notify`: else it idled before.
    fn update_idle(&self, _k: &Kernel, _cpu: usize, _idle: bool, _notify: bool) {}

    /// At the end of a switch, with the run queue locked.
    fn balance_callbacks(&self, _k: &Kernel, _cpu: usize) {}

    /// Interrupts are on again on `cpu`: what was put off. No run queue is locked.
    fn irq_work(&self, _k: &Kernel, _cpu: usize) {}

    /// Work that the class has posted to itself. No run queue is locked.
    fn deferred(&self, _k: &Kernel, _cpu: usize) {}

    /// May another CPU than the waker's do a wakeup?
    fn allows_queued_wakeup(&self) -> bool {
        true
    }

    /// A control group is made, removed, or changed. No run queue is locked.
    fn cgroup(&self, _k: &Kernel, _group: &Rc<Cgroup>, _event: CgroupEvent) {}

    /// A task moves between control groups; it is dequeued.
    fn cgroup_move(&self, _k: &Kernel, _task: &Task, _from: &Rc<Cgroup>, _to: &Rc<Cgroup>) {}

    /// A CPU comes or goes. No run queue is locked.
    fn set_online(&self, _k: &Kernel, _cpu: usize, _online: bool) {}
}

/// What happens to a control group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupEvent {
    /// It is made.
    Made,
    /// It is removed; it has no tasks.
    Removed,
    /// Its `cpu.weight` has changed.
    Weight,
    /// Its `cpu.idle` has changed.
    Idle,
    /// Its `cpu.max` has changed.
    Bandwidth,
}
