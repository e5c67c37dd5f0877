// SPDX-License-Identifier: GPL-2.0-or-later
//! The sample model: all counters at a moment. Every output is made from it.

use std::collections::HashMap;

use holdfast_bpf::Tier;
use holdfast_policy::{NR_CLASSES, VcpuClass};
use serde::{Deserialize, Serialize};

use crate::guest::Guest;
use crate::histogram::Histogram;
use crate::takers::{self, Taker};

/// Schema tag of a sample as a line of JSON.
pub const PREEMPTIONS: &str = "holdfast.preemptions/1";

/// Counters since the observer was attached, or since an earlier sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Time at which it was taken, ns since 1970.
    pub t_ns: u64,
    /// Time it covers, ns.
    pub interval_ns: u64,
    /// Switches and notes that were not counted or not reported, and vCPUs that were not tracked.
    pub lost_events: u64,
    /// The host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The running VMs, and those that ended since the last sample.
    pub vms: Vec<VmSample>,
}

/// One VM.
#[derive(Debug, Clone, Deserialize)]
pub struct VmSample {
    /// Process of its VMM.
    pub pid: u32,
    /// Name that its VMM or libvirt gives it.
    pub name: Option<String>,
    /// UUID that its VMM is given.
    pub uuid: Option<String>,
    /// Its guest.
    #[serde(flatten)]
    pub guest: Guest,
    /// It ended in the time that the sample covers.
    #[serde(default)]
    pub ended: bool,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuSample>,
    /// What took their CPUs when they were preempted, the longest first. Recordings do not tell.
    #[serde(default)]
    pub takers: Vec<Taker>,
}

/// Its vCPUs in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum VcpusLine<'a> {
    All(&'a [VcpuSample]),
    /// Without figures of holders, which were not measured.
    WithoutHolders(serde_json::Value),
}

impl<'a> VcpusLine<'a> {
    fn of(vm: &'a VmSample) -> Self {
        const BY_CLASS: [&str; 5] =
            ["preemptions", "offcpu_ns", "offcpu_over_cap", "samples", "offcpu_hist"];
        if Holders::of(vm.guest.tier) == Holders::Told {
            return Self::All(&vm.vcpus);
        }
        let mut vcpus = serde_json::to_value(&vm.vcpus).unwrap_or_default();
        for vcpu in vcpus.as_array_mut().into_iter().flatten().filter_map(|v| v.as_object_mut()) {
            for counts in BY_CLASS {
                if let Some(of) = vcpu.get_mut(counts).and_then(|of| of.as_object_mut()) {
                    of.remove(VcpuClass::Holder.name());
                }
            }
            vcpu.remove("samples_holder_off");
        }
        Self::WithoutHolders(vcpus)
    }
}

impl Serialize for VmSample {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            pid: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            name: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            uuid: &'a Option<String>,
            #[serde(flatten)]
            guest: &'a Guest,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            ended: bool,
            vcpus: VcpusLine<'a>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            takers: &'a [Taker],
        }
        let Self { pid, name, uuid, guest, ended, takers, .. } = self;
        let vcpus = VcpusLine::of(self);
        Line { pid: *pid, name, uuid, guest, ended: *ended, vcpus, takers }.serialize(serializer)
    }
}

/// One vCPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VcpuSample {
    /// Its number in the VM.
    pub vcpu: u32,
    /// The thread that runs it.
    pub tid: u32,
    /// Are its classes known?
    pub readable: bool,
    /// Its counters.
    #[serde(flatten)]
    pub counters: Counters,
}

/// Counters of a vCPU, or sums over several. What was not measured is `None`, and so is a sum that
/// lacks a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Its times; none once its thread has ended, or if the kernel has no schedstat.
    #[serde(flatten)]
    pub times: Option<Times>,
    /// Involuntary switches.
    pub preemptions: ByClass,
    /// Off-CPU time after them, in ns.
    pub offcpu_ns: ByClass,
    /// Those with more than 1 ms of off-CPU time (`long_absence_ns` of `observe.bpf.c`).
    pub offcpu_over_cap: ByClass,
    /// Histograms of the off-CPU time after them.
    pub offcpu_hist: HistogramByClass,
    /// Absences of Holders, Irqs and Heads at whose end the siblings were sampled.
    pub resumed: u64,
    /// Siblings queued for a lock at these moments, in sum.
    pub siblings_waiting: u64,
    /// Halts while queued for a lock: PV spinlocks.
    pub lock_halts: u64,
    /// Time of these halts, ns.
    pub lock_halt_ns: u64,
    /// KVM's reactions to spinning, if they were counted.
    #[serde(flatten)]
    pub kvm: Option<KvmCounters>,
    /// Samples of the clock while it ran, if there was a clock.
    #[serde(flatten)]
    pub clock: Option<ClockSamples>,
    /// Whether its class can be Holder. The tier of the VM says the same.
    #[serde(skip)]
    pub holders: Holders,
}

