// SPDX-License-Identifier: GPL-2.0-or-later
//! Queues and entities: `struct cfs_rq`, `struct sched_entity`. Functions are named after those of
//! `kernel/sched/fair.c`.

use crate::config::Config;
use crate::kernel::{Kernel, TaskId};
use crate::task::Task;

use super::groups::Group;

/// An index of an entity.
pub(super) type EntityId = usize;
/// An index of a queue.
pub(super) type CfsId = usize;

/// The weight of nice 0.
pub(super) const NICE_0: u64 = 1024;

/// `struct sched_entity`: a task, or a group on a CPU.
pub(super) struct Entity {
    pub(super) task: Option<TaskId>,
    pub(super) group: usize,
    /// The queue it is in while runnable.
    pub(super) cfs: CfsId,
    /// A group's own queue on this CPU.
    pub(super) my_q: Option<CfsId>,
    pub(super) parent: Option<EntityId>,
    pub(super) weight: u64,
    pub(super) is_idle: bool,
    pub(super) on_rq: bool,
    pub(super) sched_delayed: bool,
    rel_deadline: bool,
    vruntime: i64,
    deadline: i64,
    vlag: i64,
    vprot: i64,
    pub(super) exec_start: u64,
}

/// `struct cfs_rq`.
pub(super) struct Cfs {
    /// Runnable entities, with the current one and delayed ones.
    pub(super) queue: Vec<EntityId>,
    pub(super) curr: Option<EntityId>,
    next: Option<EntityId>,
    zero_vruntime: i64,
    /// The group entity whose queue it is.
    pub(super) owner: Option<EntityId>,
    pub(super) cpu: usize,
    pub(super) group: usize,
    pub(super) runtime_left: i64,
    pub(super) throttled: bool,
}

/// What a CPU has beside its queues.
#[derive(Default)]
pub(super) struct Rq {
    pub(super) root: CfsId,
    pub(super) lazy: bool,
    pub(super) hrtick_at: u64,
    pub(super) next_balance: u64,
}

pub(super) struct State {
    pub(super) entities: Vec<Entity>,
    pub(super) queues: Vec<Cfs>,
    pub(super) rqs: Vec<Rq>,
    pub(super) groups: Vec<Group>,
    /// Entities of tasks.
    tasks: Vec<EntityId>,
    /// `sysctl_sched_base_slice`
    slice: i64,
    tick_ns: i64,
}

