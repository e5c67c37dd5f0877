// SPDX-License-Identifier: GPL-2.0-or-later
//! A sample in Prometheus' text format. This module defines the names of all metrics.
//!
//! Counters are sums over the vCPUs of a VM: series per vCPU would be too many on a large host.
//! Metrics of the host as a whole have its `nodename`: all exporters have the same address, and
//! rules distinguish hosts by `nodename` where the server does not know their names.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use holdfast_policy::VcpuClass;

use super::scheduler::{self, Loaded};
use crate::histogram::{Histogram, NR_SLOTS};
use crate::sample::{ByClass, Counters, Sample, VmSample};
use crate::takers::TakerKind;

/// Bounds of the histogram's buckets, as slots: 2^13 ns (8 us) to 2^29 ns (0.5 s), each 4 times the
/// last.
const FINE_BUCKETS: [usize; 9] = [13, 15, 17, 19, 21, 23, 25, 27, 29];
/// 2 ms: grace does not avoid shorter absences.
const FEW_BUCKETS: [usize; 1] = [21];

/// How many series a VM has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Series {
    /// Those that the alerts, and the dashboard's panels of all VMs, need: 20 at most.
    #[default]
    Few,
    /// Also those by class, and finer histograms.
    All,
}

/// Name, type, and what it is, as a sentence.
pub(super) type Definition = (&'static str, &'static str, &'static str);

const BUILD_INFO: Definition = ("holdfast_build_info", "gauge", "Version of the exporter.");
const SCHED_EXT_INFO: Definition = (
    "holdfast_sched_ext_info",
    "gauge",
    "The sched_ext scheduler that is loaded; an empty label means none.",
);
const LOST_EVENTS: Definition =
    ("holdfast_lost_events_total", "counter", "Events missing in all other metrics.");
const VM_INFO: Definition =
    ("holdfast_vm_info", "gauge", "VMs, and how much is known of their vCPUs.");
const VM_VCPUS: Definition = ("holdfast_vm_vcpus", "gauge", "vCPUs that have run.");

type Value = fn(&Counters) -> Option<f64>;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A metric of a VM's counters.
type Counter = (&'static str, &'static str, Value);

/// Counters that are known of a VM whether or not its guest's kernel can be read. Those that were
/// not measured have no series: times after the end of a VM's threads, or without the kernel's
/// accounts of them.
const OF_EVERY_VM: [Counter; 3] = [
    ("holdfast_vcpu_run_seconds_total", "CPU time of vCPUs.", |c| {
        c.times.map(|times| seconds(times.run_ns))
    }),
    ("holdfast_vcpu_steal_seconds_total", "Time that vCPUs were runnable and had no CPU.", |c| {
        c.times.map(|times| seconds(times.steal_ns))
    }),
    ("holdfast_vcpu_pause_exits_total", "Exits of vCPUs that spun.", |c| {
        c.kvm.map(|kvm| kvm.pause_exits as f64)
    }),
];

/// The same, with [`Series::All`].
const MORE_OF_EVERY_VM: [Counter; 4] = [
    (
        "holdfast_vcpu_kicks_total",
        "Hypercalls that wake the next owner of a lock (KVM_HC_KICK_CPU).",
        |c| c.kvm.map(|kvm| kvm.kicks as f64),
    ),
    (
        "holdfast_vcpu_yield_hypercalls_total",
        "Hypercalls that yield to a sibling (KVM_HC_SCHED_YIELD).",
        |c| c.kvm.map(|kvm| kvm.yield_hypercalls as f64),
    ),
    (
        "holdfast_vcpu_directed_yields_total",
        "Directed yields that KVM asked the scheduler for.",
        |c| c.kvm.map(|kvm| kvm.yields_tried as f64),
    ),
    (
        "holdfast_vcpu_directed_yields_granted_total",
        "Directed yields that the scheduler granted.",
        |c| c.kvm.map(|kvm| kvm.yields_done as f64),
    ),
];

/// Counters that are known only where the guest's kernel can be read.
const OF_READABLE_VMS: [Counter; 2] = [
    (
        "holdfast_vcpu_clock_samples_holder_preempted_total",
        "Clock samples of vCPUs queued for a lock while a lock holder of the VM was preempted.",
        |c| c.of_holders(c.clock?.samples_holder_off as f64),
    ),
    (
        "holdfast_vcpu_clock_samples_head_preempted_total",
        "Clock samples of vCPUs queued for a lock while the next owner of one was preempted, and \
         no holder.",
        |c| c.clock.map(|clock| clock.samples_head_off as f64),
    ),
];

/// The same, with [`Series::All`].
const MORE_OF_READABLE_VMS: [Counter; 4] = [
    ("holdfast_vcpu_lock_halts_total", "Halts in the queue of a lock.", |c| {
        Some(c.lock_halts as f64)
    }),
    ("holdfast_vcpu_lock_halt_seconds_total", "Time halted in the queue of a lock.", |c| {
        Some(seconds(c.lock_halt_ns))
    }),
    (
        "holdfast_vcpu_blocking_absences_total",
        "Ended preemptions of vCPUs that siblings may have waited for.",
        |c| Some(c.resumed as f64),
    ),
    (
        "holdfast_vcpu_siblings_waiting_total",
        "Siblings found queued for a lock at the end of such preemptions.",
        |c| Some(c.siblings_waiting as f64),
    ),
];

const SAMPLES: Definition = (
    "holdfast_vcpu_clock_samples_total",
    "counter",
    "Clock samples of running vCPUs of known class: `waiting` for a lock, or `other`.",
);
const CLASS_SAMPLES: Definition =
    ("holdfast_vcpu_class_samples_total", "counter", "Clock samples of running vCPUs, by class.");
const PREEMPTED: Definition = (
    "holdfast_vcpu_preempted_seconds",
    "histogram",
    "Off-CPU time of preempted vCPUs: of lock holders (`class` is `holder`), or of each class.",
);
const TAKEN: Definition = (
    "holdfast_vcpu_preempted_by_seconds_total",
    "counter",
    "Off-CPU time of preempted vCPUs, by what took the CPU: another `vm`, its `own` threads, a \
     `process` that is no VM, the `kernel`, or nothing (`idle`: throttled, or moved).",
);

/// A VM, and the labels of all of its series.
pub(super) struct Labelled<'a> {
    pub(super) vm: &'a VmSample,
    total: Counters,
    labels: Vec<(&'static str, String)>,
}

impl Labelled<'_> {
    pub(super) fn labels<'l>(&'l self, more: &[(&'l str, &'l str)]) -> Vec<(&'l str, &'l str)> {
        let own = self.labels.iter().map(|(name, value)| (*name, &**value));
        own.chain(more.iter().copied()).collect()
    }
}

