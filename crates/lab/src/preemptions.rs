// SPDX-License-Identifier: GPL-2.0-or-later
//! What the output of `holdfast preemptions --json` says of a VM in a window.

use std::collections::BTreeMap;

use holdfast_observer::{Counters, PREEMPTIONS, Sample, VmSample};
use holdfast_policy::VcpuClass;
use serde::Deserialize;

use crate::metric::CLASSES;

/// Preemptions of the vCPUs of one VM between two reports, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preempted {
    /// Times a vCPU of the class was preempted.
    pub count: u64,
    /// Preemptions longer than 1 ms.
    pub long: u64,
    /// Time off the CPU after them, ns.
    pub offcpu_ns: u64,
}

/// Reads one line of the observer's output.
pub fn parse(line: &serde_json::Value) -> Option<Sample> {
    let schema = line.get("schema")?.as_str()?;
    if schema != PREEMPTIONS {
        return None;
    }
    Sample::deserialize(line).ok()
}

/// Preemptions between two reports of the VM with process `pid`, for each class that is known.
///
/// Nothing is known if the VM is missing in a report, or if events were lost between them. Of a VM
/// with an unreadable vCPU only [`VcpuClass::Unknown`] is known.
pub fn between(before: &Sample, after: &Sample, pid: i32) -> BTreeMap<VcpuClass, Preempted> {
    let vm_of = |r: &'_ Sample| r.vms.iter().find(|vm| i32::try_from(vm.pid) == Ok(pid)).cloned();
    let (Some(old), Some(new)) = (vm_of(before), vm_of(after)) else {
        return BTreeMap::new();
    };
    if after.lost_events != before.lost_events || new.vcpus.is_empty() {
        return BTreeMap::new();
    }
    let readable = old.vcpus.iter().chain(&new.vcpus).all(|v| v.readable);
    // Without a tier, as in a replay, only a VM that is readable has classes.
    let known = CLASSES.into_iter().filter(|class| {
        let is_told = old.tells(*class) && new.tells(*class);
        is_told && (readable || *class == VcpuClass::Unknown || !new.is_readable())
    });
    known.map(|class| (class, difference(&old, &new, class))).collect()
}

fn difference(old: &VmSample, new: &VmSample, class: VcpuClass) -> Preempted {
    let mut sum = Preempted::default();
    for vcpu in &new.vcpus {
        let was = old.vcpus.iter().find(|v| v.tid == vcpu.tid);
        let was = was.map_or_else(Counters::default, |v| v.counters);
        let grown = vcpu.counters.since(&was);
        sum.count = sum.count.saturating_add(grown.preemptions[class]);
        sum.long = sum.long.saturating_add(grown.offcpu_over_cap[class]);
        sum.offcpu_ns = sum.offcpu_ns.saturating_add(grown.offcpu_ns[class]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(holder: u64, lost: u64, readable: bool) -> Value {
        let zero = json!({
            "preemptible": 0, "holder": holder, "irq": 0, "waiter": 0, "head": 0, "unknown": 1
        });
        json!({
            "schema": PREEMPTIONS, "t_ns": 1, "interval_ns": 1, "lost_events": lost,
            "vms": [{"pid": 7, "vcpus": [{
                "vcpu": 0, "tid": 8, "readable": readable, "kernel": "7.2.12",
                "preemptions": zero, "offcpu_ns": {"holder": holder * 1000},
                "offcpu_over_cap": {"holder": holder / 2},
            }]}],
        })
    }

    fn grown(before: Value, after: Value, pid: i32) -> BTreeMap<VcpuClass, Preempted> {
        between(&parse(&before).unwrap(), &parse(&after).unwrap(), pid)
    }

    #[test]
    fn subtracts_earlier_counts() {
        let found = grown(line(10, 0, true), line(30, 0, true), 7);
        assert_eq!(found[&VcpuClass::Holder], Preempted { count: 20, long: 10, offcpu_ns: 20_000 });
        assert_eq!(found[&VcpuClass::Preemptible], Preempted::default());
    }

    #[test]
    fn knows_nothing_of_other_vms_and_after_lost_events() {
        assert!(grown(line(10, 0, true), line(30, 0, true), 9).is_empty());
        assert!(grown(line(10, 0, true), line(30, 1, true), 7).is_empty());
    }

    #[test]
    fn claims_no_class_of_a_vm_it_cannot_read() {
        let found = grown(line(10, 0, true), line(10, 0, false), 7);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [VcpuClass::Unknown]);
    }

    #[test]
    fn knows_likely_classes_of_a_vm_by_its_irql() {
        let by_irql = |line: Value| {
            let mut line = line;
            line["vms"][0]["tier"] = json!("irql");
            line["vms"][0]["vcpus"][0]["preemptions"]["likely_holder"] = json!(7);
            line
        };
        let mut before = by_irql(line(0, 0, false));
        before["vms"][0]["vcpus"][0]["preemptions"]["likely_holder"] = json!(2);
        let found = grown(before, by_irql(line(0, 0, false)), 7);
        assert_eq!(found[&VcpuClass::LikelyHolder].count, 5);
        use VcpuClass::{LikelyHolder, LikelyIrq, LikelyWaiter, Preemptible, Unknown};
        let known = [Unknown, Preemptible, LikelyHolder, LikelyIrq, LikelyWaiter];
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), known);
    }

    #[test]
    fn refuses_another_schema() {
        assert!(parse(&json!({"schema": "holdfast.preemptions/2", "vms": []})).is_none());
        assert!(parse(&json!({"vms": []})).is_none());
    }
}
