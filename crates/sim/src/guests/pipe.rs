// SPDX-License-Identifier: GPL-2.0-or-later
//! Pipes (`fs/pipe.c`): a mutex, and threads that wait for bytes or for room.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::ctx::Ctx;
use super::mutex::Mutex;
use super::qspinlock::SpinLock;
use super::sched::ThreadId;

/// A pipe of messages.
pub struct Pipe {
    mutex: Mutex,
    wait_lock: SpinLock,
    messages: Cell<u64>,
    room: u64,
    readers: RefCell<VecDeque<ThreadId>>,
    writers: RefCell<VecDeque<ThreadId>>,
    copy_ns: u64,
}

impl Pipe {
    /// A pipe with room for so many messages, each of which takes so long to copy.
    pub fn new(room: u64, copy_ns: u64) -> Self {
        Self {
            mutex: Mutex::new(),
            wait_lock: SpinLock::new(),
            messages: Cell::new(0),
            room,
            readers: RefCell::default(),
            writers: RefCell::default(),
            copy_ns,
        }
    }

    /// `pipe_write()` of one message.
    pub async fn write(&self, cx: &Ctx) {
        self.transfer(cx, 1, &self.writers, &self.readers).await;
    }

    /// `pipe_read()` of one message.
    pub async fn read(&self, cx: &Ctx) {
        self.transfer(cx, -1, &self.readers, &self.writers).await;
    }

    fn may(&self, add: i64) -> bool {
        if add > 0 { self.messages.get() < self.room } else { self.messages.get() > 0 }
    }

    async fn transfer(
        &self,
        cx: &Ctx,
        add: i64,
        own: &RefCell<VecDeque<ThreadId>>,
        others: &RefCell<VecDeque<ThreadId>>,
    ) {
        self.mutex.lock(cx).await;
        while !self.may(add) {
            self.mutex.unlock(cx).await;
            // wait_event_interruptible_exclusive()
            self.wait_lock.lock(cx).await;
            own.borrow_mut().push_back(cx.id());
            cx.prepare_to_sleep();
            self.wait_lock.unlock(cx).await;
            if !self.may(add) {
                cx.schedule().await;
            }
            cx.finish_sleep();
            own.borrow_mut().retain(|id| *id != cx.id());
            self.mutex.lock(cx).await;
        }
        super::loads::work(cx, self.copy_ns, 40).await;
        self.messages.set(self.messages.get().wrapping_add_signed(add));
        self.mutex.unlock(cx).await;
        // wake_up_interruptible_sync_poll(): with the queue's lock held.
        if others.borrow().is_empty() {
            return;
        }
        self.wait_lock.lock(cx).await;
        let first = others.borrow_mut().pop_front();
        if let Some(first) = first {
            cx.wake(first, true).await;
        }
        self.wait_lock.unlock(cx).await;
    }
}
