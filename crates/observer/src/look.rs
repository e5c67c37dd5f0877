// SPDX-License-Identifier: GPL-2.0-or-later
//! A short look at the VMs of the host.

use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;

use crate::error::ObserverError;
use crate::observer::{Observer, Options, Storage};
use crate::sample::Sample;
use crate::select::Selection;
use crate::vms::{VmInfo, at_rest};

/// The VMs of the host in a moment.
#[derive(Debug, Clone)]
pub struct Look {
    /// Those whose vCPUs ran, the VM that loses most first.
    pub sample: Sample,
    /// The others.
    pub at_rest: Vec<VmInfo>,
}

/// Watches the VMs of this host for this time, after all of them are known.
pub fn look(length: Duration, btf: &[BtfFiles]) -> Result<Look, ObserverError> {
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let mut observer = Observer::attach(&mut discovery, &mut program, Options::COUNTERS, btf)?;
    observer.settle()?;
    let before = observer.sample()?;
    let until = Instant::now() + length;
    while Instant::now() < until {
        observer.poll(Duration::from_millis(50))?;
    }
    let mut sample = observer.sample()?.since(&before);
    Selection::default().apply(&mut sample);
    let ran = sample.vms.iter().map(|vm| vm.pid).collect();
    Ok(Look { sample, at_rest: at_rest(&ran) })
}
