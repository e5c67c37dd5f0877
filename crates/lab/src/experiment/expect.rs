// SPDX-License-Identifier: GPL-2.0-or-later
//! Expectations of a result.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::metric::Metric;

/// More expectations than anybody reads the verdicts of; lists multiply quickly.
const MAX_EXPECTATIONS: usize = 10_000;

/// The figure of an expectation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The contender's mean over the baseline's; missed where its interval is out of bounds.
    #[default]
    Ratio,
    /// The lower end of that ratio's interval.
    Low,
    /// The upper end of that ratio's interval.
    High,
    /// The contender's own mean; missed where its interval is out of bounds.
    Mean,
    /// The contender's own standard deviation between windows.
    Sd,
    /// The same over the baseline's.
    SdRatio,
}

impl Figure {
    /// As written in an experiment.
    pub fn as_str(self) -> &'static str {
        match self {
            Figure::Ratio => "ratio",
            Figure::Low => "low",
            Figure::High => "high",
            Figure::Mean => "mean",
            Figure::Sd => "sd",
            Figure::SdRatio => "sd_ratio",
        }
    }

    /// Whether it needs another contender to compare with.
    pub fn is_relative(self) -> bool {
        !matches!(self, Figure::Mean | Figure::Sd)
    }

    /// Whether it is, or belongs to, a quotient of means.
    pub(crate) fn is_ratio_of_means(self) -> bool {
        matches!(self, Figure::Ratio | Figure::Low | Figure::High)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An expectation of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// The metric.
    pub metric: Metric,
    /// Which figure of it.
    #[serde(default)]
    pub of: Figure,
    /// Name of the contender it is compared with, if not the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Name of the other contender's case, if not the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_case: Option<String>,
    /// The figure must not be smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The figure must not be larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// An expectation as written: of one case, contender and metric, or of every combination of
/// several.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(deserialize_with = "one_or_many")]
    case: Vec<String>,
    #[serde(deserialize_with = "one_or_many")]
    contender: Vec<String>,
    #[serde(deserialize_with = "one_or_many")]
    metric: Vec<Metric>,
    #[serde(default)]
    of: Figure,
    #[serde(default, deserialize_with = "one_or_many")]
    over: Vec<String>,
    #[serde(default)]
    over_case: Option<String>,
    #[serde(default)]
    min: Option<f64>,
    #[serde(default)]
    max: Option<f64>,
}

/// Reads expectations, one for each combination.
pub(super) fn expand<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Expectation>, D::Error> {
    let written = Vec::<Written>::deserialize(d)?;
    let nr = written.iter().map(Written::nr).fold(0, usize::saturating_add);
    if nr > MAX_EXPECTATIONS {
        return Err(D::Error::custom(format!(
            "these are {nr} expectations, one for each combination; write at most \
             {MAX_EXPECTATIONS}"
        )));
    }
    Ok(written.iter().flat_map(Written::all).collect())
}

impl Written {
    /// Length of [`Written::all`].
    fn nr(&self) -> usize {
        let lists =
            [self.case.len(), self.contender.len(), self.metric.len(), self.over.len().max(1)];
        lists.into_iter().fold(1, usize::saturating_mul)
    }

    fn all(&self) -> Vec<Expectation> {
        let over: Vec<Option<&String>> = match self.over.as_slice() {
            [] => vec![None],
            names => names.iter().map(Some).collect(),
        };
        let mut all = Vec::new();
        for case in &self.case {
            for contender in &self.contender {
                for &metric in &self.metric {
                    all.extend(over.iter().map(|over| Expectation {
                        case: case.clone(),
                        contender: contender.clone(),
                        metric,
                        of: self.of,
                        over: over.cloned(),
                        over_case: self.over_case.clone(),
                        min: self.min,
                        max: self.max,
                    }));
                }
            }
        }
        all
    }
}

/// A name, or an array of names that is not empty. (An untagged enum would lose the error in an
/// element.)
fn one_or_many<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Names<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Names<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a name or an array of names")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<Vec<T>, E> {
            T::deserialize(StrDeserializer::new(name)).map(|one| vec![one])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Vec<T>, A::Error> {
            match Vec::deserialize(SeqAccessDeserializer::new(names))? {
                all if all.is_empty() => Err(A::Error::custom("the array is empty")),
                all => Ok(all),
            }
        }
    }

    d.deserialize_any(Names(PhantomData))
}
