// SPDX-License-Identifier: GPL-2.0-or-later
//! Every check: its name, its use, and when it fails. The reference page is made of this.

use std::fmt::Write;

use crate::report::Group;
use crate::{
    Check, Host, core_scheduling, enabling, kernel, kvm, privileges, schedulers, topology,
};

/// Whether the kernel accepts the programs that find vCPUs. This check and the next ones are made
/// by the programs that contain them.
pub const DISCOVERY_PROGRAMS: &str = "discovery-programs";
/// Whether it accepts the observer's programs.
pub const OBSERVER_PROGRAMS: &str = "observer-programs";
/// Whether it accepts those of `holdfast spins`.
pub const SPINS_PROGRAMS: &str = "spins-programs";
/// Whether it accepts those of `scx_holdfast`.
pub const SCHEDULER_PROGRAMS: &str = "scheduler-programs";

/// The programs that make a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// `scx_holdfast` before it loads, and `doctor`. A failure forbids to load any scheduler, makes
    /// it dangerous, or breaks limits which other software relies on.
    BeforeLoading,
    /// The same, but for `--no-guest-knowledge`.
    BeforeReading,
    /// `doctor` alone.
    ByDoctor,
}

/// A kind of check.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) made: Made,
    /// Makes the check; `None` if another crate has the programs for it.
    pub(crate) function: Option<fn(&Host) -> Check>,
    /// When it fails, and why that matters: what follows the name in Markdown.
    fails: &'static str,
    /// Page with more of it, from docs/reference.
    see: Option<&'static str>,
}

