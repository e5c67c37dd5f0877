// SPDX-License-Identifier: GPL-2.0-or-later
//! Requests to an agent, and their time limits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{DEFAULT_TIMEOUT_MS, bytes};

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// The agent's description of itself.
    Hello,
    /// Start a program; answers [`Reply::Spawn`] as soon as it runs.
    Spawn(Spawn),
    /// Write a line to a child's stdin and wait for the next line of its output.
    Ask {
        /// Child asked; spawned with `stdin: true`.
        name: String,
        /// Line without its end.
        line: String,
        /// Longest wait for the answer.
        timeout_ms: u64,
    },
    /// Wait for a child to end. Its name is free again after that.
    Wait {
        /// Child waited for.
        name: String,
        /// Longest wait.
        timeout_ms: u64,
    },
    /// Send a signal to a child.
    Kill {
        /// Child that gets it.
        name: String,
        /// Signal number.
        signal: i32,
    },
    /// Whether a child still runs.
    Status {
        /// Child asked about.
        name: String,
    },
    /// A child's output since an earlier call; waits if there is none.
    Output {
        /// Child asked about.
        name: String,
        /// Which of its streams.
        stream: Stream,
        /// `next` of the previous call, 0 at first.
        after: u64,
        /// Longest wait for something new.
        timeout_ms: u64,
    },
    /// Read the beginning of a file.
    ReadFile {
        /// Absolute path.
        path: String,
        /// Longest read.
        max_bytes: u64,
    },
    /// Write a file, directories above it included.
    WriteFile {
        /// Absolute path.
        path: String,
        /// New contents.
        #[serde(with = "bytes")]
        data: Vec<u8>,
        /// Permission bits of a new file.
        mode: u32,
    },
    /// Names in a directory, sorted.
    ListDir {
        /// Absolute path.
        path: String,
    },
    /// Load a kernel module after those it needs; no error if it is loaded or built in.
    LoadModule {
        /// Name, with `-` or `_`.
        name: String,
        /// `key=value` parameters, separated by spaces.
        #[serde(default)]
        params: String,
    },
    /// Unload a kernel module; no error if it is not loaded.
    UnloadModule {
        /// Name, with `-` or `_`.
        name: String,
    },
    /// CPU time of all threads of children and of their descendants.
    CpuTimes {
        /// Children asked about.
        names: Vec<String>,
    },
    /// Have threads of a child run on certain CPUs only.
    Pin {
        /// Child they belong to.
        name: String,
        /// Beginnings of threads' names, such as `CPU 0/`, and the CPUs for each.
        threads: Vec<(String, Vec<u32>)>,
    },
    /// Run a child in a control group (cgroup v2), which is made for it.
    Group(Group),
    /// A workload's counters.
    Counters {
        /// File the workload was given with `--counters`.
        path: String,
    },
    /// Start perf events of a child, for its threads and for those that they start later.
    PerfStart {
        /// Child to count.
        name: String,
    },
    /// The counts since.
    PerfRead {
        /// Child to read.
        name: String,
    },
    /// Write a line to a local service and wait for its answer, a line. The connection stays open
    /// for the next such request.
    Exchange {
        /// Path of the Unix socket it listens on.
        socket: String,
        /// Line without its end.
        line: String,
        /// Longest wait for the answer.
        timeout_ms: u64,
    },
    /// Host only: connect to a guest's agent.
    Connect(Connect),
    /// Host only: forget a guest.
    Disconnect {
        /// Guest to forget.
        guest: String,
    },
    /// Host only: pass a request on to a guest's agent.
    Relay {
        /// Guest that serves it.
        guest: String,
        /// Request it serves.
        request: Box<Request>,
    },
    /// Host only: a command for the guest's QEMU monitor (QMP), answered with its `return`.
    Qmp {
        /// Guest of the monitor.
        guest: String,
        /// `{"execute": ..., "arguments": ...}`.
        command: serde_json::Value,
    },
    /// Answer after a while, by the clock of the agent's machine.
    Sleep {
        /// Length of the wait.
        ms: u64,
    },
    /// Several requests in one go, in order, so that one sample is taken together.
    Batch {
        /// Requests; a failure of one does not stop the others.
        requests: Vec<Request>,
    },
    /// Guest only: guest-physical address of per-CPU symbols, for each CPU.
    Witness {
        /// Names as in `/proc/kallsyms`.
        symbols: Vec<String>,
    },
    /// Switch the machine off (as an ordinary child: end).
    Poweroff,
    /// Reboot the machine (as an ordinary child: end).
    Reboot,
}

