// SPDX-License-Identifier: GPL-2.0-or-later
//! Counters as users see them: `--stats`, `--monitor`, `--help-stats`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use holdfast_policy::{Reason, Target, VcpuClass, Verdict};
use scx_stats::prelude::*;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf::{
    HF_NR_NEED_BUCKETS, HF_NR_TARGETS, hf_stat_HF_STAT_DIRECTED_YIELD as DIRECTED_YIELD,
    hf_stat_HF_STAT_GRACE_NS as GRACE_NS, hf_stat_HF_STAT_KEPT as KEPT,
    hf_stat_HF_STAT_MISSED as MISSED, hf_stat_HF_STAT_NEED as NEED,
    hf_stat_HF_STAT_PROBED as PROBED, hf_stat_HF_STAT_RESUMED_FIRST as RESUMED_FIRST,
    hf_stat_HF_STAT_STARVING as STARVING, hf_stat_HF_STAT_STOPPED as STOPPED,
    hf_stat_HF_STAT_VERDICT as VERDICT, hf_stat_HF_STAT_WAITING_NS as WAITING_NS,
    hf_stat_HF_STAT_WAKEUP_PREEMPT as WAKEUP_PREEMPT, hf_stat_HF_STAT_YIELD as YIELD,
};

/// Index of the counter of directed yields for this reason, granted to this target.
fn directed_yield(reason: Reason, target: Target) -> u32 {
    DIRECTED_YIELD + reason as u32 * HF_NR_TARGETS + target as u32
}

