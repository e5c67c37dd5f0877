// SPDX-License-Identifier: GPL-2.0-or-later
//! The metrics of a window: every metric's name, unit and direction, in one place.

use std::fmt;
use std::str::FromStr;

use holdfast_policy::{NR_CLASSES, VcpuClass};
use serde::{Deserialize, Serialize};

/// All classes of a vCPU at the moment it lost its CPU, most harmful first.
pub(crate) const CLASSES: [VcpuClass; NR_CLASSES] = {
    use VcpuClass::{
        Head, Holder, Irq, LikelyHolder, LikelyIrq, LikelyWaiter, Preemptible, Unknown, Waiter,
    };
    [Holder, Irq, Head, Waiter, LikelyHolder, LikelyIrq, LikelyWaiter, Preemptible, Unknown]
};

/// Name, title and direction of a metric of a class: preempting some classes hurts siblings.
fn facts_of(class: VcpuClass, name: &str, title: &str) -> (String, String, Better) {
    let better = if class.is_protected() { Better::Lower } else { Better::Neither };
    (format!("{}_{name}", class.name()), format!("{} {title}", class.name()), better)
}

/// One figure of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Operations of the workload per second of the guest's clock.
    Throughput,
    /// Operations of the workload per second of CPU time the VM used.
    WorkPerVmCpuSecond,
    /// Time of an operation, all threads of the workload together, µs: the time of a build, say,
    /// divided by its size.
    TimePerOpUs,
    /// CPU time the VM used for an operation, all its threads, µs.
    VmCpuUsPerOp,
    /// CPU time of the VM, all its threads, in percent of one CPU.
    VmCpuPercent,
    /// CPU time of the hogs, all together, in percent of one CPU.
    HogsCpuPercent,
    /// The VM's share by max-min fairness, in percent of one CPU.
    VmFairSharePercent,
    /// The VM's share less its fair share, in points (percent of one CPU).
    ShareDeviationPoints,
    /// Operations per second of the one workload that runs beside the case's own.
    BesideThroughput,
    /// Work per CPU-second of the VM over that of the one workload that runs beside it. Where both
    /// are the same, that is a yardstick as slow as the machine is at that moment.
    WorkOverBeside,
    /// CPU time of all that runs beside the VM, except for hogs, in percent of one CPU.
    BesideCpuPercent,
    /// The share of these less their fair share, in points (percent of one CPU).
    BesideShareDeviationPoints,
    /// The VM's share less that of the one workload or VM beside it, in points.
    ShareOverBesidePoints,
    /// Half of the operations took at most this long, µs.
    OpP50Us,
    /// 99 % of the operations took at most this long, µs.
    OpP99Us,
    /// CPU time the guest spent in user mode for an operation, by its own accounting, µs.
    UserUsPerOp,
    /// CPU time the guest spent in its kernel for an operation, by its own accounting, µs.
    SystemUsPerOp,
    /// Context switches of the guest's kernel for an operation.
    GuestSwitchesPerOp,
    /// Half of the operations of the one workload beside the case's own took at most this, µs.
    BesideOpP50Us,
    /// 99 % of them took at most this long, µs.
    BesideOpP99Us,
    /// Time the guest's CPUs waited for contended spinlocks, ms per second of VM CPU time.
    SpinWaitMs,
    /// Waits of at least 1 ms (2^20 ns) for a spinlock, per second of VM CPU time.
    LongSpinWaits,
    /// Cycles of the host's CPUs in the VM's process, guest included, for an operation.
    CyclesPerOp,
    /// Instructions likewise.
    InstructionsPerOp,
    /// References of the last-level cache likewise.
    CacheReferencesPerOp,
    /// Those of them that missed.
    CacheMissesPerOp,
    /// Branches likewise.
    BranchesPerOp,
    /// Those of them that were mispredicted.
    BranchMissesPerOp,
    /// Exits of the VM for an operation, as KVM counts them.
    VmExitsPerOp,
    /// Time that halted vCPUs keep their CPU polling for an operation, as KVM counts it, µs.
    HaltPollUsPerOp,
    /// Cycles for an instruction (CPI).
    CyclesPerInstruction,
    /// Part of the cache references that missed.
    CacheMissRate,
    /// Part of the branches that were mispredicted.
    BranchMissRate,
    /// Involuntary preemptions of vCPUs of a class, per second of VM CPU time.
    Preemptions(VcpuClass),
    /// Those of them that lasted longer than 1 ms.
    LongPreemptions(VcpuClass),
    /// Time off the CPU after them, ms per second of VM CPU time.
    OffCpuMs(VcpuClass),
}

