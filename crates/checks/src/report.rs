// SPDX-License-Identifier: GPL-2.0-or-later
//! What checks say.

use std::fmt;

use serde::Serialize;

use crate::text::printable;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// There was nothing to look at, and it is not known.
    Skip,
    /// Nothing to do.
    Ok,
    /// `scx_holdfast` runs, but not everything is as it could be.
    Warn,
    /// `scx_holdfast` refuses to load.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Skip => "-",
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        })
    }
}

/// Columns of a terminal.
const WIDTH: usize = 79;

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name, the same in every version: lower case, words joined by hyphens.
    pub name: &'static str,
    /// How it went.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    /// Names of processes, of control groups and the like are whatever their owners like: what is
    /// found is made harmless here, for whoever prints it.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: printable(&found.into()), advice: None }
    }

    /// There was nothing to look at: why.
    pub fn skip(name: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skip, ..Self::ok(name, found) }
    }

    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warn, advice: Some(advice.into()), ..Self::ok(name, found) }
    }

    /// What keeps it from working, and what to do about it.
    pub fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, advice: Some(advice.into()), ..Self::ok(name, found) }
    }
}

/// Checks in the order they were made. JSON schema tag: `holdfast.doctor/1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    schema: &'static str,
    /// The worst verdict.
    pub verdict: Verdict,
    /// Every check made.
    pub checks: Vec<Check>,
}

impl Default for Report {
    /// Of no checks.
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

impl Report {
    pub(crate) fn new(checks: impl Iterator<Item = Check>) -> Self {
        let checks: Vec<Check> = checks.collect();
        let verdict = checks.iter().map(|check| check.verdict).fold(Verdict::Ok, Ord::max);
        Self { schema: "holdfast.doctor/1", verdict, checks }
    }

    /// Adds a check that another program made.
    pub fn add(&mut self, check: Check) {
        self.verdict = self.verdict.max(check.verdict);
        self.checks.push(check);
    }

    /// Does none fail?
    pub fn passed(&self) -> bool {
        self.verdict < Verdict::Fail
    }

    /// The verdict of one check; `None` if it was not made.
    pub fn verdict_of(&self, name: &str) -> Option<Verdict> {
        self.checks.iter().find(|check| check.name == name).map(|check| check.verdict)
    }

    /// The checks that keep one from looking at guests, under whatever scheduler.
    pub fn blind(&self) -> impl Iterator<Item = &Check> {
        let checks = self.checks.iter().filter(|check| crate::LOOKING.contains(&check.name));
        // What works, but not as it could, finds nothing to look at here.
        checks.filter(|check| check.verdict >= Verdict::Warn)
    }

    /// The checks that keep a scheduler from being loaded.
    pub fn unschedulable(&self) -> impl Iterator<Item = &Check> {
        self.failures().filter(|check| !crate::OF_OBSERVERS.contains(&check.name))
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Fail)
    }
}

/// Text after a head, its further lines below its first.
fn hang(head: &str, text: &str) -> String {
    let indent = " ".repeat(head.len());
    textwrap::fill(
        text,
        textwrap::Options::new(WIDTH)
            .initial_indent(head)
            .subsequent_indent(&indent)
            .word_splitter(textwrap::WordSplitter::NoHyphenation)
            .break_words(false),
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let head = format!("{:<5} {:<18} ", check.verdict, check.name);
            writeln!(f, "{}", hang(&head, &check.found))?;
            if let Some(advice) = &check.advice {
                writeln!(f, "{}", hang(&format!("{:25}-> ", ""), advice))?;
            }
        }
        Ok(())
    }
}
