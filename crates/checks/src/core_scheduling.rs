// SPDX-License-Identifier: GPL-2.0-or-later
//! Core scheduling, with which sched_ext can hang a host.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use crate::privileges::foreign_pid_namespace;
use crate::topology::smt_is_active;
use crate::{Check, Host};

/// Processes listed in a message; it counts the rest.
const NAMED: usize = 3;

/// Whether a task could get a core-scheduling cookie on a host with SMT: the kernel knows cookies.
pub fn has_core_scheduling(host: &Host) -> bool {
    !host.cookie(std::process::id()).is_err_and(|error| is_unknown(&error))
}

/// The kernel lacks CONFIG_SCHED_CORE, or no core has SMT siblings.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV))
}

/// Core-scheduling cookies on a host with SMT: picking tasks for two SMT siblings at once can lock
/// up every CPU, without a panic or an oops, under any sched_ext scheduler (sched-ext/scx issue
/// 3715, open as of Linux 7.2).
pub fn cookies(host: &Host) -> Check {
    const NAME: &str = "core-scheduling";
    if !smt_is_active(host) {
        return Check::ok(NAME, "no SMT, so no core scheduling");
    }
    let mut tagged: BTreeMap<u32, usize> = BTreeMap::new();
    let mut unknown = 0;
    for pid in host.numbers("/proc") {
        let tids = host.threads(pid).unwrap_or_else(|error| {
            unknown += usize::from(error.kind() == ErrorKind::PermissionDenied);
            Vec::new()
        });
        for tid in tids {
            match host.cookie(tid) {
                Ok(0) => {}
                Ok(_) => *tagged.entry(pid).or_default() += 1,
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) if is_unknown(&error) => {
                    return Check::ok(NAME, "this kernel has no core scheduling");
                }
                Err(_) => unknown += 1,
            }
        }
    }
    if tagged.is_empty()
        && let Some(other) = foreign_pid_namespace(host)
    {
        return Check::fail(
            NAME,
            format!("SMT is on, and this PID namespace ({other}) hides the host's tasks"),
            "run it outside of the container, or with --pid=host: sched_ext can hang the host if a \
             task uses core scheduling",
        );
    }
    if tagged.is_empty() && unknown == 0 {
        return Check::ok(
            NAME,
            "SMT is on, and no task has a core-scheduling cookie; scx_holdfast lets none get one \
             (cloud-hypervisor: --cpus core_scheduling=off)",
        );
    }
    if tagged.is_empty() {
        return Check::fail(
            NAME,
            format!("SMT is on, and it is not known whether {unknown} tasks use core scheduling"),
            "run it as root (it takes CAP_SYS_PTRACE): sched_ext can hang the host if a task \
             does",
        );
    }
    let mut owners: Vec<_> = tagged
        .iter()
        .take(NAMED)
        .map(|(pid, threads)| format!("{} (pid {pid}, {threads} threads)", host.comm(*pid)))
        .collect();
    if tagged.len() > NAMED {
        owners.push(format!("{} more", tagged.len() - NAMED));
    }
    Check::fail(
        NAME,
        format!(
            "SMT is on and tasks use core scheduling: {}; under any sched_ext scheduler that can \
             hang the whole host (sched-ext/scx issue 3715)",
            owners.join(", ")
        ),
        "start them without core scheduling (cloud-hypervisor: --cpus core_scheduling=off), or \
         turn SMT off (echo off > /sys/devices/system/cpu/smt/control)",
    )
}
