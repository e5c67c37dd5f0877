// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast lab`: experiments on the hosts that [`holdfast_testbed`] boots.
//!
//! An [`experiment`] says what to measure there, the [`runner`] measures it, and a [`window`] is
//! one window. [`stats`] and [`analysis`] draw the conclusions, [`result`] keeps them, [`report`]
//! shows them, those of [`replications`] beside printed
//! figures, and a [`campaign`] is all of this in a row.

pub mod analysis;
pub mod builtin;
pub mod campaign;
pub mod experiment;
pub mod metric;
pub mod preemptions;
pub mod replications;
pub mod report;
pub mod result;
pub mod resume;
pub mod runner;
pub mod scheduler;
pub mod spins;
pub mod window;

mod markup;
#[cfg(test)]
mod testdata;
mod text;

pub use holdfast_stats as stats;
