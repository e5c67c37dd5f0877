// SPDX-License-Identifier: GPL-2.0-or-later
//! Perf events of a child, over all its threads (perf_event_open(2)), and KVM's counts of its VMs.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use holdfast_agent::protocol::{Failure, PerfCounts, Reply};
use perf_event_open_sys::{bindings, perf_event_open};

use crate::children::Children;
use crate::measure::{monotonic_ns, threads_of};

/// An event: its name in answers, and perf's type and number of it.
#[derive(Clone, Copy, Debug)]
struct Event {
    name: &'static str,
    kind: u32,
    config: u32,
}

const fn hardware(name: &'static str, config: u32) -> Event {
    Event { name, kind: bindings::PERF_TYPE_HARDWARE, config }
}

/// User, kernel, hypervisor and guest together: the cost of a window, not its place.
const EVENTS: [Event; 6] = [
    hardware("cycles", bindings::PERF_COUNT_HW_CPU_CYCLES),
    hardware("instructions", bindings::PERF_COUNT_HW_INSTRUCTIONS),
    hardware("cache_references", bindings::PERF_COUNT_HW_CACHE_REFERENCES),
    hardware("cache_misses", bindings::PERF_COUNT_HW_CACHE_MISSES),
    hardware("branches", bindings::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    hardware("branch_misses", bindings::PERF_COUNT_HW_BRANCH_MISSES),
];

/// Children that are counted, by name.
#[derive(Default)]
pub(crate) struct Perf(Mutex<HashMap<String, Counting>>);

impl Perf {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Counting>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Starts to count a child, from zero.
    pub(crate) fn start(&self, children: &Children, name: &str) -> Result<Reply, Failure> {
        let child = children.get(name)?;
        let threads: Vec<i32> = threads_of(child.pid).into_iter().map(|(_, tid)| tid).collect();
        let counting = Counting::start(&EVENTS, child.pid, &threads);
        self.table().insert(name.to_owned(), counting);
        Ok(Reply::Done)
    }

    /// The counts since.
    pub(crate) fn read(&self, name: &str) -> Result<Reply, Failure> {
        let table = self.table();
        let none = || Failure::new(format!("`{name}` is not counted; start with that"));
        Ok(Reply::Perf(table.get(name).ok_or_else(none)?.read()))
    }
}

/// Events under way.
struct Counting {
    pid: i32,
    /// For each event, one for each thread.
    open: Vec<(Event, Vec<File>)>,
    refused: BTreeMap<String, String>,
}

impl Counting {
    fn start(events: &[Event], pid: i32, threads: &[i32]) -> Counting {
        let mut counting = Counting { pid, open: Vec::new(), refused: BTreeMap::new() };
        for &event in events {
            let mut files = Vec::new();
            for &tid in threads {
                match open(event, tid) {
                    Ok(file) => files.push(file),
                    // It has ended since the listing.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => (),
                    Err(e) => {
                        counting.refused.insert(event.name.to_owned(), reason(&e));
                        files.clear();
                        break;
                    }
                }
            }
            if !files.is_empty() {
                counting.open.push((event, files));
            }
        }
        counting
    }

    fn read(&self) -> PerfCounts {
        let t_ns = monotonic_ns();
        let mut counts = vm_stats(self.pid);
        let mut refused = self.refused.clone();
        for (event, files) in &self.open {
            let read: io::Result<Vec<Counted>> = files.iter().map(read).collect();
            match read.map_err(|e| reason(&e)).and_then(|all| together(&all)) {
                Ok(count) => drop(counts.insert(event.name.to_owned(), count)),
                Err(why) => drop(refused.insert(event.name.to_owned(), why)),
            }
        }
        PerfCounts { t_ns, counts, refused }
    }
}

/// KVM's counts of a VM, and their files in debugfs.
const VM_STATS: [(&str, &[&str]); 2] = [
    ("vm_exits", &["exits"]),
    // Time that halted vCPUs keep their CPU, in ns.
    ("vm_halt_poll_ns", &["halt_poll_success_ns", "halt_poll_fail_ns"]),
];

/// KVM's counts of the VMs of a process together; empty if it has none.
fn vm_stats(pid: i32) -> BTreeMap<String, u64> {
    const KVM: &str = "/sys/kernel/debug/kvm";
    // PID-FD
    let is_its = |name: &str| name.split_once('-').is_some_and(|(of, _)| of == pid.to_string());
    let dirs = std::fs::read_dir(KVM).into_iter().flatten().flatten();
    let vms: Vec<PathBuf> = dirs
        .filter(|dir| dir.file_name().to_str().is_some_and(is_its))
        .map(|dir| dir.path())
        .collect();
    let read = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let sum_of = |stats: &[&str]| {
        let of_vm =
            |vm: &PathBuf| stats.iter().map(|stat| read(vm.join(stat))).sum::<Option<u64>>();
        vms.iter().filter_map(of_vm).reduce(|sum, count| sum + count)
    };
    let found =
        VM_STATS.iter().filter_map(|(name, stats)| Some(((*name).to_owned(), sum_of(stats)?)));
    found.collect()
}

/// Counts `event` in a thread and in threads that it starts later.
fn open(event: Event, tid: i32) -> io::Result<File> {
    let mut attr = bindings::perf_event_attr {
        type_: event.kind,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config: event.config.into(),
        read_format: (bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
            | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING)
            .into(),
        ..Default::default()
    };
    attr.set_inherit(1);
    // SAFETY: `attr` is valid and says its size; the descriptor returned is ours alone.
    unsafe {
        let flags = libc::c_ulong::from(bindings::PERF_FLAG_FD_CLOEXEC);
        let fd = perf_event_open(&mut attr, tid, -1, -1, flags);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(fd)) }
    }
}

