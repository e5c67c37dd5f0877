// SPDX-License-Identifier: GPL-2.0-or-later
//! Groups and their limits: `struct task_group`, `struct cfs_bandwidth`.

use std::rc::Rc;

use super::Stock;
use super::cfs::{CfsId, EntityId, State, scale};
use crate::cgroup::Cgroup;
use crate::class::CgroupEvent;
use crate::kernel::{Event, Job, Kernel};

/// `struct task_group`.
pub(super) struct Group {
    id: u64,
    shares: u64,
    /// Of each CPU.
    pub(super) queues: Vec<CfsId>,
    entities: Vec<EntityId>,
    parent: Option<usize>,
    /// `cpu.max` in nanoseconds: quota and period.
    max: Option<(u64, u64)>,
    runtime: u64,
    refill_at: u64,
}

/// `sched_cfs_bandwidth_slice()`
const BANDWIDTH_SLICE: u64 = 5_000_000;

impl Group {
    pub(super) fn root() -> Self {
        Self {
            id: 1,
            shares: 0,
            queues: Vec::new(),
            entities: Vec::new(),
            parent: None,
            max: None,
            runtime: 0,
            refill_at: 0,
        }
    }
}

impl State {
    /// The group of a control group, which may not be made yet.
    pub(super) fn group_of(&mut self, cgroup: &Cgroup) -> usize {
        if let Some(index) = self.groups.iter().position(|group| group.id == cgroup.id) {
            return index;
        }
        let parent = cgroup.parent.as_ref().map_or(0, |parent| self.group_of(parent));
        let index = self.groups.len();
        self.groups.push(Group {
            id: cgroup.id,
            shares: scale(cgroup.weight.get(), cgroup.idle.get()),
            queues: Vec::new(),
            entities: Vec::new(),
            parent: Some(parent),
            max: cgroup.max.get().map(|(quota, period)| (quota * 1000, period * 1000)),
            runtime: 0,
            refill_at: 0,
        });
        for cpu in 0..self.rqs.len() {
            let above = self.groups[parent].queues[cpu];
            let shares = self.groups[index].shares;
            let se = self.add_entity(above, shares, None);
            let my_q = self.add_queue(cpu, index, Some(se));
            self.entities[se].my_q = Some(my_q);
            self.groups[index].queues.push(my_q);
            self.groups[index].entities.push(se);
        }
        index
    }

    /// `calc_group_shares()`: the part of a group's shares that it has on each CPU goes by the
    /// weights that are runnable there.
    pub(super) fn update_shares(&mut self, mut group: usize) {
        while let Some(parent) = self.groups[group].parent {
            let queues = self.groups[group].queues.clone();
            let all: u64 = queues.iter().map(|cfs| self.load(*cfs)).sum();
            for (cpu, cfs) in queues.iter().enumerate() {
                let here = self.load(*cfs);
                if here != 0 {
                    let shares = (self.groups[group].shares * here / all).max(2);
                    self.reweigh(self.groups[group].entities[cpu], shares);
                }
            }
            group = parent;
        }
    }

    // ---- bandwidth ----

    /// `start_cfs_bandwidth()`
    pub(super) fn start_period(&mut self, k: &Kernel, cfs: CfsId) {
        let group = &mut self.groups[self.queues[cfs].group];
        let Some((quota, period)) = group.max else { return };
        if group.refill_at <= k.now() {
            group.runtime = quota;
            group.refill_at = k.now() + period;
            k.post(group.refill_at, Event::On(k.this_cpu(), Job::Deferred));
        }
    }

    /// `account_cfs_rq_runtime()`: true if the queue has to be throttled.
    pub(super) fn account_runtime(&mut self, k: &Kernel, cfs: CfsId, ns: u64) -> bool {
        let index = self.queues[cfs].group;
        if self.groups[index].max.is_none() {
            return false;
        }
        self.start_period(k, cfs);
        self.queues[cfs].runtime_left -= ns as i64;
        if self.queues[cfs].runtime_left > 0 {
            return false;
        }
        // assign_cfs_rq_runtime()
        let group = &mut self.groups[index];
        let wanted = BANDWIDTH_SLICE + self.queues[cfs].runtime_left.unsigned_abs();
        let given = wanted.min(group.runtime);
        group.runtime -= given;
        self.queues[cfs].runtime_left += given as i64;
        if self.queues[cfs].runtime_left > 0 {
            return false;
        }
        // throttle_cfs_rq()
        let was = std::mem::replace(&mut self.queues[cfs].throttled, true);
        if let Some(owner) = self.queues[cfs].owner.filter(|_| !was) {
            self.throttle(owner);
        }
        true
    }

    fn throttle(&mut self, owner: EntityId) {
        if self.entities[owner].on_rq {
            let cfs = self.entities[owner].cfs;
            self.queues[cfs].queue.retain(|se| *se != owner);
            self.entities[owner].on_rq = false;
            self.dequeue_above(owner, true);
        }
    }
}

impl Stock {
    /// `sched_cfs_period_timer()`
    pub(super) fn refill(&self, k: &Kernel) {
        let mut state = self.state.borrow_mut();
        for index in 0..state.groups.len() {
            let group = &state.groups[index];
            let Some((quota, period)) = group.max else { continue };
            if group.refill_at == 0 || group.refill_at > k.now() {
                continue;
            }
            let queues = group.queues.clone();
            let is_idle = queues.iter().all(|cfs| state.queues[*cfs].queue.is_empty());
            let group = &mut state.groups[index];
            group.runtime = quota;
            if is_idle {
                group.refill_at = 0;
                continue;
            }
            group.refill_at += period;
            k.post(group.refill_at, Event::On(k.this_cpu(), Job::Deferred));
            // distribute_cfs_runtime(), unthrottle_cfs_rq()
            for cfs in queues {
                if !state.queues[cfs].throttled {
                    continue;
                }
                let missing = state.queues[cfs].runtime_left.min(0).unsigned_abs() + 1;
                let given = missing.min(state.groups[index].runtime);
                state.groups[index].runtime -= given;
                state.queues[cfs].runtime_left += given as i64;
                if state.queues[cfs].runtime_left > 0 {
                    state.queues[cfs].throttled = false;
                    if let Some(first) = state.queues[cfs].queue.first().copied() {
                        state.enqueue_above(k, first);
                    }
                    k.resched_curr(state.queues[cfs].cpu);
                }
            }
        }
    }

    pub(super) fn group_event(&self, k: &Kernel, cgroup: &Rc<Cgroup>, event: CgroupEvent) {
        let mut state = self.state.borrow_mut();
        let index = state.group_of(cgroup);
        let group = &mut state.groups[index];
        match event {
            CgroupEvent::Weight | CgroupEvent::Idle => {
                group.shares = scale(cgroup.weight.get(), cgroup.idle.get());
                for se in group.entities.clone() {
                    state.entities[se].is_idle = cgroup.idle.get();
                }
                state.update_shares(index);
            }
            CgroupEvent::Bandwidth => {
                group.max = cgroup.max.get().map(|(quota, period)| (quota * 1000, period * 1000));
                if let Some((quota, period)) = group.max {
                    group.runtime = quota;
                    group.refill_at = k.now() + period;
                    k.post(group.refill_at, Event::On(k.this_cpu(), Job::Deferred));
                }
            }
            CgroupEvent::Made | CgroupEvent::Removed => {}
        }
    }
}
