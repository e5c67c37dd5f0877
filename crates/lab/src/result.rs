// SPDX-License-Identifier: GPL-2.0-or-later
//! The result contract: the content of a run's `result.json`.
//!
//! `docs/reference/result.md` documents it with types, units and a promise of stability.
//! `docs/reference/result.schema.json` is the same for programs. A test compares the three.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::experiment::{self, Experiment, Figure};
use crate::metric::Metric;
use crate::stats::{self, Estimate, Settings};
use crate::text::read_text;
use crate::window::Window;

/// Schema tag of the results this version writes, and the only one it reads.
pub const SCHEMA: &str = "holdfast.result/3";

/// Larger figures are not measurements.
const LARGEST: f64 = 1e18;
/// Largest file that is read: days of windows take a tenth of that.
const MAX_MIB: u64 = 256;
/// More resamples would take hours.
const MAX_RESAMPLES: u32 = 1_000_000;

/// Everything about a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whether the run ended before all windows were measured.
    pub partial: bool,
    /// Provenance of the figures.
    pub provenance: Provenance,
    /// The experiments, as read from the files.
    pub experiments: Vec<Experiment>,
    /// Every window, in the order they were measured.
    pub windows: Vec<Window>,
    /// Each metric of each contender in each case.
    pub summaries: Vec<Summary>,
    /// Each contender against the baseline.
    pub comparisons: Vec<Comparison>,
    /// Contenders' own counters, if their meaning is known.
    #[serde(default)]
    pub scheduler_counters: Vec<SchedulerCounter>,
    /// Lengths of contenders' graces, if reported.
    #[serde(default)]
    pub grace_needs: Vec<GraceNeed>,
    /// Verdicts on the experiments' expectations.
    pub expectations: Vec<Verdict>,
}

/// [`Provenance::accelerator`] of a host that is emulated.
pub(crate) const EMULATED: &str = "tcg";

/// Provenance of a result's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// When the run began, RFC 3339, UTC.
    pub date: String,
    /// How long it took, s.
    pub duration_s: f64,
    /// Version of Holdfast.
    pub holdfast_version: String,
    /// Commit it was built from; absent if it was not built from a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdfast_commit: Option<String>,
    /// How the host ran: `tcg` (emulated), `kvm` (nested) or `here` (the machine itself).
    pub accelerator: String,
    /// Version of QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// The machine the lab ran on.
    pub machine: MachineFacts,
    /// The KVM hosts that were booted.
    pub hosts: Vec<KernelFacts>,
    /// The guests that were booted.
    pub guests: Vec<KernelFacts>,
    /// Debian packages that were used, and their versions.
    pub packages: BTreeMap<String, String>,
    /// Notes for a reader: what was not measured and why, hosts that had to be booted again.
    pub notes: Vec<String>,
    /// Settings of the comparisons, with the seed.
    pub statistics: Settings,
}

/// The machine the lab ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Name in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// CPUs online.
    pub nr_cpus: u32,
    /// `uname -r`.
    pub kernel_release: String,
}

/// A kernel that was booted for an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Experiment that it was booted for.
    pub experiment: String,
    /// Name of the guest, or `host`.
    pub name: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// Its command line.
    pub cmdline: String,
    /// CPUs online.
    pub nr_cpus: u32,
    /// Whether PAUSE exited to the host while it ran.
    pub pause_exits: bool,
}

/// One metric of one contender in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// The metric.
    pub metric: Metric,
    /// Windows that count.
    pub windows: u32,
    /// Mean over them.
    pub mean: f64,
    /// Standard deviation between them; absent for a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
}

/// One contender against the baseline, in one metric of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// The metric.
    pub metric: Metric,
    /// Name of the contender.
    pub contender: String,
    /// Name of the contender it is divided by.
    pub baseline: String,
    /// Mean of the contender over mean of the baseline.
    pub ratio: f64,
    /// Lower end of the ratio's 95 % interval.
    pub low: f64,
    /// Upper end of the ratio's 95 % interval; null if the data do not bound it.
    pub high: Option<f64>,
    /// Two-sided p-value of "they do not differ".
    pub p: f64,
    /// Rounds in which both were measured.
    pub rounds: u32,
}

impl Comparison {
    /// Whether it shows a difference.
    pub fn is_significant(&self) -> bool {
        stats::is_significant(self.low, self.high, self.p)
    }

    /// The comparison as an estimate made with `settings`.
    pub fn estimate(&self, settings: &Settings) -> Estimate {
        let Comparison { ratio, low, high, p, rounds, .. } = *self;
        Estimate { ratio, low, high, p, rounds, confidence: settings.confidence }
    }
}

/// A counter of a contender's own, in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerCounter {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// Process of a VM beside, if the counter is that VM's; absent for counters of the host and of
    /// the measured VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// The contender's name of the counter.
    pub counter: String,
    /// Windows that count and in which the contender reported it.
    pub windows: u32,
    /// Mean over them, per second of CPU time of the measured VM, or of the VM beside.
    pub per_vm_cpu_second: f64,
}

/// Lengths of the graces that a contender gave the measured VM, in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraceNeed {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// Windows that count and in which the contender reported it.
    pub windows: u32,
    /// Sum over them of the graces that ended because the vCPU left its critical section: `[i]`
    /// counts graces of [2^i, 2^(i+1)) us. The last also counts longer ones.
    pub us_log2: Vec<u64>,
}

/// An expectation of a result, and the figure found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the contender.
    pub contender: String,
    /// The metric.
    pub metric: Metric,
    /// Which figure of it.
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
    /// The figure; null if it was not measured or is not bounded.
    pub measured: Option<f64>,
    /// Lower end of the figure's 95 % interval; absent where the figure itself is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end of it; absent, too, if the data do not bound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Whether the figure is as expected, or its interval allows for that. False if it was not
    /// measured.
    pub met: bool,
}

