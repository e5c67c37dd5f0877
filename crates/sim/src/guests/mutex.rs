// SPDX-License-Identifier: GPL-2.0-or-later
//! Mutexes with owner spinning (`kernel/locking/mutex.c`, `osq_lock.c` of 7.2). The writers of a
//! semaphore such as `mmap_lock` do the same (`rwsem.c`), and one may become a reader.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::ctx::Ctx;
use super::qspinlock::SpinLock;
use super::sched::ThreadId;
use super::word::Word;

/// `struct mutex`.
#[derive(Default)]
pub struct Mutex {
    owner: Word<Option<ThreadId>>,
    wait_lock: SpinLock,
    waiters: RefCell<VecDeque<ThreadId>>,
    /// The CPU that spins for the owner (`osq`): the others in its queue are not modelled, and
    /// sleep.
    spinner: Cell<Option<usize>>,
    /// The owner is a reader by now (`downgrade_write()`).
    is_read: Cell<bool>,
    /// `RWSEM_NONSPINNABLE`
    nonspinnable: Cell<bool>,
}

/// `rwsem_rspin_threshold()`: for so long a writer spins for a reader.
const SPIN_FOR_READER_NS: u64 = 20_000;

impl Mutex {
    /// A free mutex.
    pub fn new() -> Self {
        Self::default()
    }

    fn try_take(&self, cx: &Ctx) -> bool {
        let free = self.owner.get().is_none();
        if free {
            self.owner.set(cx.vm(), Some(cx.id()));
            self.is_read.set(false);
            self.nonspinnable.set(false);
        }
        free
    }

    /// `mutex_lock()`.
    pub async fn lock(&self, cx: &Ctx) {
        cx.run(cx.costs().lock_ns).await;
        if self.try_take(cx) || self.spin(cx).await {
            return;
        }
        self.wait_lock.lock(cx).await;
        self.waiters.borrow_mut().push_back(cx.id());
        loop {
            if self.try_take(cx) {
                break;
            }
            cx.prepare_to_sleep();
            self.wait_lock.unlock(cx).await;
            cx.schedule().await;
            cx.finish_sleep();
            if self.try_take(cx) || self.spin(cx).await {
                self.wait_lock.lock(cx).await;
                break;
            }
            self.wait_lock.lock(cx).await;
        }
        self.waiters.borrow_mut().retain(|id| *id != cx.id());
        self.wait_lock.unlock(cx).await;
    }

    /// `mutex_optimistic_spin()`: with preemption off, while the owner runs on a vCPU that runs.
    async fn spin(&self, cx: &Ctx) -> bool {
        let vm = cx.vm();
        cx.preempt_disable();
        let mut got = false;
        if self.spinner.get().is_none() {
            self.spinner.set(Some(cx.cpu()));
            loop {
                let Some(owner) = self.owner.get() else {
                    cx.run(cx.costs().hand_over_ns).await;
                    got = self.try_take(cx);
                    if got {
                        break;
                    }
                    continue;
                };
                // owner_on_cpu()
                let there = &vm.vcpus[vm.thread(owner).cpu.get()];
                let runs = there.current.get() == owner && !there.is_off_cpu();
                let is_read = self.is_read.get();
                if cx.vcpu().need_resched.get() || (is_read && self.nonspinnable.get()) {
                    break;
                }
                // Readers are many: whether they run is not known.
                if is_read {
                    let left = self.owner.spin_once(cx, SPIN_FOR_READER_NS).await;
                    self.nonspinnable.set(left == 0);
                    continue;
                }
                if !runs {
                    break;
                }
                there.left_cpu.watch(cx);
                self.owner.spin_once(cx, cx.costs().guest_tick_ns).await;
                there.left_cpu.unwatch(cx);
            }
            self.spinner.set(None);
        }
        cx.preempt_enable().await;
        got
    }

    /// `downgrade_write()` of a semaphore: writers that wait hardly spin from now on.
    pub fn downgrade(&self, cx: &Ctx) {
        self.is_read.set(true);
        self.owner.touch(cx.vm());
    }

    /// `mutex_unlock()`.
    pub async fn unlock(&self, cx: &Ctx) {
        if self.owner.get() != Some(cx.id()) {
            cx.vm().fails("a mutex is released by another thread than its owner");
        }
        self.owner.set(cx.vm(), None);
        if self.waiters.borrow().is_empty() {
            return;
        }
        self.wait_lock.lock(cx).await;
        let first = self.waiters.borrow().front().copied();
        self.wait_lock.unlock(cx).await;
        // wake_up_q()
        if let Some(first) = first {
            cx.wake(first, false).await;
        }
    }
}
