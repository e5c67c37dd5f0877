// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest kernel's side of a CPU: time, preemption count, interrupts.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::costs::Costs;
use super::sched::ThreadId;
use super::vcpu::{Exit, Request, Vcpu};
use super::vm::Shared;

/// `HARDIRQ_OFFSET` of `include/linux/preempt.h`.
pub(super) const HARDIRQ: u32 = 1 << 16;

/// A thread of a guest, or an interrupt, as it sees its CPU.
#[derive(Clone)]
pub struct Ctx {
    pub(super) shared: Rc<Shared>,
    pub(super) cpu: Rc<Cell<usize>>,
    /// None: an interrupt.
    pub(super) thread: Option<ThreadId>,
}

/// Asks the vCPU for something, and goes on with its answer.
struct Ask<'a> {
    shared: &'a Shared,
    request: Option<Request>,
}

impl Future for Ask<'_> {
    type Output = u64;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u64> {
        match self.request.take() {
            Some(request) => {
                self.shared.request.set(Some(request));
                Poll::Pending
            }
            None => Poll::Ready(self.shared.answer.get()),
        }
    }
}

impl Ctx {
    pub(super) fn vm(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn vcpu(&self) -> &Vcpu {
        &self.shared.vcpus[self.cpu.get()]
    }

    /// The guest's number of the CPU.
    pub fn cpu(&self) -> usize {
        self.cpu.get()
    }

    /// Costs of this VM.
    pub fn costs(&self) -> &Costs {
        &self.shared.costs
    }

    pub(super) async fn ask(&self, request: Request) -> u64 {
        Ask { shared: &self.shared, request: Some(request) }.await
    }

    /// Runs in the kernel for so many nanoseconds of CPU time.
    pub async fn run(&self, ns: u64) {
        if ns != 0 {
            self.ask(Request::Run(ns)).await;
        }
    }

    /// Runs in user space.
    pub async fn user(&self, ns: u64) {
        self.vcpu().in_user.set(true);
        self.run(ns).await;
        self.vcpu().in_user.set(false);
    }

    /// Spins for up to so many nanoseconds, or until a word that is watched changes. What is left.
    pub(super) async fn spin(&self, ns: u64) -> u64 {
        self.ask(Request::Spin(ns)).await
    }

    pub(super) async fn exit(&self, exit: Exit) -> u64 {
        self.ask(Request::Exit(exit)).await
    }

    /// A random number below `bound`.
    pub fn random(&self, bound: u64) -> u64 {
        self.shared.random(bound)
    }

    /// One operation is done.
    pub fn count(&self) {
        self.shared.ops.set(self.shared.ops.get() + 1);
    }

    // ---- preemption and interrupts ----

    pub(super) fn count_add(&self, add: u32) {
        self.vcpu().add_preempt_count(&self.shared, add);
    }

    pub(super) fn count_sub(&self, sub: u32) {
        self.vcpu().add_preempt_count(&self.shared, sub.wrapping_neg());
    }

    /// `preempt_disable()`.
    pub fn preempt_disable(&self) {
        self.count_add(1);
    }

    /// `preempt_enable()`: another thread may run by then.
    pub async fn preempt_enable(&self) {
        self.count_sub(1);
        self.maybe_schedule().await;
    }

    async fn maybe_schedule(&self) {
        let v = self.vcpu();
        let may = v.preempt_count.get() == 0 && v.irqs_on.get() && self.thread.is_some();
        if may && v.need_resched.get() {
            Box::pin(self.schedule()).await;
        }
    }

    /// `local_irq_save()`: were they on?
    pub(super) fn irq_save(&self) -> bool {
        self.vcpu().irqs_on.replace(false)
    }

    /// `local_irq_restore()`.
    pub(super) fn irq_restore(&self, on: bool) {
        self.vcpu().irqs_on.set(on);
    }
}