/// VMs by name and UUID, which a restart leaves as they are. A name has the process in it only if
/// two VMs that run have the same. A VM that has ended is left out if another is in its place.
pub(super) fn labelled(sample: &Sample) -> Vec<Labelled<'_>> {
    let id = |vm: &VmSample| (vm.label(), vm.uuid.clone());
    let mut running: HashMap<_, usize> = HashMap::new();
    for vm in sample.vms.iter().filter(|vm| !vm.ended) {
        *running.entry(id(vm)).or_default() += 1;
    }
    let mut ended = HashSet::new();
    let of_vm = |vm| {
        let key = id(vm);
        let same = running.get(&key).copied().unwrap_or(0);
        if vm.ended && (same > 0 || !ended.insert(key.clone())) {
            return None;
        }
        let (mut name, uuid) = key;
        if same > 1 {
            let _ = write!(name, " (pid {})", vm.pid);
        }
        let uuid = uuid.map(|uuid| ("uuid", uuid));
        let labels = std::iter::once(("vm", name)).chain(uuid).collect();
        Some(Labelled { vm, total: vm.total(), labels })
    };
    sample.vms.iter().filter_map(of_vm).collect()
}

/// The page that Prometheus scrapes from the host `nodename`; `scheduler` is `None` if the kernel
/// has no sched_ext.
pub(super) fn render(
    sample: &Sample,
    series: Series,
    nodename: &str,
    scheduler: Option<&Loaded>,
) -> String {
    let mut page = Page::default();
    let of_host = ("nodename", nodename);
    let version = ("version", env!("CARGO_PKG_VERSION"));
    page.of_host(BUILD_INFO, &[version, of_host], 1.0);
    if let Some(scheduler) = scheduler {
        page.of_host(SCHED_EXT_INFO, &[("scheduler", scheduler.name), of_host], 1.0);
    }
    page.of_host(LOST_EVENTS, &[of_host], sample.lost_events as f64);

    let vms = &labelled(sample)[..];
    page.head(VM_INFO);
    for vm in vms {
        let guest = &vm.vm.guest;
        let readable = if vm.vm.is_readable() { "true" } else { "false" };
        let kernel = guest.kernel.as_deref().unwrap_or("");
        let more = [("guest_kernel", kernel), ("readable", readable), ("tier", guest.tier_name())];
        page.line(VM_INFO.0, &vm.labels(&more), 1.0);
    }
    page.counters(&OF_EVERY_VM, vms, |_| true);
    page.counters(&OF_READABLE_VMS, vms, VmSample::is_readable);
    page.samples(vms);
    page.takers(vms);
    match series {
        Series::Few => page.preempted(vms, &FEW_BUCKETS, |class| class == VcpuClass::Holder),
        Series::All => page.preempted(vms, &FINE_BUCKETS, |_| true),
    }
    if series == Series::All {
        page.head(VM_VCPUS);
        for vm in vms {
            page.line(VM_VCPUS.0, &vm.labels(&[]), vm.vm.vcpus.len() as f64);
        }
        page.counters(&MORE_OF_EVERY_VM, vms, |_| true);
        page.counters(&MORE_OF_READABLE_VMS, vms, VmSample::is_readable);
        page.class_samples(vms);
    }
    if let Some(scheduler) = scheduler {
        scheduler.write(&mut page, series, nodename, vms);
    }
    page.0
}

