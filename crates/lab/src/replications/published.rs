// SPDX-License-Identifier: GPL-2.0-or-later
//! A document's figures, as data.

use serde::Deserialize;

use crate::metric::Metric;

/// A document.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// `S1` to `S5`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its author.
    pub author: String,
    /// Where and when it appeared.
    pub published: String,
    /// Its hardware and load.
    pub machine: String,
    /// Differences here, on purpose.
    pub scaling: String,
    /// Parts that do not carry over, in plain words.
    pub not_transferred: Vec<String>,
    /// Effects that it saw.
    pub effects: Vec<Effect>,
}

/// An effect that it saw or asked about, in one metric.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// Name of the change.
    pub name: String,
    /// State before and after the change.
    pub what: String,
    /// Unit of its figures.
    pub unit: String,
    /// Our metric beside them.
    pub metric: Metric,
    /// Without printed figures: whether ours should go up, down, or nowhere.
    #[serde(default)]
    pub direction: Option<Direction>,
    /// Why it may be gone today, if it is.
    #[serde(default)]
    pub gone: String,
    /// Why it may go the other way, if it does.
    #[serde(default)]
    pub reversed: String,
    /// Its table.
    pub rows: Vec<Row>,
}

/// Direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// It grows.
    Up,
    /// It shrinks.
    Down,
    /// It stays.
    None,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Mean and perhaps standard deviation before; empty if none was printed.
    pub before: Vec<f64>,
    /// The same after.
    pub after: Vec<f64>,
    /// Our windows.
    #[serde(default)]
    pub ours: Option<Ours>,
    /// Why there are none.
    #[serde(default)]
    pub missing: Option<String>,
    /// Why they show nothing, although there are some.
    #[serde(default)]
    pub unmeasured: Option<String>,
    /// Why it may be gone here, if the reason is not the effect's.
    #[serde(default)]
    pub gone: Option<String>,
}

/// Places of our figures before and after.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    /// Before.
    pub before: Point,
    /// After.
    pub after: Point,
}

/// A case and a contender in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Point(pub String, pub String);

impl Published {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Published, toml::de::Error> {
        toml::from_str(text)
    }
}

impl Row {
    /// The printed figure after over that before.
    pub fn published_ratio(&self) -> Option<f64> {
        Some(self.after.first()? / self.before.first()?)
    }
}

impl Effect {
    /// The direction that `row` should take: as printed, else as the effect says.
    pub fn direction_of(&self, row: &Row) -> Option<Direction> {
        match row.published_ratio() {
            Some(ratio) if ratio > 1.0 => Some(Direction::Up),
            Some(ratio) if ratio < 1.0 => Some(Direction::Down),
            _ => self.direction,
        }
    }
}
