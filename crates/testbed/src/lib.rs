// SPDX-License-Identifier: GPL-2.0-or-later
//! A KVM host in a box: an emulated machine, or the running one, with guests in it.
//!
//! [`packages`] fetches the parts of a virtual host, [`images`] builds file systems from them,
//! [`machine`] boots and drives it. A [`scheduler`] that runs in it reports counts, and [`share`]
//! says which shares of its CPUs are fair. [`testing`] is for the tests of other crates.

pub mod fetch;
pub mod images;
pub mod machine;
pub mod packages;
pub mod progress;
pub mod scheduler;
pub mod share;
pub mod testing;
pub mod workloads;

mod error;
mod run;

pub use error::{Error, Result};
