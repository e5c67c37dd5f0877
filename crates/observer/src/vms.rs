// SPDX-License-Identifier: GPL-2.0-or-later
//! Lists the VMs of the host, and whether they can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use holdfast_bpf::{BtfFiles, Discovery, Tier, Vm, VmState};
use serde::Serialize;

use crate::error::ObserverError;
use crate::guest::Guest;
use crate::host::check_kvm;
use crate::names::Names;
use crate::observer::Storage;
use crate::output::fill;

const PROC: &str = "/proc";

/// Reason why an idle or paused VM cannot be read: discovery learns its layout when it runs.
const NOT_RUN: &str =
    "no vCPU has run since the start; it cannot be read yet (a longer --wait may help)";

/// The VMs of a host. JSON schema tag: `holdfast.vms/1`.
#[derive(Debug, Clone, Serialize)]
pub struct VmList {
    schema: &'static str,
    /// VMs, by process.
    pub vms: Vec<VmInfo>,
}

/// One VM.
#[derive(Debug, Clone, Serialize)]
pub struct VmInfo {
    /// Process of its VMM.
    pub pid: u32,
    /// Name that its VMM or libvirt gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UUID that its VMM is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Name of the program that it runs.
    pub vmm: String,
    /// Its guest.
    #[serde(flatten)]
    pub guest: Guest,
    /// Its vCPUs that ran during the listing; all of them if none did.
    pub vcpus: Vec<VcpuInfo>,
}

/// One vCPU.
#[derive(Debug, Clone, Serialize)]
pub struct VcpuInfo {
    /// Its number in the VM.
    pub vcpu: u32,
    /// The thread that runs it, once it has run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Guest-physical address of its steal-time record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_time_gpa: Option<u64>,
    /// Guest-physical addresses of the words that are read, by the name of the per-CPU symbol.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub words: BTreeMap<&'static str, u64>,
}

/// Lists VMs, and reads those whose vCPUs run within `wait`. Returns early when each has run and is
/// readable, and no new one has appeared for a while.
pub fn list_vms(wait: Duration, btf: &[BtfFiles]) -> Result<VmList, ObserverError> {
    /// A running vCPU is loaded many times a second; on a busy host the interval may be longer.
    const QUIET: Duration = Duration::from_millis(500);
    check_kvm()?;
    let mut storage = Storage::default();
    let mut discovery = Discovery::attach(storage.object(), btf)?;
    let there = vcpus_by_process(Path::new(PROC));
    let until = Instant::now() + wait;
    let (mut seen, mut quiet_since) = (0, Instant::now());
    while Instant::now() < until {
        discovery.poll(Duration::from_millis(50))?;
        let vcpus: usize = discovery.vms().values().map(|vm| vm.vcpus.len()).sum();
        if vcpus != seen {
            (seen, quiet_since) = (vcpus, Instant::now());
        }
        let all_readable = discovery.vms().values().all(|vm| vm.tier() != Tier::None)
            && there.keys().all(|pid| discovery.vms().values().any(|vm| vm.pid == *pid));
        if seen > 0 && all_readable && quiet_since.elapsed() > QUIET {
            break;
        }
    }

    let mut vms: Vec<VmInfo> = discovery.vms().values().map(describe).collect();
    let ran: BTreeSet<u32> = vms.iter().map(|vm| vm.pid).collect();
    vms.extend(at_rest(&ran));
    vms.sort_by_key(|vm| vm.pid);
    Ok(VmList { schema: "holdfast.vms/1", vms })
}

/// vCPUs that processes have open, by process, including those of idle and paused VMs. A second VM
/// of a process, with vCPUs of the same numbers, is not recognised.
fn vcpus_by_process(proc: &Path) -> BTreeMap<u32, BTreeSet<u32>> {
    // An entry that cannot be read is a process that has ended, or no process.
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let mut processes = BTreeMap::<u32, BTreeSet<u32>>::new();
    for process in entries(proc) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        for file in entries(&process.path().join("fd")) {
            // Names of virt/kvm/kvm_main.c. A process without vCPUs (with kvm-vm alone) only
            // queries KVM's capabilities.
            let vcpu = fs::read_link(file.path()).ok().and_then(|target| {
                target.to_str()?.strip_prefix("anon_inode:kvm-vcpu:")?.parse().ok()
            });
            if let Some(vcpu) = vcpu {
                processes.entry(pid).or_default().insert(vcpu);
            }
        }
    }
    processes
}

/// Each VM that processes have open, as far as it is known without looking at its vCPUs.
pub fn known_vms() -> Vec<VmInfo> {
    at_rest(&BTreeSet::new())
}

/// VMs of other processes than those of VMs that ran.
pub(crate) fn at_rest(ran: &BTreeSet<u32>) -> Vec<VmInfo> {
    let all = vcpus_by_process(Path::new(PROC)).into_iter();
    all.filter(|(pid, _)| !ran.contains(pid)).map(|(pid, ids)| vm_at_rest(pid, &ids)).collect()
}

