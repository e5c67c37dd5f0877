// SPDX-License-Identifier: GPL-2.0-or-later
//! How figures are written for people.

/// Three significant digits, with k, M or G: `291k`, `1.23M`, `0.042`.
pub fn figure(value: f64) -> String {
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
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), figure)
}

/// `1.41 [1.32, 1.50]*`; the star marks a significant difference.
pub fn ratio(ratio: f64, low: f64, high: Option<f64>, significant: bool) -> String {
    let high = high.map_or_else(|| "?".into(), two_digits);
    let star = if significant { "*" } else { "" };
    format!("{} [{}, {high}]{star}", two_digits(ratio), two_digits(low))
}

fn two_digits(v: f64) -> String {
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
        assert_eq!(ratio(1.414, 1.321, Some(1.5), true), "1.41 [1.32, 1.50]*");
        assert_eq!(ratio(0.034, 0.01, None, false), "0.034 [0.010, ?]");
        let huge = ratio(1.5e300, 1.2e200, Some(1.7e308), true);
        assert_eq!(huge, "2e300 [1e200, 2e308]*");
    }
}
