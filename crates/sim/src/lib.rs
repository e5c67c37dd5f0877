// SPDX-License-Identifier: GPL-2.0-or-later
//! A model kernel in which the scheduler's very source runs, deterministically.
//!
//! The BPF source of `scx_holdfast` is compiled for this machine, unchanged, and called by a model
//! of the kernel's scheduler core: virtual time, one generator of random numbers, any number of
//! CPUs. A test boots a [`Machine`], gives it tasks with [programs](program), and runs it:
//!
//! ```
//! use holdfast_sim::{Machine, SEC, hog, task};
//!
//! let machine = Machine::new(1).cpus(2).boot();
//! let tasks = [100, 100, 200].map(|weight| machine.spawn(task("hog", hog()).weight(weight)));
//! machine.run(10 * SEC);
//! assert!(machine.cpu_ns(tasks[2]) > 9 * SEC);
//! ```
//!
//! `docs/lab/model.md` says what is modelled, and how to write a test and replay a seed.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`] | `kernel/sched/core.c`: run queues, wakeups, switches, ticks, affinity |
//! | [`class`] | `struct sched_class`; `ext` is `kernel/sched/ext/ext.c`, `idle` its idle CPUs |
//! | [`program`] | what tasks do |
//! | [`stock`] | `kernel/sched/fair.c`: the kernel's own scheduler, to compare with |
//! | [`guest`] | memory of VMs, which the scheduler reads |
//! | [`guests`] | VMs on real lock algorithms |
//! | `kfuncs`, `bpf` | what the scheduler calls |
//! | `object`, `compile` | the scheduler, compiled and loaded |
//! | [`config`], `machine`, `rules` | a machine and its bounds |

mod bpf;
mod bstr;
mod cgroup;
pub mod class;
mod compile;
pub mod config;
mod cpuset;
mod ext;
pub mod guest;
pub mod guests;
pub mod hosts;
mod idle;
pub mod kernel;
mod kfuncs;
mod layout;
mod machine;
mod object;
pub mod program;
mod raw;
mod rules;
pub mod stock;
mod task;

pub use cgroup::Cgroup;
pub use class::{CgroupEvent, Class};
pub use config::{Bounds, Config, Explore, KernelVersion, Knobs, MS, SEC, US};
pub use cpuset::{CpuSet, MAX_CPUS};
pub use ext::{Cost, Op};
pub use guest::{KvmVcpu, Memory, Words};
pub use kernel::{Kernel, TaskId, Totals};
pub use machine::{Builder, Machine, Spawn, task};
pub use object::Source;
pub use program::{Cx, FOREVER, Program, Step, YieldTo, hog, napper, pair, periodic, sections};
pub use rules::Violation;
pub use task::{Policy, State, Task};

/// Indices of the scheduler's statistics: `enum hf_stat` of its `intf.h`.
pub mod stat {
    pub use crate::layout::{
        HF_STAT_DIRECTED_YIELD as DIRECTED_YIELD, HF_STAT_GRACE_NS as GRACE_NS,
        HF_STAT_KEPT as KEPT, HF_STAT_MISSED as MISSED, HF_STAT_NEED as NEED,
        HF_STAT_PROBED as PROBED, HF_STAT_RESUMED_FIRST as RESUMED_FIRST,
        HF_STAT_STARVING as STARVING, HF_STAT_STOPPED as STOPPED, HF_STAT_VERDICT as VERDICT,
        HF_STAT_WAITING_NS as WAITING_NS, HF_STAT_WAKEUP_PREEMPT as WAKEUP_PREEMPT,
        HF_STAT_YIELD as YIELD,
    };
}
