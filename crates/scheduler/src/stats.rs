// SPDX-License-Identifier: GPL-2.0-or-later
//! Counters as users see them: `--stats`, `--monitor`, `--help-stats`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use holdfast_policy::{Target, VcpuClass, Verdict};
use scx_stats::prelude::*;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};

use crate::bpf_intf::{
    HF_NR_NEED_BUCKETS, HF_NR_TARGETS, hf_reason_HF_FOR_IPI as FOR_IPI,
    hf_reason_HF_FOR_KICK as FOR_KICK, hf_reason_HF_FOR_OTHER as FOR_OTHER,
    hf_reason_HF_FOR_PAUSE as FOR_PAUSE, hf_stat_HF_STAT_ASKED as ASKED,
    hf_stat_HF_STAT_GRACE_NS as GRACE_NS, hf_stat_HF_STAT_KEPT as KEPT,
    hf_stat_HF_STAT_LATE as LATE, hf_stat_HF_STAT_LOOKED as LOOKED,
    hf_stat_HF_STAT_MISSED as MISSED, hf_stat_HF_STAT_NEED as NEED,
    hf_stat_HF_STAT_RESUMED_FIRST as RESUMED_FIRST, hf_stat_HF_STAT_STOPPED as STOPPED,
    hf_stat_HF_STAT_VERDICT as VERDICT, hf_stat_HF_STAT_WAITING_NS as WAITING_NS,
    hf_stat_HF_STAT_WAKEUP_PREEMPT as WAKEUP_PREEMPT, hf_stat_HF_STAT_YIELD as YIELD,
};

/// Where directed yields are counted that were asked for a reason, and went to this target.
fn asked(reason: u32, target: Target) -> u32 {
    ASKED + reason * HF_NR_TARGETS + target as u32
}

