// SPDX-License-Identifier: GPL-2.0-or-later
//! The runner's view of a KVM host, and the lab's machine as one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use holdfast_agent::protocol::{Hello, Reply, Request};
use holdfast_testbed::images::{self, AGENT, WORKLOADS};
use holdfast_testbed::machine::{self, Accel, Acceleration, GuestSpec, Machine, MachineSpec};
use holdfast_testbed::packages::{Kernel, Packages};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::scheduler;
use holdfast_testbed::{Error, Result};

use super::plan::Pace;
use crate::experiment::{Contender, CpuFeatures, Experiment, Guest};
use crate::result::EMULATED;

/// A KVM host with an agent.
pub trait Host {
    /// Sends the host's agent a request.
    fn request(&self, request: Request) -> Result<Reply>;
    /// The agent's answer about itself.
    fn hello(&self) -> Hello;
    /// Loads the host's KVM, with or without pause-loop exits. Starting a guest does the same.
    fn load_kvm(&self, _pause_exits: bool) -> Result<()> {
        Ok(())
    }
    /// Starts a guest and waits until its agent answers.
    fn start_guest(&self, name: &str, guest: &Guest, pause_exits: bool) -> Result<Hello>;
    /// Ends a guest at once.
    fn stop_guest(&self, name: &str) -> Result<()>;
    /// The agent's child that is the guest's VMM.
    fn vm_child(&self, guest: &str) -> String;
    /// Path, in the host, of a scheduler or another program of Holdfast.
    fn program(&self, name: &str) -> String;
    /// Path, in the host, of a workload.
    fn workload_in_host(&self, name: &str) -> String;
    /// Path, in a guest, of a workload.
    fn workload_in_guest(&self, name: &str) -> String;
    /// Command, in a guest, of the program `holdfast`.
    fn holdfast_in_guest(&self) -> Vec<String>;
    /// Directory, in the host and in guests, for the workloads' counter files.
    fn scratch(&self) -> String {
        "/tmp".into()
    }
    /// Path, in the host, of the file that says whether a scheduler is loaded.
    fn scx_state(&self) -> String {
        "/sys/kernel/sched_ext/state".into()
    }
    /// Path, in the host, of the socket of a scheduler's statistics.
    fn scx_stats(&self) -> String {
        scheduler::SOCKET.into()
    }
    /// Facts about the host.
    fn facts(&self) -> HostFacts;
}

/// Facts about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// `tcg`, `kvm` or `here`.
    pub accelerator: String,
    /// Version of QEMU.
    pub qemu: Option<String>,
    /// Whether its clock counts its instructions.
    pub counts_instructions: bool,
    /// Debian package: version.
    pub packages: BTreeMap<String, String>,
}

impl HostFacts {
    pub(super) fn is_emulated(&self) -> bool {
        self.accelerator == EMULATED
    }

    /// How fast it is.
    pub(super) fn pace(&self) -> Pace {
        match (self.counts_instructions, self.is_emulated()) {
            (true, _) => Pace::Counting,
            (false, true) => Pace::Emulated,
            (false, false) => Pace::Real,
        }
    }
}

/// How hosts are booted, and from which files.
#[derive(Clone, Debug)]
pub struct Place {
    /// How the host's instructions are executed.
    pub accel: Accel,
    /// Directory with the programs built.
    pub dist: PathBuf,
}

/// The lab's machine as a host.
pub struct LabHost {
    machine: Machine,
    /// Path, in the host, of contenders that are not in the dist directory.
    elsewhere: BTreeMap<String, String>,
}

impl LabHost {
    /// Boots a host for `experiment`.
    pub fn boot(experiment: &Experiment, place: &Place, progress: &Progress) -> Result<LabHost> {
        let (spec, elsewhere) = LabHost::plan(experiment, place)?;
        Ok(LabHost { machine: Machine::boot(&spec, progress)?, elsewhere })
    }

