// SPDX-License-Identifier: GPL-2.0-or-later
//! The protocol of the lab and its agents: one JSON object a line, over a byte stream.
//!
//! The lab sends a [`Call`], the agent answers each with one [`Answer`] of the same id. Calls are
//! served concurrently, so answers may come in another order. [`Request::Batch`] is served in
//! order.
//!
//! ```text
//! {"id":1,"op":"status","name":"hog0"}
//! {"id":1,"ok":{"op":"status","pid":77,"running":true}}
//! {"id":2,"op":"status","name":"nobody"}
//! {"id":2,"error":{"message":"no child is called `nobody`"}}
//! ```

mod bytes;
mod reply;
mod request;

pub use self::reply::*;
pub use self::request::*;

use serde::{Deserialize, Serialize};

/// Changes whenever an older agent would misunderstand a newer lab.
pub const PROTOCOL: u32 = 1;

/// Name of the virtio-serial port that carries the protocol.
pub const PORT: &str = "holdfast.agent";

/// Longest line either side accepts, in bytes.
pub const MAX_LINE: usize = 16 << 20;

/// Time an operation without a time limit of its own may take.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// A request and the number of its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Chosen by the lab, unique among calls under way.
    pub id: u64,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// The answer to the [`Call`] with the same id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Id of the call.
    pub id: u64,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Success.
    Ok(Reply),
    /// Failure, with its reason.
    Error(Failure),
}

impl From<Result<Reply, Failure>> for Outcome {
    fn from(result: Result<Reply, Failure>) -> Self {
        match result {
            Ok(reply) => Outcome::Ok(reply),
            Err(failure) => Outcome::Error(failure),
        }
    }
}

impl From<Outcome> for Result<Reply, Failure> {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ok(reply) => Ok(reply),
            Outcome::Error(failure) => Err(failure),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", console_suffix(.console))]
pub struct Failure {
    /// The attempt, its object, and the error.
    pub message: String,
    /// Last lines of the console of the child or guest that failed, if it was one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub console: String,
}

fn console_suffix(console: &str) -> String {
    if console.is_empty() {
        return String::new();
    }
    format!("; its last lines:\n{}", console.trim_end())
}

impl Failure {
    /// A failure without console lines.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), console: String::new() }
    }
}
