// SPDX-License-Identifier: GPL-2.0-or-later
//! Dispatch queues.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Ext, Op};
use crate::config::KernelVersion;
use crate::kernel::{Kernel, TaskId};
use crate::layout as l;
use crate::task::{Sched, Task};

pub(super) const DSQ_GLOBAL: u64 = 1 << 63 | 1;
pub(super) const DSQ_LOCAL: u64 = 1 << 63 | 2;
const DSQ_LOCAL_ON: u64 = 3 << 62;

/// A dispatch queue: `struct scx_dispatch_q`.
pub(crate) struct Dsq {
    pub(super) id: u64,
    /// The CPU whose local DSQ it is.
    pub(super) cpu: Option<usize>,
    /// By virtual time and order of insertion; in FIFO order all virtual times are 0.
    pub(super) tasks: RefCell<BTreeMap<(i64, i64), TaskId>>,
    /// `dsq->seq`.
    seq: Cell<i64>,
}

impl Dsq {
    pub(super) fn new(id: u64, cpu: Option<usize>) -> Rc<Self> {
        Rc::new(Self { id, cpu, tasks: RefCell::default(), seq: Cell::new(0) })
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(super) fn first(&self) -> Option<TaskId> {
        self.tasks.borrow().first_key_value().map(|(_, task)| *task)
    }
}

impl Ext {
    pub(crate) fn create_dsq(&self, id: u64) -> i32 {
        if id == self.llc_dsqs.borrow().len() as u64 {
            self.llc_dsqs.borrow_mut().push(Dsq::new(id, None));
        } else if self.user_dsqs.borrow_mut().insert(id, Dsq::new(id, None)).is_some() {
            return -17;
        }
        0
    }

    /// `find_dsq_for_dispatch()`.
    pub(super) fn find_dsq(&self, rq: usize, id: u64) -> Rc<Dsq> {
        if id == DSQ_LOCAL {
            return Rc::clone(&self.rqs[rq].local);
        }
        if id & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            let cpu = id as u32 as usize;
            assert!(cpu < self.rqs.len(), "there is no CPU {cpu}");
            return Rc::clone(&self.rqs[cpu].local);
        }
        if id == DSQ_GLOBAL {
            return Rc::clone(&self.global);
        }
        if let Some(dsq) = self.llc_dsqs.borrow().get(id as usize) {
            return Rc::clone(dsq);
        }
        let dsq = self.user_dsqs.borrow().get(&id).cloned();
        dsq.unwrap_or_else(|| panic!("the scheduler uses DSQ {id:#x}, which it has not created"))
    }

    pub(crate) fn dsq_nr_queued(&self, k: &Kernel, id: u64) -> i32 {
        self.find_dsq(k.this_cpu(), id).len() as i32
    }

    pub(crate) fn peek(&self, k: &Kernel, id: u64) -> u64 {
        let first = self.find_dsq(k.this_cpu(), id).first();
        first.map_or(0, |task| k.task(task).raw.address())
    }

    // struct bpf_iter_scx_dsq has 6 words: the DSQ, the key of the last task, the DSQ's seq at the
    // start, the direction, and whether a task was returned.
    pub(crate) fn iter_new(&self, k: &Kernel, iter: *mut u64, id: u64, flags: u64) -> i32 {
        let dsq = self.find_dsq(k.this_cpu(), id);
        let words =
            [Rc::as_ptr(&dsq) as u64, 0, 0, dsq.seq.get() as u64, flags & l::DSQ_ITER_REV, 0];
        // SAFETY: user DSQs live as long as this; the iterator has 48 bytes.
        unsafe { iter.cast::<[u64; 6]>().write(words) };
        0
    }

