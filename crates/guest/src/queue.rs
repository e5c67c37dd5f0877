// SPDX-License-Identifier: GPL-2.0-or-later
//! Who waits for a contended lock, in which order.
//!
//! A waiter's queue node points to its successor's, which lies in that CPU's per-CPU area. The
//! pointer is guest-virtual and the area's address is known guest-physical; the two differ by the
//! start of the direct map. `__per_cpu_offset` alone would not do: up to 6.14 it is the area's
//! address, from 6.15 on it is that minus the kernel's (randomised) link address of the section.

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
    /// Which of its queue nodes it waits with; above 0 in an interrupt that came upon a waiter.
    pub node: u32,
}

/// How a queue ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueEnd {
    /// At a waiter without a successor, so far.
    Tail,
    /// At a pointer to a node that is not in use: the guest moved on while it was read.
    Moved,
    /// At a pointer that leads to no queue node of a vCPU we know.
    Foreign(Gva),
    /// At a waiter that is already in a queue: a circle, or two that point to one. Guest memory is
    /// broken, or changed while it was read.
    Repeated,
}

/// The waiters for one lock that are linked to each other, first in line first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The waiters. No place appears twice, in this queue or in another of the same answer.
    pub waiting: Vec<Waiting>,
    /// What comes after the last.
    pub end: QueueEnd,
}

impl Queue {
    /// Who gets the lock next; `None` if the queue has no sound end.
    pub fn head(&self) -> Option<Waiting> {
        self.waiting.first().copied().filter(|_| self.end != QueueEnd::Repeated)
    }
}

impl ResolvedGuest {
    /// Reads all vCPUs and puts those that wait for contended locks in order, one queue a lock.
    ///
    /// A waiter that nobody points to is the head of its queue, whatever its `locked` word says,
    /// with one exception: between taking its place and linking itself to its predecessor, a few
    /// instructions, a waiter looks like the head of a queue of its own. The order of the result is
    /// that of the heads in [`vcpus`](Self::vcpus).
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
        // (vCPU index, node index) of each node in use, and what its pointer leads to.
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
        // Heads first; what is left after that is in circles, each of which is cut somewhere.
        let heads = (0..places.len()).filter(|&i| !has_predecessor[i]);
        for start in heads.chain(0..places.len()) {
            if !taken[start] {
                queues.push(self.follow(start, &places, &links, &mut taken));
            }
        }
        Ok(queues)
    }

    /// Walks from `start`, marking what it passes; ends after at most as many steps as there are
    /// places.
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

    /// Which vCPU's which node lies at `gpa`.
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

/// Where a node's pointer leads.
#[derive(Clone, Copy)]
enum Link {
    None,
    /// To a node in use: index of its place.
    To(usize),
    /// To a node that is not in use.
    Idle,
    Foreign(Gva),
}
