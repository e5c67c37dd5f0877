// SPDX-License-Identifier: GPL-2.0-or-later
//! The results of checks.

use std::fmt;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::catalogue::{self, OBSERVER_PROGRAMS};
use crate::schedulers::Scheduler;
use crate::text::{columns, fill, printable};

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The outcome is not known: there was nothing to check.
    Skip,
    /// Nothing to do.
    Ok,
    /// `scx_holdfast` runs, but not as well as it could.
    Warn,
    /// `scx_holdfast` refuses to load.
    Fail,
}

impl Verdict {
    fn style(self) -> Style {
        let colour = match self {
            Self::Skip => return Style::new().dimmed(),
            Self::Ok => AnsiColor::Green,
            Self::Warn => AnsiColor::Yellow,
            Self::Fail => AnsiColor::Red,
        };
        Style::new().fg_color(Some(colour.into()))
    }
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

/// The use of Holdfast that a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Observing VMs, and scheduling them, too.
    Observe,
    /// Scheduling them.
    Schedule,
    /// Neither depends on it.
    Advice,
}

impl Group {
    /// Every group, in the order in which reports show them.
    pub const ALL: [Self; 3] = [Self::Observe, Self::Schedule, Self::Advice];

    /// What the checks of the group are for.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Observe => "Observe VMs: holdfast vms, report, top, record, export",
            Self::Schedule => "Schedule them: scx_holdfast",
            Self::Advice => "Worth knowing",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.title())
    }
}

/// Columns from which there is room for text beside the names of checks.
const ROOMY: usize = 60;

/// Columns of a verdict.
const VERDICT_LEN: usize = 5;
/// Columns of a verdict and the name of its check.
const HEAD_LEN: usize = 25;

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name, stable across versions: lower case, words joined by hyphens.
    pub name: &'static str,
    /// What it is for.
    pub group: Group,
    /// Outcome.
    pub verdict: Verdict,
    /// The finding.
    pub found: String,
    /// What to do about it; absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    /// Users choose the names of processes and control groups, so the finding is made safe to print
    /// here.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            group: catalogue::find(name).map_or(Group::Schedule, |entry| entry.group),
            verdict: Verdict::Ok,
            found: printable(&found.into()),
            advice: None,
        }
    }

    /// A check that had nothing to check, and the reason.
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

    /// Does loading a scheduler depend on it?
    pub fn is_for_scheduling(&self) -> bool {
        self.group != Group::Advice && self.name != OBSERVER_PROGRAMS
    }

    /// A failed check, and what to do about it.
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
    /// The sched_ext scheduler that is loaded, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
    /// The checks made.
    pub checks: Vec<Check>,
}

impl Default for Report {
    /// A report without checks.
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

impl Report {
    pub(crate) fn new(checks: impl Iterator<Item = Check>) -> Self {
        let checks: Vec<Check> = checks.collect();
        let verdict = checks.iter().map(|check| check.verdict).fold(Verdict::Ok, Ord::max);
        Self { schema: "holdfast.doctor/1", verdict, scheduler: None, checks }
    }

    /// Adds a check that another program made.
    pub fn add(&mut self, check: Check) {
        self.verdict = self.verdict.max(check.verdict);
        self.checks.push(check);
    }

    /// The same without the checks that `keep` rejects.
    pub fn filtered(self, keep: impl Fn(&Check) -> bool) -> Self {
        let kept = Self::new(self.checks.into_iter().filter(|check| keep(check)));
        Self { scheduler: self.scheduler, ..kept }
    }

    /// Did no check fail?
    pub fn passed(&self) -> bool {
        self.verdict < Verdict::Fail
    }

    /// The verdict of one check; `None` if it was not made.
    pub fn verdict_of(&self, name: &str) -> Option<Verdict> {
        self.checks.iter().find(|check| check.name == name).map(|check| check.verdict)
    }

    /// The checks whose outcome makes observing guests impossible, under any scheduler.
    pub fn blind(&self) -> impl Iterator<Item = &Check> {
        let checks = self.checks.iter().filter(|check| check.group == Group::Observe);
        // Among these checks, `warn` means that there is nothing to observe.
        checks.filter(|check| check.verdict >= Verdict::Warn)
    }

    /// The checks whose failure forbids loading a scheduler.
    pub fn unschedulable(&self) -> impl Iterator<Item = &Check> {
        self.failures().filter(|check| check.is_for_scheduling())
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Fail)
    }
}

/// Text after a head, with further lines indented to the first, or behind the verdict where there
/// is no room.
fn hang(head: &str, text: &str) -> String {
    let indent = if columns() < ROOMY { VERDICT_LEN + 1 } else { head.len() };
    fill(head, &" ".repeat(indent), text)
}

/// Checks by their uses; `{:#}`: in colours.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_coloured = f.alternate();
        let style = |style: Style| if is_coloured { style } else { Style::new() };
        let (bold, advice_style) = (style(Style::new().bold()), style(Style::new().dimmed()));
        let groups = Group::ALL.map(|group| {
            (group, self.checks.iter().filter(move |check| check.group == group).peekable())
        });
        let mut blank = "";
        for (group, mut checks) in groups {
            if checks.peek().is_none() {
                continue;
            }
            let heading = fill("", "  ", group.title());
            writeln!(f, "{blank}{bold}{heading}{bold:#}")?;
            blank = "\n";
            for check in checks {
                let head = format!("{:<5} {:<18} ", check.verdict, check.name);
                let text = hang(&head, &check.found);
                let (verdict, rest) = text.split_at(VERDICT_LEN);
                let colour = style(check.verdict.style());
                writeln!(f, "{colour}{verdict}{colour:#}{rest}")?;
                if let Some(advice) = &check.advice {
                    let indent = if columns() < ROOMY { VERDICT_LEN + 1 } else { HEAD_LEN };
                    let text = fill(&format!("{:indent$}-> ", ""), &" ".repeat(indent + 3), advice);
                    writeln!(f, "{advice_style}{text}{advice_style:#}")?;
                }
            }
        }
        Ok(())
    }
}