/// The counters of a table, with what each is called, where BPF counts it, and what it means.
macro_rules! counters {
    ($(#[$attr:meta])* $name:ident { $($field:ident = $index:expr, $desc:literal;)* }) => {
        $(#[$attr])*
        #[stat_doc]
        #[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
        pub(crate) struct $name {
            $(#[stat(desc = $desc)] pub $field: u64,)*
            #[stat(desc = "Graces that ended well, by the log2 of how many us they took")]
            pub grace_need_us_log2: Vec<u64>,
        }

        impl $name {
            /// What `count` says of each counter of `bpf/intf.h`.
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
    /// What was decided about vCPUs, of the host or of one VM.
    Decisions {
        nr_extended = VERDICT + Verdict::Extend as u32,
            "Steps of grace: a vCPU in a critical section ran on past its turn";
        nr_released = VERDICT + Verdict::Release as u32,
            "Graces that ended because the vCPU had left its critical section, and was Free";
        nr_capped = VERDICT + Verdict::Capped as u32, "Graces that ended at the cap";
        nr_over_budget = VERDICT + Verdict::OverBudget as u32,
            "Graces refused or ended because the VM had none saved";
        nr_backed_off = VERDICT + Verdict::BackOff as u32,
            "Graces not tried because this vCPU's kept ending at the cap";
        nr_waits = VERDICT + Verdict::Waits as u32,
            "Graces not given to a vCPU that waits for a preempted sibling itself";
        nr_unprotected = VERDICT + Verdict::Preempt as u32,
            "Turns of vCPUs that ended with nothing to protect";
        grace_ns = GRACE_NS, "Grace granted, in ns";
        nr_preempted_unknown = STOPPED + VcpuClass::Unknown as u32,
            "vCPUs preempted while their class could not be read";
        nr_preempted_free = STOPPED + VcpuClass::Free as u32,
            "vCPUs preempted in no critical section";
        nr_preempted_holder = STOPPED + VcpuClass::Holder as u32,
            "vCPUs preempted while holding a lock";
        nr_preempted_irq = STOPPED + VcpuClass::Irq as u32,
            "vCPUs preempted while serving an interrupt";
        nr_preempted_waiter = STOPPED + VcpuClass::Waiter as u32,
            "vCPUs preempted while queued for a lock";
        nr_preempted_head = STOPPED + VcpuClass::Head as u32,
            "vCPUs preempted while next in line for a lock";
        protected_waiting_ns = WAITING_NS,
            "Time that preempted holders, heads and interrupts were without a CPU, in ns";
        nr_resumed_first = RESUMED_FIRST,
            "Preempted holders and woken lock owners queued ahead of their turn";
        nr_pause_to_holder = asked(FOR_PAUSE, Target::ToHolder),
            "Yields at pause-loop exits: to a preempted holder of the VM";
        nr_pause_to_called = asked(FOR_PAUSE, Target::ToCalled),
            "Yields at pause-loop exits: to a preempted sibling with calls pending";
        nr_pause_to_named = asked(FOR_PAUSE, Target::ToNamed),
            "Yields at pause-loop exits: to the sibling KVM named";
        nr_pause_refused = asked(FOR_PAUSE, Target::ToNobody),
            "Yields at pause-loop exits that were refused: nobody would use the CPU better";
        nr_kick_to_holder = asked(FOR_KICK, Target::ToHolder),
            "Yields of who released a paravirtual lock (KVM_HC_KICK_CPU): to a preempted holder";
        nr_kick_to_called = asked(FOR_KICK, Target::ToCalled),
            "Yields of who released a paravirtual lock: to a preempted sibling with calls pending";
        nr_kick_to_named = asked(FOR_KICK, Target::ToNamed),
            "Yields of who released a paravirtual lock: to the lock's next owner";
        nr_kick_refused = asked(FOR_KICK, Target::ToNobody),
            "Yields of who released a paravirtual lock that were refused";
        nr_ipi_to_holder = asked(FOR_IPI, Target::ToHolder),
            "Yields of who sent an interrupt (KVM_HC_SCHED_YIELD): to a preempted holder";
        nr_ipi_to_called = asked(FOR_IPI, Target::ToCalled),
            "Yields of who sent an interrupt: to a preempted sibling with calls pending";
        nr_ipi_to_named = asked(FOR_IPI, Target::ToNamed),
            "Yields of who sent an interrupt: to whom it was sent";
        nr_ipi_refused = asked(FOR_IPI, Target::ToNobody),
            "Yields of who sent an interrupt that were refused";
        nr_other_to_holder = asked(FOR_OTHER, Target::ToHolder),
            "Yields asked for a reason that is not known: to a preempted holder of the VM";
        nr_other_to_called = asked(FOR_OTHER, Target::ToCalled),
            "Yields asked for a reason that is not known: to a preempted sibling with calls pending";
        nr_other_to_named = asked(FOR_OTHER, Target::ToNamed),
            "Yields asked for a reason that is not known: to the sibling KVM named";
        nr_other_refused = asked(FOR_OTHER, Target::ToNobody),
            "Yields asked for a reason that is not known that were refused";
        nr_looked = LOOKED + Target::ToNobody as u32,
            "Looks at running vCPUs with preempted siblings that found them busy";
        nr_look_to_holder = LOOKED + Target::ToHolder as u32,
            "Running vCPUs that wait, spin or are outside of critical sections, descheduled in favour of a preempted holder";
        nr_look_to_called = LOOKED + Target::ToCalled as u32,
            "Running callers found and descheduled in favour of whom they called";
        nr_missed = MISSED, "CPUs given to one that another CPU took first or, by looks, that is too far ahead of who is next or may not run there";
    }
}

/// What the scheduler did since it was loaded, or since the last report.
#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(top)]
pub(crate) struct Metrics {
    #[stat(desc = "VMs whose guest kernel can be read now")]
    pub nr_vms_readable: u64,
    #[stat(desc = "VMs known that cannot be read; their vCPUs are ordinary tasks")]
    pub nr_vms_unreadable: u64,
    #[stat(desc = "Running tasks preempted by a waking one")]
    pub nr_wakeup_preempt: u64,
    #[stat(desc = "Turns that ended with nobody further behind")]
    pub nr_kept: u64,
    #[stat(desc = "Yields without a target")]
    pub nr_yield: u64,
    #[stat(
        desc = "Turns of tasks that weigh so little beside others that they had waited for 5 s"
    )]
    pub nr_late: u64,
    #[stat(desc = "Decisions about all vCPUs")]
    pub vcpus: Decisions,
    #[stat(
        desc = "Decisions by VM, named by the process id of its VMM; those of one process by PID, PID-2 and so on. A VM keeps its name while the scheduler is loaded"
    )]
    pub vms: BTreeMap<String, Decisions>,
}

impl Metrics {
    /// What `count` says of the host's counters.
    pub(crate) fn read(count: impl Fn(u32) -> u64) -> Self {
        Self {
            nr_wakeup_preempt: count(WAKEUP_PREEMPT),
            nr_kept: count(KEPT),
            nr_yield: count(YIELD),
            nr_late: count(LATE),
            vcpus: Decisions::read(count),
            ..Self::default()
        }
    }

    pub(crate) fn format<W: Write>(&self, w: &mut W) -> Result<()> {
        writeln!(
            w,
            "[holdfast] {} of {} VMs readable, {} wakeup preemptions, {} late turns",
            self.nr_vms_readable,
            self.nr_vms_readable + self.nr_vms_unreadable,
            self.nr_wakeup_preempt,
            self.nr_late,
        )?;
        self.vcpus.format(w, "all")?;
        for (vm, decisions) in &self.vms {
            decisions.format(w, vm)?;
        }
        Ok(())
    }

    /// Of the host alone.
    fn delta(&self, before: &Self) -> Self {
        Self {
            nr_vms_readable: self.nr_vms_readable,
            nr_vms_unreadable: self.nr_vms_unreadable,
            nr_wakeup_preempt: self.nr_wakeup_preempt.saturating_sub(before.nr_wakeup_preempt),
            nr_kept: self.nr_kept.saturating_sub(before.nr_kept),
            nr_yield: self.nr_yield.saturating_sub(before.nr_yield),
            nr_late: self.nr_late.saturating_sub(before.nr_late),
            vcpus: self.vcpus.delta(&before.vcpus),
            vms: BTreeMap::new(),
        }
    }
}

/// What was counted since the scheduler was loaded.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Of the host, without VMs.
    pub metrics: Metrics,
    /// Of each VM, with its name, by its number among all that were named.
    pub vms: BTreeMap<u64, (String, Decisions)>,
}

