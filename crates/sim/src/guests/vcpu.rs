// SPDX-License-Identifier: GPL-2.0-or-later
//! A vCPU: the program of its thread on the host. It runs the guest's code, and what KVM does for
//! it: exits, halts, interrupts and directed yields.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use holdfast_policy::{GuestFacts, VcpuClass, classify};

use super::ctx::{Ctx, HARDIRQ};
use super::qspinlock::{NODES, Node};
use super::sched::ThreadId;
use super::vm::Shared;
use super::word::Word;
use crate::guest::KvmVcpu;
use crate::kernel::TaskId;
use crate::program::{Cx, Program, Step, YieldTo};

/// Code of the guest.
pub(super) type Code = Pin<Box<dyn Future<Output = ()>>>;

/// What code of the guest asks its vCPU for.
pub(super) enum Request {
    Run(u64),
    Spin(u64),
    Exit(Exit),
    /// Another thread of the guest runs (`switch_to()`).
    Switch(ThreadId),
}

/// What KVM does for a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exit {
    /// Nothing more than to take time.
    Nothing,
    /// PAUSE (`pause_interception()`, `handle_pause()`).
    Pause,
    /// The end of `kvm_vcpu_on_spin()`.
    SpinLoopOver,
    /// `KVM_HC_KICK_CPU`.
    Kick(usize),
    /// `KVM_HC_SCHED_YIELD`.
    SchedYield(usize),
    /// An interrupt to the vCPUs of this mask (a write of ICR, or `KVM_HC_SEND_IPI`).
    SendIpi(u64, u32),
    /// HLT.
    Halt,
    /// Polls before it blocks (`kvm_vcpu_halt()`).
    HaltPoll,
}

/// How far a piece of code is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    Ready,
    Run(u64),
    Spin { left: u64, changed: bool },
}

/// Code of the guest on a stack: a thread's, or an interrupt's.
pub(super) struct Frame {
    pub(super) code: RefCell<Code>,
    pub(super) wait: Cell<Wait>,
}

impl Frame {
    pub(super) fn new(code: Code) -> Rc<Self> {
        Rc::new(Self { code: RefCell::new(code), wait: Cell::new(Wait::Ready) })
    }
}

/// Interrupts of the guest.
pub(super) const IRQ_RESCHED: u32 = 1;
pub(super) const IRQ_CALL: u32 = 2;
pub(super) const IRQ_TICK: u32 = 4;

/// Words of a vCPU in the VM's memory: a page for each.
pub(super) const PAGE: usize = 4096;
pub(super) const AT_PREEMPT_COUNT: usize = 0;
pub(super) const AT_CURRENT: usize = 8;
pub(super) const AT_IDLE: usize = 16;
pub(super) const AT_CALL_QUEUE: usize = 24;
/// Four queue nodes of 32 bytes: `next`, `locked`, `count`, and `cpu` and `state` of a PV lock.
pub(super) const AT_QNODES: usize = 64;
/// Entries for function calls to each vCPU, of 16 bytes.
pub(super) const AT_CALLS: usize = 512;

/// A vCPU: KVM's state of it, and the guest's of its CPU.
pub(super) struct Vcpu {
    pub(super) index: usize,
    pub(super) task: Cell<Option<TaskId>>,
    pub(super) kvm: RefCell<Option<Rc<KvmVcpu>>>,
    // The guest's CPU.
    pub(super) preempt_count: Cell<u32>,
    pub(super) irqs_on: Cell<bool>,
    pub(super) need_resched: Cell<bool>,
    pub(super) in_user: Cell<bool>,
    pub(super) current: Cell<ThreadId>,
    pub(super) idle: Cell<ThreadId>,
    pending: Cell<u32>,
    irq: RefCell<Option<Rc<Frame>>>,
    pub(super) tick_at: Cell<u64>,
    pub(super) nodes: [Node; NODES],
    // KVM's vCPU.
    exit: Cell<Option<(Exit, u64)>>,
    pv_unhalted: Cell<bool>,
    blocked: Cell<bool>,
    halted_at: Cell<u64>,
    halt_poll_ns: Cell<u64>,
    pub(super) running: Cell<bool>,
    /// Touched whenever the vCPU loses its CPU.
    pub(super) left_cpu: Word<()>,
    ready: Cell<bool>,
    preempted: Cell<bool>,
    preempted_in_kernel: Cell<bool>,
    in_spin_loop: Cell<bool>,
    dy_eligible: Cell<bool>,
    ple_left: Cell<u64>,
    ple_window: Cell<u64>,
    // Its thread's CPU time.
    step_began: Cell<u64>,
    switches_ns: Cell<u64>,
}