/// Whether holders of locks are told from the rest of the guest's kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holders {
    /// They are.
    #[default]
    Told,
    /// A vCPU in the kernel may be one: what is counted of holders was not measured.
    Untold,
}

impl Holders {
    /// Of a guest of which this much is known.
    pub(crate) fn of(tier: Option<Tier>) -> Self {
        if tier == Some(Tier::Queue) { Self::Untold } else { Self::Told }
    }
}

/// The times of a vCPU's thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// CPU time, ns.
    pub run_ns: u64,
    /// Time that it was runnable and had no CPU, ns. KVM reports it to the guest as steal time.
    pub steal_ns: u64,
}

impl Times {
    /// The difference to `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self { run_ns: f(self.run_ns, other.run_ns), steal_ns: f(self.steal_ns, other.steal_ns) }
    }
}

/// Samples of the clock that found a vCPU running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockSamples {
    /// All of them, by class.
    pub samples: ByClass,
    /// Those that found it queued for a lock while a lock holder of its VM was preempted.
    pub samples_holder_off: u64,
    /// Those that found it queued while the next owner of a lock was preempted, and no holder.
    pub samples_head_off: u64,
}

impl ClockSamples {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            samples: self.samples.zip(&other.samples, f),
            samples_holder_off: f(self.samples_holder_off, other.samples_holder_off),
            samples_head_off: f(self.samples_head_off, other.samples_head_off),
        }
    }
}

/// KVM's reactions to vCPUs that spin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounters {
    /// Exits because the vCPU spun (`kvm_vcpu_on_spin`).
    pub pause_exits: u64,
    /// Hypercalls by which it woke the next owner of a lock (KVM_HC_KICK_CPU).
    pub kicks: u64,
    /// Hypercalls by which it yielded to a sibling (KVM_HC_SCHED_YIELD).
    pub yield_hypercalls: u64,
    /// Directed yields that KVM asked the scheduler for.
    pub yields_tried: u64,
    /// Directed yields that the scheduler granted.
    pub yields_done: u64,
    /// Off-CPU time after them, ns.
    pub yield_ns: u64,
}

impl KvmCounters {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            pause_exits: f(self.pause_exits, other.pause_exits),
            kicks: f(self.kicks, other.kicks),
            yield_hypercalls: f(self.yield_hypercalls, other.yield_hypercalls),
            yields_tried: f(self.yields_tried, other.yields_tried),
            yields_done: f(self.yields_done, other.yields_done),
            yield_ns: f(self.yield_ns, other.yield_ns),
        }
    }
}

impl Counters {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        macro_rules! each {
            ($($number:ident),*; $($by_class:ident),*) => {
                Self {
                    times: self.times.zip(other.times).map(|(a, b)| a.zip(&b, f)),
                    offcpu_hist: self.offcpu_hist.zip(&other.offcpu_hist, f),
                    kvm: self.kvm.zip(other.kvm).map(|(a, b)| a.zip(&b, f)),
                    clock: self.clock.zip(other.clock).map(|(a, b)| a.zip(&b, f)),
                    holders: self.holders.max(other.holders),
                    $($number: f(self.$number, other.$number),)*
                    $($by_class: self.$by_class.zip(&other.$by_class, f),)*
                }
            };
        }
        each!(
            resumed, siblings_waiting, lock_halts, lock_halt_ns;
            preemptions, offcpu_ns, offcpu_over_cap
        )
    }

    /// The sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Is any class known? Not if the guest was unreadable at every preemption and sample.
    pub fn tells_classes(&self) -> bool {
        let samples = self.clock.unwrap_or_default().samples;
        let [looked, unknown] = [ByClass::total, |of: &ByClass| of[VcpuClass::Unknown]]
            .map(|count| count(&self.preemptions).saturating_add(count(&samples)));
        looked == 0 || looked > unknown
    }

    /// A figure of holders, or one that they are part of, if it was measured.
    pub(crate) fn of_holders<T>(&self, figure: T) -> Option<T> {
        (self.holders == Holders::Told).then_some(figure)
    }

    /// Off-CPU time of preempted Holders, Irqs and Heads, ns. VMs are sorted by it, unless another
    /// order is asked for.
    pub fn blocking_ns(&self) -> u64 {
        self.offcpu_ns.protected()
    }

    /// Cost of waiting for locks. None if no sample found it running with a known class.
    pub fn cost(&self) -> Option<Cost> {
        let clock = self.clock?;
        let known = clock.samples.0.iter().sum::<u64>() - clock.samples[VcpuClass::Unknown];
        let share = |samples: u64| samples as f64 / known as f64;
        (known > 0).then(|| Cost {
            waiting: share(clock.samples[VcpuClass::Waiter] + clock.samples[VcpuClass::Head]),
            holder_preempted: self.of_holders(share(clock.samples_holder_off)),
            head_preempted: share(clock.samples_head_off),
            samples: known,
        })
    }

    /// Part of that cost, as text. None if it was not measured.
    pub(crate) fn share(&self, of: fn(&Cost) -> Option<f64>) -> Option<String> {
        let cost = self.cost()?;
        Some(cost.percent(of(&cost)?))
    }
}

