// SPDX-License-Identifier: GPL-2.0-or-later
//! A VM.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use holdfast_policy::VcpuClass;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::costs::Costs;
use super::ctx::Ctx;
use super::ipi::Calls;
use super::sched::{RunQueue, Thread, ThreadId};
use super::vcpu::{
    AT_CALL_QUEUE, AT_CURRENT, AT_IDLE, AT_PREEMPT_COUNT, AT_QNODES, Exit, Frame, PAGE, Request,
    Run, Vcpu,
};
use crate::cgroup::Cgroup;
use crate::config::US;
use crate::guest::{Memory, Words};
use crate::kernel::TaskId;
use crate::machine::{Machine, task};

/// Where a guest's kernel maps its memory (`page_offset_base`).
pub(super) const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// How long a VMM takes to start a vCPU.
const START_NS: u64 = 100 * US;

/// What a VM has.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// `KVM_FEATURE_PV_UNHALT`: paravirtual spinlocks.
    pub pv_spinlocks: bool,
    /// No queued spinlocks at all: test-and-set ones (`virt_spin_lock()`), as in a guest of KVM
    /// without `KVM_FEATURE_PV_UNHALT`. Else, without `pv_spinlocks`: native ones (`nopvspin`).
    pub test_and_set: bool,
    /// `KVM_FEATURE_PV_TLB_FLUSH`.
    pub pv_tlb_flush: bool,
    /// `KVM_FEATURE_PV_SCHED_YIELD`.
    pub pv_sched_yield: bool,
    /// Exits for PAUSE.
    pub pause_exits: bool,
    /// The scheduler can read the guest.
    pub readable: bool,
    /// What things cost; none: the defaults.
    pub costs: Option<Costs>,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            pv_spinlocks: true,
            test_and_set: false,
            pv_tlb_flush: true,
            pv_sched_yield: true,
            pause_exits: false,
            readable: true,
            costs: None,
        }
    }
}

/// What all vCPUs and threads of a VM share.
pub(crate) struct Shared {
    pub(super) features: Features,
    pub(super) costs: Costs,
    pub(super) memory: Rc<Memory>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) rqs: Vec<RunQueue>,
    pub(super) threads: RefCell<Vec<Rc<Thread>>>,
    pub(super) calls: Calls,
    pub(super) ops: Cell<u64>,
    pub(super) now: Cell<u64>,
    pub(super) request: Cell<Option<Request>>,
    pub(super) answer: Cell<u64>,
    pub(super) pokes: RefCell<Vec<usize>>,
    pub(super) wakes: RefCell<Vec<usize>>,
    pub(super) error: Cell<Option<String>>,
    pub(super) last_boosted: Cell<usize>,
    random: RefCell<ChaCha8Rng>,
    preemptions: Cell<[u64; 6]>,
    exits: Cell<Exits>,
}

/// Exits of all vCPUs so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Exits {
    /// For PAUSE.
    pub nr_pause: u64,
    /// `KVM_HC_KICK_CPU`.
    pub nr_kicks: u64,
    /// Halts, of idle CPUs and of waiters.
    pub nr_halts: u64,
    /// Interrupts sent.
    pub nr_ipis: u64,
}

impl Shared {
    pub(super) fn thread(&self, id: ThreadId) -> Rc<Thread> {
        Rc::clone(&self.threads.borrow()[id.0])
    }

    pub(super) fn frames_of<R>(&self, id: ThreadId, f: impl FnOnce(&mut Vec<Rc<Frame>>) -> R) -> R {
        f(&mut self.thread(id).frames.borrow_mut())
    }

    pub(super) fn ctx_of(&self, id: ThreadId, vm: &Rc<Self>) -> Ctx {
        Ctx { shared: Rc::clone(vm), cpu: Rc::clone(&self.thread(id).cpu), thread: Some(id) }
    }

    pub(super) fn random(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.random.borrow_mut().random_range(0..bound) }
    }

    pub(super) fn fails(&self, text: impl Into<String>) {
        self.error.set(Some(text.into()));
    }

    pub(super) fn count_exit(&self, exit: Exit) {
        let mut exits = self.exits.get();
        match exit {
            Exit::Pause => exits.nr_pause += 1,
            Exit::Kick(_) => exits.nr_kicks += 1,
            Exit::Halt => exits.nr_halts += 1,
            Exit::SendIpi(..) => exits.nr_ipis += 1,
            _ => {}
        }
        self.exits.set(exits);
    }

    pub(super) fn preempted(&self, class: VcpuClass) {
        let mut preemptions = self.preemptions.get();
        preemptions[class as usize] += 1;
        self.preemptions.set(preemptions);
    }
}