/// Lists of all metrics in Markdown, for the reference.
pub fn reference() -> String {
    fn definitions(counters: &[Counter]) -> impl Iterator<Item = Definition> + use<'_> {
        counters.iter().map(|(name, help, _)| (*name, "counter", *help))
    }
    let few = std::iter::once(VM_INFO).chain(definitions(&OF_EVERY_VM)).chain([TAKEN]);
    let readable = definitions(&OF_READABLE_VMS).chain([SAMPLES, PREEMPTED]);
    let more = std::iter::once(VM_VCPUS).chain(definitions(&MORE_OF_EVERY_VM));
    let more = more.chain(definitions(&MORE_OF_READABLE_VMS)).chain([CLASS_SAMPLES]);
    let lists: [(&str, Vec<Definition>); 4] = [
        ("Of the host, with the label `nodename`", vec![BUILD_INFO, SCHED_EXT_INFO, LOST_EVENTS]),
        ("Of every VM", few.collect()),
        ("Of VMs whose guest kernel can be read", readable.collect()),
        ("With `--all`, as are `holdfast_vcpu_preempted_seconds` of each class", more.collect()),
    ];
    let mut page = String::new();
    for (title, definitions) in lists.into_iter().chain(scheduler::lists()) {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n{title}:\n\n");
        for (name, kind, help) in definitions {
            let item = format!("- `{name}` ({kind}): {help}");
            let lines = textwrap::Options::new(100)
                .subsequent_indent("  ")
                .word_splitter(textwrap::WordSplitter::NoHyphenation)
                .break_words(false);
            let _ = writeln!(page, "{}", textwrap::fill(&item, lines));
        }
    }
    page
}

/// Classes whose counters are known for a VM: a zero means that nothing happened, and not that
/// nothing was measured.
fn classes(vm: &VmSample) -> impl Iterator<Item = VcpuClass> {
    VcpuClass::ALL.into_iter().filter(|class| vm.tells(*class))
}

#[derive(Default)]
pub(super) struct Page(pub(super) String);

impl Page {
    pub(super) fn head(&mut self, (name, kind, help): Definition) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn of_host(&mut self, definition: Definition, labels: &[(&str, &str)], value: f64) {
        self.head(definition);
        self.line(definition.0, labels, value);
    }

