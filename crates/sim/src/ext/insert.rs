// SPDX-License-Identifier: GPL-2.0-or-later
//! Inserts into DSQs: `scx_bpf_dsq_insert()`, and direct dispatch from `ops.enqueue()`.

use std::rc::Rc;

use super::{Ext, Op};
use crate::kernel::{Event, Job, Kernel, MIGRATING};
use crate::layout as l;
use crate::task::Task;

impl Ext {
    /// `scx_bpf_dsq_insert()`.
    pub(crate) fn dsq_insert(
        &self,
        k: &Kernel,
        task: u64,
        dsq: u64,
        slice: u64,
        flags: u64,
    ) -> bool {
        let Some(task) = self.task_at(k, task) else { return false };
        if slice != 0 {
            task.raw.set(l::TASK_SCX_SLICE, slice);
        } else if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            task.raw.set(l::TASK_SCX_SLICE, 1u64);
        }
        self.mark_direct_dispatch(k, &task, dsq, flags)
    }

    /// `scx_bpf_dsq_insert_vtime()`: DSQ, slice, virtual time and flags.
    pub(crate) fn dsq_insert_vtime(
        &self,
        k: &Kernel,
        task: u64,
        (dsq, slice, vtime, flags): (u64, u64, u64, u64),
    ) -> bool {
        if let Some(task) = self.task_at(k, task) {
            task.raw.set(l::TASK_SCX_VTIME, vtime);
        }
        self.dsq_insert(k, task, dsq, slice, flags | l::ENQ_DSQ_PRIQ)
    }

    fn mark_direct_dispatch(&self, k: &Kernel, task: &Task, dsq: u64, flags: u64) -> bool {
        let direct = &self.rqs[k.this_cpu()].direct;
        if direct.get() != Some(Some(task.id)) {
            k.violation("scx_error", format!("an insert of {} out of place", task.name));
            return false;
        }
        direct.set(Some(None));
        task.ext.ddsp.set(Some((dsq, flags)));
        true
    }

    /// Calls a callback that may insert `task`.
    pub(super) fn call_direct(
        &self,
        k: &Kernel,
        op: Op,
        rq: Option<usize>,
        task: &Task,
        args: &mut [u64],
    ) -> u64 {
        let direct = &self.rqs[k.this_cpu()].direct;
        let outer = direct.replace(Some(Some(task.id)));
        let value = self.call(k, op, rq, args);
        direct.set(outer);
        value
    }

    fn direct_dispatch(&self, k: &Kernel, rq: usize, task: &Task, (id, flags): (u64, u64)) {
        let dsq = self.find_dsq(rq, id);
        if dsq.cpu.is_some_and(|cpu| cpu != rq) {
            task.ext.ddsp.set(Some((id, flags)));
            self.rqs[rq].deferred.borrow_mut().push_back(task.id);
            self.schedule_deferred_locked(k, rq);
            return;
        }
        task.ext.ddsp.set(None);
        self.dispatch_enqueue(k, rq, &dsq, task, flags);
    }

    pub(super) fn do_enqueue_task(
        &self,
        k: &Kernel,
        rq: usize,
        task: &Task,
        flags: u64,
        sticky: Option<usize>,
    ) {
        if sticky == Some(rq) {
            task.ext.ddsp.set(None);
            let local = Rc::clone(&self.rqs[rq].local);
            return self.dispatch_enqueue(k, rq, &local, task, flags);
        }
        if !k.is_online(rq) {
            task.ext.ddsp.set(None);
            task.raw.set(l::TASK_SCX_SLICE, l::SLICE_DFL);
            let local = Rc::clone(&self.rqs[rq].local);
            return self.dispatch_enqueue(k, rq, &local, task, flags);
        }
        if task.ext.ddsp.get().is_none() {
            let flags = flags & !MIGRATING;
            self.call_direct(k, Op::Enqueue, Some(rq), task, &mut [task.raw.address(), flags]);
        }
        let Some((dsq, more)) = task.ext.ddsp.get() else {
            k.violation("lost task", format!("enqueue() has left {} in no DSQ", task.name));
            return;
        };
        self.direct_dispatch(k, rq, task, (dsq, more | flags & !MIGRATING));
    }

    /// `schedule_deferred_locked()`.
    fn schedule_deferred_locked(&self, k: &Kernel, rq: usize) {
        // task_woken() and balance_callbacks() run it.
        if self.rqs[rq].in_wakeup.get() || self.rqs[rq].in_balance.get() {
            return;
        }
        if !self.rqs[rq].deferred_posted.replace(true) {
            k.post_in(0, Event::On(rq, Job::Deferred));
        }
    }

    /// `process_ddsp_deferred_locals()`.
    pub(super) fn run_deferred(&self, k: &Kernel, rq: usize) {
        loop {
            let first = self.rqs[rq].deferred.borrow_mut().pop_front();
            let Some(task) = first.map(|task| k.task(task)) else { break };
            let Some((id, flags)) = task.ext.ddsp.take() else { continue };
            let dsq = self.find_dsq(rq, id);
            if dsq.cpu.is_some() {
                self.dispatch_to_local_dsq(k, rq, &dsq, &task, flags);
            }
        }
    }
}
