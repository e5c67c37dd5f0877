// SPDX-License-Identifier: GPL-2.0-or-later
//! The class `sched_ext`: `kernel/sched/ext/ext.c` of Linux 7.2, with the differences of older
//! kernels. Functions have the names of those that they follow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::bpf::Bpf;
use crate::cgroup::Cgroup;
use crate::class::{CgroupEvent, Class};
use crate::config::{Config, KernelVersion};
use crate::idle::Idle;
use crate::kernel::{Event, Job, Kernel, MIGRATING, SAVE_RESTORE, TaskId, WAKEUP};
use crate::layout as l;
use crate::object::Object;
use crate::raw::Raw;
use crate::task::{PF_EXITING, Sched, Task};

const DSQ_GLOBAL: u64 = 1 << 63 | 1;
const DSQ_LOCAL: u64 = 1 << 63 | 2;
const DSQ_LOCAL_ON: u64 = 3 << 62;
const SLICE_INF: u64 = u64::MAX;

/// Callbacks, in the order of `struct sched_ext_ops`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Op {
    SelectCpu,
    Enqueue,
    Dequeue,
    Dispatch,
    Tick,
    Runnable,
    Running,
    Stopping,
    Quiescent,
    Yield,
    SetCpumask,
    UpdateIdle,
    CpuRelease,
    InitTask,
    Enable,
    Disable,
    CgroupInit,
    CgroupExit,
    CgroupMove,
    CgroupSetWeight,
    CgroupSetIdle,
    Init,
    /// A BPF timer, which is no callback.
    Timer,
}

const NR_OPS: usize = Op::Timer as usize + 1;

const OFFSETS: [u32; NR_OPS - 1] = [
    l::OPS_SELECT_CPU,
    l::OPS_ENQUEUE,
    l::OPS_DEQUEUE,
    l::OPS_DISPATCH,
    l::OPS_TICK,
    l::OPS_RUNNABLE,
    l::OPS_RUNNING,
    l::OPS_STOPPING,
    l::OPS_QUIESCENT,
    l::OPS_YIELD,
    l::OPS_SET_CPUMASK,
    l::OPS_UPDATE_IDLE,
    l::OPS_CPU_RELEASE,
    l::OPS_INIT_TASK,
    l::OPS_ENABLE,
    l::OPS_DISABLE,
    l::OPS_CGROUP_INIT,
    l::OPS_CGROUP_EXIT,
    l::OPS_CGROUP_MOVE,
    l::OPS_CGROUP_SET_WEIGHT,
    l::OPS_CGROUP_SET_IDLE,
    l::OPS_INIT,
];

/// What the calls of one callback have cost.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cost {
    /// Calls of the callback.
    pub calls: u64,
    /// Calls of helpers and kfuncs in it.
    pub helpers: u64,
    /// Most of them in one call.
    pub helpers_max: u64,
    /// Turns of its loops.
    pub loops: u64,
    /// Tasks that the kernel stepped over in DSQs on its behalf, with the DSQ locked.
    pub scanned: u64,
    /// Most of them in one call.
    pub scanned_max: u64,
}

/// A dispatch queue: `struct scx_dispatch_q`.
pub(crate) struct Dsq {
    id: u64,
    /// The CPU whose local DSQ it is.
    cpu: Option<usize>,
    /// By virtual time and order of insertion; in FIFO order all virtual times are 0.
    tasks: RefCell<BTreeMap<(i64, i64), TaskId>>,
    /// `dsq->seq`.
    seq: Cell<i64>,
}

impl Dsq {
    fn new(id: u64, cpu: Option<usize>) -> Rc<Self> {
        Rc::new(Self { id, cpu, tasks: RefCell::default(), seq: Cell::new(0) })
    }

    fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    fn first(&self) -> Option<TaskId> {
        self.tasks.borrow().first_key_value().map(|(_, task)| *task)
    }
}

/// `struct sched_ext_entity` of a task, less what the scheduler's code reads.
#[derive(Default)]
pub(crate) struct ExtEntity {
    dsq: RefCell<Option<Rc<Dsq>>>,
    key: Cell<(i64, i64)>,
    /// DSQ and flags of a direct dispatch.
    ddsp: Cell<Option<(u64, u64)>>,
    holding_cpu: Cell<Option<usize>>,
    sticky_cpu: Cell<Option<usize>>,
    in_custody: Cell<bool>,
    pub(crate) storages: RefCell<Vec<Option<Box<[u64]>>>>,
}

impl ExtEntity {
    /// `dsq_seq`: which insert into its DSQ this was.
    fn seq(&self) -> i64 {
        self.key.get().1.abs()
    }

    /// The DSQ that the task is in.
    pub(crate) fn dsq_id(&self) -> Option<u64> {
        self.dsq.borrow().as_ref().map(|dsq| dsq.id)
    }
}

/// `struct scx_rq`.
struct ExtRq {
    local: Rc<Dsq>,
    in_balance: Cell<bool>,
    in_wakeup: Cell<bool>,
    cpu_released: Cell<bool>,
    /// Of the path of this CPU: the task that a callback may insert (`direct_dispatch_task`). The
    /// inner value is none after the insert.
    direct: Cell<Option<Option<TaskId>>>,
    /// The run queue that the callback of this CPU holds the lock of.
    locked: Cell<Option<usize>>,
    deferred: RefCell<VecDeque<TaskId>>,
    deferred_posted: Cell<bool>,
    reenq: Cell<bool>,
    kicks: RefCell<BTreeMap<usize, Kick>>,
    helpers: Cell<u64>,
    scanned: Cell<u64>,
}

#[derive(Clone, Copy, Default)]
struct Kick {
    always: bool,
    if_idle: bool,
    preempt: bool,
}

