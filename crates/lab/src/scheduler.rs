// SPDX-License-Identifier: GPL-2.0-or-later
//! The meaning of the counters of contenders.

use crate::experiment::Contender;

/// Whether the meaning of a contender's counters is known: it is for `scx_holdfast`.
pub fn is_understood(contender: &Contender) -> bool {
    let program = contender.command.first().map(std::path::Path::new);
    program.and_then(|p| p.file_name()).is_some_and(|name| name == "scx_holdfast")
}

/// A group of counters: a title for readers, and the name of each. Times are shown in ms.
pub type Group = (&'static str, &'static [(&'static str, &'static str)]);

/// The counters that reports show.
pub const SHOWN: [Group; 8] = [
    (
        "grace",
        &[
            ("steps", "nr_extended"),
            ("ms", "grace_ns"),
            ("released", "nr_released"),
            ("capped", "nr_capped"),
            ("over budget", "nr_over_budget"),
            ("backed off", "nr_backed_off"),
            ("waits", "nr_waits"),
            ("nothing to protect", "nr_unprotected"),
        ],
    ),
    (
        "yields at pause exits",
        &[
            ("to a holder", "nr_pause_to_holder"),
            ("to a call pending", "nr_pause_to_call_pending"),
            ("to the candidate", "nr_pause_to_candidate"),
            ("refused", "nr_pause_refused"),
        ],
    ),
    (
        "yields after kicks",
        &[
            ("to a holder", "nr_kick_to_holder"),
            ("to a call pending", "nr_kick_to_call_pending"),
            ("to the next owner", "nr_kick_to_candidate"),
            ("refused", "nr_kick_refused"),
        ],
    ),
    (
        "yields after IPIs",
        &[
            ("to a holder", "nr_ipi_to_holder"),
            ("to a call pending", "nr_ipi_to_call_pending"),
            ("to the candidate", "nr_ipi_to_candidate"),
            ("refused", "nr_ipi_refused"),
        ],
    ),
    (
        "probes",
        &[
            ("to a holder", "nr_probe_to_holder"),
            ("to a call pending", "nr_probe_to_call_pending"),
            ("left running", "nr_probed"),
            ("missed", "nr_missed"),
        ],
    ),
    ("resumed", &[("first", "nr_resumed_first"), ("ms waited", "protected_waiting_ns")]),
    (
        "preempted",
        &[
            ("holder", "nr_preempted_holder"),
            ("irq", "nr_preempted_irq"),
            ("head", "nr_preempted_head"),
            ("waiter", "nr_preempted_waiter"),
            ("preemptible", "nr_preempted_preemptible"),
            ("unknown", "nr_preempted_unknown"),
        ],
    ),
    ("tasks", &[("preempted by a waking task", "nr_wakeup_preempt"), ("starving", "nr_starving")]),
];
