// SPDX-License-Identifier: GPL-2.0-or-later
//! What Holdfast needs of the kernel.

use std::collections::BTreeSet;

use libbpf_rs::btf::types::{Func, FuncProto, Struct};
use libbpf_rs::btf::{Btf, ReferencesType};

use crate::{Check, Host};

pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// Advice where only reading guests is impossible.
pub(crate) const WITHOUT: &str = "scx_holdfast --no-guest-knowledge runs without it";
pub(crate) const STATE: &str = "/sys/kernel/sched_ext/state";

/// Kernel functions that the BPF part of `scx_holdfast` requires: its symbols that are not weak.
/// Weak symbols have a substitute for older kernels (scx/compat.bpf.h).
pub const REQUIRED_KFUNCS: [&str; 18] = [
    "bpf_cgroup_ancestor",
    "bpf_cgroup_release",
    "bpf_cpumask_test_cpu",
    "bpf_rcu_read_lock",
    "bpf_rcu_read_unlock",
    "bpf_task_from_pid",
    "bpf_task_release",
    "scx_bpf_create_dsq",
    "scx_bpf_dsq_nr_queued",
    "scx_bpf_error_bstr",
    "scx_bpf_get_idle_cpumask",
    "scx_bpf_get_idle_smtmask",
    "scx_bpf_kick_cpu",
    "scx_bpf_pick_idle_cpu",
    "scx_bpf_put_idle_cpumask",
    "scx_bpf_select_cpu_dfl",
    "scx_bpf_task_cpu",
    "scx_bpf_test_and_clear_cpu_idle",
];

/// sched_ext itself.
pub(crate) fn sched_ext(host: &Host) -> Check {
    const NAME: &str = "sched-ext";
    let release = host.release();
    if host.exists(STATE) {
        Check::ok(NAME, format!("Linux {release} has it"))
    } else {
        Check::fail(
            NAME,
            format!("Linux {release} was built without sched_ext"),
            "boot a kernel of 6.12 or later that was built with CONFIG_SCHED_CLASS_EXT=y",
        )
    }
}

/// BTF of the kernel.
pub(crate) fn btf(host: &Host) -> Check {
    const NAME: &str = "kernel-btf";
    if host.exists(VMLINUX) {
        Check::ok(NAME, format!("the kernel describes its types in {VMLINUX}"))
    } else {
        Check::fail(
            NAME,
            format!("{VMLINUX} is missing"),
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y, as those of distributions are",
        )
    }
}

/// Callbacks and functions of sched_ext, and whether programs can use them.
pub(crate) fn kfuncs(host: &Host) -> Check {
    const NAME: &str = "kfuncs";
    /// All releases with sched_ext have these; the callbacks of groups take CONFIG_EXT_GROUP_SCHED.
    /// A kernel that lacks the others is a development version.
    const CALLBACKS: [&str; 4] = ["yield", "dump", "cgroup_init", "cgroup_set_weight"];

    if !host.exists(STATE) {
        return Check::skip(NAME, "not looked for: there is no sched_ext");
    }
    if !host.exists(VMLINUX) {
        return Check::skip(NAME, "not looked for: the kernel has no BTF");
    }
    let btf = match Btf::from_path(host.path(VMLINUX)) {
        Ok(btf) => btf,
        Err(why) => {
            return Check::fail(
                NAME,
                format!("{VMLINUX} cannot be read: {why}"),
                "run it as root; if it runs as root already, boot another build of the kernel",
            );
        }
    };
    let ops = btf.type_by_name::<Struct<'_>>("sched_ext_ops");
    let callbacks: BTreeSet<_> = ops
        .iter()
        .flat_map(|ops| ops.iter())
        .filter_map(|member| member.name.and_then(|name| name.to_str()))
        .collect();
    let mut missing: Vec<_> = REQUIRED_KFUNCS.to_vec();
    let mut malformed = Vec::new();
    for function in btf.type_by_kind::<Func<'_>>() {
        let Some(name) = function.name().and_then(|name| name.to_str()) else { continue };
        if let Some(at) = missing.iter().position(|wanted| *wanted == name) {
            missing.swap_remove(at);
            if takes_aux(&function) {
                malformed.push(name.to_owned());
            }
        }
    }
    missing.extend(CALLBACKS.iter().filter(|wanted| !callbacks.contains(*wanted)));
    missing.sort_unstable();
    if !missing.is_empty() {
        return Check::fail(
            NAME,
            format!("the kernel lacks {}", missing.join(", ")),
            "boot a kernel of 6.12 or later with CONFIG_SCHED_CLASS_EXT=y and \
             CONFIG_EXT_GROUP_SCHED=y",
        );
    }
    if !malformed.is_empty() {
        return Check::fail(
            NAME,
            format!("the kernel's BTF declares {} wrongly (with `aux`)", malformed.join(", ")),
            "no sched_ext scheduler can be loaded into this build of the kernel, because pahole \
             and resolve_btfids left `aux` in its BTF; boot another build",
        );
    }
    Check::ok(NAME, format!("all {} that the scheduler needs", REQUIRED_KFUNCS.len()))
}