/// `calc_delta_fair()`
fn calc_delta(ns: i64, weight: u64) -> i64 {
    (i128::from(ns) * i128::from(NICE_0) / i128::from(weight)) as i64
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        // get_update_sysctl_factor(): SCHED_TUNABLESCALING_LOG of at most 8 CPUs.
        let factor = 1 + config.nr_cpus.min(8).ilog2();
        let mut state = Self {
            entities: Vec::new(),
            queues: Vec::new(),
            rqs: Vec::new(),
            groups: vec![Group::root()],
            tasks: Vec::new(),
            slice: 700_000 * i64::from(factor),
            tick_ns: config.tick_ns as i64,
        };
        for cpu in 0..config.nr_cpus {
            let root = state.add_queue(cpu, 0, None);
            state.rqs.push(Rq { root, ..Rq::default() });
            state.groups[0].queues.push(root);
        }
        state
    }

    pub(super) fn add_queue(&mut self, cpu: usize, group: usize, owner: Option<EntityId>) -> CfsId {
        self.queues.push(Cfs {
            queue: Vec::new(),
            curr: None,
            next: None,
            zero_vruntime: 0,
            owner,
            cpu,
            group,
            runtime_left: 0,
            throttled: false,
        });
        self.queues.len() - 1
    }

    pub(super) fn add_entity(&mut self, cfs: CfsId, weight: u64, task: Option<TaskId>) -> EntityId {
        self.entities.push(Entity {
            task,
            group: self.queues[cfs].group,
            cfs,
            my_q: None,
            parent: self.queues[cfs].owner,
            weight,
            is_idle: false,
            on_rq: false,
            sched_delayed: false,
            rel_deadline: false,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            vprot: 0,
            exec_start: 0,
        });
        self.entities.len() - 1
    }

    pub(super) fn add_task(&mut self, id: TaskId, weight: u32, group: usize, is_idle: bool) {
        let cfs = self.groups[group].queues[0];
        let se = self.add_entity(cfs, scale(weight, is_idle), Some(id));
        self.entities[se].is_idle = is_idle;
        self.tasks.resize(self.tasks.len().max(id.index() + 1), usize::MAX);
        self.tasks[id.index()] = se;
    }

    pub(super) fn task_entity(&self, id: TaskId) -> EntityId {
        self.tasks[id.index()]
    }

    pub(super) fn is_delayed(&self, se: EntityId) -> bool {
        self.entities[se].sched_delayed
    }

    // ---- virtual time ----

    /// `cfs_rq->sum_weight`
    pub(super) fn load(&self, cfs: CfsId) -> u64 {
        self.queues[cfs].queue.iter().map(|se| self.entities[*se].weight).sum()
    }

    /// `cfs_rq->sum_w_vruntime` and `sum_weight`: virtual times count from `zero_vruntime`.
    fn sums(&self, cfs: CfsId) -> (i128, i128) {
        let zero = self.queues[cfs].zero_vruntime;
        let vruntime = |se: &EntityId| {
            let se = &self.entities[*se];
            i128::from(se.vruntime.wrapping_sub(zero)) * i128::from(se.weight)
        };
        (self.queues[cfs].queue.iter().map(vruntime).sum(), self.load(cfs).into())
    }

    /// `avg_vruntime()`
    fn avg_vruntime(&mut self, cfs: CfsId) -> i64 {
        let (sum, load) = self.sums(cfs);
        let zero = &mut self.queues[cfs].zero_vruntime;
        if load != 0 {
            *zero = zero.wrapping_add(sum.div_euclid(load) as i64);
        }
        *zero
    }

    /// `entity_eligible()`
    fn eligible(&self, cfs: CfsId, se: EntityId) -> bool {
        let (sum, load) = self.sums(cfs);
        let zero = self.queues[cfs].zero_vruntime;
        sum >= i128::from(self.entities[se].vruntime.wrapping_sub(zero)) * load
    }

    /// `update_entity_lag()`
    fn update_entity_lag(&mut self, se: EntityId) {
        let avg = self.avg_vruntime(self.entities[se].cfs);
        let entity = &mut self.entities[se];
        let limit = calc_delta(self.slice + self.tick_ns, entity.weight);
        let mut vlag = avg.wrapping_sub(entity.vruntime).clamp(-limit, limit);
        if entity.sched_delayed {
            // DELAY_ZERO
            vlag = vlag.max(entity.vlag).min(0);
        }
        entity.vlag = vlag;
    }

    /// `place_entity()`
    fn place_entity(&mut self, se: EntityId, initial: bool) {
        let cfs = self.entities[se].cfs;
        let vruntime = self.avg_vruntime(cfs);
        let load = self.load(cfs);
        let slice = self.slice;
        let entity = &mut self.entities[se];
        let mut lag = 0;
        if load != 0 && entity.vlag != 0 {
            let all = i128::from(load + entity.weight);
            lag = (i128::from(entity.vlag) * all / i128::from(load)) as i64;
        }
        entity.vruntime = vruntime.wrapping_sub(lag);
        if entity.rel_deadline {
            entity.deadline = entity.deadline.wrapping_add(entity.vruntime);
            entity.rel_deadline = false;
            return;
        }
        let vslice = calc_delta(slice, entity.weight);
        entity.deadline = entity.vruntime.wrapping_add(if initial { vslice / 2 } else { vslice });
    }

    /// `update_deadline()`: has it used up its request?
    fn update_deadline(&mut self, se: EntityId) -> bool {
        let slice = self.slice;
        let entity = &mut self.entities[se];
        if entity.vruntime.wrapping_sub(entity.deadline) < 0 {
            return false;
        }
        entity.deadline = entity.vruntime.wrapping_add(calc_delta(slice, entity.weight));
        true
    }

    // ---- queues ----

    fn enqueue_entity(&mut self, se: EntityId, initial: bool) {
        self.place_entity(se, initial);
        let cfs = self.entities[se].cfs;
        self.queues[cfs].queue.push(se);
        self.entities[se].on_rq = true;
    }

    /// True if it has left the queue: one that is not eligible stays (`DELAY_DEQUEUE`).
    fn dequeue_entity(&mut self, se: EntityId, sleeps: bool, may_delay: bool) -> bool {
        let cfs = self.entities[se].cfs;
        self.clear_buddies(se);
        if sleeps && may_delay && !self.entities[se].sched_delayed && !self.eligible(cfs, se) {
            self.update_entity_lag(se);
            self.entities[se].sched_delayed = true;
            return false;
        }
        self.update_entity_lag(se);
        self.queues[cfs].queue.retain(|other| *other != se);
        let entity = &mut self.entities[se];
        if !sleeps {
            entity.deadline = entity.deadline.wrapping_sub(entity.vruntime);
            entity.rel_deadline = true;
        }
        entity.on_rq = false;
        entity.sched_delayed = false;
        true
    }

    fn clear_buddies(&mut self, mut se: EntityId) {
        loop {
            let cfs = self.entities[se].cfs;
            if self.queues[cfs].next != Some(se) {
                break;
            }
            self.queues[cfs].next = None;
            let Some(parent) = self.entities[se].parent else { break };
            se = parent;
        }
    }

    /// `enqueue_task_fair()`
    pub(super) fn enqueue(&mut self, k: &Kernel, cpu: usize, task: &Task, initial: bool) {
        let se = self.task_entity(task.id);
        let group = self.entities[se].group;
        if self.entities[se].sched_delayed {
            self.requeue_delayed(se);
        } else {
            self.entities[se].cfs = self.groups[group].queues[cpu];
            self.entities[se].parent = self.queues[self.entities[se].cfs].owner;
            self.enqueue_entity(se, initial);
        }
        self.enqueue_above(k, se);
        self.update_shares(group);
    }

    /// Enqueues the groups that a member has made runnable.
    pub(super) fn enqueue_above(&mut self, k: &Kernel, mut se: EntityId) {
        while let Some(parent) = self.entities[se].parent {
            let my_q = self.entities[parent].my_q.expect("a group's entity");
            if self.queues[my_q].throttled {
                break;
            }
            if self.entities[parent].sched_delayed {
                self.requeue_delayed(parent);
            } else if self.entities[parent].on_rq {
                break;
            } else {
                self.start_period(k, my_q);
                self.enqueue_entity(parent, false);
            }
            se = parent;
        }
    }

    /// `requeue_delayed_entity()`
    fn requeue_delayed(&mut self, se: EntityId) {
        let cfs = self.entities[se].cfs;
        self.update_entity_lag(se);
        self.queues[cfs].queue.retain(|other| *other != se);
        self.entities[se].sched_delayed = false;
        self.place_entity(se, false);
        self.queues[cfs].queue.push(se);
    }

    /// `dequeue_task_fair()`
    pub(super) fn dequeue(&mut self, task: &Task, sleeps: bool) {
        let se = self.task_entity(task.id);
        if !self.entities[se].on_rq {
            return;
        }
        let group = self.entities[se].group;
        if self.dequeue_entity(se, sleeps, true) {
            self.dequeue_above(se, sleeps);
        }
        self.update_shares(group);
    }

    /// Dequeues groups that have no runnable member.
    pub(super) fn dequeue_above(&mut self, mut se: EntityId, sleeps: bool) {
        while let Some(parent) = self.entities[se].parent {
            let my_q = self.entities[parent].my_q.expect("a group's entity");
            let keeps = !self.queues[my_q].queue.is_empty() && !self.queues[my_q].throttled;
            if keeps || !self.entities[parent].on_rq || !self.dequeue_entity(parent, sleeps, false)
            {
                break;
            }
            se = parent;
        }
    }

    /// A task is gone for good.
    pub(super) fn forget(&mut self, se: EntityId) {
        if self.entities[se].on_rq {
            self.dequeue_entity(se, true, false);
            self.dequeue_above(se, true);
        }
    }

    pub(super) fn move_to(&mut self, se: EntityId, group: usize) {
        if self.entities[se].on_rq {
            self.forget(se);
        }
        let cpu = self.queues[self.entities[se].cfs].cpu;
        self.entities[se].group = group;
        self.entities[se].cfs = self.groups[group].queues[cpu];
        self.entities[se].parent = self.queues[self.entities[se].cfs].owner;
    }

    /// `reweight_entity()`
    pub(super) fn reweigh(&mut self, se: EntityId, weight: u64) {
        let old = self.entities[se].weight;
        if weight == old {
            return;
        }
        let rescale =
            |value: i64| (i128::from(value) * i128::from(old) / i128::from(weight)) as i64;
        if !self.entities[se].on_rq {
            let entity = &mut self.entities[se];
            entity.vlag = rescale(entity.vlag);
            entity.weight = weight;
            return;
        }
        let avg = self.avg_vruntime(self.entities[se].cfs);
        self.update_entity_lag(se);
        let entity = &mut self.entities[se];
        let (left, protected) = (
            entity.deadline.wrapping_sub(entity.vruntime),
            entity.vprot.wrapping_sub(entity.vruntime),
        );
        entity.vlag = rescale(entity.vlag);
        entity.weight = weight;
        entity.vruntime = avg.wrapping_sub(entity.vlag);
        entity.deadline = entity.vruntime.wrapping_add(rescale(left));
        entity.vprot = entity.vruntime.wrapping_add(rescale(protected));
    }

    pub(super) fn reweigh_task(&mut self, se: EntityId, weight: u32) {
        self.reweigh(se, scale(weight, self.entities[se].is_idle));
        self.update_shares(self.entities[se].group);
    }

    // ---- decisions ----

    /// `pick_eevdf()`
    fn pick_eevdf(&self, cfs: CfsId) -> EntityId {
        let queue = &self.queues[cfs];
        if let [only] = queue.queue[..] {
            return only;
        }
        if let Some(next) = queue.next.filter(|next| self.eligible(cfs, *next)) {
            return next;
        }
        let curr =
            queue.curr.filter(|curr| self.entities[*curr].on_rq && self.eligible(cfs, *curr));
        if let Some(curr) = curr.filter(|curr| self.is_protected(*curr)) {
            return curr;
        }
        let first = |best: Option<EntityId>, se: &EntityId| match best {
            Some(best) if !self.before(*se, best) => Some(best),
            _ => Some(*se),
        };
        let eligible = queue.queue.iter().filter(|se| self.eligible(cfs, **se));
        eligible.fold(None, first).or(curr).unwrap_or(queue.queue[0])
    }

    fn before(&self, a: EntityId, b: EntityId) -> bool {
        self.entities[a].deadline.wrapping_sub(self.entities[b].deadline) < 0
    }

    /// `protect_slice()`
    fn is_protected(&self, se: EntityId) -> bool {
        self.entities[se].vruntime.wrapping_sub(self.entities[se].vprot) < 0
    }

    /// `pick_task_fair()`, without its balance.
    pub(super) fn pick(&mut self, cpu: usize) -> Option<TaskId> {
        'again: loop {
            let mut cfs = self.rqs[cpu].root;
            if self.queues[cfs].queue.is_empty() {
                return None;
            }
            loop {
                let se = self.pick_eevdf(cfs);
                if self.entities[se].sched_delayed {
                    self.dequeue_entity(se, true, false);
                    self.dequeue_above(se, true);
                    self.update_shares(self.entities[se].group);
                    continue 'again;
                }
                match self.entities[se].my_q {
                    Some(my_q) => cfs = my_q,
                    None => return self.entities[se].task,
                }
            }
        }
    }

    /// `set_next_task_fair()`
    pub(super) fn set_next(&mut self, task: EntityId, now: u64) {
        let mut next = Some(task);
        while let Some(se) = next {
            let cfs = self.entities[se].cfs;
            self.clear_buddies(se);
            if self.queues[cfs].curr != Some(se) {
                self.queues[cfs].curr = Some(se);
                // set_protect_slice(): all slices are alike.
                self.entities[se].vprot = self.entities[se].deadline;
            }
            self.entities[se].exec_start = now;
            next = self.entities[se].parent;
        }
    }

    /// `put_prev_task_fair()`
    pub(super) fn put_prev(&mut self, task: EntityId) {
        let mut prev = Some(task);
        while let Some(se) = prev {
            let cfs = self.entities[se].cfs;
            self.queues[cfs].curr = None;
            prev = self.entities[se].parent;
        }
    }

    /// `update_curr()` of the task and the groups above; is a reschedule due?
    pub(super) fn charge(&mut self, k: &Kernel, task: EntityId, ns: u64) -> bool {
        let mut resched = false;
        let mut next = Some(task);
        while let Some(se) = next {
            let cfs = self.entities[se].cfs;
            let entity = &mut self.entities[se];
            entity.exec_start = k.now();
            entity.vruntime = entity.vruntime.wrapping_add(calc_delta(ns as i64, entity.weight));
            let over = self.update_deadline(se);
            resched |= self.account_runtime(k, cfs, ns);
            if self.queues[cfs].queue.len() > 1 && (over || !self.is_protected(se)) {
                resched = true;
                self.clear_buddies(se);
            }
            next = self.entities[se].parent;
        }
        resched
    }

    /// `yield_task_fair()`
    pub(super) fn yield_curr(&mut self, id: TaskId) {
        let se = self.task_entity(id);
        let cfs = self.entities[se].cfs;
        self.clear_buddies(se);
        if self.entities[se].on_rq && self.eligible(cfs, se) {
            self.entities[se].vruntime = self.entities[se].deadline;
            self.update_deadline(se);
        }
    }

    /// `set_next_buddy()`; false if it is not queued.
    pub(super) fn set_next_buddy(&mut self, task: EntityId) -> bool {
        let mut next = Some(task);
        if !self.entities[task].on_rq || self.entities[task].sched_delayed {
            return false;
        }
        while let Some(se) = next.filter(|se| self.entities[*se].on_rq) {
            if self.entities[se].is_idle {
                break;
            }
            let cfs = self.entities[se].cfs;
            self.queues[cfs].next = Some(se);
            next = self.entities[se].parent;
        }
        true
    }

    /// `wakeup_preempt_fair()`, for two entities of the same queue (`find_matching_se()`).
    pub(super) fn preempts(&mut self, curr: TaskId, woken: EntityId) -> bool {
        let (mut se, mut pse) = (self.task_entity(curr), woken);
        while self.entities[se].cfs != self.entities[pse].cfs {
            let (a, b) = (self.depth(se), self.depth(pse));
            if a >= b {
                let Some(parent) = self.entities[se].parent else { return false };
                se = parent;
            }
            if b >= a {
                let Some(parent) = self.entities[pse].parent else { return false };
                pse = parent;
            }
        }
        if se == pse || !self.entities[pse].on_rq {
            return false;
        }
        let (idle, pse_idle) = (self.entities[se].is_idle, self.entities[pse].is_idle);
        if idle != pse_idle {
            return idle;
        }
        loop {
            let cfs = self.entities[se].cfs;
            let best = self.pick_eevdf(cfs);
            if !self.entities[best].sched_delayed {
                return best == pse;
            }
            self.dequeue_entity(best, true, false);
            self.dequeue_above(best, true);
        }
    }

    fn depth(&self, se: EntityId) -> usize {
        std::iter::successors(Some(se), |se| self.entities[*se].parent).count()
    }

    /// CPU time until the current task's slice ends; none: it is alone.
    pub(super) fn until_deadline(&self, cpu: usize) -> Option<u64> {
        let mut cfs = self.rqs[cpu].root;
        let mut others = false;
        loop {
            others |= self.queues[cfs].queue.len() > 1;
            let curr = self.queues[cfs].curr?;
            let Some(my_q) = self.entities[curr].my_q else {
                let entity = &self.entities[curr];
                let left = entity.deadline.wrapping_sub(entity.vruntime).max(0);
                let ns = i128::from(left) * i128::from(entity.weight) / i128::from(NICE_0);
                return others.then_some(ns as u64);
            };
            cfs = my_q;
        }
    }
}

/// `cpu.weight` of 100 is nice 0; `SCHED_IDLE` weighs 3.
pub(super) fn scale(weight: u32, is_idle: bool) -> u64 {
    if is_idle { 3 } else { (u64::from(weight) * NICE_0 / 100).max(2) }
}
