// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast record`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;
use holdfast_bpf::service::{self, Watchdog};
use holdfast_policy::VcpuClass;

use super::archive::{Archive, Vms};
use super::partial::recover;
use super::schema::SCHEMA;
use super::target::Target;
use super::{About, Event, Note};
use crate::error::ObserverError;
use crate::host::{first_line, monotonic_ns, nodename, realtime_ns};
use crate::observer::{Observer, Options, Storage};
use crate::output::{count, show};
use crate::select::Wanted;
use crate::skel::types::hf_note;
use crate::stop;

/// Interval between reads of the kernel's notes. The ring has room for 29 000 notes of each CPU,
/// and each read takes a CPU from another task for a moment.
const TAKE_INTERVAL: Duration = Duration::from_millis(500);

/// By so much a clock is set, and not just read late.
const CLOCK_SET_NS: i64 = 1_000_000_000;

/// Notes kept until their VMs are known.
const MAX_HELD_BACK: usize = 100_000;

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where it goes.
    pub target: Target,
    /// The VMs that are recorded.
    pub vms: Wanted,
    /// Duration; until interrupted if None.
    pub duration: Option<Duration>,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// Longest time until an event is on the disk.
    pub sync_every: Duration,
    /// Do not say what is recorded.
    pub quiet: bool,
    /// BTF of guest kernels, for guests that have none in memory.
    pub btf: Vec<BtfFiles>,
}

/// Summary of a finished recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The file, or the directory of the files.
    pub path: PathBuf,
    /// Number of files.
    pub files: u64,
    /// Rows in them.
    pub events: u64,
    /// Notes that were lost for want of room.
    pub lost_events: u64,
    /// VMs seen.
    pub vms: usize,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        write!(f, "{} of {}", count(self.events, "event"), count(self.vms as u64, "VM"))?;
        if self.files > 1 {
            write!(f, " in {}", count(self.files, "file"))?;
        }
        match self.lost_events {
            0 => Ok(()),
            n => write!(f, "; {n} events are missing"),
        }?;
        if self.vms == 0 {
            write!(f, " (no vCPU ran: there is no VM, or all of them are idle)")?;
        }
        Ok(())
    }
}

impl Record {
    /// Records until the time is over or a signal ends it. `warn` is told of what does not end it.
    pub fn run(&self, warn: &dyn Fn(ObserverError)) -> Result<Recorded, ObserverError> {
        // Signals first: what a process that is killed has in memory is lost.
        stop::on_signals()?;
        let host = nodename();
        let mut said = String::new();
        for recovered in self.target.directories(&host).iter().flat_map(|dir| recover(dir)) {
            match recovered {
                Ok(recovered) => said.push_str(&format!("{recovered}\n")),
                Err(error) => warn(error),
            }
        }
        let about = About {
            schema: SCHEMA.into(),
            begin_ns: realtime_ns() as i64,
            host,
            kernel: first_line("/proc/sys/kernel/osrelease"),
            frequency_hz: self.frequency_hz,
            ..About::default()
        };
        // The file before the programs, so that a file that cannot be written is an error at once.
        let sync_every = self.sync_every.saturating_sub(TAKE_INTERVAL);
        let mut archive = Archive::create(self.target.clone(), sync_every, about)?;
        archive.keep(warn);
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, kvm_events: false, notes: true };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;

        observer.settle()?;
        observer.take_notes()?;
        if !self.quiet {
            let path = match &self.target {
                Target::Directory { path, .. } => path,
                _ => archive.path(),
            };
            let path = path.display();
            said.push_str(&format!("Recording what vCPUs lose to {path}. Ctrl-C ends it.\n"));
            // The recording goes to the file even if this cannot be printed.
            let _ = show(&mut io::stdout(), &said);
        }
        service::ready();
        let mut watchdog = Watchdog::of_this_process();