impl Vcpu {
    pub(super) fn new(index: usize, ple_window_ns: u64) -> Self {
        Self {
            index,
            task: Cell::new(None),
            kvm: RefCell::default(),
            // The idle task runs first, with preemption off.
            preempt_count: Cell::new(1),
            irqs_on: Cell::new(true),
            need_resched: Cell::new(false),
            in_user: Cell::new(false),
            current: Cell::new(ThreadId(index)),
            idle: Cell::new(ThreadId(index)),
            pending: Cell::new(0),
            irq: RefCell::default(),
            tick_at: Cell::new(u64::MAX),
            nodes: Default::default(),
            exit: Cell::new(None),
            pv_unhalted: Cell::new(false),
            blocked: Cell::new(false),
            halted_at: Cell::new(0),
            halt_poll_ns: Cell::new(0),
            running: Cell::new(false),
            left_cpu: Word::default(),
            ready: Cell::new(false),
            preempted: Cell::new(false),
            preempted_in_kernel: Cell::new(false),
            in_spin_loop: Cell::new(false),
            dy_eligible: Cell::new(false),
            ple_left: Cell::new(ple_window_ns),
            ple_window: Cell::new(ple_window_ns),
            step_began: Cell::new(0),
            switches_ns: Cell::new(0),
        }
    }

    pub(super) fn page(&self) -> usize {
        self.index * PAGE
    }

    pub(super) fn add_preempt_count(&self, vm: &Shared, add: u32) {
        let count = self.preempt_count.get().wrapping_add(add);
        self.preempt_count.set(count);
        vm.memory.write_u32(self.page() + AT_PREEMPT_COUNT, count);
    }

    /// `vcpu_is_preempted()`: what the steal-time record says; a halted vCPU is as well.
    pub(super) fn is_off_cpu(&self) -> bool {
        !self.running.get()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.current.get() == self.idle.get()
    }

    /// What wakes it from a halt.
    fn has_event(&self) -> bool {
        self.pv_unhalted.get() || (self.pending.get() != 0 && self.irqs_on.get())
    }

    /// Posts an interrupt.
    pub(super) fn post(&self, vm: &Shared, irq: u32) {
        self.pending.set(self.pending.get() | irq);
        self.notify(vm);
    }

    /// `kvm_vcpu_kick()`.
    fn notify(&self, vm: &Shared) {
        if self.blocked.get() {
            self.ready.set(true);
            vm.wakes.borrow_mut().push(self.index);
        } else {
            vm.pokes.borrow_mut().push(self.index);
        }
    }

    /// A word that this vCPU spins on has changed.
    pub(super) fn word_changed(&self, vm: &Shared) {
        let mark = |frame: &Frame| {
            if let Wait::Spin { left, .. } = frame.wait.get() {
                frame.wait.set(Wait::Spin { left, changed: true });
            }
        };
        if let Some(irq) = &*self.irq.borrow() {
            mark(irq);
        }
        vm.frames_of(self.current.get(), |frames| frames.iter().for_each(|frame| mark(frame)));
        vm.pokes.borrow_mut().push(self.index);
    }

    /// The class that its memory shows, as `hf_read_class()` reads it.
    fn class(&self, vm: &Shared) -> VcpuClass {
        let page = self.page();
        let word = |at: usize| vm.memory.read_u32(page + at);
        let task = |at: usize| vm.memory.read_u64(page + at);
        classify(&GuestFacts {
            preempt_count: word(AT_PREEMPT_COUNT),
            at_head: word(AT_QNODES + 8),
            queued: word(AT_QNODES + 12),
            idle: u32::from(task(AT_CURRENT) == task(AT_IDLE)),
            ..GuestFacts::default()
        })
    }
}

/// The program of a vCPU's thread.
pub(super) struct Run {
    pub(super) vm: Rc<Shared>,
    pub(super) index: usize,
}

impl Program for Run {
    fn next(&mut self, cx: &Cx<'_>) -> Step {
        let v = &self.vm.vcpus[self.index];
        self.account(v, cx);
        loop {
            if let Some(step) = self.advance(v, cx) {
                self.apply(cx);
                v.step_began.set(cx.cpu_ns());
                v.switches_ns.set(0);
                return step;
            }
            self.apply(cx);
        }
    }

