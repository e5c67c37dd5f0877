// SPDX-License-Identifier: GPL-2.0-or-later
//! `ext_sched_class`: what the core asks of the class.

use std::rc::Rc;

use super::{Ext, Op};
use crate::cgroup::Cgroup;
use crate::class::{CgroupEvent, Class};
use crate::config::KernelVersion;
use crate::kernel::{Kernel, MIGRATING, SAVE_RESTORE, TaskId, WAKEUP};
use crate::layout as l;
use crate::raw::Raw;
use crate::task::{PF_EXITING, Sched, Task};

const SLICE_INF: u64 = u64::MAX;

const QUEUED: u32 = l::TASK_QUEUED as u32;

fn is_queued(task: &Task) -> bool {
    task.raw.get::<u32>(l::TASK_SCX_FLAGS) & QUEUED != 0
}

impl Ext {
    /// `select_cpu_from_kfunc()`.
    pub(crate) fn select_cpu(
        &self,
        k: &Kernel,
        task: u64,
        prev: usize,
        wake_flags: u64,
        flags: u64,
    ) -> Option<usize> {
        let task = self.task_at(k, task)?;
        if task.nr_cpus_allowed() == 1 || task.is_migration_disabled() {
            return (task.may_run_on(prev) && self.idle.claim(&k.config, prev)).then_some(prev);
        }
        let sync = wake_flags & l::WAKE_SYNC != 0;
        let core = flags & l::PICK_IDLE_CORE != 0;
        let local_nr = |cpu: usize| self.rqs[cpu].local.len();
        self.idle.select(k, prev, sync, &|index| task.cpus_mask().word(index), core, &local_nr)
    }

    /// `balance_one()` with `scx_dispatch_sched()`: does `prev` go on (`SCX_RQ_BAL_KEEP`)? Else the
    /// first task of the local DSQ runs, if there is one.
    fn balance_one(&self, k: &Kernel, rq: usize, prev: Option<&Task>) -> bool {
        let prev_goes_on = || {
            prev.is_some_and(|prev| is_queued(prev) && prev.raw.get::<u64>(l::TASK_SCX_SLICE) != 0)
        };
        self.rqs[rq].cpu_released.set(false);
        k.update_curr(rq);
        if prev_goes_on() {
            return true;
        }
        if self.rqs[rq].local.len() != 0 {
            return false;
        }
        let global = Rc::clone(&self.global);
        if global.len() != 0 && self.consume(k, rq, &global, 0) {
            return false;
        }
        if !k.is_online(rq) {
            return false;
        }
        // What dispatch() moves goes to the local DSQ at once. It inserts nothing into a buffer,
        // for which the kernel would ask again.
        let address = prev.map_or(0, |prev| prev.raw.address());
        self.call(k, Op::Dispatch, Some(rq), &mut [rq as u64, address]);
        if prev_goes_on() {
            return true;
        }
        if self.rqs[rq].local.len() == 0 && global.len() != 0 {
            self.consume(k, rq, &global, 0);
        }
        false
    }

    fn switch_class(&self, k: &Kernel, rq: usize, prev: &Task, next: &Task) {
        // The tracepoint comes later, in the same switch, and with each one.
        if let Some(address) = self.sched_switch {
            let mut args = [1, prev.raw.address(), next.raw.address(), 0];
            self.call_at(k, address, Op::SchedSwitch, Some(rq), &mut args);
        }
        if self.rqs[rq].cpu_released.replace(true) {
            return;
        }
        let args = Raw::new(l::CPU_RELEASE_ARGS_SIZE as usize);
        let reason = match next.sched.get() {
            Sched::Stop => l::CPU_PREEMPT_STOP,
            _ => l::CPU_PREEMPT_RT,
        };
        args.set(l::CPU_RELEASE_ARGS_REASON, reason as u32);
        args.set(l::CPU_RELEASE_ARGS_TASK, next.raw.address());
        self.call_if_any(k, Op::CpuRelease, Some(rq), &mut [rq as u64, args.address()]);
    }
}

impl Class for Ext {
    /// `scx_pre_fork()` to `scx_post_fork()`.
    fn task_new(&self, k: &Kernel, task: &Task) {
        let args = Raw::new(l::INIT_TASK_ARGS_SIZE as usize);
        let group = task.cgroup().unwrap_or_else(|| Rc::clone(&k.cgroups.borrow()[0]));
        args.set(l::INIT_TASK_ARGS_CGROUP, group.raw.address());
        let mut words = [task.raw.address(), args.address()];
        if self.call(k, Op::InitTask, None, &mut words) as i32 != 0 {
            k.violation("scx_error", format!("init_task() fails for {}", task.name));
        }
        if task.sched.get() == Sched::Class {
            self.call_if_any(k, Op::Enable, None, &mut [task.raw.address()]);
        }
    }