    /// `nldsq_cursor_next_task()`: not tasks that were queued after the iteration began.
    pub(crate) fn iter_next(&self, k: &Kernel, iter: *mut u64) -> u64 {
        // SAFETY: as iter_new() has written it.
        let words = unsafe { &mut *iter.cast::<[u64; 6]>() };
        // SAFETY: as above.
        let dsq = unsafe { &*(words[0] as *const Dsq) };
        let last = (words[1] as i64, words[2] as i64);
        let tasks = dsq.tasks.borrow();
        let is_old = |task: &TaskId| k.task(*task).ext.seq() <= words[3] as i64;
        let (from, to);
        let found = match (words[4] != 0, words[5] != 0) {
            (false, begun) => {
                from = if begun {
                    std::ops::Bound::Excluded(last)
                } else {
                    std::ops::Bound::Unbounded
                };
                let mut range = tasks.range((from, std::ops::Bound::Unbounded));
                range.find(|(_, task)| is_old(task))
            }
            (true, begun) => {
                to = if begun {
                    std::ops::Bound::Excluded(last)
                } else {
                    std::ops::Bound::Unbounded
                };
                let range = tasks.range((std::ops::Bound::Unbounded, to));
                range.rev().find(|(_, task)| is_old(task))
            }
        };
        let Some((key, task)) = found else { return 0 };
        (words[1], words[2], words[5]) = (key.0 as u64, key.1 as u64, 1);
        self.count_scanned(k, 1);
        k.task(*task).raw.address()
    }

    /// `dispatch_enqueue()`; for a local DSQ its run queue is locked.
    pub(super) fn dispatch_enqueue(
        &self,
        k: &Kernel,
        rq: usize,
        dsq: &Rc<Dsq>,
        task: &Task,
        flags: u64,
    ) {
        let entity = &task.ext;
        assert!(entity.dsq.borrow().is_none(), "{} is in two DSQs", task.name);
        let seq = dsq.seq.get() + 1;
        dsq.seq.set(seq);
        let key = if flags & l::ENQ_DSQ_PRIQ != 0 {
            if dsq.cpu.is_some() || dsq.id == DSQ_GLOBAL {
                k.violation("scx_error", "cannot use vtime ordering for built-in DSQs".into());
            }
            (task.raw.get::<u64>(l::TASK_SCX_VTIME) as i64, seq)
        } else if flags & (l::ENQ_HEAD | l::ENQ_PREEMPT) != 0 {
            (0, -seq)
        } else {
            (0, seq)
        };
        entity.key.set(key);
        dsq.tasks.borrow_mut().insert(key, task.id);
        *entity.dsq.borrow_mut() = Some(Rc::clone(dsq));
        match dsq.cpu {
            Some(cpu) => self.local_dsq_post_enq(k, cpu, task, flags),
            None if dsq.id == DSQ_GLOBAL => self.leave_custody(k, rq, task, 0),
            None => entity.in_custody.set(true),
        }
    }

    /// `task_leave_custody()`, and `ops.dequeue()` if the task was in it: since 7.1.
    pub(super) fn leave_custody(&self, k: &Kernel, rq: usize, task: &Task, flags: u64) {
        if task.ext.in_custody.take() && k.config.kernel >= KernelVersion::V7_2 {
            self.call_if_any(k, Op::Dequeue, Some(rq), &mut [task.raw.address(), flags]);
        }
    }

    fn local_dsq_post_enq(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        self.leave_custody(k, cpu, task, 0);
        let curr = k.curr(cpu).map(|curr| k.task(curr));
        if curr.is_none() && k.config.kernel >= KernelVersion::V7_2 {
            // wakeup_preempt() of a class above that of the idle task.
            k.resched_curr(cpu);
        }
        if self.rqs[cpu].in_balance.get() || flags & l::ENQ_PREEMPT == 0 {
            return;
        }
        match curr {
            Some(curr) if curr.id != task.id && curr.sched.get() == Sched::Class => {
                curr.raw.set(l::TASK_SCX_SLICE, 0u64);
                k.resched_curr(cpu);
            }
            None => k.resched_curr(cpu),
            _ => {}
        }
    }

    pub(super) fn unlink(&self, task: &Task) {
        if let Some(dsq) = task.ext.dsq.take() {
            dsq.tasks.borrow_mut().remove(&task.ext.key.get());
        }
    }

    /// `dispatch_dequeue()`, with the task's run queue locked.
    pub(super) fn dispatch_dequeue(&self, rq: usize, task: &Task) {
        self.rqs[rq].deferred.borrow_mut().retain(|id| *id != task.id);
        // Another CPU that moves the task has unlinked it, and finds that it has lost it.
        task.ext.holding_cpu.set(None);
        self.unlink(task);
    }
}
