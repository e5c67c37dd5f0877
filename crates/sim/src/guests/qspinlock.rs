// SPDX-License-Identifier: GPL-2.0-or-later
//! Queued spinlocks (`kernel/locking/qspinlock.c`, `qspinlock_paravirt.h` of 7.2).

use std::cell::Cell;

use super::ctx::Ctx;
use super::vcpu::{AT_QNODES, Exit};
use super::vm::Shared;
use super::word::Word;
use crate::program::FOREVER;

/// `enum vcpu_state`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum NodeState {
    #[default]
    Running,
    Halted,
    Hashed,
}

/// `struct pv_node` of a CPU.
#[derive(Default)]
pub(super) struct Node {
    locked: Word<bool>,
    next: Word<Option<(usize, usize)>>,
    state: Word<NodeState>,
}

/// Nesting levels of a CPU: task, softirq, hardirq, NMI.
pub(super) const NODES: usize = 4;

/// The lock's byte: `_Q_LOCKED_VAL`, or `_Q_SLOW_VAL` if its head has halted.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Held {
    #[default]
    Free,
    Locked,
    Slow,
}

#[derive(Clone, Copy, Default)]
struct Value {
    held: Held,
    pending: bool,
    tail: Option<(usize, usize)>,
}

/// `raw_spinlock_t`.
#[derive(Default)]
pub struct SpinLock {
    value: Word<Value>,
    /// `pv_unhash()`: the head of the queue that has halted.
    halted_head: Cell<Option<usize>>,
    owner: Cell<Option<usize>>,
}

impl Shared {
    fn node(&self, (cpu, index): (usize, usize)) -> &Node {
        &self.vcpus[cpu].nodes[index]
    }

    fn node_at(&self, (cpu, index): (usize, usize)) -> usize {
        self.vcpus[cpu].page() + AT_QNODES + 32 * index
    }

    fn set_node_locked(&self, node: (usize, usize), locked: bool) {
        self.memory.write_u32(self.node_at(node) + 8, u32::from(locked));
        self.node(node).locked.set(self, locked);
    }

    /// Of the first node of a CPU: how many of its nodes are in use.
    fn add_node(&self, cpu: usize, add: u32) -> u32 {
        let at = self.node_at((cpu, 0)) + 12;
        let count = self.memory.read_u32(at);
        self.memory.write_u32(at, count.wrapping_add(add));
        count
    }
}

impl SpinLock {
    /// A free lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// `spin_lock()`.
    pub async fn lock(&self, cx: &Ctx) {
        cx.preempt_disable();
        self.arch_lock(cx).await;
    }

    /// `spin_unlock()`.
    pub async fn unlock(&self, cx: &Ctx) {
        self.arch_unlock(cx).await;
        cx.preempt_enable().await;
    }

    /// `raw_spin_rq_lock()`: interrupts are off.
    pub(super) async fn lock_raw(&self, cx: &Ctx) {
        self.lock(cx).await;
    }

    /// `raw_spin_trylock()`.
    pub(super) fn try_lock_raw(&self, cx: &Ctx) -> bool {
        let free = self.try_take(cx, |value| value.tail.is_none() && !value.pending);
        if free {
            cx.preempt_disable();
        }
        free
    }

    /// `raw_spin_rq_unlock()`, without a check for a reschedule.
    pub(super) async fn unlock_raw(&self, cx: &Ctx) {
        self.arch_unlock(cx).await;
        cx.count_sub(1);
    }

    fn set(&self, cx: &Ctx, change: impl FnOnce(&mut Value)) {
        let mut value = self.value.get();
        change(&mut value);
        self.value.set(cx.vm(), value);
    }

    /// Takes the lock if it is free and `may`.
    fn try_take(&self, cx: &Ctx, may: impl Fn(&Value) -> bool) -> bool {
        let value = self.value.get();
        let free = value.held == Held::Free && may(&value);
        if free {
            self.set(cx, |value| value.held = Held::Locked);
            self.taken(cx);
        }
        free
    }