    /// `kvm_arch_vcpu_load()`.
    fn switched_in(&mut self, cx: &Cx<'_>) {
        let v = &self.vm.vcpus[self.index];
        v.switches_ns.set(v.switches_ns.get() + cx.kernel.config().switch_ns);
        // However soon the guest is to go on, it is entered first.
        let (exit, left) = v.exit.get().unwrap_or((Exit::Nothing, 0));
        if !v.blocked.get() {
            v.exit.set(Some((exit, left + self.vm.costs.load_ns)));
        }
        v.running.set(true);
        v.ready.set(false);
        v.preempted.set(false);
        // shrink_ple_window()
        v.ple_window.set(self.vm.costs.ple_window_ns);
        v.ple_left.set(v.ple_left.get().min(v.ple_window.get()));
    }

    /// `kvm_sched_out()`, `kvm_arch_vcpu_put()`.
    fn switched_out(&mut self, cx: &Cx<'_>, preempted: bool) {
        let v = &self.vm.vcpus[self.index];
        v.running.set(false);
        if preempted {
            v.ready.set(true);
            v.preempted.set(true);
            v.preempted_in_kernel.set(!v.in_user.get());
            let class = v.class(&self.vm);
            self.vm.preempted(class);
        }
        // Owners of mutexes are waited for while they run: the steal-time record changes.
        v.left_cpu.touch(&self.vm);
        self.apply(cx);
    }
}

impl Run {
    /// Carries out what was asked for meanwhile.
    fn apply(&self, cx: &Cx<'_>) {
        let task = |index: usize| self.vm.vcpus[index].task.get();
        for index in self.vm.pokes.take() {
            if index != self.index {
                task(index).into_iter().for_each(|task| cx.poke(task));
            }
        }
        for index in self.vm.wakes.take() {
            task(index).into_iter().for_each(|task| cx.wake(task));
        }
        if let Some(text) = self.vm.error.take() {
            cx.violation(text);
        }
    }

    fn top(&self, v: &Vcpu) -> Rc<Frame> {
        if let Some(irq) = &*v.irq.borrow() {
            return Rc::clone(irq);
        }
        self.vm.frames_of(v.current.get(), |frames| Rc::clone(frames.last().expect("has code")))
    }

    /// Takes the CPU time used since the last step from what is under way.
    fn account(&self, v: &Vcpu, cx: &Cx<'_>) {
        self.vm.now.set(cx.now());
        let used = (cx.cpu_ns() - v.step_began.get()).saturating_sub(v.switches_ns.get());
        if v.blocked.get() {
            return;
        }
        let mut used = used;
        if let Some((exit, left)) = v.exit.get() {
            v.exit.set(Some((exit, left.saturating_sub(used))));
            used = used.saturating_sub(left);
        }
        let top = self.top(v);
        match top.wait.get() {
            Wait::Ready => {}
            Wait::Run(left) => top.wait.set(Wait::Run(left.saturating_sub(used))),
            Wait::Spin { left, changed } => {
                top.wait.set(Wait::Spin { left: left.saturating_sub(used), changed });
                v.ple_left.set(v.ple_left.get().saturating_sub(used));
            }
        }
    }

    /// One thing that is due; a step if time has to pass.
    fn advance(&self, v: &Vcpu, cx: &Cx<'_>) -> Option<Step> {
        let costs = &self.vm.costs;
        if v.blocked.get() {
            if !v.has_event() {
                return Some(Step::Block);
            }
            self.unblock(v, cx);
            return None;
        }
        match v.exit.get() {
            Some((Exit::HaltPoll, left)) if left != 0 && !v.has_event() => {
                return Some(Step::Spin(left));
            }
            Some((exit, left)) if left == 0 || exit == Exit::HaltPoll => {
                v.exit.set(None);
                return self.exit_is_done(v, exit, cx);
            }
            Some((_, left)) => return Some(Step::Spin(left)),
            None => {}
        }
        if v.tick_at.get() <= cx.now() {
            v.tick_at.set(u64::MAX);
            v.pending.set(v.pending.get() | IRQ_TICK);
        }
        if v.pending.get() != 0 && v.irqs_on.get() && v.irq.borrow().is_none() {
            self.interrupt(v);
            v.exit.set(Some((Exit::Nothing, costs.irq_ns)));
            return None;
        }
        let until_tick = v.tick_at.get().saturating_sub(cx.now()).max(1);
        let top = self.top(v);
        match top.wait.get() {
            Wait::Run(left) if left != 0 => Some(Step::Spin(left.min(until_tick))),
            Wait::Spin { left, changed: false } if left != 0 => {
                if !self.vm.features.pause_exits {
                    return Some(Step::Spin(left.min(until_tick)));
                }
                if v.ple_left.get() != 0 {
                    return Some(Step::Spin(left.min(v.ple_left.get()).min(until_tick)));
                }
                // grow_ple_window()
                let window = v.ple_window.get();
                v.ple_window.set((window + window / 2).min(costs.ple_window_max_ns));
                v.ple_left.set(v.ple_window.get());
                v.exit.set(Some((Exit::Pause, costs.exit_ns)));
                None
            }
            wait => {
                if let Wait::Spin { left, .. } = wait {
                    self.vm.answer.set(left);
                }
                self.poll(v, &top);
                None
            }
        }
    }

