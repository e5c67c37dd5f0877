// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs experiments and leaves a directory of results: `result.json`, `report.html`, and
//! `windows.jsonl`, which is written while the run goes on.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use holdfast_testbed::progress::Progress;
use holdfast_testbed::{Error, Result};

use crate::analysis;
use crate::experiment::{self, Experiment};
use crate::report::html;
use crate::result::{MachineFacts, Provenance, ResultError, RunResult};
use crate::resume::{self, Done, Earlier, Unfinished};
use crate::runner::{self, Boot, Host, LabHost, Measured, Options, Part, Place};
use crate::stats::Settings;
use crate::window::Window;

/// Names of the results of earlier runs begin with this.
const KEPT: &str = "previous";

/// Is this the name of a kept result of an earlier run?
pub fn is_kept_result(name: &str) -> bool {
    name.starts_with(KEPT) && name.ends_with(".json")
}

/// A run of one or more experiments.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// What to run, in order.
    pub experiments: Vec<Experiment>,
    /// Where hosts are booted and how.
    pub place: Place,
    /// How each experiment is run.
    pub options: Options,
    /// How the comparisons are made.
    pub statistics: Settings,
    /// Directory for the results.
    pub out: PathBuf,
    /// Whether the page has the schedulers' own counters.
    pub verbose: bool,
    /// Whether to start over, although the directory has a stopped run of the same experiments.
    pub afresh: bool,
    /// Version of Holdfast.
    pub version: String,
    /// Commit it was built from.
    pub commit: Option<String>,
}

/// The results of a campaign.
#[derive(Debug)]
pub struct Finished {
    /// The result, as in `result.json`.
    pub result: RunResult,
    /// Path of the result.
    pub result_path: PathBuf,
    /// Path of the page.
    pub report_path: PathBuf,
    /// Why it ended early, if it did.
    pub ended_by: Option<Error>,
    /// Why one of these files could not be written: the result, its page, `windows.jsonl`, or the
    /// file that lets a later run go on.
    pub unwritten: Option<ResultError>,
}

/// Why a campaign left nothing.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// No window was measured.
    #[error("nothing was measured")]
    Nothing(#[source] Error),
    /// Two experiments share a name, which tells windows apart.
    #[error("two experiments are called \"{0}\"; give each another name, and name each once")]
    Namesakes(String),
    /// Another run uses the directory.
    #[error(
        "another run is writing to {}; wait until it ends, or choose another directory with \
         --output",
        .0.display()
    )]
    Busy(PathBuf),
    /// The results could not be kept.
    #[error(transparent)]
    Result(#[from] ResultError),
}

impl CampaignError {
    /// Whether this machine cannot do it, rather than something having failed.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, CampaignError::Nothing(Error::Unsupported(_)))
    }

    /// Whether any machine would refuse it.
    pub fn is_wrong_usage(&self) -> bool {
        matches!(self, CampaignError::Namesakes(_) | CampaignError::Nothing(Error::Counting))
    }
}

impl Campaign {
    /// Runs it in the lab.
    pub fn run(&self, progress: &Progress) -> Result<Finished, CampaignError> {
        self.check_names()?;
        for experiment in &self.experiments {
            LabHost::check(experiment, &self.place).map_err(CampaignError::Nothing)?;
        }
        let boot = |experiment: &Experiment| {
            let host = LabHost::boot(experiment, &self.place, progress)?;
            Ok(Box::new(host) as Box<dyn Host>)
        };
        self.run_on(&boot, progress)
    }

