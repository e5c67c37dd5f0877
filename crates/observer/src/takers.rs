// SPDX-License-Identifier: GPL-2.0-or-later
//! What took the CPU of preempted vCPUs.

use std::collections::{BTreeMap, HashMap};

use libbpf_rs::{MapCore, MapFlags};
use serde::{Deserialize, Serialize};

use crate::error::ObserverError;
use crate::host::{first_line, thread_exists};
use crate::names::{NAME_CHARS, printable};
use crate::observer::{from_bytes, not_read};
use crate::skel::types::{hf_taken, hf_taker_key};

/// In the place of a process: `HF_TAKER_NONE` and `HF_TAKER_KERNEL` of `observe.h`.
const NONE: u32 = 0;
const KERNEL: u32 = u32::MAX;

/// What kind of task took a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TakerKind {
    /// A thread of another VM's process.
    Vm,
    /// A thread of the same VM's process: another vCPU, or a thread of its VMM.
    Own,
    /// A process that is no VM.
    Process,
    /// A thread of the host's kernel.
    Kernel,
    /// None, the CPU idled: the vCPU was throttled (`cpu.max`), or moved to another CPU.
    Idle,
}

impl TakerKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Vm, Self::Own, Self::Process, Self::Kernel, Self::Idle];

    /// Its name in JSON and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Own => "own",
            Self::Process => "process",
            Self::Kernel => "kernel",
            Self::Idle => "idle",
        }
    }
}

/// What one process took from the vCPUs of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    /// What kind of task it is.
    pub kind: TakerKind,
    /// The process. None for the kernel, idleness, and the sum of all processes that have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of the VM or program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// vCPUs that it preempted.
    #[serde(flatten)]
    pub taken: Taken,
}

/// Preemptions that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// How many.
    pub preemptions: u64,
    /// Time until the vCPUs ran again, ns.
    pub offcpu_ns: u64,
    /// That of Holders, Irqs and Heads, ns.
    pub protected_offcpu_ns: u64,
}

impl Taken {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            preemptions: f(self.preemptions, other.preemptions),
            offcpu_ns: f(self.offcpu_ns, other.offcpu_ns),
            protected_offcpu_ns: f(self.protected_offcpu_ns, other.protected_offcpu_ns),
        }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }
}

fn sum<'a>(takers: impl IntoIterator<Item = &'a Taker>) -> Taken {
    takers.into_iter().fold(Taken::default(), |sum, taker| sum.plus(&taker.taken))
}

/// The takers of a VM since `earlier`. What a process that has ended meanwhile had taken is part of
/// the sum of its kind.
pub(crate) fn since(now: &[Taker], earlier: &[Taker]) -> Vec<Taker> {
    let is_named = |pid: Option<u32>| now.iter().any(|taker| taker.pid == pid);
    let before = |taker: &Taker| {
        sum(earlier.iter().filter(|before| match taker.pid {
            // It may have become a VM.
            Some(_) => before.pid == taker.pid,
            None => before.kind == taker.kind && (before.pid.is_none() || !is_named(before.pid)),
        }))
    };
    let differences = now.iter().map(|taker| Taker {
        taken: taker.taken.zip(&before(taker), u64::saturating_sub),
        ..taker.clone()
    });
    differences.filter(|taker| taker.taken.preemptions > 0).collect()
}

/// Time that each name has taken, the longest first. Processes of the same name are one.
pub(crate) fn by_name(takers: &[Taker]) -> Vec<(&str, Taken)> {
    let mut names: BTreeMap<(TakerKind, &str), Taken> = BTreeMap::new();
    for taker in takers {
        let name = match taker.kind {
            TakerKind::Own => "its own threads",
            TakerKind::Kernel => "the kernel",
            TakerKind::Idle => "nobody (throttled, or moved)",
            TakerKind::Vm => taker.name.as_deref().unwrap_or("VMs that have ended"),
            TakerKind::Process => taker.name.as_deref().unwrap_or("processes that have ended"),
        };
        let taken = names.entry((taker.kind, name)).or_default();
        *taken = taken.plus(&taker.taken);
    }
    let mut names: Vec<_> = names.into_iter().map(|((_, name), taken)| (name, taken)).collect();
    names.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.offcpu_ns));
    names
}

/// Reads what was taken. Keeps names of processes, and what those that have ended had taken.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    names: HashMap<u32, (TakerKind, Option<String>)>,
    ended: HashMap<(u64, TakerKind), Taken>,
}

