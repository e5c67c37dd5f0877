// SPDX-License-Identifier: GPL-2.0-or-later
//! Other schedulers and scheduling settings of the host.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::{fmt, fs};

use serde::Serialize;

use crate::kernel::STATE;
use crate::text::printable;
use crate::{Check, Host};

const NAME_OF_LOADED: &str = "/sys/kernel/sched_ext/root/ops";

/// Examples listed in a message; it counts the rest.
const NAMED: usize = 3;

/// A sched_ext scheduler that is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scheduler {
    /// Its name by the kernel; empty if it was unloaded before that was read.
    pub name: String,
    /// The process that has loaded it, if one is seen to hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Scheduler {
    /// The one that is loaded on this host.
    pub fn of(host: &Host) -> Option<Self> {
        let name = printable(&loaded(host)?);
        let is_loaded = !name.is_empty() || host.read(STATE)? == "enabled";
        is_loaded.then(|| Self { name, pid: process(host) })
    }

    /// Is it scx_holdfast?
    pub fn is_holdfast(&self) -> bool {
        is_holdfast(&self.name)
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { "a sched_ext scheduler" } else { &self.name })?;
        f.write_str(" is loaded")?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", by process {pid}"))
    }
}

/// Is this the name of scx_holdfast, whatever its version?
pub fn is_holdfast(name: &str) -> bool {
    name.starts_with("holdfast")
}

/// Name of the sched_ext scheduler that is loaded; empty if there is none. `None` if the kernel has
/// no sched_ext.
pub fn loaded(host: &Host) -> Option<String> {
    let is_enabled = host.read(STATE)? == "enabled";
    Some(if is_enabled { host.read(NAME_OF_LOADED).unwrap_or_default() } else { String::new() })
}

/// The process that has loaded the scheduler: one that holds a link to a struct_ops, and scx's
/// programs before those that hold others (of TCP, say). `None` if no process is seen to hold one.
fn process(host: &Host) -> Option<u32> {
    let holds = |pid: &u32| {
        let infos = format!("/proc/{pid}/fdinfo");
        host.list(&infos).iter().any(|fd| {
            let info = host.read(format!("{infos}/{fd}")).unwrap_or_default();
            info.lines().any(|line| line == "link_type:\tstruct_ops")
        })
    };
    let holders: Vec<u32> = host.numbers("/proc").into_iter().filter(holds).collect();
    let scx = holders.iter().find(|pid| host.comm(**pid).starts_with("scx_"));
    scx.or(holders.first()).copied()
}

/// Name of the check for another scheduler.
pub(crate) const OTHER: &str = "other-scheduler";

/// Any sched_ext scheduler: the kernel runs one at a time.
pub(crate) fn any(host: &Host) -> Check {
    other_than(host, Scheduler::of(host).as_ref(), |_| false)
}

/// One that is not scx_holdfast; `loaded` is the one that is loaded.
pub(crate) fn foreign(host: &Host, loaded: Option<&Scheduler>) -> Check {
    other_than(host, loaded, Scheduler::is_holdfast)
}

fn other_than(host: &Host, loaded: Option<&Scheduler>, is_ours: fn(&Scheduler) -> bool) -> Check {
    const NAME: &str = OTHER;
    match (loaded, host.read(STATE).as_deref()) {
        (Some(loaded), _) if is_ours(loaded) => Check::ok(NAME, format!("none: {loaded}")),
        (Some(loaded), _) => Check::fail(
            NAME,
            format!("{loaded}, and the kernel takes one scheduler at a time"),
            "end it first (Ctrl-C, or systemctl stop of scx, scx_loader or scx_holdfast)",
        ),
        (None, None) => Check::ok(NAME, "none, because there is no sched_ext"),
        (None, Some("enabled" | "disabled")) => Check::ok(NAME, "no sched_ext scheduler is loaded"),
        (None, Some(state)) => Check::fail(
            NAME,
            format!("a sched_ext scheduler is being loaded or unloaded ({STATE}: {state})"),
            "try again in a moment; if it stays, `echo S > /proc/sysrq-trigger` ends it",
        ),
    }
}