    /// Runs it on hosts that `boot` makes; a stopped run goes on where it was.
    pub fn run_on(&self, boot: &Boot, progress: &Progress) -> Result<Finished, CampaignError> {
        self.check_names()?;
        let experiments = self.experiments();
        let _lock = self.lock()?;
        let programs = resume::programs(&self.place.dist);
        let earlier = self.earlier(&experiments, &programs, progress);
        let began = began(&earlier.windows);
        let mut provenance = earlier.provenance;
        for scaling in experiments.iter().filter_map(|e| e.scaling(nr_online())) {
            progress.note(&scaling);
            extend(&mut provenance.notes, vec![scaling]);
        }
        let unfinished = Unfinished {
            experiments: experiments.clone(),
            programs,
            provenance: provenance.clone(),
        };
        let mut log = Log::create(&self.out, unfinished, &earlier.windows)?;
        let mut windows = earlier.windows;
        let mut log_error = None;
        let mut ended_by = None;
        let mut nr_run = 0;
        for (i, experiment) in experiments.iter().enumerate() {
            let later = &experiments[i + 1..];
            let part = Part { began, done: earlier.done.clone(), later };
            let keep = &mut |window: Window| {
                if let Err(error) = log.append(&window)
                    && log_error.is_none()
                {
                    progress.note(&format!("{error}; if the run is stopped it starts over"));
                    log_error = Some(error);
                }
                windows.push(window);
            };
            let measured = runner::run(experiment, &self.options, boot, progress, &part, keep);
            nr_run = i + 1;
            ended_by = add(&mut provenance, measured);
            log_error = log.know(&provenance).err().or(log_error.take());
            if ended_by.is_some() {
                break;
            }
        }
        if !windows.iter().any(|s: &Window| s.after.is_some())
            && let Some(error) = ended_by
        {
            return Err(CampaignError::Nothing(error));
        }
        provenance.duration_s = began.elapsed().as_secs_f64();
        if let Some(error) = &ended_by {
            provenance.notes.push(format!("the run ended early: {error}"));
        }
        let run = experiments[..nr_run].to_vec();
        let result = analysis::conclude(provenance, run, windows, ended_by.is_some());
        let result_path = self.out.join("result.json");
        let report_path = self.out.join("report.html");
        self.keep_earlier(&result, &result_path, &report_path, progress);
        let written = result
            .write(&result_path)
            .and_then(|()| html::write(&result, &report_path, self.verbose));
        if ended_by.is_none() && written.is_ok() {
            Unfinished::remove(&self.out);
        }
        let unwritten = written.err().or(log_error);
        Ok(Finished { result, result_path, report_path, ended_by, unwritten })
    }

    fn check_names(&self) -> Result<(), CampaignError> {
        let twice = experiment::namesakes(&self.experiments);
        twice.map_or(Ok(()), |name| Err(CampaignError::Namesakes(name.into())))
    }

    /// Keeps another run's result under another name if it is complete, or cannot be read by this
    /// version: this run may be stopped early.
    fn keep_earlier(&self, ours: &RunResult, result: &Path, report: &Path, progress: &Progress) {
        let is_of_another = |r: &RunResult| r.provenance.date != ours.provenance.date;
        let date = match RunResult::read(result) {
            Ok(earlier) if earlier.partial || !is_of_another(&earlier) => return,
            Ok(earlier) => format!("the result of {}", earlier.provenance.date),
            Err(_) if result.is_file() => "a result that this version cannot read".into(),
            Err(_) => return,
        };
        let names = (1..).map(|n| if n == 1 { KEPT.into() } else { format!("{KEPT}-{n}") });
        let mut free = names.filter(|name| !self.out.join(format!("{name}.json")).exists());
        let name: String = free.next().expect("there are endless names");
        let kept = self.out.join(format!("{name}.json"));
        if std::fs::rename(result, &kept).is_ok() {
            // A page can be made again.
            let _ = std::fs::rename(report, self.out.join(format!("{name}.html")));
            progress.note(&format!("{date} is {} now", kept.display()));
        }
    }

    /// Makes the directory, and locks it against other runs.
    fn lock(&self) -> Result<Lock, CampaignError> {
        let failed = |why| ResultError::Write { path: self.out.clone(), why };
        let made = Made::new(&self.out).map_err(failed)?;
        let dir = File::open(&self.out).map_err(failed)?;
        match dir.try_lock() {
            Err(TryLockError::WouldBlock) => Err(CampaignError::Busy(self.out.clone())),
            // Some file systems have no locks, which is no reason not to measure.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Lock { _made: made, _dir: dir }),
        }
    }

    /// The experiments as they are run.
    fn experiments(&self) -> Vec<Experiment> {
        let mut experiments = self.experiments.clone();
        for experiment in &mut experiments {
            experiment.windows.rounds = self.options.rounds.unwrap_or(experiment.windows.rounds);
        }
        experiments
    }

