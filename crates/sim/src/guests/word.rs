// SPDX-License-Identifier: GPL-2.0-or-later
//! A word of memory that other CPUs poll.

use std::cell::{Cell, RefCell};

use super::ctx::Ctx;
use super::vm::Shared;

/// A word, and the vCPUs that spin until it changes.
#[derive(Default)]
pub(super) struct Word<T: Copy> {
    value: Cell<T>,
    watchers: RefCell<Vec<usize>>,
}

impl<T: Copy> Word<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Cell::new(value), watchers: RefCell::default() }
    }

    pub(super) fn get(&self) -> T {
        self.value.get()
    }

    /// Writes it: those who spin see it.
    pub(super) fn set(&self, vm: &Shared, value: T) {
        self.value.set(value);
        for vcpu in self.watchers.borrow_mut().drain(..) {
            vm.vcpus[vcpu].word_changed(vm);
        }
    }

    /// Ends the spins on this word: something that they look at as well has changed.
    pub(super) fn touch(&self, vm: &Shared) {
        self.set(vm, self.get());
    }

    /// Ends the next spins of this CPU when the word changes.
    pub(super) fn watch(&self, cx: &Ctx) {
        self.watchers.borrow_mut().push(cx.cpu());
    }

    /// The end of [`Self::watch`].
    pub(super) fn unwatch(&self, cx: &Ctx) {
        self.watchers.borrow_mut().retain(|vcpu| *vcpu != cx.cpu());
    }

    /// Spins until something changes, or for so many nanoseconds. The time that is left.
    pub(super) async fn spin_once(&self, cx: &Ctx, left: u64) -> u64 {
        self.watch(cx);
        let left = cx.spin(left).await;
        self.unwatch(cx);
        left
    }

    /// Spins until `is_done`, or for so many nanoseconds. The time that is left; 0: not done.
    pub(super) async fn spin_until(
        &self,
        cx: &Ctx,
        mut left: u64,
        is_done: impl Fn(T) -> bool,
    ) -> u64 {
        if is_done(self.get()) {
            return left;
        }
        while left != 0 {
            left = self.spin_once(cx, left).await;
            if is_done(self.get()) {
                cx.run(cx.costs().hand_over_ns).await;
                if is_done(self.get()) {
                    return left.max(1);
                }
            }
        }
        0
    }
}
