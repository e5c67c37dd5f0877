// SPDX-License-Identifier: GPL-2.0-or-later
//! Times on the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

/// An interval that a person can wait: `100ms`, `5s`, `1m`; bare numbers are seconds.
pub fn interval(text: &str) -> Result<Duration, String> {
    time_within(Duration::from_millis(10)..=Duration::from_secs(86_400))(text)
}

/// A parser of times within `range`.
pub fn time_within(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = time(text)?;
        if range.contains(&time) {
            return Ok(time);
        }
        let [least, most] = [range.start(), range.end()].map(|t| humantime::format_duration(*t));
        Err(format!("a time has to be from {least} to {most}"))
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    time.ok_or_else(|| "not a time: give 100ms, 5s or 1m; bare numbers are seconds".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_have_units_and_bare_numbers_are_seconds() {
        for (text, ms) in [
            ("100ms", 100),
            ("5s", 5000),
            ("1m", 60_000),
            ("1m 30s", 90_000),
            ("2h", 7_200_000),
            ("5", 5000),
            ("0.5", 500),
        ] {
            assert_eq!(interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_examples_and_the_range() {
        for text in ["", "x", "5 parsecs", "-1", "-5s", "nan", "inf", "1e300"] {
            let said = interval(text).unwrap_err();
            assert!(said.contains("100ms, 5s or 1m"), "{text}: {said}");
        }
        for text in ["0", "1ms", "25h", "1e9"] {
            let said = interval(text).unwrap_err();
            assert_eq!(said, "a time has to be from 10ms to 1day", "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_time_or_an_error(text: String) {
            let _ = interval(&text);
        }
    }
}
