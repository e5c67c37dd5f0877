// SPDX-License-Identifier: GPL-2.0-or-later
//! Stopped runs go on where they were: the file that identifies a run beside its windows, and the
//! windows that need not be measured again.
//!
//! `unfinished.json` is there from the first window of a run to its last. It names the experiments
//! and the programs, so that only windows measured alike are mixed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::experiment::Experiment;
use crate::result::{Provenance, ResultError, write_whole};
use crate::window::{Problem, Window};

const FILE: &str = "unfinished.json";
const WINDOWS: &str = "windows.jsonl";

/// A run that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unfinished {
    /// The experiments as they are run.
    pub(crate) experiments: Vec<Experiment>,
    /// Digest of the programs.
    pub(crate) programs: String,
    /// Provenance of its figures, as far as known.
    pub(crate) provenance: Provenance,
}

impl Unfinished {
    /// Writes it to `out`.
    pub(crate) fn write(&self, out: &Path) -> Result<(), ResultError> {
        let path = out.join(FILE);
        let failed = |why| ResultError::Write { path: path.clone(), why };
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        write_whole(&path, &text).map_err(failed)
    }

    /// The run in `out` is over.
    pub(crate) fn remove(out: &Path) {
        // If the file cannot be removed, the next run finds nothing left to do.
        let _ = std::fs::remove_file(out.join(FILE));
    }

    /// The windows of an earlier run of the same in `out`; else why they cannot be used, if there
    /// are any.
    pub(crate) fn find(
        out: &Path,
        experiments: &[Experiment],
        programs: &str,
    ) -> Result<Option<Earlier>, String> {
        let Some(text) = read(out, FILE)? else { return Ok(None) };
        let found: Unfinished = serde_json::from_slice(&text)
            .map_err(|e| format!("its {FILE} is damaged or of another version: {e}"))?;
        if found.experiments != experiments {
            return Err("it ran other experiments".into());
        }
        if found.programs != programs {
            return Err("it ran with other programs".into());
        }
        let log = read(out, WINDOWS)?.unwrap_or_default();
        // A killed run's last line may be half a line, which may end within a character.
        let mut windows: Vec<Window> = log
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let done = Done::of(&found.experiments, &windows);
        for window in windows.iter_mut().filter(|s| s.is_valid() && !done.has(s)) {
            window.problem = Some(Problem::Stopped);
        }
        Ok(Some(Earlier { windows, done, provenance: found.provenance }))
    }
}

/// Content of a file of `out`; none if there is no such file.
fn read(out: &Path, name: &str) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(out.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("its {name} cannot be read: {e}")),
    }
}

/// The outcome of a stopped run.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// Its windows. Those of rounds that are measured again do not count.
    pub(crate) windows: Vec<Window>,
    pub(crate) done: Done,
    pub(crate) provenance: Provenance,
}

/// Rounds of cases that need not be measured again. Windows are compared within a round, so a round
/// counts as a whole or not at all.
#[derive(Clone, Debug, Default)]
pub struct Done(BTreeSet<(String, String, u32)>);

impl Done {
    fn of(experiments: &[Experiment], windows: &[Window]) -> Done {
        let settled: BTreeSet<(&str, &str, &str, u32)> = windows
            .iter()
            .filter(|s| s.is_settled())
            .map(|s| (s.experiment.as_str(), s.case.as_str(), s.contender.as_str(), s.round))
            .collect();
        let mut done = BTreeSet::new();
        for e in experiments {
            for case in &e.cases {
                for round in 0..e.windows.rounds {
                    let is_settled = |contender: &str| {
                        settled.contains(&(e.name.as_str(), case.name.as_str(), contender, round))
                    };
                    if e.contenders.iter().all(|c| is_settled(&c.name)) {
                        done.insert((e.name.clone(), case.name.clone(), round));
                    }
                }
            }
        }
        Done(done)
    }

    fn has(&self, window: &Window) -> bool {
        self.has_round(&window.experiment, &window.case, window.round)
    }