        // The notes' clock stops while the host sleeps, and the other one may be set.
        let mut to_unix_ns = realtime_ns() as i64 - monotonic_ns() as i64;
        archive.begin_at(monotonic_ns() as i64 + to_unix_ns);
        let mut taken = Taken::default();
        let until = self.duration.map(|duration| Instant::now() + duration);
        let outcome = loop {
            watchdog.alive();
            let ends = stop::is_asked() || until.is_some_and(|until| Instant::now() >= until);
            let wait = if ends { Duration::ZERO } else { TAKE_INTERVAL };
            let raw = match observer.poll(wait).and_then(|()| observer.take_notes()) {
                Ok(raw) => raw,
                Err(error) => break Err(error),
            };
            // What is known of VMs is as new as the notes.
            if let Err(error) = observer.poll(Duration::ZERO) {
                break Err(error);
            }
            observer.describe_vms(&self.vms, &mut taken);
            let notes = taken.convert(raw, to_unix_ns);
            let now_ns = monotonic_ns() as i64 + to_unix_ns;
            let lost = observer.lost_events() + taken.lost();
            if let Err(error) = archive.add(notes, &mut taken.vms, now_ns, lost) {
                break Err(error);
            }
            if ends || archive.has_failed() {
                break Ok(());
            }
            // One file has one clock, so that its times are in order.
            let clock_ns = realtime_ns() as i64;
            if self.target.is_directory() && (clock_ns - now_ns).abs() > CLOCK_SET_NS {
                if let Err(error) = archive.next_file(&mut taken.vms, clock_ns, lost) {
                    break Err(error);
                }
                to_unix_ns = realtime_ns() as i64 - monotonic_ns() as i64;
            }
            archive.keep(warn);
        };
        // Also if it ends by an error, the events before that are kept.
        let (lost_events, written) = (archive.lost_events(), archive.finish());
        let (path, files) = outcome.and(written)?;
        Ok(Recorded { path, files, events: taken.events, lost_events, vms: taken.vms.seen() })
    }
}

/// Notes of the kernel, as rows of the recording.
#[derive(Default)]
struct Taken {
    vms: Vms,
    /// Ids of VMs, by the address of their `struct kvm`; none of those that are not recorded.
    ids: HashMap<u64, Option<u32>>,
    /// Those whose VMs are not known yet.
    held_back: Vec<hf_note>,
    /// All of them, those of VMs that are not recorded, and rows.
    all: u64,
    unwanted: u64,
    events: u64,
}

impl Taken {
    /// If many VMs start at once, a vCPU's notes may arrive before its VM is known.
    fn convert(&mut self, taken: Vec<hf_note>, to_unix_ns: i64) -> Vec<Note> {
        self.all += taken.len() as u64;
        let mut notes = Vec::new();
        for raw in std::mem::take(&mut self.held_back).into_iter().chain(taken) {
            match self.ids.get(&raw.kvm) {
                Some(&Some(vm)) => notes.extend(convert(&raw, vm, to_unix_ns)),
                Some(None) => self.unwanted += 1,
                None => self.held_back.push(raw),
            }
        }
        self.held_back.truncate(MAX_HELD_BACK);
        self.events += notes.len() as u64;
        notes
    }

    /// Notes that are no rows.
    fn lost(&self) -> u64 {
        self.all - self.unwanted - self.events
    }
}

impl Observer<'_> {
    /// Adds new facts about wanted VMs, and marks those that have ended.
    fn describe_vms(&mut self, wanted: &Wanted, taken: &mut Taken) {
        let Taken { vms, ids, .. } = taken;
        ids.retain(|_, id| id.is_none_or(|id| vms.has(id)));
        vms.suppose_ended();
        for (kvm, vm) in self.vms() {
            let is_wanted = wanted.has(vm.pid, vm.name.as_deref(), vm.uuid.as_deref());
            ids.insert(kvm, is_wanted.then(|| vms.describe(vm)));
        }
    }
}

fn convert(raw: &hf_note, vm: u32, to_unix_ns: i64) -> Option<Note> {
    // enum hf_note_kind and enum hf_absence
    let event = match (raw.kind, raw.what) {
        (1, 1) => Event::Preempted,
        (1, 2) => Event::LockHalt,
        (1, _) => Event::Sleep,
        (2, _) => Event::Waiting,
        (3, _) => Event::Sample,
        _ => return None,
    };
    let end_ns = raw.t_ns as i64 + to_unix_ns;
    Some(Note {
        begin_ns: if event.is_absence() { raw.begin_ns as i64 + to_unix_ns } else { end_ns },
        end_ns,
        event,
        vm,
        tid: raw.tid,
        vcpu: raw.vcpu_idx,
        class: *VcpuClass::ALL.get(raw.class as usize)?,
        cpu: raw.cpu,
        siblings: (event == Event::Waiting).then_some(raw.siblings),
        holder_off: (event == Event::Sample).then_some(raw.what & 1 != 0),
        head_off: (event == Event::Sample).then_some(raw.what & 2 != 0),
    })
}