    fn taken(&self, cx: &Ctx) {
        if let Some(owner) = self.owner.replace(Some(cx.cpu())) {
            cx.vm().fails(format!("CPU {} has a spinlock of CPU {owner}", cx.cpu()));
        }
    }

    /// `arch_spin_lock()`: does not count in `preempt_count`.
    pub(super) async fn arch_lock(&self, cx: &Ctx) {
        cx.run(cx.costs().lock_ns).await;
        if self.try_take(cx, |value| value.tail.is_none() && !value.pending) {
            return;
        }
        let features = &cx.vm().features;
        if features.pv_spinlocks {
            return self.queue(cx, true).await;
        }
        if features.test_and_set {
            // virt_spin_lock()
            while !self.try_take(cx, |_| true) {
                self.value.spin_until(cx, FOREVER, |value| value.held == Held::Free).await;
            }
            return;
        }
        // queued_spin_lock_slowpath(): the first contender waits without a node.
        let value = self.value.get();
        if value.tail.is_none() && !value.pending {
            self.set(cx, |value| value.pending = true);
            while self.value.get().held != Held::Free {
                self.value.spin_until(cx, FOREVER, |value| value.held == Held::Free).await;
            }
            // clear_pending_set_locked()
            self.set(cx, |value| *value = Value { held: Held::Locked, pending: false, ..*value });
            self.taken(cx);
            return;
        }
        self.queue(cx, false).await;
    }

    /// From `queue:` (`pv_queue:`) on.
    async fn queue(&self, cx: &Ctx, pv: bool) {
        let (vm, cpu) = (cx.vm(), cx.cpu());
        let me = (cpu, vm.add_node(cpu, 1) as usize);
        let node = vm.node(me);
        vm.set_node_locked(me, false);
        node.next.set(vm, None);
        node.state.set(vm, NodeState::Running);
        // pv_init_node(); a native lock leaves these bytes alone.
        vm.memory.write_u32(vm.node_at(me) + 16, if pv { cpu as u32 } else { 0 });
        cx.run(cx.costs().lock_ns).await;
        let got = match pv {
            true => self.steal(cx).await,
            false => self.try_take(cx, |value| value.tail.is_none() && !value.pending),
        };
        if !got {
            self.wait_in_queue(cx, me, pv).await;
        }
        vm.add_node(cpu, 1u32.wrapping_neg());
    }

    async fn wait_in_queue(&self, cx: &Ctx, me: (usize, usize), pv: bool) {
        let vm = cx.vm();
        let node = vm.node(me);
        let prev = self.value.get().tail;
        self.set(cx, |value| value.tail = Some(me));
        if let Some(prev) = prev {
            vm.node(prev).next.set(vm, Some(me));
            if pv {
                Self::pv_wait_node(cx, me, prev).await;
            } else {
                while !node.locked.get() {
                    node.locked.spin_until(cx, FOREVER, |locked| locked).await;
                }
            }
        }
        if pv {
            self.pv_wait_head_or_lock(cx, me).await;
        } else {
            let is_free = |value: Value| value.held == Held::Free && !value.pending;
            while !is_free(self.value.get()) {
                self.value.spin_until(cx, FOREVER, is_free).await;
            }
            self.set(cx, |value| value.held = Held::Locked);
            self.taken(cx);
        }
        // The last in the queue empties it.
        if self.value.get().tail == Some(me) {
            self.set(cx, |value| value.tail = None);
            return;
        }
        while node.next.get().is_none() {
            node.next.spin_until(cx, FOREVER, |next| next.is_some()).await;
        }
        let next = node.next.get().expect("just seen");
        vm.set_node_locked(next, true);
        // pv_kick_node(): the next one has halted, and is hashed; the unlock will kick it.
        if pv && vm.node(next).state.get() == NodeState::Halted {
            vm.node(next).state.set(vm, NodeState::Hashed);
            self.set(cx, |value| value.held = Held::Slow);
            self.halted_head.set(Some(next.0));
        }
    }

