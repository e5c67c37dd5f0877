// SPDX-License-Identifier: GPL-2.0-or-later
//! Random small hosts: what `examples/explore.rs` searches for a violated rule.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::{Bounds, Explore, KernelVersion, MS, SEC, US};
use crate::guest::{KvmVcpu, Words};
use crate::kernel::{TaskId, Totals};
use crate::layout::KVM_HC_KICK_CPU;
use crate::machine::{Machine, Spawn, task};
use crate::object::Source;
use crate::program::{Cx, Program, Step, YieldTo, napper, pair, periodic, sections};
use crate::rules::Violation;
use crate::task::Policy;

/// How long the tasks of a host run, and how long they then have to exit.
const RUN_NS: u64 = 400 * MS;
const EXIT_NS: u64 = 3 * SEC;

/// A program that exits when it is told to.
struct Until<P> {
    stop: Rc<Cell<bool>>,
    program: P,
}

impl<P: Program> Program for Until<P> {
    fn next(&mut self, cx: &Cx<'_>) -> Step {
        if self.stop.get() { Step::Exit } else { self.program.next(cx) }
    }
}

/// A program that now and then may not migrate for a step.
fn pins_itself(mut program: impl Program) -> impl Program {
    move |cx: &Cx<'_>| {
        cx.set_migration_disabled(cx.random(3) == 0);
        program.next(cx)
    }
}

/// The vCPUs of a VM.
type Siblings = Rc<RefCell<Vec<(TaskId, Rc<KvmVcpu>)>>>;

/// A vCPU that exits now and then between two sections: it spins, kicks a sibling, or halts.
struct Vcpu<P> {
    sections: P,
    exits: u64,
    vcpus: Siblings,
}

impl<P> Vcpu<P> {
    /// `kvm_vcpu_on_spin()`, or a hypercall with a candidate.
    fn yields(&self, cx: &Cx<'_>, hypercall: bool) {
        let vcpus = self.vcpus.borrow();
        let Some((_, me)) = vcpus.iter().find(|(id, _)| *id == cx.task()) else { return };
        let first = cx.random(vcpus.len() as u64) as usize;
        me.set_rax(if hypercall { KVM_HC_KICK_CPU.into() } else { 0 });
        me.set_in_spin_loop(!hypercall);
        for (to, _) in vcpus.iter().cycle().skip(first).take(vcpus.len()) {
            let other = *to != cx.task() && cx.is_preempted(*to);
            if other && cx.yield_to(*to) == YieldTo::Yielded || hypercall {
                break;
            }
        }
        me.set_in_spin_loop(false);
    }
}

impl<P: Program> Program for Vcpu<P> {
    fn next(&mut self, cx: &Cx<'_>) -> Step {
        match (self.exits != 0 && cx.random(self.exits) == 0).then(|| cx.random(3)) {
            Some(0) => return Step::Sleep(1 + cx.random(MS)),
            Some(kind) => self.yields(cx, kind == 1),
            None => {}
        }
        self.sections.next(cx)
    }
}

/// Runs the host of `seed` with a scheduler of `source`. Returns what it counted.
///
/// # Errors
///
/// The first rule that it violates.
pub fn run(seed: u64, source: &Source) -> Result<Totals, Violation> {
    Host::new(seed, source).run()
}

struct Host {
    random: ChaCha8Rng,
    machine: Machine,
    nr_cpus: usize,
    stop: Rc<Cell<bool>>,
    tasks: Vec<TaskId>,
    groups: Vec<Rc<crate::cgroup::Cgroup>>,
}

