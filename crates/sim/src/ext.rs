// SPDX-License-Identifier: GPL-2.0-or-later
//! The class `sched_ext`: `kernel/sched/ext/ext.c` of Linux 7.2, with the differences of older
//! kernels. Functions have the names of those that they follow.

mod class;
mod dsq;
mod insert;
mod kick;
mod moves;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use self::dsq::{DSQ_GLOBAL, DSQ_LOCAL, Dsq};
use self::kick::Kick;
use crate::bpf::Bpf;
use crate::config::Config;
use crate::idle::Idle;
use crate::kernel::{Kernel, TaskId};
use crate::layout as l;
use crate::object::Object;
use crate::task::{Sched, Task};

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
    Dump,
    DumpCpu,
    DumpTask,
    /// A BPF timer, which is no callback.
    Timer,
    /// The program at the tracepoint `sched_switch`, which is none either.
    SchedSwitch,
}

const NR_OPS: usize = Op::SchedSwitch as usize + 1;
const NR_CALLBACKS: usize = Op::Timer as usize;

const OFFSETS: [u32; NR_CALLBACKS] = [
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
    l::OPS_DUMP,
    l::OPS_DUMP_CPU,
    l::OPS_DUMP_TASK,
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
    /// Those of them that look into a hash table.
    pub hash_lookups: u64,
    /// Turns of its loops.
    pub loops: u64,
    /// Tasks that the kernel stepped over in DSQs on its behalf, with the DSQ locked.
    pub scanned: u64,
    /// Most of them in one call.
    pub scanned_max: u64,
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
    hash_lookups: Cell<u64>,
    scanned: Cell<u64>,
}

/// `sched_ext`, with the scheduler in it. What follows are the rules with the flags that its loader
/// sets: ALLOW_QUEUED_WAKEUP, ENQ_EXITING, ENQ_LAST, ENQ_MIGRATION_DISABLED, KEEP_BUILTIN_IDLE.
pub(crate) struct Ext {
    pub(crate) object: Object,
    ops: [u64; NR_CALLBACKS],
    /// The program at the tracepoint of that name.
    sched_switch: Option<u64>,
    pub(crate) bpf: Bpf,
    pub(crate) idle: Idle,
    user_dsqs: RefCell<BTreeMap<u64, Rc<Dsq>>>,
    llc_dsqs: RefCell<Vec<Rc<Dsq>>>,
    global: Rc<Dsq>,
    rqs: Vec<ExtRq>,
    costs: RefCell<[Cost; NR_OPS]>,
    /// What the scheduler has said in a dump.
    pub(crate) dump: RefCell<String>,
    loops: *const u64,
}

