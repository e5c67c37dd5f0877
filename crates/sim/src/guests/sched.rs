// SPDX-License-Identifier: GPL-2.0-or-later
//! Threads of a guest, and its scheduler: a run queue for each CPU, in turn, with wakeups of idle
//! CPUs first. Simple on purpose; what is kept of Linux is which locks are held, and for how long.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::ctx::Ctx;
use super::qspinlock::SpinLock;
use super::vcpu::{Exit, Frame, IRQ_CALL, IRQ_RESCHED, Request};
use super::vm::Shared;

/// A thread of a guest. The first ones are the idle tasks of its CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(pub(super) usize);

impl ThreadId {
    /// Where its `task_struct` would be.
    pub(super) fn address(self) -> u64 {
        0xffff_8880_4000_0000 + self.0 as u64 * 0x4000
    }
}

pub(super) struct Thread {
    pub(super) frames: RefCell<Vec<Rc<Frame>>>,
    pub(super) cpu: Rc<Cell<usize>>,
    pub(super) sleeps: Cell<bool>,
    /// Queued, or the current thread of its CPU.
    on_rq: Cell<bool>,
}

impl Thread {
    pub(super) fn new(cpu: usize) -> Self {
        Self {
            frames: RefCell::default(),
            cpu: Rc::new(Cell::new(cpu)),
            sleeps: Cell::new(false),
            on_rq: Cell::new(true),
        }
    }
}

pub(super) struct RunQueue {
    lock: SpinLock,
    pub(super) queue: RefCell<VecDeque<ThreadId>>,
    /// Threads that other CPUs wake here by interrupt (`ttwu_queue_wakelist()`).
    wake_list: RefCell<VecDeque<ThreadId>>,
    picked_at: Cell<u64>,
}

impl RunQueue {
    pub(super) fn new() -> Self {
        Self {
            lock: SpinLock::new(),
            queue: RefCell::default(),
            wake_list: RefCell::default(),
            picked_at: Cell::new(0),
        }
    }
}

impl Shared {
    /// Puts a new thread where an interrupt of this CPU will find it.
    pub(super) fn adopt(&self, id: ThreadId, cpu: usize) {
        let thread = self.thread(id);
        thread.sleeps.set(false);
        thread.on_rq.set(true);
        self.rqs[cpu].wake_list.borrow_mut().push_back(id);
    }

    fn is_idle(&self, cpu: usize) -> bool {
        let rq = &self.rqs[cpu];
        self.vcpus[cpu].is_idle()
            && rq.queue.borrow().is_empty()
            && rq.wake_list.borrow().is_empty()
    }
}

impl Ctx {
    fn rq(&self) -> &RunQueue {
        &self.shared.rqs[self.cpu()]
    }

    /// This thread.
    pub fn id(&self) -> ThreadId {
        self.thread.expect("not an interrupt")
    }

    /// `schedule()`.
    pub(super) async fn schedule(&self) {
        loop {
            self.preempt_disable();
            self.schedule_locked().await;
            self.count_sub(1);
            if !self.vcpu().need_resched.get() {
                break;
            }
        }
    }

    /// `__schedule()`. Preemption is off.
    async fn schedule_locked(&self) {
        let vm = self.vm();
        let on = self.irq_save();
        self.rq().lock.lock_raw(self).await;
        let (v, rq, me) = (self.vcpu(), self.rq(), self.id());
        self.run(self.costs().schedule_ns).await;
        v.need_resched.set(false);
        let thread = &vm.threads.borrow()[me.0].clone();
        let is_idle = me == v.idle.get();
        if thread.sleeps.get() {
            thread.on_rq.set(false);
        } else if !is_idle {
            rq.queue.borrow_mut().push_back(me);
        }
        let mut next = rq.queue.borrow_mut().pop_front();
        if next.is_none() {
            next = self.pull().await;
        }
        let next = next.unwrap_or(v.idle.get());
        rq.picked_at.set(vm.now.get());
        self.arm_tick(next == v.idle.get());
        if next != me {
            vm.thread(next).cpu.set(self.cpu());
            self.ask(Request::Switch(next)).await;
        }
        // Maybe on another CPU.
        self.finish_switch(on).await;
    }

    /// `finish_task_switch()`.
    async fn finish_switch(&self, irqs_on: bool) {
        self.rq().lock.unlock_raw(self).await;
        self.irq_restore(irqs_on);
    }

    /// `schedule_tail()` of a new thread.
    async fn begin(&self) {
        self.finish_switch(true).await;
        self.count_sub(1);
    }

    /// `sched_balance_newidle()`: takes a thread that waits for another CPU.
    async fn pull(&self) -> Option<ThreadId> {
        let vm = self.vm();
        let nr = vm.rqs.len();
        let waits = |cpu: &usize| !vm.rqs[*cpu].queue.borrow().is_empty();
        let from = (1..nr).map(|i| (self.cpu() + i) % nr).find(waits)?;
        if !vm.rqs[from].lock.try_lock_raw(self) {
            return None;
        }
        let taken = vm.rqs[from].queue.borrow_mut().pop_back();
        if let Some(taken) = taken {
            vm.thread(taken).cpu.set(self.cpu());
        }
        vm.rqs[from].lock.unlock_raw(self).await;
        taken
    }

    fn arm_tick(&self, idle: bool) {
        let (vm, costs) = (self.vm(), self.costs());
        let others = !self.rq().queue.borrow().is_empty();
        let ns = if others { costs.guest_slice_ns } else { costs.guest_tick_ns };
        self.vcpu().tick_at.set(if idle { u64::MAX } else { vm.now.get() + ns });
    }

