// SPDX-License-Identifier: GPL-2.0-or-later

use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

const QUICK: Settings = Settings { seed: 1, resamples: 1000, confidence: 0.95 };

fn rounds(pairs: &[(f64, f64)]) -> Vec<Round> {
    pairs.iter().map(|&(contender, baseline)| Round { contender, baseline }).collect()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn some_rounds() -> impl Strategy<Value = Vec<Round>> {
    let value = 1.0f64..1000.0;
    let round = (value.clone(), value).prop_map(|(c, b)| Round { contender: c, baseline: b });
    prop::collection::vec(round, 2..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_unit_does_not_matter(data in some_rounds(), unit in 1e-3f64..1e6) {
        let scaled: Vec<Round> = data
            .iter()
            .map(|r| Round { contender: r.contender * unit, baseline: r.baseline * unit })
            .collect();
        let (a, b) = (compare(&data, &QUICK).unwrap(), compare(&scaled, &QUICK).unwrap());
        prop_assert!(near(a.ratio, b.ratio) && near(a.low, b.low) && a.p == b.p);
        prop_assert!(near(a.high.unwrap(), b.high.unwrap()));
    }

    #[test]
    fn a_faster_contender_moves_everything_along(data in some_rounds(), factor in 0.1f64..10.0) {
        let faster: Vec<Round> =
            data.iter().map(|r| Round { contender: r.contender * factor, ..*r }).collect();
        let (a, b) = (compare(&data, &QUICK).unwrap(), compare(&faster, &QUICK).unwrap());
        prop_assert!(near(a.ratio * factor, b.ratio) && near(a.low * factor, b.low));
        prop_assert!(near(a.high.unwrap() * factor, b.high.unwrap()));
    }

    #[test]
    fn identical_data_show_no_difference(data in some_rounds()) {
        let same: Vec<Round> =
            data.iter().map(|r| Round { contender: r.baseline, baseline: r.baseline }).collect();
        let e = compare(&same, &QUICK).unwrap();
        prop_assert_eq!((e.ratio, e.low, e.high, e.p), (1.0, 1.0, Some(1.0), 1.0));
        prop_assert!(!is_significant(e.low, e.high, e.p));
    }

    #[test]
    fn swapping_the_contenders_gives_the_reciprocal(data in some_rounds()) {
        let swapped: Vec<Round> = data
            .iter()
            .map(|r| Round { contender: r.baseline, baseline: r.contender })
            .collect();
        let (a, b) = (compare(&data, &QUICK).unwrap(), compare(&swapped, &QUICK).unwrap());
        prop_assert!(near(a.ratio, 1.0 / b.ratio));
        prop_assert!(near(a.low, 1.0 / b.high.unwrap()));
        prop_assert!(near(a.high.unwrap(), 1.0 / b.low));
        // Sampled relabellings (more than 14 rounds) are mirror images, too.
        prop_assert_eq!(a.p, b.p);
    }

    #[test]
    fn the_ratio_lies_within_its_interval(data in some_rounds()) {
        let e = compare(&data, &QUICK).unwrap();
        prop_assert!(e.low <= e.ratio && e.ratio <= e.high.unwrap(), "{e:?}");
        prop_assert!(e.p > 0.0 && e.p <= 1.0);
    }
}

#[test]
fn six_clear_rounds_are_significant_and_five_are_not() {
    let clear = rounds(&[(13.0, 10.0), (13.1, 10.1), (12.9, 9.9), (13.2, 10.0), (13.0, 10.2)]);
    let five = compare(&clear, &QUICK).unwrap();
    assert_eq!(five.p, 2.0 / 32.0);
    assert!(five.low > 1.2 && !is_significant(five.low, five.high, five.p));
    let more = [clear, rounds(&[(12.8, 10.0)])].concat();
    assert_eq!(more.len(), MIN_ROUNDS as usize);
    let six = compare(&more, &QUICK).unwrap();
    assert_eq!(six.p, 2.0 / 64.0);
    assert!(is_significant(six.low, six.high, six.p), "{six:?}");
}

#[test]
fn no_ratio_is_made_up() {
    assert_eq!(compare(&rounds(&[(1.0, 2.0)]), &QUICK), None);
    assert_eq!(compare(&rounds(&[(1.0, 0.0), (2.0, 0.0)]), &QUICK), None);
    assert_eq!(compare(&rounds(&[(0.0, 0.0), (0.0, 0.0)]), &QUICK), None);
    assert_eq!(compare(&rounds(&[(f64::NAN, 1.0), (1.0, 1.0)]), &QUICK), None);
    assert_eq!(compare(&rounds(&[(-1.0, 1.0), (1.0, 1.0)]), &QUICK), None);
}

#[test]
fn a_baseline_that_is_mostly_zero_bounds_nothing_above() {
    let e = compare(&rounds(&[(1.0, 0.0), (1.0, 0.0), (1.0, 2.0), (1.0, 0.0)]), &QUICK).unwrap();
    assert_eq!(e.high, None);
    let none_left = compare(&rounds(&[(0.0, 1.0), (0.0, 2.0)]), &QUICK).unwrap();
    assert_eq!((none_left.ratio, none_left.low, none_left.high), (0.0, 0.0, Some(0.0)));
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let data = rounds(&[(3.0, 2.0), (4.0, 5.0), (6.0, 3.0), (2.0, 2.0), (9.0, 7.0)]);
    let first = compare(&data, &Settings::default());
    assert_eq!(first, compare(&data, &Settings::default()));
    let pinned = first.unwrap();
    // Pinned so that a new release of a crate cannot change published figures unnoticed.
    assert!(near(pinned.low, 9.0 / 11.0) && near(pinned.high.unwrap(), 27.0 / 14.0), "{pinned:?}");
    assert_eq!(pinned.p, 0.375);
}

/// Approximately normal, mean 0 and variance 1 (Irwin-Hall).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

/// Windows as usual here: 10 % noise, and a drift of the machine common to a round.
fn simulate(rng: &mut ChaCha8Rng, nr_rounds: usize, ratio: f64) -> Vec<Round> {
    let mut drift = 0.0;
    (0..nr_rounds)
        .map(|_| {
            drift += 0.1 * normal(rng);
            let mut draw = |mean: f64| mean * f64::exp(drift + 0.1 * normal(rng));
            Round { contender: draw(1000.0 * ratio), baseline: draw(1000.0) }
        })
        .collect()
}

#[test]
fn the_interval_covers_the_true_ratio() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (nr_rounds, ratio) in
        [(2, 1.25), (3, 0.5), (4, 1.7), (5, 1.0), (6, 1.25), (8, 0.5), (12, 1.7), (20, 1.25)]
    {
        let nr_runs = 400;
        let settings = Settings { resamples: 1000, ..QUICK };
        let nr_covered = (0..nr_runs)
            .filter(|_| {
                let seed = rng.next_u64();
                let data = simulate(&mut rng, nr_rounds, ratio);
                let e = compare(&data, &Settings { seed, ..settings }).unwrap();
                e.low <= ratio && ratio <= e.high.unwrap()
            })
            .count();
        let covered = nr_covered as f64 / f64::from(nr_runs);
        println!("{nr_rounds} rounds, true ratio {ratio}: covered {covered:.3}");
        // Three standard errors above 95 % would be an interval too wide to be of use.
        assert!((0.90..=0.99).contains(&covered), "{nr_rounds} rounds: {covered}");
    }
}

#[test]
fn the_interval_of_a_mean_is_students() {
    // t of 5 degrees of freedom at 0.975 is 2.5706; the standard error is 1.8708 / sqrt(6).
    let (low, high) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95).unwrap();
    assert!((low - (3.5 - 1.9633)).abs() < 1e-4 && (high - (3.5 + 1.9633)).abs() < 1e-4);
    assert_eq!(mean_interval(&[2.0, 2.0], 0.95), Some((2.0, 2.0)));
    assert_eq!(mean_interval(&[2.0], 0.95), None);
}

