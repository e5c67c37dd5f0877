// SPDX-License-Identifier: GPL-2.0-or-later
//! How a figure of one time compares with that of another time.
//!
//! Windows of the two are not neighbours, unlike those of a [`Round`](crate::Round): each time has
//! a load of its own. So both are resampled apart, and the interval says what the windows of these
//! times allow to say, not what has caused the change. Windows that follow each other are alike.
//! Resamples are therefore made of blocks of consecutive windows, in a circle (D. Politis and
//! J. Romano, "A circular block-resampling procedure for stationary data", 1992), and the interval
//! is [expanded](crate::bootstrap) as for so many blocks.

use rand::RngExt;

use crate::Settings;
use crate::bootstrap::tail;

/// Windows on each side below which there is no interval.
pub const MIN_WINDOWS: usize = 6;

/// What a change of a figure amounts to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The figure before.
    pub before: f64,
    /// The figure after.
    pub after: f64,
    /// Lower end of the interval of after / before. None if there are too few windows.
    pub low: Option<f64>,
    /// Upper end; may be infinite.
    pub high: Option<f64>,
}

/// What is known of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The figure is smaller after.
    Less,
    /// The figure is larger after.
    More,
    /// The interval includes no change, or there is none.
    Undecided,
}

impl Change {
    /// After / before; none of 0 / 0.
    pub fn ratio(&self) -> Option<f64> {
        (self.before > 0.0 || self.after > 0.0).then_some(self.after / self.before)
    }

    /// What the interval says.
    pub fn verdict(&self) -> Verdict {
        match (self.low, self.high) {
            (_, Some(high)) if high < 1.0 => Verdict::Less,
            (Some(low), _) if low > 1.0 => Verdict::More,
            _ => Verdict::Undecided,
        }
    }
}

/// The change of a figure that is made of windows. `figure` makes it of any windows, also of the
/// same several times; it is none where they have nothing to make it of. None if it is none of all
/// windows of a side.
pub fn change<W>(
    before: &[W],
    after: &[W],
    figure: impl Fn(&[&W]) -> Option<f64>,
    settings: &Settings,
) -> Option<Change> {
    let of_all = |windows: &[W]| figure(&windows.iter().collect::<Vec<_>>());
    let (was, is) = (of_all(before)?, of_all(after)?);
    let ends = interval(before, after, figure, settings);
    let (low, high) = ends.unzip();
    Some(Change { before: was, after: is, low, high })
}

