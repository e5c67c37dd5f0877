// SPDX-License-Identifier: GPL-2.0-or-later
//! Futexes (`kernel/futex/waitwake.c`), and the mutex that glibc makes of one.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::ctx::Ctx;
use super::qspinlock::SpinLock;
use super::sched::ThreadId;
use super::word::Word;

/// A word of user space, and its bucket in the kernel's hash.
#[derive(Default)]
pub struct Futex {
    /// 0: free; 1: locked; 2: locked, and threads may wait.
    word: Word<u32>,
    bucket: SpinLock,
    waiters: RefCell<VecDeque<ThreadId>>,
}

/// From user space to the bucket's lock, and back.
const SYSCALL_NS: u64 = 500;

impl Futex {
    /// A free one.
    pub fn new() -> Self {
        Self::default()
    }

    fn exchange(&self, cx: &Ctx, value: u32) -> u32 {
        let old = self.word.get();
        self.word.set(cx.vm(), value);
        old
    }

    /// `pthread_mutex_lock()` (`lowlevellock.h`).
    pub async fn lock(&self, cx: &Ctx) {
        cx.user(cx.costs().lock_ns).await;
        if self.word.get() == 0 {
            self.word.set(cx.vm(), 1);
            return;
        }
        while self.exchange(cx, 2) != 0 {
            self.wait(cx, 2).await;
        }
    }

    /// `pthread_mutex_unlock()`.
    pub async fn unlock(&self, cx: &Ctx) {
        cx.user(cx.costs().lock_ns).await;
        if self.exchange(cx, 0) == 2 {
            self.wake(cx).await;
        }
    }

    /// `futex_wait()`.
    async fn wait(&self, cx: &Ctx, expected: u32) {
        cx.run(SYSCALL_NS).await;
        self.bucket.lock(cx).await;
        if self.word.get() != expected {
            self.bucket.unlock(cx).await;
            return;
        }
        cx.run(cx.costs().lock_ns).await;
        self.waiters.borrow_mut().push_back(cx.id());
        cx.prepare_to_sleep();
        self.bucket.unlock(cx).await;
        cx.schedule().await;
        cx.finish_sleep();
        cx.run(SYSCALL_NS).await;
    }

    /// `futex_wake()` of one.
    async fn wake(&self, cx: &Ctx) {
        cx.run(SYSCALL_NS).await;
        // futex_hb_waiters_pending()
        if self.waiters.borrow().is_empty() {
            return;
        }
        self.bucket.lock(cx).await;
        cx.run(cx.costs().lock_ns).await;
        let first = self.waiters.borrow_mut().pop_front();
        self.bucket.unlock(cx).await;
        if let Some(first) = first {
            cx.wake(first, false).await;
        }
    }
}
