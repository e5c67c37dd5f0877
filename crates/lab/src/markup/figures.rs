// SPDX-License-Identifier: GPL-2.0-or-later
//! Figures for people.

use crate::stats::{Estimate, MIN_ROUNDS};

/// Three significant digits, with k, M or G: `291k`, `1.23M`, `0.042`.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if size >= 1e12 || (size < 5e-5 && size > 0.0) {
        return format!("{value:.0e}");
    }
    let (scale, unit) = match size {
        s if s >= 999.5e6 => (1e9, "G"),
        s if s >= 999.5e3 => (1e6, "M"),
        s if s >= 9995.0 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let scaled = value / scale;
    let decimals = match scaled.abs() {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.0995 => 3,
        _ => 4,
    };
    let decimals = if size >= 1000.0 && unit.is_empty() { 0 } else { decimals };
    format!("{scaled:.decimals$}{unit}")
}

/// A figure, or a dash where there is none.
pub(crate) fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), figure)
}

/// `1.41 [1.32, 1.50]*`; the star marks a significant difference. With too few rounds for one:
/// `1.41 > 1, 98 % sure`.
pub(crate) fn ratio(e: &Estimate) -> String {
    let ratio = two_digits(e.ratio);
    match direction(e) {
        Some((sign, sure)) if e.rounds < MIN_ROUNDS => format!("{ratio} {sign} 1, {sure} sure"),
        _ => {
            let high = e.high.map_or_else(|| "?".into(), two_digits);
            let star = if e.is_significant() { "*" } else { "" };
            format!("{ratio} [{}, {high}]{star}", two_digits(e.low))
        }
    }
}

/// On which side of 1 a ratio is, and how sure that is.
pub(crate) fn direction(e: &Estimate) -> Option<(char, String)> {
    let above = e.likely_above_1()?;
    Some(if e.ratio > 1.0 { ('>', percent(above)) } else { ('<', percent(1.0 - above)) })
}

/// `98 %`; no measurement is certain.
pub(crate) fn percent(part: f64) -> String {
    if part > 0.995 { ">99 %".into() } else { format!("{:.0} %", 100.0 * part) }
}

/// A ratio to two digits after the point, as far as its size allows.
pub(crate) fn two_digits(v: f64) -> String {
    if v >= 9999.5 || (v != 0.0 && v < 0.0005) {
        format!("{v:.0e}")
    } else if v >= 99.5 {
        format!("{v:.0}")
    } else if v >= 9.95 {
        format!("{v:.1}")
    } else if v != 0.0 && v < 0.0995 {
        format!("{v:.3}")
    } else {
        format!("{v:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{self, Round, Settings};

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.04231, "0.0423"),
            (0.5, "0.500"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (133.33, "133"),
            (9876.0, "9876"),
            (291_234.0, "291k"),
            (12_340.0, "12.3k"),
            (999_900.0, "1.00M"),
            (1_234_567.0, "1.23M"),
            (-5.678, "-5.68"),
            (1.5e300, "2e300"),
            (-2e12, "-2e12"),
            (0.000_012, "1e-5"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn ratios_show_their_interval() {
        let estimate = |low, ratio, high, p| Estimate {
            ratio,
            low,
            high,
            p,
            rounds: MIN_ROUNDS,
            confidence: 0.95,
        };
        let shown = |low, of, high, p| ratio(&estimate(low, of, high, p));
        assert_eq!(shown(1.321, 1.414, Some(1.5), 0.01), "1.41 [1.32, 1.50]*");
        assert_eq!(shown(0.01, 0.034, None, 0.5), "0.034 [0.010, ?]");
        assert_eq!(shown(1.2e200, 1.5e300, Some(1.7e308), 0.01), "2e300 [1e200, 2e308]*");
    }

    #[test]
    fn a_ratio_of_few_rounds_says_which_way_it_goes_and_how_sure_that_is() {
        let shown = |rounds: &[(f64, f64)]| {
            let round = |&(contender, baseline)| Round { contender, baseline };
            let rounds: Vec<Round> = rounds.iter().map(round).collect();
            ratio(&stats::compare(&rounds, &Settings::default()).unwrap())
        };
        // Logarithms 0.405 and 0.336 are 10.7 standard errors above 0: atan(10.7)/pi above 50 %.
        assert_eq!(shown(&[(150.0, 100.0), (140.0, 100.0)]), "1.45 > 1, 97 % sure");
        assert_eq!(shown(&[(100.0, 150.0), (100.0, 140.0)]), "0.69 < 1, 97 % sure");
        assert_eq!(shown(&[(150.0, 100.0), (90.0, 100.0)]), "1.20 > 1, 67 % sure");
        assert_eq!(shown(&[(2.0, 1.0), (4.0, 2.0)]), "2.00 > 1, >99 % sure");
        assert_eq!(shown(&[(1.0, 1.0), (2.0, 2.0)]), "1.00 [1.00, 1.00]", "there is no direction");
        assert!(shown(&[(0.0, 1.0), (1.0, 1.0)]).starts_with("0.50 ["), "nothing has no logarithm");
    }
}
