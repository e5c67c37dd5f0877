// SPDX-License-Identifier: GPL-2.0-or-later
//! Actual and fair shares of CPU time.
//!
//! Fair is *max-min fair*: CPU time is poured into all runnable threads at the same rate. A thread
//! that has all it wants gets no more, and the rest goes to the others in the same manner. The lab
//! starts everything at the same nice level, so threads have equal weights. Where children have
//! control groups, the groups share by their weights.

/// The part of a CPU that a thread wants: its use if it never had to wait for one.
///
/// It ran for `run`, was runnable without a CPU for `wait`, and slept for the rest of a window (all
/// in parts of the window). Without the waits the same running and sleeping would have taken `run +
/// sleep`. So it wants `run / (run + sleep)`: 1 for an endless loop, however little it got, and
/// little for a thread that wakes up, does little and sleeps again. (Counting waits as demand would
/// credit a thread with the length of the queue it stood in.)
pub fn demand(run: f64, wait: f64) -> f64 {
    let sleep = (1.0 - run - wait).max(0.0);
    if run > 0.0 { run / (run + sleep) } else { 0.0 }
}

/// A party to the sharing: a thread, or a control group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Party {
    /// Its weight among the others.
    pub weight: f64,
    /// CPUs that it wants.
    pub demand: f64,
}

/// The max-min fair allocation of `capacity` CPUs to parties of these weights.
///
/// No party gets more than it wants. None could get more for its weight without taking it from a
/// party that has no more for its own.
///
/// ```
/// use holdfast_testbed::share::{Party, max_min};
/// // 2 CPUs, four vCPUs and two hogs that all want a whole one: 1/3 each.
/// let thread = Party { weight: 1.0, demand: 1.0 };
/// assert!(max_min(2.0, &[thread; 6]).iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-9));
/// // One that sleeps most of the time leaves the rest to the others.
/// let shares = max_min(2.0, &[Party { demand: 0.2, ..thread }, thread, thread, thread]);
/// assert!(shares.iter().zip([0.2, 0.6, 0.6, 0.6]).all(|(a, b)| (a - b).abs() < 1e-9));
/// // A group of four vCPUs has its part even if two of them sleep.
/// let vm = Party { weight: 4.0, demand: 2.0 };
/// let shares = max_min(2.0, &[vm, thread, thread]);
/// let fair = [4.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
/// assert!(shares.iter().zip(fair).all(|(a, b)| (a - b).abs() < 1e-9));
/// ```
pub fn max_min(capacity: f64, parties: &[Party]) -> Vec<f64> {
    let wanted = |i: usize| parties[i].demand.max(0.0);
    let fill = |i: usize| wanted(i) / parties[i].weight;
    let mut order: Vec<usize> = (0..parties.len()).collect();
    order.sort_by(|&a, &b| fill(a).total_cmp(&fill(b)));
    let mut shares = vec![0.0; parties.len()];
    let mut left = capacity.max(0.0);
    let mut weights: f64 = parties.iter().map(|party| party.weight).sum();
    for i in order {
        let equal = left * parties[i].weight / weights;
        shares[i] = wanted(i).min(equal);
        left -= shares[i];
        weights -= parties[i].weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn demand_does_not_depend_on_how_long_a_thread_had_to_wait() {
        for wait in [0.0, 0.3, 0.6] {
            let awake = 1.0 - wait;
            assert!((demand(0.25 * awake, wait) - 0.25).abs() < 1e-9);
            assert!((demand(awake, wait) - 1.0).abs() < 1e-9);
        }
        assert_eq!(demand(0.0, 0.5), 0.0);
        // Counters of a window's two ends are not read at the same instant.
        assert_eq!(demand(0.4, 0.7), 1.0);
    }

    fn parties() -> impl Strategy<Value = Vec<Party>> {
        let party = (1u32..20, 0.0f64..=4.0);
        let party = party.prop_map(|(weight, demand)| Party { weight: weight.into(), demand });
        prop::collection::vec(party, 1..20)
    }

    proptest! {
        #[test]
        fn gives_nobody_more_than_they_want_and_wastes_nothing(
            capacity in 0.0f64..40.0,
            parties in parties(),
        ) {
            let shares = max_min(capacity, &parties);
            for (share, party) in shares.iter().zip(&parties) {
                prop_assert!(*share <= party.demand + 1e-9);
            }
            let given: f64 = shares.iter().sum();
            let possible = parties.iter().map(|party| party.demand).sum::<f64>().min(capacity);
            prop_assert!((given - possible).abs() < 1e-6, "{given} of {possible}");
        }

        #[test]
        fn a_party_that_wants_more_has_no_less_for_its_weight_than_any_other(
            capacity in 0.0f64..40.0,
            parties in parties(),
        ) {
            let shares = max_min(capacity, &parties);
            let for_its_weight = |i: usize| shares[i] / parties[i].weight;
            let largest = (0..parties.len()).map(for_its_weight).fold(0.0, f64::max);
            for (i, party) in parties.iter().enumerate() {
                let is_sated = shares[i] >= party.demand - 1e-9;
                prop_assert!(is_sated || for_its_weight(i) >= largest - 1e-9);
            }
        }
    }
}
