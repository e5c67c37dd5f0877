// SPDX-License-Identifier: GPL-2.0-or-later
//! Guests that lie about what they do (`workloads/hostile.c`).

use std::rc::Rc;

use crate::guest::Words;
use crate::kernel::TaskId;
use crate::machine::{Machine, task};
use crate::program::{Cx, FOREVER, Step};

/// What all vCPUs of a hostile guest claim to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A lock holder.
    Holder,
    /// In an interrupt.
    Irq,
    /// First in the queue of a lock.
    Head,
    /// Further back in the queue of a lock.
    Waiter,
    /// The claim changes every 100 us.
    Flipping,
}

impl Claim {
    /// `preempt_count`, and `count` and `locked` of the first queue node.
    fn words(self, turn: u64) -> (u32, u32, u32) {
        match self {
            Self::Holder => (1, 0, 0),
            Self::Irq => (1 << 16, 0, 0),
            Self::Head => (1, 1, 1),
            Self::Waiter => (1, 1, 0),
            Self::Flipping => {
                let claims = [Self::Holder, Self::Head, Self::Waiter, Self::Irq];
                claims[turn as usize % claims.len()].words(0)
            }
        }
    }
}

/// A VM whose vCPUs loop and claim something else.
pub fn hostile_vm(m: &Machine, nr: usize, claim: Claim) -> Vec<TaskId> {
    let memory = m.memory(nr * 64);
    let vcpu = |index: usize| {
        let (at, mem) = (index * 64, Rc::clone(&memory));
        let mut turn = 0;
        let code = move |_: &Cx<'_>| {
            let (count, queued, locked) = claim.words(turn);
            turn += 1;
            mem.write_u32(at, count);
            mem.write_u32(at + 40, locked);
            mem.write_u32(at + 44, queued);
            Step::Run(if claim == Claim::Flipping { 100_000 } else { FOREVER })
        };
        let id = m.spawn_asleep(task(format!("hostile {index}"), code).memory(&memory));
        let words = Words { preempt_count: at, qnode: Some(at + 32), ..Words::default() };
        m.make_vcpu(id, &memory, index as u32, Some(words));
        m.wake(id);
        id
    };
    (0..nr).map(vcpu).collect()
}
