// SPDX-License-Identifier: GPL-2.0-or-later
//! Samples: CPU time of children, counters of workloads.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use holdfast_agent::protocol::{Counters, CpuTimes, Failure, Reply, TaskTime};

use crate::children::Children;

/// `CLOCK_MONOTONIC`, in ns.
pub(crate) fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: plain system call with a valid pointer; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub(crate) fn cpu_times(children: &Children, names: &[String]) -> Result<Reply, Failure> {
    let t_ns = monotonic_ns();
    let mut tasks = Vec::new();
    for name in names {
        let child = children.get(name)?;
        let dead = || {
            let message = format!("`{name}` has ended and has no CPU time");
            Failure { message, console: child.tails(std::time::Duration::ZERO) }
        };
        let found = tasks.len();
        for (pid, tid) in threads_of(child.pid) {
            // A thread may end between the listing and here.
            tasks.extend(task_time(name, pid, tid)?);
        }
        if tasks.len() == found {
            return Err(dead());
        }
    }
    Ok(Reply::CpuTimes(CpuTimes { t_ns, tasks }))
}

/// Process and thread ids of a process and of its descendants.
pub(crate) fn threads_of(pid: i32) -> Vec<(i32, i32)> {
    let mut all = Vec::new();
    let mut processes = vec![pid];
    while let Some(pid) = processes.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(tid) = thread.file_name().to_string_lossy().parse::<i32>() else { continue };
            all.push((pid, tid));
            let begun = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
            let begun = begun.unwrap_or_default();
            processes.extend(begun.split_ascii_whitespace().flat_map(str::parse::<i32>));
        }
    }
    all
}

fn task_time(name: &str, pid: i32, tid: i32) -> Result<Option<TaskTime>, Failure> {
    let at = format!("/proc/{pid}/task/{tid}");
    let Ok(stat) = fs::read_to_string(format!("{at}/schedstat")) else { return Ok(None) };
    let Ok(comm) = fs::read_to_string(format!("{at}/comm")) else { return Ok(None) };
    let mut numbers = stat.split_ascii_whitespace().map(str::parse::<u64>);
    let (Some(Ok(run_ns)), Some(Ok(wait_ns)), Some(Ok(switches))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(Failure::new(format!("{at}/schedstat reads `{}`", stat.trim())));
    };
    let (name, comm) = (name.to_owned(), comm.trim_end().to_owned());
    Ok(Some(TaskTime { name, pid, tid, comm, run_ns, wait_ns, switches }))
}

/// Layout of `workloads/counters.h`.
const MAGIC: u32 = 0x4846_4354;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const SLOT_BYTES: usize = 1024;
const SLOT_HIST: usize = 64;
const MAX_SLOTS: usize = 64;

/// The workload's file, mapped: its words change while they are read, so each is read atomically.
struct Mapping {
    base: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    fn open(path: &str) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let bytes = (file.metadata()?.len() as usize).min(HEADER_BYTES + MAX_SLOTS * SLOT_BYTES);
        if bytes < HEADER_BYTES {
            return Err(std::io::Error::other("it is shorter than its header"));
        }
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping; the arguments are valid.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mapping { base, bytes })
    }

    fn u32(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: inside the mapping, aligned, and nothing but atomics touches it here.
        unsafe { (*self.base.byte_add(offset).cast::<AtomicU32>()).load(Ordering::Relaxed) }
    }

    fn u64(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: as above.
        unsafe { (*self.base.byte_add(offset).cast::<AtomicU64>()).load(Ordering::Relaxed) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

pub(crate) fn counters(path: &str) -> Result<Reply, Failure> {
    let failed = |what: String| Failure::new(format!("reading counters from {path}: {what}"));
    let file = Mapping::open(path).map_err(|e| failed(e.to_string()))?;
    let t_ns = monotonic_ns();
    let (magic, version, slots) = (file.u32(0), file.u32(4), file.u32(8) as usize);
    if (magic, version) != (MAGIC, VERSION) {
        return Err(failed(format!("magic {magic:#x} and version {version} are not known")));
    }
    if slots > MAX_SLOTS || file.bytes < HEADER_BYTES + slots * SLOT_BYTES {
        return Err(failed(format!("{slots} slots do not fit into {} bytes", file.bytes)));
    }
    let mut total = Counters { t_ns, ops: 0, hist: vec![0; 64] };
    for slot in (0..slots).map(|i| HEADER_BYTES + i * SLOT_BYTES) {
        total.ops = total.ops.wrapping_add(file.u64(slot));
        for (i, sum) in total.hist.iter_mut().enumerate() {
            *sum = sum.wrapping_add(file.u64(slot + SLOT_HIST + 8 * i));
        }
    }
    Ok(Reply::Counters(total))
}