    /// `update_process_times()`, in interrupt context.
    pub(super) async fn tick(&self) {
        self.run(self.costs().tick_ns).await;
        let (v, rq) = (self.vcpu(), self.rq());
        if v.is_idle() {
            return;
        }
        let ran = self.vm().now.get() - rq.picked_at.get();
        if !rq.queue.borrow().is_empty() && ran >= self.costs().guest_slice_ns {
            v.need_resched.set(true);
        }
        self.arm_tick(false);
    }

    /// The idle task (`do_idle()`).
    pub(super) async fn idle(self) {
        loop {
            let v = self.vcpu();
            if v.need_resched.get() || !self.rq().queue.borrow().is_empty() {
                self.schedule_locked().await;
            } else {
                v.tick_at.set(u64::MAX);
                self.exit(Exit::Halt).await;
            }
        }
    }

    // ---- sleeping and waking ----

    /// `set_current_state(TASK_UNINTERRUPTIBLE)`: a wakeup from now on is not lost.
    pub(super) fn prepare_to_sleep(&self) {
        self.vm().thread(self.id()).sleeps.set(true);
    }

    /// `__set_current_state(TASK_RUNNING)`.
    pub(super) fn finish_sleep(&self) {
        self.vm().thread(self.id()).sleeps.set(false);
    }

    /// Exits; another thread runs.
    pub async fn exit_thread(&self) {
        self.prepare_to_sleep();
        self.schedule().await;
    }

    /// `try_to_wake_up()`. `sync`: this thread is about to sleep.
    pub async fn wake(&self, id: ThreadId, sync: bool) {
        let (vm, costs) = (self.vm(), *self.costs());
        let thread = vm.thread(id);
        if !thread.sleeps.get() {
            return;
        }
        self.preempt_disable();
        let on = self.irq_save();
        self.run(costs.wake_ns).await;
        if thread.on_rq.get() {
            // ttwu_runnable(): it is about to sleep.
            let rq = &vm.rqs[thread.cpu.get()];
            rq.lock.lock_raw(self).await;
            if thread.on_rq.get() {
                thread.sleeps.set(false);
            }
            rq.lock.unlock_raw(self).await;
        }
        if thread.sleeps.get() {
            self.activate(&thread, id, sync).await;
        }
        self.irq_restore(on);
        self.preempt_enable().await;
    }

    async fn activate(&self, thread: &Thread, id: ThreadId, sync: bool) {
        let (vm, costs) = (self.vm(), *self.costs());
        let cpu = self.select_cpu(thread.cpu.get(), sync);
        thread.sleeps.set(false);
        thread.on_rq.set(true);
        thread.cpu.set(cpu);
        let rq = &vm.rqs[cpu];
        if cpu != self.cpu() && vm.is_idle(cpu) {
            rq.wake_list.borrow_mut().push_back(id);
            self.exit(Exit::SendIpi(1 << cpu, IRQ_CALL)).await;
            return;
        }
        rq.lock.lock_raw(self).await;
        self.run(costs.wake_locked_ns).await;
        rq.queue.borrow_mut().push_back(id);
        let idle = vm.vcpus[cpu].is_idle();
        if idle {
            vm.vcpus[cpu].need_resched.set(true);
        } else if cpu == self.cpu() {
            self.arm_tick(false);
        }
        rq.lock.unlock_raw(self).await;
        if idle && cpu != self.cpu() {
            self.exit(Exit::SendIpi(1 << cpu, IRQ_RESCHED)).await;
        }
    }

    /// `select_idle_sibling()`: an idle CPU whose vCPU is not preempted (`available_idle_cpu()`)
    /// comes first; a halted one counts as preempted and comes next.
    fn select_cpu(&self, prev: usize, sync: bool) -> usize {
        let vm = self.vm();
        let here = self.cpu();
        if sync && vm.rqs[here].queue.borrow().is_empty() {
            return here;
        }
        let nr = vm.vcpus.len();
        let in_ring = || (0..nr).map(|i| (prev + i) % nr);
        in_ring()
            .find(|cpu| vm.is_idle(*cpu) && !vm.vcpus[*cpu].is_off_cpu())
            .or_else(|| in_ring().find(|cpu| vm.is_idle(*cpu)))
            .unwrap_or(prev)
    }

    /// `sched_ttwu_pending()`, in interrupt context.
    pub(super) async fn serve_wakeups(&self) {
        let rq = self.rq();
        if rq.wake_list.borrow().is_empty() {
            return;
        }
        rq.lock.lock_raw(self).await;
        self.run(self.costs().wake_locked_ns).await;
        let woken = rq.wake_list.take();
        rq.queue.borrow_mut().extend(woken);
        if self.vcpu().is_idle() {
            self.vcpu().need_resched.set(true);
        }
        rq.lock.unlock_raw(self).await;
    }

    /// A new thread, which sleeps (`kthread_create()`).
    pub(super) fn make_thread(
        vm: &Rc<Shared>,
        cpu: usize,
        code: impl AsyncFnOnce(Ctx) + 'static,
    ) -> ThreadId {
        let id = ThreadId(vm.threads.borrow().len());
        let thread = Thread::new(cpu);
        thread.sleeps.set(true);
        thread.on_rq.set(false);
        let cx = Ctx { shared: Rc::clone(vm), cpu: Rc::clone(&thread.cpu), thread: Some(id) };
        thread.frames.borrow_mut().push(Frame::new(Box::pin(async move {
            cx.begin().await;
            code(cx.clone()).await;
            cx.exit_thread().await;
        })));
        vm.threads.borrow_mut().push(Rc::new(thread));
        id
    }

    /// `fork()` of a thread, which does `code` and exits.
    pub async fn spawn(&self, code: impl AsyncFnOnce(Ctx) + 'static) -> ThreadId {
        let id = Self::make_thread(&self.shared, self.cpu(), code);
        self.wake(id, false).await;
        id
    }
}