/// A table of counters: the name of each, its index in BPF, and its description.
macro_rules! counters {
    ($(#[$attr:meta])* $name:ident { $($field:ident = $index:expr, $desc:literal;)* }) => {
        $(#[$attr])*
        #[stat_doc]
        #[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
        pub(crate) struct $name {
            $(#[stat(desc = $desc)] pub $field: u64,)*
            #[stat(desc = "Graces that ended with the vCPU preemptible, by log2 of their us")]
            pub grace_need_us_log2: Vec<u64>,
        }

        impl $name {
            /// Reads each counter of `bpf/intf.h` from `count`.
            pub(crate) fn read(count: impl Fn(u32) -> u64) -> Self {
                Self {
                    $($field: count($index),)*
                    grace_need_us_log2: (0..HF_NR_NEED_BUCKETS).map(|i| count(NEED + i)).collect(),
                }
            }

            fn delta(&self, before: &Self) -> Self {
                let earlier = |i| before.grace_need_us_log2.get(i).copied().unwrap_or(0);
                let need = self.grace_need_us_log2.iter().enumerate();
                Self {
                    $($field: self.$field.saturating_sub(before.$field),)*
                    grace_need_us_log2: need.map(|(i, n)| n.saturating_sub(earlier(i))).collect(),
                }
            }
        }
    };
}

counters! {
    /// Decisions about vCPUs, of the host or of one VM.
    Decisions {
        nr_extended = VERDICT + Verdict::Extend as u32,
            "Steps of grace: a protected vCPU ran on at the end of its slice";
        nr_released = VERDICT + Verdict::Release as u32,
            "Graces that ended because the vCPU became preemptible";
        nr_capped = VERDICT + Verdict::Capped as u32, "Graces that ended at the cap";
        nr_over_budget = VERDICT + Verdict::OverBudget as u32,
            "Graces refused or ended because the VM's budget was empty";
        nr_backed_off = VERDICT + Verdict::BackOff as u32,
            "Slices that ended without grace because the vCPU's graces kept ending at the cap";
        nr_waits = VERDICT + Verdict::Waits as u32,
            "Graces refused or ended because the vCPU waits for a preempted sibling itself";
        nr_unprotected = VERDICT + Verdict::Preempt as u32,
            "Slices of vCPUs that ended with nothing to protect";
        grace_ns = GRACE_NS, "Grace granted, in ns";
        nr_preempted_unknown = STOPPED + VcpuClass::Unknown as u32,
            "Preemptions of vCPUs whose class could not be read";
        nr_preempted_preemptible = STOPPED + VcpuClass::Preemptible as u32,
            "Preemptions of preemptible vCPUs, which delay no sibling";
        nr_preempted_holder = STOPPED + VcpuClass::Holder as u32,
            "Preemptions of vCPUs that held a lock or had preemption off";
        nr_preempted_irq = STOPPED + VcpuClass::Irq as u32,
            "Preemptions of vCPUs that served an interrupt";
        nr_preempted_waiter = STOPPED + VcpuClass::Waiter as u32,
            "Preemptions of vCPUs queued for a lock";
        nr_preempted_head = STOPPED + VcpuClass::Head as u32,
            "Preemptions of vCPUs first in the queue of a lock";
        nr_preempted_likely_holder = STOPPED + VcpuClass::LikelyHolder as u32,
            "Preemptions of vCPUs of Windows at DISPATCH_LEVEL, or of tier queue in the kernel";
        nr_preempted_likely_irq = STOPPED + VcpuClass::LikelyIrq as u32,
            "Preemptions of vCPUs of Windows above DISPATCH_LEVEL";
        nr_preempted_likely_waiter = STOPPED + VcpuClass::LikelyWaiter as u32,
            "Preemptions of vCPUs of Windows at DISPATCH_LEVEL that had a pause exit just before";
        protected_waiting_ns = WAITING_NS,
            "Time that preempted holders, heads and interrupts had no CPU, in ns";
        nr_resumed_first = RESUMED_FIRST,
            "Resume boosts: vCPUs queued ahead of their place, as preempted or next lock holders";
        nr_pause_to_holder = directed_yield(Reason::ForPause, Target::ToHolder),
            "Directed yields at pause exits, granted to a preempted holder of the VM";
        nr_pause_to_call_pending = directed_yield(Reason::ForPause, Target::ToCallPending),
            "Directed yields at pause exits, granted to a preempted sibling with a call pending";
        nr_pause_to_candidate = directed_yield(Reason::ForPause, Target::ToCandidate),
            "Directed yields at pause exits, granted to KVM's candidate";
        nr_pause_refused = directed_yield(Reason::ForPause, Target::ToNone),
            "Directed yields at pause exits, refused: no sibling would use the CPU better";
        nr_kick_to_holder = directed_yield(Reason::ForKick, Target::ToHolder),
            "Directed yields after a kick (KVM_HC_KICK_CPU), granted to a preempted holder";
        nr_kick_to_call_pending = directed_yield(Reason::ForKick, Target::ToCallPending),
            "Directed yields after a kick, granted to a preempted sibling with a call pending";
        nr_kick_to_candidate = directed_yield(Reason::ForKick, Target::ToCandidate),
            "Directed yields after a kick, granted to the lock's next owner";
        nr_kick_refused = directed_yield(Reason::ForKick, Target::ToNone),
            "Directed yields after a kick, refused";
        nr_ipi_to_holder = directed_yield(Reason::ForIpi, Target::ToHolder),
            "Directed yields after an IPI (KVM_HC_SCHED_YIELD), granted to a preempted holder";
        nr_ipi_to_call_pending = directed_yield(Reason::ForIpi, Target::ToCallPending),
            "Directed yields after an IPI, granted to a preempted sibling with a call pending";
        nr_ipi_to_candidate = directed_yield(Reason::ForIpi, Target::ToCandidate),
            "Directed yields after an IPI, granted to the IPI's target";
        nr_ipi_refused = directed_yield(Reason::ForIpi, Target::ToNone),
            "Directed yields after an IPI, refused";
        nr_other_to_holder = directed_yield(Reason::ForOther, Target::ToHolder),
            "Directed yields for an unknown reason, granted to a preempted holder";
        nr_other_to_call_pending = directed_yield(Reason::ForOther, Target::ToCallPending),
            "Directed yields for an unknown reason, granted to a sibling with a call pending";
        nr_other_to_candidate = directed_yield(Reason::ForOther, Target::ToCandidate),
            "Directed yields for an unknown reason, granted to KVM's candidate";
        nr_other_refused = directed_yield(Reason::ForOther, Target::ToNone),
            "Directed yields for an unknown reason, refused";
        nr_probed = PROBED + Target::ToNone as u32,
            "Probes of running vCPUs with blockers in their VM that left them running";
        nr_probe_to_holder = PROBED + Target::ToHolder as u32,
            "Probes that took the CPU of a vCPU for a preempted holder of its VM";
        nr_probe_to_call_pending = PROBED + Target::ToCallPending as u32,
            "Probes that took the CPU of an IPI sender for a sibling with a call pending";
        nr_missed = MISSED,
            "Yields whose target did not get the CPU: taken, too far ahead, pinned, or not first";
    }
}

/// What the scheduler did since it was loaded, or since the last report.
#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(top)]
pub(crate) struct Metrics {
    #[stat(desc = "VMs with a readable guest")]
    pub nr_vms_readable: u64,
    #[stat(desc = "VMs whose kernel does not count preemption: their lock queues are known")]
    pub nr_vms_queue: u64,
    #[stat(desc = "VMs of Windows, of whose vCPUs the IRQL is known")]
    pub nr_vms_irql: u64,
    #[stat(desc = "VMs of which nothing is known; their vCPUs are ordinary tasks")]
    pub nr_vms_unreadable: u64,
    #[stat(desc = "Running tasks preempted by a waking task")]
    pub nr_wakeup_preempt: u64,
    #[stat(desc = "Slices renewed because no waiting task was further behind")]
    pub nr_kept: u64,
    #[stat(desc = "Yields without a target")]
    pub nr_yield: u64,
    #[stat(desc = "Slices of starving tasks, which had waited for 5 s")]
    pub nr_starving: u64,
    #[stat(desc = "Decisions about all vCPUs")]
    pub vcpus: Decisions,
    #[stat(
        desc = "Decisions by VM, named by the process id of its VMM: PID, PID-2 and so on. A VM \
                keeps its name while the scheduler is loaded"
    )]
    pub vms: BTreeMap<String, Decisions>,
}

impl Metrics {
    /// Reads the counters of the host from `count`.
    pub(crate) fn read(count: impl Fn(u32) -> u64) -> Self {
        Self {
            nr_wakeup_preempt: count(WAKEUP_PREEMPT),
            nr_kept: count(KEPT),
            nr_yield: count(YIELD),
            nr_starving: count(STARVING),
            vcpus: Decisions::read(count),
            ..Self::default()
        }
    }

    pub(crate) fn format<W: Write>(&self, w: &mut W) -> Result<()> {
        writeln!(
            w,
            "[holdfast] {} of {} VMs readable, {} by queues, {} by IRQL, {} wakeup preemptions, \
             {} starving tasks",
            self.nr_vms_readable,
            self.nr_vms_readable + self.nr_vms_queue + self.nr_vms_irql + self.nr_vms_unreadable,
            self.nr_vms_queue,
            self.nr_vms_irql,
            self.nr_wakeup_preempt,
            self.nr_starving,
        )?;
        self.vcpus.format(w, "all")?;
        for (vm, decisions) in &self.vms {
            decisions.format(w, vm)?;
        }
        Ok(())
    }

    /// Without VMs.
    fn delta(&self, before: &Self) -> Self {
        Self {
            nr_vms_readable: self.nr_vms_readable,
            nr_vms_queue: self.nr_vms_queue,
            nr_vms_irql: self.nr_vms_irql,
            nr_vms_unreadable: self.nr_vms_unreadable,
            nr_wakeup_preempt: self.nr_wakeup_preempt.saturating_sub(before.nr_wakeup_preempt),
            nr_kept: self.nr_kept.saturating_sub(before.nr_kept),
            nr_yield: self.nr_yield.saturating_sub(before.nr_yield),
            nr_starving: self.nr_starving.saturating_sub(before.nr_starving),
            vcpus: self.vcpus.delta(&before.vcpus),
            vms: BTreeMap::new(),
        }
    }
}

/// Counters since the scheduler was loaded.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Of the host, without VMs.
    pub metrics: Metrics,
    /// Of each VM, with its name, by its number in the order of naming.
    pub vms: BTreeMap<u64, (String, Decisions)>,
}

