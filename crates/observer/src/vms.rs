// SPDX-License-Identifier: GPL-2.0-or-later
//! Lists the VMs of the host, and whether they can be read.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use holdfast_bpf::{Discovery, Vm, VmState};
use serde::Serialize;

use crate::error::ObserverError;
use crate::host::check_kvm;
use crate::names;
use crate::observer::Storage;

/// The VMs of a host. JSON schema tag: `holdfast.vms/1`.
#[derive(Debug, Clone, Serialize)]
pub struct VmList {
    schema: &'static str,
    /// VMs that ran while they were listed, by process.
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
    /// Name of that process (`/proc/PID/comm`).
    pub vmm: String,
    /// Its guest kernel, where it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Why it cannot be read, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Its vCPUs that have run.
    pub vcpus: Vec<VcpuInfo>,
}

/// One vCPU.
#[derive(Debug, Clone, Serialize)]
pub struct VcpuInfo {
    /// Its number in the VM.
    pub vcpu: u32,
    /// The thread that runs it.
    pub tid: u32,
    /// Guest-physical address of its steal-time record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_time_gpa: Option<u64>,
    /// Guest-physical addresses of the words that are read, by the name of the per-CPU symbol.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub words: BTreeMap<&'static str, u64>,
}

/// Lists the VMs whose vCPUs run within `wait`. Returns early once every VM found is readable and
/// none was found for a while.
pub fn list_vms(wait: Duration) -> Result<VmList, ObserverError> {
    /// A running vCPU is loaded many times a second; a busy host may keep one away for longer.
    const QUIET: Duration = Duration::from_millis(500);
    check_kvm()?;
    let mut storage = Storage::default();
    let mut discovery = Discovery::attach(storage.object())?;
    let until = Instant::now() + wait;
    let (mut seen, mut quiet_since) = (0, Instant::now());
    while Instant::now() < until {
        discovery.poll(Duration::from_millis(50))?;
        let vcpus: usize = discovery.vms().values().map(|vm| vm.vcpus.len()).sum();
        if vcpus != seen {
            (seen, quiet_since) = (vcpus, Instant::now());
        }
        let all_readable = discovery.vms().values().all(|vm| vm.is_readable());
        if seen > 0 && all_readable && quiet_since.elapsed() > QUIET {
            break;
        }
    }

    let mut vms: Vec<VmInfo> = discovery.vms().values().map(describe).collect();
    vms.sort_by_key(|vm| vm.pid);
    Ok(VmList { schema: "holdfast.vms/1", vms })
}

fn describe(vm: &Vm) -> VmInfo {
    let (kernel, unreadable, deltas) = match &vm.state {
        VmState::Readable(guest) => {
            let deltas = guest.deltas();
            let mut words = vec![("preempt_count", deltas.preempt_count)];
            words.extend(deltas.queue.map(|queue| ("qnodes", queue.next)));
            words.extend(deltas.current_task.map(|delta| ("current_task", delta)));
            (Some(guest.kernel().to_string()), None, words)
        }
        VmState::Unreadable(why) => (None, Some(why_unreadable(vm, why.as_ref())), Vec::new()),
    };
    let vcpus = vm.vcpus.iter().map(|(number, vcpu)| {
        let base = vcpu.record.map(|record| record.steal_time_gpa.get());
        VcpuInfo {
            vcpu: *number,
            tid: vcpu.tid,
            steal_time_gpa: base,
            words: base.map_or_else(BTreeMap::new, |base| {
                deltas
                    .iter()
                    .map(|(name, delta)| (*name, base.wrapping_add_signed(*delta)))
                    .collect()
            }),
        }
    });
    VmInfo {
        pid: vm.pid,
        name: names::vm_name(vm.pid),
        vmm: names::vmm(vm.pid),
        kernel,
        unreadable,
        vcpus: vcpus.collect(),
    }
}

/// Why the guest of a VM cannot be read; it is not even tried without a record to begin at.
pub(crate) fn why_unreadable(vm: &Vm, why: Option<&impl std::error::Error>) -> String {
    match why {
        Some(why) => chain(why),
        None if vm.is_being_searched() => "its memory is being searched".into(),
        None => "no vCPU has a steal-time record".into(),
    }
}

/// An error with its causes, on one line.
fn chain(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl fmt::Display for VmList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.vms.is_empty() {
            return writeln!(
                f,
                "No vCPU ran. An idle guest is found once it wakes: --wait longer."
            );
        }
        writeln!(f, "{:>8}  {:<16} {:<16} {:>5}  GUEST KERNEL", "PID", "NAME", "VMM", "VCPUS")?;
        for vm in &self.vms {
            let guest = match (&vm.kernel, &vm.unreadable) {
                (Some(kernel), _) => kernel.clone(),
                (None, Some(why)) => format!("not readable: {why}"),
                (None, None) => String::new(),
            };
            let name = vm.name.as_deref().unwrap_or("-");
            writeln!(f, "{:>8}  {name:<16} {:<16} {:>5}  {guest}", vm.pid, vm.vmm, vm.vcpus.len())?;
        }
        Ok(())
    }
}