    /// Refuses as [`LabHost::boot`] would for lack of programs or rights; changes nothing.
    pub(crate) fn check(experiment: &Experiment, place: &Place) -> Result<()> {
        machine::check(&LabHost::plan(experiment, place)?.0)
    }

    /// The machine, and the path in it of contenders that are not in the dist directory.
    fn plan(
        experiment: &Experiment,
        place: &Place,
    ) -> Result<(MachineSpec, BTreeMap<String, String>)> {
        let mut kernels: Vec<Kernel> =
            experiment.guests.values().map(|guest| guest.kernel).collect();
        kernels.sort();
        kernels.dedup();
        check_programs(experiment, &place.dist)?;
        let (extra, elsewhere) = programs(experiment, place)?;
        let spec = MachineSpec {
            accel: place.accel,
            cpus: experiment.host.pcpus,
            topology: None,
            cpus_here: experiment.host.cpus.clone(),
            memory_mib: experiment.host.memory_mib,
            clock: experiment.host.clock,
            guest_kernels: kernels,
            extra,
            kvm_in_guests: false,
            holdfast_in_guests: experiment.guests.values().any(|guest| guest.spins),
            cache: Packages::default_cache(),
            ..MachineSpec::new(&place.dist)
        };
        Ok((spec, elsewhere))
    }
}

/// Programs of the lab itself that are neither built nor installed.
fn check_programs(experiment: &Experiment, dist: &Path) -> Result<()> {
    let mut needed = BTreeSet::from([AGENT.to_owned()]);
    let is_observed = experiment.contenders.iter().any(|c| experiment.observes(c));
    if is_observed || experiment.guests.values().any(|guest| guest.spins) {
        needed.insert("holdfast".into());
    }
    for case in &experiment.cases {
        let beside = case.beside.iter().map(|beside| beside.workload.as_str());
        let hog = (experiment.hogs_of(case) > 0).then_some("hog");
        let workloads = beside.chain(hog).chain([case.workload.as_str()]);
        needed.extend(workloads.map(|workload| format!("workloads/{workload}")));
    }
    let programs: Vec<_> = needed.into_iter().filter(|name| !dist.join(name).is_file()).collect();
    match programs.as_slice() {
        [] => Ok(()),
        _ => Err(Error::Missing { dist: dist.to_owned(), programs }),
    }
}

type Programs = (Vec<(PathBuf, String)>, BTreeMap<String, String>);

/// Contenders that are not part of Holdfast: files to take into the host, and their paths there.
fn programs<'a>(experiment: &'a Experiment, place: &Place) -> Result<Programs> {
    let (mut extra, mut elsewhere) = (Vec::new(), BTreeMap::new());
    let commands = |c: &'a Contender| c.commands().map(move |command| (c, command));
    for (contender, command) in experiment.contenders.iter().flat_map(commands) {
        let Some(name) = command.first() else { continue };
        let ours = place.dist.join(name);
        if !name.contains('/') && ours.is_file() {
            executable(&contender.name, &ours)?;
            continue;
        }
        let found = find(name).ok_or_else(|| {
            let why = format!(
                "contender \"{}\" needs it, and it is neither in {} nor in PATH; build or install \
                 it, or write its path in the experiment",
                contender.name,
                place.dist.display()
            );
            Error::Command { command: name.clone(), why }
        })?;
        executable(&contender.name, &found)?;
        if place.accel == Accel::Here {
            elsewhere.insert(name.clone(), found.to_string_lossy().into_owned());
        } else if !elsewhere.contains_key(name) {
            let there = format!("/opt/contenders/{}", name.trim_start_matches('/'));
            elsewhere.insert(name.clone(), there.clone());
            extra.push((found, there));
        }
    }
    Ok((extra, elsewhere))
}