    /// The windows of a stopped run, or none.
    fn earlier(&self, experiments: &[Experiment], programs: &str, progress: &Progress) -> Earlier {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let found =
            if self.afresh { Ok(None) } else { Unfinished::find(&self.out, experiments, programs) };
        match found {
            Ok(Some(mut earlier)) => {
                let nr_kept = earlier.windows.iter().filter(|s| s.is_valid()).count();
                progress.note(&format!(
                    "resuming the run that was stopped in {}: {nr_kept} windows count",
                    self.out.display()
                ));
                earlier.provenance.notes.push(format!("the run was stopped, and went on at {now}"));
                return earlier;
            }
            Ok(None) => (),
            Err(why) => progress.note(&format!(
                "{} has a stopped run that cannot be resumed: {why}",
                self.out.display()
            )),
        }
        let provenance = Provenance {
            date: now,
            holdfast_version: self.version.clone(),
            holdfast_commit: self.commit.clone(),
            machine: machine_facts(),
            statistics: self.statistics,
            ..Provenance::default()
        };
        Earlier { windows: Vec::new(), done: Done::default(), provenance }
    }
}

/// Locks a directory against other runs.
struct Lock {
    /// Dropped first: the lock still holds while empty directories are removed.
    _made: Made,
    _dir: File,
}

