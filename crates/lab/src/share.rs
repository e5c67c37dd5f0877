// SPDX-License-Identifier: GPL-2.0-or-later
//! Whose CPU time was whose, and whose it should have been.
//!
//! Fair is *max-min fair*: CPU time is poured into all runnable threads at the same rate until one has
//! all it wants; what is left goes to the others in the same manner. Weights are equal: the lab
//! starts everything at the same nice level.

/// The part of a CPU that a thread wants: what it would use if it never had to wait for one.
///
/// It ran for `run`, was runnable without a CPU for `wait`, and slept for the rest of a window (all
/// in parts of the window). Without the waits the same running and sleeping would have taken
/// `run + sleep`, so it wants `run / (run + sleep)`: 1 for an endless loop, however little it got, and
/// little for a thread that wakes up, does little and sleeps again, however long it waited each
/// time. (Counting waits as demand would credit a thread with the length of the queue it stood in.)
pub fn demand(run: f64, wait: f64) -> f64 {
    let sleep = (1.0 - run - wait).max(0.0);
    if run > 0.0 { run / (run + sleep) } else { 0.0 }
}

/// The max-min fair allocation of `capacity` CPUs to threads that want `demands` CPUs each.
///
/// No thread gets more than it wants, none more than one CPU, and none could have more without
/// taking it from one that has no more than itself.
///
/// ```
/// use holdfast_lab::share::max_min;
/// // 2 CPUs, four vCPUs and two hogs that all want a whole one: 1/3 each.
/// assert!(max_min(2.0, &[1.0; 6]).iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-9));
/// // One that sleeps most of the time leaves the rest to the others.
/// let shares = max_min(2.0, &[0.2, 1.0, 1.0, 1.0]);
/// assert!(shares.iter().zip([0.2, 0.6, 0.6, 0.6]).all(|(a, b)| (a - b).abs() < 1e-9));
/// ```
pub fn max_min(capacity: f64, demands: &[f64]) -> Vec<f64> {
    let wanted = |i: usize| demands[i].clamp(0.0, 1.0);
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|&a, &b| wanted(a).total_cmp(&wanted(b)));
    let mut shares = vec![0.0; demands.len()];
    let mut left = capacity.max(0.0);
    for (nr_served, &i) in order.iter().enumerate() {
        let equal = left / (demands.len() - nr_served) as f64;
        shares[i] = wanted(i).min(equal);
        left -= shares[i];
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
        // Counters of a window's two ends are not read at one instant.
        assert_eq!(demand(0.4, 0.7), 1.0);
    }

    proptest! {
        #[test]
        fn gives_nobody_more_than_they_want_and_wastes_nothing(
            capacity in 0.0f64..8.0,
            demands in prop::collection::vec(0.0f64..=1.0, 1..20),
        ) {
            let shares = max_min(capacity, &demands);
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(*share <= demand + 1e-9);
            }
            let given: f64 = shares.iter().sum();
            let possible = demands.iter().sum::<f64>().min(capacity);
            prop_assert!((given - possible).abs() < 1e-6, "{given} of {possible}");
        }

        #[test]
        fn whoever_is_short_has_no_less_than_anybody_else(
            capacity in 0.0f64..8.0,
            demands in prop::collection::vec(0.0f64..=1.0, 1..20),
        ) {
            let shares = max_min(capacity, &demands);
            let largest = shares.iter().copied().fold(0.0, f64::max);
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(*share >= demand - 1e-9 || *share >= largest - 1e-9);
            }
        }
    }
}
