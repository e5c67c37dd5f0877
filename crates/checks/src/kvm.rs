// SPDX-License-Identifier: GPL-2.0-or-later
//! What Holdfast needs for reading guests.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

use crate::kernel::{VMLINUX, WITHOUT};
use crate::privileges::capabilities;
use crate::{Check, Host, Verdict};

/// Functions that discovery attaches to.
const TARGETS: [&str; 3] = ["kvm_arch_vcpu_load", "kvm_arch_vcpu_destroy", "kvm_arch_destroy_vm"];

/// KVM, and BTF of its types.
pub(crate) fn module(host: &Host) -> Check {
    const NAME: &str = "kvm";
    if !host.exists("/sys/module/kvm") {
        return Check::fail(
            NAME,
            "the kvm module is not loaded",
            format!("modprobe kvm_intel (or kvm_amd); {WITHOUT}"),
        );
    }
    // If KVM is part of the kernel itself, its types are in the kernel's BTF.
    let is_module = host.exists("/sys/module/kvm/initstate");
    let path = if is_module { "/sys/kernel/btf/kvm" } else { "/sys/kernel/btf/vmlinux" };
    let Ok(types) = fs::read(host.path(path)) else {
        return Check::fail(
            NAME,
            format!("{path} is missing: the types of KVM are not known"),
            format!("boot a kernel with CONFIG_DEBUG_INFO_BTF_MODULES=y; {WITHOUT}"),
        );
    };
    // A name in BTF is a string between two zero bytes.
    let is_there = |target: &str| {
        let name = format!("\0{target}\0");
        types.windows(name.len()).any(|window| window == name.as_bytes())
    };
    if let Some(missing) = TARGETS.into_iter().find(|target| !is_there(target)) {
        return Check::fail(
            NAME,
            format!("{path} has no {missing}"),
            format!("this needs a KVM of x86-64, built without link-time optimisation; {WITHOUT}"),
        );
    }
    let vendor = ["kvm_intel", "kvm_amd"].into_iter().find(|vendor| {
        // A vendor's module that is built in shows only its parameters.
        host.exists(format!("/sys/module/{vendor}"))
    });
    match vendor {
        Some(vendor) => Check::ok(NAME, format!("{vendor}, and its types are in {path}")),
        None => Check::warn(
            NAME,
            "neither kvm_intel nor kvm_amd is loaded: no VM of theirs can run",
            "modprobe kvm_intel or kvm_amd (is virtualisation enabled in the firmware?)",
        ),
    }
}

/// Whether programs can be attached to functions of KVM.
pub(crate) fn tracing(host: &Host) -> Check {
    const NAME: &str = "vcpu-tracing";
    match host.read("/proc/sys/kernel/ftrace_enabled").as_deref() {
        None => Check::fail(
            NAME,
            "the kernel has no function tracing",
            format!("boot a kernel with CONFIG_FUNCTION_TRACER=y; {WITHOUT}"),
        ),
        Some("0") => Check::fail(
            NAME,
            "function tracing is switched off",
            format!("sysctl kernel.ftrace_enabled=1; {WITHOUT}"),
        ),
        Some(_) if capabilities(host).verdict == Verdict::Fail => {
            Check::skip(NAME, "not known: `privileges` has to pass first")
        }
        Some(_) if !host.exists(VMLINUX) => {
            Check::skip(NAME, "not known: `kernel-btf` has to pass first")
        }
        Some(_) => match host.takes_tracing() {
            Ok(()) => Check::ok(NAME, "function tracing is on, also for BPF"),
            Err(why) => refused(NAME, host, &why),
        },
    }
}

/// Says why a process that may load BPF programs may not load a program that traces functions.
fn refused(name: &'static str, host: &Host, why: &io::Error) -> Check {
    const ENOTSUPP: i32 = 524;
    let (why, advice) = match why.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let modules = host.read("/sys/kernel/security/lsm").unwrap_or_default();
            let modules = if modules.is_empty() { "not known".into() } else { modules };
            (
                format!(
                    "{why}, by a filter of system calls or a security module (active: {modules})"
                ),
                "run it on the host itself, outside of containers; there, `journalctl -k | grep -i \
                 denied` may name the module",
            )
        }
        errno => {
            let why =
                if errno == Some(ENOTSUPP) { "not supported".into() } else { why.to_string() };
            (
                why,
                "boot a kernel with CONFIG_BPF_EVENTS=y and \
                 CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y",
            )
        }
    };
    Check::fail(
        name,
        format!("the kernel refuses BPF programs that trace functions (fentry): {why}"),
        format!("{advice}; {WITHOUT}"),
    )
}

/// Whether the functions of KVM that discovery attaches to can be traced. The kernel takes a tenth
/// of a second to list all such functions. `scx_holdfast` leaves this check out: the kernel refuses
/// other functions anyway.
pub(crate) fn functions(host: &Host) -> Check {
    const NAME: &str = "vcpu-functions";
    const LIST: &str = "/sys/kernel/tracing/available_filter_functions";
    const LIST_IN_DEBUGFS: &str = "/sys/kernel/debug/tracing/available_filter_functions";
    if !host.exists("/sys/module/kvm") {
        return Check::skip(NAME, "not looked for: the kvm module is not loaded");
    }
    let open = |list: &str| File::open(host.path(list));
    let list = match open(LIST).or_else(|why| open(LIST_IN_DEBUGFS).map_err(|_| why)) {
        Ok(list) => list,
        Err(why) => return Check::skip(NAME, format!("not known: reading {LIST}: {why}")),
    };
    // "kvm_arch_vcpu_load [kvm]"
    let mut missing = Vec::from(TARGETS);
    for line in BufReader::new(list).lines().map_while(Result::ok) {
        missing.retain(|target| line.split(' ').next() != Some(*target));
    }
    if missing.is_empty() {
        Check::ok(NAME, format!("{} can be traced", TARGETS.join(" and ")))
    } else {
        Check::fail(
            NAME,
            format!("{} cannot be traced", missing.join(" and ")),
            format!(
                "boot a kernel that does not inline these functions of KVM and lets them be \
                 traced; {WITHOUT}"
            ),
        )
    }
}

/// Whether spinning vCPUs leave the guest by pause exits, with which directed yields begin.
pub(crate) fn pause_exits(host: &Host) -> Check {
    const NAME: &str = "pause-exits";
    let parameters = [
        ("kvm_intel", "ple_gap", "ple_window", "ple"),
        ("kvm_amd", "pause_filter_count", "pause_filter_thresh", "pausefilter"),
    ];
    for (module, first, second, flag) in parameters {
        let read = |name| host.read(format!("/sys/module/{module}/parameters/{name}"));
        let (Some(on), Some(more)) = (read(first), read(second)) else { continue };
        let found = format!("{module}: {first}={on}, {second}={more}");
        if on != "0" {
            return Check::ok(NAME, found);
        }
        // A module sets its parameter to 0 where the processor has no such exits.
        let cpuinfo = host.read("/proc/cpuinfo");
        let has_them = cpuinfo.is_none_or(|text| text.split_ascii_whitespace().any(|f| f == flag));
        let advice = if has_them {
            format!(
                "guests with paravirtual spinlocks need no pause exits; for others, end all VMs \
                 and load {module} without {first}=0"
            )
        } else {
            "have guests use paravirtual spinlocks (no nopvspin): this processor has no pause \
             exits"
                .into()
        };
        return Check::warn(
            NAME,
            format!("{found}: vCPUs that spin do not leave the guest"),
            advice,
        );
    }
    Check::skip(NAME, "not known: there are no parameters of kvm_intel or kvm_amd")
}
