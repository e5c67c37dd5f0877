// SPDX-License-Identifier: GPL-2.0-or-later
//! The queues of contended locks.
//!
//! A waiter's queue node points to its successor's, which lies in that CPU's per-CPU area. The
//! pointer is guest-virtual, and the area's address is known as guest-physical; the two differ by
//! the start of the direct map. `__per_cpu_offset` is not enough: up to 6.14 it is the area's
//! address, from 6.15 on it is the address minus the kernel's (randomised) link address of the
//! section.

use crate::{
    address::{Gpa, Gva},
    error::ReadError,
    facts::VcpuFacts,
    memory::GuestMemory,
    resolved::ResolvedGuest,
};

/// One place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiting {
    /// The vCPU that waits.
    pub vcpu_idx: u32,
    /// Index of the queue node with which it waits; above 0 in an interrupt of a waiter.
    pub node: u32,
}

/// The end of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueEnd {
    /// At a waiter without a successor, so far.
    Tail,
    /// At a pointer to a node that is not in use: the guest ran on while it was read.
    Moved,
    /// At a pointer that leads to no queue node of a known vCPU.
    Foreign(Gva),
    /// At a waiter that is in a queue already: a circle, or two waiters with the same successor.
    /// Guest memory is broken, or changed while it was read.
    Repeated,
}

/// The waiters for one lock that are linked to each other, first in line first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The waiters. No place appears twice in all queues of an answer.
    pub waiting: Vec<Waiting>,
    /// The end of the queue, after the last waiter.
    pub end: QueueEnd,
}

impl Queue {
    /// The vCPU that gets the lock next; `None` if the queue has no sound end.
    pub fn head(&self) -> Option<Waiting> {
        self.waiting.first().copied().filter(|_| self.end != QueueEnd::Repeated)
    }
}

impl ResolvedGuest {
    /// Reads all vCPUs and orders the waiters for contended locks, one queue per lock.
    ///
    /// A waiter without a predecessor is the head of its queue, whatever the value of its `locked`
    /// word. There is one exception: for the few instructions between taking its place and linking
    /// itself to its predecessor, a waiter looks like the head of a queue of its own. The order of
    /// the result is that of the heads in [`vcpus`](Self::vcpus).
    pub fn queues(&self, mem: &dyn GuestMemory) -> Result<Vec<Queue>, ReadError> {
        let facts: Vec<VcpuFacts> = self
            .vcpus
            .iter()
            .map(|vcpu| self.facts(mem, vcpu.vcpu_idx))
            .collect::<Result<_, _>>()?;
        self.queues_of(&facts)
    }

    /// [`queues`](Self::queues) from facts already read, one for each of [`vcpus`](Self::vcpus).
    pub fn queues_of(&self, facts: &[VcpuFacts]) -> Result<Vec<Queue>, ReadError> {
        let direct_map = self.direct_map.ok_or(ReadError::NoDirectMap)?;
        let Some(layout) = self.layout.queue else { return Ok(Vec::new()) };
        // (vCPU index, node index) of each node in use, and the target of its pointer.
        let places: Vec<(usize, u32)> = facts
            .iter()
            .take(self.vcpus.len())
            .enumerate()
            .flat_map(|(vcpu, facts)| (0..facts.nodes().len() as u32).map(move |n| (vcpu, n)))
            .collect();
        let links: Vec<Link> = places
            .iter()
            .map(|&(vcpu, node)| {
                let Some(next) = facts[vcpu].nodes()[node as usize].next else { return Link::None };
                let gpa = next.get().checked_sub(direct_map).map(Gpa::new);
                match gpa.and_then(|gpa| self.node_at(gpa, layout.at, layout.node_size)) {
                    Some(place) => match places.binary_search(&place) {
                        Ok(index) => Link::To(index),
                        Err(_) => Link::Idle,
                    },
                    None => Link::Foreign(next),
                }
            })
            .collect();
        let mut has_predecessor = vec![false; places.len()];
        for link in &links {
            if let Link::To(index) = link {
                has_predecessor[*index] = true;
            }
        }
        let mut taken = vec![false; places.len()];
        let mut queues = Vec::new();
        // Heads first. The remaining places are in circles, and each circle is cut at one place.
        let heads = (0..places.len()).filter(|&i| !has_predecessor[i]);
        for start in heads.chain(0..places.len()) {
            if !taken[start] {
                queues.push(self.follow(start, &places, &links, &mut taken));
            }
        }
        Ok(queues)
    }

    /// Walks from `start` and marks the places that it passes. It ends after at most as many steps
    /// as there are places.
    fn follow(
        &self,
        start: usize,
        places: &[(usize, u32)],
        links: &[Link],
        taken: &mut [bool],
    ) -> Queue {
        let (mut waiting, mut at) = (Vec::new(), start);
        let end = loop {
            taken[at] = true;
            let (vcpu, node) = places[at];
            waiting.push(Waiting { vcpu_idx: self.vcpus[vcpu].vcpu_idx, node });
            match links[at] {
                Link::None => break QueueEnd::Tail,
                Link::Idle => break QueueEnd::Moved,
                Link::Foreign(next) => break QueueEnd::Foreign(next),
                Link::To(next) if taken[next] => break QueueEnd::Repeated,
                Link::To(next) => at = next,
            }
        };
        Queue { waiting, end }
    }

    /// The vCPU and the node at `gpa`.
    fn node_at(&self, gpa: Gpa, nodes_at: u32, node_size: u32) -> Option<(usize, u32)> {
        let nr_nodes = self.layout.queue?.nr_nodes;
        self.vcpus.iter().enumerate().find_map(|(index, vcpu)| {
            let first = vcpu.area.checked_add(nodes_at.into())?;
            let offset = gpa.offset_from(first)?;
            let (node, rest) = (offset / u64::from(node_size), offset % u64::from(node_size));
            (rest == 0 && node < u64::from(nr_nodes)).then_some((index, node as u32))
        })
    }
}

/// The target of a node's pointer.
#[derive(Clone, Copy)]
enum Link {
    None,
    /// To a node in use: index of its place.
    To(usize),
    /// To a node that is not in use.
    Idle,
    Foreign(Gva),
}