/// `sched_ext`, with the scheduler in it. What follows are the rules with the flags that its loader
/// sets: ALLOW_QUEUED_WAKEUP, ENQ_EXITING, ENQ_LAST, ENQ_MIGRATION_DISABLED, KEEP_BUILTIN_IDLE.
pub(crate) struct Ext {
    pub(crate) object: Object,
    ops: [u64; NR_OPS - 1],
    pub(crate) bpf: Bpf,
    pub(crate) idle: Idle,
    user_dsqs: RefCell<BTreeMap<u64, Rc<Dsq>>>,
    llc_dsqs: RefCell<Vec<Rc<Dsq>>>,
    global: Rc<Dsq>,
    rqs: Vec<ExtRq>,
    costs: RefCell<[Cost; NR_OPS]>,
    loops: *const u64,
}

impl Ext {
    /// Loads the scheduler, and sets what its loader sets (`crates/scheduler/src/main.rs`).
    pub(crate) fn new(config: &Config) -> Result<Box<Self>, String> {
        let object = Object::load(&config.source)?;
        let table = object.symbol("holdfast_ops").ok_or("the scheduler has no holdfast_ops")?;
        // SAFETY: a struct sched_ext_ops, whose callbacks are pointers at these offsets.
        let read = |offset: u32| unsafe { ((table + u64::from(offset)) as *const u64).read() };
        let ops = OFFSETS.map(read);
        // Callbacks come before everything else; exit() is not called.
        let others = (0..l::OPS_DISPATCH_MAX_BATCH)
            .step_by(8)
            .filter(|at| *at != l::OPS_EXIT && !OFFSETS.contains(at) && read(*at) != 0);
        if let Some(at) = others.into_iter().next() {
            return Err(format!("the model does not call the callback at {at} of sched_ext_ops"));
        }
        load_params(&object, config);
        let rqs = (0..config.nr_cpus).map(ExtRq::new).collect();
        let loops = object.symbol("hf_loops").ok_or("the scheduler counts no loops")? as *const u64;
        Ok(Box::new(Self {
            object,
            ops,
            bpf: Bpf::default(),
            idle: Idle::new(config),
            user_dsqs: RefCell::default(),
            llc_dsqs: RefCell::default(),
            global: Dsq::new(DSQ_GLOBAL, None),
            rqs,
            costs: RefCell::default(),
            loops,
        }))
    }

    /// `ops.init()`.
    pub(crate) fn init(&self, k: &Kernel) -> Result<(), String> {
        match self.call(k, Op::Init, None, &mut [0]) as i32 {
            0 => Ok(()),
            error => Err(format!("the scheduler's init fails with {error}")),
        }
    }

    /// Costs so far of a callback.
    pub(crate) fn cost(&self, op: Op) -> Cost {
        self.costs.borrow()[op as usize]
    }

    pub(crate) fn clear_costs(&self) {
        *self.costs.borrow_mut() = [Cost::default(); NR_OPS];
    }

    pub(crate) fn count_helper(&self, k: &Kernel) {
        let helpers = &self.rqs[k.this_cpu()].helpers;
        helpers.set(helpers.get() + 1);
    }

    fn count_scanned(&self, k: &Kernel, nr: u64) {
        let scanned = &self.rqs[k.this_cpu()].scanned;
        scanned.set(scanned.get() + nr);
    }

    fn has(&self, op: Op) -> bool {
        self.ops[op as usize] != 0
    }

    /// Calls a callback, with the lock of run queue `rq` held.
    fn call(&self, k: &Kernel, op: Op, rq: Option<usize>, args: &mut [u64]) -> u64 {
        type Callback = unsafe extern "C-unwind" fn(*mut u64) -> u64;
        let address = self.ops[op as usize];
        self.measured(k, op, || {
            let outer = self.rqs[k.this_cpu()].locked.replace(rq);
            // SAFETY: a callback of the scheduler; BPF_PROG() takes its arguments as an array.
            let value = unsafe { std::mem::transmute::<u64, Callback>(address)(args.as_mut_ptr()) };
            self.rqs[k.this_cpu()].locked.set(outer);
            value
        })
    }

    fn call_if_any(&self, k: &Kernel, op: Op, rq: Option<usize>, args: &mut [u64]) {
        if self.has(op) {
            self.call(k, op, rq, args);
        }
    }

    fn measured<R>(&self, k: &Kernel, op: Op, call: impl FnOnce() -> R) -> R {
        let rq = &self.rqs[k.this_cpu()];
        let (helpers, scanned) = (rq.helpers.get(), rq.scanned.get());
        // SAFETY: a variable of the loaded object.
        let loops = unsafe { self.loops.read_volatile() };
        let value = call();
        let (helpers, scanned) = (rq.helpers.get() - helpers, rq.scanned.get() - scanned);
        let cost = &mut self.costs.borrow_mut()[op as usize];
        cost.calls += 1;
        cost.helpers += helpers;
        cost.helpers_max = cost.helpers_max.max(helpers);
        cost.scanned += scanned;
        cost.scanned_max = cost.scanned_max.max(scanned);
        // SAFETY: as above.
        cost.loops += unsafe { self.loops.read_volatile() }.wrapping_sub(loops);
        value
    }

    pub(crate) fn timer_expires(&self, k: &Kernel, index: usize, start: u64) {
        self.measured(k, Op::Timer, || self.bpf.timer_expires(index, start));
    }

    /// The task that C code has the address of; none: an idle task.
    pub(crate) fn task_at(&self, k: &Kernel, address: u64) -> Option<Rc<Task>> {
        if address == 0 {
            return None;
        }
        // SAFETY: a struct task_struct of the model.
        let tid = unsafe { ((address + u64::from(l::TASK_PID)) as *const u32).read() };
        (tid != 0).then(|| k.task(TaskId(tid - 1)))
    }

