// SPDX-License-Identifier: GPL-2.0-or-later
//! Could the difference be chance? If two contenders do not differ, swapping them within a round
//! changes nothing, so every such relabelling was as likely as the observed one.

use rand::RngExt;

use crate::{Round, Settings, ratio_of_means};

/// Up to this many rounds all relabellings are tried.
const EXACT_ROUNDS: usize = 14;

/// Part of the relabellings whose ratio is at least as far from 1 as the observed one.
///
/// Distance is `|log(ratio)|`, so that 2 and 1/2 are equally far. Exact for up to 14 rounds. Beyond
/// that relabellings are drawn, the observed one included, so that the value is never 0.
pub fn p_value(rounds: &[Round], settings: &Settings) -> f64 {
    // Relabellings that differ from the observed one only by rounding count as equal to it.
    let seen = distance(rounds.iter().copied()) * (1.0 - 1e-9);
    if rounds.len() <= EXACT_ROUNDS {
        let all = 1u64 << rounds.len();
        let far = (0..all).filter(|&labels| {
            distance(rounds.iter().enumerate().map(|(i, r)| swapped(*r, labels >> i & 1 == 1)))
                >= seen
        });
        return far.count() as f64 / all as f64;
    }
    let mut rng = settings.rng();
    let mut nr_far = 0u32;
    for _ in 0..settings.resamples {
        let labelled: Vec<Round> = rounds.iter().map(|r| swapped(*r, rng.random())).collect();
        nr_far += u32::from(distance(labelled.into_iter()) >= seen);
    }
    f64::from(nr_far + 1) / f64::from(settings.resamples + 1)
}

fn swapped(r: Round, swap: bool) -> Round {
    if swap { Round { contender: r.baseline, baseline: r.contender } } else { r }
}

fn distance(rounds: impl Iterator<Item = Round>) -> f64 {
    ratio_of_means(rounds).map_or(0.0, |ratio| ratio.ln().abs())
}