/// The count of one thread, with the time it was enabled and the time it was counted.
#[derive(Clone, Copy)]
struct Counted {
    value: u64,
    enabled_ns: u64,
    running_ns: u64,
}

fn read(mut file: &File) -> io::Result<Counted> {
    let mut bytes = [0; 24];
    file.read_exact(&mut bytes)?;
    let [value, enabled_ns, running_ns] =
        [0, 8, 16].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
    Ok(Counted { value, enabled_ns, running_ns })
}

/// The sum of all counts. If more events are open than a CPU has counters, they take turns; the sum
/// is scaled up to the whole time.
fn together(all: &[Counted]) -> Result<u64, String> {
    /// Its turn would have come within this time.
    const PATIENCE_NS: u64 = 50_000_000;
    let sum = |of: fn(&Counted) -> u64| all.iter().map(of).sum::<u64>();
    if sum(|c| c.running_ns) == 0 && sum(|c| c.enabled_ns) > PATIENCE_NS {
        return Err("no counter was free for it, something else has them all".to_owned());
    }
    let whole = |c: &Counted| match (c.enabled_ns, c.running_ns) {
        // A thread that did not run has a count of zero.
        (_, 0) => c.value,
        (enabled, running) => {
            (u128::from(c.value) * u128::from(enabled) / u128::from(running)) as u64
        }
    };
    Ok(all.iter().map(whole).sum())
}

/// An error of perf_event_open(2), for a reader.
fn reason(e: &io::Error) -> String {
    let why = match e.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine's CPUs do not offer it, or not to their hypervisor's guests"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "it is not permitted (root, or kernel.perf_event_paranoid)"
        }
        Some(libc::EMFILE) => "too many files are open for that many threads",
        _ => "the kernel refuses it",
    };
    format!("{why}: {e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK_CLOCK: Event = Event {
        name: "task_clock",
        kind: bindings::PERF_TYPE_SOFTWARE,
        config: bindings::PERF_COUNT_SW_TASK_CLOCK,
    };

    /// Uses about this much CPU time.
    fn spin(ms: u64) {
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < u128::from(ms) {}
    }

    fn this_thread() -> i32 {
        // SAFETY: plain system call.
        unsafe { libc::gettid() }
    }

    #[test]
    fn counts_a_thread_and_those_that_it_begins() {
        let counting = Counting::start(&[TASK_CLOCK], std::process::id() as i32, &[this_thread()]);
        if let Some(why) = counting.refused.get("task_clock") {
            eprintln!("skipped: perf events are not to be had here: {why}");
            return;
        }
        let before = counting.read();
        spin(20);
        let between = counting.read();
        std::thread::spawn(|| spin(20)).join().unwrap();
        let after = counting.read();
        let clock = |counts: &PerfCounts| counts.counts["task_clock"];
        assert!(clock(&between) > clock(&before) + 1_000_000, "{before:?} {between:?}");
        assert!(clock(&after) > clock(&between) + 1_000_000, "{between:?} {after:?}");
        assert!(after.t_ns > between.t_ns && after.refused.is_empty());
    }

    #[test]
    fn an_unsupported_event_has_a_reason_and_no_count() {
        let counting = Counting::start(&EVENTS, std::process::id() as i32, &[this_thread()]);
        spin(5);
        let counts = counting.read();
        for event in EVENTS {
            let (count, why) = (counts.counts.get(event.name), counts.refused.get(event.name));
            assert_ne!(count.is_some(), why.is_some(), "{}: {count:?} {why:?}", event.name);
            if let Some(why) = why {
                eprintln!("{} skipped: {why}", event.name);
            }
        }
        if let Some(cycles) = counts.counts.get("cycles") {
            assert!(*cycles > 0);
        }
    }

    #[test]
    fn events_that_took_turns_are_scaled_up_and_one_without_a_turn_is_not_zero() {
        let counted = |value, enabled_ns, running_ns| Counted { value, enabled_ns, running_ns };
        let (whole, half, idle) = (counted(7, 100, 100), counted(40, 100, 50), counted(0, 0, 0));
        assert_eq!(together(&[whole, half, idle]), Ok(87));
        assert!(together(&[counted(0, 100_000_000, 0), idle]).is_err());
        assert_eq!(together(&[counted(0, 1000, 0)]), Ok(0), "it has hardly begun");
    }

    #[test]
    fn a_thread_that_has_ended_is_no_reason_to_count_nothing() {
        let ended = std::thread::spawn(this_thread).join().unwrap();
        let counting =
            Counting::start(&[TASK_CLOCK], std::process::id() as i32, &[ended, this_thread()]);
        if counting.refused.is_empty() {
            assert_eq!(counting.open[0].1.len(), 1);
        } else {
            eprintln!("skipped: {:?}", counting.refused);
        }
    }
}
