// SPDX-License-Identifier: GPL-2.0-or-later
//! A machine in a test: made with [`Machine::new`], given tasks, and run.

use std::cell::Cell;
use std::rc::Rc;

use holdfast_policy::Params;

use crate::cgroup::Cgroup;
use crate::class::{CgroupEvent, Class};
use crate::config::{Bounds, Config, Explore, KernelVersion, Knobs, MS};
use crate::cpuset::CpuSet;
use crate::ext::{Cost, Ext, Op};
use crate::guest::{KvmVcpu, Memory, Words};
use crate::kernel::{Event, Job, Kernel, SwitchHook, TaskId, Totals};
use crate::layout as l;
use crate::object::Source;
use crate::program::Program;
use crate::rules::Violation;
use crate::task::{PF_KTHREAD, Policy, Task};

/// How often the rules look at tasks that wait.
const CHECK_NS: u64 = 20 * MS;

/// What a machine is to be like; [`Builder::boot`] makes it.
#[derive(Clone, Debug)]
pub struct Builder {
    config: Config,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $field:ident = $value:expr;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.config.$field = $value;
            self
        })*
    };
}

impl Builder {
    setters! {
        /// Number of CPUs; 2 unless given.
        cpus: usize => nr_cpus = cpus;
        /// CPUs of each LLC; all of them unless given.
        cpus_per_llc: usize => cpus_per_llc = cpus_per_llc;
        /// LLCs of each NUMA node; all of them unless given.
        llcs_per_node: usize => llcs_per_node = llcs_per_node;
        /// Threads of each core; 1 unless given.
        smt: usize => threads_per_core = smt;
        /// Ticks per second; 250 unless given.
        hz: u64 => tick_ns = 1_000_000_000 / hz;
        /// All CPUs tick at the same moments; else each has a random phase.
        ticks_aligned: bool => ticks_aligned = ticks_aligned;
        /// How long an interrupt takes to another CPU; 1000 ns unless given.
        ipi_ns: u64 => ipi_ns = ipi_ns;
        /// CPU time that a switch costs the next task; 0 unless given.
        switch_ns: u64 => switch_ns = switch_ns;
        /// The kernel; 7.2 unless given.
        kernel: KernelVersion => kernel = kernel;
        /// Interleaves callbacks of several CPUs; they are atomic unless given.
        explore: Explore => explore = Some(explore);
        /// Tunables of the scheduler.
        params: Params => params = params;
        /// Ablations of the scheduler.
        knobs: Knobs => knobs = knobs;
        /// The scheduler's source; this tree's unless given.
        source: Source => source = source;
        /// Bounds that each run is checked against.
        bounds: Bounds => bounds = bounds;
    }

    fn complete(mut self) -> Config {
        let config = &mut self.config;
        if config.cpus_per_llc == 0 {
            config.cpus_per_llc = config.nr_cpus;
        }
        if config.llcs_per_node == 0 {
            config.llcs_per_node = config.nr_llcs();
        }
        self.config
    }

    /// Boots it with Holdfast loaded.
    ///
    /// # Panics
    ///
    /// If the scheduler cannot be loaded.
    pub fn boot(self) -> Machine {
        let config = self.complete();
        let ext = Ext::new(&config).unwrap_or_else(|error| panic!("{error}"));
        let kernel = Kernel::new(config, Some(ext), None);
        let entered = crate::kfuncs::Entered::new(&kernel);
        let ext = kernel.ext.as_deref().expect("just given");
        ext.init(&kernel).unwrap_or_else(|error| panic!("{error}"));
        drop(entered);
        Machine::with(kernel)
    }

    /// Boots it with another scheduling class, which `make` makes.
    pub fn boot_class(self, make: impl FnOnce(&Config) -> Box<dyn Class>) -> Machine {
        let config = self.complete();
        let class = make(&config);
        Machine::with(Kernel::new(config, None, Some(class)))
    }
}

/// A machine with a model kernel.
pub struct Machine {
    kernel: Box<Kernel>,
    checked_at: Cell<u64>,
    nr_memories: Cell<u64>,
}

/// A task to be started: [`task`], and what is said of it.
pub struct Spawn {
    name: String,
    policy: Policy,
    program: Box<dyn Program>,
    cpus: Option<CpuSet>,
    cgroup: Option<Rc<Cgroup>>,
    is_kthread: bool,
    tgid: u32,
    memory: Option<Rc<Memory>>,
}

