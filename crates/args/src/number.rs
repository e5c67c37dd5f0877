// SPDX-License-Identifier: GPL-2.0-or-later
//! Whole numbers on the command line.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;

/// A parser of whole numbers within `range`, which has a first number and may have no last.
pub fn number_within<T>(
    range: impl RangeBounds<T> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display,
{
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(wanted(&range)),
    }
}

fn wanted<T: Display>(range: &impl RangeBounds<T>) -> String {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => {
            format!("give a whole number from {least} to {most}")
        }
        (Bound::Included(least), Bound::Unbounded) => {
            format!("give a whole number, {least} or more")
        }
        _ => "give a whole number".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_the_range_is_refused_with_the_range() {
        let from_2 = number_within(2u32..=1000);
        assert_eq!((from_2("2"), from_2("1000")), (Ok(2), Ok(1000)));
        for text in ["", "x", "1", "1001", "1.5", "1e3", "-2", " 2", "99999999999999999999", "٣"] {
            assert_eq!(from_2(text), Err("give a whole number from 2 to 1000".into()), "{text}");
        }
        assert_eq!(number_within(1u64..)("0"), Err("give a whole number, 1 or more".into()));
        assert_eq!(number_within(1u64..)("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(number_within(..)("-7"), Ok(-7));
        assert_eq!(number_within::<i8>(..)("x"), Err("give a whole number".into()));
    }
}
