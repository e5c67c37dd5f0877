// SPDX-License-Identifier: GPL-2.0-or-later
//! Reasons for which the kernel refuses to enable a scheduler (`scx_enable()` of
//! kernel/sched/ext/ext.c) after its programs have passed the verifier. Other modules check the
//! other reasons.

use crate::schedulers::is_kthread;
use crate::topology::online;
use crate::{Check, Host};

/// Cgroups that `scx_holdfast` has room for (`MAX_GROUPS`).
pub const MAX_CGROUPS: u64 = 1 << 16;

const CGROUPS: &str = "/sys/fs/cgroup";

/// CPUs that the kernel's command line isolates (`isolcpus=`).
pub(crate) fn isolation(host: &Host) -> Check {
    const NAME: &str = "isolated-cpus";
    /// CPUs that `isolcpus=` with its flag `domain` isolates; those of `nohz_full=` are not among
    /// them.
    const AT_BOOT: &str = "/sys/devices/system/cpu/isolated";
    const BY_CPUSETS: &str = "/sys/fs/cgroup/cpuset.cpus.isolated";

    let at_boot = host.read(AT_BOOT).unwrap_or_default();
    if !at_boot.is_empty() {
        return Check::fail(
            NAME,
            format!(
                "the kernel was booted with isolcpus= (CPUs {at_boot}), and accepts no sched_ext \
                 scheduler then"
            ),
            "boot without isolcpus=, and isolate CPUs by a cpuset (cpuset.cpus.partition: \
             isolated)",
        );
    }
    // Linux 7.0 treats CPUs isolated by cpusets the same way. Some of its stable releases do not,
    // and the release alone does not say which.
    let by_cpusets = host.read(BY_CPUSETS).unwrap_or_default();
    if host.version() == Some((7, 0)) && !by_cpusets.is_empty() {
        return Check::warn(
            NAME,
            format!(
                "cpusets isolate CPUs {by_cpusets}, and early releases of Linux 7.0 accept no \
                 sched_ext scheduler then"
            ),
            "if scx_holdfast is not accepted, boot Linux 7.1 or later, or have no \
             cpuset.cpus.partition that is isolated",
        );
    }
    Check::ok(NAME, "the kernel was not booted with isolcpus=")
}

/// Number of cgroups, against the room for them.
pub(crate) fn cgroups(host: &Host) -> Check {
    const NAME: &str = "cgroups";
    let stat = host.read(format!("{CGROUPS}/cgroup.stat")).unwrap_or_default();
    let count = |key: &str| {
        stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())
    };
    // Before Linux 6.13 only the number of all cgroups is known; those without the controller `cpu`
    // need no room.
    let Some(nr) = count("nr_subsys_cpu ").or_else(|| count("nr_descendants ")) else {
        return Check::skip(NAME, format!("not known: {CGROUPS} is no cgroup v2 hierarchy"));
    };
    if nr > MAX_CGROUPS {
        return Check::fail(
            NAME,
            format!("{nr} cgroups, and scx_holdfast has room for {MAX_CGROUPS}"),
            "remove cgroups that nothing runs in (systemd-cgls --all shows them), or raise \
             MAX_GROUPS in crates/scheduler/src/bpf/groups.bpf.h, and MAX_CGROUPS in \
             crates/checks/src/enabling.rs, and build again",
        );
    }
    Check::ok(NAME, format!("{nr}, of {MAX_CGROUPS} at most"))
}

/// CPU time that is promised to tasks of SCHED_DEADLINE. The kernel reserves CPU time for ordinary
/// tasks and, in the same way, for tasks of sched_ext. It accepts no scheduler if too little is
/// left.
pub(crate) fn deadline_bandwidth(host: &Host) -> Check {
    const NAME: &str = "deadline-tasks";
    /// 5 % of each CPU for either (kernel/sched/deadline.c, `dl_server_init()`).
    const RESERVED: f64 = 0.1;
    const LIMIT: &str = "/proc/sys/kernel/sched_rt_runtime_us";

    if host.version().is_none_or(|version| version < (7, 0)) {
        return Check::ok(NAME, "this kernel reserves no time for sched_ext");
    }
    let number = |path: &str| host.read(path)?.parse::<f64>().ok();
    let (Some(runtime), Some(period)) =
        (number(LIMIT), number("/proc/sys/kernel/sched_rt_period_us"))
    else {
        return Check::skip(NAME, format!("not known: {LIMIT} cannot be read"));
    };
    if runtime < 0.0 {
        return Check::ok(
            NAME,
            format!("{LIMIT} is -1: no limit to the time that may be promised"),
        );
    }
    let limit = runtime / period;
    if limit < RESERVED {
        return Check::fail(
            NAME,
            format!(
                "{LIMIT} leaves {:.0} % of each CPU for promised time, and the kernel reserves \
                 {:.0} % for sched_ext and others",
                100.0 * limit,
                100.0 * RESERVED
            ),
            "sysctl kernel.sched_rt_runtime_us=950000",
        );
    }
    let cpus = online(host).max(1) as f64;
    // The sum of an empty iterator is -0.
    let promised = host.numbers("/proc").into_iter().map(|pid| promised_to(host, pid));
    let promised = promised.sum::<f64>().max(0.0);
    let found = format!(
        "{:.0} % of the CPUs' time is promised to tasks of SCHED_DEADLINE, of {:.0} % at most",
        100.0 * promised / cpus,
        100.0 * limit
    );
    if promised / cpus + RESERVED > limit {
        return Check::warn(
            NAME,
            format!(
                "{found}: the {:.0} % that the kernel reserves for sched_ext and others may not be \
                 left",
                100.0 * RESERVED
            ),
            "if scx_holdfast is not accepted, end some of these tasks, or have them ask for less",
        );
    }
    Check::ok(NAME, found)
}

/// Parts of a CPU that the threads of a process are promised. Threads of the kernel (schedutil's)
/// have the policy, and no promise.
fn promised_to(host: &Host, pid: u32) -> f64 {
    let threads = host.threads(pid).unwrap_or_default().into_iter();
    let promised = threads.map(|tid| host.promised(tid)).sum::<f64>();
    if promised > 0.0 && is_kthread(host, pid) { 0.0 } else { promised }
}