impl Ledger {
    /// The takers of each VM, by its `struct kvm`. `vms` has the process of each, and `labels` the
    /// name of the VM that a process runs. Entries of processes that have ended are removed.
    pub(crate) fn read(
        &mut self,
        map: &impl MapCore,
        vms: &HashMap<u64, u32>,
        labels: &HashMap<u32, String>,
    ) -> Result<HashMap<u64, Vec<Taker>>, ObserverError> {
        let mut takers: HashMap<u64, Vec<Taker>> = HashMap::new();
        for bytes in map.keys() {
            let Some(key) = from_bytes::<hf_taker_key>(&bytes) else { continue };
            let found = map.lookup(&bytes, MapFlags::ANY).map_err(not_read)?;
            let Some(value) = found.as_deref().and_then(from_bytes::<hf_taken>) else { continue };
            let taken = Taken {
                preemptions: value.nr,
                offcpu_ns: value.away_ns,
                protected_offcpu_ns: value.protected_ns,
            };
            let (kind, name) = self.kind_of(key.tgid, vms.get(&key.kvm), labels);
            let is_process = !matches!(kind, TakerKind::Kernel | TakerKind::Idle);
            if is_process && kind != TakerKind::Own && !thread_exists(key.tgid) {
                // The entry may be gone already.
                let _ = map.delete(&bytes);
                let ended = self.ended.entry((key.kvm, kind)).or_default();
                *ended = ended.plus(&taken);
                continue;
            }
            let pid = is_process.then_some(key.tgid);
            takers.entry(key.kvm).or_default().push(Taker { kind, pid, name, taken });
        }
        for ((kvm, kind), taken) in &self.ended {
            let sum = Taker { kind: *kind, pid: None, name: None, taken: *taken };
            takers.entry(*kvm).or_default().push(sum);
        }
        self.names.retain(|pid, _| thread_exists(*pid));
        for of_vm in takers.values_mut() {
            of_vm.sort_by_key(|taker| std::cmp::Reverse(taker.taken.offcpu_ns));
        }
        Ok(takers)
    }

    fn kind_of(
        &mut self,
        pid: u32,
        own: Option<&u32>,
        labels: &HashMap<u32, String>,
    ) -> (TakerKind, Option<String>) {
        match pid {
            NONE => return (TakerKind::Idle, None),
            KERNEL => return (TakerKind::Kernel, None),
            _ if own == Some(&pid) => return (TakerKind::Own, None),
            _ => {}
        }
        if let Some(label) = labels.get(&pid) {
            self.names.insert(pid, (TakerKind::Vm, Some(label.clone())));
        }
        let read = || {
            let name = printable(&first_line(&format!("/proc/{pid}/comm")), NAME_CHARS);
            (TakerKind::Process, Some(name).filter(|name| !name.is_empty()))
        };
        self.names.entry(pid).or_insert_with(read).clone()
    }

    /// VM `kvm` has ended.
    pub(crate) fn forget(&mut self, map: &impl MapCore, kvm: u64) {
        let of_vm =
            |key: &Vec<u8>| from_bytes::<hf_taker_key>(key).is_some_and(|key| key.kvm == kvm);
        for key in map.keys().filter(of_vm).collect::<Vec<_>>() {
            // The entry may be gone already.
            let _ = map.delete(&key);
        }
        self.ended.retain(|(of, _), _| *of != kvm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taker(kind: TakerKind, pid: Option<u32>, name: &str, ms: u64) -> Taker {
        let taken = Taken { preemptions: ms, offcpu_ns: ms * 1_000_000, protected_offcpu_ns: ms };
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        Taker { kind, pid, name, taken }
    }

    #[test]
    fn a_process_that_has_ended_is_not_counted_a_second_time() {
        use TakerKind::{Kernel, Process};
        let earlier = [
            taker(Process, Some(5), "cc1", 10),
            taker(Process, Some(6), "cc1", 4),
            taker(Process, None, "", 3),
            taker(Kernel, None, "", 8),
        ];
        // Process 5 has ended after 2 more.
        let now = [
            taker(Process, Some(6), "cc1", 9),
            taker(Process, None, "", 15),
            taker(Kernel, None, "", 8),
        ];
        let left = since(&now, &earlier);
        let ms: Vec<_> = left.iter().map(|t| (t.pid, t.taken.offcpu_ns / 1_000_000)).collect();
        assert_eq!(ms, [(Some(6), 5), (None, 2)]);
        assert_eq!(since(&now, &now), []);
    }

    #[test]
    fn processes_of_one_name_are_one_line_and_the_longest_comes_first() {
        let takers = [
            taker(TakerKind::Process, Some(5), "cc1", 10),
            taker(TakerKind::Vm, Some(9), "web", 15),
            taker(TakerKind::Process, Some(6), "cc1", 10),
            taker(TakerKind::Process, None, "", 1),
        ];
        let names = by_name(&takers);
        let ms: Vec<_> = names.iter().map(|(n, t)| (*n, t.offcpu_ns / 1_000_000)).collect();
        assert_eq!(ms, [("cc1", 20), ("web", 15), ("processes that have ended", 1)]);
    }

    #[test]
    fn json_has_a_name_for_each_kind() {
        for kind in TakerKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
