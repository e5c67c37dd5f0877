// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the program that times lock waits, and reads what it counted.

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::{LOCKS, LockWaits, Waits};
use crate::error::ObserverError;
use crate::histogram::Histogram;
use crate::host::{check_bpf, monotonic_ns};
use crate::observer::{Storage, from_bytes};
use crate::spins_skel::types::hf_waits;
use crate::spins_skel::{SpinsSkel, SpinsSkelBuilder};

/// The program, attached as long as this lives.
pub(super) struct Probe<'obj> {
    skel: SpinsSkel<'obj>,
    guest: bool,
}

impl<'obj> Probe<'obj> {
    pub(super) fn attach(storage: &'obj mut Storage) -> Result<Self, ObserverError> {
        let bpf = |action| move |source| ObserverError::Bpf { action, source };
        check_bpf()?;
        let open = SpinsSkelBuilder::default().open(storage.object()).map_err(bpf("open"))?;
        let mut skel = open.load().map_err(|source| match source.kind() {
            // libbpf does not find the tracepoint in the kernel's BTF.
            libbpf_rs::ErrorKind::NotFound => ObserverError::NoContentionTracepoints,
            _ => ObserverError::Bpf { action: "load", source },
        })?;
        skel.attach().map_err(bpf("attach"))?;
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let guest = cpuinfo.split_ascii_whitespace().any(|flag| flag == "hypervisor");
        Ok(Self { skel, guest })
    }

    /// What was counted so far.
    pub(super) fn read(&self, tsc_hz: Option<f64>) -> Result<Waits, ObserverError> {
        let read = |source| ObserverError::Bpf { action: "read the counters of", source };
        let mut locks = Vec::new();
        for (kind, lock) in LOCKS.into_iter().enumerate() {
            let key = (kind as u32).to_ne_bytes();
            let per_cpu = self.skel.maps.waits.lookup_percpu(&key, MapFlags::ANY).map_err(read)?;
            let mut waits = LockWaits { lock, count: 0, total_ns: 0, hist: Histogram::default() };
            for cpu in per_cpu.iter().flatten().filter_map(|bytes| from_bytes::<hf_waits>(bytes)) {
                waits.total_ns += cpu.total_ns;
                waits.hist = waits.hist.zip(&Histogram(cpu.hist), u64::saturating_add);
            }
            waits.count = waits.hist.count();
            locks.push(waits);
        }
        Ok(Waits {
            schema: "holdfast.spins/1",
            t_ns: monotonic_ns(),
            interval_ns: 0,
            guest: self.guest,
            tsc_hz,
            lost_events: self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.nr_lost),
            locks,
        })
    }
}
