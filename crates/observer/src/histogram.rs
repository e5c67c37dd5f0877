// SPDX-License-Identifier: GPL-2.0-or-later
//! Histograms of times, in powers of two.

use std::fmt::Write;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of slots; `HF_NR_SLOTS` of `observe.h`.
pub const NR_SLOTS: usize = 32;

/// Slot `i` counts times of [2^i, 2^(i+1)) ns. Slot 0 also counts 0 ns, and the last slot all
/// longer times. In JSON it is an array of the slots without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram(pub [u64; NR_SLOTS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; NR_SLOTS])
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0[..self.used()])
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slots = Vec::<u64>::deserialize(deserializer)?;
        let mut histogram = Self::default();
        let used = histogram.0.get_mut(..slots.len());
        used.ok_or_else(|| D::Error::custom("a histogram of too many slots"))?
            .copy_from_slice(&slots);
        Ok(histogram)
    }
}

impl Histogram {
    /// Slots up to the last one that is not empty.
    pub fn used(&self) -> usize {
        self.0.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1)
    }

    /// Number of times counted.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Counts a time.
    pub fn add_ns(&mut self, ns: u64) {
        self.0[(ns.max(1).ilog2() as usize).min(NR_SLOTS - 1)] += 1;
    }

    /// Slot by slot.
    pub(crate) fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// The slot of this quantile. None if there are no times.
    pub(crate) fn quantile_slot(&self, share: f64) -> Option<usize> {
        let wanted = self.count() as f64 * share;
        let mut below = 0;
        self.0.iter().position(|&count| {
            below += count;
            count > 0 && below as f64 >= wanted
        })
    }

    /// Upper bound of this quantile in ns: the end of its slot. The last slot has none.
    pub(crate) fn quantile_bound_ns(&self, share: f64) -> Option<f64> {
        let is_last = |slot| slot == NR_SLOTS - 1;
        let end = |slot| if is_last(slot) { f64::INFINITY } else { (1u64 << (slot + 1)) as f64 };
        self.quantile_slot(share).map(end)
    }

    /// Upper bound of this quantile: the end of its slot, because the position within the slot is
    /// not known. At most seven characters.
    pub(crate) fn quantile(&self, share: f64) -> String {
        self.quantile_slot(share).map_or_else(|| "-".into(), Self::bound)
    }

    /// Upper bound of the times of a slot.
    pub(crate) fn bound(slot: usize) -> String {
        match slot {
            // The last slot also counts all longer times.
            slot if slot == NR_SLOTS - 1 => format!(">{}", time(1 << slot)),
            slot => format!("<{}", time(1 << (slot + 1))),
        }
    }

    /// A histogram in the form of bcc, at most 78 columns wide.
    pub fn render(&self) -> String {
        const BAR: u64 = 40;
        let mut text = format!("{:>20} {:<10} distribution\n", "time", ": count");
        let most = self.0.iter().copied().max().unwrap_or(0).max(1);
        let first = self.0.iter().position(|count| *count != 0).unwrap_or(0);
        for (i, &count) in self.0[..self.used()].iter().enumerate().skip(first) {
            let from = if i == 0 { 0 } else { 1u64 << i };
            let to = 1u64 << (i + 1);
            let bar = "*".repeat((count * BAR / most) as usize);
            let range = format!("{} -> {}", time(from), time(to));
            writeln!(text, "{range:>20} : {count:<8} |{bar:<40}|")
                .expect("strings take everything");
        }
        text
    }

    /// Peaks, from short to long times: the top slots of the groups that valleys of less than half
    /// their height separate.
    pub fn modes(&self) -> Vec<usize> {
        let total = self.count();
        // A peak of less than a hundredth of a percent, or of fewer than three times, may be
        // chance.
        let least = (total / 10_000).max(3);
        let mut peaks: Vec<usize> = Vec::new();
        let mut valley = u64::MAX;
        for i in 0..self.used() {
            let count = self.0[i];
            valley = valley.min(count);
            match peaks.last_mut() {
                _ if count < least => {}
                None => {
                    peaks.push(i);
                    valley = count;
                }
                // This slot belongs to the same group.
                Some(peak) if valley * 2 >= self.0[*peak] || valley * 2 >= count => {
                    if count > self.0[*peak] {
                        *peak = i;
                        valley = count;
                    }
                }
                Some(_) => {
                    peaks.push(i);
                    valley = count;
                }
            }
        }
        peaks
    }
}

/// A time in at most six characters.
pub fn time(ns: u64) -> String {
    let of = |unit: f64, name: &str| {
        let n = ns as f64 / unit;
        if n < 9.95 { format!("{n:.1}{name}") } else { format!("{n:.0}{name}") }
    };
    match ns {
        0..1000 => format!("{ns}ns"),
        1000..999_500 => of(1e3, "us"),
        999_500..999_500_000 => of(1e6, "ms"),
        _ => of(1e9, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[(usize, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        for (slot, count) in counts {
            histogram.0[*slot] = *count;
        }
        histogram
    }

    #[test]
    fn counts_a_time_in_its_slot() {
        let mut histogram = Histogram::default();
        for ns in [0, 1, 2, 3, 1024, u64::MAX] {
            histogram.add_ns(ns);
        }
        assert_eq!(histogram, of(&[(0, 2), (1, 2), (10, 1), (NR_SLOTS - 1, 1)]));
    }

    #[test]
    fn a_quantile_is_the_end_of_a_slot() {
        let histogram = of(&[(10, 50), (20, 50)]);
        assert_eq!(histogram.quantile(0.5), "<2.0us");
        assert_eq!(histogram.quantile(0.99), "<2.1ms");
        assert_eq!(of(&[(NR_SLOTS - 1, 1)]).quantile(0.5), ">2.1s");
        assert_eq!(Histogram::default().quantile(0.5), "-");
    }

    #[test]
    fn a_second_mode_is_found_and_noise_is_not() {
        let overcommitted =
            of(&[(8, 900), (9, 2000), (10, 700), (11, 30), (21, 40), (22, 90), (23, 20)]);
        assert_eq!(overcommitted.modes(), [9, 22]);
        let alone = of(&[(8, 900), (9, 2000), (10, 700), (11, 30), (12, 1), (20, 1)]);
        assert_eq!(alone.modes(), [9]);
        assert!(Histogram::default().modes().is_empty());
    }

    #[test]
    fn fits_a_terminal_and_has_no_trailing_zeros_in_json() {
        let histogram = of(&[(0, 1), (31, u64::from(u32::MAX))]);
        for line in histogram.render().lines() {
            assert!(line.len() < 80, "{line}");
        }
        assert_eq!(serde_json::to_string(&of(&[(2, 7)])).unwrap(), "[0,0,7]");
    }

    #[test]
    fn times_are_short() {
        for (ns, text) in [
            (12, "12ns"),
            (1500, "1.5us"),
            (999_600, "1.0ms"),
            (4_200_000, "4.2ms"),
            (3_000_000_000, "3.0s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
