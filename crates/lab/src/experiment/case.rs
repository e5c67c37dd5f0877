// SPDX-License-Identifier: GPL-2.0-or-later
//! Workloads that run under every contender.

#[cfg(doc)]
use holdfast_testbed::workloads;
use serde::{Deserialize, Serialize};

/// The place of a workload that does not run in a guest.
pub const ON_HOST: &str = "host";

/// A workload in a guest, or on the host, run under every contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name in the result and the report.
    pub name: String,
    /// One of [`workloads::IN_GUESTS`], or on the host of [`workloads::ON_HOSTS`].
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
    /// One of [`workloads::IN_GUESTS`], or on the host of [`workloads::ON_HOSTS`].
    pub workload: String,
    /// Its threads or processes; by default as many as its guest has vCPUs, or the host CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// More arguments for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}
