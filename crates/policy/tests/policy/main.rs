// SPDX-License-Identifier: GPL-2.0-or-later
//! What the policy has to keep, whatever guests claim: one program, which is linked once.
//!
//! One test alone: `cargo test --release -p holdfast-policy grace::ends_at_the_cap`.

mod affinity;
mod bandwidth;
mod classify;
mod common;
mod fairness;
mod grace;
mod groups;
mod host;
mod yields;
