// SPDX-License-Identifier: GPL-2.0-or-later
//! Tasks: `struct task_struct` as C code sees it, and what the model keeps beside it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::cgroup::Cgroup;
use crate::cpuset::{CpuSet, Mask};
use crate::ext::ExtEntity;
use crate::guest::{KvmVcpu, Memory};
use crate::kernel::{Lock, TaskId};
use crate::layout as l;
use crate::program::{Cx, Program, Step};
use crate::raw::Raw;

/// `include/linux/sched.h`.
pub(crate) const PF_EXITING: u32 = 0x4;
/// `include/linux/sched.h`.
pub(crate) const PF_KTHREAD: u32 = 0x0020_0000;
const SCHED_IDLE: u32 = 5;

/// How a task is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// By the scheduling class of the machine, with a weight as `cpu.weight` counts: 100 is nice 0.
    Normal(u32),
    /// The same, as `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO`, with this priority.
    Fifo(u8),
    /// As the stopper of a CPU.
    Stop,
}

/// The class of a task; a later one preempts an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) enum Sched {
    Class,
    Rt(u8),
    Stop,
}

/// `__state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Runs or wants to.
    Running,
    /// Sleeps.
    Sleeping,
    /// Has exited.
    Dead,
}

/// A task.
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    pub(crate) raw: Raw,
    cpus_mask: Mask,
    pub(crate) sched: Cell<Sched>,
    /// `task_cpu()`.
    pub cpu: Cell<usize>,
    pub(crate) state: Cell<State>,
    /// `p->on_rq`.
    pub on_rq: Cell<bool>,
    pub(crate) pi_lock: Lock,
    pub(crate) program: RefCell<Box<dyn Program>>,
    /// CPU time until its step is over.
    pub(crate) left: Cell<u64>,
    pub(crate) spins: Cell<bool>,
    pub(crate) poked: Cell<bool>,
    pub(crate) wake_pending: Cell<bool>,
    pub(crate) is_new: Cell<bool>,
    pub(crate) is_gone: Cell<bool>,
    pub(crate) ready_at: Cell<Option<u64>>,
    /// Since when it may run on the CPUs that it may run on.
    pub(crate) allowed_at: Cell<u64>,
    pub(crate) longest_wait_ns: Cell<u64>,
    pub(crate) cgroup: RefCell<Option<Rc<Cgroup>>>,
    pub(crate) ext: ExtEntity,
    /// What `bpf_probe_read_user()` finds while it runs.
    pub(crate) memory: RefCell<Option<Rc<Memory>>>,
    /// `struct kvm_vcpu` of a vCPU, which the scheduler has the address of.
    pub(crate) kvm_vcpu: RefCell<Option<Rc<KvmVcpu>>>,
}

impl Task {
    pub(crate) fn new(name: String, policy: Policy, program: Box<dyn Program>) -> Self {
        let raw = Raw::new(l::TASK_SIZE as usize);
        let cpus_mask = Mask::new();
        raw.set(l::TASK_CPUS_PTR, cpus_mask.address());
        let (sched, weight) = match policy {
            Policy::Normal(weight) => (Sched::Class, weight),
            Policy::Idle => {
                raw.set(l::TASK_POLICY, SCHED_IDLE);
                (Sched::Class, 1)
            }
            Policy::Fifo(priority) => (Sched::Rt(priority), 100),
            Policy::Stop => (Sched::Stop, 100),
        };
        raw.set(l::TASK_SCX_WEIGHT, weight);
        // `p->prio`: below MAX_RT_PRIO (100) for those of higher classes.
        raw.set(
            l::TASK_PRIO,
            match sched {
                Sched::Class => 120,
                Sched::Rt(priority) => 99 - i32::from(priority),
                Sched::Stop => 0,
            },
        );
        let task = Self {
            id: TaskId(u32::MAX),
            name,
            raw,
            cpus_mask,
            sched: Cell::new(sched),
            cpu: Cell::new(0),
            state: Cell::new(State::Sleeping),
            on_rq: Cell::new(false),
            pi_lock: Lock::default(),
            program: RefCell::new(program),
            left: Cell::new(0),
            spins: Cell::new(false),
            poked: Cell::new(false),
            wake_pending: Cell::new(false),
            is_new: Cell::new(true),
            is_gone: Cell::new(false),
            ready_at: Cell::new(None),
            allowed_at: Cell::new(0),
            longest_wait_ns: Cell::new(0),
            cgroup: RefCell::new(None),
            ext: ExtEntity::default(),
            memory: RefCell::new(None),
            kvm_vcpu: RefCell::new(None),
        };
        task.set_state(State::Sleeping);
        task
    }

    /// The idle task, as `current` has it: thread 0.
    pub(crate) fn idle() -> Self {
        Self::new("idle".into(), Policy::Normal(100), Box::new(|_: &Cx<'_>| Step::Block))
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.set(state);
        self.raw.set(l::TASK_STATE, u32::from(state != State::Running));
    }

    /// Its weight, as `cpu.weight` counts.
    pub fn weight(&self) -> u32 {
        self.raw.get(l::TASK_SCX_WEIGHT)
    }

    /// `cpus_ptr`.
    pub fn cpus(&self) -> CpuSet {
        self.cpus_mask.get()
    }

    /// The same, as C code has it.
    pub(crate) fn cpus_mask(&self) -> &Mask {
        &self.cpus_mask
    }

    /// Is this CPU in `cpus_ptr`?
    pub fn may_run_on(&self, cpu: usize) -> bool {
        self.cpus_mask.has(cpu)
    }

    pub(crate) fn set_cpus(&self, cpus: &CpuSet) {
        self.cpus_mask.assign(cpus);
        self.raw.set(l::TASK_NR_CPUS_ALLOWED, cpus.len() as u32);
    }

    /// `task_has_idle_policy()`.
    pub(crate) fn is_idle_policy(&self) -> bool {
        self.raw.get::<u32>(l::TASK_POLICY) == SCHED_IDLE
    }

    /// `nr_cpus_allowed`.
    pub fn nr_cpus_allowed(&self) -> u32 {
        self.raw.get(l::TASK_NR_CPUS_ALLOWED)
    }

    /// `is_migration_disabled()`.
    pub fn is_migration_disabled(&self) -> bool {
        self.raw.get::<u16>(l::TASK_MIGRATION_DISABLED) != 0
    }

    /// Its control group; none: the root.
    pub fn cgroup(&self) -> Option<Rc<Cgroup>> {
        self.cgroup.borrow().clone()
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state.get()
    }
}