    /// `pv_hybrid_queued_unfair_trylock()`: while a queue exists whose head does not spin.
    async fn steal(&self, cx: &Ctx) -> bool {
        loop {
            if self.try_take(cx, |value| !value.pending) {
                return true;
            }
            let value = self.value.get();
            if value.tail.is_none() || value.pending {
                return false;
            }
            let over =
                |value: Value| value.tail.is_none() || value.pending || value.held == Held::Free;
            self.value.spin_until(cx, FOREVER, over).await;
        }
    }

    /// `pv_wait_node()`.
    async fn pv_wait_node(cx: &Ctx, me: (usize, usize), prev: (usize, usize)) {
        let (vm, costs) = (cx.vm(), cx.costs());
        let (node, before) = (vm.node(me), vm.node(prev));
        loop {
            let mut left = costs.spin_threshold * costs.spin_ns;
            // pv_wait_early(): the one before does not spin itself.
            while !node.locked.get() && before.state.get() == NodeState::Running && left != 0 {
                left = Self::spin_on_both(cx, node, before, left).await;
            }
            if node.locked.get() {
                return;
            }
            node.state.set(vm, NodeState::Halted);
            if !node.locked.get() {
                cx.exit(Exit::Halt).await;
            }
            if node.state.get() == NodeState::Halted {
                node.state.set(vm, NodeState::Running);
            }
        }
    }

    /// Spins until `node` has the turn or `before` does not run; what is left.
    async fn spin_on_both(cx: &Ctx, node: &Node, before: &Node, left: u64) -> u64 {
        before.state.watch(cx);
        let left = node.locked.spin_once(cx, left).await;
        before.state.unwatch(cx);
        if node.locked.get() {
            cx.run(cx.costs().hand_over_ns).await;
        }
        left
    }

    /// `pv_wait_head_or_lock()`.
    async fn pv_wait_head_or_lock(&self, cx: &Ctx, me: (usize, usize)) {
        let (vm, costs) = (cx.vm(), cx.costs());
        let node = vm.node(me);
        let mut hashed = node.state.get() == NodeState::Hashed;
        loop {
            node.state.set(vm, NodeState::Running);
            // set_pending(): no stealing while the head spins.
            self.set(cx, |value| value.pending = true);
            let is_free = |value: Value| value.held == Held::Free;
            self.value.spin_until(cx, costs.spin_threshold * costs.spin_ns, is_free).await;
            if is_free(self.value.get()) {
                self.set(cx, |value| {
                    *value = Value { held: Held::Locked, pending: false, ..*value }
                });
                self.taken(cx);
                return;
            }
            self.set(cx, |value| value.pending = false);
            if !hashed {
                hashed = true;
                self.halted_head.set(Some(me.0));
                cx.run(costs.lock_ns).await;
                if self.try_take(cx, |_| true) {
                    self.halted_head.set(None);
                    return;
                }
                self.set(cx, |value| value.held = Held::Slow);
            }
            node.state.set(vm, NodeState::Hashed);
            if self.value.get().held == Held::Slow {
                cx.exit(Exit::Halt).await;
            }
        }
    }

    /// `arch_spin_unlock()`.
    pub(super) async fn arch_unlock(&self, cx: &Ctx) {
        if self.owner.take() != Some(cx.cpu()) {
            cx.vm().fails("a spinlock is released by another CPU than its owner");
        }
        let slow = self.value.get().held == Held::Slow;
        // __pv_queued_spin_unlock_slowpath(): the head is looked up before the lock is free.
        let head = if slow { self.halted_head.take() } else { None };
        self.set(cx, |value| value.held = Held::Free);
        if let Some(head) = head {
            cx.exit(Exit::Kick(head)).await;
        }
    }
}
