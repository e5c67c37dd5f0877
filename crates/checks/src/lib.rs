// SPDX-License-Identifier: GPL-2.0-or-later
//! What Holdfast needs of a host, and what would be dangerous on it.
//!
//! One function a check, each of which looks at a [`Host`] and says what it found and what to do
//! about it. `scx_holdfast` runs those of [`before_loading`] and refuses to load if one fails;
//! `holdfast doctor` shows those of [`all`].

mod core_scheduling;
mod enabling;
mod host;
mod kernel;
mod kvm;
mod privileges;
mod report;
mod schedulers;
mod text;
mod topology;

pub use enabling::MAX_CGROUPS;
pub use host::Host;
pub use kernel::REQUIRED_KFUNCS;
pub use privileges::foreign_pid_namespace;
pub use report::{Check, Report, Verdict};
pub use schedulers::loaded as loaded_scheduler;
pub use text::steers;
pub use topology::{MAX_CPUS, MAX_LLCS};

/// What `scx_holdfast` is to be loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To schedule vCPUs by what their guests do.
    Guests,
    /// As a scheduler that does not look into guests (`--no-guest-knowledge`).
    BaseOnly,
}

type Function = fn(&Host) -> Check;

/// What can forbid loading a scheduler at all, make it dangerous, or take from somebody what was
/// promised.
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

/// What can forbid reading guests.
const GUESTS: [Function; 5] = [
    kvm::module,
    kvm::tracing,
    privileges::pid_namespace,
    privileges::ptrace_scope,
    kernel::timers,
];

/// What an operator should know, and what takes longer to find out.
const ADVICE: [Function; 3] = [kvm::functions, schedulers::realtime, kvm::pause_exits];

/// The checks a scheduler has to pass before it is loaded.
pub fn before_loading(host: &Host, purpose: Purpose) -> Report {
    let guests: &[Function] = if purpose == Purpose::Guests { &GUESTS } else { &[] };
    Report::new(SCHEDULER.iter().chain(guests).map(|check| check(host)))
}

/// Whether the kernel takes the programs that find vCPUs: made by programs that have them.
pub const DISCOVERY_PROGRAMS: &str = "discovery-programs";
/// Whether it takes those that count what happens to vCPUs.
pub const OBSERVER_PROGRAMS: &str = "observer-programs";
/// Whether it takes those of `holdfast spins`.
pub const SPINS_PROGRAMS: &str = "spins-programs";
/// Whether it takes those of `scx_holdfast`.
pub const SCHEDULER_PROGRAMS: &str = "scheduler-programs";

/// Names of the checks that looking at guests depends on, without scheduling them.
const LOOKING: [&str; 11] = [
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

/// Names of those that say nothing of scheduling.
const OF_OBSERVERS: [&str; 2] = [OBSERVER_PROGRAMS, SPINS_PROGRAMS];

/// Every check.
pub fn all(host: &Host) -> Report {
    Report::new(SCHEDULER.iter().chain(&GUESTS).chain(&ADVICE).map(|check| check(host)))
}
