// SPDX-License-Identifier: GPL-2.0-or-later
//! The rights of this process.

use crate::kernel::WITHOUT;
use crate::{Check, Host};

/// Capabilities (include/uapi/linux/capability.h), and their use.
const NEEDED: [(u32, &str); 5] = [
    (39, "CAP_BPF"),            // maps and programs
    (38, "CAP_PERFMON"),        // programs that trace and that are called by the kernel
    (21, "CAP_SYS_ADMIN"),      // reading the kernel's types by number, and sched_ext
    (19, "CAP_SYS_PTRACE"),     // reading guests' memory; core-scheduling cookies of others
    (2, "CAP_DAC_READ_SEARCH"), // which pages of it are there: the file is that of the VMM's user
];

/// Capabilities, and whether they are valid outside of a container.
pub(crate) fn capabilities(host: &Host) -> Check {
    const NAME: &str = "privileges";
    let status = host.read("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<_> =
        NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        return Check::fail(
            NAME,
            format!("this process lacks {}", missing.join(", ")),
            "run it as root",
        );
    }
    // The first user namespace maps every user to itself; in others, capabilities are not the
    // host's.
    let map = host.read("/proc/self/uid_map").unwrap_or_default();
    let map: Vec<_> = map.split_whitespace().collect();
    if !map.is_empty() && map != ["0", "0", "4294967295"] {
        return Check::fail(
            NAME,
            "this process is in a user namespace (a container?), where no scheduler can be loaded",
            "run it on the host itself",
        );
    }
    if let Err(error) = host.takes_bpf() {
        return Check::fail(
            NAME,
            format!(
                "this process has all capabilities needed, and still the kernel refuses BPF: \
                     {error}"
            ),
            "run it on the host itself, outside of containers; there, `journalctl -k | grep -i \
             denied` may name the security module",
        );
    }
    Check::ok(NAME, "this process has all capabilities needed, and may use BPF")
}

/// Whether Yama allows reading the memory of other processes.
pub(crate) fn ptrace_scope(host: &Host) -> Check {
    const NAME: &str = "ptrace-scope";
    const PATH: &str = "/proc/sys/kernel/yama/ptrace_scope";
    // YAMA_SCOPE_NO_ATTACH of security/yama/yama_lsm.c.
    if host.read(PATH).as_deref() == Some("3") {
        return Check::fail(
            NAME,
            format!("{PATH} is 3: no process, not even root's, may read memory of VMs"),
            format!(
                "set it to less than 3 at boot (in /etc/sysctl.d; it cannot be lowered later); \
                 {WITHOUT}"
            ),
        );
    }
    Check::ok(NAME, "processes with CAP_SYS_PTRACE may read memory of VMs")
}

/// The PID namespace of this process, if it is not the host's. In it, processes have other numbers
/// than in the host's.
pub fn foreign_pid_namespace(host: &Host) -> Option<String> {
    // PROC_PID_INIT_INO of include/linux/proc_ns.h.
    const HOST: &str = "pid:[4026531836]";
    host.link("/proc/self/ns/pid").filter(|namespace| namespace != HOST)
}

/// Whether processes have the same numbers here as in the host's PID namespace.
pub(crate) fn pid_namespace(host: &Host) -> Check {
    const NAME: &str = "pid-namespace";
    match foreign_pid_namespace(host) {
        None => Check::ok(NAME, "this process is in the host's PID namespace"),
        Some(other) => Check::fail(
            NAME,
            format!(
                "this process is in a PID namespace (a container?), {other}, where VMs have other \
                 numbers"
            ),
            "run it on the host itself, or give the container the host's (podman: --pid=host)",
        ),
    }
}
