// SPDX-License-Identifier: GPL-2.0-or-later
//! Experiments as data: what runs, against what, for how long, and what it must show.
//!
//! An experiment is a TOML file; `docs/lab/experiments.md` is the manual for writing one.
//! Everything the runner does follows from these types, and a result carries them verbatim.

mod case;
mod check;
mod expect;
mod scale;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use holdfast_testbed::machine::Clock;
use holdfast_testbed::packages::Kernel;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::case::{Beside, Case, ON_HOST};
pub use self::expect::{Expectation, Figure};
use crate::text::read_text;

/// Largest file that is read.
const MAX_MIB: u64 = 1;

/// Why an experiment file cannot be used.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// The file could not be read.
    #[error("cannot read the experiment {path}: {why}; `holdfast lab list` shows those there are")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The directory could not be read.
    #[error("cannot list the experiments in {dir}: {why}; name a directory that has some")]
    List {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The file is not TOML, or has a key or a type that experiments do not have.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's message; it shows the line.
        message: String,
    },
    /// The keys are known, but their values do not fit together.
    #[error("{path}: {}", list(.problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every problem found, not only the first.
        problems: Vec<Problem>,
    },
    /// The machine is smaller than the experiment's host, and CPUs cannot be halved.
    #[error(
        "{name} is written for {pcpus} CPUs, and there are {has} for it here; leave out `--here` \
         to boot a host that has them"
    )]
    TooFewCpus {
        /// Name of the experiment.
        name: String,
        /// CPUs it is written for.
        pcpus: u32,
        /// CPUs that there are.
        has: usize,
    },
}

impl ExperimentError {
    /// Whether any machine would refuse it: no experiment has this name, or its text is wrong.
    pub fn is_wrong_usage(&self) -> bool {
        match self {
            Self::Read { why, .. } => matches!(
                why.kind(),
                ErrorKind::NotFound
                    | ErrorKind::NotADirectory
                    | ErrorKind::IsADirectory
                    | ErrorKind::InvalidData
                    | ErrorKind::FileTooLarge
            ),
            Self::Parse { .. } | Self::Invalid { .. } => true,
            Self::List { .. } | Self::TooFewCpus { .. } => false,
        }
    }
}

/// A message of the parser without its names of types, which are Rust's.
fn in_words(message: &str) -> String {
    const WORDS: [(&str, &str); 9] = [
        ("expected u32", "expected a whole number that is not negative"),
        ("expected u64", "expected a whole number that is not negative"),
        ("expected usize", "expected a whole number that is not negative"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected an array, such as [\"a\", \"b\"]"),
        ("invalid type: ", ""),
        ("invalid value: ", ""),
        ("unknown field", "there is no key"),
    ];
    let last = message.rfind('\n').map_or(0, |at| at + 1);
    let (excerpt, said) = message.split_at(last);
    let said = WORDS.iter().fold(said.to_owned(), |said, (from, to)| said.replace(from, to));
    let missing =
        said.strip_prefix("missing field ").map(|key| format!("there has to be a key {key}"));
    format!("{excerpt}{}", missing.unwrap_or(said))
}

/// Rounds of a quick run: the fewest that have an interval.
const QUICK_ROUNDS: u32 = 2;

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("\n  {p}")).collect()
}

/// A problem of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a path of keys: `cases[1].guest`.
    pub key: String,
    /// The problem there, and the value to write instead.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// A whole experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name, unique among experiments; the result and the report use it.
    pub name: String,
    /// One or two sentences for a reader: the question that this answers.
    #[serde(default)]
    pub summary: String,
    /// The virtual host.
    #[serde(default)]
    pub host: Host,
    /// Guests by name; each case names the guest of its workload.
    pub guests: BTreeMap<String, Guest>,
    /// Defaults of every case.
    #[serde(default)]
    pub defaults: Defaults,
    /// How the host is measured.
    #[serde(default)]
    pub windows: Windows,
    /// The schedulers that are compared.
    pub contenders: Vec<Contender>,
    /// Name of the contender the others are divided by; the first one unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Workloads that run under every contender.
    pub cases: Vec<Case>,
    /// Expectations of the result; one written for several cases, contenders or metrics is here
    /// once for each.
    #[serde(default, deserialize_with = "expect::expand")]
    pub expect: Vec<Expectation>,
}

/// The host's topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Physical CPUs (emulated ones in a virtual host).
    pub pcpus: u32,
    /// Memory of the host, guests included, MiB.
    pub memory_mib: u32,
    /// The source of its time.
    pub clock: Clock,
    /// Whether processes are in control groups: each guest in one with one for each of its
    /// vCPUs, as libvirt has them, each loop and each other program in its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cgroups: bool,
    /// pCPUs it was written for, if it was scaled to others; the lab writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaled_from: Option<u32>,
    /// CPUs of the running machine that are its pCPUs, in their order; the lab writes it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
}

impl Default for Host {
    fn default() -> Self {
        Host {
            pcpus: 2,
            memory_mib: 4096,
            clock: Clock::default(),
            cgroups: false,
            scaled_from: None,
            cpus: Vec::new(),
        }
    }
}

