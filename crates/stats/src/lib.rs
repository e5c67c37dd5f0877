// SPDX-License-Identifier: GPL-2.0-or-later
//! Is one contender better than another, by how much, and how sure is that?
//!
//! On a shared machine a rate drifts by 30 % over minutes, so contenders alternate in short windows
//! and only windows of the same *round*, which are neighbours in time, are compared. The estimate
//! is the ratio of the means over rounds; its interval comes from resampling whole rounds
//! ([`bootstrap`]), its p-value from swapping contenders within rounds ([`permutation`]). Both keep
//! the drift, which is common to a round, out of the result, and assume no distribution.
//!
//! Everything is a function of the data and the seed: the same result file gives the same figures
//! on every machine.

pub mod bootstrap;
pub mod change;
pub mod permutation;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

pub use change::{Change, MIN_WINDOWS, Verdict, change};

/// How comparisons are made; part of a result, so that anybody can repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Seed of the generator (ChaCha8, which is the same everywhere).
    pub seed: u64,
    /// Resamples of the bootstrap, and of the permutation test where it is not exact.
    pub resamples: u32,
    /// Coverage the interval aims at.
    pub confidence: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { seed: 0x686f_6c64, resamples: 10_000, confidence: 0.95 }
    }
}

impl Settings {
    fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }
}

/// Values of one metric in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// The contender's.
    pub contender: f64,
    /// The baseline's.
    pub baseline: f64,
}

/// How a contender compares with the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean of the contender over mean of the baseline.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval; none if the data do not bound it (a baseline that is mostly
    /// zero).
    pub high: Option<f64>,
    /// Probability of a ratio at least this far from 1, either way, if the two do not differ.
    pub p: f64,
    /// Rounds it is made of.
    pub rounds: u32,
    /// Coverage the interval aims at.
    pub confidence: f64,
}

impl Estimate {
    /// Whether it shows a difference.
    pub fn is_significant(&self) -> bool {
        is_significant(self.low, self.high, self.p)
    }

    /// How likely the true ratio is above 1: Student's distribution of the ratio's logarithm, as
    /// wide as the interval. None if the interval has no logarithms or no width around 1.
    pub fn likely_above_1(&self) -> Option<f64> {
        let (low, high) = (self.low.ln(), self.high?.ln());
        let student = students(self.rounds)?;
        let error = (high - low) / 2.0 / student.inverse_cdf(0.5 + self.confidence / 2.0);
        let distance = (low + high) / 2.0 / error;
        // Rounds that are all alike leave no doubt, unless they are alike in that nothing differs.
        (!distance.is_nan()).then(|| student.cdf(distance.clamp(-1e9, 1e9)))
    }
}

/// Student's distribution of the mean of `n` values; none of fewer than two.
fn students(n: u32) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, f64::from(n.checked_sub(1)?)).ok()
}

/// Level at which a difference counts as one.
pub const SIGNIFICANCE: f64 = 0.05;

/// Rounds below which no difference can be significant: 2 of 2^5 labellings are more than 5 %.
pub const MIN_ROUNDS: u32 = 6;

/// Where rounds are too few for a difference: how sure a direction has to be to be one.
pub const LIKELY: f64 = 0.75;

/// Whether an interval and a p-value together show a difference.
pub fn is_significant(low: f64, high: Option<f64>, p: f64) -> bool {
    p < SIGNIFICANCE && (low > 1.0 || high.is_some_and(|high| high < 1.0))
}

/// Compares two contenders; none if there are fewer than two rounds, or no ratio because the
/// baseline is zero throughout or a value is negative or not finite.
pub fn compare(rounds: &[Round], settings: &Settings) -> Option<Estimate> {
    let fits = |v: f64| v.is_finite() && v >= 0.0;
    if rounds.len() < 2 || !rounds.iter().all(|r| fits(r.contender) && fits(r.baseline)) {
        return None;
    }
    let ratio = ratio_of_means(rounds.iter().copied())?;
    if !ratio.is_finite() {
        return None;
    }
    let (low, high) = bootstrap::interval(rounds, settings);
    let p = permutation::p_value(rounds, settings);
    Some(Estimate {
        ratio,
        low,
        high: Some(high).filter(|h| h.is_finite()),
        p,
        rounds: rounds.len() as u32,
        confidence: settings.confidence,
    })
}

/// Sum over sum, which is mean over mean; none for 0/0.
fn ratio_of_means(rounds: impl Iterator<Item = Round>) -> Option<f64> {
    let (c, b) = rounds.fold((0.0, 0.0), |(c, b), r| (c + r.contender, b + r.baseline));
    if c == 0.0 && b == 0.0 { None } else { Some(c / b) }
}

/// Arithmetic mean; none of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
}

/// Standard deviation of the population the values are drawn from; none of fewer than two.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Student's interval of the mean of the population the values are drawn from; none of fewer than
/// two.
pub fn mean_interval(values: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let student = students(values.len() as u32)?;
    let error = standard_deviation(values)? / (values.len() as f64).sqrt();
    let (middle, reach) = (mean(values)?, error * student.inverse_cdf(0.5 + confidence / 2.0));
    Some((middle - reach, middle + reach))
}

#[cfg(test)]
mod tests;