/// Which way a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// Neither: the metric is a description.
    Neither,
}

impl Metric {
    /// The names of all metrics, for messages.
    fn names() -> String {
        Metric::all().iter().map(|m| m.name()).collect::<Vec<_>>().join(", ")
    }

    /// Every metric, in the order reports use.
    pub fn all() -> Vec<Metric> {
        use Metric::*;
        let mut all = vec![
            Throughput,
            WorkPerVmCpuSecond,
            TimePerOpUs,
            VmCpuUsPerOp,
            VmCpuPercent,
            HogsCpuPercent,
            VmFairSharePercent,
            ShareDeviationPoints,
            BesideThroughput,
            WorkOverBeside,
            BesideCpuPercent,
            BesideShareDeviationPoints,
            ShareOverBesidePoints,
            OpP50Us,
            OpP99Us,
            UserUsPerOp,
            SystemUsPerOp,
            GuestSwitchesPerOp,
            BesideOpP50Us,
            BesideOpP99Us,
            SpinWaitMs,
            LongSpinWaits,
            CyclesPerOp,
            InstructionsPerOp,
            CacheReferencesPerOp,
            CacheMissesPerOp,
            BranchesPerOp,
            BranchMissesPerOp,
            VmExitsPerOp,
            HaltPollUsPerOp,
            CyclesPerInstruction,
            CacheMissRate,
            BranchMissRate,
        ];
        for make in [Preemptions, LongPreemptions, OffCpuMs] {
            all.extend(CLASSES.map(make));
        }
        all
    }