impl Totals {
    /// A new VM starts from zero, also if its name belonged to another VM before.
    fn delta(&self, before: &Self) -> Metrics {
        let none = Decisions::default();
        let vms = self.vms.iter().map(|(nr, (name, decisions))| {
            let earlier = before.vms.get(nr).map_or(&none, |(_, earlier)| earlier);
            (name.clone(), decisions.delta(earlier))
        });
        Metrics { vms: vms.collect(), ..self.metrics.delta(&before.metrics) }
    }
}

/// Names of VMs. A name stays with its VM, and no other VM gets it while the process has VMs.
#[derive(Debug, Default)]
pub(crate) struct VmNames {
    /// The number and the name of each VM, by the address of its `struct kvm`.
    names: BTreeMap<u64, (u64, String)>,
    /// Number of VMs named so far.
    nr_named: u64,
    /// Number of VMs named so far, by process.
    nr_named_of: BTreeMap<u32, u32>,
}

impl VmNames {
    /// The number and the name of a VM of process `pid`.
    pub(crate) fn of(&mut self, kvm: u64, pid: u32) -> (u64, String) {
        let name = self.names.entry(kvm).or_insert_with(|| {
            self.nr_named += 1;
            let nr = self.nr_named_of.entry(pid).or_default();
            *nr += 1;
            let name = if *nr == 1 { pid.to_string() } else { format!("{pid}-{nr}") };
            (self.nr_named, name)
        });
        name.clone()
    }

