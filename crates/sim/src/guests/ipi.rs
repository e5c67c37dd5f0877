// SPDX-License-Identifier: GPL-2.0-or-later
//! Function calls to other CPUs (`kernel/smp.c`), and TLB shootdowns by them.

use std::cell::{Cell, RefCell};

use super::ctx::Ctx;
use super::sched::ThreadId;
use super::vcpu::{AT_CALL_QUEUE, AT_CALLS, Exit, IRQ_CALL};
use super::vm::{DIRECT_MAP, Shared};
use super::word::Word;
use crate::program::FOREVER;

/// `CSD_TYPE_SYNC | CSD_FLAG_LOCK`
const PENDING: u32 = 0x11;

/// Calls that are pending: of each CPU, the senders that wait.
pub(super) struct Calls {
    queues: Vec<RefCell<Vec<usize>>>,
    /// Of each sender: how many have not answered yet (`cfd->csd`).
    unanswered: Vec<Word<usize>>,
    /// Of each sender: what its call takes.
    ns: Vec<Cell<u64>>,
}

impl Calls {
    pub(super) fn new(nr: usize) -> Self {
        Self {
            queues: (0..nr).map(|_| RefCell::default()).collect(),
            unanswered: (0..nr).map(|_| Word::new(0)).collect(),
            ns: vec![Cell::new(0); nr],
        }
    }
}

/// Where the entry of `sender` for `target` lies.
fn call_at(sender: usize, target: usize) -> usize {
    sender * super::vcpu::PAGE + AT_CALLS + target * 16
}

impl Shared {
    /// Links the entries of a CPU's queue in memory: the newest is the head.
    fn link_calls(&self, target: usize) {
        let mut next = 0;
        for sender in self.calls.queues[target].borrow().iter() {
            let at = call_at(*sender, target);
            self.memory.write_u64(at, next);
            next = DIRECT_MAP + at as u64;
        }
        self.memory.write_u64(self.vcpus[target].page() + AT_CALL_QUEUE, next);
    }

    /// Wakes a thread as an interrupt of its CPU would; for the owner of the VM.
    pub(super) fn wake_from_outside(&self, id: ThreadId, cpu: usize) {
        self.adopt(id, cpu);
        self.vcpus[cpu].post(self, IRQ_CALL);
        // The caller wakes the vCPU's thread.
        self.wakes.take();
        self.pokes.take();
    }
}

impl Ctx {
    /// `smp_call_function_many_cond()`: calls the CPUs of this mask, each for so many nanoseconds,
    /// and waits for their answers with preemption off.
    pub async fn call_many(&self, targets: u64, ns: u64) {
        self.preempt_disable();
        let (vm, me) = (self.vm(), self.cpu());
        let targets = targets & !(1 << me);
        let unanswered = &vm.calls.unanswered[me];
        vm.calls.ns[me].set(ns);
        unanswered.set(vm, targets.count_ones() as usize);
        for target in (0..vm.vcpus.len()).filter(|cpu| targets >> cpu & 1 != 0) {
            vm.memory.write_u32(call_at(me, target) + 8, PENDING);
            vm.calls.queues[target].borrow_mut().push(me);
            vm.link_calls(target);
        }
        if targets != 0 {
            self.exit(Exit::SendIpi(targets, IRQ_CALL)).await;
            // kvm_smp_send_call_func_ipi(): yields to the first that is preempted.
            let is_preempted = |cpu: &usize| {
                targets >> cpu & 1 != 0 && !vm.vcpus[*cpu].is_idle() && vm.vcpus[*cpu].is_off_cpu()
            };
            let preempted = (0..vm.vcpus.len()).find(is_preempted);
            if let (true, Some(cpu)) = (vm.features.pv_sched_yield, preempted) {
                self.exit(Exit::SchedYield(cpu)).await;
            }
        }
        // The sender's own.
        self.run(ns).await;
        // csd_lock_wait()
        while unanswered.spin_until(self, FOREVER, |nr| nr == 0).await == 0 {}
        self.preempt_enable().await;
    }

    /// `flush_tlb_mm_range()`: of the CPUs in this mask. A vCPU that is preempted flushes when it
    /// runs (`kvm_flush_tlb_multi()`).
    pub async fn flush_tlb(&self, targets: u64) {
        let vm = self.vm();
        let waited_for = |cpu: &usize| {
            targets >> cpu & 1 != 0
                && !(vm.features.pv_tlb_flush && vm.vcpus[*cpu].is_off_cpu())
                && !vm.vcpus[*cpu].is_idle()
        };
        let mask = (0..vm.vcpus.len()).filter(waited_for).fold(0, |mask, cpu| mask | 1 << cpu);
        self.call_many(mask, self.costs().flush_ns).await;
    }

    /// `flush_smp_call_function_queue()`, in interrupt context.
    pub(super) async fn serve_calls(&self) {
        let (vm, me) = (self.vm(), self.cpu());
        let senders = vm.calls.queues[me].take();
        vm.link_calls(me);
        for sender in senders {
            self.run(vm.calls.ns[sender].get()).await;
            vm.memory.write_u32(call_at(sender, me) + 8, 0);
            let unanswered = &vm.calls.unanswered[sender];
            unanswered.set(vm, unanswered.get() - 1);
        }
        self.serve_wakeups().await;
    }
}