/// A VM none of whose vCPUs ran. The ids are the VMM's choice. VMMs make vCPUs in the order of
/// their ids, so that the rank of an id is the vCPU's index.
fn vm_at_rest(pid: u32, ids: &BTreeSet<u32>) -> VmInfo {
    let of = |vcpu| VcpuInfo { vcpu, tid: None, steal_time_gpa: None, words: BTreeMap::new() };
    let Names { name, uuid, vmm } = Names::of(pid);
    VmInfo {
        pid,
        name,
        uuid,
        vmm,
        guest: Guest::unknown(NOT_RUN.into()),
        vcpus: (0..ids.len() as u32).map(of).collect(),
    }
}

fn describe(vm: &Vm) -> VmInfo {
    let mut deltas = Vec::new();
    if let VmState::Readable(guest) = &vm.state {
        let of = guest.deltas();
        deltas.push(("preempt_count", of.preempt_count));
        deltas.extend(of.queue.map(|queue| ("qnodes", queue.next)));
        deltas.extend(of.current_task.map(|delta| ("current_task", delta)));
    }
    let vcpus = vm.vcpus.iter().map(|(number, vcpu)| {
        let base = vcpu.record.map(|record| record.steal_time_gpa.get());
        VcpuInfo {
            vcpu: *number,
            tid: Some(vcpu.tid),
            steal_time_gpa: base,
            words: base.map_or_else(BTreeMap::new, |base| {
                deltas
                    .iter()
                    .map(|(name, delta)| (*name, base.wrapping_add_signed(*delta)))
                    .collect()
            }),
        }
    });
    let Names { name, uuid, vmm } = Names::of(vm.pid);
    VmInfo { pid: vm.pid, name, uuid, vmm, guest: Guest::of(vm), vcpus: vcpus.collect() }
}

/// A line for each VM; `{:#}`: and for each of its vCPUs.
impl fmt::Display for VmList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.vms.is_empty() {
            return writeln!(f, "No vCPU ran, and no process has one: there is no VM.");
        }
        writeln!(
            f,
            "{:>8}  {:<13} {:<18} {:>5} {:<5} GUEST KERNEL",
            "PID", "NAME", "VMM", "VCPUS", "TIER"
        )?;
        for vm in &self.vms {
            let (tier, vcpus) = (vm.guest.tier_name(), vm.vcpus.len());
            let kernel = vm.guest.kernel.as_deref().unwrap_or("not readable");
            let name = vm.name.as_deref().unwrap_or("-");
            write!(f, "{:>8}  {name:<13} {:<18} {vcpus:>5} {tier:<5} ", vm.pid, vm.vmm)?;
            writeln!(f, "{kernel}")?;
            if let Some(why) = vm.guest.why() {
                f.write_str(&fill(&format!("{:>10}{why}", "")))?;
            }
            let vcpus = if f.alternate() { &vm.vcpus[..] } else { &[] };
            for vcpu in vcpus {
                write!(f, "{:>10}vCPU {:<4}", "", vcpu.vcpu)?;
                match vcpu.tid {
                    Some(tid) => write!(f, " thread {tid:<8}")?,
                    None => f.write_str(" has not run")?,
                }
                if let Some(gpa) = vcpu.steal_time_gpa {
                    write!(f, " steal time at {gpa:#x}")?;
                }
                f.write_str("\n")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_vms_at_rest_by_the_open_files_of_their_processes() {
        let proc = tempfile::tempdir().unwrap();
        let open = |pid: &str, files: &[&str]| {
            let dir = proc.path().join(pid).join("fd");
            fs::create_dir_all(&dir).unwrap();
            for (fd, target) in files.iter().enumerate() {
                symlink(target, dir.join(fd.to_string())).unwrap();
            }
        };
        let vcpu = |n: u32| format!("anon_inode:kvm-vcpu:{n}");
        open("12", &["/dev/kvm", "anon_inode:kvm-vm", &vcpu(0), &vcpu(11), &vcpu(0), &vcpu(2)]);
        open("13", &["/dev/kvm", "anon_inode:kvm-vm"]);
        open("14", &["/dev/null", "anon_inode:kvm-vcpu:", "/tmp/anon_inode:kvm-vcpu:0"]);
        open("self", &[&vcpu(0)]);
        fs::create_dir(proc.path().join("15")).unwrap();
        fs::write(proc.path().join("16"), "").unwrap();
        let found = vcpus_by_process(proc.path());
        assert_eq!(found, BTreeMap::from([(12, BTreeSet::from([0, 2, 11]))]));
        assert!(vcpus_by_process(&proc.path().join("none")).is_empty());
    }

    #[test]
    fn a_vm_at_rest_is_listed_with_the_reason() {
        let vm = vm_at_rest(u32::MAX, &BTreeSet::from([0, 64]));
        let json = serde_json::to_value(&vm).unwrap();
        assert_eq!(json["vcpus"], serde_json::json!([{ "vcpu": 0 }, { "vcpu": 1 }]));
        assert_eq!(json.get("kernel"), None);
        let list = VmList { schema: "holdfast.vms/1", vms: vec![vm] };
        let text = list.to_string();
        assert!(
            text.contains("    2 none  not readable\n          no vCPU has run since"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() < 80) && !text.contains("vCPU 1"), "{text}");
        assert!(format!("{list:#}").contains("          vCPU 1    has not run\n"), "{list:#}");
        let none = VmList { schema: "holdfast.vms/1", vms: Vec::new() }.to_string();
        assert!(none.contains("there is no VM"), "{none}");
    }
}
