// SPDX-License-Identifier: GPL-2.0-or-later
//! Lock waits as text: Friebel and Biemueller's histogram, and the meaning of its modes.

use std::fmt::Write;

use super::waits::{LockWaits, Waits};
use crate::histogram::time;
use crate::output::missing;

/// Peaks further apart than this, in powers of two, have different causes.
const APART: usize = 4;
/// A wait of this order, 2^18 ns (0.26 ms), is longer than any critical section: the holder did not
/// run.
const SCHEDULING_SLOT: usize = 18;

pub(super) fn render(waits: &Waits, all: bool) -> String {
    let say = "strings take everything";
    let mut text = String::new();
    let shown = waits.locks.iter().filter(|lock| all || lock.lock == "spinlock");
    for lock in shown.filter(|lock| lock.count > 0 || lock.lock == "spinlock") {
        let per_second = lock.count as f64 / (waits.interval_ns.max(1) as f64 / 1e9);
        writeln!(
            text,
            "\n{}: {} contended waits, {per_second:.0}/s, {} in sum",
            lock.lock,
            lock.count,
            time(lock.total_ns)
        )
        .expect(say);
        if lock.count == 0 {
            continue;
        }
        text.push_str(&histogram(lock, waits.tsc_hz));
        let quantiles = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];
        // Among a few waits there is no quantile of a thousandth.
        let enough = |share: &f64| lock.count as f64 * (1.0 - share) >= 1.0;
        let quantiles =
            quantiles.iter().filter(|(share, _)| enough(share)).filter_map(|(share, name)| {
                let end_ns = (1u64 << (lock.hist.quantile_slot(*share)? + 1)) as f64;
                let cycles = waits
                    .tsc_hz
                    .map_or(String::new(), |hz| format!(" ({} cycles)", count(end_ns * hz / 1e9)));
                Some(format!("{name} {}{cycles}", lock.hist.quantile(*share)))
            });
        let quantiles = quantiles.collect::<Vec<_>>().join("  ");
        if !quantiles.is_empty() {
            writeln!(text, "{quantiles}").expect(say);
        }
        text.push_str(&modes(lock, waits));
    }
    if waits.lost_events > 0 {
        text.push_str(&missing(waits.lost_events, "wait"));
    }
    text
}

fn histogram(lock: &LockWaits, tsc_hz: Option<f64>) -> String {
    const BAR: u64 = 28;
    let mut text = format!("{:>19}   {:>13}   count\n", "time", "cycles");
    let most = lock.hist.0.iter().copied().max().unwrap_or(0).max(1);
    let first = lock.hist.0.iter().position(|n| *n > 0).unwrap_or(0);
    let last = lock.hist.0.iter().rposition(|n| *n > 0).unwrap_or(0);
    for slot in first..=last {
        let (from, to) = (if slot == 0 { 0 } else { 1u64 << slot }, 1u64 << (slot + 1));
        let cycles = tsc_hz.map_or("-".into(), |hz| {
            let of = |ns: u64| count(ns as f64 * hz / 1e9);
            format!("{} -> {}", of(from), of(to))
        });
        let n = lock.hist.0[slot];
        // A few waits that are a thousand times as long as the others must stay visible.
        let bar = "*".repeat((n * BAR / most).max(u64::from(n > 0)) as usize);
        let range = format!("{} -> {}", time(from), time(to));
        writeln!(text, "{range:>19} : {cycles:>13} : {n:<9}|{bar:<28}|")
            .expect("strings take everything");
    }
    text
}