impl Host {
    /// What the kernel calls pCPU `pcpu`.
    pub fn cpu(&self, pcpu: u32) -> u32 {
        self.cpus.get(pcpu as usize).copied().unwrap_or(pcpu)
    }
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guest {
    /// Kernel release line.
    pub kernel: Kernel,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// KVM's paravirtual features, as a guest started with `-cpu host` would have them.
    pub cpu: CpuFeatures,
    /// More words for the guest's kernel command line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cmdline: String,
    /// CPUs of the host its vCPUs are pinned to, one each in turn and round again; not pinned if
    /// empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pin: Vec<u32>,
    /// How many CPUs each of these is: from that one on, and a vCPU may run on all of them.
    #[serde(skip_serializing_if = "is_one")]
    pub pin_width: u32,
    /// Whether it stays as it is, with the threads of its workloads, where the experiment is scaled
    /// to a larger host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
    /// Whether the guest itself times its waits for spinlocks (`holdfast spins`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub spins: bool,
}

/// As serde asks for it.
fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Default for Guest {
    fn default() -> Self {
        Guest {
            kernel: Kernel::default(),
            vcpus: 4,
            memory_mib: 384,
            cpu: CpuFeatures::default(),
            cmdline: String::new(),
            pin: Vec::new(),
            pin_width: 1,
            fixed: false,
            spins: false,
        }
    }
}

/// The paravirtual features a guest is offered; all of them unless switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CpuFeatures {
    /// `kvm-pv-unhalt`: a vCPU that waits for a spinlock halts and is kicked.
    pub pv_spinlocks: bool,
    /// `kvm-pv-tlb-flush`: no shootdown interrupts to preempted vCPUs.
    pub pv_tlb_flush: bool,
    /// `kvm-pv-ipi`: interrupts to many vCPUs in one hypercall.
    pub pv_ipi: bool,
    /// `kvm-pv-sched-yield`: a sender of interrupts yields to a preempted receiver.
    pub pv_sched_yield: bool,
    /// `kvm-poll-control`: the guest decides whether a halt polls first.
    pub poll_control: bool,
    /// `kvm-steal-time`: the record by which Holdfast finds the guest's per-CPU area.
    pub steal_time: bool,
}

impl Default for CpuFeatures {
    fn default() -> Self {
        CpuFeatures {
            pv_spinlocks: true,
            pv_tlb_flush: true,
            pv_ipi: true,
            pv_sched_yield: true,
            poll_control: true,
            steal_time: true,
        }
    }
}

/// Defaults of every case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Name of the guest; may be left out where there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Endless loops that run on the host beside the guest.
    pub hogs: u32,
    /// Whether a PAUSE of a spinning vCPU exits to the host.
    pub pause_exits: bool,
}

/// How the host is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Windows {
    /// Time between the first operation of the workload, which every window starts, and the first
    /// snapshot, ms.
    pub warmup_ms: u64,
    /// Length of a window, ms.
    pub length_ms: u64,
    /// Windows of each contender in each case.
    pub rounds: u32,
    /// Whether the observer counts preemptions beside every contender.
    pub observe: bool,
    /// Whether the host's CPUs count cycles, instructions, and misses of caches and branches in the
    /// VM's process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counters: bool,
}

impl Default for Windows {
    fn default() -> Self {
        Windows { warmup_ms: 500, length_ms: 1500, rounds: 6, observe: true, counters: false }
    }
}

/// A scheduler, or programs beside one, that is compared with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// Name in the result and the report.
    pub name: String,
    /// Program and arguments that make the scheduler; empty for the kernel's own.
    #[serde(default)]
    pub command: Vec<String>,
    /// Whether the observer counts preemptions beside it, where it is not as with the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<bool>,
    /// Other programs, with their arguments, that run as long as it schedules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<Vec<String>>,
}

impl Contender {
    /// Whether this is the kernel's own scheduler, and nothing else.
    pub fn is_stock(&self) -> bool {
        !self.schedules() && self.programs.is_empty()
    }

    /// Whether it is another scheduler than the kernel's own.
    pub fn schedules(&self) -> bool {
        !self.command.is_empty()
    }

    /// Everything it starts.
    pub fn commands(&self) -> impl Iterator<Item = &[String]> {
        let scheduler = self.schedules().then_some(&*self.command);
        scheduler.into_iter().chain(self.programs.iter().map(|program| &**program))
    }
}

/// A name that more than one of them has.
pub(crate) fn namesakes(experiments: &[Experiment]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    experiments.iter().map(|e| e.name.as_str()).find(|name| !seen.insert(*name))
}

/// A file, and the result of reading it.
pub type Listed = (PathBuf, Result<Experiment, ExperimentError>);

impl Experiment {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Experiment, ExperimentError> {
        let text = read_text(path, MAX_MIB)
            .map_err(|why| ExperimentError::Read { path: path.into(), why })?;
        Experiment::parse(&text, path)
    }

