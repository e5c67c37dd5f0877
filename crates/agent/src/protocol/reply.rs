// SPDX-License-Identifier: GPL-2.0-or-later
//! An agent's answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Outcome, bytes};

/// An agent's answer; the variant is that of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello(Hello),
    /// To [`Request::Spawn`].
    Spawn {
        /// Process id.
        pid: i32,
    },
    /// To [`Request::Ask`].
    Ask {
        /// Line without its end.
        line: String,
    },
    /// To [`Request::Wait`].
    Wait(Ended),
    /// To [`Request::Status`].
    Status {
        /// Process id.
        pid: i32,
        /// Whether it has not ended.
        running: bool,
        /// How it ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<ExitStatus>,
    },
    /// To [`Request::Output`].
    Output {
        /// The output.
        #[serde(with = "bytes")]
        data: Vec<u8>,
        /// `after` for the next call.
        next: u64,
        /// Bytes that were overwritten before they were read.
        lost: u64,
        /// Whether the stream has ended.
        ended: bool,
    },
    /// To [`Request::ReadFile`].
    ReadFile {
        /// Contents.
        #[serde(with = "bytes")]
        data: Vec<u8>,
        /// Whether the file is longer than `max_bytes`.
        truncated: bool,
    },
    /// To [`Request::ListDir`].
    ListDir {
        /// Names, sorted, without `.` and `..`.
        names: Vec<String>,
    },
    /// To [`Request::CpuTimes`].
    CpuTimes(CpuTimes),
    /// To [`Request::Counters`].
    Counters(Counters),
    /// To [`Request::PerfRead`].
    Perf(PerfCounts),
    /// To [`Request::Exchange`].
    Exchange {
        /// Line without its end.
        line: String,
        /// `CLOCK_MONOTONIC` when it came.
        t_ns: u64,
    },
    /// To [`Request::Relay`].
    Relay {
        /// The guest's answer.
        reply: Box<Reply>,
    },
    /// To [`Request::Qmp`].
    Qmp {
        /// The monitor's `return` value.
        value: serde_json::Value,
    },
    /// To [`Request::Batch`].
    Batch {
        /// One for each request, in order.
        responses: Vec<Outcome>,
    },
    /// To [`Request::Witness`].
    Witness(Witness),
    /// To requests without a result.
    Done,
}

/// An agent's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the agent.
    pub protocol: u32,
    /// Its role.
    pub role: Role,
    /// `uname -r`.
    pub kernel_release: String,
    /// The kernel's command line.
    pub cmdline: String,
    /// CPUs online.
    pub nr_cpus: u32,
    /// Time since the kernel started, as the kernel counts it.
    pub uptime_ms: u64,
    /// A new one after each boot.
    pub boot_id: String,
}

/// An agent's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A machine that runs guests.
    Host,
    /// A guest.
    Guest,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Last output.
    pub stdout_tail: String,
    /// Last error output.
    pub stderr_tail: String,
}

/// Exit code or signal: one of them is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Exit code of a child that ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl ExitStatus {
    /// Whether the child ended by itself with code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (_, Some(signal)) => write!(f, "signal {signal}"),
            _ => write!(f, "an unknown status"),
        }
    }
}

/// CPU time of children's threads at one moment; from `/proc/PID/task/TID/schedstat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// `CLOCK_MONOTONIC` when it was read.
    pub t_ns: u64,
    /// One for each thread.
    pub tasks: Vec<TaskTime>,
}

/// CPU time of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTime {
    /// Child it belongs to.
    pub name: String,
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Thread name, e.g. `CPU 0/KVM` for a vCPU.
    pub comm: String,
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time runnable but not on a CPU.
    pub wait_ns: u64,
    /// Times it was put on a CPU.
    pub switches: u64,
}

/// A workload's counters at one moment, all its threads together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// `CLOCK_MONOTONIC` when they were read, in the machine that read them.
    pub t_ns: u64,
    /// Operations done.
    pub ops: u64,
    /// `hist[i]`: operations that took [2^i, 2^(i+1)) ns; 64 of them.
    pub hist: Vec<u64>,
}

/// Perf events of a child at one moment, all its threads together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerfCounts {
    /// `CLOCK_MONOTONIC` when it was read.
    pub t_ns: u64,
    /// Event (`cycles`, `instructions`, `cache_references`, `cache_misses`, `branches`,
    /// `branch_misses`): its count, scaled up where it was not counted all the time.
    pub counts: BTreeMap<String, u64>,
    /// Event that is not counted: why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, String>,
}

/// Addresses of per-CPU symbols, as the guest itself sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// One for each online CPU.
    pub cpus: Vec<WitnessCpu>,
}

/// Addresses of one CPU's symbols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessCpu {
    /// CPU number in the guest.
    pub cpu: u32,
    /// Guest-physical address of each symbol.
    pub symbols: BTreeMap<String, u64>,
}