/// Shares of the CPU time that a VM used, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Spent waiting for any lock.
    pub waiting: f64,
    /// Spent waiting while a lock holder of the VM was preempted, if holders are told.
    pub holder_preempted: Option<f64>,
    /// Spent waiting while the next owner of a lock was preempted, and no holder.
    pub head_preempted: f64,
    /// Samples behind these shares.
    pub samples: u64,
}

impl Cost {
    /// Samples that give a share a decimal: 20 % of so many is 20 +- 4 points. Fewer say less.
    const MANY: u64 = 400;

    /// Spent waiting while a lock holder or next owner of the VM was preempted.
    pub fn lost(&self) -> Option<f64> {
        Some(self.holder_preempted? + self.head_preempted)
    }

    /// A share in percent, in at most five characters; `~` marks one of few samples.
    pub fn percent(&self, share: f64) -> String {
        let percent = share * 100.0;
        if self.samples < Self::MANY { format!("~{percent:.0}") } else { format!("{percent:.1}") }
    }
}

impl VmSample {
    /// Sum of all vCPUs.
    pub fn total(&self) -> Counters {
        let all = self.vcpus.iter().map(|vcpu| vcpu.counters);
        all.reduce(|sum, counters| sum.plus(&counters)).unwrap_or_default()
    }

    /// Its name, or its VMM's process.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("pid {}", self.pid))
    }

    /// Are the classes of at least one vCPU known?
    pub fn is_readable(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.readable)
    }

    /// Can a vCPU of it be found in this class?
    pub fn tells(&self, class: VcpuClass) -> bool {
        let by_irql = self.guest.tier == Some(Tier::Irql);
        let by_queue = self.guest.tier == Some(Tier::Queue);
        match class {
            VcpuClass::Unknown => true,
            VcpuClass::Preemptible => self.is_readable() || by_irql,
            VcpuClass::Holder => self.is_readable() && !by_queue,
            VcpuClass::LikelyHolder => by_irql || (self.is_readable() && by_queue),
            class if class.is_likely() => by_irql,
            _ => self.is_readable(),
        }
    }
}

impl Sample {
    /// The difference to `earlier`. New vCPUs count from their beginning.
    pub fn since(&self, earlier: &Self) -> Self {
        let old: HashMap<u32, &Counters> =
            earlier.vms.iter().flat_map(|vm| &vm.vcpus).map(|v| (v.tid, &v.counters)).collect();
        let mut sample = self.clone();
        sample.interval_ns = self.interval_ns.saturating_sub(earlier.interval_ns);
        sample.lost_events = self.lost_events.saturating_sub(earlier.lost_events);
        let takers: HashMap<u32, &[Taker]> =
            earlier.vms.iter().map(|vm| (vm.pid, &*vm.takers)).collect();
        for vm in &mut sample.vms {
            vm.takers = takers::since(&vm.takers, takers.get(&vm.pid).unwrap_or(&&[][..]));
        }
        for vcpu in sample.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
            if let Some(before) = old.get(&vcpu.tid) {
                vcpu.counters = vcpu.counters.since(before);
            }
        }
        sample
    }

    /// Seconds it covers.
    pub fn seconds(&self) -> f64 {
        (self.interval_ns.max(1)) as f64 / 1e9
    }
}

/// One number for each class of a vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByClass(pub [u64; NR_CLASSES]);

impl ByClass {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// Sum of the protected classes: Holder, Irq and Head.
    pub fn protected(&self) -> u64 {
        VcpuClass::ALL
            .into_iter()
            .filter(|class| class.is_protected())
            .map(|class| self[class])
            .fold(0, u64::saturating_add)
    }

    /// Sum of all classes.
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }
}

