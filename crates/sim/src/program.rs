// SPDX-License-Identifier: GPL-2.0-or-later
//! Programs: how tasks spend their time.
//!
//! A task's [`Program`] is asked for its next [`Step`] whenever the last one is over. The program
//! runs in the context of its task, on the task's CPU: what it does through [`Cx`] (waking others,
//! changing affinities, yielding to a thread) happens at that moment, by the rules of system calls.

use std::cell::Cell;
use std::rc::Rc;

use crate::guest::Memory;
use crate::kernel::{Kernel, TaskId};

/// For as long as the machine runs.
pub const FOREVER: u64 = u64::MAX / 4;

/// What a task does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Uses the CPU for so many nanoseconds. A [`Cx::poke`] does not end it.
    Run(u64),
    /// Uses the CPU until another program pokes this task, or for so many nanoseconds. A poke that
    /// came since the last step ends it at once.
    Spin(u64),
    /// Sleeps for so many nanoseconds: a timer interrupt wakes it.
    Sleep(u64),
    /// Sleeps until woken. A wakeup that came since the last sleep ends it at once.
    Block,
    /// Yields (`sched_yield(2)`).
    Yield,
    /// Exits.
    Exit,
}

/// The program of a task.
pub trait Program {
    /// What the task does next. Called when its last step is over and it has a CPU.
    fn next(&mut self, cx: &Cx<'_>) -> Step;

    /// The task gets a CPU (KVM: `kvm_sched_in()`).
    fn switched_in(&mut self, _cx: &Cx<'_>) {}

    /// The task loses its CPU; it was `preempted`, or it sleeps (KVM: `kvm_sched_out()`).
    fn switched_out(&mut self, _cx: &Cx<'_>, _preempted: bool) {}
}

/// Any closure is a program.
impl<F: FnMut(&Cx<'_>) -> Step> Program for F {
    fn next(&mut self, cx: &Cx<'_>) -> Step {
        self(cx)
    }
}

/// The machine as a program sees it.
pub struct Cx<'k> {
    pub(crate) kernel: &'k Kernel,
    pub(crate) task: TaskId,
}

impl Cx<'_> {
    /// Nanoseconds since the machine booted.
    pub fn now(&self) -> u64 {
        self.kernel.now()
    }

    /// The task that runs this program.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The CPU that the task runs on.
    pub fn cpu(&self) -> usize {
        self.kernel.this_cpu()
    }

    /// CPU time of the task so far, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.kernel.cpu_ns(self.task)
    }

    /// A random number below `bound`, of the machine's one generator; 0 for a bound of 0.
    pub fn random(&self, bound: u64) -> u64 {
        self.kernel.random_below(bound)
    }

    /// Wakes a task, as a system call of this one.
    pub fn wake(&self, task: TaskId) {
        self.kernel.wake_from_program(task, false);
    }

    /// The same, with the promise to sleep soon (`WF_SYNC`, as pipes do).
    pub fn wake_sync(&self, task: TaskId) {
        self.kernel.wake_from_program(task, true);
    }

    /// Ends the [`Step::Spin`] of a task: the memory that it polls has changed. If the task has no
    /// CPU, its program goes on when it has one.
    pub fn poke(&self, task: TaskId) {
        self.kernel.poke(task);
    }

    /// Is the task on a CPU?
    pub fn is_running(&self, task: TaskId) -> bool {
        self.kernel.is_running(task)
    }

    /// Does the task sleep?
    pub fn is_asleep(&self, task: TaskId) -> bool {
        self.kernel.is_asleep(task)
    }

    /// Was the task preempted (`vcpu->preempted`): runnable, and not on a CPU?
    pub fn is_preempted(&self, task: TaskId) -> bool {
        !self.is_running(task) && !self.is_asleep(task)
    }

    /// `yield_to()` of `kernel/sched/syscalls.c`: asks that `task` has this CPU. If the answer is
    /// [`YieldTo::Yielded`], this task stops as soon as its program returns a step.
    pub fn yield_to(&self, task: TaskId) -> YieldTo {
        self.kernel.yield_to(task)
    }