    /// `current`.
    pub(crate) fn current(&self, k: &Kernel) -> Rc<Task> {
        match k.curr(k.this_cpu()) {
            Some(task) => k.task(task),
            None => Rc::clone(&k.idle_task),
        }
    }

    pub(crate) fn task_from_pid(&self, k: &Kernel, tid: i32) -> u64 {
        match usize::try_from(tid) {
            Ok(tid) if tid > 0 && tid <= k.nr_tasks() => {
                k.task(TaskId(tid as u32 - 1)).raw.address()
            }
            _ => 0,
        }
    }

    // ---- DSQs ----

    pub(crate) fn create_dsq(&self, id: u64) -> i32 {
        if id == self.llc_dsqs.borrow().len() as u64 {
            self.llc_dsqs.borrow_mut().push(Dsq::new(id, None));
        } else if self.user_dsqs.borrow_mut().insert(id, Dsq::new(id, None)).is_some() {
            return -17;
        }
        0
    }

    /// `find_dsq_for_dispatch()`.
    fn find_dsq(&self, rq: usize, id: u64) -> Rc<Dsq> {
        if id == DSQ_LOCAL {
            return Rc::clone(&self.rqs[rq].local);
        }
        if id & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            let cpu = id as u32 as usize;
            assert!(cpu < self.rqs.len(), "there is no CPU {cpu}");
            return Rc::clone(&self.rqs[cpu].local);
        }
        if id == DSQ_GLOBAL {
            return Rc::clone(&self.global);
        }
        if let Some(dsq) = self.llc_dsqs.borrow().get(id as usize) {
            return Rc::clone(dsq);
        }
        let dsq = self.user_dsqs.borrow().get(&id).cloned();
        dsq.unwrap_or_else(|| panic!("the scheduler uses DSQ {id:#x}, which it has not created"))
    }

    pub(crate) fn dsq_nr_queued(&self, k: &Kernel, id: u64) -> i32 {
        self.find_dsq(k.this_cpu(), id).len() as i32
    }

    pub(crate) fn peek(&self, k: &Kernel, id: u64) -> u64 {
        let first = self.find_dsq(k.this_cpu(), id).first();
        first.map_or(0, |task| k.task(task).raw.address())
    }

    // struct bpf_iter_scx_dsq has 6 words: the DSQ, the key of the last task, the DSQ's seq at the
    // start, the direction, and whether a task was returned.
    pub(crate) fn iter_new(&self, k: &Kernel, iter: *mut u64, id: u64, flags: u64) -> i32 {
        let dsq = self.find_dsq(k.this_cpu(), id);
        let words =
            [Rc::as_ptr(&dsq) as u64, 0, 0, dsq.seq.get() as u64, flags & l::DSQ_ITER_REV, 0];
        // SAFETY: user DSQs live as long as this; the iterator has 48 bytes.
        unsafe { iter.cast::<[u64; 6]>().write(words) };
        0
    }

    /// `nldsq_cursor_next_task()`: not tasks that were queued after the iteration began.
    pub(crate) fn iter_next(&self, k: &Kernel, iter: *mut u64) -> u64 {
        // SAFETY: as iter_new() has written it.
        let words = unsafe { &mut *iter.cast::<[u64; 6]>() };
        // SAFETY: as above.
        let dsq = unsafe { &*(words[0] as *const Dsq) };
        let last = (words[1] as i64, words[2] as i64);
        let tasks = dsq.tasks.borrow();
        let is_old = |task: &TaskId| k.task(*task).ext.seq() <= words[3] as i64;
        let (from, to);
        let found = match (words[4] != 0, words[5] != 0) {
            (false, begun) => {
                from = if begun {
                    std::ops::Bound::Excluded(last)
                } else {
                    std::ops::Bound::Unbounded
                };
                let mut range = tasks.range((from, std::ops::Bound::Unbounded));
                range.find(|(_, task)| is_old(task))
            }
            (true, begun) => {
                to = if begun {
                    std::ops::Bound::Excluded(last)
                } else {
                    std::ops::Bound::Unbounded
                };
                let range = tasks.range((std::ops::Bound::Unbounded, to));
                range.rev().find(|(_, task)| is_old(task))
            }
        };
        let Some((key, task)) = found else { return 0 };
        (words[1], words[2], words[5]) = (key.0 as u64, key.1 as u64, 1);
        self.count_scanned(k, 1);
        k.task(*task).raw.address()
    }

    /// `dispatch_enqueue()`; for a local DSQ its run queue is locked.
    fn dispatch_enqueue(&self, k: &Kernel, rq: usize, dsq: &Rc<Dsq>, task: &Task, flags: u64) {
        let entity = &task.ext;
        assert!(entity.dsq.borrow().is_none(), "{} is in two DSQs", task.name);
        let seq = dsq.seq.get() + 1;
        dsq.seq.set(seq);
        let key = if flags & l::ENQ_DSQ_PRIQ != 0 {
            if dsq.cpu.is_some() || dsq.id == DSQ_GLOBAL {
                k.violation("scx_error", "cannot use vtime ordering for built-in DSQs".into());
            }
            (task.raw.get::<u64>(l::TASK_SCX_VTIME) as i64, seq)
        } else if flags & (l::ENQ_HEAD | l::ENQ_PREEMPT) != 0 {
            (0, -seq)
        } else {
            (0, seq)
        };
        entity.key.set(key);
        dsq.tasks.borrow_mut().insert(key, task.id);
        *entity.dsq.borrow_mut() = Some(Rc::clone(dsq));
        match dsq.cpu {
            Some(cpu) => self.local_dsq_post_enq(k, cpu, task, flags),
            None if dsq.id == DSQ_GLOBAL => self.leave_custody(k, rq, task, 0),
            None => entity.in_custody.set(true),
        }
    }

    /// `task_leave_custody()`, and `ops.dequeue()` if the task was in it: since 7.1.
    fn leave_custody(&self, k: &Kernel, rq: usize, task: &Task, flags: u64) {
        if task.ext.in_custody.take() && k.config.kernel >= KernelVersion::V7_2 {
            self.call_if_any(k, Op::Dequeue, Some(rq), &mut [task.raw.address(), flags]);
        }
    }

    fn local_dsq_post_enq(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        self.leave_custody(k, cpu, task, 0);
        let curr = k.curr(cpu).map(|curr| k.task(curr));
        if curr.is_none() && k.config.kernel >= KernelVersion::V7_2 {
            // wakeup_preempt() of a class above that of the idle task.
            k.resched_curr(cpu);
        }
        if self.rqs[cpu].in_balance.get() || flags & l::ENQ_PREEMPT == 0 {
            return;
        }
        match curr {
            Some(curr) if curr.id != task.id && curr.sched.get() == Sched::Class => {
                curr.raw.set(l::TASK_SCX_SLICE, 0u64);
                k.resched_curr(cpu);
            }
            None => k.resched_curr(cpu),
            _ => {}
        }
    }

    fn unlink(&self, task: &Task) {
        if let Some(dsq) = task.ext.dsq.take() {
            dsq.tasks.borrow_mut().remove(&task.ext.key.get());
        }
    }

    /// `dispatch_dequeue()`, with the task's run queue locked.
    fn dispatch_dequeue(&self, rq: usize, task: &Task) {
        self.rqs[rq].deferred.borrow_mut().retain(|id| *id != task.id);
        // Another CPU that moves the task has unlinked it, and finds that it has lost it.
        task.ext.holding_cpu.set(None);
        self.unlink(task);
    }

    // ---- inserts ----

    /// `scx_bpf_dsq_insert()`.
    pub(crate) fn dsq_insert(
        &self,
        k: &Kernel,
        task: u64,
        dsq: u64,
        slice: u64,
        flags: u64,
    ) -> bool {
        let Some(task) = self.task_at(k, task) else { return false };
        if slice != 0 {
            task.raw.set(l::TASK_SCX_SLICE, slice);
        } else if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            task.raw.set(l::TASK_SCX_SLICE, 1u64);
        }
        self.mark_direct_dispatch(k, &task, dsq, flags)
    }

    /// `scx_bpf_dsq_insert_vtime()`: DSQ, slice, virtual time and flags.
    pub(crate) fn dsq_insert_vtime(
        &self,
        k: &Kernel,
        task: u64,
        (dsq, slice, vtime, flags): (u64, u64, u64, u64),
    ) -> bool {
        if let Some(task) = self.task_at(k, task) {
            task.raw.set(l::TASK_SCX_VTIME, vtime);
        }
        self.dsq_insert(k, task, dsq, slice, flags | l::ENQ_DSQ_PRIQ)
    }

    fn mark_direct_dispatch(&self, k: &Kernel, task: &Task, dsq: u64, flags: u64) -> bool {
        let direct = &self.rqs[k.this_cpu()].direct;
        if direct.get() != Some(Some(task.id)) {
            k.violation("scx_error", format!("an insert of {} out of place", task.name));
            return false;
        }
        direct.set(Some(None));
        task.ext.ddsp.set(Some((dsq, flags)));
        true
    }

    /// Calls a callback that may insert `task`.
    fn call_direct(
        &self,
        k: &Kernel,
        op: Op,
        rq: Option<usize>,
        task: &Task,
        args: &mut [u64],
    ) -> u64 {
        let direct = &self.rqs[k.this_cpu()].direct;
        let outer = direct.replace(Some(Some(task.id)));
        let value = self.call(k, op, rq, args);
        direct.set(outer);
        value
    }

    fn direct_dispatch(&self, k: &Kernel, rq: usize, task: &Task, (id, flags): (u64, u64)) {
        let dsq = self.find_dsq(rq, id);
        if dsq.cpu.is_some_and(|cpu| cpu != rq) {
            task.ext.ddsp.set(Some((id, flags)));
            self.rqs[rq].deferred.borrow_mut().push_back(task.id);
            self.schedule_deferred_locked(k, rq);
            return;
        }
        task.ext.ddsp.set(None);
        self.dispatch_enqueue(k, rq, &dsq, task, flags);
    }

    fn do_enqueue_task(
        &self,
        k: &Kernel,
        rq: usize,
        task: &Task,
        flags: u64,
        sticky: Option<usize>,
    ) {
        if sticky == Some(rq) {
            task.ext.ddsp.set(None);
            let local = Rc::clone(&self.rqs[rq].local);
            return self.dispatch_enqueue(k, rq, &local, task, flags);
        }
        if !k.is_online(rq) {
            task.ext.ddsp.set(None);
            task.raw.set(l::TASK_SCX_SLICE, l::SLICE_DFL);
            let local = Rc::clone(&self.rqs[rq].local);
            return self.dispatch_enqueue(k, rq, &local, task, flags);
        }
        if task.ext.ddsp.get().is_none() {
            let flags = flags & !MIGRATING;
            self.call_direct(k, Op::Enqueue, Some(rq), task, &mut [task.raw.address(), flags]);
        }
        let Some((dsq, more)) = task.ext.ddsp.get() else {
            k.violation("lost task", format!("enqueue() has left {} in no DSQ", task.name));
            return;
        };
        self.direct_dispatch(k, rq, task, (dsq, more | flags & !MIGRATING));
    }

    /// `schedule_deferred_locked()`.
    fn schedule_deferred_locked(&self, k: &Kernel, rq: usize) {
        // task_woken() and balance_callbacks() run it.
        if self.rqs[rq].in_wakeup.get() || self.rqs[rq].in_balance.get() {
            return;
        }
        if !self.rqs[rq].deferred_posted.replace(true) {
            k.post_in(0, Event::On(rq, Job::Deferred));
        }
    }

    /// `process_ddsp_deferred_locals()`.
    fn run_deferred(&self, k: &Kernel, rq: usize) {
        loop {
            let first = self.rqs[rq].deferred.borrow_mut().pop_front();
            let Some(task) = first.map(|task| k.task(task)) else { break };
            let Some((id, flags)) = task.ext.ddsp.take() else { continue };
            let dsq = self.find_dsq(rq, id);
            if dsq.cpu.is_some() {
                self.dispatch_to_local_dsq(k, rq, &dsq, &task, flags);
            }
        }
    }

    // ---- moves ----

    /// `task_can_run_on_remote_rq()`.
    fn can_run_on(&self, k: &Kernel, task: &Task, cpu: usize) -> bool {
        !task.is_migration_disabled() && task.may_run_on(cpu) && k.is_online(cpu)
    }

    /// `move_remote_task_to_local_dsq()`: `src` is locked before, `dst` afterwards.
    fn move_remote(&self, k: &Kernel, task: &Task, flags: u64, src: usize, dst: usize) {
        task.ext.sticky_cpu.set(Some(dst));
        k.deactivate_task(src, task, MIGRATING);
        k.set_task_cpu(task, dst);
        k.switch_rq_lock(src, dst);
        k.activate_task(dst, task, MIGRATING | flags);
    }

    /// `dispatch_to_local_dsq()`: `rq` is locked before and afterwards.
    fn dispatch_to_local_dsq(&self, k: &Kernel, rq: usize, dsq: &Rc<Dsq>, task: &Task, flags: u64) {
        let dst = dsq.cpu.expect("a local DSQ");
        let src = task.cpu.get();
        if rq == src && rq == dst {
            return self.dispatch_enqueue(k, rq, dsq, task, flags);
        }
        let here = k.this_cpu();
        task.ext.holding_cpu.set(Some(here));
        k.switch_rq_lock(rq, src);
        let mut locked = src;
        if task.ext.holding_cpu.get() == Some(here) && task.cpu.get() == src {
            task.ext.holding_cpu.set(None);
            if src == dst {
                self.dispatch_enqueue(k, dst, dsq, task, flags);
            } else if !self.can_run_on(k, task, dst) {
                let text = format!("{} may not run on CPU {dst}, to which it is sent", task.name);
                if k.is_online(dst) {
                    k.violation("scx_error", text);
                }
                let global = Rc::clone(&self.global);
                self.dispatch_enqueue(k, src, &global, task, flags);
            } else {
                self.move_remote(k, task, flags, src, dst);
                locked = dst;
            }
            if k.curr(dst).is_none() {
                k.resched_curr(dst);
            }
        }
        k.switch_rq_lock(locked, rq);
    }

    /// `consume_dispatch_q()`, with `rq` locked before and afterwards.
    fn consume(&self, k: &Kernel, rq: usize, dsq: &Rc<Dsq>, flags: u64) -> bool {
        'retry: loop {
            let mut steps = 0;
            let found = dsq.tasks.borrow().values().map(|id| k.task(*id)).find(|task| {
                steps += 1;
                task.cpu.get() == rq || self.can_run_on(k, task, rq)
            });
            self.count_scanned(k, steps);
            let Some(task) = found else { return false };
            self.unlink(&task);
            let src = task.cpu.get();
            if src == rq {
                // move_local_task_to_local_dsq()
                let local = Rc::clone(&self.rqs[rq].local);
                self.dispatch_enqueue(k, rq, &local, &task, flags & !l::ENQ_DSQ_PRIQ);
                return true;
            }
            // unlink_dsq_and_lock_src_rq()
            let here = k.this_cpu();
            task.ext.holding_cpu.set(Some(here));
            k.switch_rq_lock(rq, src);
            if task.ext.holding_cpu.get() != Some(here) || task.cpu.get() != src {
                k.switch_rq_lock(src, rq);
                continue 'retry;
            }
            task.ext.holding_cpu.set(None);
            self.move_remote(k, &task, flags, src, rq);
            return true;
        }
    }

    /// `scx_bpf_dsq_move_to_local()`.
    pub(crate) fn move_to_local(&self, k: &Kernel, id: u64, flags: u64) -> bool {
        let rq = k.this_cpu();
        let dsq = self.find_dsq(rq, id);
        self.consume(k, rq, &dsq, flags)
    }

    /// `scx_dsq_move()`.
    pub(crate) fn dsq_move(
        &self,
        k: &Kernel,
        iter: *mut u64,
        task: u64,
        id: u64,
        flags: u64,
    ) -> bool {
        let Some(task) = self.task_at(k, task) else { return false };
        // SAFETY: as iter_new() has written it.
        let from = unsafe { iter.cast::<[u64; 6]>().read() };
        let here = k.this_cpu();
        let locked = self.rqs[here].locked.get();
        let src = task.cpu.get();
        match locked {
            Some(rq) => k.switch_rq_lock(rq, src),
            None => k.lock_rq(src),
        }
        let mut held = src;
        // nldsq_cursor_lost_task()
        let is_there =
            task.ext.dsq.borrow().as_ref().is_some_and(|dsq| Rc::as_ptr(dsq) as u64 == from[0]);
        let mut moved = false;
        if is_there && task.cpu.get() == src && task.ext.seq() <= from[3] as i64 {
            // move_task_between_dsqs()
            let dsq = self.find_dsq(locked.unwrap_or(here), id);
            match dsq.cpu {
                Some(dst) if dst == src => {
                    self.unlink(&task);
                    self.dispatch_enqueue(k, src, &dsq, &task, flags);
                    moved = true;
                }
                Some(dst) if self.can_run_on(k, &task, dst) => {
                    self.unlink(&task);
                    self.move_remote(k, &task, flags, src, dst);
                    held = dst;
                    moved = true;
                }
                Some(dst) => {
                    k.violation("scx_error", format!("{} may not run on CPU {dst}", task.name));
                }
                None => {
                    self.unlink(&task);
                    self.dispatch_enqueue(k, src, &dsq, &task, flags);
                    moved = true;
                }
            }
        }
        match locked {
            Some(rq) => k.switch_rq_lock(held, rq),
            None => k.unlock_rq(held),
        }
        moved
    }

    /// `scx_bpf_reenqueue_local()` of `ops.cpu_release()`; since 7.1 it is put off.
    pub(crate) fn reenqueue_local(&self, k: &Kernel) -> u32 {
        let rq = k.this_cpu();
        if k.config.kernel >= KernelVersion::V7_2 {
            self.rqs[rq].reenq.set(true);
            return 0;
        }
        self.reenq_local(k, rq)
    }

    fn reenq_local(&self, k: &Kernel, rq: usize) -> u32 {
        let local = Rc::clone(&self.rqs[rq].local);
        let tasks: Vec<TaskId> = local.tasks.borrow().values().copied().collect();
        for id in &tasks {
            self.dispatch_dequeue(rq, &k.task(*id));
        }
        for id in &tasks {
            self.do_enqueue_task(k, rq, &k.task(*id), l::ENQ_REENQ, None);
        }
        tasks.len() as u32
    }

    // ---- kicks ----

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
    fn kick_one_cpu(&self, k: &Kernel, cpu: usize, kick: Kick) {
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

    // ---- choice of a CPU ----

    /// `select_cpu_from_kfunc()`.
    pub(crate) fn select_cpu(
        &self,
        k: &Kernel,
        task: u64,
        prev: usize,
        wake_flags: u64,
        flags: u64,
    ) -> Option<usize> {
        let task = self.task_at(k, task)?;
        if task.nr_cpus_allowed() == 1 || task.is_migration_disabled() {
            return (task.may_run_on(prev) && self.idle.claim(&k.config, prev)).then_some(prev);
        }
        let sync = wake_flags & l::WAKE_SYNC != 0;
        let core = flags & l::PICK_IDLE_CORE != 0;
        let local_nr = |cpu: usize| self.rqs[cpu].local.len();
        self.idle.select(k, prev, sync, &|index| task.cpus_mask().word(index), core, &local_nr)
    }

    /// `balance_one()` with `scx_dispatch_sched()`: does `prev` go on (`SCX_RQ_BAL_KEEP`)? Else the
    /// first task of the local DSQ runs, if there is one.
    fn balance_one(&self, k: &Kernel, rq: usize, prev: Option<&Task>) -> bool {
        let prev_goes_on = || {
            prev.is_some_and(|prev| is_queued(prev) && prev.raw.get::<u64>(l::TASK_SCX_SLICE) != 0)
        };
        self.rqs[rq].cpu_released.set(false);
        k.update_curr(rq);
        if prev_goes_on() {
            return true;
        }
        if self.rqs[rq].local.len() != 0 {
            return false;
        }
        let global = Rc::clone(&self.global);
        if global.len() != 0 && self.consume(k, rq, &global, 0) {
            return false;
        }
        if !k.is_online(rq) {
            return false;
        }
        // What dispatch() moves goes to the local DSQ at once. It inserts nothing into a buffer,
        // for which the kernel would ask again.
        let address = prev.map_or(0, |prev| prev.raw.address());
        self.call(k, Op::Dispatch, Some(rq), &mut [rq as u64, address]);
        if prev_goes_on() {
            return true;
        }
        if self.rqs[rq].local.len() == 0 && global.len() != 0 {
            self.consume(k, rq, &global, 0);
        }
        false
    }

    fn switch_class(&self, k: &Kernel, rq: usize, next: &Task) {
        if self.rqs[rq].cpu_released.replace(true) {
            return;
        }
        let args = Raw::new(l::CPU_RELEASE_ARGS_SIZE as usize);
        let reason = match next.sched.get() {
            Sched::Stop => l::CPU_PREEMPT_STOP,
            _ => l::CPU_PREEMPT_RT,
        };
        args.set(l::CPU_RELEASE_ARGS_REASON, reason as u32);
        args.set(l::CPU_RELEASE_ARGS_TASK, next.raw.address());
        self.call_if_any(k, Op::CpuRelease, Some(rq), &mut [rq as u64, args.address()]);
    }

    /// The value of a statistic of `intf.h`, over all CPUs.
    pub(crate) fn stat(&self, index: u32) -> u64 {
        let map = self.object.symbol("stats").expect("the scheduler has statistics");
        self.bpf.percpu_sum(map, index as usize)
    }
}

