// SPDX-License-Identifier: GPL-2.0-or-later
//! Workloads that run under every contender.

use serde::{Deserialize, Serialize};

/// Programs that may run in a guest; `workloads/` has them.
pub const WORKLOADS: [&str; 17] = [
    "lock",
    "build",
    "metadata",
    "tlb",
    "fork",
    "urandom",
    "hackbench",
    "pipes",
    "hog",
    "ebizzy",
    "mm",
    "pool",
    "rwlock",
    "futex",
    "mutex",
    "sysbench",
    "wakeup",
];

/// Programs that may run on the host: those that need no other files, and the one that is a virtual
/// machine itself.
pub const WORKLOADS_ON_HOST: [&str; 14] = [
    "hostile", "hog", "lock", "metadata", "tlb", "fork", "pipes", "ebizzy", "mm", "pool", "rwlock",
    "futex", "mutex", "wakeup",
];

/// The place of a workload that does not run in a guest.
pub const ON_HOST: &str = "host";

/// A workload in a guest, or on the host, run under every contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name in the result and the report.
    pub name: String,
    /// One of [`WORKLOADS`], or on the host of [`WORKLOADS_ON_HOST`].
    pub workload: String,
    /// Threads or processes of the workload; by default as many as its guest has vCPUs, or the host
    /// CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// More arguments for the workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Name of the guest it runs in, or [`ON_HOST`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Other guests, or programs on the host, that run a workload at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside>,
    /// Endless loops beside the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hogs: Option<u32>,
    /// Whether a PAUSE of a spinning vCPU exits to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_exits: Option<bool>,
    /// Length of this case's windows, ms, if it differs from the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_ms: Option<u64>,
    /// Operations of its workload before a window begins, if the warm-up is too short for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_ops: Option<u64>,
    /// Whether a quick run leaves it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slow: bool,
}

/// A workload that runs at the same time as the case's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Name of the guest it runs in, another than the case's own, or [`ON_HOST`].
    pub on: String,
    /// One of [`WORKLOADS`], or on the host of [`WORKLOADS_ON_HOST`].
    pub workload: String,
    /// Its threads or processes; by default as many as its guest has vCPUs, or the host CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// More arguments for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}