/// BTF has to hide an argument that only the kernel passes. Some builds show it, and libbpf then
/// finds no matching function.
fn takes_aux(function: &Func<'_>) -> bool {
    let prototype = FuncProto::try_from(function.referenced_type());
    prototype.is_ok_and(|prototype| {
        prototype.iter().any(|param| param.name.is_some_and(|name| name == "aux"))
    })
}

/// The kernel's configuration, which libbpf looks up for `__kconfig` variables.
pub(crate) fn config(host: &Host) -> Check {
    const NAME: &str = "kernel-config";
    let release = host.release();
    let boot = format!("/boot/config-{release}");
    for path in [boot.as_str(), "/proc/config.gz"] {
        if host.exists(path) {
            return Check::ok(NAME, format!("libbpf can read it from {path}"));
        }
    }
    let modules = ["/usr/lib/modules", "/lib/modules"].map(|dir| format!("{dir}/{release}/config"));
    let advice = match modules.iter().find(|path| host.exists(path)) {
        Some(path) => format!("ln -s {path} {boot}"),
        None => format!("put the configuration of the running kernel at {boot}"),
    };
    Check::fail(NAME, format!("neither {boot} nor /proc/config.gz is there for libbpf"), advice)
}

/// sched_ext calls its programs as machine code, and only compiled programs may call kernel
/// functions.
pub(crate) fn jit(host: &Host) -> Check {
    const NAME: &str = "bpf-jit";
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    match host.read(PATH).as_deref() {
        Some("0") => {
            Check::fail(NAME, "the BPF compiler is off", format!("turn it on: echo 1 > {PATH}"))
        }
        Some(_) => Check::ok(NAME, "the BPF compiler is on"),
        // Only root may read the file, and some kernels have no switch.
        None => Check::skip(NAME, format!("not known: {PATH} cannot be read")),
    }
}

/// BPF timers probe running vCPUs by interrupting them. Where timers expire in threads, the thread
/// takes the vCPU's CPU instead. The probe then never finds the vCPU, and preempts it instead of
/// keeping it running.
pub(crate) fn timers(host: &Host) -> Check {
    const NAME: &str = "timers";
    let is_rt = host.read("/sys/kernel/realtime").is_some_and(|text| text.trim() == "1");
    let cmdline = host.read("/proc/cmdline").unwrap_or_default();
    let (why, advice) = if is_rt {
        ("the kernel is PREEMPT_RT", "boot a kernel that is not")
    } else if cmdline.split_ascii_whitespace().any(|option| option == "threadirqs") {
        ("the kernel was booted with `threadirqs`", "boot without `threadirqs`")
    } else {
        return Check::ok(NAME, "BPF timers interrupt the running task");
    };
    Check::fail(
        NAME,
        format!("{why}: BPF timers expire in threads, and running vCPUs cannot be probed"),
        format!("{advice}; {WITHOUT}"),
    )
}

/// Loading any sched_ext scheduler while a process creates a PSI trigger hangs Linux 7.1
/// (sched-ext/scx issue 3716). The fix is marked for its stable releases; the release alone does
/// not say which of them have it.
pub(crate) fn psi_triggers(host: &Host) -> Check {
    const NAME: &str = "psi-triggers";
    let release = host.release();
    if !release.starts_with("7.1.") && !release.starts_with("7.1-") {
        return Check::ok(NAME, format!("Linux {release} is not 7.1, where loading may hang"));
    }
    if !host.exists("/proc/pressure") {
        return Check::ok(NAME, "there is no pressure stall information");
    }
    Check::warn(
        NAME,
        format!(
            "Linux {release} hangs if a scheduler is loaded while a process creates a PSI trigger, \
             as systemd does at boot and when services start, unless it has the fix fadeedd7cfc5 \
             (sched-ext/scx issue 3716)"
        ),
        "boot a kernel with the fix, such as 7.2; else do not start scx_holdfast at boot, or boot \
         with psi=0",
    )
}

/// Lockdown for confidentiality forbids BPF to read kernel memory, which discovery does, and the
/// scheduler for cgroups.
pub(crate) fn lockdown(host: &Host) -> Check {
    const NAME: &str = "lockdown";
    let Some(modes) = host.read("/sys/kernel/security/lockdown") else {
        return Check::skip(
            NAME,
            "not known: there is no /sys/kernel/security/lockdown (mount -t securityfs none \
             /sys/kernel/security shows it, if the kernel has it)",
        );
    };
    if modes.contains("[confidentiality]") {
        Check::fail(
            NAME,
            "the kernel is locked down for confidentiality: BPF programs may not read kernel \
             memory",
            "boot without lockdown=confidentiality, and let nothing write that to \
             /sys/kernel/security/lockdown (integrity is fine)",
        )
    } else {
        Check::ok(NAME, "BPF programs may read kernel memory")
    }
}
