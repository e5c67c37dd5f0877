// SPDX-License-Identifier: GPL-2.0-or-later
//! Metrics of scx_holdfast: its own counters since it was loaded.

use std::path::Path;

use serde_json::Value;

use super::metrics::{Definition, Labelled, Page, Series};
use crate::scheduler::{Connection, Period, SOCKET};

/// The sched_ext scheduler of a host.
#[derive(Debug)]
pub(super) struct Loaded<'a> {
    /// Its name; empty if none is loaded.
    pub(super) name: &'a str,
    /// Its counters; `None` if it is not scx_holdfast, or does not answer.
    counters: Option<Value>,
}

/// A counter of `scx_holdfast --help-stats`, and its labels as a series.
type Counter = (&'static str, &'static [(&'static str, &'static str)]);

/// A metric, the part of its unit that a counter's unit is, and its counters.
type Metric = (Definition, f64, &'static [Counter]);

const NS: f64 = 1e-9;

const VMS: Metric = (
    ("holdfast_scheduler_vms", "gauge", "VMs that scx_holdfast schedules."),
    1.0,
    &[
        ("nr_vms_readable", &[("tier", "exact")]),
        ("nr_vms_queue", &[("tier", "queue")]),
        ("nr_vms_irql", &[("tier", "irql")]),
        ("nr_vms_unreadable", &[("tier", "none")]),
    ],
);

/// Counters of the host as a whole.
const OF_HOST: [Metric; 2] = [
    (
        (
            "holdfast_scheduler_starving_slices_total",
            "counter",
            "Slices of tasks that had waited for 5 s.",
        ),
        1.0,
        &[("nr_starving", &[])],
    ),
    (
        (
            "holdfast_scheduler_wakeup_preemptions_total",
            "counter",
            "Running tasks preempted by a waking task.",
        ),
        1.0,
        &[("nr_wakeup_preempt", &[])],
    ),
];

/// Decisions about vCPUs, of the host.
const DECISIONS: [Metric; 5] = [
    (
        (
            "holdfast_scheduler_slice_ends_total",
            "counter",
            "Ends of slices and graces of vCPUs, by the decision.",
        ),
        1.0,
        &[
            ("nr_extended", &[("decision", "extended")]),
            ("nr_released", &[("decision", "released")]),
            ("nr_capped", &[("decision", "capped")]),
            ("nr_over_budget", &[("decision", "over_budget")]),
            ("nr_backed_off", &[("decision", "backed_off")]),
            ("nr_waits", &[("decision", "waits")]),
            ("nr_unprotected", &[("decision", "unprotected")]),
        ],
    ),
    (
        (
            "holdfast_scheduler_preemptions_total",
            "counter",
            "Preemptions of vCPUs, by what they were doing.",
        ),
        1.0,
        &[
            ("nr_preempted_unknown", &[("class", "unknown")]),
            ("nr_preempted_preemptible", &[("class", "preemptible")]),
            ("nr_preempted_holder", &[("class", "holder")]),
            ("nr_preempted_irq", &[("class", "irq")]),
            ("nr_preempted_waiter", &[("class", "waiter")]),
            ("nr_preempted_head", &[("class", "head")]),
            ("nr_preempted_likely_holder", &[("class", "likely_holder")]),
            ("nr_preempted_likely_irq", &[("class", "likely_irq")]),
            ("nr_preempted_likely_waiter", &[("class", "likely_waiter")]),
        ],
    ),
    (
        (
            "holdfast_scheduler_blocked_seconds_total",
            "counter",
            "Time that preempted holders, heads and interrupts had no CPU.",
        ),
        NS,
        &[("protected_waiting_ns", &[])],
    ),
    (
        (
            "holdfast_scheduler_resume_boosts_total",
            "counter",
            "vCPUs queued ahead of their place, as preempted or next lock holders.",
        ),
        1.0,
        &[("nr_resumed_first", &[])],
    ),
    (
        (
            "holdfast_scheduler_missed_yields_total",
            "counter",
            "Directed yields whose target did not get the CPU.",
        ),
        1.0,
        &[("nr_missed", &[])],
    ),
];

/// Decisions about the vCPUs of a VM: those that tell whether it makes too much of its grace.
const GRACES: Metric = (
    ("holdfast_vm_graces_total", "counter", "Graces of vCPUs of the VM, by how they ended."),
    1.0,
    &[
        ("nr_released", &[("end", "released")]),
        ("nr_capped", &[("end", "capped")]),
        ("nr_over_budget", &[("end", "over_budget")]),
    ],
);

/// With [`Series::All`].
const GRACE: Metric = (
    (
        "holdfast_vm_grace_seconds_total",
        "counter",
        "Grace granted to vCPUs of the VM (with `--all`).",
    ),
    NS,
    &[("grace_ns", &[])],
);

impl<'a> Loaded<'a> {
    /// Asks the scheduler of this name for its counters, if it is scx_holdfast.
    pub(super) fn ask(name: &'a str) -> Self {
        let counters = holdfast_checks::is_holdfast(name).then(|| {
            let counters = Connection::open(Path::new(SOCKET))
                .and_then(|mut connection| connection.counters(Period::SinceLoaded));
            // A scheduler that is being loaded or unloaded does not answer: there are no counters.
            counters.ok()
        });
        Self { name, counters: counters.flatten() }
    }

    /// Adds its metrics to a page.
    pub(super) fn write(
        &self,
        page: &mut Page,
        series: Series,
        nodename: &str,
        vms: &[Labelled<'_>],
    ) {
        let Some(counters) = &self.counters else { return };
        let of_host = [("nodename", nodename)];
        for metric in std::iter::once(&VMS).chain(&OF_HOST) {
            write_metric(page, metric, [(counters, &of_host[..])].into_iter());
        }
        for metric in &DECISIONS {
            write_metric(page, metric, [(&counters["vcpus"], &of_host[..])].into_iter());
        }
        let of_vms: Vec<_> = vms
            .iter()
            .filter_map(|vm| Some((counters["vms"].get(vm.vm.pid.to_string())?, vm.labels(&[]))))
            .collect();
        let more = (series == Series::All).then_some(&GRACE);
        for metric in std::iter::once(&GRACES).chain(more) {
            write_metric(page, metric, of_vms.iter().map(|(of, labels)| (*of, &labels[..])));
        }
    }
}

/// A metric with the counters of each of these; counters that are missing have no series.
fn write_metric<'a>(
    page: &mut Page,
    (definition, unit, counters): &Metric,
    of: impl Iterator<Item = (&'a Value, &'a [(&'a str, &'a str)])>,
) {
    page.head(*definition);
    for (values, labels) in of {
        for (key, more) in *counters {
            if let Some(value) = values[*key].as_f64() {
                page.line(definition.0, &[labels, more].concat(), value * unit);
            }
        }
    }
}

/// Lists for the reference: titles, and definitions.
pub(super) fn lists() -> [(&'static str, Vec<Definition>); 2] {
    let of_host = std::iter::once(&VMS).chain(&OF_HOST).chain(&DECISIONS);
    [
        (
            "Of `scx_holdfast` while it is loaded, since it was, with the label `nodename`",
            of_host.map(|metric| metric.0).collect(),
        ),
        ("Of VMs that it schedules", vec![GRACES.0, GRACE.0]),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::metrics::labelled;
    use crate::sample::tests::sample;

    /// scx_holdfast with some counters, for the VM of process 7.
    pub(in crate::export) fn loaded() -> Loaded<'static> {
        let decisions = json!({"nr_released": 40, "nr_capped": 2, "nr_over_budget": 1,
            "grace_ns": 2_500_000_000_u64, "nr_preempted_holder": 3,
            "nr_preempted_likely_holder": 8, "nr_resumed_first": 6, "nr_missed": 4,
            "protected_waiting_ns": 1_000_000});
        let counters = json!({"nr_vms_readable": 1, "nr_vms_irql": 3, "nr_vms_unreadable": 2,
            "nr_vms_queue": 4,
            "nr_starving": 5, "nr_wakeup_preempt": 9, "vcpus": decisions,
            "vms": {"7": decisions, "8": decisions}});
        Loaded { name: "holdfast", counters: Some(counters) }
    }

    #[test]
    fn counters_become_series_of_the_host_and_of_its_vms() {
        let mut page = Page::default();
        let sample = sample(1, 7, 30);
        loaded().write(&mut page, Series::All, "a", &labelled(&sample));
        for line in [
            r#"holdfast_scheduler_vms{nodename="a",tier="none"} 2"#,
            r#"holdfast_scheduler_vms{nodename="a",tier="queue"} 4"#,
            r#"holdfast_scheduler_vms{nodename="a",tier="irql"} 3"#,
            r#"holdfast_scheduler_starving_slices_total{nodename="a"} 5"#,
            r#"holdfast_scheduler_slice_ends_total{nodename="a",decision="capped"} 2"#,
            r#"holdfast_scheduler_preemptions_total{nodename="a",class="holder"} 3"#,
            r#"holdfast_scheduler_preemptions_total{nodename="a",class="likely_holder"} 8"#,
            r#"holdfast_scheduler_blocked_seconds_total{nodename="a"} 0.001"#,
            r#"holdfast_vm_graces_total{vm="web",end="over_budget"} 1"#,
            r#"holdfast_vm_grace_seconds_total{vm="web"} 2.5"#,
        ] {
            assert!(page.0.lines().any(|have| have == line), "{line}\n{}", page.0);
        }
        let graces = page.0.matches("holdfast_vm_graces_total{").count();
        assert_eq!(graces, 3, "those of the VM of the sample: {}", page.0);
        assert!(!page.0.contains("class=\"irq\""), "it does not say: {}", page.0);
    }

    #[test]
    fn another_scheduler_is_not_asked() {
        let mut page = Page::default();
        Loaded::ask("bpfland").write(&mut page, Series::All, "a", &[]);
        assert_eq!(page.0, "");
    }
}
