// SPDX-License-Identifier: GPL-2.0-or-later
//! The sampling clock: one software event per CPU, which needs no performance counters.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::{Link, ProgramMut};
use perf_event_open_sys::{bindings, perf_event_open};

use crate::error::ObserverError;
use crate::host::online_cpus;

/// A CPU's clock, running.
pub(crate) struct Clock {
    _link: Link,
    /// Dropped after the link that uses it.
    _event: OwnedFd,
}

/// Runs `program` at this rate on every CPU that is online.
pub(crate) fn start(
    program: &ProgramMut<'_>,
    frequency_hz: u32,
) -> Result<Vec<Clock>, ObserverError> {
    let attach = |cpu| {
        let event = open(cpu, frequency_hz)
            .map_err(|source| ObserverError::Io { action: "start a sampling clock", source })?;
        let link = program.attach_perf_event(event.as_raw_fd()).map_err(|source| {
            ObserverError::Bpf { action: "attach a sampling clock to", source }
        })?;
        Ok(Clock { _link: link, _event: event })
    };
    online_cpus().into_iter().map(attach).collect()
}

fn open(cpu: i32, frequency_hz: u32) -> io::Result<OwnedFd> {
    let mut attr = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config: u64::from(bindings::PERF_COUNT_SW_CPU_CLOCK),
        ..Default::default()
    };
    // A period, not a frequency: the period of cpu-clock is time, and needs no adjustment.
    attr.__bindgen_anon_1.sample_period = 1_000_000_000 / u64::from(frequency_hz.max(1));
    // SAFETY: `attr` is valid and has its size; nothing else owns the returned descriptor.
    unsafe {
        let fd = perf_event_open(
            &mut attr,
            -1,
            cpu,
            -1,
            u64::from(bindings::PERF_FLAG_FD_CLOEXEC) as libc::c_ulong,
        );
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
