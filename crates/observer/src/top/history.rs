// SPDX-License-Identifier: GPL-2.0-or-later
//! What VMs lost in the intervals of the last minutes.

use std::collections::{HashMap, VecDeque};

use super::columns::Row;
use crate::sample::Sample;

/// Intervals that are kept: more than a screen has columns.
const LENGTH: usize = 500;

/// One interval of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    /// Its end, ns since 1970.
    t_ns: u64,
    lost_ns: Option<u64>,
}

/// The intervals of each VM, by its process.
#[derive(Debug, Default)]
pub(super) struct History {
    vms: HashMap<u32, VecDeque<Point>>,
}

impl History {
    /// Takes the counters of an interval. VMs that are in neither this nor the sample shown are
    /// forgotten.
    pub(super) fn take(&mut self, interval: &Sample, shown: Option<&Sample>) {
        for vm in &interval.vms {
            let lost_ns = Row::of_vm(vm, interval.seconds()).lost_ns().map(|ns| ns as u64);
            let points = self.vms.entry(vm.pid).or_default();
            points.push_back(Point { t_ns: interval.t_ns, lost_ns });
            points.drain(..points.len().saturating_sub(LENGTH));
        }
        let vms = || interval.vms.iter().chain(shown.iter().flat_map(|sample| &sample.vms));
        self.vms.retain(|pid, _| vms().any(|vm| vm.pid == *pid));
    }

    /// Time lost per second in each interval up to this time, ns, the latest first. None where it
    /// is not known.
    pub(super) fn lost(&self, pid: u32, until_ns: u64) -> impl Iterator<Item = Option<u64>> {
        let points = self.vms.get(&pid).into_iter().flatten().rev();
        points.skip_while(move |point| point.t_ns > until_ns).map(|point| point.lost_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::sample;

    fn interval(second: u64, pid: u32, holders: u64) -> Sample {
        Sample { interval_ns: 1_000_000_000, ..sample(second * 1_000_000_000, pid, holders) }
    }

    #[test]
    fn the_latest_interval_comes_first_and_later_ones_are_left_out() {
        let mut history = History::default();
        for second in 1..=3 {
            history.take(&interval(second, 7, second), None);
        }
        let mut unreadable = interval(4, 7, 9);
        unreadable.vms[0].vcpus[0].readable = false;
        history.take(&unreadable, None);
        let lost = |until| history.lost(7, until).collect::<Vec<_>>();
        assert_eq!(lost(u64::MAX), [None, Some(3 << 20), Some(2 << 20), Some(1 << 20)]);
        assert_eq!(lost(2_500_000_000), [Some(2 << 20), Some(1 << 20)]);
        assert_eq!(history.lost(8, u64::MAX).count(), 0);
    }

    #[test]
    fn length_is_bounded_and_vms_that_nobody_sees_are_forgotten() {
        let mut history = History::default();
        for second in 0..=LENGTH as u64 {
            history.take(&interval(second, 7, second), None);
        }
        assert_eq!(history.lost(7, u64::MAX).count(), LENGTH);
        let shown = interval(0, 7, 0);
        history.take(&interval(999, 8, 1), Some(&shown));
        assert_eq!(history.lost(7, u64::MAX).count(), LENGTH, "it is still shown");
        history.take(&interval(1000, 8, 1), None);
        assert_eq!(history.lost(7, u64::MAX).count(), 0);
    }
}
