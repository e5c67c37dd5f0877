// SPDX-License-Identifier: GPL-2.0-or-later
//! What Holdfast needs of a host, and what makes loading a scheduler dangerous on it.
//!
//! Each check is a function of a [`Host`] that returns its finding and what to do about it.
//! `scx_holdfast` runs the checks of [`before_loading`] and refuses to load if one fails; `holdfast
//! doctor` shows those of [`all`].

mod catalogue;
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

pub use catalogue::{
    DISCOVERY_PROGRAMS, OBSERVER_PROGRAMS, SCHEDULER_PROGRAMS, SPINS_PROGRAMS, reference,
};
pub use core_scheduling::{cookies as core_scheduling_cookies, has_core_scheduling};
pub use enabling::MAX_CGROUPS;
pub use host::Host;
pub use kernel::REQUIRED_KFUNCS;
pub use kernel_log::{Exit, KernelLog, LogLine, last_exit};
pub use privileges::foreign_pid_namespace;
pub use report::{Check, Group, Report, Verdict};
pub use schedulers::{Scheduler, is_holdfast, loaded as loaded_scheduler};
pub use text::{columns, fill, steers};
pub use topology::{MAX_CPUS, MAX_LLCS, smt_is_active};

use catalogue::{CATALOGUE, Made};

/// The purpose of loading `scx_holdfast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Schedule vCPUs by their classes.
    Guests,
    /// Schedule without reading guests (`--no-guest-knowledge`).
    BaseOnly,
}

/// The checks that have to pass before a scheduler is loaded.
pub fn before_loading(host: &Host, purpose: Purpose) -> Report {
    let wanted = CATALOGUE.iter().filter(|entry| match entry.made {
        Made::BeforeLoading => true,
        Made::BeforeReading => purpose == Purpose::Guests,
        Made::ByDoctor => false,
    });
    Report::new(wanted.filter_map(|entry| entry.function).map(|check| check(host)))
}

/// Every check. For them scx_holdfast is no other scheduler, if it is loaded already.
pub fn all(host: &Host) -> Report {
    let scheduler = Scheduler::of(host);
    let checks = CATALOGUE.iter().filter_map(|entry| match entry.name {
        schedulers::OTHER => Some(schedulers::foreign(host, scheduler.as_ref())),
        _ => entry.function.map(|check| check(host)),
    });
    let mut report = Report::new(checks);
    report.scheduler = scheduler;
    report
}
