// SPDX-License-Identifier: GPL-2.0-or-later
//! Events, in the order of time.

use std::cmp::Reverse;

use super::{Kernel, TaskId};

/// What happens at a moment.
pub(crate) enum Event {
    /// On a CPU.
    On(usize, Job),
    /// The path of a CPU goes on.
    Resume(usize),
}

/// What starts a path.
pub(crate) enum Job {
    /// The timer interrupt; of the tick sequence with this number.
    Tick(u64),
    /// The running task's step is over; of the step with this number.
    Step(u64),
    /// A BPF timer expires: its index, and which start of it.
    Timer(usize, u64),
    /// An IPI that asks for a reschedule.
    Resched,
    /// A wakeup that another CPU has passed on, with flags for the enqueue.
    TtwuPending,
    /// A timer interrupt that wakes a task.
    Wake(TaskId),
    /// Deferred work of a run queue.
    Deferred,
    /// Whatever the machine's owner asks for, in interrupt context.
    Call(Box<dyn FnOnce(&Kernel)>),
}

pub(super) struct Due {
    pub(super) at: u64,
    seq: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

impl Kernel {
    pub(crate) fn post(&self, at: u64, event: Event) {
        let seq = self.seq.get();
        self.seq.set(seq + 1);
        self.events.borrow_mut().push(Reverse(Due { at, seq, event }));
    }

    pub(crate) fn post_in(&self, ns: u64, event: Event) {
        self.post(self.now() + ns, event);
    }

    /// Runs until the moment `until`, or until a rule is violated.
    pub(crate) fn run_until(&self, until: u64) {
        let _entered = crate::kfuncs::Entered::new(self);
        self.until.set(until);
        while !self.rules.is_violated() {
            let due = {
                let mut events = self.events.borrow_mut();
                match events.peek() {
                    Some(Reverse(due)) if due.at <= until => events.pop(),
                    _ => None,
                }
            };
            let Some(Reverse(due)) = due else { break };
            debug_assert!(due.at >= self.now());
            self.now.set(due.at);
            self.count(|totals| totals.nr_events += 1);
            match due.event {
                Event::On(cpu, job) => self.enter(cpu, job),
                Event::Resume(cpu) => self.resume(cpu),
            }
        }
        if !self.rules.is_violated() {
            self.now.set(until);
        }
    }
}