    /// Forgets VMs that have ended; `pids` are the processes of all others.
    pub(crate) fn forget(&mut self, ended: impl Iterator<Item = u64>, pids: &BTreeSet<u32>) {
        for kvm in ended {
            self.names.remove(&kvm);
        }
        self.nr_named_of.retain(|pid, _| pids.contains(pid));
    }
}

impl Decisions {
    fn format<W: Write>(&self, w: &mut W, of: &str) -> Result<()> {
        writeln!(
            w,
            "  {of:>8} grace: steps {}, ms {:.2}, released {}, capped {}, over budget {}, \
             backed off {}, waits {}, nothing to protect {}",
            self.nr_extended,
            self.grace_ns as f64 / 1e6,
            self.nr_released,
            self.nr_capped,
            self.nr_over_budget,
            self.nr_backed_off,
            self.nr_waits,
            self.nr_unprotected,
        )?;
        writeln!(w, "  {:>8} grace until released, us (log2): {:?}", "", self.grace_need_us_log2)?;
        writeln!(
            w,
            "  {:>8} preempted: holder {}, irq {}, head {}, waiter {}, preemptible {}, unknown {}; \
             likely: holder {}, irq {}, waiter {}",
            "",
            self.nr_preempted_holder,
            self.nr_preempted_irq,
            self.nr_preempted_head,
            self.nr_preempted_waiter,
            self.nr_preempted_preemptible,
            self.nr_preempted_unknown,
            self.nr_preempted_likely_holder,
            self.nr_preempted_likely_irq,
            self.nr_preempted_likely_waiter,
        )?;
        writeln!(
            w,
            "  {:>8} yields at pause exits: holder {}, call pending {}, candidate {}, refused {}; \
             after kicks: holder {}, call pending {}, candidate {}, refused {}",
            "",
            self.nr_pause_to_holder,
            self.nr_pause_to_call_pending,
            self.nr_pause_to_candidate,
            self.nr_pause_refused,
            self.nr_kick_to_holder,
            self.nr_kick_to_call_pending,
            self.nr_kick_to_candidate,
            self.nr_kick_refused,
        )?;
        writeln!(
            w,
            "  {:>8} yields after IPIs: holder {}, call pending {}, candidate {}, refused {}; \
             for other reasons: holder {}, call pending {}, candidate {}, refused {}",
            "",
            self.nr_ipi_to_holder,
            self.nr_ipi_to_call_pending,
            self.nr_ipi_to_candidate,
            self.nr_ipi_refused,
            self.nr_other_to_holder,
            self.nr_other_to_call_pending,
            self.nr_other_to_candidate,
            self.nr_other_refused,
        )?;
        writeln!(
            w,
            "  {:>8} resumed: first {}, ms waited {:.2}; \
             probes: holder {}, call pending {}, left running {}; yields missed {}",
            "",
            self.nr_resumed_first,
            self.protected_waiting_ns as f64 / 1e6,
            self.nr_probe_to_holder,
            self.nr_probe_to_call_pending,
            self.nr_probed,
            self.nr_missed,
        )?;
        Ok(())
    }
}