    /// Sends this CPU into the scheduler when the step is returned, as if a tick asked for it.
    pub fn resched(&self) {
        self.kernel.resched_curr(self.kernel.this_cpu());
    }

    /// `sched_setaffinity(2)`.
    pub fn set_affinity(&self, task: TaskId, cpus: &crate::CpuSet) {
        self.kernel.set_cpus_allowed(task, cpus);
    }

    /// `migrate_disable()` and `migrate_enable()` of this task, as a lock of PREEMPT_RT would.
    pub fn set_migration_disabled(&self, disabled: bool) {
        self.kernel.set_migration_disabled(self.task, disabled);
    }

    /// Tells the rules of an error that the program itself has found.
    pub fn violation(&self, text: String) {
        self.kernel.violation("program", text);
    }
}

/// The answer of [`Cx::yield_to`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum YieldTo {
    /// `-ESRCH`: each of the two CPUs has one task, and a yield has no point.
    NoPoint,
    /// 0: not granted.
    Refused,
    /// Granted.
    Yielded,
}

/// A loop that uses all CPU time it gets.
pub fn hog() -> impl Program {
    |_: &Cx<'_>| Step::Run(FOREVER)
}

/// Runs and sleeps in turns, each for a fixed time in nanoseconds.
pub fn periodic(run_ns: u64, sleep_ns: u64) -> impl Program {
    let mut ran = false;
    move |_: &Cx<'_>| {
        ran = !ran;
        if ran { Step::Run(run_ns) } else { Step::Sleep(sleep_ns) }
    }
}

/// Runs and sleeps in turns, each for a random time of up to so many nanoseconds.
pub fn napper(run_ns: u64, sleep_ns: u64) -> impl Program {
    let mut ran = false;
    move |cx: &Cx<'_>| {
        ran = !ran;
        if ran { Step::Run(1 + cx.random(run_ns)) } else { Step::Sleep(1 + cx.random(sleep_ns)) }
    }
}

/// Two tasks that wake each other, as over a pipe: each works for `work_ns`, wakes the other with
/// the promise to sleep, and sleeps `late_ns` later. The first program of the pair works first.
pub fn pair(work_ns: u64, late_ns: u64) -> [Box<dyn Program>; 2] {
    let tasks: Rc<[Cell<Option<TaskId>>; 2]> = Rc::default();
    let bytes = Rc::new([Cell::new(1u32), Cell::new(0)]);
    [0, 1].map(|me| {
        let (tasks, bytes) = (Rc::clone(&tasks), Rc::clone(&bytes));
        let mut works = false;
        let program = move |cx: &Cx<'_>| {
            let other = 1 - me;
            tasks[me].set(Some(cx.task()));
            if works {
                works = false;
                bytes[other].set(bytes[other].get() + 1);
                if let Some(task) = tasks[other].get() {
                    cx.wake_sync(task);
                }
                return Step::Run(late_ns);
            }
            if bytes[me].get() == 0 {
                return Step::Block;
            }
            bytes[me].set(bytes[me].get() - 1);
            works = true;
            Step::Run(work_ns)
        };
        Box::new(program) as Box<dyn Program>
    })
}

impl Program for Box<dyn Program> {
    fn next(&mut self, cx: &Cx<'_>) -> Step {
        (**self).next(cx)
    }

    fn switched_in(&mut self, cx: &Cx<'_>) {
        (**self).switched_in(cx);
    }

    fn switched_out(&mut self, cx: &Cx<'_>, preempted: bool) {
        (**self).switched_out(cx, preempted);
    }
}

/// A vCPU that runs outside of critical sections and in them, in turns, each for a random time of
/// up to so many nanoseconds. Its preemption count is at `preempt_count` in the guest's memory.
pub fn sections(
    memory: &Rc<Memory>,
    preempt_count: usize,
    outside_ns: u64,
    held_ns: u64,
) -> impl Program + use<> {
    let memory = Rc::clone(memory);
    move |cx: &Cx<'_>| {
        let held = memory.read_u32(preempt_count) == 0;
        memory.write_u32(preempt_count, u32::from(held));
        Step::Run(1 + cx.random(if held { held_ns } else { outside_ns }))
    }
}