/// Every check, in the order in which they are made.
pub(crate) const CATALOGUE: [Entry; 27] = [
    Entry {
        name: "privileges",
        group: Group::Observe,
        made: Made::BeforeLoading,
        function: Some(privileges::capabilities),
        fails: "fails if CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE or \
                CAP_DAC_READ_SEARCH is missing, in a user namespace, or if the kernel refuses \
                BPF all the same (a container, a security module). Guests' memory and cookies \
                are read as ptrace would, and the pages that are resident stand in a file of the \
                VMM's user.",
        see: None,
    },
    Entry {
        name: "sched-ext",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(kernel::sched_ext),
        fails: "fails if the kernel has no sched_ext (`CONFIG_SCHED_CLASS_EXT`).",
        see: None,
    },
    Entry {
        name: "kernel-btf",
        group: Group::Observe,
        made: Made::BeforeLoading,
        function: Some(kernel::btf),
        fails: "fails if `/sys/kernel/btf/vmlinux` is missing: BPF programs are fitted to the \
                kernel's types.",
        see: None,
    },
    Entry {
        name: "kfuncs",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(kernel::kfuncs),
        fails: "fails if functions or callbacks of the kernel are missing (those of cgroups with \
                `CONFIG_EXT_GROUP_SCHED`), or declared with an `aux` argument. Only the kernel \
                passes that argument, and some builds do not hide it, such as Debian 13's \
                backport of 7.2.12: no sched_ext scheduler loads there.",
        see: None,
    },
    Entry {
        name: "kernel-config",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(kernel::config),
        fails: "fails if neither `/boot/config-RELEASE` nor `/proc/config.gz` is there: libbpf \
                looks kernel options up in them. Debian 14 has the file in \
                `/usr/lib/modules/RELEASE/`. The advice is the `ln -s` that helps; it is needed \
                for each new kernel before the reboot into it, or the service is not started.",
        see: None,
    },
    Entry {
        name: "bpf-jit",
        group: Group::Observe,
        made: Made::BeforeLoading,
        function: Some(kernel::jit),
        fails: "fails if `net.core.bpf_jit_enable` is 0: sched_ext calls machine code, and \
                looking at VMs takes it, too.",
        see: None,
    },
    Entry {
        name: "lockdown",
        group: Group::Observe,
        made: Made::BeforeLoading,
        function: Some(kernel::lockdown),
        fails: "fails if the kernel is locked down for confidentiality: BPF may read neither \
                KVM's structures then, nor the kernel's.",
        see: None,
    },
    Entry {
        name: "psi-triggers",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(kernel::psi_triggers),
        fails: "warns if the kernel is 7.1 and has pressure stall information.",
        see: Some("../guides/deploy.md#linux-71"),
    },
    Entry {
        name: schedulers::OTHER,
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(schedulers::any),
        fails: "fails if a sched_ext scheduler is loaded: the kernel takes one at a time. For \
                `doctor` that is any but `scx_holdfast` itself.",
        see: None,
    },
    Entry {
        name: "isolated-cpus",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(enabling::isolation),
        fails: "fails if the kernel was booted with `isolcpus=` for domains (`nohz_full=` is no \
                hindrance): the kernel takes no sched_ext scheduler then. Isolate CPUs by a \
                cpuset instead (`cpuset.cpus.partition`). On 7.0 it warns where a cpuset \
                isolates CPUs: early releases of 7.0 refuse these, too.",
        see: None,
    },
    Entry {
        name: "cgroups",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(enabling::cgroups),
        fails: "fails with more than 65 536 cgroups: `scx_holdfast` has room for as many.",
        see: None,
    },
    Entry {
        name: "deadline-tasks",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(enabling::deadline_bandwidth),
        fails: "warns if SCHED_DEADLINE tasks may have been promised so much that less than 10 % \
                of each CPU is left. It fails if `kernel.sched_rt_runtime_us` alone leaves less. \
                Since Linux 7.0 the kernel reserves 5 % of each CPU for tasks of sched_ext, and \
                5 % for those of its own scheduler; 7.2 and later take no scheduler if that \
                cannot be had.",
        see: None,
    },
    Entry {
        name: "cpu-limits",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(schedulers::bandwidth),
        fails: "warns if a cgroup has a bandwidth limit (`cpu.max`): it is not enforced. On \
                hosts with cgroup v1 it cannot tell.",
        see: Some("../guides/deploy.md#what-it-refuses-and-what-it-ignores"),
    },
    Entry {
        name: "core-scheduling",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(core_scheduling::cookies),
        fails: "fails if SMT is on and a task has a core-scheduling cookie, or if that cannot be \
                told.",
        see: Some("../guides/deploy.md#core-scheduling"),
    },
    Entry {
        name: "cpus",
        group: Group::Schedule,
        made: Made::BeforeLoading,
        function: Some(topology::limits),
        fails: "fails with more than 1024 CPU numbers or 64 last level caches.",
        see: None,
    },
    Entry {
        name: "kvm",
        group: Group::Observe,
        made: Made::BeforeReading,
        function: Some(kvm::module),
        fails: "fails if the module `kvm` is not loaded, has no BTF, or has one without the \
                functions that are looked for. It warns without `kvm_intel` or `kvm_amd`.",
        see: None,
    },
    Entry {
        name: "vcpu-tracing",
        group: Group::Observe,
        made: Made::BeforeReading,
        function: Some(kvm::tracing),
        fails: "fails if the kernel has no function tracing, if it is switched off, or if the \
                kernel takes no BPF program that traces functions from this process. vCPUs are \
                found where KVM loads them.",
        see: None,
    },
    Entry {
        name: "pid-namespace",
        group: Group::Observe,
        made: Made::BeforeReading,
        function: Some(privileges::pid_namespace),
        fails: "fails in another PID namespace than the host's (a container): a VM's process has \
                another number there.",
        see: None,
    },
    Entry {
        name: "ptrace-scope",
        group: Group::Observe,
        made: Made::BeforeReading,
        function: Some(privileges::ptrace_scope),
        fails: "fails if `kernel.yama.ptrace_scope` is 3: no process may read another one's \
                memory then.",
        see: None,
    },
    Entry {
        name: "timers",
        group: Group::Schedule,
        made: Made::BeforeReading,
        function: Some(kernel::timers),
        fails: "fails on PREEMPT_RT and with `threadirqs`: BPF timers expire in threads there, \
                and would take the CPU of the vCPU that they are to probe.",
        see: None,
    },
    Entry {
        name: "vcpu-functions",
        group: Group::Observe,
        made: Made::ByDoctor,
        function: Some(kvm::functions),
        fails: "fails if `kvm_arch_vcpu_load`, `kvm_arch_vcpu_destroy` or `kvm_arch_destroy_vm` \
                cannot be traced: vCPUs and VMs are found and forgotten there. The kernel takes \
                a tenth of a second to list what can be traced, so `scx_holdfast` leaves the \
                refusal to it.",
        see: None,
    },
    Entry {
        name: "realtime-vcpus",
        group: Group::Advice,
        made: Made::ByDoctor,
        function: Some(schedulers::realtime),
        fails: "warns if a VM has threads of a real-time class: these run before every task of \
                sched_ext, out of its sight.",
        see: None,
    },
    Entry {
        name: "pause-exits",
        group: Group::Advice,
        made: Made::ByDoctor,
        function: Some(kvm::pause_exits),
        fails: "warns if pause-loop exiting is off: spinning vCPUs then leave the guest only \
                through paravirtual spinlocks.",
        see: None,
    },
    Entry {
        name: DISCOVERY_PROGRAMS,
        group: Group::Observe,
        made: Made::ByDoctor,
        function: None,
        fails: "fails if the kernel does not take the programs that find vCPUs.",
        see: None,
    },
    Entry {
        name: OBSERVER_PROGRAMS,
        group: Group::Observe,
        made: Made::ByDoctor,
        function: None,
        fails: "fails if it does not take those that count what happens to vCPUs.",
        see: None,
    },
    Entry {
        name: SPINS_PROGRAMS,
        group: Group::Advice,
        made: Made::ByDoctor,
        function: None,
        fails: "fails if it does not take those of `holdfast spins`, which need no VM.",
        see: None,
    },
    Entry {
        name: SCHEDULER_PROGRAMS,
        group: Group::Schedule,
        made: Made::ByDoctor,
        function: None,
        fails: "fails if it does not take those of the scheduler. `scx_holdfast --check` tries \
                them, and starts no scheduler. It is skipped if there is no `scx_holdfast` \
                beside `holdfast` or in `PATH`.",
        see: None,
    },
];

