// SPDX-License-Identifier: GPL-2.0-or-later
//! Moves of tasks from one DSQ to another, and between CPUs.

use std::rc::Rc;

use super::Ext;
use super::dsq::Dsq;
use crate::config::KernelVersion;
use crate::kernel::{Kernel, MIGRATING, TaskId};
use crate::layout as l;
use crate::task::Task;

impl Ext {
    /// `task_can_run_on_remote_rq()`.
    fn can_run_on(&self, k: &Kernel, task: &Task, cpu: usize) -> bool {
        !task.is_migration_disabled() && task.may_run_on(cpu) && k.is_online(cpu)
    }

    /// `move_remote_task_to_local_dsq()`: `src` is locked before, `dst` afterwards.
    fn move_remote(&self, k: &Kernel, task: &Task, flags: u64, src: usize, dst: usize) {
        task.ext.sticky_cpu.set(Some(dst));
        k.deactivate_task(src, task, MIGRATING);
        k.set_task_cpu(task, dst);
        k.switch_rq_lock(src, dst);
        k.activate_task(dst, task, MIGRATING | flags);
    }

    /// `dispatch_to_local_dsq()`: `rq` is locked before and afterwards.
    pub(super) fn dispatch_to_local_dsq(
        &self,
        k: &Kernel,
        rq: usize,
        dsq: &Rc<Dsq>,
        task: &Task,
        flags: u64,
    ) {
        let dst = dsq.cpu.expect("a local DSQ");
        let src = task.cpu.get();
        if rq == src && rq == dst {
            return self.dispatch_enqueue(k, rq, dsq, task, flags);
        }
        let here = k.this_cpu();
        task.ext.holding_cpu.set(Some(here));
        k.switch_rq_lock(rq, src);
        let mut locked = src;
        if task.ext.holding_cpu.get() == Some(here) && task.cpu.get() == src {
            task.ext.holding_cpu.set(None);
            if src == dst {
                self.dispatch_enqueue(k, dst, dsq, task, flags);
            } else if !self.can_run_on(k, task, dst) {
                let text = format!("{} may not run on CPU {dst}, to which it is sent", task.name);
                if k.is_online(dst) {
                    k.violation("scx_error", text);
                }
                let global = Rc::clone(&self.global);
                self.dispatch_enqueue(k, src, &global, task, flags);
            } else {
                self.move_remote(k, task, flags, src, dst);
                locked = dst;
            }
            if k.curr(dst).is_none() {
                k.resched_curr(dst);
            }
        }
        k.switch_rq_lock(locked, rq);
    }

    /// `consume_dispatch_q()`, with `rq` locked before and afterwards.
    pub(super) fn consume(&self, k: &Kernel, rq: usize, dsq: &Rc<Dsq>, flags: u64) -> bool {
        'retry: loop {
            let mut steps = 0;
            let found = dsq.tasks.borrow().values().map(|id| k.task(*id)).find(|task| {
                steps += 1;
                task.cpu.get() == rq || self.can_run_on(k, task, rq)
            });
            self.count_scanned(k, steps);
            let Some(task) = found else { return false };
            self.unlink(&task);
            let src = task.cpu.get();
            if src == rq {
                // move_local_task_to_local_dsq()
                let local = Rc::clone(&self.rqs[rq].local);
                self.dispatch_enqueue(k, rq, &local, &task, flags & !l::ENQ_DSQ_PRIQ);
                return true;
            }
            // unlink_dsq_and_lock_src_rq()
            let here = k.this_cpu();
            task.ext.holding_cpu.set(Some(here));
            k.switch_rq_lock(rq, src);
            if task.ext.holding_cpu.get() != Some(here) || task.cpu.get() != src {
                k.switch_rq_lock(src, rq);
                continue 'retry;
            }
            task.ext.holding_cpu.set(None);
            self.move_remote(k, &task, flags, src, rq);
            return true;
        }
    }

    /// `scx_bpf_dsq_move_to_local()`.
    pub(crate) fn move_to_local(&self, k: &Kernel, id: u64, flags: u64) -> bool {
        let rq = k.this_cpu();
        let dsq = self.find_dsq(rq, id);
        self.consume(k, rq, &dsq, flags)
    }

    /// `scx_dsq_move()`.
    pub(crate) fn dsq_move(
        &self,
        k: &Kernel,
        iter: *mut u64,
        task: u64,
        id: u64,
        flags: u64,
    ) -> bool {
        let Some(task) = self.task_at(k, task) else { return false };
        // SAFETY: as iter_new() has written it.
        let from = unsafe { iter.cast::<[u64; 6]>().read() };
        let here = k.this_cpu();
        let locked = self.rqs[here].locked.get();
        let src = task.cpu.get();
        match locked {
            Some(rq) => k.switch_rq_lock(rq, src),
            None => k.lock_rq(src),
        }
        let mut held = src;
        // nldsq_cursor_lost_task()
        let is_there =
            task.ext.dsq.borrow().as_ref().is_some_and(|dsq| Rc::as_ptr(dsq) as u64 == from[0]);
        let mut moved = false;
        if is_there && task.cpu.get() == src && task.ext.seq() <= from[3] as i64 {
            // move_task_between_dsqs()
            let dsq = self.find_dsq(locked.unwrap_or(here), id);
            match dsq.cpu {
                Some(dst) if dst == src => {
                    self.unlink(&task);
                    self.dispatch_enqueue(k, src, &dsq, &task, flags);
                    moved = true;
                }
                Some(dst) if self.can_run_on(k, &task, dst) => {
                    self.unlink(&task);
                    self.move_remote(k, &task, flags, src, dst);
                    held = dst;
                    moved = true;
                }
                Some(dst) => {
                    k.violation("scx_error", format!("{} may not run on CPU {dst}", task.name));
                }
                None => {
                    self.unlink(&task);
                    self.dispatch_enqueue(k, src, &dsq, &task, flags);
                    moved = true;
                }
            }
        }
        match locked {
            Some(rq) => k.switch_rq_lock(held, rq),
            None => k.unlock_rq(held),
        }
        moved
    }

    /// `scx_bpf_reenqueue_local()` of `ops.cpu_release()`; since 7.1 it is put off.
    pub(crate) fn reenqueue_local(&self, k: &Kernel) -> u32 {
        let rq = k.this_cpu();
        if k.config.kernel >= KernelVersion::V7_2 {
            self.rqs[rq].reenq.set(true);
            return 0;
        }
        self.reenq_local(k, rq)
    }

    pub(super) fn reenq_local(&self, k: &Kernel, rq: usize) -> u32 {
        let local = Rc::clone(&self.rqs[rq].local);
        let tasks: Vec<TaskId> = local.tasks.borrow().values().copied().collect();
        for id in &tasks {
            self.dispatch_dequeue(rq, &k.task(*id));
        }
        for id in &tasks {
            self.do_enqueue_task(k, rq, &k.task(*id), l::ENQ_REENQ, None);
        }
        tasks.len() as u32
    }
}