const QUEUED: u32 = l::TASK_QUEUED as u32;

fn is_queued(task: &Task) -> bool {
    task.raw.get::<u32>(l::TASK_SCX_FLAGS) & QUEUED != 0
}

impl ExtRq {
    fn new(cpu: usize) -> Self {
        Self {
            local: Dsq::new(DSQ_LOCAL, Some(cpu)),
            in_balance: Cell::new(false),
            in_wakeup: Cell::new(false),
            cpu_released: Cell::new(false),
            direct: Cell::new(None),
            locked: Cell::new(None),
            deferred: RefCell::default(),
            deferred_posted: Cell::new(false),
            reenq: Cell::new(false),
            kicks: RefCell::default(),
            helpers: Cell::new(0),
            scanned: Cell::new(0),
        }
    }
}

/// What `load()` of the scheduler's `main.rs` writes before it loads.
fn load_params(object: &Object, config: &Config) {
    object.set("LINUX_KERNEL_VERSION", 0, config.kernel.code());
    object.set("params", 0, config.params);
    object.set("guest_knowledge", 0, config.knobs.guest_knowledge);
    object.set("grace_enabled", 0, config.knobs.grace && config.knobs.guest_knowledge);
    object.set(
        "resume_first_enabled",
        0,
        config.knobs.resume_first && config.knobs.guest_knowledge,
    );
    object.set("directed_yield_enabled", 0, config.knobs.directed_yield);
    object.set("waiters_enabled", 0, config.knobs.waiters && config.knobs.guest_knowledge);
    object.set("nr_cpu_ids", 0, config.nr_cpus as u32);
    object.set("nr_llcs", 0, config.nr_llcs() as u32);
    let next = |range: std::ops::Range<usize>, cpu: usize| {
        (if cpu + 1 < range.end { cpu + 1 } else { range.start }) as u32
    };
    for cpu in 0..config.nr_cpus {
        let llc = config.llc_of(cpu);
        object.set("cpu_llc", cpu, llc as u32);
        object.set("llc_node", llc, config.node_of(cpu) as i32);
        object.set("llc_ring", cpu, next(config.llc_cpus(llc), cpu));
        object.set("core_ring", cpu, next(config.core_cpus(cpu), cpu));
    }
}