impl Totals {
    /// A VM that was not there before starts from zero, whoever had its name.
    fn delta(&self, before: &Self) -> Metrics {
        let none = Decisions::default();
        let vms = self.vms.iter().map(|(nr, (name, decisions))| {
            let earlier = before.vms.get(nr).map_or(&none, |(_, earlier)| earlier);
            (name.clone(), decisions.delta(earlier))
        });
        Metrics { vms: vms.collect(), ..self.metrics.delta(&before.metrics) }
    }
}

/// What VMs are called. A name stays with its VM, and goes to no other one while the process has VMs.
#[derive(Debug, Default)]
pub(crate) struct VmNames {
    /// The number and the name of each VM, by the address of its `struct kvm`.
    names: BTreeMap<u64, (u64, String)>,
    /// How many VMs were named.
    nr_named: u64,
    /// Those of each process that has any.
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
    fn format<W: Write>(&self, w: &mut W, whose: &str) -> Result<()> {
        writeln!(
            w,
            "  {whose:>8} grace: steps {}, ms {:.2}, released {}, capped {}, over budget {}, backed off {}, waits {}, nothing to protect {}",
            self.nr_extended,
            self.grace_ns as f64 / 1e6,
            self.nr_released,
            self.nr_capped,
            self.nr_over_budget,
            self.nr_backed_off,
            self.nr_waits,
            self.nr_unprotected,
        )?;
        writeln!(w, "  {:>8} grace needed, us (log2): {:?}", "", self.grace_need_us_log2)?;
        writeln!(
            w,
            "  {:>8} preempted: holder {}, irq {}, head {}, waiter {}, free {}, unknown {}",
            "",
            self.nr_preempted_holder,
            self.nr_preempted_irq,
            self.nr_preempted_head,
            self.nr_preempted_waiter,
            self.nr_preempted_free,
            self.nr_preempted_unknown,
        )?;
        writeln!(
            w,
            "  {:>8} yields at pause exits: holder {}, called {}, named {}, refused {}; \
             after kicks: holder {}, called {}, named {}, refused {}",
            "",
            self.nr_pause_to_holder,
            self.nr_pause_to_called,
            self.nr_pause_to_named,
            self.nr_pause_refused,
            self.nr_kick_to_holder,
            self.nr_kick_to_called,
            self.nr_kick_to_named,
            self.nr_kick_refused,
        )?;
        writeln!(
            w,
            "  {:>8} yields after IPIs: holder {}, called {}, named {}, refused {}; \
             for other reasons: holder {}, called {}, named {}, refused {}",
            "",
            self.nr_ipi_to_holder,
            self.nr_ipi_to_called,
            self.nr_ipi_to_named,
            self.nr_ipi_refused,
            self.nr_other_to_holder,
            self.nr_other_to_called,
            self.nr_other_to_named,
            self.nr_other_refused,
        )?;
        writeln!(
            w,
            "  {:>8} resumed: first {}, ms waited {:.2}; looks: holder {}, called {}, busy {}, missed {}",
            "",
            self.nr_resumed_first,
            self.protected_waiting_ns as f64 / 1e6,
            self.nr_look_to_holder,
            self.nr_look_to_called,
            self.nr_looked,
            self.nr_missed,
        )?;
        Ok(())
    }
}

pub(crate) fn server_data() -> StatsServerData<(), Totals> {
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
    fn a_vm_keeps_its_name_and_leaves_it_to_no_other_while_its_process_has_vms() {
        let (first, second, other) = (0x2000, 0x1000, 0x3000);
        let mut names = VmNames::default();
        let (nr_first, name) = names.of(first, 7);
        assert_eq!(name, "7");
        // The one with the lower address is new.
        assert_eq!(names.of(second, 7).1, "7-2");
        assert_eq!(names.of(first, 7), (nr_first, "7".into()));
        assert_eq!(names.of(other, 8).1, "8");

        // Another VM may come to lie where the first was.
        names.forget([first].into_iter(), &BTreeSet::from([7, 8]));
        assert_eq!(names.of(second, 7).1, "7-2");
        assert_eq!(names.of(first, 7).1, "7-3");

        names.forget([first, second].into_iter(), &BTreeSet::from([8]));
        let (nr, name) = names.of(first, 7);
        assert_eq!(name, "7");
        assert_ne!(nr, nr_first, "it is another VM");
        assert_eq!(names.of(other, 8).1, "8");
    }

    #[test]
    fn what_was_counted_of_a_vm_that_had_the_name_is_not_taken_from_a_new_one() {
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
