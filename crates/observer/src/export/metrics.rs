// SPDX-License-Identifier: GPL-2.0-or-later
//! A sample in Prometheus' text format. This module defines the names of all metrics.
//!
//! Counters are sums over the vCPUs of a VM: series per vCPU would be too many on a large host.
//! Metrics of the host as a whole have its `nodename`: all exporters have the same address, and
//! rules distinguish hosts by `nodename` where the server does not know their names.

use std::fmt::Write;

use holdfast_policy::VcpuClass;

use super::scheduler::{self, Loaded};
use crate::histogram::{Histogram, NR_SLOTS};
use crate::sample::{ByClass, Counters, Sample, VmSample};
use crate::takers::TakerKind;

/// Bounds of the histogram's buckets, as slots: 2^13 ns (8 us) to 2^29 ns (0.5 s), each 4 times the
/// last.
const BUCKETS: std::ops::RangeInclusive<usize> = 13..=29;
const BUCKET_STEP: usize = 2;

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
type Values = fn(&Counters) -> Option<ByClass>;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Counters that are known of a VM whether or not its guest's kernel can be read. Those that were
/// not measured have no series: times after the end of a VM's threads, or without the kernel's
/// accounts of them.
const OF_EVERY_VM: [(&str, &str, Value); 7] = [
    ("holdfast_vcpu_run_seconds_total", "CPU time of vCPUs.", |c| {
        c.times.map(|times| seconds(times.run_ns))
    }),
    ("holdfast_vcpu_steal_seconds_total", "Time that vCPUs were runnable and had no CPU.", |c| {
        c.times.map(|times| seconds(times.steal_ns))
    }),
    ("holdfast_vcpu_pause_exits_total", "Exits of vCPUs that spun.", |c| {
        c.kvm.map(|kvm| kvm.pause_exits as f64)
    }),
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
const OF_READABLE_VMS: [(&str, &str, Value); 6] = [
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

const SAMPLES: (&str, &str, Values) =
    ("holdfast_vcpu_clock_samples_total", "Clock samples of running vCPUs, by class.", |c| {
        c.clock.map(|clock| clock.samples)
    });
const PREEMPTED: (&str, &str) =
    ("holdfast_vcpu_preempted_seconds", "Off-CPU time of preempted vCPUs, by class.");

const TAKEN: Definition = (
    "holdfast_vcpu_preempted_by_seconds_total",
    "counter",
    "Off-CPU time of preempted vCPUs, by what took the CPU: another `vm`, its `own` threads, a \
     `process` that is no VM, the `kernel`, or nothing (`idle`: throttled, or moved).",
);

/// The page that Prometheus scrapes from the host `nodename`; `scheduler` is `None` if the kernel
/// has no sched_ext.
pub(super) fn render(sample: &Sample, nodename: &str, scheduler: Option<&Loaded>) -> String {
    let mut page = Page::default();
    let of_host = ("nodename", nodename);
    let version = ("version", env!("CARGO_PKG_VERSION"));
    page.of_host(BUILD_INFO, &[version, of_host], 1.0);
    if let Some(scheduler) = scheduler {
        page.of_host(SCHED_EXT_INFO, &[("scheduler", scheduler.name), of_host], 1.0);
    }
    page.of_host(LOST_EVENTS, &[of_host], sample.lost_events as f64);

    page.head(VM_INFO);
    for vm in &sample.vms {
        let readable = if vm.is_readable() { "true" } else { "false" };
        let kernel = vm.guest.kernel.as_deref().unwrap_or("");
        let (label, pid) = (vm.label(), vm.pid.to_string());
        let labels = [
            ("vm", &*label),
            ("pid", &*pid),
            ("guest_kernel", kernel),
            ("readable", readable),
            ("tier", vm.guest.tier_name()),
        ];
        page.line(VM_INFO.0, &labels, 1.0);
    }
    page.each(VM_VCPUS, &sample.vms, |vm, _| Some(vm.vcpus.len() as f64));
    for (name, help, value) in OF_EVERY_VM {
        page.each((name, "counter", help), &sample.vms, |_, total| value(total));
    }
    let readable: Vec<VmSample> =
        sample.vms.iter().filter(|vm| vm.is_readable()).cloned().collect();
    for (name, help, value) in OF_READABLE_VMS {
        page.each((name, "counter", help), &readable, |_, total| value(total));
    }

    let (name, help, values) = SAMPLES;
    page.head((name, "counter", help));
    for vm in &sample.vms {
        let Some(values) = values(&vm.total()) else { continue };
        for class in classes(vm) {
            page.of_vm(name, vm, &[("class", class.name())], values[class] as f64);
        }
    }
    let (name, help) = PREEMPTED;
    page.head((name, "histogram", help));
    for vm in &sample.vms {
        let total = vm.total();
        for class in classes(vm) {
            let (histogram, sum) = (&total.offcpu_hist[class], total.offcpu_ns[class]);
            page.histogram(name, vm, class.name(), histogram, sum);
        }
    }
    page.head(TAKEN);
    for vm in &sample.vms {
        for kind in TakerKind::ALL {
            let of_kind = vm.takers.iter().filter(|taker| taker.kind == kind);
            let ns: u64 = of_kind.map(|taker| taker.taken.offcpu_ns).sum();
            page.of_vm(TAKEN.0, vm, &[("by", kind.name())], seconds(ns));
        }
    }
    if let Some(scheduler) = scheduler {
        scheduler.write(&mut page, nodename, &sample.vms);
    }
    page.0
}

/// Lists of all metrics in Markdown, for the reference.
pub fn reference() -> String {
    fn counters((name, help, _): &(&'static str, &'static str, Value)) -> Definition {
        (name, "counter", help)
    }
    let of_vms = [VM_INFO, VM_VCPUS].into_iter().chain(OF_EVERY_VM.iter().map(counters));
    let by_class = [(SAMPLES.0, "counter", SAMPLES.1), (PREEMPTED.0, "histogram", PREEMPTED.1)];
    let lists: [(&str, Vec<Definition>); 5] = [
        ("Of the host, with the label `nodename`", vec![BUILD_INFO, SCHED_EXT_INFO, LOST_EVENTS]),
        ("Of every VM", of_vms.collect()),
        ("Of VMs whose guest kernel can be read", OF_READABLE_VMS.iter().map(counters).collect()),
        ("By the label `class`", by_class.into()),
        ("By the label `by`", vec![TAKEN]),
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

    fn of_vm(&mut self, name: &str, vm: &VmSample, more: &[(&str, &str)], value: f64) {
        let (label, pid) = (vm.label(), vm.pid.to_string());
        let mut labels = vec![("vm", &*label), ("pid", &*pid)];
        labels.extend(more);
        self.line(name, &labels, value);
    }

    fn each(
        &mut self,
        definition: Definition,
        vms: &[VmSample],
        value: impl Fn(&VmSample, &Counters) -> Option<f64>,
    ) {
        self.head(definition);
        for vm in vms {
            if let Some(value) = value(vm, &vm.total()) {
                self.of_vm(definition.0, vm, &[], value);
            }
        }
    }

    fn histogram(&mut self, name: &str, vm: &VmSample, class: &str, h: &Histogram, sum_ns: u64) {
        let bucket = format!("{name}_bucket");
        for slot in BUCKETS.step_by(BUCKET_STEP) {
            let below: u64 = h.0[..slot.min(NR_SLOTS)].iter().sum();
            let le = ((1u64 << slot) as f64 / 1e9).to_string();
            self.of_vm(&bucket, vm, &[("class", class), ("le", &le)], below as f64);
        }
        let count = h.count() as f64;
        self.of_vm(&bucket, vm, &[("class", class), ("le", "+Inf")], count);
        self.of_vm(&format!("{name}_sum"), vm, &[("class", class)], sum_ns as f64 / 1e9);
        self.of_vm(&format!("{name}_count"), vm, &[("class", class)], count);
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
        let page = render(&sample, "a", Some(&loaded()));
        for line in [
            "holdfast_vcpu_preempted_by_seconds_total{vm=\"web\",pid=\"7\",by=\"vm\"} 1.073741824",
            "holdfast_vcpu_preempted_by_seconds_total{vm=\"web\",pid=\"7\",by=\"idle\"} 0",
            "holdfast_vcpu_preempted_seconds_count{vm=\"web\",pid=\"7\",class=\"holder\"} 30",
            "holdfast_vcpu_preempted_seconds_bucket\
             {vm=\"web\",pid=\"7\",class=\"holder\",le=\"0.000524288\"} 0",
            "holdfast_vcpu_preempted_seconds_bucket\
             {vm=\"web\",pid=\"7\",class=\"holder\",le=\"0.002097152\"} 30",
            "holdfast_vcpu_pause_exits_total{vm=\"web\",pid=\"7\"} 30",
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
        let page = render(&sample, "a", None);
        assert!(!page.contains("class=\"holder\"") && page.contains("class=\"unknown\""), "{page}");
        assert!(!page.contains("holdfast_vcpu_lock_halts_total{"), "{page}");
        assert!(!page.contains("holdfast_sched_ext_info"), "{page}");

        let known = |page: &str| page.contains("holdfast_vcpu_run_seconds_total{");
        assert!(known(&page));
        let counters = &mut sample.vms[0].vcpus[0].counters;
        (counters.times, counters.kvm, counters.clock) = (None, None, None);
        let page = render(&sample, "a", None);
        assert!(!known(&page), "{page}");
        assert!(!page.contains("holdfast_vcpu_kicks_total{"), "{page}");
        assert!(!page.contains("holdfast_vcpu_clock_samples_total{"), "{page}");
        assert!(page.contains("holdfast_vcpu_preempted_seconds_count{"), "{page}");
    }

    #[test]
    fn labels_are_escaped() {
        let mut sample = sample(1, 7, 1);
        sample.vms[0].name = Some("a\"b\\".into());
        assert!(render(&sample, "a", None).contains("vm=\"a\\\"b\\\\\""));
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
            render(&sample(1, 7, 30), "a", Some(&loaded())).as_bytes(),
        )
        .unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