impl Serialize for ByClass {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(VcpuClass::ALL.iter().map(|class| (class.name(), self[*class])))
    }
}

impl<'de> Deserialize<'de> for ByClass {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_class(deserializer).map(Self)
    }
}

/// Values by the names of classes; a class that is not there has the default.
fn by_class<'de, D, T>(deserializer: D) -> Result<[T; NR_CLASSES], D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Copy + Default,
{
    let named: HashMap<String, T> = Deserialize::deserialize(deserializer)?;
    Ok(VcpuClass::ALL.map(|class| named.get(class.name()).copied().unwrap_or_default()))
}

impl std::ops::Index<VcpuClass> for ByClass {
    type Output = u64;

    fn index(&self, class: VcpuClass) -> &u64 {
        &self.0[class as usize]
    }
}

/// One histogram for each class of a vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistogramByClass(pub [Histogram; NR_CLASSES]);

impl HistogramByClass {
    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self(std::array::from_fn(|i| self.0[i].zip(&other.0[i], f)))
    }
}

impl Serialize for HistogramByClass {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(VcpuClass::ALL.iter().map(|class| (class.name(), &self[*class])))
    }
}

impl<'de> Deserialize<'de> for HistogramByClass {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_class(deserializer).map(Self)
    }
}

impl std::ops::Index<VcpuClass> for HistogramByClass {
    type Output = Histogram;

    fn index(&self, class: VcpuClass) -> &Histogram {
        &self.0[class as usize]
    }
}

#[cfg(test)]
pub(crate) mod tests {

    use super::*;

    /// A VM with one vCPU that was preempted as Holder this often, for 2^20 ns each time.
    pub(crate) fn sample(t_ns: u64, pid: u32, holders: u64) -> Sample {
        let mut clock = ClockSamples { samples_holder_off: holders, ..ClockSamples::default() };
        clock.samples.0[VcpuClass::Preemptible as usize] = 6 * holders;
        clock.samples.0[VcpuClass::Waiter as usize] = 2 * holders;
        clock.samples.0[VcpuClass::Unknown as usize] = holders;
        let mut counters = Counters {
            times: Some(Times { run_ns: holders * 1000, steal_ns: 0 }),
            kvm: Some(KvmCounters { pause_exits: holders, ..KvmCounters::default() }),
            clock: Some(clock),
            ..Counters::default()
        };
        let holder = VcpuClass::Holder as usize;
        counters.preemptions.0[holder] = holders;
        counters.offcpu_ns.0[holder] = holders << 20;
        counters.offcpu_over_cap.0[holder] = holders;
        counters.offcpu_hist.0[holder].0[20] = holders;
        let vcpu = VcpuSample { vcpu: 0, tid: pid + 1, readable: true, counters };
        let vm = VmSample {
            pid,
            name: Some("web".into()),
            uuid: None,
            guest: Guest {
                tier: Some(Tier::Exact),
                kernel: Some("6.1.0".into()),
                ..Guest::default()
            },
            ended: false,
            vcpus: vec![vcpu],
            takers: Vec::new(),
        };
        Sample { t_ns, interval_ns: t_ns, host: None, lost_events: 0, vms: vec![vm] }
    }

    #[test]
    fn is_read_as_it_was_written_and_what_is_missing_was_not_measured() {
        let read = |sample: &Sample| -> Sample {
            serde_json::from_str(&serde_json::to_string(sample).unwrap()).unwrap()
        };
        let mut written = sample(1, 7, 3);
        let counters = written.vms[0].vcpus[0].counters;
        assert_eq!(read(&written).vms[0].vcpus[0].counters, counters);
        let unmeasured = Counters { times: None, kvm: None, clock: None, ..counters };
        written.vms[0].vcpus[0].counters = unmeasured;
        assert_eq!(read(&written).vms[0].vcpus[0].counters, unmeasured);
    }

    #[test]
    fn subtracts_the_counters_of_the_same_vcpu_only() {
        let delta = sample(3_000_000_000, 7, 30).since(&sample(1_000_000_000, 7, 10));
        assert_eq!(delta.interval_ns, 2_000_000_000);
        let total = delta.vms[0].total();
        assert_eq!(total, sample(0, 7, 20).vms[0].total());
        // The thread belongs to another VM: nothing to subtract.
        let other = sample(3_000_000_000, 7, 30).since(&sample(1_000_000_000, 9, 10));
        assert_eq!(other.vms[0].total().preemptions.total(), 30);
    }

    #[test]
    fn cost_leaves_out_samples_of_unknown_class() {
        let cost = sample(1, 7, 10).vms[0].total().cost().unwrap();
        assert_eq!((cost.waiting, cost.holder_preempted, cost.samples), (0.25, Some(0.125), 80));
        assert_eq!(Counters::default().cost(), None);
    }

