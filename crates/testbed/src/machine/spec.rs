// SPDX-License-Identifier: GPL-2.0-or-later
//! Descriptions of machines to boot.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::packages::{Kernel, Packages};

/// Requested way to execute the host's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// KVM where the machine has a usable one, else emulation.
    #[default]
    Auto,
    /// Emulation.
    Tcg,
    /// KVM.
    Kvm,
    /// The running machine is the host: only guests are booted.
    Here,
}

/// The way the host's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// QEMU's emulation: times are not those of hardware.
    Tcg,
    /// KVM: the lab's host is a guest itself.
    Kvm,
    /// The machine itself.
    Here,
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Acceleration::Tcg => "emulated: times are not those of hardware",
            Acceleration::Kvm => "KVM",
            Acceleration::Here => "this machine",
        })
    }
}

/// The source of a host's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Instructions where the host is emulated, else the machine's clock.
    #[default]
    Auto,
    /// The machine's clock.
    Machine,
    /// The count of executed instructions. Every such host is emulated, one CPU after the other: a
    /// noisy machine makes it slow but changes no figure.
    Instructions,
}

/// Topology of a host's or a guest's CPUs. Each socket has a last level cache and, in a host, a
/// NUMA node with its part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
}

impl Topology {
    /// CPUs of the host.
    pub fn cpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// A host to boot.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// How to run it.
    pub accel: Accel,
    /// CPUs; ignored with [`Accel::Here`].
    pub cpus: u32,
    /// With [`Accel::Here`], the CPUs of the running machine that everything started on it may use;
    /// if empty, those that this process may use.
    pub cpus_here: Vec<u32>,
    /// Topology of these CPUs; if absent, they share one cache and one node, and each is a core of
    /// its own. Ignored with [`Accel::Here`].
    pub topology: Option<Topology>,
    /// Memory, in MiB; ignored with [`Accel::Here`].
    pub memory_mib: u32,
    /// The source of its time.
    pub clock: Clock,
    /// Kernel of the host, which must have sched_ext.
    pub host_kernel: Kernel,
    /// Kernels of guests to come. Emulated CPUs take turns in one thread if there are any.
    pub guest_kernels: Vec<Kernel>,
    /// Directory with `holdfast-agent`, `workloads/` and the other programs built.
    pub dist: PathBuf,
    /// More files for the host, such as other schedulers: path here, path there. The libraries they
    /// need are added.
    pub extra: Vec<(PathBuf, String)>,
    /// Whether guests have the program `holdfast`, for `holdfast spins`.
    pub holdfast_in_guests: bool,
    /// Whether guests can run guests of their own; they need the CPU feature `+svm` or `+vmx`, too.
    pub kvm_in_guests: bool,
    /// Added to the host kernel's command line.
    pub cmdline: String,
    /// Where packages and images are kept.
    pub cache: PathBuf,
}

impl MachineSpec {
    /// The lab's usual host: 2 CPUs, 6 GiB, guests with the newest kernel. Its time is the
    /// machine's clock, which is fastest. Experiments say which clock they need, and default to
    /// [`Clock::Auto`].
    pub fn new(dist: impl Into<PathBuf>) -> Self {
        MachineSpec {
            accel: Accel::Auto,
            cpus: 2,
            cpus_here: Vec::new(),
            topology: None,
            memory_mib: 6144,
            clock: Clock::Machine,
            host_kernel: Kernel::default(),
            guest_kernels: vec![Kernel::default()],
            dist: dist.into(),
            extra: Vec::new(),
            holdfast_in_guests: false,
            kvm_in_guests: false,
            cmdline: String::new(),
            cache: Packages::default_cache(),
        }
    }
}

/// KVM's paravirtual features that `-cpu host` brings on a real host.
pub const PV_FEATURES: [&str; 5] = [
    "+kvm-pv-unhalt",
    "+kvm-pv-tlb-flush",
    "+kvm-pv-ipi",
    "+kvm-pv-sched-yield",
    "+kvm-poll-control",
];

/// A guest to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSpec {
    /// Name. Its QEMU is the child `guest-NAME` of the host's agent.
    pub name: String,
    /// Kernel; one of [`MachineSpec::guest_kernels`].
    pub kernel: Kernel,
    /// vCPUs at boot.
    pub vcpus: u32,
    /// vCPUs there may be after hot-plugging; 0 for as many as at boot.
    pub max_vcpus: u32,
    /// Topology of its vCPUs; each is a socket if absent. Where cores are no power of two, APIC ids
    /// have gaps.
    pub topology: Option<Topology>,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Memory modules of 2 MiB each, beside that: KVM has a slot for each.
    pub dimms: u32,
    /// CPU features with their sign, e.g. of [`PV_FEATURES`].
    pub features: Vec<String>,
    /// Whether spinning vCPUs leave the guest (pause-loop exits); the same for all guests of a
    /// host.
    pub pause_exits: bool,
    /// Added to the guest kernel's command line.
    pub cmdline: String,
    /// CPUs of the host it may use; all if absent.
    pub cpus: Option<Vec<u32>>,
}

impl GuestSpec {
    /// The lab's usual guest: 4 vCPUs, 512 MiB, every paravirtual feature, no pause-loop exits.
    pub fn new(name: &str) -> Self {
        GuestSpec {
            name: name.to_owned(),
            kernel: Kernel::default(),
            vcpus: 4,
            max_vcpus: 0,
            topology: None,
            memory_mib: 512,
            dimms: 0,
            features: PV_FEATURES.map(str::to_owned).to_vec(),
            pause_exits: false,
            cmdline: String::new(),
            cpus: None,
        }
    }

    /// Name of the child of the host's agent that is this guest's QEMU.
    pub fn child(&self) -> String {
        child_name(&self.name)
    }
}

pub(super) fn child_name(guest: &str) -> String {
    format!("guest-{guest}")
}