impl Request {
    /// A request to start `argv` under a name, with defaults for the rest.
    pub fn spawn<S: Into<String>>(
        name: impl Into<String>,
        argv: impl IntoIterator<Item = S>,
    ) -> Self {
        Request::Spawn(Spawn {
            name: name.into(),
            argv: argv.into_iter().map(Into::into).collect(),
            ..Spawn::default()
        })
    }

    /// Pass this request on to a guest.
    pub fn relayed_to(self, guest: impl Into<String>) -> Self {
        Request::Relay { guest: guest.into(), request: Box::new(self) }
    }

    /// Longest an answer may take before the other side counts as hung.
    pub fn time_limit(&self) -> Duration {
        Duration::from_millis(self.time_limit_ms())
    }

    fn time_limit_ms(&self) -> u64 {
        self.answer_ms().saturating_add(self.wait_ms())
    }

    /// Longest an answer may take if the request itself takes no time.
    fn answer_ms(&self) -> u64 {
        match self {
            // Repeated while a guest boots; an answer that a reset has swallowed must not hold that
            // up.
            Request::Hello => 10_000,
            // Loading KVM takes an emulated host ten seconds, and many times as long beside other
            // hosts.
            Request::LoadModule { .. } => 180_000,
            Request::Relay { request, .. } => request.answer_ms(),
            Request::Batch { requests } => {
                requests.iter().map(Request::answer_ms).max().unwrap_or(DEFAULT_TIMEOUT_MS)
            }
            _ => DEFAULT_TIMEOUT_MS,
        }
    }

    /// Time that the request itself waits.
    fn wait_ms(&self) -> u64 {
        match self {
            Request::Ask { timeout_ms, .. }
            | Request::Exchange { timeout_ms, .. }
            | Request::Wait { timeout_ms, .. }
            | Request::Output { timeout_ms, .. } => *timeout_ms,
            Request::Sleep { ms } => *ms,
            // Each hop adds a little, so that the innermost one reports the hang.
            Request::Relay { request, .. } => request.wait_ms().saturating_add(5_000),
            Request::Batch { requests } => {
                requests.iter().map(Request::wait_ms).fold(1_000, u64::saturating_add)
            }
            _ => 0,
        }
    }
}

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Handle for later requests; free again after [`Request::Wait`].
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables added to the agent's own environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// CPUs it may run on; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Vec<u32>>,
    /// Keep a pipe to its stdin, for [`Request::Ask`]; else it reads from `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
}

/// Control groups for a child and its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Child to put there, with its descendants.
    pub name: String,
    /// The group, as a path below the root of the hierarchy.
    pub group: String,
    /// `cpu.weight` of the first group of this path.
    pub weight: u32,
    /// Beginnings of threads' names, such as `CPU 0/`, and the group below for each; the first
    /// match counts.
    #[serde(default)]
    pub threads: Vec<(String, String)>,
}

/// A guest for the host's agent to connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// Handle for later requests.
    pub guest: String,
    /// Unix socket of its agent port.
    pub socket: String,
    /// Unix socket of its QEMU monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qmp: Option<String>,
    /// File of its console; the tail is reported when the guest fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console: Option<String>,
    /// Child that is its QEMU; when it ends, the guest has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<String>,
}

/// One of a child's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}