/// A task of weight 100 that may run everywhere.
pub fn task(name: impl Into<String>, program: impl Program + 'static) -> Spawn {
    Spawn {
        name: name.into(),
        policy: Policy::Normal(100),
        program: Box::new(program),
        cpus: None,
        cgroup: None,
        is_kthread: false,
        tgid: 0,
        memory: None,
    }
}

impl Spawn {
    /// Its weight, as `cpu.weight` counts: 100 is nice 0.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.policy = Policy::Normal(weight);
        self
    }

    /// Its policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The CPUs it may run on.
    #[must_use]
    pub fn on(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cpus = Some(cpus.into_iter().collect());
        self
    }

    /// Its control group.
    #[must_use]
    pub fn in_cgroup(mut self, group: &Rc<Cgroup>) -> Self {
        self.cgroup = Some(Rc::clone(group));
        self
    }

    /// It is a kernel thread.
    #[must_use]
    pub fn kthread(mut self) -> Self {
        self.is_kthread = true;
        self
    }

    /// Its address space is that of this VM's VMM.
    #[must_use]
    pub fn memory(mut self, memory: &Rc<Memory>) -> Self {
        self.memory = Some(Rc::clone(memory));
        self
    }
}

impl Machine {
    /// A machine whose random numbers come from `seed`.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(seed: u64) -> Builder {
        Builder { config: Config::new(seed) }
    }

    fn with(kernel: Box<Kernel>) -> Self {
        let entered = crate::kfuncs::Entered::new(&kernel);
        kernel.add_stoppers();
        drop(entered);
        Self { kernel, checked_at: Cell::new(0), nr_memories: Cell::new(0) }
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Starts a task: it is awake from this moment on.
    pub fn spawn(&self, spawn: Spawn) -> TaskId {
        let id = self.spawn_asleep(spawn);
        self.wake(id);
        id
    }

    /// Makes a task that sleeps until it is woken.
    pub fn spawn_asleep(&self, spawn: Spawn) -> TaskId {
        let _entered = crate::kfuncs::Entered::new(&self.kernel);
        let made = Task::new(spawn.name, spawn.policy, spawn.program);
        let nr_cpus = self.kernel.config().nr_cpus;
        let cpus = spawn.cpus.unwrap_or_else(|| CpuSet::first(nr_cpus));
        made.set_cpus(&cpus);
        // As fork() leaves it: on some CPU of its parent's.
        let from = self.kernel.nr_tasks() % nr_cpus;
        made.cpu.set((from..nr_cpus).chain(0..from).find(|cpu| cpus.has(*cpu)).unwrap_or(0));
        if spawn.is_kthread {
            made.raw.set(l::TASK_FLAGS, PF_KTHREAD);
        }
        made.raw.set(l::TASK_TGID, spawn.tgid);
        *made.cgroup.borrow_mut() = spawn.cgroup;
        *made.memory.borrow_mut() = spawn.memory;
        self.kernel.add_task(made)
    }

    /// Does something in interrupt context of CPU 0, at this moment.
    pub fn call(&self, call: impl FnOnce(&Kernel) + 'static) {
        self.call_in(0, call);
        self.kernel.run_until(self.kernel.now());
    }

    /// The same, in so many nanoseconds.
    pub fn call_in(&self, ns: u64, call: impl FnOnce(&Kernel) + 'static) {
        self.kernel.post_in(ns, Event::On(0, Job::Call(Box::new(call))));
    }

    /// Wakes a task.
    pub fn wake(&self, task: TaskId) {
        self.call(move |k| {
            k.try_to_wake_up(task, false);
        });
    }

    /// `sched_setaffinity(2)` of a task.
    pub fn set_affinity(&self, task: TaskId, cpus: impl IntoIterator<Item = usize>) {
        let cpus: CpuSet = cpus.into_iter().collect();
        self.call(move |k| k.set_cpus_allowed(task, &cpus));
    }

    /// Sets a task's weight.
    pub fn set_weight(&self, task: TaskId, weight: u32) {
        self.call(move |k| k.set_weight(task, weight));
    }

    /// Takes a CPU offline, or back.
    pub fn set_online(&self, cpu: usize, online: bool) {
        self.call(move |k| k.set_online(cpu, online));
    }

    /// Runs for so many nanoseconds.
    ///
    /// # Panics
    ///
    /// If a rule is violated; the message has the seed.
    pub fn run(&self, ns: u64) {
        if let Err(violation) = self.try_run(ns) {
            let seed = self.kernel.config().seed;
            panic!("seed {seed} violates a rule: {violation}");
        }
    }

    /// The same; a violation is returned.
    pub fn try_run(&self, ns: u64) -> Result<(), Violation> {
        let until = self.kernel.now() + ns;
        loop {
            let next = self.checked_at.get() + CHECK_NS;
            self.kernel.run_until(next.min(until));
            if self.kernel.now() >= next {
                self.checked_at.set(next);
                self.kernel.rules.check(&self.kernel);
            }
            if let Some(violation) = self.kernel.rules.first() {
                return Err(violation);
            }
            if self.kernel.now() >= until {
                break;
            }
        }
        self.kernel.rules.check_times(&self.kernel);
        self.kernel.rules.first().map_or(Ok(()), Err)
    }

    /// Nanoseconds since it booted.
    pub fn now(&self) -> u64 {
        self.kernel.now()
    }

    /// CPU time of a task, in nanoseconds.
    pub fn cpu_ns(&self, task: TaskId) -> u64 {
        self.kernel.cpu_ns(task)
    }

    /// The longest that a task has been runnable without a CPU, in nanoseconds; it may still be.
    pub fn longest_wait_ns(&self, id: TaskId) -> u64 {
        let task = self.kernel.task(id);
        let waits = task.ready_at.get().map_or(0, |since| self.now() - since);
        task.longest_wait_ns.get().max(waits)
    }

    /// Counters so far.
    pub fn totals(&self) -> Totals {
        self.kernel.totals()
    }

    /// Yields to a thread that were granted, and those of them after which the CPU had another task
    /// at once.
    pub fn yields(&self) -> (u64, u64) {
        self.kernel.rules.yields()
    }

    /// Sees each switch from now on.
    pub fn on_switch(&self, hook: SwitchHook) {
        self.kernel.set_switch_hook(hook);
    }

    // ---- control groups ----

    /// Makes a control group in the root.
    pub fn cgroup(&self, weight: u32) -> Rc<Cgroup> {
        let root = Rc::clone(&self.kernel.cgroups.borrow()[0]);
        self.cgroup_in(&root, weight)
    }

    /// Makes a control group in another one.
    pub fn cgroup_in(&self, parent: &Rc<Cgroup>, weight: u32) -> Rc<Cgroup> {
        let id = self.kernel.cgroups.borrow().len() as u64 + 1;
        let group = Rc::new(Cgroup::new(id, parent));
        group.weight.set(weight);
        self.kernel.cgroups.borrow_mut().push(Rc::clone(&group));
        self.cgroup_event(&group, CgroupEvent::Made);
        group
    }

    fn cgroup_event(&self, group: &Rc<Cgroup>, event: CgroupEvent) {
        let group = Rc::clone(group);
        self.call(move |k| k.class().cgroup(k, &group, event));
    }

    /// Removes a control group, which has no tasks.
    pub fn remove_cgroup(&self, group: &Rc<Cgroup>) {
        self.cgroup_event(group, CgroupEvent::Removed);
    }

    /// Sets `cpu.weight`.
    pub fn set_cgroup_weight(&self, group: &Rc<Cgroup>, weight: u32) {
        group.weight.set(weight);
        self.cgroup_event(group, CgroupEvent::Weight);
    }

    /// Sets `cpu.idle`.
    pub fn set_cgroup_idle(&self, group: &Rc<Cgroup>, idle: bool) {
        group.set_idle(idle);
        self.cgroup_event(group, CgroupEvent::Idle);
    }

    /// Moves a task to another control group (`sched_move_task()`).
    pub fn move_to_cgroup(&self, task: TaskId, group: &Rc<Cgroup>) {
        let group = Rc::clone(group);
        self.call(move |k| k.move_to_cgroup(task, &group));
    }

    // ---- guests ----

    /// Memory for a VM.
    pub fn memory(&self, bytes: usize) -> Rc<Memory> {
        let nr = self.nr_memories.get();
        self.nr_memories.set(nr + 1);
        Rc::new(Memory::new(nr, bytes))
    }

    /// Makes a task the vCPU with this index of a VM, as discovery would find it. The words tell
    /// where its guest's kernel keeps what the scheduler reads; none: the guest cannot be read.
    pub fn make_vcpu(
        &self,
        id: TaskId,
        memory: &Rc<Memory>,
        index: u32,
        words: Option<Words>,
    ) -> Rc<KvmVcpu> {
        let _entered = crate::kfuncs::Entered::new(&self.kernel);
        let task = self.kernel.task(id);
        *task.memory.borrow_mut() = Some(Rc::clone(memory));
        let kvm_vcpu = Rc::new(KvmVcpu::new(index));
        *task.kvm_vcpu.borrow_mut() = Some(Rc::clone(&kvm_vcpu));
        let Some(ext) = self.kernel.ext.as_deref() else { return kvm_vcpu };
        let at = |offset: Option<usize>| offset.map_or(0, |offset| memory.hva + offset as u64);
        let words_of = words.unwrap_or_default();
        let vcpu = l::hf_vcpu {
            kvm: memory.kvm,
            vcpu: kvm_vcpu.address(),
            born: 1,
            vcpu_idx: index,
            tid: id.tid(),
            steal_gpa: 0,
            steal_hva: 0,
            slot_gpa: 0,
            slot_hva: memory.hva,
            slot_len: memory.len() as u64,
            reported: 1,
            epoch: u32::from(words.is_some()),
            count_kind: 0,
            pad: 0,
            preempt_count_hva: at(Some(words_of.preempt_count)),
            qnode_hva: at(words_of.qnode),
            current_task_hva: at(words_of.tasks.map(|(current, _)| current)),
            idle_task_hva: at(words_of.tasks.map(|(_, idle)| idle)),
            call_queue_hva: at(words_of.call_queue),
            direct_map_hva: words_of.direct_map.wrapping_add(memory.hva),
            cpl: 0,
            guest_os_id: 0,
            tpr: 0,
            spun_at: 0,
            spin_gap_ns: 0,
            pause_rip: 0,
        };
        let map = ext.object.symbol("vcpus").expect("the scheduler has vcpus") as *mut u64;
        let size = size_of::<l::hf_vcpu>() as u32;
        let storage = ext.bpf.storage(map, size, &task, crate::bpf::STORAGE_CREATE);
        // SAFETY: the storage of a map whose values are of this type.
        unsafe { (storage as *mut l::hf_vcpu).write(vcpu) };
        kvm_vcpu
    }

    // ---- the scheduler ----

    fn ext(&self) -> &Ext {
        self.kernel.ext.as_deref().expect("this machine runs Holdfast")
    }

    /// What the calls of a callback have cost so far.
    pub fn cost(&self, op: Op) -> Cost {
        self.ext().cost(op)
    }

    /// Costs count from now on.
    pub fn clear_costs(&self) {
        self.ext().clear_costs();
    }

    /// A statistic of the scheduler, by its index in `enum hf_stat` ([`crate::stat`]).
    pub fn stat(&self, index: u32) -> u64 {
        self.ext().stat(index)
    }

    /// A variable of the scheduler of type `T`, by its name in C; none: there is no such variable.
    pub fn variable<T: Copy>(&self, name: &str) -> Option<T> {
        self.ext().object.get(name)
    }

    /// What the scheduler says in a report of the kernel, such as that of a stall.
    pub fn dump(&self) -> String {
        let _entered = crate::kfuncs::Entered::new(&self.kernel);
        self.ext().dump_state(&self.kernel)
    }

    /// Groups that the scheduler counts active members in (`active` of `struct group`), by id.
    pub fn active_groups(&self) -> Vec<(u64, u64)> {
        /// `struct group` of `base/groups.bpf.h`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Group {
            id: u64,
            total: u64,
            active: u64,
            _vtime: u64,
            _parent_and_weights: [u32; 4],
        }
        let Some(map) = self.ext().object.symbol("groups") else { return Vec::new() };
        // They are made one after another; index 0 is no group's.
        let nr = self.kernel.cgroups.borrow().len() + 1;
        let groups = self.ext().bpf.array_values::<Group>(map, nr).into_iter();
        groups.filter(|g| g.active != 0 || g.total != 0).map(|g| (g.id, g.active)).collect()
    }
}
