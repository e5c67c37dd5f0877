// SPDX-License-Identifier: GPL-2.0-or-later
//! Histograms of the time that preempted vCPUs spent off the CPU.

use std::ops::Range;

use holdfast_policy::VcpuClass;

use crate::histogram::{Histogram, NR_SLOTS, time};
use crate::output::count;
use crate::sample::Counters;

/// Histograms of the off-CPU time of preempted Holders and Heads, side by side.
pub(super) struct Absences {
    holders: Histogram,
    heads: Histogram,
}

impl Absences {
    pub(super) fn of(total: &Counters) -> Self {
        Self {
            holders: total.offcpu_hist[VcpuClass::Holder],
            heads: total.offcpu_hist[VcpuClass::Head],
        }
    }

    /// From the first to the last slot that is not empty in one of them.
    pub(super) fn slots(&self) -> Range<usize> {
        let is_used = |slot: &usize| self.holders.0[*slot] + self.heads.0[*slot] > 0;
        let first = (0..NR_SLOTS).find(is_used);
        first.map_or(0..0, |first| first..(0..NR_SLOTS).rfind(is_used).map_or(first, |l| l + 1))
    }

    /// Lines that all of it takes: the counters above, a headline, and a line for each slot.
    pub(super) fn lines(&self) -> usize {
        self.slots().len().max(1) + 2
    }

    /// The histograms in this many lines below a headline. If there is no room for all slots, the
    /// shortest times share one line, because long ones matter more.
    pub(super) fn render(&self, lines: usize) -> String {
        const BAR: u64 = 19;
        let slots = self.slots();
        let first = slots.start.max(slots.end.saturating_sub(lines.max(1)));
        let both = [&self.holders, &self.heads];
        let counts = |slot: usize| {
            let from = if slot == first { slots.start } else { slot };
            both.map(|h| h.0[from..=slot].iter().fold(0, |sum: u64, n| sum.saturating_add(*n)))
        };
        let most = (first..slots.end).flat_map(counts).max().unwrap_or(1).max(1);
        let named = both.map(|h| count(h.count(), "time"));
        let mut text = format!(
            "{:>17} {:<28} {:<28}\n",
            "",
            format!("HOLDER preempted {}", named[0]),
            format!("HEAD preempted {}", named[1]),
        );
        for slot in first..slots.end {
            let from = match if slot == first { slots.start } else { slot } {
                0 => 0,
                from => 1 << from,
            };
            let range = format!("{} -> {}", time(from), time(1 << (slot + 1)));
            let part = |n: u64| {
                let bar = "*".repeat((u128::from(n) * u128::from(BAR) / u128::from(most)) as usize);
                format!("{n:<8} |{bar:<19}")
            };
            let [holders, heads] = counts(slot).map(part);
            text.push_str(&format!("{range:>16}: {holders} {heads}\n"));
        }
        text
    }
}