    fn poll(&self, v: &Vcpu, top: &Frame) {
        top.wait.set(Wait::Ready);
        let mut context = Context::from_waker(Waker::noop());
        let over = top.code.borrow_mut().as_mut().poll(&mut context);
        match (over, self.vm.request.take()) {
            (Poll::Ready(()), _) => self.code_is_over(v),
            (Poll::Pending, Some(Request::Run(ns))) => top.wait.set(Wait::Run(ns)),
            (Poll::Pending, Some(Request::Spin(left))) => {
                top.wait.set(Wait::Spin { left, changed: false });
            }
            (Poll::Pending, Some(Request::Exit(exit))) => {
                let ns =
                    if exit == Exit::Halt { self.vm.costs.halt_ns } else { self.vm.costs.exit_ns };
                v.exit.set(Some((exit, ns)));
            }
            (Poll::Pending, Some(Request::Switch(next))) => {
                v.current.set(next);
                self.vm.memory.write_u64(v.page() + AT_CURRENT, next.address());
            }
            (Poll::Pending, None) => unreachable!("code waits for its vCPU only"),
        }
    }

    fn code_is_over(&self, v: &Vcpu) {
        if v.irq.borrow_mut().take().is_none() {
            self.vm.frames_of(v.current.get(), |frames| {
                frames.pop();
            });
            return;
        }
        // irqentry_exit(): the thread is preempted.
        if v.need_resched.get() && v.preempt_count.get() == 0 {
            let cx = self.vm.ctx_of(v.current.get(), &self.vm);
            self.vm.frames_of(v.current.get(), |frames| {
                let in_user = cx.vcpu().in_user.get();
                frames.push(Frame::new(Box::pin(async move {
                    cx.vcpu().in_user.set(false);
                    cx.schedule().await;
                    cx.vcpu().in_user.set(in_user);
                })));
            });
        }
    }

    /// An interrupt is delivered: all that are pending are served one after another.
    fn interrupt(&self, v: &Vcpu) {
        let cx =
            Ctx { shared: Rc::clone(&self.vm), cpu: Rc::new(Cell::new(v.index)), thread: None };
        let pending = v.pending.take();
        let in_user = v.in_user.replace(false);
        cx.irq_save();
        v.add_preempt_count(&self.vm, HARDIRQ);
        let code = async move {
            if pending & IRQ_CALL != 0 {
                cx.serve_calls().await;
            }
            if pending & IRQ_TICK != 0 {
                cx.tick().await;
            }
            cx.count_sub(HARDIRQ);
            cx.irq_restore(true);
            cx.vcpu().in_user.set(in_user);
        };
        *v.irq.borrow_mut() = Some(Frame::new(Box::pin(code)));
    }

