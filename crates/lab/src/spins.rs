// SPDX-License-Identifier: GPL-2.0-or-later
//! Waits for spinlocks as a guest times them itself: the output of `holdfast spins --json`
//! there.

use holdfast_observer::{SPINS, Waits};
use serde::{Deserialize, Serialize};

/// A wait of at least 2^20 ns (1 ms) is longer than any critical section: the holder did not run.
const LONG_SLOT: usize = 20;

/// Waits for contended spinlocks within a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpinWaits {
    /// Time covered: the whole intervals of `holdfast spins` that lie within the window, ns.
    pub interval_ns: u64,
    /// Sum of all waits, ns of wall-clock time.
    pub total_ns: u64,
    /// `[i]` counts waits of [2^i, 2^(i+1)) ns.
    pub hist: Vec<u64>,
}

impl SpinWaits {
    /// Sums the waits that `printed` reports from `from_ns` to `to_ns` of the guest's clock. None
    /// if it reports none for that time, or if waits were lost.
    pub fn within(printed: &str, from_ns: u64, to_ns: u64) -> Option<SpinWaits> {
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Waits>(line).ok());
        let inside = lines.filter(|line| {
            line.schema == SPINS
                && line.t_ns <= to_ns
                && line.t_ns.saturating_sub(line.interval_ns) >= from_ns
        });
        let mut sum = SpinWaits::default();
        for line in inside {
            let lock = line.locks.into_iter().find(|l| l.lock == "spinlock")?;
            if line.lost_events > 0 {
                return None;
            }
            // A guest may print any numbers.
            sum.interval_ns = sum.interval_ns.saturating_add(line.interval_ns);
            sum.total_ns = sum.total_ns.saturating_add(lock.total_ns);
            let slots = &lock.hist.0[..lock.hist.used()];
            sum.hist.resize(sum.hist.len().max(slots.len()), 0);
            let both = sum.hist.iter_mut().zip(slots);
            both.for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        (sum.interval_ns > 0).then_some(sum)
    }

    /// Waits that only a preempted vCPU explains.
    pub fn long(&self) -> u64 {
        self.hist.iter().skip(LONG_SLOT).fold(0, |sum, n| sum.saturating_add(*n))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(t_ns: u64, lost: u64) -> String {
        let mut hist = vec![0; 23];
        (hist[10], hist[22]) = (100, 3);
        json!({"schema": "holdfast.spins/1", "t_ns": t_ns, "interval_ns": 250, "guest": true,
               "lost_events": lost, "locks": [
                   {"lock": "mutex", "count": 9, "total_ns": 99, "hist": [9]},
                   {"lock": "spinlock", "count": 103, "total_ns": 40, "hist": hist}]})
        .to_string()
    }

    #[test]
    fn counts_whole_intervals_of_the_window_only() {
        let printed = [line(1000, 0), line(1250, 0), line(1500, 0), line(1750, 0)].join("\n");
        let waits = SpinWaits::within(&printed, 1000, 1600).unwrap();
        assert_eq!((waits.interval_ns, waits.total_ns), (500, 80));
        assert_eq!((waits.hist[10], waits.long()), (200, 6));
        // The beginning of a line may have been overwritten.
        assert_eq!(SpinWaits::within(&printed[7..], 1000, 1600), Some(waits));
    }

    #[test]
    fn says_nothing_rather_than_too_little() {
        assert_eq!(SpinWaits::within("", 0, 9999), None);
        assert_eq!(SpinWaits::within(&line(1000, 0), 2000, 3000), None);
        let lossy = [line(1000, 0), line(1250, 2)].join("\n");
        assert_eq!(SpinWaits::within(&lossy, 0, 2000), None);
    }
}
