// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of one vCPU.
//!
//! Waiters differ from holders only where locks have queues: with paravirtual spinlocks, and with
//! native ones (`nopvspin`). A guest that sees a hypervisor but no `KVM_FEATURE_PV_UNHALT` falls
//! back to test-and-set locks (`virt_spin_lock` of arch/x86/include/asm/qspinlock.h): its queue
//! nodes stay unused and each of its waiters looks like a holder. So does the one waiter that spins
//! on the pending bit.

use holdfast_policy::{GuestFacts, VcpuClass, classify, preempt_count};

use crate::{
    address::Gva, error::ReadError, layout::QUEUE_NODES_MAX, memory::GuestMemory,
    resolved::ResolvedGuest,
};

/// One of a vCPU's queue nodes, in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueNode {
    /// The successor's node; `None` at the tail of the queue.
    pub next: Option<Gva>,
    /// Has the predecessor handed over the queue's head?
    ///
    /// If set, the vCPU is at the head of the queue. If not set, it is not at the head, *or* it
    /// never had a predecessor: a vCPU that finds the queue empty goes straight to the lock, and
    /// its word stays 0 (`queued_spin_lock_slowpath`). [`ResolvedGuest::queues`] distinguishes the
    /// two.
    pub locked: bool,
}

/// The words of one vCPU.
///
/// The words of a vCPU that ran meanwhile need not belong to the same moment. The words of a vCPU
/// that is off the CPU do, and keep their values until it runs again (except that other CPUs set
/// `next` and `locked`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuFacts {
    /// Preemption count as of [`holdfast_policy::preempt_count`].
    pub preempt_count: u32,
    /// Number of queue nodes in use: the nesting depth of queued-spinlock slow paths.
    pub queued: u32,
    nodes: [QueueNode; QUEUE_NODES_MAX as usize],
    /// Address of the running task's `task_struct`, where the kernel's layout has it.
    pub task: Option<Gva>,
    /// Is it the idle task? `None` where the kernel's layout lacks it.
    pub idle: Option<bool>,
    /// Is a function call from another CPU pending, whose sender may spin until it has run? `None`
    /// where the kernel's layout lacks the list of calls.
    pub calls_pending: Option<bool>,
}

impl VcpuFacts {
    /// The queue nodes in use, the outermost first.
    pub fn nodes(&self) -> &[QueueNode] {
        &self.nodes[..self.nodes.len().min(self.queued as usize)]
    }

    /// The node with which the vCPU waits at the moment, if it waits. An interrupt of a waiter may
    /// wait for another lock, with a node of its own.
    pub fn waiting(&self) -> Option<QueueNode> {
        self.nodes().last().copied()
    }

    /// The input of the policy.
    pub fn guest_facts(&self) -> GuestFacts {
        GuestFacts {
            preempt_count: self.preempt_count,
            queued: self.queued,
            at_head: self.waiting().is_some_and(|node| node.locked).into(),
            idle: (self.idle == Some(true)).into(),
        }
    }

    /// The class according to this vCPU's own words.
    pub fn class(&self) -> VcpuClass {
        classify(&self.guest_facts())
    }
}

impl ResolvedGuest {
    /// Reads the words of vCPU `vcpu_idx`.
    pub fn facts(&self, mem: &dyn GuestMemory, vcpu_idx: u32) -> Result<VcpuFacts, ReadError> {
        let vcpu = self.vcpu(vcpu_idx)?;
        let long = |at: Option<u32>| at.map(|at| mem.read_u64(vcpu.hva(at))).transpose();
        let (task, idle) = (long(self.layout.current_task)?, long(self.layout.idle_task)?);
        let mut facts = VcpuFacts {
            preempt_count: preempt_count(
                mem.read_u32(vcpu.hva(self.layout.preempt_count))?,
                self.layout.wide_count,
            ),
            task: task.filter(|task| *task != 0).map(Gva::new),
            idle: task.zip(idle).map(|(task, idle)| task == idle),
            calls_pending: long(self.layout.call_queue)?.map(|first| first != 0),
            ..VcpuFacts::default()
        };
        let Some(queue) = self.layout.queue else { return Ok(facts) };
        facts.queued = mem.read_u32(vcpu.hva(queue.at + queue.count))?;
        // A kernel that runs out of nodes spins without a node, and still counts it (_Q_MAX_NODES).
        for index in 0..facts.queued.min(queue.nr_nodes).min(QUEUE_NODES_MAX) {
            let at = queue.at + index * queue.node_size;
            let next = mem.read_u64(vcpu.hva(at + queue.next))?;
            facts.nodes[index as usize] = QueueNode {
                next: (next != 0).then_some(Gva::new(next)),
                locked: mem.read_u32(vcpu.hva(at + queue.locked))? != 0,
            };
        }
        facts.queued = facts.queued.min(queue.nr_nodes);
        Ok(facts)
    }
}