fn interval<W>(
    before: &[W],
    after: &[W],
    figure: impl Fn(&[&W]) -> Option<f64>,
    settings: &Settings,
) -> Option<(f64, f64)> {
    if before.len().min(after.len()) < MIN_WINDOWS {
        return None;
    }
    let mut rng = settings.rng();
    let mut ratios = Vec::with_capacity(settings.resamples as usize);
    for _ in 0..settings.resamples {
        let [was, is] = [before, after].map(|windows| {
            let drawn = resample(windows, |len| rng.random_range(0..len));
            figure(&drawn)
        });
        // A resample without the figure says nothing.
        let (Some(was), Some(is)) = (was, is) else { continue };
        ratios.push(if was == is { 1.0 } else { is / was });
    }
    if ratios.is_empty() {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let blocks = [before, after].map(|windows| windows.len() / block_len(windows.len()));
    let share = tail(blocks[0].min(blocks[1]), settings.confidence);
    let outside = ((share * ratios.len() as f64) as usize).min((ratios.len() - 1) / 2);
    Some((ratios[outside], ratios[ratios.len() - 1 - outside]))
}

/// Windows of a block: the square root of all. Shorter ones make the interval of a load too narrow
/// that goes on as it was for several windows.
fn block_len(windows: usize) -> usize {
    (windows as f64).sqrt().round() as usize
}

/// As many windows, in blocks that begin anywhere.
fn resample<W>(windows: &[W], mut random: impl FnMut(usize) -> usize) -> Vec<&W> {
    let (len, block) = (windows.len(), block_len(windows.len()));
    let mut drawn = Vec::with_capacity(len + block);
    while drawn.len() < len {
        let first = random(len);
        drawn.extend((first..first + block).map(|at| &windows[at % len]));
    }
    drawn.truncate(len);
    drawn
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const SETTINGS: Settings = Settings { seed: 1, resamples: 1000, confidence: 0.95 };

    fn mean(windows: &[&f64]) -> Option<f64> {
        (!windows.is_empty()).then(|| windows.iter().copied().sum::<f64>() / windows.len() as f64)
    }

    fn of(before: &[f64], after: &[f64]) -> Change {
        change(before, after, mean, &SETTINGS).unwrap()
    }

    /// Values that follow each other, as those of a load do: each keeps this part of the last one.
    fn load(rng: &mut ChaCha8Rng, windows: usize, middle: f64, kept: f64) -> Vec<f64> {
        let mut away = 0.0;
        let next = |_| {
            away = kept * away + rng.random_range(-1.0..1.0);
            middle * (1.0 + away / 4.0)
        };
        (0..windows).map(next).collect()
    }

    #[test]
    fn a_large_change_is_seen_and_none_is_not() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let before = load(&mut rng, 60, 10.0, 0.3);
        let half = of(&before, &load(&mut rng, 40, 5.0, 0.3));
        assert_eq!(half.verdict(), Verdict::Less);
        let (low, high) = (half.low.unwrap(), half.high.unwrap());
        assert!(0.4 < low && low < 0.5 && 0.5 < high && high < 0.6, "{half:?}");
        let double = of(&before, &load(&mut rng, 40, 20.0, 0.3));
        assert_eq!(double.verdict(), Verdict::More);
        assert_eq!(of(&before, &before).verdict(), Verdict::Undecided);
        assert_eq!(of(&before, &before).ratio(), Some(1.0));
    }

    #[test]
    fn the_interval_has_the_true_ratio_as_often_as_it_says() {
        let quick = Settings { resamples: 400, ..SETTINGS };
        for (windows, kept) in [(12, 0.0), (60, 0.0), (60, 0.4)] {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            let mut within = 0;
            for _ in 0..400 {
                let before = load(&mut rng, windows, 10.0, kept);
                let after = load(&mut rng, windows, 7.0, kept);
                let change = change(&before, &after, mean, &quick).unwrap();
                let (low, high) = (change.low.unwrap(), change.high.unwrap());
                within += u32::from(low <= 0.7 && 0.7 <= high);
            }
            // 95 % of 400, less what chance and the likeness of neighbours take.
            assert!((364..=398).contains(&within), "{within} of 400, {windows} windows, {kept}");
        }
    }

    #[test]
    fn one_event_decides_nothing() {
        let mut one = [0.0; 60];
        let none = one;
        one[17] = 1.0;
        assert_eq!(of(&none, &one).verdict(), Verdict::Undecided);
        assert_eq!(of(&one, &none).verdict(), Verdict::Undecided);
        assert_eq!(of(&none, &none).ratio(), None);
        assert_eq!(of(&none, &[1.0; 60]).verdict(), Verdict::More);
        assert_eq!(of(&[1.0; 60], &none).verdict(), Verdict::Less);
    }

    #[test]
    fn few_windows_have_no_interval() {
        let change = of(&[1.0; 5], &[9.0; 60]);
        assert_eq!((change.low, change.verdict()), (None, Verdict::Undecided));
        assert!(super::change(&[], &[1.0], mean, &SETTINGS).is_none());
    }

    #[test]
    fn blocks_are_of_windows_that_follow_each_other() {
        let windows: Vec<usize> = (0..9).collect();
        let drawn = resample(&windows, |_| 8);
        assert_eq!(drawn.len(), 9);
        assert!(drawn.chunks(3).all(|block| block == [&8, &0, &1]), "{drawn:?}");
    }
}
