// SPDX-License-Identifier: GPL-2.0-or-later
//! Replications of the five source documents behind this project: their figures, beside ours.
//!
//! `experiments/replications/*.published.toml` has the figures, and names the windows of ours that
//! belong beside each. Whether an effect was seen again follows from a result ([`compare`]), and is
//! not written down anywhere. Sections of the three reports show it.

mod compare;
pub(crate) mod html;
pub(crate) mod markdown;
mod plots;
mod published;
pub(crate) mod text;
mod words;

pub use self::compare::{Compared, HOLDFAST, Leaning, STOCK, Values, Verdict, Way, compare};
pub use self::published::{Direction, Effect, Point, Published, Row};
pub use self::words::{Reason, headline, reasons, spread};

/// Name of the experiment and published text, for each document.
const PUBLISHED: [(&str, &str); 5] = [
    ("s1", include_str!("../../../../experiments/replications/s1.published.toml")),
    ("s2", include_str!("../../../../experiments/replications/s2.published.toml")),
    ("s3", include_str!("../../../../experiments/replications/s3.published.toml")),
    ("s4", include_str!("../../../../experiments/replications/s4.published.toml")),
    ("s5", include_str!("../../../../experiments/replications/s5.published.toml")),
];

/// The publication that the experiment of this name replicates.
pub fn of(experiment: &str) -> Option<Published> {
    let (_, text) = PUBLISHED.iter().find(|(name, _)| *name == experiment)?;
    Some(Published::parse(text).expect("a test reads every one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn every_figure_has_a_window_beside_it_or_a_reason_why_not() {
        for (name, text) in PUBLISHED {
            let published = Published::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            let experiment = &builtin::find(name).unwrap()[0];
            assert_eq!(published.id.to_lowercase(), name);
            assert!(!published.effects.is_empty() && !published.not_transferred.is_empty());
            for row in published.effects.iter().flat_map(|e| &e.rows) {
                let Some(ours) = &row.ours else {
                    assert!(row.missing.is_some(), "{name}: {}", row.name);
                    continue;
                };
                for Point(case, contender) in [&ours.before, &ours.after] {
                    assert!(experiment.cases.iter().any(|c| c.name == *case), "{name}: {case}");
                    let mut contenders = experiment.contenders.iter();
                    assert!(contenders.any(|c| c.name == *contender), "{name}: {contender}");
                }
            }
        }
    }

    #[test]
    fn what_a_reason_says_was_measured_cites_a_page_that_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut nr_cited = 0;
        for (name, text) in PUBLISHED {
            let published = Published::parse(text).unwrap();
            for effect in &published.effects {
                let of_rows = effect.rows.iter().flat_map(|r| [&r.gone, &r.unmeasured]).flatten();
                for reason in [&effect.gone, &effect.reversed].into_iter().chain(of_rows) {
                    let cited: Vec<&str> = reason
                        .split(|c: char| c.is_whitespace() || "(),;".contains(c))
                        .filter(|word| word.starts_with("docs/"))
                        .collect();
                    assert!(!reason.contains("Measured") || !cited.is_empty(), "{name}: {reason}");
                    for page in &cited {
                        assert!(root.join(page).is_file(), "{name}: {page}");
                    }
                    nr_cited += cited.len();
                }
            }
        }
        assert!(nr_cited > 0);
    }

    #[test]
    fn user_time_that_is_too_short_for_its_ticks_is_not_measurable() {
        let published = of("s3").unwrap();
        let user = published.effects.iter().filter(|e| e.name.ends_with("user time"));
        let rows: Vec<&Row> = user.flat_map(|e| &e.rows).collect();
        assert_eq!(rows.len(), 12);
        assert!(rows.iter().all(|r| r.unmeasured.is_some() && r.ours.is_some()));
    }

    #[test]
    fn changes_are_those_that_were_printed() {
        // In percent, as in the documents.
        let change = |document: &str, effect: usize, row: usize| {
            let ratio = of(document).unwrap().effects[effect].rows[row].published_ratio().unwrap();
            (1000.0 * (1.0 - ratio)).round() / 10.0
        };
        assert_eq!(change("s1", 0, 0), 7.9);
        assert_eq!(change("s1", 0, 5), 12.3);
        assert_eq!(change("s1", 0, 11), 10.4);
        assert_eq!(change("s4", 0, 0), 53.9);
        assert_eq!(change("s4", 0, 1), 41.3);
        assert_eq!(change("s4", 1, 0), -88.2);
        assert_eq!(change("s4", 1, 1), -25.6);
        assert_eq!(change("s2", 0, 0), -2.2);
    }
}
