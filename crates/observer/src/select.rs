// SPDX-License-Identifier: GPL-2.0-or-later
//! Which VMs an output shows, and in which order.

use std::cmp::Ordering;

use holdfast_policy::VcpuClass;

use crate::error::ObserverError;
use crate::sample::{Counters, Sample, VmSample};

/// What VMs are sorted by: a column of the report, or their losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Column {
    /// The VM's name.
    Vm,
    /// CPU time.
    Cpu,
    /// Steal time.
    Steal,
    /// Preemptions.
    Preempted,
    /// Preemptions of lock holders.
    Holder,
    /// Preemptions of next owners.
    Head,
    /// 99th percentile of the off-CPU time of preempted holders.
    P99,
    /// CPU time spent waiting for locks.
    Wait,
    /// The part of it while a holder or next owner was preempted.
    Lhp,
    /// Pause-loop exits.
    Ple,
    /// Off-CPU time of preempted holders, next owners and vCPUs in interrupts. A table of 79
    /// columns has no room for it; the live screen and pages do.
    #[default]
    Lost,
}

impl Column {
    /// The columns of the report, in their order.
    pub const OF_REPORT: [Self; 10] = [
        Self::Vm,
        Self::Cpu,
        Self::Steal,
        Self::Preempted,
        Self::Holder,
        Self::Head,
        Self::P99,
        Self::Wait,
        Self::Lhp,
        Self::Ple,
    ];

    /// Its name: that of the column, in lower case and without a unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Cpu => "cpu",
            Self::Steal => "steal",
            Self::Preempted => "preemp",
            Self::Holder => "holder",
            Self::Head => "head",
            Self::P99 => "p99",
            Self::Wait => "wait",
            Self::Lhp => "lhp",
            Self::Ple => "ple",
            Self::Lost => "lost",
        }
    }

    /// Its heading in the table, in lower case.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Cpu => "cpu%",
            Self::Steal => "steal%",
            Self::Wait => "wait%",
            Self::Lhp => "lhp%",
            Self::Ple => "ple/s",
            other => other.name(),
        }
    }

    /// Its value; none if it is not known.
    fn value(self, c: &Counters) -> Option<f64> {
        let time = |ns: u64| ns as f64;
        match self {
            Self::Vm => None,
            Self::Cpu => c.times.map(|times| time(times.run_ns)),
            Self::Steal => c.times.map(|times| time(times.steal_ns)),
            Self::Preempted => Some(c.preemptions.total() as f64),
            Self::Holder => Some(c.preemptions[VcpuClass::Holder] as f64),
            Self::Head => Some(c.preemptions[VcpuClass::Head] as f64),
            Self::P99 => c.offcpu_hist[VcpuClass::Holder].quantile_slot(0.99).map(|s| s as f64),
            Self::Wait => c.cost().map(|cost| cost.waiting),
            Self::Lhp => c.cost().and_then(|cost| cost.lost()),
            Self::Ple => c.kvm.map(|kvm| kvm.pause_exits as f64),
            Self::Lost => Some(time(c.blocking_ns())),
        }
    }
}

/// The VMs that are wanted, by their names, processes or UUIDs; all if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted(pub Vec<String>);

impl Wanted {
    /// Is this VM wanted?
    pub fn has(&self, pid: u32, name: Option<&str>, uuid: Option<&str>) -> bool {
        self.0.is_empty() || self.0.iter().any(|wanted| is_called(wanted, pid, name, uuid))
    }

    /// Fails if one of them is not among these VMs, which are at `place`.
    pub fn check<'a>(
        &self,
        vms: impl IntoIterator<Item = (u32, Option<&'a str>, Option<&'a str>)>,
        place: &'static str,
    ) -> Result<(), ObserverError> {
        let vms: Vec<_> = vms.into_iter().collect();
        let is_there = |wanted: &&String| {
            vms.iter().any(|(pid, name, uuid)| is_called(wanted, *pid, *name, *uuid))
        };
        match self.0.iter().find(|wanted| !is_there(wanted)) {
            None => Ok(()),
            Some(wanted) => Err(ObserverError::NoSuchVm {
                wanted: wanted.clone(),
                place,
                names: vms.iter().map(|(pid, name, _)| label(*pid, *name)).collect(),
            }),
        }
    }
}

/// A VM as it is shown.
fn label(pid: u32, name: Option<&str>) -> String {
    name.map_or_else(|| format!("pid {pid}"), str::to_owned)
}

