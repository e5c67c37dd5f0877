// SPDX-License-Identifier: GPL-2.0-or-later
//! Bounds on the command line: a time, a size, or both.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A time, a size in bytes, or both.
pub type Bounds = (Option<Duration>, Option<u64>);

/// A parser of a time within `times` such as `1h`, a size of at least `least_bytes` such as `1GiB`,
/// or both as `1h,1GiB`.
pub fn bounds(
    times: RangeInclusive<Duration>,
    least_bytes: u64,
) -> impl Fn(&str) -> Result<Bounds, String> + Clone + Send + Sync + 'static {
    move |text| {
        let (mut time, mut bytes) = (None, None);
        for part in text.split(',') {
            let is_new = match size(part) {
                Some(size) if size < least_bytes => {
                    return Err(format!("a size has to be at least {} MiB", least_bytes >> 20));
                }
                Some(size) => bytes.replace(size).is_none(),
                // A bare number would be seconds here, and may be meant as bytes.
                None if part.parse::<f64>().is_ok() => return Err(NEITHER.into()),
                None => {
                    let found = humantime::parse_duration(part).map_err(|_| NEITHER)?;
                    if !times.contains(&found) {
                        let ends = [times.start(), times.end()];
                        let [least, most] = ends.map(|time| humantime::format_duration(*time));
                        return Err(format!("a time has to be from {least} to {most}"));
                    }
                    time.replace(found).is_none()
                }
            };
            if !is_new {
                return Err("give one time and one size at most".into());
            }
        }
        Ok((time, bytes))
    }
}

const NEITHER: &str = "give a time such as 1h, a size such as 1GiB, or both: 1h,1GiB";

/// Bytes; none of what is no number with a unit of bytes.
fn size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 8] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let text = text.trim();
    UNITS.iter().find_map(|(unit, bytes)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn of(text: &str) -> Result<Bounds, String> {
        bounds(HOUR..=10 * 24 * HOUR, 1 << 20)(text)
    }

    #[test]
    fn a_bound_is_a_time_a_size_or_both() {
        assert_eq!(of("1h"), Ok((Some(HOUR), None)));
        assert_eq!(of("7d"), Ok((Some(7 * 24 * HOUR), None)));
        assert_eq!(of("1GiB"), Ok((None, Some(1 << 30))));
        assert_eq!(of("50 MB"), Ok((None, Some(50_000_000))));
        assert_eq!(of("1h,1GiB"), Ok((Some(HOUR), Some(1 << 30))));
        assert_eq!(of("1GiB, 1h"), Ok((Some(HOUR), Some(1 << 30))));
    }

    #[test]
    fn what_is_no_bound_is_refused_with_examples() {
        for text in ["", "5", "1.5", "x", "1h,", "1G", "1 parsec", "-1h", "99999999999TiB"] {
            let said = of(text).unwrap_err();
            assert!(said.contains("1h,1GiB"), "{text}: {said}");
        }
        assert_eq!(of("1s").unwrap_err(), "a time has to be from 1h to 10days");
        assert_eq!(of("9kB").unwrap_err(), "a size has to be at least 1 MiB");
        assert_eq!(of("1h,2h").unwrap_err(), "give one time and one size at most");
        assert_eq!(of("1GiB,1MiB").unwrap_err(), "give one time and one size at most");
    }
}