/// Directories made for a run, the innermost first. Empty ones are removed.
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes `dir` and its missing parents.
    fn new(dir: &Path) -> std::io::Result<Self> {
        let missing =
            dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        // Removes the directories made so far if one of them cannot be made.
        let made = Made(missing.map(Path::to_path_buf).collect());
        match std::fs::create_dir_all(dir) {
            // A file has that name.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(ErrorKind::NotADirectory.into())
            }
            done => done.map(|()| made),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Fails if the directory is not empty, as it should.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// The time at which a run with these windows began: now less the time it was running.
fn began(windows: &[Window]) -> Instant {
    let ran_s = windows.iter().map(|s| s.start_s).fold(0.0, f64::max);
    let now = Instant::now();
    let ran = Duration::try_from_secs_f64(ran_s).unwrap_or_default();
    now.checked_sub(ran).unwrap_or(now)
}

/// Adds the facts about an experiment, which may have been started before.
fn add(provenance: &mut Provenance, measured: Measured) -> Option<Error> {
    if let Some(facts) = measured.facts {
        provenance.accelerator = facts.accelerator;
        provenance.qemu = facts.qemu.or(provenance.qemu.take());
        provenance.packages.extend(facts.packages);
    }
    extend(&mut provenance.hosts, measured.hosts);
    extend(&mut provenance.guests, measured.guests);
    extend(&mut provenance.notes, measured.notes);
    measured.ended_by
}

fn extend<T: PartialEq>(list: &mut Vec<T>, more: Vec<T>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// Windows as they come, one per line, and beside them the identity of the run.
struct Log {
    out: PathBuf,
    path: PathBuf,
    unfinished: Unfinished,
    /// File for lines until there is a first one: a run that measures nothing leaves an earlier
    /// run's log.
    beside: Option<PathBuf>,
    file: File,
    /// Lines that are not in the file yet: a full disk may have room by the next window.
    unwritten: Vec<u8>,
}

impl Log {
    fn create(out: &Path, unfinished: Unfinished, earlier: &[Window]) -> Result<Self, ResultError> {
        let path = out.join("windows.jsonl");
        let failed = |why| ResultError::Write { path: path.clone(), why };
        let beside = path.with_extension("jsonl.new");
        let file = File::create(&beside).map_err(failed)?;
        let out = out.to_path_buf();
        let unwritten = Vec::new();
        let mut log = Log { out, path, unfinished, beside: Some(beside), file, unwritten };
        if !earlier.is_empty() {
            log.copy(earlier).map_err(|why| ResultError::Write { path: log.path.clone(), why })?;
            log.take_over()?;
        }
        Ok(log)
    }

    /// Copies the windows of an earlier run. Its own log stays until all of them are on the disk.
    fn copy(&mut self, earlier: &[Window]) -> std::io::Result<()> {
        let lines = earlier.iter().map(line).collect::<Result<Vec<_>, _>>()?.concat();
        self.file.write_all(&lines)?;
        self.file.sync_all()
    }

    fn append(&mut self, window: &Window) -> Result<(), ResultError> {
        let failed = |why| ResultError::Write { path: self.path.clone(), why };
        self.unwritten.extend(line(window).map_err(failed)?);
        write_out(&mut self.file, &mut self.unwritten).map_err(failed)?;
        self.take_over()
    }

    /// Takes the place of an earlier log, once.
    fn take_over(&mut self) -> Result<(), ResultError> {
        let Some(beside) = &self.beside else { return Ok(()) };
        std::fs::rename(beside, &self.path)
            .map_err(|why| ResultError::Write { path: self.path.clone(), why })?;
        self.beside = None;
        self.unfinished.write(&self.out)
    }

    /// Keeps the provenance as far as it is known.
    fn know(&mut self, provenance: &Provenance) -> Result<(), ResultError> {
        self.unfinished.provenance = provenance.clone();
        // Before the first line a later run has nothing to go on with.
        if self.beside.is_some() { Ok(()) } else { self.unfinished.write(&self.out) }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // Its content is elsewhere, too: a file that stays is untidy, but no more.
            let _ = std::fs::remove_file(beside);
        }
    }
}

/// Writes `bytes` and drops what is written, so that the next try goes on after a failure, even in
/// the middle of a line.
fn write_out(file: &mut File, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => drop(bytes.drain(..n)),
            Err(e) if e.kind() == ErrorKind::Interrupted => (),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn line(window: &Window) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(window)?;
    line.push(b'\n');
    Ok(line)
}

/// CPUs online of this machine, including those that this process may not use.
fn nr_online() -> u32 {
    // SAFETY: plain library call.
    let nr = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    nr.try_into().unwrap_or(1)
}

fn machine_facts() -> MachineFacts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    MachineFacts {
        cpu_model: model.map_or_else(|| "an unknown CPU".into(), |(_, name)| name.trim().into()),
        nr_cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        kernel_release: read("/proc/sys/kernel/osrelease").trim().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixStream;

    use holdfast_testbed::machine::Accel;

    use super::*;
    use crate::testdata;

    fn unfinished(result: &RunResult) -> Unfinished {
        Unfinished {
            experiments: result.experiments.clone(),
            programs: "p".into(),
            provenance: result.provenance.clone(),
        }
    }

    fn campaign(out: &Path) -> Campaign {
        Campaign {
            experiments: testdata::result().experiments,
            place: Place { accel: Accel::Here, dist: out.join("no-dist") },
            options: Options::default(),
            statistics: Settings::default(),
            out: out.into(),
            verbose: false,
            afresh: false,
            version: "0".into(),
            commit: None,
        }
    }

    /// The outcome of a run on a machine that cannot boot a host.
    fn run(campaign: &Campaign) -> Result<Finished, CampaignError> {
        let boot = |_: &Experiment| Err(Error::Unsupported("no host".into()));
        campaign.run_on(&boot, &Progress::silent())
    }

    #[test]
    fn one_run_at_a_time_writes_to_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let campaign = campaign(&dir.path().join("out"));
        let lock = campaign.lock().unwrap();
        let busy = run(&campaign).unwrap_err();
        assert!(matches!(busy, CampaignError::Busy(_)), "{busy}");
        drop(lock);
        assert!(run(&campaign).unwrap_err().is_unsupported());
    }

    #[test]
    fn a_run_that_measures_nothing_leaves_no_directory_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (results, theirs) = (dir.path().join("results"), dir.path().join("theirs"));
        assert!(run(&campaign(&results.join("demo"))).unwrap_err().is_unsupported());
        assert!(!results.exists());
        // Not all of its directories can be made.
        std::fs::write(dir.path().join("file"), "").unwrap();
        run(&campaign(&dir.path().join("new/../file/demo"))).unwrap_err();
        assert!(!dir.path().join("new").exists());
        std::fs::create_dir(&theirs).unwrap();
        run(&campaign(&theirs)).unwrap_err();
        assert!(theirs.exists());
    }

    #[test]
    fn missing_programs_are_reported_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let campaign = campaign(&dir.path().join("out"));
        let missing = campaign.run(&Progress::silent()).unwrap_err();
        let CampaignError::Nothing(Error::Missing { programs, .. }) = &missing else {
            panic!("{missing}")
        };
        assert!(programs.contains(&"holdfast-agent".into()), "{programs:?}");
        assert!(programs.contains(&"workloads/lock".into()), "{programs:?}");
    }

    #[test]
    fn two_experiments_of_one_name_are_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut campaign = campaign(&dir.path().join("out"));
        campaign.experiments.extend(testdata::result().experiments);
        let refused = run(&campaign).unwrap_err();
        assert!(matches!(refused, CampaignError::Namesakes(_)), "{refused}");
        assert!(refused.to_string().contains("\"three-ways\"") && !campaign.out.exists());
    }

    #[test]
    fn an_earlier_log_stays_until_the_new_one_has_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let path = dir.path().join("windows.jsonl");
        std::fs::write(&path, "what was measured").unwrap();
        // Stands for a disk that fills up after the first window: a pipe whose reader leaves.
        let new = dir.path().join("windows.jsonl.new");
        let name = CString::new(new.as_os_str().as_bytes()).unwrap();
        // SAFETY: a plain system call with a string that is terminated.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let reader = std::thread::spawn({
            let new = new.clone();
            move || File::open(new).unwrap().read_exact(&mut [0]).unwrap()
        });
        let created = Log::create(dir.path(), unfinished(&result), &result.windows);
        reader.join().unwrap();
        assert!(created.is_err());
        assert!(path.symlink_metadata().unwrap().is_file() && !new.exists());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "what was measured");

        let mut log = Log::create(dir.path(), unfinished(&result), &result.windows[1..]).unwrap();
        log.append(&result.windows[0]).unwrap();
        let found = Unfinished::find(dir.path(), &result.experiments, "p").unwrap().unwrap();
        assert_eq!(found.windows.len(), result.windows.len());
        assert_eq!(found.windows[0].start_s, result.windows[1].start_s);
    }

    #[test]
    fn a_line_that_is_cut_by_a_full_disk_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let mut log = Log::create(dir.path(), unfinished(&result), &result.windows[..1]).unwrap();
        // Stands for a disk that fills up within the line, and has room again after a read.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        log.file = File::from(OwnedFd::from(ours));
        let mut long = result.windows[0].clone();
        long.problem = Some(crate::window::Problem::Window { why: "x".repeat(300_000) });
        log.append(&long).unwrap_err();
        let mut logged = Vec::new();
        theirs.read_to_end(&mut logged).unwrap_err();
        assert!(!logged.is_empty() && !logged.contains(&b'\n'), "it was cut");
        for window in &result.windows[1..3] {
            let _ = log.append(window);
            theirs.read_to_end(&mut logged).unwrap_err();
        }
        let lines = logged.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let windows: Vec<Window> =
            lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        assert_eq!(windows, [&[long], &result.windows[1..3]].concat());
    }

    #[test]
    fn a_result_is_kept_without_a_writable_log() {
        let dir = tempfile::tempdir().unwrap();
        let result = testdata::result();
        let campaign = campaign(dir.path());
        let programs = resume::programs(&campaign.place.dist);
        let earlier = Unfinished { programs, ..unfinished(&result) };
        drop(Log::create(dir.path(), earlier, &result.windows).unwrap());
        let boot = |_: &Experiment| {
            // A directory cannot be replaced by a file.
            let _ = std::fs::create_dir(dir.path().join("unfinished.json.new"));
            Err(Error::Unsupported("no host".into()))
        };
        let finished = campaign.run_on(&boot, &Progress::silent()).unwrap();
        let error = finished.unwritten.expect("it could not be written");
        assert!(error.to_string().contains("unfinished.json"), "{error}");
        let kept = RunResult::read(&finished.result_path).unwrap();
        assert!(kept.windows.len() >= result.windows.len());
        assert!(finished.report_path.is_file());
    }
}