/// The entry of a name.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name == name)
}

/// The checks as Markdown, by groups, for the reference.
pub fn reference() -> String {
    let mut page = String::new();
    for group in Group::ALL {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {}\n\n", group.title());
        for entry in CATALOGUE.iter().filter(|entry| entry.group == group) {
            let made = match entry.made {
                Made::BeforeLoading | Made::BeforeReading => "",
                Made::ByDoctor => " Only `doctor` makes it.",
            };
            let see = entry.see.map_or(String::new(), |page| format!(" [More of it]({page}).",));
            let text = format!("- **`{}`** {}{made}{see}", entry.name, entry.fails);
            page += &textwrap::fill(&text, item());
            page.push('\n');
        }
    }
    page
}

/// Lines of an item of a Markdown list.
fn item() -> textwrap::Options<'static> {
    textwrap::Options::new(100)
        .subsequent_indent("  ")
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_check_has_the_name_of_its_entry() {
        let empty = tempfile::tempdir().unwrap();
        let host = Host::at(empty.path(), BTreeMap::new());
        for entry in &CATALOGUE {
            if let Some(function) = entry.function {
                let check = function(&host);
                assert_eq!((check.name, check.group), (entry.name, entry.group));
            }
        }
    }

    #[test]
    fn the_reference_has_every_check_once() {
        let page = reference();
        for entry in &CATALOGUE {
            assert_eq!(page.matches(&format!("- **`{}`**", entry.name)).count(), 1, "{page}");
        }
        assert!(page.lines().all(|line| line.len() <= 100), "{page}");
    }
}
