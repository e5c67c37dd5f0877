// SPDX-License-Identifier: GPL-2.0-or-later
//! What a source printed, as data.

use serde::Deserialize;

use crate::metric::Metric;

/// A source.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// `S1` to `S5`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Who wrote it.
    pub author: String,
    /// Where and when it appeared.
    pub published: String,
    /// What it was measured on.
    pub machine: String,
    /// What is different here, on purpose.
    pub scaling: String,
    /// What of it cannot be carried over, in plain words.
    pub not_transferred: Vec<String>,
    /// What it saw.
    pub effects: Vec<Effect>,
}

/// Something it saw or asked, in one metric.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// What changes.
    pub name: String,
    /// What the change is from and to.
    pub what: String,
    /// Unit of its figures.
    pub unit: String,
    /// The metric of ours that belongs beside them.
    pub metric: Metric,
    /// Where it printed no figures: whether ours should go up, down, or nowhere.
    #[serde(default)]
    pub direction: Option<Direction>,
    /// Why it may not be seen any more, where it is not.
    #[serde(default)]
    pub gone: String,
    /// Why it may go the other way, where it does.
    #[serde(default)]
    pub reversed: String,
    /// Its table.
    pub rows: Vec<Row>,
}

/// Which way a figure should go.
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
    /// What it is called.
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
    /// Why they say nothing, though there are some.
    #[serde(default)]
    pub unmeasured: Option<String>,
    /// Why it may not be seen here any more, where that is another reason than the effect's.
    #[serde(default)]
    pub gone: Option<String>,
}

/// Where our before and after are.
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
    /// Which way `row` should go: as printed, else as the effect says.
    pub fn direction_of(&self, row: &Row) -> Option<Direction> {
        match row.published_ratio() {
            Some(ratio) if ratio > 1.0 => Some(Direction::Up),
            Some(ratio) if ratio < 1.0 => Some(Direction::Down),
            _ => self.direction,
        }
    }
}