    /// Reads and checks every experiment in `dir`, in the order of their names.
    pub fn list(dir: &Path) -> Result<Vec<Listed>, ExperimentError> {
        let failed = |why| ExperimentError::List { dir: dir.into(), why };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // Figures that a document published are beside the experiment they are compared with.
            let is_figures = path.to_string_lossy().ends_with(".published.toml");
            // Reading a pipe would wait for its writer.
            let is_other = path.metadata().is_ok_and(|found| !found.is_file());
            if path.extension().is_some_and(|e| e == "toml") && !is_figures && !is_other {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths.into_iter().map(|p| (p.clone(), Experiment::read(&p))).collect())
    }

    /// Parses and checks `text`; `path` is for messages only.
    pub fn parse(text: &str, path: &Path) -> Result<Experiment, ExperimentError> {
        let experiment: Experiment = toml::from_str(text).map_err(|e| ExperimentError::Parse {
            path: path.into(),
            message: in_words(e.to_string().trim_end()),
        })?;
        let mut problems = experiment.problems();
        problems.extend(experiment.written_by_the_lab());
        if problems.is_empty() {
            Ok(experiment)
        } else {
            Err(ExperimentError::Invalid { path: path.into(), problems })
        }
    }

    /// The contender all others are divided by.
    pub fn baseline(&self) -> &Contender {
        self.baseline
            .as_ref()
            .and_then(|name| self.contenders.iter().find(|c| c.name == *name))
            .unwrap_or(&self.contenders[0])
    }

    /// The guest `case` runs in, with its name; none if it runs on the host.
    ///
    /// # Panics
    /// If the experiment was not checked: a checked one has every guest that is named.
    pub fn guest_of(&self, case: &Case) -> Option<(&str, &Guest)> {
        let name = case.guest.as_ref().or(self.defaults.guest.as_ref());
        let found = match name {
            Some(name) if name == ON_HOST => return None,
            Some(name) => self.guests.get_key_value(name),
            None => self.guests.first_key_value(),
        };
        let (name, guest) = found.expect("a checked experiment has every guest that is named");
        Some((name, guest))
    }

    /// Every guest that runs in `case`, that of its own workload first.
    pub fn guests_of<'a>(&'a self, case: &'a Case) -> Vec<&'a str> {
        let beside = case.beside.iter().map(|b| b.on.as_str()).filter(|on| *on != ON_HOST);
        self.guest_of(case).map(|(name, _)| name).into_iter().chain(beside).collect()
    }

    /// Threads of a workload that runs beside that of its case.
    pub fn threads_beside(&self, beside: &Beside) -> u32 {
        let vcpus = self.guests.get(&beside.on).map_or(self.host.pcpus, |guest| guest.vcpus);
        beside.threads.unwrap_or(vcpus)
    }

    /// Endless loops beside the guest in `case`.
    pub fn hogs_of(&self, case: &Case) -> u32 {
        case.hogs.unwrap_or(self.defaults.hogs)
    }

    /// Whether PAUSE exits in `case`.
    pub fn pause_exits_of(&self, case: &Case) -> bool {
        case.pause_exits.unwrap_or(self.defaults.pause_exits)
    }

    /// Threads of the workload of `case`.
    pub fn threads_of(&self, case: &Case) -> u32 {
        let cpus = self.guest_of(case).map_or(self.host.pcpus, |(_, guest)| guest.vcpus);
        case.threads.unwrap_or(cpus)
    }

    /// Whether the observer runs beside `contender`.
    pub fn observes(&self, contender: &Contender) -> bool {
        contender.observe.unwrap_or(self.windows.observe)
    }

    /// The same in a fraction of the time: fewer and shorter windows, without the cases that are
    /// slow. It shows a direction, and has too few rounds for a significant difference.
    pub fn quick(mut self) -> Experiment {
        // Windows have to include some of the guest's reports of its spinlocks.
        let times_spins = self.guests.values().any(|guest| guest.spins);
        let shorter = |ms: u64| match times_spins {
            true => ms,
            false => (ms * 2 / 5).clamp(600.min(ms), ms),
        };
        self.windows.rounds = self.windows.rounds.min(QUICK_ROUNDS);
        self.windows.length_ms = shorter(self.windows.length_ms);
        for case in &mut self.cases {
            case.length_ms = case.length_ms.map(shorter);
        }
        if self.cases.iter().any(|case| !case.slow) {
            self.cases.retain(|case| !case.slow);
        }
        self.forget_expectations_of_others();
        self
    }

    /// Only these of its cases; none is left if it has none of them.
    pub fn only(mut self, cases: &[String]) -> Experiment {
        self.cases.retain(|case| cases.contains(&case.name));
        self.forget_expectations_of_others();
        self
    }

    /// Expectations of cases that are not measured.
    fn forget_expectations_of_others(&mut self) {
        let cases = &self.cases;
        let is_measured = |name: &String| cases.iter().any(|case| case.name == *name);
        self.expect
            .retain(|e| is_measured(&e.case) && e.over_case.as_ref().is_none_or(is_measured));
    }

    /// Length of a window of `case`, ms.
    pub fn length_ms_of(&self, case: &Case) -> u64 {
        case.length_ms.unwrap_or(self.windows.length_ms)
    }
}

#[cfg(test)]
mod tests;