/// Is this VM called so? A VM without a name is shown as `pid 7`.
fn is_called(text: &str, pid: u32, name: Option<&str>, uuid: Option<&str>) -> bool {
    name == Some(text)
        || text.strip_prefix("pid ").unwrap_or(text).parse() == Ok(pid)
        || uuid.is_some_and(|uuid| uuid.eq_ignore_ascii_case(text))
}

/// Which VMs are shown, and in which order.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The VMs.
    pub vms: Wanted,
    /// What they are sorted by, the largest first; names in their order.
    pub sort: Column,
    /// Only the first so many.
    pub top: Option<usize>,
}

impl Selection {
    /// Fails if one of the wanted VMs is not in these samples, which are of `place`.
    pub(crate) fn check<'a>(
        &self,
        samples: impl IntoIterator<Item = &'a Sample>,
        place: &'static str,
    ) -> Result<(), ObserverError> {
        let vms = samples.into_iter().flat_map(|sample| &sample.vms);
        self.vms.check(vms.map(|vm| (vm.pid, vm.name.as_deref(), vm.uuid.as_deref())), place)
    }

    /// Leaves the wanted VMs, in their order.
    pub(crate) fn apply(&self, sample: &mut Sample) {
        sample.vms.retain(|vm| self.vms.has(vm.pid, vm.name.as_deref(), vm.uuid.as_deref()));
        match self.sort {
            Column::Vm => sample.vms.sort_by_cached_key(|vm| (vm.label(), vm.pid)),
            column => {
                let mut keyed: Vec<(Option<f64>, VmSample)> =
                    sample.vms.drain(..).map(|vm| (column.value(&vm.total()), vm)).collect();
                keyed.sort_by(|(a, vm), (b, other)| {
                    let order = b.partial_cmp(a).unwrap_or(Ordering::Equal);
                    order.then(vm.pid.cmp(&other.pid))
                });
                sample.vms.extend(keyed.into_iter().map(|(_, vm)| vm));
            }
        }
        sample.vms.truncate(self.top.unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::sample;

    fn three() -> Sample {
        let mut all = sample(1, 7, 10);
        all.vms.extend(sample(1, 8, 30).vms);
        all.vms.extend(sample(1, 9, 20).vms);
        all.vms[1].name = Some("db".into());
        all.vms[2].name = None;
        all.vms[2].uuid = Some("0c24E29f-0000-4000-8000-000000000001".into());
        all
    }

    fn wanted(vms: &[&str]) -> Wanted {
        Wanted(vms.iter().map(|vm| (*vm).to_owned()).collect())
    }

    fn pids(vms: &[&str], sort: Column, top: Option<usize>) -> Vec<u32> {
        let mut all = three();
        all.vms[0].vcpus[0].counters.times = None;
        Selection { vms: wanted(vms), sort, top }.apply(&mut all);
        all.vms.iter().map(|vm| vm.pid).collect()
    }

    #[test]
    fn vms_are_chosen_by_name_process_or_uuid() {
        let of = |vms: &[&str]| pids(vms, Column::Vm, None);
        assert_eq!(of(&["db"]), [8]);
        assert_eq!(of(&["7", "0C24e29f-0000-4000-8000-000000000001"]), [9, 7]);
        assert_eq!(of(&["pid 9"]), [9], "as it is shown");
        assert!(of(&["d", "70", "pid", "pid db"]).is_empty());
        assert_eq!(of(&[]).len(), 3);
    }

    #[test]
    fn a_vm_that_is_not_there_is_an_error_with_the_names_of_those_that_are() {
        let all = three();
        let ids = || all.vms.iter().map(|vm| (vm.pid, vm.name.as_deref(), vm.uuid.as_deref()));
        wanted(&["db", "9", "pid 7"]).check(ids(), "here").unwrap();
        wanted(&[]).check([], "here").unwrap();
        match wanted(&["db", "dbb"]).check(ids(), "here") {
            Err(ObserverError::NoSuchVm { wanted, place, names }) => {
                assert_eq!((wanted.as_str(), place), ("dbb", "here"));
                assert_eq!(names, ["web", "db", "pid 9"]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_largest_comes_first_and_what_is_not_known_last() {
        assert_eq!(pids(&[], Column::Lost, None), [8, 9, 7]);
        assert_eq!(pids(&[], Column::Cpu, None), [8, 9, 7]);
        assert_eq!(pids(&[], Column::Vm, None), [8, 9, 7], "db, pid 9, web");
        assert_eq!(pids(&[], Column::Holder, Some(2)), [8, 9]);
        for column in Column::OF_REPORT {
            assert_eq!(pids(&[], column, None).len(), 3, "{}", column.name());
        }
    }
}