impl Ext {
    /// Loads the scheduler, and sets what its loader sets (`crates/scheduler/src/main.rs`).
    pub(crate) fn new(config: &Config) -> Result<Box<Self>, String> {
        let object = Object::load(&config.source)?;
        let table = object.symbol("holdfast_ops").ok_or("the scheduler has no holdfast_ops")?;
        // SAFETY: a struct sched_ext_ops, whose callbacks are pointers at these offsets.
        let read = |offset: u32| unsafe { ((table + u64::from(offset)) as *const u64).read() };
        let mut ops = OFFSETS.map(read);
        let mut sched_switch = None;
        // As load() of `main.rs` does.
        if config.kernel.has("scx_bpf_dsq_reenq___compat") {
            ops[Op::CpuRelease as usize] = 0;
            sched_switch = object.symbol("holdfast_sched_switch");
        }
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
            sched_switch,
            bpf: Bpf::default(),
            idle: Idle::new(config),
            user_dsqs: RefCell::default(),
            llc_dsqs: RefCell::default(),
            global: Dsq::new(DSQ_GLOBAL, None),
            rqs,
            costs: RefCell::default(),
            dump: RefCell::default(),
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

    /// `scx_dump_state()`: what the scheduler says of itself, of CPUs and of runnable tasks.
    pub(crate) fn dump_state(&self, k: &Kernel) -> String {
        self.call_if_any(k, Op::Dump, None, &mut [0]);
        for cpu in 0..k.config.nr_cpus {
            let idle = k.curr(cpu).is_none();
            self.call_if_any(k, Op::DumpCpu, None, &mut [0, cpu as u64, u64::from(idle)]);
            let is_here = |task: &Rc<Task>| {
                task.cpu.get() == cpu && task.on_rq.get() && task.sched.get() == Sched::Class
            };
            for task in k.task_ids().map(|id| k.task(id)).filter(is_here) {
                self.call_if_any(k, Op::DumpTask, None, &mut [0, task.raw.address()]);
            }
        }
        self.dump.take()
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

    pub(crate) fn count_hash_lookup(&self, k: &Kernel) {
        let lookups = &self.rqs[k.this_cpu()].hash_lookups;
        lookups.set(lookups.get() + 1);
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
        self.call_at(k, self.ops[op as usize], op, rq, args)
    }

    fn call_at(
        &self,
        k: &Kernel,
        address: u64,
        op: Op,
        rq: Option<usize>,
        args: &mut [u64],
    ) -> u64 {
        type Callback = unsafe extern "C-unwind" fn(*mut u64) -> u64;
        self.measured(k, op, || {
            let outer = self.rqs[k.this_cpu()].locked.replace(rq);
            // SAFETY: a callback of the scheduler; BPF_PROG() takes its arguments as an array.
            let value = unsafe { std::mem::transmute::<u64, Callback>(address)(args.as_mut_ptr()) };
            self.rqs[k.this_cpu()].locked.set(outer);
            if let (Op::Dispatch | Op::Stopping, Some(cpu)) = (op, rq) {
                k.rules.see_grace(k, self, cpu);
            }
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
        let hash_lookups = rq.hash_lookups.get();
        // SAFETY: a variable of the loaded object.
        let loops = unsafe { self.loops.read_volatile() };
        let value = call();
        let (helpers, scanned) = (rq.helpers.get() - helpers, rq.scanned.get() - scanned);
        let cost = &mut self.costs.borrow_mut()[op as usize];
        cost.calls += 1;
        cost.helpers += helpers;
        cost.hash_lookups += rq.hash_lookups.get() - hash_lookups;
        cost.helpers_max = cost.helpers_max.max(helpers);
        cost.scanned += scanned;
        cost.scanned_max = cost.scanned_max.max(scanned);
        // SAFETY: as above.
        cost.loops += unsafe { self.loops.read_volatile() }.wrapping_sub(loops);
        value
    }

    pub(crate) fn timer_expires(&self, k: &Kernel, index: usize, start: u64) {
        self.measured(k, Op::Timer, || self.bpf.timer_expires(index, start));
        k.rules.see_grace(k, self, k.this_cpu());
    }

    /// What the scheduler has granted a task in its grace; 0: it has none.
    pub(crate) fn granted_ns(&self, task: &Task) -> u64 {
        let Some(map) = self.object.symbol("task_ctxs") else { return 0 };
        let ctx = self.bpf.storage(map as *mut u64, 0, task, 0);
        if ctx == 0 {
            return 0;
        }
        // SAFETY: a struct task_ctx of the scheduler.
        unsafe { ((ctx + u64::from(l::TASK_CTX_GRANTED_NS)) as *const u64).read() }
    }

    /// Grace that the scheduler has granted to VMs so far, each by the address of its `struct kvm`.
    pub(crate) fn grace_of_vms(&self) -> Vec<(u64, u64)> {
        let Some(map) = self.object.symbol("vm_ctxs") else { return Vec::new() };
        let vms = self.bpf.hash_values::<l::hf_vm_ctx>(map).into_iter();
        vms.map(|(kvm, vm)| (kvm, vm.counts[l::HF_STAT_GRACE_NS as usize])).collect()
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

    /// The value of a statistic of `intf.h`, over all CPUs.
    pub(crate) fn stat(&self, index: u32) -> u64 {
        let map = self.object.symbol("stats").expect("the scheduler has statistics");
        self.bpf.percpu_sum(map, index as usize)
    }
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
            hash_lookups: Cell::new(0),
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