    fn exit_is_done(&self, v: &Vcpu, exit: Exit, cx: &Cx<'_>) -> Option<Step> {
        self.vm.count_exit(exit);
        match exit {
            Exit::Nothing => None,
            Exit::Pause => {
                self.on_spin(v, cx);
                None
            }
            Exit::SpinLoopOver => {
                self.set_in_spin_loop(v, false);
                v.dy_eligible.set(false);
                None
            }
            Exit::Kick(target) => {
                // kvm_pv_kick_cpu_op(), kvm_sched_yield().
                let to = &self.vm.vcpus[target];
                to.pv_unhalted.set(true);
                to.notify(&self.vm);
                self.apply(cx);
                self.sched_yield(v, target, 5, cx);
                None
            }
            Exit::SchedYield(target) => {
                self.sched_yield(v, target, 11, cx);
                None
            }
            Exit::SendIpi(targets, irq) => {
                for to in self.vm.vcpus.iter().filter(|to| targets >> to.index & 1 != 0) {
                    to.post(&self.vm, irq);
                }
                None
            }
            Exit::Halt => {
                v.halted_at.set(cx.now());
                if v.has_event() {
                    self.woken(v, cx, false);
                    return None;
                }
                // kvm_vcpu_can_poll()
                let alone = cx.kernel.nr_running(cx.cpu()) == 1;
                if v.halt_poll_ns.get() != 0 && alone {
                    v.exit.set(Some((Exit::HaltPoll, v.halt_poll_ns.get())));
                } else {
                    v.blocked.set(true);
                }
                None
            }
            Exit::HaltPoll => {
                if v.has_event() {
                    self.woken(v, cx, false);
                } else {
                    v.blocked.set(true);
                }
                None
            }
        }
    }

    fn unblock(&self, v: &Vcpu, cx: &Cx<'_>) {
        v.blocked.set(false);
        self.woken(v, cx, true);
        v.exit.set(Some((Exit::Nothing, self.vm.costs.halt_ns)));
    }

    /// The end of `kvm_vcpu_halt()`: the time to poll grows and shrinks.
    fn woken(&self, v: &Vcpu, cx: &Cx<'_>, blocked: bool) {
        v.pv_unhalted.set(false);
        let (most, poll) = (self.vm.costs.halt_poll_max_ns, v.halt_poll_ns.get());
        let halted = cx.now() - v.halted_at.get();
        /// `halt_poll_ns_grow_start`
        const START: u64 = 10_000;
        if blocked && most != 0 && halted > poll {
            if poll != 0 && halted > most {
                v.halt_poll_ns.set(if poll / 2 < START { 0 } else { poll / 2 });
            } else if poll < most && halted < most {
                v.halt_poll_ns.set((poll * 2).max(START).min(most));
            }
        }
    }

    // ---- directed yields ----

    /// `kvm_sched_yield()`.
    fn sched_yield(&self, v: &Vcpu, target: usize, hypercall: u64, cx: &Cx<'_>) {
        let to = &self.vm.vcpus[target];
        if cx.kernel.nr_running(cx.cpu()) == 1 || !to.ready.get() || target == v.index {
            return;
        }
        if let Some(kvm) = &*v.kvm.borrow() {
            kvm.set_rax(hypercall);
        }
        if let Some(task) = to.task.get() {
            cx.yield_to(task);
        }
    }

    /// `kvm_vcpu_on_spin()`.
    fn on_spin(&self, v: &Vcpu, cx: &Cx<'_>) {
        let vm = &self.vm;
        let in_kernel = !v.in_user.get();
        self.set_in_spin_loop(v, true);
        let nr = vm.vcpus.len();
        let start = vm.last_boosted.get() + 1;
        let mut tries = 3;
        for index in (0..nr).map(|i| (start + i) % nr).filter(|index| *index != v.index) {
            let to = &vm.vcpus[index];
            if !to.ready.get() || (to.blocked.get() && !to.has_event()) {
                continue;
            }
            if to.preempted.get()
                && in_kernel
                && to.pending.get() == 0
                && !to.preempted_in_kernel.get()
            {
                continue;
            }
            // kvm_vcpu_eligible_for_directed_yield()
            let eligible = !to.in_spin_loop.get() || to.dy_eligible.get();
            if to.in_spin_loop.get() {
                to.dy_eligible.set(!to.dy_eligible.get());
            }
            let (true, Some(task)) = (eligible, to.task.get()) else { continue };
            match cx.yield_to(task) {
                YieldTo::Yielded => {
                    vm.last_boosted.set(index);
                    break;
                }
                YieldTo::NoPoint => {
                    tries -= 1;
                    if tries == 0 {
                        break;
                    }
                }
                YieldTo::Refused => {}
            }
        }
        // A yield that was granted happens inside yield_to(): the vCPU is in its spin loop then.
        v.exit.set(Some((Exit::SpinLoopOver, 1)));
    }

    fn set_in_spin_loop(&self, v: &Vcpu, spins: bool) {
        v.in_spin_loop.set(spins);
        if let Some(kvm) = &*v.kvm.borrow() {
            kvm.set_in_spin_loop(spins);
        }
    }
}