    pub(super) fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (key, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{key}=\"{value}\"", if i == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn counters(&mut self, of: &[Counter], vms: &[Labelled<'_>], has: fn(&VmSample) -> bool) {
        for (name, help, value) in of {
            self.head((name, "counter", help));
            for vm in vms.iter().filter(|vm| has(vm.vm)) {
                if let Some(value) = value(&vm.total) {
                    self.line(name, &vm.labels(&[]), value);
                }
            }
        }
    }

    fn samples(&mut self, vms: &[Labelled<'_>]) {
        self.head(SAMPLES);
        for vm in vms.iter().filter(|vm| vm.vm.is_readable()) {
            let Some(ByClass(samples)) = vm.total.clock.map(|clock| clock.samples) else {
                continue;
            };
            let of = |class: VcpuClass| samples[class as usize];
            let waiting = of(VcpuClass::Waiter) + of(VcpuClass::Head);
            let other = samples.iter().sum::<u64>() - of(VcpuClass::Unknown) - waiting;
            for (state, value) in [("waiting", waiting), ("other", other)] {
                self.line(SAMPLES.0, &vm.labels(&[("state", state)]), value as f64);
            }
        }
    }

    fn class_samples(&mut self, vms: &[Labelled<'_>]) {
        self.head(CLASS_SAMPLES);
        for vm in vms {
            let Some(samples) = vm.total.clock.map(|clock| clock.samples) else { continue };
            for class in classes(vm.vm) {
                let labels = vm.labels(&[("class", class.name())]);
                self.line(CLASS_SAMPLES.0, &labels, samples[class] as f64);
            }
        }
    }

    fn takers(&mut self, vms: &[Labelled<'_>]) {
        self.head(TAKEN);
        for vm in vms {
            for kind in TakerKind::ALL {
                let of_kind = vm.vm.takers.iter().filter(|taker| taker.kind == kind);
                let ns: u64 = of_kind.map(|taker| taker.taken.offcpu_ns).sum();
                self.line(TAKEN.0, &vm.labels(&[("by", kind.name())]), seconds(ns));
            }
        }
    }

    fn preempted(&mut self, vms: &[Labelled<'_>], slots: &[usize], of: fn(VcpuClass) -> bool) {
        self.head(PREEMPTED);
        for vm in vms {
            for class in classes(vm.vm).filter(|class| of(*class)) {
                let (h, sum_ns) = (&vm.total.offcpu_hist[class], vm.total.offcpu_ns[class]);
                self.histogram(PREEMPTED.0, vm, class.name(), (h, sum_ns), slots);
            }
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        vm: &Labelled<'_>,
        class: &str,
        (h, sum_ns): (&Histogram, u64),
        slots: &[usize],
    ) {
        let bucket = format!("{name}_bucket");
        for &slot in slots {
            let below: u64 = h.0[..slot.min(NR_SLOTS)].iter().sum();
            let le = ((1u64 << slot) as f64 / 1e9).to_string();
            self.line(&bucket, &vm.labels(&[("class", class), ("le", &le)]), below as f64);
        }
        let count = h.count() as f64;
        self.line(&bucket, &vm.labels(&[("class", class), ("le", "+Inf")]), count);
        let labels = vm.labels(&[("class", class)]);
        self.line(&format!("{name}_sum"), &labels, seconds(sum_ns));
        self.line(&format!("{name}_count"), &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::scheduler::tests::loaded;
    use crate::sample::tests::sample;
    use crate::takers::{Taken, Taker};
    use crate::tools;

    #[test]
    fn a_vm_has_its_counters_by_class() {
        let mut sample = sample(1, 7, 30);
        let taken = Taken { preemptions: 3, offcpu_ns: 1 << 30, protected_offcpu_ns: 0 };
        let taker = Taker { kind: TakerKind::Vm, pid: Some(8), name: Some("db".into()), taken };
        sample.vms[0].takers = vec![taker];
        let page = render(&sample, Series::All, "a", Some(&loaded()));
        for line in [
            "holdfast_vcpu_preempted_by_seconds_total{vm=\"web\",by=\"vm\"} 1.073741824",
            "holdfast_vcpu_preempted_by_seconds_total{vm=\"web\",by=\"idle\"} 0",
            "holdfast_vcpu_preempted_seconds_count{vm=\"web\",class=\"holder\"} 30",
            "holdfast_vcpu_preempted_seconds_bucket\
             {vm=\"web\",class=\"holder\",le=\"0.000524288\"} 0",
            "holdfast_vcpu_preempted_seconds_bucket\
             {vm=\"web\",class=\"holder\",le=\"0.002097152\"} 30",
            "holdfast_vcpu_pause_exits_total{vm=\"web\"} 30",
            "holdfast_lost_events_total{nodename=\"a\"} 0",
            "holdfast_sched_ext_info{scheduler=\"holdfast\",nodename=\"a\"} 1",
        ] {
            assert!(page.lines().any(|have| have == line), "{line}\n{page}");
        }
    }

    #[test]
    fn counters_that_are_not_known_are_absent() {
        let mut sample = sample(1, 7, 30);
        sample.vms[0].vcpus[0].readable = false;
        let page = render(&sample, Series::All, "a", None);
        assert!(!page.contains("class=\"holder\"") && page.contains("class=\"unknown\""), "{page}");
        assert!(!page.contains("holdfast_vcpu_lock_halts_total{"), "{page}");
        assert!(!page.contains("holdfast_sched_ext_info"), "{page}");

        let known = |page: &str| page.contains("holdfast_vcpu_run_seconds_total{");
        assert!(known(&page));
        let counters = &mut sample.vms[0].vcpus[0].counters;
        (counters.times, counters.kvm, counters.clock) = (None, None, None);
        let page = render(&sample, Series::All, "a", None);
        assert!(!known(&page), "{page}");
        assert!(!page.contains("holdfast_vcpu_kicks_total{"), "{page}");
        assert!(!page.contains("holdfast_vcpu_clock_samples_total{"), "{page}");
        assert!(page.contains("holdfast_vcpu_preempted_seconds_count{"), "{page}");
    }

    #[test]
    fn a_vm_has_twenty_series_and_more_only_if_asked_for() {
        let sample = sample(1, 7, 30);
        let count = |series| {
            let page = render(&sample, series, "a", Some(&loaded()));
            page.lines().filter(|line| line.contains("{vm=\"web\"")).count()
        };
        assert_eq!(count(Series::Few), 20);
        assert!((100..140).contains(&count(Series::All)), "{}", count(Series::All));
    }

    #[test]
    fn labels_outlive_a_restart_and_tell_vms_apart() {
        let mut sample = sample(1, 7, 30);
        sample.vms[0].uuid = Some("u".into());
        let ids = |sample: &Sample| -> Vec<_> {
            let page = render(sample, Series::Few, "a", None);
            let lines = page.lines().filter_map(|line| line.strip_prefix("holdfast_vm_info{"));
            lines.map(|line| line.split_once(",guest").unwrap().0.to_owned()).collect()
        };
        assert_eq!(ids(&sample), [r#"vm="web",uuid="u""#]);
        // It was started again: the counters of the first process are left out.
        let mut again = sample.vms[0].clone();
        again.pid = 8;
        sample.vms[0].ended = true;
        sample.vms.push(again);
        assert_eq!(ids(&sample), [r#"vm="web",uuid="u""#]);
        assert!(
            render(&sample, Series::Few, "a", None).matches("vcpu_run_seconds_total{").count() == 1
        );
        // Two run under one name.
        sample.vms[0].ended = false;
        assert_eq!(ids(&sample), [r#"vm="web (pid 7)",uuid="u""#, r#"vm="web (pid 8)",uuid="u""#]);
        sample.vms[1].uuid = None;
        assert_eq!(ids(&sample), [r#"vm="web",uuid="u""#, r#"vm="web""#]);
    }

    #[test]
    fn labels_are_escaped() {
        let mut sample = sample(1, 7, 1);
        sample.vms[0].name = Some("a\"b\\".into());
        assert!(render(&sample, Series::All, "a", None).contains("vm=\"a\\\"b\\\\\""));
    }

    #[test]
    fn promtool_accepts_the_page() {
        use std::process::{Command, Stdio};
        let Some(promtool) = tools::find("promtool", &["--version"], "promtool") else { return };
        let mut promtool = Command::new(promtool)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(
            &mut promtool.stdin.take().unwrap(),
            render(&sample(1, 7, 30), Series::All, "a", Some(&loaded())).as_bytes(),
        )
        .unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