/// CPU bandwidth limits of cgroups: the kernel leaves them to the loaded scheduler
/// (`ops.cgroup_set_bandwidth`), and `scx_holdfast` does not enforce them.
pub(crate) fn bandwidth(host: &Host) -> Check {
    const NAME: &str = "cpu-limits";
    /// Cgroups that are read at most. On larger hosts the first examples are enough.
    const MOST: usize = 10_000;

    let root = PathBuf::from("/sys/fs/cgroup");
    if !host.exists(root.join("cgroup.controllers")) {
        return Check::skip(NAME, "not known: /sys/fs/cgroup is no cgroup v2 hierarchy");
    }
    let (mut to_do, mut limited, mut seen) = (vec![root.clone()], Vec::new(), 0);
    while let Some(group) = to_do.pop() {
        seen += 1;
        if seen > MOST {
            break;
        }
        let max = host.read(group.join("cpu.max"));
        if max.is_some_and(|max| !max.starts_with("max")) {
            limited.push(group.strip_prefix(&root).unwrap_or(&group).display().to_string());
        }
        for name in host.list(&group) {
            let child = group.join(name);
            let kind = host.path(&child).symlink_metadata();
            if kind.is_ok_and(|kind| kind.is_dir()) {
                to_do.push(child);
            }
        }
    }
    if limited.is_empty() {
        let rest = if seen > MOST { format!("; only {MOST} were checked") } else { String::new() };
        return Check::ok(NAME, format!("no cgroup has a CPU bandwidth limit (cpu.max){rest}"));
    }
    limited.sort();
    Check::warn(
        NAME,
        format!("cpu.max of {} is not enforced while scx_holdfast runs", some_of(&limited)),
        "bound such VMs by their number of vCPUs or by pinning, or remove the limit",
    )
}

/// VMs in a real-time class: these run before any task of sched_ext, and sched_ext does not see
/// them.
pub(crate) fn realtime(host: &Host) -> Check {
    const NAME: &str = "realtime-vcpus";
    let mut vms = Vec::new();
    let mut unseen = 0;
    for pid in host.numbers("/proc") {
        match realtime_threads_of_vmm(host, pid) {
            Ok(0) => {}
            Ok(nr) => vms.push(format!("{} (pid {pid}, {nr} threads)", host.comm(pid))),
            Err(err) => unseen += u32::from(err.kind() == ErrorKind::PermissionDenied),
        }
    }
    if vms.is_empty() && unseen > 0 {
        return Check::skip(
            NAME,
            format!("only root can see whether {unseen} processes are VMs in a real-time class"),
        );
    }
    if vms.is_empty() {
        return Check::ok(NAME, "no VM runs in a real-time class");
    }
    Check::warn(
        NAME,
        format!("{} run in a real-time class, where scx_holdfast does not schedule", some_of(&vms)),
        "if this is intended, do nothing; else start them without vcpusched (libvirt) or chrt",
    )
}

/// Number of threads of a process in a real-time class, if it has a VM open. The VM is checked
/// last, because the threads already rule out most processes.
fn realtime_threads_of_vmm(host: &Host, pid: u32) -> io::Result<usize> {
    let nr = host.threads(pid)?.into_iter().filter(|tid| is_realtime(host, pid, *tid)).count();
    if nr == 0 {
        return Ok(0);
    }
    let fds = match fs::read_dir(host.path(format!("/proc/{pid}/fd"))) {
        Err(_) if is_kthread(host, pid) => return Ok(0),
        fds => fds?,
    };
    let mut links = fds.flatten().map(|fd| fs::read_link(fd.path()));
    let is_vmm =
        links.any(|to| to.is_ok_and(|to| to.to_string_lossy().starts_with("anon_inode:kvm-")));
    Ok(if is_vmm { nr } else { 0 })
}

/// Kernel threads have no command line. Every user may read it.
pub(crate) fn is_kthread(host: &Host, pid: u32) -> bool {
    host.read(format!("/proc/{pid}/cmdline")).is_none_or(|words| words.is_empty())
}

/// SCHED_FIFO, SCHED_RR or SCHED_DEADLINE: field 41 of `stat` (proc(5)).
fn is_realtime(host: &Host, pid: u32, tid: u32) -> bool {
    let stat = host.read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    // The name, field 2, may have spaces and parentheses in it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_whitespace()
        .nth(41 - 3)
        .is_some_and(|policy| ["1", "2", "6"].contains(&policy))
}

fn some_of(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text = format!("{text} and {} more", names.len() - NAMED);
    }
    text
}
