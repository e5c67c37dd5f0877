// SPDX-License-Identifier: GPL-2.0-or-later
//! What Holdfast needs of a host, and what makes loading a scheduler dangerous on it.
//!
//! Each check is a function of a [`Host`] that returns its finding and what to do about it.
//! `scx_holdfast` runs the checks of [`before_loading`] and refuses to load if one fails; `holdfast
//! doctor` shows those of [`all`].

mod core_scheduling;
mod enabling;
mod host;
mod kernel;
mod kernel_log;
mod kvm;
mod privileges;
mod report;
mod schedulers;
mod text;
mod topology;

pub use enabling::MAX_CGROUPS;
pub use host::Host;
pub use kernel::REQUIRED_KFUNCS;
pub use kernel_log::{Exit, KernelLog, LogLine, last_exit};
pub use privileges::foreign_pid_namespace;
pub use report::{Check, Group, Report, Verdict};
pub use schedulers::{loaded as loaded_scheduler, process as scheduler_process};
pub use text::steers;
pub use topology::{MAX_CPUS, MAX_LLCS};

/// The purpose of loading `scx_holdfast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Schedule vCPUs by their classes.
    Guests,
    /// Schedule without reading guests (`--no-guest-knowledge`).
    BaseOnly,
}

type Function = fn(&Host) -> Check;

/// Checks for conditions that forbid loading any scheduler, that make it dangerous, or that break
/// limits which other software relies on.
const SCHEDULER: [Function; 15] = [
    privileges::capabilities,
    kernel::sched_ext,
    kernel::btf,
    kernel::kfuncs,
    kernel::config,
    kernel::jit,
    kernel::lockdown,
    kernel::psi_triggers,
    schedulers::another,
    enabling::isolation,
    enabling::cgroups,
    enabling::deadline_bandwidth,
    schedulers::bandwidth,
    core_scheduling::cookies,
    topology::limits,
];

/// Checks for conditions that forbid reading guests.
const GUESTS: [Function; 5] = [
    kvm::module,
    kvm::tracing,
    privileges::pid_namespace,
    privileges::ptrace_scope,
    kernel::timers,
];

/// Checks that inform the operator, and those that take longer.
const ADVICE: [Function; 3] = [kvm::functions, schedulers::realtime, kvm::pause_exits];

/// The checks that have to pass before a scheduler is loaded.
pub fn before_loading(host: &Host, purpose: Purpose) -> Report {
    let guests: &[Function] = if purpose == Purpose::Guests { &GUESTS } else { &[] };
    Report::new(SCHEDULER.iter().chain(guests).map(|check| check(host)))
}

/// Whether the kernel accepts the programs that find vCPUs. This check and the next ones are made
/// by the programs that contain them.
pub const DISCOVERY_PROGRAMS: &str = "discovery-programs";
/// Whether it accepts the observer's programs.
pub const OBSERVER_PROGRAMS: &str = "observer-programs";
/// Whether it accepts those of `holdfast spins`.
pub const SPINS_PROGRAMS: &str = "spins-programs";
/// Whether it accepts those of `scx_holdfast`.
pub const SCHEDULER_PROGRAMS: &str = "scheduler-programs";

/// Names of the checks that observing guests, without scheduling them, depends on. Those that
/// scheduling depends on, too, are among them.
const OBSERVING: [&str; 11] = [
    "privileges",
    "kernel-btf",
    "bpf-jit",
    "kvm",
    "vcpu-tracing",
    "vcpu-functions",
    "pid-namespace",
    "ptrace-scope",
    "lockdown",
    DISCOVERY_PROGRAMS,
    OBSERVER_PROGRAMS,
];

/// Names of the checks that do not concern scheduling.
const OF_OBSERVERS: [&str; 2] = [OBSERVER_PROGRAMS, SPINS_PROGRAMS];

/// Names of the checks that nothing depends on but a few vCPUs, or one command.
const ADVISING: [&str; 3] = ["realtime-vcpus", "pause-exits", SPINS_PROGRAMS];

/// Every check.
pub fn all(host: &Host) -> Report {
    Report::new(SCHEDULER.iter().chain(&GUESTS).chain(&ADVICE).map(|check| check(host)))
}
