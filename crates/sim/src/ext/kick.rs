// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_bpf_kick_cpu()`.

use super::Ext;
use crate::kernel::Kernel;
use crate::layout as l;
use crate::task::Sched;

#[derive(Clone, Copy, Default)]
pub(super) struct Kick {
    pub(super) always: bool,
    pub(super) if_idle: bool,
    pub(super) preempt: bool,
}

impl Ext {
    /// `scx_kick_cpu()`.
    pub(crate) fn kick_cpu(&self, k: &Kernel, cpu: i32, flags: u64) {
        let Some(cpu) = usize::try_from(cpu).ok().filter(|cpu| *cpu < self.rqs.len()) else {
            k.violation("scx_error", format!("a kick of CPU {cpu}, which is not there"));
            return;
        };
        let mut kicks = self.rqs[k.this_cpu()].kicks.borrow_mut();
        if flags & l::KICK_IDLE != 0 {
            if k.try_lock(&k.rqs[cpu].lock) {
                let skip = self.can_skip_idle_kick(k, cpu);
                k.unlock_rq(cpu);
                if skip {
                    return;
                }
            }
            kicks.entry(cpu).or_default().if_idle = true;
        } else {
            let kick = kicks.entry(cpu).or_default();
            kick.always = true;
            kick.preempt |= flags & l::KICK_PREEMPT != 0;
        }
    }

    fn can_skip_idle_kick(&self, k: &Kernel, cpu: usize) -> bool {
        k.curr(cpu).is_some() && !self.rqs[cpu].in_balance.get()
    }

    /// `kick_one_cpu()`, `kick_one_cpu_if_idle()`.
    pub(super) fn kick_one_cpu(&self, k: &Kernel, cpu: usize, kick: Kick) {
        k.lock_rq(cpu);
        let curr = k.curr(cpu).map(|curr| k.task(curr));
        let above = curr.as_ref().is_some_and(|curr| curr.sched.get() != Sched::Class);
        if kick.always {
            if !above && (k.is_online(cpu) || cpu == k.this_cpu()) {
                if let (true, Some(curr)) = (kick.preempt, &curr) {
                    curr.raw.set(l::TASK_SCX_SLICE, 0u64);
                }
                k.resched_curr(cpu);
            }
        } else if !self.can_skip_idle_kick(k, cpu) && (k.is_online(cpu) || cpu == k.this_cpu()) {
            k.resched_curr(cpu);
        }
        k.unlock_rq(cpu);
    }
}