impl Host {
    fn new(seed: u64, source: &Source) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
        let smt = if random.random_ratio(1, 3) { 2 } else { 1 };
        let cpus_per_llc = smt * random.random_range(1..=3);
        let nr_cpus = cpus_per_llc * random.random_range(1..=3);
        let kernels = [KernelVersion::V6_12, KernelVersion::V6_16, KernelVersion::V7_2];
        let kernel = *kernels.choose(&mut random).expect("three");
        let mut builder = Machine::new(seed)
            .cpus(nr_cpus)
            .cpus_per_llc(cpus_per_llc)
            .llcs_per_node(random.random_range(1..=2))
            .smt(smt)
            .hz(*[100, 250, 1000].choose(&mut random).expect("three"))
            .ipi_ns(random.random_range(0..5 * US))
            .switch_ns(random.random_range(0..2 * US))
            .kernel(kernel)
            .source(source.clone())
            // Older kernels may leave a CPU idle until its next look (base/idle.bpf.h).
            .bounds(Bounds {
                wait_ns: 8 * SEC,
                idle_ns: if kernel == KernelVersion::V6_12 { 0 } else { 60 * MS },
            });
        if random.random_ratio(3, 4) {
            let pause_ns = *[50, 200, 2000].choose(&mut random).expect("three");
            builder = builder.explore(Explore { pause_ns });
        }
        Self {
            random,
            machine: builder.boot(),
            nr_cpus,
            stop: Rc::default(),
            tasks: Vec::new(),
            groups: Vec::new(),
        }
    }

    fn until<P: Program>(&self, program: P) -> Until<P> {
        Until { stop: Rc::clone(&self.stop), program }
    }

    /// Some CPUs, mostly all.
    fn some_cpus(&mut self) -> Vec<usize> {
        let nr = self.nr_cpus;
        match self.random.random_range(0..6) {
            0 => vec![self.random.random_range(0..nr)],
            1 => {
                let first = self.random.random_range(0..nr);
                (first..nr).collect()
            }
            2 => (0..nr).filter(|_| self.random.next_u32() & 1 != 0).chain([0]).collect(),
            _ => (0..nr).collect(),
        }
    }

    fn place(&mut self, mut spawn: Spawn) {
        spawn = spawn.on(self.some_cpus());
        if self.random.random_ratio(1, 12) {
            spawn = spawn.policy(Policy::Idle);
        } else {
            let weights = [1, 20, 100, 100, 100, 300, 2000];
            spawn = spawn.weight(*weights.choose(&mut self.random).expect("seven"));
        }
        if !self.groups.is_empty() && self.random.random_ratio(2, 3) {
            let group = self.random.random_range(0..self.groups.len());
            spawn = spawn.in_cgroup(&self.groups[group]);
        }
        let id = self.machine.spawn(spawn);
        self.tasks.push(id);
    }

    fn add_groups(&mut self) {
        for _ in 0..self.random.random_range(0..4) {
            let weight = *[1, 50, 100, 1000].choose(&mut self.random).expect("four");
            let group = match self.groups.is_empty() || self.random.random_ratio(1, 2) {
                true => self.machine.cgroup(weight),
                false => {
                    let parent = self.random.random_range(0..self.groups.len());
                    self.machine.cgroup_in(&Rc::clone(&self.groups[parent]), weight)
                }
            };
            self.groups.push(group);
        }
    }

    fn add_tasks(&mut self) {
        for nr in 0..self.random.random_range(1..=6) {
            let name = format!("task{nr}");
            let (run, rest) =
                (self.random.random_range(1..4000) * US, self.random.random_range(1..6000) * US);
            let spawn = match self.random.random_range(0..7) {
                0 | 1 => task(name, self.until(|_: &Cx<'_>| Step::Run(MS))),
                2 => task(name, self.until(periodic(run, rest))),
                3 => {
                    let yields = move |cx: &Cx<'_>| match cx.random(2) {
                        0 => Step::Yield,
                        _ => Step::Run(1 + cx.random(run)),
                    };
                    task(name, self.until(yields))
                }
                4 => {
                    let [first, second] = pair(run, rest.min(200 * US));
                    let (first, second) = (self.until(first), self.until(second));
                    self.place(task(format!("{name}/0"), first));
                    task(format!("{name}/1"), second)
                }
                5 => task(name, self.until(napper(run, rest))),
                _ => task(name, self.until(pins_itself(napper(run, rest)))),
            };
            self.place(spawn);
        }
    }

    fn add_guest(&mut self) {
        let nr = self.random.random_range(2..=4);
        let memory = self.machine.memory(4096);
        let vcpus: Siblings = Rc::default();
        // One exit in so many sections; 0: none.
        let exits = *[0, 3, 20].choose(&mut self.random).expect("three");
        for index in 0..nr {
            let count = 64 * index;
            let (outside, held) =
                (self.random.random_range(1..3000) * US, self.random.random_range(1..8000) * US);
            let sections = sections(&memory, count, outside, held);
            let program = Vcpu { sections, exits, vcpus: Rc::clone(&vcpus) };
            self.place(task(format!("vcpu{index}"), self.until(program)));
            let id = *self.tasks.last().expect("just made");
            let words = Words { preempt_count: count, ..Words::default() };
            let vcpu = self.machine.make_vcpu(id, &memory, index as u32, Some(words));
            vcpus.borrow_mut().push((id, vcpu));
        }
    }

    /// Tasks that preempt others: a kernel thread, a real-time task.
    fn add_intruders(&mut self) {
        if self.random.random_ratio(1, 3) {
            let cpu = self.random.random_range(0..self.nr_cpus);
            let program = self.until(napper(200 * US, 2 * MS));
            self.tasks.push(self.machine.spawn(task("kworker", program).kthread().on([cpu])));
        }
        if self.random.random_ratio(1, 3) {
            let program = self.until(napper(500 * US, 5 * MS));
            self.tasks.push(self.machine.spawn(task("fifo", program).policy(Policy::Fifo(10))));
        }
    }

    /// Changes something of a task or group.
    fn change(&mut self) {
        let task = self.tasks[self.random.random_range(0..self.tasks.len())];
        if self.machine.kernel().task(task).name == "kworker" {
            return;
        }
        match self.random.random_range(0..5) {
            0 | 1 => {
                let cpus = self.some_cpus();
                self.machine.set_affinity(task, cpus);
            }
            2 => self.machine.set_weight(task, self.random.random_range(1..1000)),
            3 if !self.groups.is_empty() => {
                let group = self.random.random_range(0..self.groups.len());
                self.machine.move_to_cgroup(task, &Rc::clone(&self.groups[group]));
            }
            4 if !self.groups.is_empty() => {
                let group = Rc::clone(&self.groups[self.random.random_range(0..self.groups.len())]);
                let weight = self.random.random_range(1..1000);
                self.machine.set_cgroup_weight(&group, weight);
                self.machine.set_cgroup_idle(&group, self.random.random_ratio(1, 4));
            }
            _ => {}
        }
    }

    fn run(mut self) -> Result<Totals, Violation> {
        if self.random.random_ratio(1, 2) {
            self.add_groups();
        }
        self.add_tasks();
        if self.random.random_ratio(1, 2) {
            self.add_guest();
        }
        self.add_intruders();
        let nr_changes = self.random.random_range(0..8);
        for _ in 0..nr_changes {
            self.machine.try_run(RUN_NS / (nr_changes + 1))?;
            self.change();
        }
        self.machine.try_run(RUN_NS / (nr_changes + 1))?;
        self.stop.set(true);
        for id in self.tasks.clone() {
            self.machine.wake(id);
        }
        self.machine.try_run(EXIT_NS)?;
        self.check_end()?;
        Ok(self.machine.totals())
    }

    /// Nothing is left of tasks that have exited.
    fn check_end(&self) -> Result<(), Violation> {
        let fail = |rule, text| Err(Violation { rule, at_ns: self.machine.now(), text });
        let kernel = self.machine.kernel();
        if let Some(id) = self.tasks.iter().find(|id| !kernel.is_gone(**id)) {
            return fail("lost task", format!("{} has not exited", kernel.task(*id).name));
        }
        if let Some((id, active)) = self.machine.active_groups().first() {
            return fail("groups", format!("group {id} counts {active:#x} without a task"));
        }
        // A group without tasks is removed, the innermost first.
        self.groups.iter().rev().for_each(|group| self.machine.remove_cgroup(group));
        self.machine.try_run(MS)?;
        if let Some(nr) = self.machine.variable::<u32>("nr_groups").filter(|nr| *nr != 0) {
            return fail("groups", format!("{nr} are left after all were removed"));
        }
        match self.machine.variable::<u32>("nr_blockers") {
            Some(0) | None => Ok(()),
            Some(nr) => fail("blockers", format!("{nr} are left without a task")),
        }
    }
}
