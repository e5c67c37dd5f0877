// SPDX-License-Identifier: GPL-2.0-or-later
//! What a machine is like.

use holdfast_policy::Params;

use crate::object::Source;

/// One microsecond.
pub const US: u64 = 1000;
/// One millisecond.
pub const MS: u64 = 1000 * US;
/// One second.
pub const SEC: u64 = 1000 * MS;

/// The kernel whose rules hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KernelVersion {
    /// `ops.update_idle()` comes before the idle mask is set; kfuncs of 6.12.
    V6_12,
    /// `ops.update_idle()` comes after it; `scx_bpf_select_cpu_and()`.
    V6_16,
    /// `ops.dequeue()` for each task that leaves a DSQ; `scx_bpf_dsq_peek()`.
    V7_2,
}

impl KernelVersion {
    /// As `LINUX_KERNEL_VERSION` has it.
    pub(crate) fn code(self) -> i32 {
        let (major, minor) = match self {
            Self::V6_12 => (6, 12),
            Self::V6_16 => (6, 16),
            Self::V7_2 => (7, 2),
        };
        major << 16 | minor << 8
    }

    /// Has it that kfunc, type or enumerator, by its name in the scx headers?
    pub(crate) fn has(self, name: &str) -> bool {
        match name {
            "scx_bpf_dsq_move_to_local___v1"
            | "scx_bpf_dsq_move___new"
            | "scx_bpf_dsq_insert___v1"
            | "scx_bpf_dsq_insert_vtime___compat"
            | "scx_bpf_now" => self >= Self::V6_16,
            // In 6.12 by their older names.
            "scx_bpf_consume___old"
            | "scx_bpf_dispatch___compat"
            | "scx_bpf_dispatch_vtime___compat"
            | "scx_bpf_dispatch_from_dsq___old" => self < Self::V6_16,
            "scx_bpf_select_cpu_and___compat" | "SCX_ENQ_CPU_SELECTED" => self >= Self::V6_16,
            "scx_bpf_reenqueue_local___v1" => true,
            "struct scx_bpf_select_cpu_and_args"
            | "struct scx_bpf_dsq_insert_vtime_args"
            | "scx_bpf_dsq_insert___v2___compat"
            | "scx_bpf_dsq_move_to_local___v2___compat"
            | "scx_bpf_task_set_slice___new"
            | "scx_bpf_dsq_reenq___compat"
            | "scx_bpf_dsq_peek" => self >= Self::V7_2,
            _ => false,
        }
    }
}

/// How callbacks of several CPUs are interleaved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explore {
    /// Half of all calls of helpers and kfuncs take up to so many nanoseconds, in which other CPUs
    /// come in.
    pub pause_ns: u64,
}

/// Bounds that are checked in each run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// No runnable task waits for longer; 0: not checked.
    pub wait_ns: u64,
    /// No CPU idles for longer while a task waits that may run there; 0: not checked.
    pub idle_ns: u64,
}

/// A machine and its kernel. [`Machine::new`](crate::Machine::new) begins with the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of the one generator of random numbers.
    pub seed: u64,
    /// Number of CPUs.
    pub nr_cpus: usize,
    /// CPUs of each last level cache.
    pub cpus_per_llc: usize,
    /// LLCs of each NUMA node.
    pub llcs_per_node: usize,
    /// Threads of each core.
    pub threads_per_core: usize,
    /// Time between two ticks.
    pub tick_ns: u64,
    /// Do all CPUs tick at the same moments?
    pub ticks_aligned: bool,
    /// How long a reschedule or wakeup interrupt takes to another CPU.
    pub ipi_ns: u64,
    /// CPU time that each switch costs the next task.
    pub switch_ns: u64,
    /// CPU time that a system call such as `sched_yield(2)` takes.
    pub syscall_ns: u64,
    /// The kernel whose rules hold.
    pub kernel: KernelVersion,
    /// How callbacks are interleaved; none: each is atomic, and takes no time.
    pub explore: Option<Explore>,
    /// Tunables of the scheduler, as its command line sets them.
    pub params: Params,
    /// `--no-guest-knowledge` and other ablations leave parts out.
    pub knobs: Knobs,
    /// The scheduler's source.
    pub source: Source,
    /// Bounds that are checked.
    pub bounds: Bounds,
}

/// Parts of the scheduler, as its command line has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// False: `--no-guest-knowledge`.
    pub guest_knowledge: bool,
    /// False: `--no-grace`.
    pub grace: bool,
    /// False: `--no-resume-first`.
    pub resume_first: bool,
    /// False: `--no-directed-yield`.
    pub directed_yield: bool,
    /// False: `--no-waiters`.
    pub waiters: bool,
}

impl Config {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            nr_cpus: 2,
            cpus_per_llc: 0,
            llcs_per_node: 0,
            threads_per_core: 1,
            tick_ns: SEC / 250,
            ticks_aligned: false,
            ipi_ns: US,
            switch_ns: 0,
            syscall_ns: 300,
            kernel: KernelVersion::V7_2,
            explore: None,
            params: Params::default(),
            knobs: Knobs {
                guest_knowledge: true,
                grace: true,
                resume_first: true,
                directed_yield: true,
                waiters: true,
            },
            source: Source::Tree,
            bounds: Bounds { wait_ns: 30 * SEC, idle_ns: 100 * MS },
        }
    }

    /// Number of LLCs.
    pub fn nr_llcs(&self) -> usize {
        self.nr_cpus.div_ceil(self.cpus_per_llc)
    }

    /// The LLC of a CPU.
    pub fn llc_of(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_llc
    }

    /// The NUMA node of a CPU.
    pub fn node_of(&self, cpu: usize) -> usize {
        self.llc_of(cpu) / self.llcs_per_node
    }

    pub(crate) fn same_llc(&self, a: usize, b: usize) -> bool {
        self.llc_of(a) == self.llc_of(b)
    }

    /// The CPUs of an LLC.
    pub fn llc_cpus(&self, llc: usize) -> std::ops::Range<usize> {
        let first = llc * self.cpus_per_llc;
        first..(first + self.cpus_per_llc).min(self.nr_cpus)
    }

    /// The threads of a CPU's core.
    pub fn core_cpus(&self, cpu: usize) -> std::ops::Range<usize> {
        let first = cpu - cpu % self.threads_per_core;
        first..(first + self.threads_per_core).min(self.nr_cpus)
    }
}