impl Class for Ext {
    /// `scx_pre_fork()` to `scx_post_fork()`.
    fn task_new(&self, k: &Kernel, task: &Task) {
        let args = Raw::new(l::INIT_TASK_ARGS_SIZE as usize);
        let group = task.cgroup().unwrap_or_else(|| Rc::clone(&k.cgroups.borrow()[0]));
        args.set(l::INIT_TASK_ARGS_CGROUP, group.raw.address());
        let mut words = [task.raw.address(), args.address()];
        if self.call(k, Op::InitTask, None, &mut words) as i32 != 0 {
            k.violation("scx_error", format!("init_task() fails for {}", task.name));
        }
        self.call_if_any(k, Op::Enable, None, &mut [task.raw.address()]);
    }

    /// `sched_ext_dead()`.
    fn task_dead(&self, k: &Kernel, task: &Task) {
        self.call_if_any(k, Op::Disable, None, &mut [task.raw.address()]);
    }

    fn select_task_rq(&self, k: &Kernel, task: &Task, prev: usize, wake_flags: u64) -> usize {
        let mut args = [task.raw.address(), prev as u64, wake_flags];
        self.call_direct(k, Op::SelectCpu, None, task, &mut args) as u32 as usize
    }

    fn enqueue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        let rq = &self.rqs[cpu];
        if flags & WAKEUP != 0 {
            rq.in_wakeup.set(true);
        }
        let mut sticky = task.ext.sticky_cpu.take();
        if flags & SAVE_RESTORE != 0 && k.curr(cpu) == Some(task.id) {
            sticky = Some(cpu);
        }
        let scx_flags = task.raw.get::<u32>(l::TASK_SCX_FLAGS);
        task.raw.set(l::TASK_SCX_FLAGS, scx_flags | QUEUED);
        if flags & MIGRATING == 0 {
            self.call_if_any(k, Op::Runnable, Some(cpu), &mut [task.raw.address(), flags]);
        }
        self.do_enqueue_task(k, cpu, task, flags, sticky);
        rq.in_wakeup.set(false);
    }

    fn dequeue_task(&self, k: &Kernel, cpu: usize, task: &Task, flags: u64) {
        let mut deq_flags = flags & !MIGRATING;
        if flags & WAKEUP == 0 && k.config.kernel >= KernelVersion::V7_2 {
            deq_flags |= l::DEQ_SCHED_CHANGE;
        }
        self.leave_custody(k, cpu, task, deq_flags);
        if k.curr(cpu) == Some(task.id) {
            k.update_curr(cpu);
            self.call_if_any(k, Op::Stopping, Some(cpu), &mut [task.raw.address(), 0]);
        }
        if flags & MIGRATING == 0 {
            self.call_if_any(k, Op::Quiescent, Some(cpu), &mut [task.raw.address(), deq_flags]);
        }
        let scx_flags = task.raw.get::<u32>(l::TASK_SCX_FLAGS);
        task.raw.set(l::TASK_SCX_FLAGS, scx_flags & !QUEUED);
        self.dispatch_dequeue(cpu, task);
        task.ext.ddsp.set(None);
    }

    /// `pick_task_scx()`.
    fn pick_task(&self, k: &Kernel, cpu: usize, prev: Option<&Task>) -> Option<TaskId> {
        let rq = &self.rqs[cpu];
        rq.in_balance.set(true);
        let prev_goes_on = self.balance_one(k, cpu, prev);
        rq.in_balance.set(false);
        let next = if prev_goes_on { prev.map(|prev| prev.id) } else { rq.local.first() }?;
        let task = k.task(next);
        if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            task.raw.set(l::TASK_SCX_SLICE, l::SLICE_DFL);
        }
        Some(next)
    }

    fn put_prev_task(&self, k: &Kernel, cpu: usize, task: &Task, next: Option<&Task>) {
        k.update_curr(cpu);
        if is_queued(task) {
            self.call_if_any(k, Op::Stopping, Some(cpu), &mut [task.raw.address(), 1]);
            if task.raw.get::<u64>(l::TASK_SCX_SLICE) != 0 {
                let local = Rc::clone(&self.rqs[cpu].local);
                self.dispatch_enqueue(k, cpu, &local, task, l::ENQ_HEAD);
            } else {
                let flags = if next.is_none() { l::ENQ_LAST } else { 0 };
                self.do_enqueue_task(k, cpu, task, flags, None);
            }
        }
        if let Some(next) = next.filter(|next| next.sched.get() != Sched::Class) {
            self.switch_class(k, cpu, next);
        }
    }

    fn set_next_task(&self, k: &Kernel, cpu: usize, task: &Task) {
        if is_queued(task) {
            self.leave_custody(k, cpu, task, l::DEQ_CORE_SCHED_EXEC);
            self.dispatch_dequeue(cpu, task);
            self.call_if_any(k, Op::Running, Some(cpu), &mut [task.raw.address()]);
        }
    }

    /// `update_curr_scx()`.
    fn charge(&self, _k: &Kernel, _cpu: usize, task: &Task, ran_ns: u64) {
        let slice = task.raw.get::<u64>(l::TASK_SCX_SLICE);
        if slice != SLICE_INF {
            task.raw.set(l::TASK_SCX_SLICE, slice.saturating_sub(ran_ns));
        }
    }

    fn task_tick(&self, k: &Kernel, cpu: usize, task: &Task) {
        self.call_if_any(k, Op::Tick, Some(cpu), &mut [task.raw.address()]);
        if task.raw.get::<u64>(l::TASK_SCX_SLICE) == 0 {
            k.resched_curr(cpu);
        }
    }

    fn yield_task(&self, k: &Kernel, cpu: usize) {
        if let Some(task) = k.curr(cpu).map(|curr| k.task(curr)) {
            self.call(k, Op::Yield, Some(cpu), &mut [task.raw.address(), 0]);
        }
    }

    fn yield_to_task(&self, k: &Kernel, cpu: usize, to: &Task) -> bool {
        let Some(task) = k.curr(cpu).map(|curr| k.task(curr)) else { return false };
        let mut args = [task.raw.address(), to.raw.address()];
        self.call(k, Op::Yield, Some(cpu), &mut args) as u8 != 0
    }

    fn task_woken(&self, k: &Kernel, cpu: usize) {
        self.run_deferred(k, cpu);
    }

    fn set_cpus_allowed(&self, k: &Kernel, cpu: usize, task: &Task) {
        let mut args = [task.raw.address(), task.raw.get(l::TASK_CPUS_PTR)];
        self.call_if_any(k, Op::SetCpumask, Some(cpu), &mut args);
    }

    /// `__scx_update_idle()`.
    fn update_idle(&self, k: &Kernel, cpu: usize, idle: bool, notify: bool) {
        let tell = || {
            if notify {
                let mut args = [cpu as u64, u64::from(idle)];
                self.call_if_any(k, Op::UpdateIdle, Some(cpu), &mut args);
            }
        };
        let is_first = k.config.kernel < KernelVersion::V6_16;
        if is_first {
            tell();
        }
        if notify || k.curr(cpu).is_none() {
            self.idle.update(&k.config, cpu, idle && k.is_online(cpu));
        }
        if !is_first {
            tell();
        }
    }

    fn balance_callbacks(&self, k: &Kernel, cpu: usize) {
        if !self.rqs[cpu].deferred.borrow().is_empty() {
            self.run_deferred(k, cpu);
        }
    }

    /// `kick_cpus_irq_workfn()`, and re-enqueues that were put off.
    fn irq_work(&self, k: &Kernel, cpu: usize) {
        if self.rqs[cpu].reenq.take() {
            k.lock_rq(cpu);
            self.reenq_local(k, cpu);
            k.unlock_rq(cpu);
        }
        if self.rqs[cpu].kicks.borrow().is_empty() {
            return;
        }
        let kicks = self.rqs[cpu].kicks.take();
        let (always, if_idle): (Vec<_>, Vec<_>) =
            kicks.into_iter().partition(|(_, kick)| kick.always);
        for (target, kick) in always.into_iter().chain(if_idle) {
            self.kick_one_cpu(k, target, kick);
        }
    }

    fn deferred(&self, k: &Kernel, cpu: usize) {
        self.rqs[cpu].deferred_posted.set(false);
        k.lock_rq(cpu);
        self.run_deferred(k, cpu);
        k.unlock_rq(cpu);
    }

    fn cgroup(&self, k: &Kernel, group: &Rc<Cgroup>, event: CgroupEvent) {
        let address = group.raw.address();
        match event {
            CgroupEvent::Made => {
                let args = Raw::new(l::CGROUP_INIT_ARGS_SIZE as usize);
                args.set(l::CGROUP_INIT_ARGS_WEIGHT, group.weight.get());
                self.call_if_any(k, Op::CgroupInit, None, &mut [address, args.address()]);
            }
            CgroupEvent::Removed => self.call_if_any(k, Op::CgroupExit, None, &mut [address]),
            CgroupEvent::Weight => {
                let mut args = [address, group.weight.get().into()];
                self.call_if_any(k, Op::CgroupSetWeight, None, &mut args);
            }
            CgroupEvent::Idle => {
                let mut args = [address, u64::from(group.idle.get())];
                self.call_if_any(k, Op::CgroupSetIdle, None, &mut args);
            }
            CgroupEvent::Bandwidth => {}
        }
    }

    fn cgroup_move(&self, k: &Kernel, task: &Task, from: &Rc<Cgroup>, to: &Rc<Cgroup>) {
        let mut args = [task.raw.address(), from.raw.address(), to.raw.address()];
        self.call_if_any(k, Op::CgroupMove, Some(task.cpu.get()), &mut args);
    }

    fn set_online(&self, k: &Kernel, cpu: usize, online: bool) {
        if !online {
            self.idle.update(&k.config, cpu, false);
        } else if k.curr(cpu).is_none() {
            self.idle.update(&k.config, cpu, true);
        }
    }
}

/// Flags of an enqueue have the values of the scheduler's; `PF_EXITING` is for `ops.enqueue()`.
const _: () = {
    assert!(l::ENQ_WAKEUP == WAKEUP && l::DEQ_SLEEP == WAKEUP);
    assert!(PF_EXITING == 4);
};
