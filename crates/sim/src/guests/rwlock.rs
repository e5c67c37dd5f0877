// SPDX-License-Identifier: GPL-2.0-or-later
//! Queued reader-writer locks (`kernel/locking/qrwlock.c` of 7.2).

use super::ctx::Ctx;
use super::qspinlock::SpinLock;
use super::word::Word;
use crate::program::FOREVER;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    readers: u32,
    /// `_QW_WAITING`: a writer waits for the readers.
    waiting: bool,
    /// `_QW_LOCKED`
    locked: bool,
}

/// `rwlock_t`. There is no paravirtual one: the first in its queue spins for readers and writer.
#[derive(Default)]
pub struct RwLock {
    counts: Word<Counts>,
    wait_lock: SpinLock,
}

impl RwLock {
    /// A free lock.
    pub fn new() -> Self {
        Self::default()
    }

    fn set(&self, cx: &Ctx, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        if counts.locked && counts.readers != 0 {
            // Readers count before they look (queued_read_lock()), so only writers can err.
            cx.vm().fails("a writer has a lock that readers have");
        }
        self.counts.set(cx.vm(), counts);
    }

    /// `read_lock()`.
    pub async fn read_lock(&self, cx: &Ctx) {
        cx.preempt_disable();
        cx.run(cx.costs().lock_ns).await;
        let counts = self.counts.get();
        if !counts.locked && !counts.waiting {
            return self.set(cx, |counts| counts.readers += 1);
        }
        // queued_read_lock_slowpath()
        self.wait_lock.arch_lock(cx).await;
        while self.counts.get().locked {
            self.counts.spin_until(cx, FOREVER, |counts| !counts.locked).await;
        }
        self.set(cx, |counts| counts.readers += 1);
        self.wait_lock.arch_unlock(cx).await;
    }

    /// `read_unlock()`.
    pub async fn read_unlock(&self, cx: &Ctx) {
        self.set(cx, |counts| counts.readers -= 1);
        cx.preempt_enable().await;
    }

    /// `write_lock_irq()`: were interrupts on?
    pub async fn write_lock_irq(&self, cx: &Ctx) -> bool {
        let on = cx.irq_save();
        cx.preempt_disable();
        cx.run(cx.costs().lock_ns).await;
        let is_free = |counts: Counts| !counts.locked && counts.readers == 0;
        if is_free(self.counts.get()) && !self.counts.get().waiting {
            self.set(cx, |counts| counts.locked = true);
            return on;
        }
        // queued_write_lock_slowpath()
        self.wait_lock.arch_lock(cx).await;
        self.set(cx, |counts| counts.waiting = true);
        while !is_free(self.counts.get()) {
            self.counts.spin_until(cx, FOREVER, is_free).await;
        }
        self.set(cx, |counts| *counts = Counts { locked: true, ..Counts::default() });
        self.wait_lock.arch_unlock(cx).await;
        on
    }

    /// `write_unlock_irq()`.
    pub async fn write_unlock_irq(&self, cx: &Ctx, on: bool) {
        self.set(cx, |counts| counts.locked = false);
        cx.irq_restore(on);
        cx.preempt_enable().await;
    }
}
