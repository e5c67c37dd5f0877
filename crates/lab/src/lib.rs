// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast lab`: a KVM host in a box, and experiments that run in it.
//!
//! [`packages`] fetches the parts of a virtual host, [`images`] builds file systems from them,
//! [`machine`] boots and drives it. An [`experiment`] says what to measure there, the [`runner`]
//! measures it, and a [`sample`] is one window. [`stats`] and [`analysis`] draw the conclusions,
//! [`result`] keeps them, [`report`] shows them, and a [`campaign`] is all of this in a row.

pub mod analysis;
pub mod builtin;
pub mod campaign;
pub mod experiment;
pub mod fetch;
pub mod images;
pub mod interrupt;
pub mod machine;
pub mod metric;
pub mod packages;
pub mod preemptions;
pub mod progress;
pub mod report;
pub mod result;
pub mod resume;
pub mod runner;
pub mod sample;
pub mod scheduler;
pub mod share;
pub mod sources;
pub mod spins;
pub mod stats;

mod error;
mod run;
#[cfg(test)]
mod testdata;

pub use error::{Error, Result};