    /// All facts about a metric: its name, its title, and which way it improves.
    fn facts(self) -> (String, String, Better) {
        use Better::{Higher, Lower, Neither};
        use Metric::*;
        let (name, title, better) = match self {
            Throughput => ("throughput_ops_per_second", "throughput, ops/s", Higher),
            WorkPerVmCpuSecond => ("work_per_vm_cpu_second", "work per VM-CPU-second, ops", Higher),
            TimePerOpUs => {
                ("time_per_op_us", "time per operation, all threads together, µs", Lower)
            }
            VmCpuUsPerOp => ("vm_cpu_us_per_op", "VM's CPU time per operation, µs", Lower),
            VmCpuPercent => ("vm_cpu_percent", "VM's CPU, % of one", Neither),
            HogsCpuPercent => ("hogs_cpu_percent", "hogs' CPU, % of one", Neither),
            VmFairSharePercent => ("vm_fair_share_percent", "VM's fair share, % of one", Neither),
            ShareDeviationPoints => {
                ("share_deviation_points", "VM's share less its fair share, points", Neither)
            }
            BesideThroughput => {
                ("beside_throughput_ops_per_second", "throughput beside it, ops/s", Neither)
            }
            WorkOverBeside => {
                ("work_over_beside", "work per CPU-second over that of what runs beside it", Higher)
            }
            BesideCpuPercent => {
                ("beside_cpu_percent", "CPU of what runs beside it, % of one", Neither)
            }
            BesideShareDeviationPoints => (
                "beside_share_deviation_points",
                "share of what runs beside it less its fair share, points",
                Neither,
            ),
            ShareOverBesidePoints => (
                "share_over_beside_points",
                "VM's share less that of what runs beside it, points",
                Neither,
            ),
            OpP50Us => ("op_p50_us", "operation time, median, µs", Lower),
            OpP99Us => ("op_p99_us", "operation time, 99th percentile, µs", Lower),
            UserUsPerOp => ("user_us_per_op", "user time per operation, µs", Lower),
            SystemUsPerOp => ("system_us_per_op", "system time per operation, µs", Lower),
            GuestSwitchesPerOp => {
                ("guest_switches_per_op", "context switches of the guest per operation", Neither)
            }
            BesideOpP50Us => ("beside_op_p50_us", "operation time beside it, median, µs", Lower),
            BesideOpP99Us => {
                ("beside_op_p99_us", "operation time beside it, 99th percentile, µs", Lower)
            }
            SpinWaitMs => (
                "spin_wait_ms_per_vm_cpu_second",
                "waiting for spinlocks, ms per VM-CPU-second",
                Lower,
            ),
            LongSpinWaits => (
                "long_spin_waits_per_vm_cpu_second",
                "waits > 1 ms for a spinlock per VM-CPU-second",
                Lower,
            ),
            CyclesPerOp => ("cycles_per_op", "CPU cycles per operation", Lower),
            InstructionsPerOp => ("instructions_per_op", "instructions per operation", Lower),
            CacheReferencesPerOp => {
                ("cache_references_per_op", "cache references per operation", Lower)
            }
            CacheMissesPerOp => ("cache_misses_per_op", "cache misses per operation", Lower),
            BranchesPerOp => ("branches_per_op", "branches per operation", Lower),
            BranchMissesPerOp => ("branch_misses_per_op", "branch misses per operation", Lower),
            VmExitsPerOp => ("vm_exits_per_op", "exits of the VM per operation", Neither),
            HaltPollUsPerOp => ("halt_poll_us_per_op", "halt polling per operation, us", Lower),
            CyclesPerInstruction => ("cycles_per_instruction", "cycles per instruction", Lower),
            CacheMissRate => ("cache_miss_rate", "cache misses per reference", Lower),
            BranchMissRate => ("branch_miss_rate", "branch misses per branch", Lower),
            Preemptions(class) => {
                return facts_of(
                    class,
                    "preemptions_per_vm_cpu_second",
                    "preemptions per VM-CPU-second",
                );
            }
            LongPreemptions(class) => {
                return facts_of(
                    class,
                    "long_preemptions_per_vm_cpu_second",
                    "preemptions > 1 ms per VM-CPU-second",
                );
            }
            OffCpuMs(class) => {
                return facts_of(
                    class,
                    "offcpu_ms_per_vm_cpu_second",
                    "off CPU, ms per VM-CPU-second",
                );
            }
        };
        (name.into(), title.into(), better)
    }

    /// Name in experiments and results; it ends with the unit.
    pub fn name(self) -> String {
        self.facts().0
    }

    /// Title for readers, with its unit.
    pub fn title(self) -> String {
        self.facts().1
    }

    /// Which way it improves.
    pub fn better(self) -> Better {
        self.facts().2
    }

    /// Whether a quotient of two contenders' values makes sense: for differences it does not.
    pub fn has_ratio(self) -> bool {
        use Metric::{BesideShareDeviationPoints, ShareDeviationPoints, ShareOverBesidePoints};
        !matches!(self, ShareDeviationPoints | BesideShareDeviationPoints | ShareOverBesidePoints)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// An unknown metric name.
#[derive(Debug, thiserror::Error)]
#[error("there is no metric \"{name}\"; there is {}", Metric::names())]
pub struct UnknownMetric {
    name: String,
}

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Metric::all()
            .into_iter()
            .find(|m| m.name() == name)
            .ok_or_else(|| UnknownMetric { name: name.into() })
    }
}

impl Serialize for Metric {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}
