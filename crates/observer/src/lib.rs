// SPDX-License-Identifier: GPL-2.0-or-later
//! Observes the classes of vCPUs that the host preempts, under any scheduler.
//!
//! All outputs are made from one model, [`Sample`].
//!
//! ```no_run
//! # fn main() -> Result<(), holdfast_observer::ObserverError> {
//! use holdfast_observer::{Observer, Options};
//! let (mut discovery, mut program) = Default::default();
//! let mut observer = Observer::attach(&mut discovery, &mut program, Options::COUNTERS, &[])?;
//! observer.poll(std::time::Duration::from_secs(1))?;
//! println!("{:?}", observer.sample()?);
//! # Ok(())
//! # }
//! ```

mod clock;
mod error;
mod export;
mod guest;
mod histogram;
mod host;
mod look;
mod names;
mod observer;
mod output;
mod recording;
mod report;
mod sample;
pub mod scheduler;
mod select;
mod serve;
mod skel;
mod spins;
mod spins_skel;
mod stop;
mod takers;
#[cfg(test)]
mod tools;
mod top;
mod vms;

pub use error::ObserverError;
pub use export::{Export, Series, reference as metrics_reference};
pub use guest::Guest;
pub use histogram::{Histogram, NR_SLOTS, time};
pub use holdfast_bpf::service::error_line;
pub use holdfast_bpf::{BtfFiles, with_last_words};
pub use host::{boot_time, process_start};
pub use look::{Look, look};
pub use observer::{Observer, Options, Storage, try_discovery};
pub use recording::{Bounds, Compare, Input, Record, Recorded, Replay, Target, TimeRange};
pub use report::{Format, Report};
pub use sample::{
    ByClass, ClockSamples, Cost, Counters, HistogramByClass, Holders, KvmCounters, PREEMPTIONS,
    Sample, Times, VcpuSample, VmSample,
};
pub use select::{Column, Selection, Wanted};
pub use serve::serve_requests;
pub use spins::{LockWaits, SPINS, Spins, Waits};
pub use takers::{Taken, Taker, TakerKind};
pub use top::{Top, top_keys};
pub use vms::{VcpuInfo, VmInfo, VmList, known_vms, list_vms};