impl Verdict {
    /// `met`, `missed`, or `unsure`: the figure is not as expected, which chance explains.
    pub fn outcome(&self) -> &'static str {
        match self.met {
            true if self.measured.is_some_and(|v| is_within(v, v, self.min, self.max)) => "met",
            true => "unsure",
            false => "missed",
        }
    }

    /// The other contender or case of the comparison, if that is not the baseline in the same case.
    pub(crate) fn compared_with(&self) -> String {
        match (&self.over, &self.over_case) {
            (Some(over), Some(case)) => format!(" over {over} in {case}"),
            (Some(over), None) => format!(" over {over}"),
            (None, Some(case)) => format!(" over {case}"),
            (None, None) => String::new(),
        }
    }
}

/// Whether any figure from `low` to `high` lies within the given bounds.
pub(crate) fn is_within(low: f64, high: f64, min: Option<f64>, max: Option<f64>) -> bool {
    min.is_none_or(|min| high >= min) && max.is_none_or(|max| low <= max)
}

/// Why a result cannot be read or written.
#[derive(Debug, Error)]
pub enum ResultError {
    /// The file could not be read.
    #[error(
        "cannot read the result {path}: {why}; give the result.json that `holdfast lab run` leaves \
         when it ends"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {path}: {why}; choose another place for it")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// It is not a result, or one of another version.
    #[error("{path} is not a result of schema {SCHEMA}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The part that does not fit.
        message: String,
    },
}

impl RunResult {
    /// Reads a result from `path`, or from the `result.json` in it if it is a directory.
    pub fn read(path: &Path) -> Result<RunResult, ResultError> {
        let path = if path.is_dir() { path.join("result.json") } else { path.into() };
        let text = read_text(&path, MAX_MIB)
            .map_err(|why| ResultError::Read { path: path.clone(), why })?;
        let bad = |message: String| ResultError::Parse { path: path.clone(), message };
        // The tag is checked first: a file of another version fails for other reasons, too.
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        match value.get("schema").and_then(serde_json::Value::as_str) {
            Some(SCHEMA) => {
                let result: RunResult =
                    serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
                result.check().map_err(bad)?;
                Ok(result)
            }
            Some(other) => Err(bad(format!("its schema is {other}"))),
            None => Err(bad("it has no \"schema\"".into())),
        }
    }

    /// Inconsistencies that types cannot exclude and that reports could not draw, in a result from
    /// another program.
    fn check(&self) -> Result<(), String> {
        if let Some(name) = experiment::namesakes(&self.experiments) {
            return Err(format!("two of its experiments are called \"{name}\""));
        }
        for experiment in &self.experiments {
            if let Some(problem) = experiment.problems().first() {
                return Err(format!("its experiment \"{}\": {problem}", experiment.name));
            }
        }
        for (i, window) in self.windows.iter().enumerate() {
            let run = self.experiments.iter().find(|e| e.name == window.experiment);
            let is_known = run.is_some_and(|e| {
                e.cases.iter().any(|c| c.name == window.case)
                    && e.contenders.iter().any(|c| c.name == window.contender)
            });
            if !is_known {
                return Err(format!(
                    "windows[{i}] is of \"{}\" in case \"{}\" of \"{}\", which was not run",
                    window.contender, window.case, window.experiment
                ));
            }
            let is_plain = |v: f64| v.is_finite() && v.abs() <= LARGEST;
            if !is_plain(window.start_s) {
                return Err(format!("windows[{i}].start_s is {:e}", window.start_s));
            }
            if let Some((metric, v)) = window.metrics.iter().find(|(_, v)| !is_plain(**v)) {
                return Err(format!("windows[{i}].metrics.{metric} is {v:e}"));
            }
        }
        let Settings { resamples, confidence, .. } = self.provenance.statistics;
        let is_confidence = confidence > 0.0 && confidence < 1.0;
        if !(1..=MAX_RESAMPLES).contains(&resamples) || !is_confidence {
            return Err(format!(
                "provenance.statistics has {resamples} resamples and a confidence of {confidence}"
            ));
        }
        Ok(())
    }

    /// Writes it to `path`, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), ResultError> {
        let failed = |why| ResultError::Write { path: path.into(), why };
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        text.push(b'\n');
        write_whole(path, &text).map_err(failed)
    }

    /// Windows that do not count.
    pub fn invalid(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|s| !s.is_valid())
    }

    /// The comparison of `contender` with the baseline, in `metric` of a case.
    pub fn comparison(
        &self,
        experiment: &str,
        case: &str,
        contender: &str,
        metric: Metric,
    ) -> Option<&Comparison> {
        let run = self.experiments.iter().find(|e| e.name == experiment)?;
        self.comparison_over(experiment, case, contender, &run.baseline().name, metric)
    }

    /// The comparison of `contender` with `over`, in `metric` of a case.
    pub fn comparison_over(
        &self,
        experiment: &str,
        case: &str,
        contender: &str,
        over: &str,
        metric: Metric,
    ) -> Option<&Comparison> {
        self.comparisons.iter().find(|c| {
            c.experiment == experiment
                && c.case == case
                && c.contender == contender
                && c.baseline == over
                && c.metric == metric
        })
    }

    /// The summary of `contender` in `metric` of a case.
    pub fn summary(
        &self,
        experiment: &str,
        case: &str,
        contender: &str,
        metric: Metric,
    ) -> Option<&Summary> {
        self.summaries.iter().find(|s| {
            s.experiment == experiment
                && s.case == case
                && s.contender == contender
                && s.metric == metric
        })
    }
}

/// Writes `path` whole or not at all, so that a full disk does not replace an older file by half a
/// one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // The partial file may be what fills the disk.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