/// An error now is better than one after the host has booted.
fn executable(contender: &str, program: &Path) -> Result<()> {
    let mode = program.metadata().map(|m| m.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o111 != 0) {
        return Ok(());
    }
    let why = format!(
        "contender \"{contender}\" is this file, which is not executable; name the program, or \
         make it executable with chmod +x"
    );
    Err(Error::Command { command: program.display().to_string(), why })
}

fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|p| p.is_file());
    }
    let path = std::env::var_os("PATH")?;
    let all: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(program)).collect();
    // As in a shell, a file that cannot be run does not hide another one.
    let is_program = |p: &&PathBuf| executable("", p).is_ok() && p.is_file();
    all.iter().find(is_program).or_else(|| all.iter().find(|p| p.is_file())).cloned()
}

fn features(cpu: &CpuFeatures) -> Vec<String> {
    let CpuFeatures {
        pv_spinlocks,
        pv_tlb_flush,
        pv_ipi,
        pv_sched_yield,
        poll_control,
        steal_time,
    } = *cpu;
    let sign = |on: bool, name: &str| format!("{}{name}", if on { '+' } else { '-' });
    vec![
        // Every guest of a real host has it. Without it the guest calibrates its timer against the
        // clock of a busy host. If that fails, it takes its ticks from the emulated HPET, and
        // QEMU's main thread competes with the vCPUs 250 times a second.
        "+tsc-deadline".into(),
        sign(pv_spinlocks, "kvm-pv-unhalt"),
        sign(pv_tlb_flush, "kvm-pv-tlb-flush"),
        sign(pv_ipi, "kvm-pv-ipi"),
        sign(pv_sched_yield, "kvm-pv-sched-yield"),
        sign(poll_control, "kvm-poll-control"),
        sign(steal_time, "kvm-steal-time"),
    ]
}

impl Host for LabHost {
    fn request(&self, request: Request) -> Result<Reply> {
        self.machine.request(request)
    }

    fn hello(&self) -> Hello {
        self.machine.hello().clone()
    }

    fn load_kvm(&self, pause_exits: bool) -> Result<()> {
        self.machine.set_pause_exits(pause_exits)
    }

    fn start_guest(&self, name: &str, guest: &Guest, pause_exits: bool) -> Result<Hello> {
        self.machine.start_guest(&GuestSpec {
            kernel: guest.kernel,
            vcpus: guest.vcpus,
            memory_mib: guest.memory_mib,
            features: features(&guest.cpu),
            pause_exits,
            cmdline: guest.cmdline.clone(),
            ..GuestSpec::new(name)
        })
    }

    fn stop_guest(&self, name: &str) -> Result<()> {
        self.machine.stop_guest(name)
    }

    fn vm_child(&self, guest: &str) -> String {
        GuestSpec::new(guest).child()
    }

    fn program(&self, name: &str) -> String {
        self.elsewhere.get(name).cloned().unwrap_or_else(|| self.machine.dist_path(name))
    }

    fn workload_in_host(&self, name: &str) -> String {
        self.machine.workload_path(name)
    }

    fn workload_in_guest(&self, name: &str) -> String {
        Path::new(WORKLOADS).join(name).to_string_lossy().into_owned()
    }

    fn holdfast_in_guest(&self) -> Vec<String> {
        images::holdfast_in_guest()
    }

    fn facts(&self) -> HostFacts {
        let p = self.machine.provenance();
        let accelerator = match p.accelerator {
            Acceleration::Tcg => EMULATED,
            Acceleration::Kvm => "kvm",
            Acceleration::Here => "here",
        };
        let binaries = p.packages.iter().map(|p| (p.name.clone(), p.version.clone()));
        let sources =
            p.source_packages.iter().map(|s| (format!("src:{}", s.name), s.version.clone()));
        HostFacts {
            accelerator: accelerator.into(),
            qemu: Some(p.qemu.clone()),
            counts_instructions: p.counts_instructions,
            packages: binaries.chain(sources).collect(),
        }
    }
}