    /// Whether this round of a case need not be measured again.
    pub fn has_round(&self, experiment: &str, case: &str, round: u32) -> bool {
        self.0.contains(&(experiment.into(), case.into(), round))
    }
}

/// Digest of everything in the dist directory: all programs that measure and are measured.
pub(crate) fn programs(dist: &Path) -> String {
    let mut digest = Sha256::new();
    for file in files(dist).into_iter().chain(files(&dist.join("workloads"))) {
        digest.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update(std::fs::read(&file).unwrap_or_default());
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata;
    use crate::window::ATTEMPTS;

    fn log(dir: &Path, windows: &[Window]) {
        let lines: Vec<String> =
            windows.iter().map(|s| serde_json::to_string(s).unwrap()).collect();
        // The last line is cut within a character.
        let cut = [lines.join("\n").as_bytes(), b"\n{\"case\": \"Gr\xc3"].concat();
        std::fs::write(dir.join(WINDOWS), cut).unwrap();
    }

    #[test]
    fn goes_on_after_the_last_whole_round() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let unfinished = Unfinished {
            experiments: result.experiments.clone(),
            programs: "p".into(),
            provenance: result.provenance.clone(),
        };
        unfinished.write(dir.path()).unwrap();
        // Three contenders, two cases: a round has six windows, and this is one and a half.
        log(dir.path(), &result.windows[..9]);
        let found = Unfinished::find(dir.path(), &result.experiments, "p").unwrap().unwrap();
        assert_eq!(found.provenance, result.provenance);
        assert_eq!(found.windows.len(), 9);
        for window in &found.windows {
            assert_eq!(window.is_valid(), window.round == 0, "{window:?}");
        }
        for case in ["lock", "lock <pause>"] {
            assert!(found.done.has_round("three-ways", case, 0));
            assert!(!found.done.has_round("three-ways", case, 1));
        }
    }

    #[test]
    fn a_window_that_failed_once_is_still_to_be_tried() {
        let mut result = testdata::result();
        let failed = result.windows.iter().position(|s| !s.is_valid()).unwrap();
        let (case, round) = (result.windows[failed].case.clone(), result.windows[failed].round);
        let has = |windows: &[Window]| {
            Done::of(&result.experiments, windows).has_round("three-ways", &case, round)
        };
        assert!(!has(&result.windows));
        // Like a window whose guest did not start.
        result.windows[failed].before = None;
        assert!(!has(&result.windows));
        let mut again = result.windows[failed].clone();
        again.attempt = ATTEMPTS - 1;
        result.windows.push(again);
        assert!(has(&result.windows), "it was tried as often as windows are");
        result.windows.last_mut().unwrap().attempt = u32::MAX;
        assert!(has(&result.windows), "or more often, in a log of another program");
    }

    #[test]
    fn nothing_is_mixed_that_was_not_measured_alike() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let find = |experiments: &[Experiment], programs| {
            Unfinished::find(dir.path(), experiments, programs)
        };
        assert!(find(&result.experiments, "p").unwrap().is_none());
        let unfinished = Unfinished {
            experiments: result.experiments.clone(),
            programs: "p".into(),
            provenance: Provenance::default(),
        };
        unfinished.write(dir.path()).unwrap();
        assert!(find(&result.experiments, "p").unwrap().is_some());
        assert!(find(&result.experiments, "q").unwrap_err().contains("programs"));
        let mut others = result.experiments.clone();
        others[0].windows.rounds += 1;
        assert!(find(&others, "p").unwrap_err().contains("experiments"));
        Unfinished::remove(dir.path());
        assert!(find(&result.experiments, "p").unwrap().is_none());
    }

    #[test]
    fn unreadable_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let find = || Unfinished::find(dir.path(), &result.experiments, "p");
        std::fs::write(dir.path().join(FILE), b"{\"experiments\": \"\xc3").unwrap();
        assert!(find().unwrap_err().contains("damaged"));
        Unfinished::remove(dir.path());
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(find().unwrap_err().contains("unfinished.json cannot be read"));
    }
}