    #[test]
    fn a_share_of_few_samples_is_marked_and_has_no_decimal() {
        let of = |samples, share| Cost { samples, ..Cost::default() }.percent(share);
        assert_eq!([of(399, 0.384), of(400, 0.384)], ["~38", "38.4"]);
        assert_eq!([of(1, 1.0), of(1_000_000, 1.0)], ["~100", "100.0"]);
    }

    #[test]
    fn a_vcpu_that_was_never_read_has_no_known_class() {
        let of = |unknown: u64, free: u64| {
            let mut counters = Counters::default();
            counters.preemptions.0[VcpuClass::Unknown as usize] = unknown;
            let clock = counters.clock.get_or_insert_default();
            clock.samples.0[VcpuClass::Preemptible as usize] = free;
            counters.tells_classes()
        };
        assert!(of(0, 0) && of(0, 1) && of(842, 1));
        assert!(!of(842, 0));
    }

    #[test]
    fn counters_that_were_not_measured_are_absent() {
        let mut part = sample(1, 7, 3);
        let json =
            |sample: &Sample| serde_json::to_value(sample).unwrap()["vms"][0]["vcpus"].clone();
        let measured = &json(&part)[0];
        assert_eq!((&measured["run_ns"], &measured["steal_ns"]), (&3000.into(), &0.into()));
        assert_eq!((&measured["kicks"], &measured["samples_head_off"]), (&0.into(), &0.into()));
        let mut another = part.vms[0].vcpus[0].clone();
        let missing = &mut another.counters;
        (missing.times, missing.kvm, missing.clock) = (None, None, None);
        part.vms[0].vcpus.push(another);
        let unmeasured = &json(&part)[1];
        for name in ["run_ns", "steal_ns", "kicks", "yield_ns", "samples", "samples_head_off"] {
            assert!(unmeasured.get(name).is_none(), "{name}: {unmeasured}");
        }
        assert_eq!(unmeasured["preemptions"]["holder"], 3);
        let total = part.vms[0].total();
        assert_eq!(
            (total.times, total.kvm, total.clock),
            (None, None, None),
            "a sum that lacks a part is not known"
        );
        assert_eq!(total.cost(), None);
        // A difference takes two measurements.
        let times = |later: Sample, earlier: &Sample| later.since(earlier).vms[0].total().times;
        assert_eq!(times(sample(2, 7, 5), &part), None);
        assert_eq!(times(sample(3, 7, 6), &sample(2, 7, 5)).unwrap().run_ns, 1000);
    }

    #[test]
    fn json_names_every_class() {
        let json = serde_json::to_value(sample(1, 7, 3)).unwrap();
        let vcpu = &json["vms"][0]["vcpus"][0];
        assert_eq!(vcpu["preemptions"]["holder"], 3);
        assert_eq!(vcpu["offcpu_hist"]["holder"].as_array().unwrap().len(), 21);
        assert_eq!(vcpu["offcpu_hist"]["head"], serde_json::json!([]));
        assert_eq!(vcpu["samples"].as_object().unwrap().len(), NR_CLASSES);
    }

    #[test]
    fn figures_of_holders_are_absent_where_they_are_not_told() {
        let mut sample = sample(1, 7, 10);
        sample.vms[0].guest.tier = Some(Tier::Queue);
        sample.vms[0].vcpus[0].counters.holders = Holders::of(Some(Tier::Queue));
        let vm = &sample.vms[0];
        assert!(!vm.tells(VcpuClass::Holder) && vm.tells(VcpuClass::LikelyHolder));
        assert!(vm.tells(VcpuClass::Waiter) && !vm.tells(VcpuClass::LikelyIrq));
        let cost = vm.total().cost().unwrap();
        assert_eq!((cost.waiting, cost.lost()), (0.25, None));
        let json = serde_json::to_value(&sample).unwrap();
        let vcpu = &json["vms"][0]["vcpus"][0];
        for counts in ["preemptions", "offcpu_ns", "offcpu_over_cap", "offcpu_hist", "samples"] {
            assert!(vcpu[counts].get("holder").is_none(), "{vcpu}");
            assert!(vcpu[counts].get("waiter").is_some(), "{vcpu}");
        }
        assert!(vcpu.get("samples_holder_off").is_none(), "{vcpu}");
        let again: Sample = serde_json::from_value(json).unwrap();
        assert_eq!(again.vms[0].vcpus[0].counters.preemptions[VcpuClass::Holder], 0);
    }
}