pub(crate) fn server_data() -> StatsServerData<(), Totals> {
    // Since it was loaded, for `holdfast status`.
    let open_total: Box<dyn StatsOpener<(), Totals>> = Box::new(|_| {
        let read: Box<dyn StatsReader<(), Totals>> = Box::new(|_args, (req_ch, res_ch)| {
            req_ch.send(())?;
            res_ch.recv()?.delta(&Totals::default()).to_json()
        });
        Ok(read)
    });
    let open: Box<dyn StatsOpener<(), Totals>> = Box::new(move |(req_ch, res_ch)| {
        req_ch.send(())?;
        let mut prev = res_ch.recv()?;

        let read: Box<dyn StatsReader<(), Totals>> = Box::new(move |_args, (req_ch, res_ch)| {
            req_ch.send(())?;
            let cur = res_ch.recv()?;
            let delta = cur.delta(&prev);
            prev = cur;
            delta.to_json()
        });

        Ok(read)
    });

    StatsServerData::new()
        .add_meta(Metrics::meta())
        .add_meta(Decisions::meta())
        .add_ops("top", StatsOps { open, close: None })
        .add_ops("total", StatsOps { open: open_total, close: None })
}

pub(crate) fn monitor(interval: Duration, shutdown: Arc<AtomicBool>) -> Result<()> {
    scx_utils::monitor_stats::<Metrics>(
        &[],
        interval,
        || shutdown.load(Ordering::Relaxed),
        |metrics| metrics.format(&mut std::io::stdout()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_keeps_its_name_while_its_process_has_vms() {
        let (first, second, other) = (0x2000, 0x1000, 0x3000);
        let mut names = VmNames::default();
        let (nr_first, name) = names.of(first, 7);
        assert_eq!(name, "7");
        // The VM with the lower address is new.
        assert_eq!(names.of(second, 7).1, "7-2");
        assert_eq!(names.of(first, 7), (nr_first, "7".into()));
        assert_eq!(names.of(other, 8).1, "8");

        // Another VM may get the address of the first.
        names.forget([first].into_iter(), &BTreeSet::from([7, 8]));
        assert_eq!(names.of(second, 7).1, "7-2");
        assert_eq!(names.of(first, 7).1, "7-3");

        names.forget([first, second].into_iter(), &BTreeSet::from([8]));
        let (nr, name) = names.of(first, 7);
        assert_eq!(name, "7");
        assert_ne!(nr, nr_first, "another VM");
        assert_eq!(names.of(other, 8).1, "8");
    }

    #[test]
    fn counters_of_a_new_vm_start_from_zero_under_a_reused_name() {
        let totals = |vms: &[(u64, &str, u64)]| Totals {
            vms: vms
                .iter()
                .map(|&(nr, name, nr_capped)| {
                    (nr, (name.to_string(), Decisions { nr_capped, ..Decisions::default() }))
                })
                .collect(),
            ..Totals::default()
        };
        let before = totals(&[(1, "7", 100), (2, "8", 10)]);
        let delta = totals(&[(2, "8", 15), (3, "7", 120)]).delta(&before);
        let capped = delta.vms.iter().map(|(name, of)| (name.as_str(), of.nr_capped));
        assert_eq!(capped.collect::<Vec<_>>(), [("7", 120), ("8", 5)]);
    }
}
