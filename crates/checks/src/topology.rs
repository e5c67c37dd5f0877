// SPDX-License-Identifier: GPL-2.0-or-later
//! Size of the host.

use std::collections::BTreeSet;

use crate::{Check, Host};

/// CPU numbers that `scx_holdfast` can handle (`HF_MAX_CPUS`).
pub const MAX_CPUS: usize = 1024;
/// Last level caches that `scx_holdfast` can handle (`HF_MAX_LLCS`).
pub const MAX_LLCS: usize = 64;

const CPUS: &str = "/sys/devices/system/cpu";

/// Highest number in a list such as `0-3,8`.
fn highest(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Numbers in a list such as `0-3,8`.
fn count(list: &str) -> usize {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            last.checked_sub(first).map(|more| more + 1)
        })
        .sum()
}

/// Does a core have more than one active thread?
pub fn smt_is_active(host: &Host) -> bool {
    if let Some(active) = host.read(format!("{CPUS}/smt/active")) {
        return active == "1";
    }
    // Kernels without CONFIG_HOTPLUG_SMT.
    host.list(CPUS).iter().any(|name| {
        let siblings = host.read(format!("{CPUS}/{name}/topology/thread_siblings_list"));
        siblings.is_some_and(|list| count(&list) > 1)
    })
}

/// The CPUs that share the last level cache of each online CPU, as the kernel lists them.
fn last_level_caches(host: &Host) -> BTreeSet<String> {
    let cpus = host.list(CPUS).into_iter().filter(|name| {
        name.strip_prefix("cpu").is_some_and(|number| number.parse::<usize>().is_ok())
    });
    cpus.filter_map(|cpu| {
        let caches = format!("{CPUS}/{cpu}/cache");
        let (_, last) = host
            .list(&caches)
            .into_iter()
            .filter_map(|index| {
                let level = host.read(format!("{caches}/{index}/level"))?.parse::<u32>().ok()?;
                Some((level, index))
            })
            .max()?;
        host.read(format!("{caches}/{last}/shared_cpu_list"))
    })
    .collect()
}

/// CPUs that are online; 0 if that is not known.
pub(crate) fn online(host: &Host) -> usize {
    host.read(format!("{CPUS}/online")).map_or(0, |list| count(&list))
}

/// Whether the scheduler has room for the host's CPUs and caches.
pub(crate) fn limits(host: &Host) -> Check {
    const NAME: &str = "cpus";
    let possible = host.read(format!("{CPUS}/possible")).unwrap_or_default();
    let Some(last) = highest(&possible) else {
        return Check::fail(
            NAME,
            format!("{CPUS}/possible cannot be read"),
            "mount sysfs at /sys, and run scx_holdfast on the host itself",
        );
    };
    let llcs = last_level_caches(host).len().max(1);
    let online = match online(host) {
        0 => last + 1,
        online => online,
    };
    let nodes = host.read("/sys/devices/system/node/online").map_or(1, |list| count(&list)).max(1);
    let found = format!(
        "{online} CPUs online, numbers up to {last}; {llcs} last level caches; {nodes} NUMA nodes; \
         SMT {}",
        if smt_is_active(host) { "on" } else { "off" }
    );
    if last >= MAX_CPUS || llcs > MAX_LLCS {
        return Check::fail(
            NAME,
            format!("{found}: scx_holdfast has room for {MAX_CPUS} CPUs and {MAX_LLCS} caches"),
            "raise HF_MAX_CPUS or HF_MAX_LLCS in crates/scheduler/src/bpf/intf.h, and MAX_CPUS or \
             MAX_LLCS in crates/checks/src/topology.rs, and build again",
        );
    }
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::{count, highest};

    #[test]
    fn reads_lists_of_cpus() {
        assert_eq!((highest("0-3,8"), count("0-3,8\n")), (Some(8), 5));
        assert_eq!((highest("0"), count("0")), (Some(0), 1));
        assert_eq!((highest(""), count("")), (None, 0));
        assert_eq!(count("7-3,x"), 0);
    }
}