/// Where nothing differs, a direction is no surer than it may be: 90 % sure in a tenth of the runs.
#[test]
fn a_direction_is_as_sure_as_it_is_often_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    for nr_rounds in [2, 4, 6, 12] {
        let nr_runs = 1000;
        let settings = Settings { resamples: 1000, ..QUICK };
        let nr_sure = (0..nr_runs)
            .filter(|_| {
                let e = compare(&simulate(&mut rng, nr_rounds, 1.0), &settings).unwrap();
                let above = e.likely_above_1().unwrap();
                !(0.05..=0.95).contains(&above)
            })
            .count();
        let sure = nr_sure as f64 / f64::from(nr_runs);
        println!("{nr_rounds} rounds: {sure:.3}");
        // Three standard errors around 10 %.
        assert!((0.06..=0.14).contains(&sure), "{nr_rounds} rounds: {sure}");
    }
}

#[test]
fn finds_a_difference_as_rarely_as_promised_where_there_is_none() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for nr_rounds in [6, 8, 16] {
        let nr_runs = 400;
        let nr_found = (0..nr_runs)
            .filter(|_| {
                let e = compare(&simulate(&mut rng, nr_rounds, 1.0), &QUICK).unwrap();
                is_significant(e.low, e.high, e.p)
            })
            .count();
        assert!(nr_found as f64 <= 0.07 * f64::from(nr_runs), "{nr_rounds}: {nr_found}");
    }
}

#[test]
fn finds_a_quarter_more_work_in_six_rounds() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let nr_found = (0..200)
        .filter(|_| {
            let e = compare(&simulate(&mut rng, 6, 1.4), &QUICK).unwrap();
            is_significant(e.low, e.high, e.p)
        })
        .count();
    assert!(nr_found > 150, "{nr_found} of 200");
}