/// A VM of a machine.
pub struct Vm {
    pub(super) shared: Rc<Shared>,
    /// The threads of its vCPUs.
    pub vcpus: Vec<TaskId>,
}

impl Vm {
    /// Boots a VM, all of whose vCPUs idle, in the root or a control group.
    pub fn boot(m: &Machine, nr: usize, features: Features, group: Option<&Rc<Cgroup>>) -> Self {
        assert!(nr <= 64, "masks of vCPUs have 64 bits");
        let costs = features.costs.unwrap_or_default();
        let memory = m.memory((nr + 1) * PAGE);
        let shared = Rc::new(Shared {
            features,
            costs,
            memory: Rc::clone(&memory),
            vcpus: (0..nr).map(|index| Vcpu::new(index, costs.ple_window_ns)).collect(),
            rqs: (0..nr).map(|_| RunQueue::new()).collect(),
            threads: RefCell::new((0..nr).map(|cpu| Rc::new(Thread::new(cpu))).collect()),
            calls: Calls::new(nr),
            ops: Cell::new(0),
            now: Cell::new(0),
            request: Cell::new(None),
            answer: Cell::new(0),
            pokes: RefCell::default(),
            wakes: RefCell::default(),
            error: Cell::new(None),
            last_boosted: Cell::new(0),
            random: RefCell::new(ChaCha8Rng::seed_from_u64(m.kernel().config().seed ^ memory.kvm)),
            preemptions: Cell::new([0; 6]),
            exits: Cell::default(),
        });
        let mut vcpus = Vec::new();
        for v in &shared.vcpus {
            let page = v.page();
            let idle = v.idle.get();
            v.add_preempt_count(&shared, 0);
            memory.write_u64(page + AT_CURRENT, idle.address());
            memory.write_u64(page + AT_IDLE, idle.address());
            let cx = shared.ctx_of(idle, &shared);
            shared.frames_of(idle, |frames| frames.push(Frame::new(Box::pin(cx.idle()))));
            let run = Run { vm: Rc::clone(&shared), index: v.index };
            let mut spawn = task(format!("CPU {}/KVM", v.index), run).memory(&memory);
            if let Some(group) = group {
                spawn = spawn.in_cgroup(group);
            }
            let id = m.spawn_asleep(spawn);
            let words = Words {
                preempt_count: page + AT_PREEMPT_COUNT,
                qnode: Some(page + AT_QNODES),
                tasks: Some((page + AT_CURRENT, page + AT_IDLE)),
                call_queue: Some(page + AT_CALL_QUEUE),
                direct_map: DIRECT_MAP.wrapping_neg(),
            };
            let words = features.readable.then_some(words);
            let kvm = m.make_vcpu(id, &memory, v.index as u32, words);
            *v.kvm.borrow_mut() = Some(kvm);
            v.task.set(Some(id));
            vcpus.push(id);
        }
        // One after another: the scheduler places each by where the others are.
        for id in &vcpus {
            m.wake(*id);
            m.run(START_NS);
        }
        Self { shared, vcpus }
    }

    /// Starts a thread in the guest. It is runnable from the next interrupt of a vCPU on.
    pub fn spawn(&self, m: &Machine, code: impl AsyncFnOnce(Ctx) + 'static) -> ThreadId {
        let nr = self.shared.vcpus.len();
        let cpu = self.shared.threads.borrow().len() % nr;
        let id = Ctx::make_thread(&self.shared, cpu, code);
        self.shared.wake_from_outside(id, cpu);
        // The wakeup is an interrupt of the vCPU.
        m.wake(self.vcpus[cpu]);
        id
    }

    /// Operations that its threads have counted.
    pub fn ops(&self) -> u64 {
        self.shared.ops.get()
    }

    /// CPU time of all its vCPUs in nanoseconds.
    pub fn cpu_ns(&self, m: &Machine) -> u64 {
        self.vcpus.iter().map(|id| m.cpu_ns(*id)).sum()
    }

    /// Exits of all its vCPUs so far.
    pub fn exits(&self) -> Exits {
        self.shared.exits.get()
    }

    /// Preemptions of vCPUs so far, by the class that their memory shows.
    pub fn preemptions(&self, class: VcpuClass) -> u64 {
        self.shared.preemptions.get()[class as usize]
    }
}