    /// `sched_ext_dead()`.
    fn task_dead(&self, k: &Kernel, task: &Task) {
        if task.sched.get() == Sched::Class {
            self.call_if_any(k, Op::Disable, None, &mut [task.raw.address()]);
        }
    }

    fn select_task_rq(&self, k: &Kernel, task: &Task, prev: usize, wake_flags: u64) -> usize {
        let mut args = [task.raw.address(), prev as u64, wake_flags];
        self.call_direct(k, Op::SelectCpu, None, task, &mut args) as u32 as usize
    }

    fn enqueue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        let rq = &self.rqs[cpu];
        if flags & WAKEUP != 0 {
            rq.in_wakeup.set(true);
        }
        let mut sticky = task.ext.sticky_cpu.take();
        if flags & SAVE_RESTORE != 0 && k.curr(cpu) == Some(task.id) {
            sticky = Some(cpu);
        }
        let scx_flags = task.raw.get::<u32>(l::TASK_SCX_FLAGS);
        task.raw.set(l::TASK_SCX_FLAGS, scx_flags | QUEUED);
        if flags & MIGRATING == 0 {
            self.call_if_any(k, Op::Runnable, Some(cpu), &mut [task.raw.address(), flags]);
        }
        self.do_enqueue_task(k, cpu, task, flags, sticky);
        rq.in_wakeup.set(false);
    }

    fn dequeue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        let mut deq_flags = flags & !MIGRATING;
        if flags & WAKEUP == 0 && k.config.kernel >= KernelVersion::V7_2 {
            deq_flags |= l::DEQ_SCHED_CHANGE;
        }
        self.leave_custody(k, cpu, task, deq_flags);
        if k.curr(cpu) == Some(task.id) {
            k.update_curr(cpu);
            self.call_if_any(k, Op::Stopping, Some(cpu), &mut [task.raw.address(), 0]);
        }
        if flags & MIGRATING == 0 {
            self.call_if_any(k, Op::Quiescent, Some(cpu), &mut [task.raw.address(), deq_flags]);
        }
        let scx_flags = task.raw.get::<u32>(l::TASK_SCX_FLAGS);
        task.raw.set(l::TASK_SCX_FLAGS, scx_flags & !QUEUED);
        self.dispatch_dequeue(cpu, task);
        task.ext.ddsp.set(None);
    }

    /// `pick_task_scx()`.
    fn pick_task(&self, k: &Kernel, cpu: usize, prev: Option<&Task>) -> Option<TaskId> {
        let rq = &self.rqs[cpu];
        rq.in_balance.set(true);
        let prev_goes_on = self.balance_one(k, cpu, prev);
        rq.in_balance.set(false);
        let next = if prev_goes_on { prev.map(|prev| prev.id) } else { rq.local.first() }?;
        let task = k.task(next);
        if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            task.raw.set(l::TASK_SCX_SLICE, l::SLICE_DFL);
        }
        Some(next)
    }

    fn put_prev_task(&self, k: &Kernel, cpu: usize, task: &Task, next: Option<&Task>) {
        k.update_curr(cpu);
        if is_queued(task) {
            self.call_if_any(k, Op::Stopping, Some(cpu), &mut [task.raw.address(), 1]);
            if task.raw.get::<u64>(l::TASK_SCX_SLICE) != 0 {
                let local = Rc::clone(&self.rqs[cpu].local);
                self.dispatch_enqueue(k, cpu, &local, task, l::ENQ_HEAD);
            } else {
                let flags = if next.is_none() { l::ENQ_LAST } else { 0 };
                self.do_enqueue_task(k, cpu, task, flags, None);
            }
        }
        if let Some(next) = next.filter(|next| next.sched.get() != Sched::Class) {
            self.switch_class(k, cpu, task, next);
        }
    }

    fn set_next_task(&self, k: &Kernel, cpu: usize, task: &Task) {
        if is_queued(task) {
            self.leave_custody(k, cpu, task, l::DEQ_CORE_SCHED_EXEC);
            self.dispatch_dequeue(cpu, task);
            self.call_if_any(k, Op::Running, Some(cpu), &mut [task.raw.address()]);
        }
    }

    /// `update_curr_scx()`.
    fn charge(&self, _k: &Kernel, _cpu: usize, task: &Task, ran_ns: u64) {
        let slice = task.raw.get::<u64>(l::TASK_SCX_SLICE);
        if slice != SLICE_INF {
            task.raw.set(l::TASK_SCX_SLICE, slice.saturating_sub(ran_ns));
        }
    }

    fn task_tick(&self, k: &Kernel, cpu: usize, task: &Task) {
        self.call_if_any(k, Op::Tick, Some(cpu), &mut [task.raw.address()]);
        if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            k.resched_curr(cpu);
        }
    }

    fn yield_task(&self, k: &Kernel, cpu: usize) {
        if let Some(task) = k.curr(cpu).map(|curr| k.task(curr)) {
            self.call(k, Op::Yield, Some(cpu), &mut [task.raw.address(), 0]);
        }
    }

    fn yield_to_task(&self, k: &Kernel, cpu: usize, to: &Task) -> bool {
        let Some(task) = k.curr(cpu).map(|curr| k.task(curr)) else { return false };
        let mut args = [task.raw.address(), to.raw.address()];
        self.call(k, Op::Yield, Some(cpu), &mut args) as u8 != 0
    }

    fn task_woken(&self, k: &Kernel, cpu: usize) {
        self.run_deferred(k, cpu);
    }

    fn set_cpus_allowed(&self, k: &Kernel, cpu: usize, task: &Task) {
        let mut args = [task.raw.address(), task.raw.get(l::TASK_CPUS_PTR)];
        self.call_if_any(k, Op::SetCpumask, Some(cpu), &mut args);
    }

    /// `__scx_update_idle()`.
    fn update_idle(&self, k: &Kernel, cpu: usize, idle: bool, notify: bool) {
        let tell = || {
            if notify {
                let mut args = [cpu as u64, u64::from(idle)];
                self.call_if_any(k, Op::UpdateIdle, Some(cpu), &mut args);
            }
        };
        let is_first = k.config.kernel < KernelVersion::V6_16;
        if is_first {
            tell();
        }
        if notify || k.curr(cpu).is_none() {
            self.idle.update(&k.config, cpu, idle && k.is_online(cpu));
        }
        if !is_first {
            tell();
        }
    }

    fn balance_callbacks(&self, k: &Kernel, cpu: usize) {
        if !self.rqs[cpu].deferred.borrow().is_empty() {
            self.run_deferred(k, cpu);
        }
    }

    /// `kick_cpus_irq_workfn()`, and re-enqueues that were put off.
    fn irq_work(&self, k: &Kernel, cpu: usize) {
        if self.rqs[cpu].reenq.take() {
            k.lock_rq(cpu);
            self.reenq_local(k, cpu);
            k.unlock_rq(cpu);
        }
        if self.rqs[cpu].kicks.borrow().is_empty() {
            return;
        }
        let kicks = self.rqs[cpu].kicks.take();
        let (always, if_idle): (Vec<_>, Vec<_>) =
            kicks.into_iter().partition(|(_, kick)| kick.always);
        for (target, kick) in always.into_iter().chain(if_idle) {
            self.kick_one_cpu(k, target, kick);
        }
    }

    fn deferred(&self, k: &Kernel, cpu: usize) {
        self.rqs[cpu].deferred_posted.set(false);
        k.lock_rq(cpu);
        self.run_deferred(k, cpu);
        k.unlock_rq(cpu);
    }

    fn cgroup(&self, k: &Kernel, group: &Rc<Cgroup>, event: CgroupEvent) {
        let address = group.raw.address();
        match event {
            CgroupEvent::Made => {
                let args = Raw::new(l::CGROUP_INIT_ARGS_SIZE as usize);
                args.set(l::CGROUP_INIT_ARGS_WEIGHT, group.weight.get());
                self.call_if_any(k, Op::CgroupInit, None, &mut [address, args.address()]);
            }
            CgroupEvent::Removed => self.call_if_any(k, Op::CgroupExit, None, &mut [address]),
            CgroupEvent::Weight => {
                let mut args = [address, group.weight.get().into()];
                self.call_if_any(k, Op::CgroupSetWeight, None, &mut args);
            }
            CgroupEvent::Idle => {
                let mut args = [address, u64::from(group.idle.get())];
                self.call_if_any(k, Op::CgroupSetIdle, None, &mut args);
            }
            CgroupEvent::Bandwidth => {}
        }
    }

    fn cgroup_move(&self, k: &Kernel, task: &Task, from: &Rc<Cgroup>, to: &Rc<Cgroup>) {
        let mut args = [task.raw.address(), from.raw.address(), to.raw.address()];
        self.call_if_any(k, Op::CgroupMove, Some(task.cpu.get()), &mut args);
    }

    fn set_online(&self, k: &Kernel, cpu: usize, online: bool) {
        if !online {
            self.idle.update(&k.config, cpu, false);
        } else if k.curr(cpu).is_none() {
            self.idle.update(&k.config, cpu, true);
        }
    }
}

/// Flags of an enqueue have the values of the scheduler's; `PF_EXITING` is for `ops.enqueue()`.
const _: () = {
    assert!(l::ENQ_WAKEUP == WAKEUP && l::DEQ_SLEEP == WAKEUP);
    assert!(PF_EXITING == 4);
};
