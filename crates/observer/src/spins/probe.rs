// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads the program that times lock waits, and reads its counters.

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::waits::{LOCKS, LockWaits, SPINS, Waits};
use crate::error::ObserverError;
use crate::histogram::Histogram;
use crate::host::{VMLINUX_BTF, check_bpf, monotonic_ns};
use crate::observer::{Storage, from_bytes};
use crate::spins_skel::types::hf_waits;
use crate::spins_skel::{SpinsSkel, SpinsSkelBuilder};

/// Name in the kernel's BTF of the tracepoint's type.
const TRACEPOINTS: [&str; 2] = ["btf_trace_contention_begin", "btf_trace_contention_end"];

/// libbpf returns ESRCH for a missing tracepoint, and for other errors, too. So the kernel's BTF
/// decides, if it can be read.
fn why_not_loaded(source: libbpf_rs::Error, kernel_types: &[u8]) -> ObserverError {
    // A name in BTF is a string between two zero bytes.
    let has = |name: &str| {
        let name = format!("\0{name}\0");
        kernel_types.windows(name.len()).any(|window| window == name.as_bytes())
    };
    if kernel_types.is_empty() || TRACEPOINTS.into_iter().all(has) {
        ObserverError::Bpf { action: "load", source }
    } else {
        ObserverError::NoContentionTracepoints
    }
}

/// Loads the program.
pub(super) fn load(storage: &mut Storage) -> Result<SpinsSkel<'_>, ObserverError> {
    check_bpf()?;
    let open = SpinsSkelBuilder::default().open(storage.object());
    let open = open.map_err(|source| ObserverError::Bpf { action: "open", source })?;
    open.load()
        .map_err(|source| why_not_loaded(source, &std::fs::read(VMLINUX_BTF).unwrap_or_default()))
}

/// The program, attached as long as this lives.
pub(super) struct Probe<'obj> {
    skel: SpinsSkel<'obj>,
    guest: bool,
}

impl<'obj> Probe<'obj> {
    pub(super) fn attach(storage: &'obj mut Storage) -> Result<Self, ObserverError> {
        let mut skel = load(storage)?;
        skel.attach().map_err(|source| ObserverError::Bpf { action: "attach", source })?;
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let guest = cpuinfo.split_ascii_whitespace().any(|flag| flag == "hypervisor");
        Ok(Self { skel, guest })
    }

    /// The counters so far.
    pub(super) fn read(&self, tsc_hz: Option<f64>) -> Result<Waits, ObserverError> {
        let read = |source| ObserverError::Bpf { action: "read the counters of", source };
        let mut locks = Vec::new();
        for (kind, lock) in LOCKS.into_iter().enumerate() {
            let key = (kind as u32).to_ne_bytes();
            let per_cpu = self.skel.maps.waits.lookup_percpu(&key, MapFlags::ANY).map_err(read)?;
            let mut waits =
                LockWaits { lock: lock.into(), count: 0, total_ns: 0, hist: Histogram::default() };
            for cpu in per_cpu.iter().flatten().filter_map(|bytes| from_bytes::<hf_waits>(bytes)) {
                waits.total_ns += cpu.total_ns;
                waits.hist = waits.hist.zip(&Histogram(cpu.hist), u64::saturating_add);
            }
            waits.count = waits.hist.count();
            locks.push(waits);
        }
        Ok(Waits {
            schema: SPINS.into(),
            t_ns: monotonic_ns(),
            interval_ns: 0,
            guest: self.guest,
            tsc_hz,
            lost_events: self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.nr_lost),
            locks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tracepoint_differs_from_a_refused_program() {
        // libbpf 1.7 returns this error if an attach target is not in the kernel's BTF.
        let why =
            |types: &[u8]| why_not_loaded(libbpf_rs::Error::from_raw_os_error(libc::ESRCH), types);
        let begin = b"\0btf_trace_contention_begin\0".as_slice();
        let both = b"\0btf_trace_contention_begin\0btf_trace_contention_end\0".as_slice();
        for types in [b"\0btf_trace_sched_switch\0".as_slice(), begin] {
            let error = why(types);
            assert!(error.is_unsupported() && error.to_string().contains("5.19"), "{error}");
        }
        for types in [both, b""] {
            assert!(matches!(why(types), ObserverError::Bpf { action: "load", .. }));
        }
    }
}