/// Names each mode, and the cause of the second one.
fn modes(lock: &LockWaits, waits: &Waits) -> String {
    let modes = lock.hist.modes();
    let (Some(&first), Some(&last)) = (modes.first(), modes.last()) else { return String::new() };
    let around = |slot: usize| {
        let ns = (1u64 << slot) as f64 * 1.5;
        let cycles =
            waits.tsc_hz.map_or(String::new(), |hz| format!(", {} cycles", count(ns * hz / 1e9)));
        format!("{}{cycles}", time(ns as u64))
    };
    let mut text = format!("first mode: around {}\n", around(first));
    if last >= first + APART && last >= SCHEDULING_SLOT {
        // All waits from the valley before the second mode on.
        let foot = (first..last).min_by_key(|slot| lock.hist.0[*slot]).unwrap_or(last);
        let beyond: u64 = lock.hist.0[foot..].iter().sum();
        let share = beyond as f64 / lock.count as f64 * 100.0;
        // The position of a wait in its slot is not known; on average it is the middle.
        let waited = |from: usize| {
            let slots = lock.hist.0.iter().enumerate().skip(from);
            slots.map(|(slot, n)| *n as f64 * (1u64 << slot) as f64).sum::<f64>()
        };
        let of_time = waited(foot) / waited(0) * 100.0;
        let cause = if waits.guest {
            "no critical section is that\n  long: the hypervisor took the CPU from a vCPU that \
             held the lock\n  (lock-holder preemption)"
        } else {
            "no critical section is that\n  long: the holder was interrupted, or its CPU stopped"
        };
        text.push_str(&format!(
            "second mode: around {}, {share:.2} % of waits\n  and some {of_time:.0} % of the time \
             waited; {cause}\n",
            around(last)
        ));
    } else {
        writeln!(
            text,
            "no second mode in {} waits: no wait is as long as a preemption",
            lock.count
        )
        .expect("strings take everything");
    }
    text
}

/// A count in at most five characters.
fn count(n: f64) -> String {
    match n {
        ..1000.0 => format!("{n:.0}"),
        ..9_950.0 => format!("{:.1}K", n / 1e3),
        ..999_500.0 => format!("{:.0}K", n / 1e3),
        ..9_950_000.0 => format!("{:.1}M", n / 1e6),
        ..999_500_000.0 => format!("{:.0}M", n / 1e6),
        ..9_950_000_000.0 => format!("{:.1}G", n / 1e9),
        _ => format!("{:.0}G", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    fn waits(counts: &[(usize, u64)], guest: bool) -> Waits {
        let mut hist = Histogram::default();
        for (slot, n) in counts {
            hist.0[*slot] = *n;
        }
        let lock =
            LockWaits { lock: "spinlock".into(), count: hist.count(), total_ns: 1_000_000, hist };
        Waits {
            schema: crate::spins::waits::SPINS.into(),
            t_ns: 1,
            interval_ns: 1_000_000_000,
            guest,
            tsc_hz: Some(2.5e9),
            lost_events: 0,
            locks: vec![lock],
        }
    }

    #[test]
    fn names_the_second_mode_of_an_overcommitted_guest() {
        let shape = [(9, 900), (10, 2000), (11, 400), (12, 3), (21, 30), (22, 60), (23, 9)];
        let text = render(&waits(&shape, true), false);
        assert!(text.contains("first mode: around 1.5us, 3.8K cycles"), "{text}");
        assert!(text.contains("second mode: around 6.3ms, 16M cycles, 2.9"), "{text}");
        assert!(text.contains(" % of waits\n  and some 99 % of the time waited;"), "{text}");
        assert!(text.contains(": 9        |*   "), "a few long waits are visible: {text}");
        assert!(text.contains("lock-holder preemption"), "{text}");
        assert!(!render(&waits(&shape, false), false).contains("hypervisor"));
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }

    #[test]
    fn names_no_second_mode_without_one() {
        // Two peaks, but both have the length of critical sections.
        for shape in [&[(9, 900), (10, 2000), (11, 400)][..], &[(6, 900), (8, 10), (12, 2000)]] {
            let text = render(&waits(shape, true), false);
            assert!(text.contains("no second mode"), "{text}");
        }
        assert!(render(&waits(&[], true), false).contains("0 contended waits"));
    }
}
