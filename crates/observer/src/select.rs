// SPDX-License-Identifier: GPL-2.0-or-later
//! Which VMs an output shows, and in which order.

use std::cmp::Ordering;

use holdfast_policy::VcpuClass;

use crate::sample::{Counters, Sample, VmSample};

/// A column of the report.
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
    /// Off-CPU time of preempted holders, next owners and vCPUs in interrupts. It has no column.
    #[default]
    Lost,
}

impl Column {
    /// Every column.
    pub const ALL: [Self; 11] = [
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
        Self::Lost,
    ];

    /// Its name on the command line.
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
            Self::Lhp => c.cost().map(|cost| cost.holder_preempted + cost.head_preempted),
            Self::Ple => c.kvm.map(|kvm| kvm.pause_exits as f64),
            Self::Lost => Some(time(c.blocking_ns())),
        }
    }
}

/// Which VMs are shown.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Names, processes or UUIDs of VMs; all if there are none.
    pub vms: Vec<String>,
    /// The column that they are sorted by, the largest first; names in their order.
    pub sort: Column,
    /// Only the first so many.
    pub top: Option<usize>,
}

impl Selection {
    /// Is this VM wanted?
    pub fn has(&self, pid: u32, name: Option<&str>, uuid: Option<&str>) -> bool {
        let is = |wanted: &String| {
            name == Some(wanted)
                || *wanted == pid.to_string()
                || uuid.is_some_and(|uuid| uuid.eq_ignore_ascii_case(wanted))
        };
        self.vms.is_empty() || self.vms.iter().any(is)
    }

    /// Leaves the wanted VMs, in their order.
    pub(crate) fn apply(&self, sample: &mut Sample) {
        sample.vms.retain(|vm| self.has(vm.pid, vm.name.as_deref(), vm.uuid.as_deref()));
        match self.sort {
            Column::Vm => sample.vms.sort_by_key(|vm| (vm.label(), vm.pid)),
            column => sample.vms.sort_by(|a, b| {
                let [a, b] = [a, b].map(|vm: &VmSample| (column.value(&vm.total()), vm.pid));
                b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
            }),
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

    fn pids(vms: &[&str], sort: Column, top: Option<usize>) -> Vec<u32> {
        let vms = vms.iter().map(|vm| (*vm).to_owned()).collect();
        let mut all = three();
        all.vms[0].vcpus[0].counters.times = None;
        Selection { vms, sort, top }.apply(&mut all);
        all.vms.iter().map(|vm| vm.pid).collect()
    }

    #[test]
    fn vms_are_chosen_by_name_process_or_uuid() {
        let of = |vms: &[&str]| pids(vms, Column::Vm, None);
        assert_eq!(of(&["db"]), [8]);
        assert_eq!(of(&["7", "0C24e29f-0000-4000-8000-000000000001"]), [9, 7]);
        assert!(of(&["d", "70"]).is_empty());
        assert_eq!(of(&[]).len(), 3);
    }

    #[test]
    fn the_largest_comes_first_and_what_is_not_known_last() {
        assert_eq!(pids(&[], Column::Lost, None), [8, 9, 7]);
        assert_eq!(pids(&[], Column::Cpu, None), [8, 9, 7]);
        assert_eq!(pids(&[], Column::Vm, None), [8, 9, 7], "db, pid 9, web");
        assert_eq!(pids(&[], Column::Holder, Some(2)), [8, 9]);
        for column in Column::ALL {
            assert_eq!(pids(&[], column, None).len(), 3, "{}", column.name());
        }
    }
}
