// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast record`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;
use holdfast_policy::VcpuClass;

use super::schema::SCHEMA;
use super::write::Writer;
use super::{About, Event, Note, RecordedVm, numbers};
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

/// Notes kept until their VMs are known.
const MAX_HELD_BACK: usize = 100_000;

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct Record {
    /// File to write.
    pub path: PathBuf,
    /// The VMs that are recorded.
    pub vms: Wanted,
    /// Duration; until interrupted if None.
    pub duration: Option<Duration>,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// Do not say what is recorded.
    pub quiet: bool,
    /// BTF of guest kernels, for guests that have none in memory.
    pub btf: Vec<BtfFiles>,
}

/// Summary of a finished recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Rows in the file.
    pub events: u64,
    /// Notes that were lost for want of room.
    pub lost_events: u64,
    /// VMs seen.
    pub vms: usize,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count(self.events, "event"), count(self.vms as u64, "VM"))?;
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
    /// Records until the time is over or a signal ends it.
    pub fn run(&self) -> Result<Recorded, ObserverError> {
        // Signals first: a process that is killed cannot remove its partial file.
        stop::on_signals()?;
        // The file before the programs, so that a file that cannot be written is an error at once.
        let mut writer = Writer::create(&self.path)?;
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, kvm_events: false, notes: true };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;

        observer.settle()?;
        observer.take_notes()?;
        if !self.quiet {
            let path = self.path.display();
            let first = format!("Recording what vCPUs lose to {path}. Ctrl-C ends it.\n");
            // The recording goes to the file even if this line cannot be printed.
            let _ = show(&mut io::stdout(), &first);
        }

        // The notes' clock stops while the host sleeps; the difference is fixed here, once.
        let to_unix_ns = realtime_ns() as i64 - monotonic_ns() as i64;
        let mut about = About {
            schema: SCHEMA.into(),
            begin_ns: monotonic_ns() as i64 + to_unix_ns,
            host: nodename(),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            frequency_hz: self.frequency_hz,
            ..About::default()
        };
        let until = self.duration.map(|duration| Instant::now() + duration);
        let mut vms = Numbers::new();
        let (mut events, mut all, mut unwanted) = (0, 0, 0);
        let mut held_back: Vec<hf_note> = Vec::new();
        loop {
            let ends = stop::is_asked() || until.is_some_and(|until| Instant::now() >= until);
            observer.poll(if ends { Duration::ZERO } else { TAKE_INTERVAL })?;
            let taken = observer.take_notes()?;
            observer.poll(Duration::ZERO)?;
            observer.describe_vms(&self.vms, &mut about.vms, &mut vms);
            all += taken.len() as u64;
            // If many VMs start at once, a vCPU's notes may arrive before its VM is known.
            let mut notes = Vec::new();
            for raw in std::mem::take(&mut held_back).into_iter().chain(taken) {
                match vms.get(&raw.kvm) {
                    Some(&Some(vm)) => notes.extend(convert(&raw, vm, to_unix_ns)),
                    Some(None) => unwanted += 1,
                    None => held_back.push(raw),
                }
            }
            held_back.truncate(MAX_HELD_BACK);
            events += notes.len() as u64;
            writer.add(&notes, &about);
            if ends || writer.has_failed() {
                break;
            }
        }
        // By the notes' clock: the wall clock may have been set meanwhile.
        about.end_ns = monotonic_ns() as i64 + to_unix_ns;
        about.lost_events = observer.lost_events() + (all - unwanted - events);
        let recorded = Recorded { events, lost_events: about.lost_events, vms: about.vms.len() };
        writer.finish(&about)?;
        Ok(recorded)
    }
}

/// Numbers of VMs in the recording, by the address of their `struct kvm`; none of those that are
/// not recorded.
type Numbers = HashMap<u64, Option<u32>>;

impl Observer<'_> {
    /// Adds new facts about wanted VMs, and marks those that have ended.
    fn describe_vms(&mut self, wanted: &Wanted, known: &mut Vec<RecordedVm>, vms: &mut Numbers) {
        let mut places = HashMap::new();
        for vm in known.iter_mut() {
            vm.ended = true;
        }
        for (kvm, vm) in self.vms() {
            if !wanted.has(vm.pid, vm.name.as_deref(), vm.uuid.as_deref()) {
                vms.insert(kvm, None);
                continue;
            }
            let is_it = |known: &RecordedVm| (known.pid, known.begin_ns) == (vm.pid, vm.begin_ns);
            let at = known.iter().position(is_it).unwrap_or(known.len());
            match known.get_mut(at) {
                Some(known) => *known = vm,
                None => known.push(vm),
            }
            places.insert(kvm, at);
        }
        let numbers = numbers(known);
        vms.extend(places.into_iter().map(|(kvm, at)| (kvm, Some(numbers[at]))));
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
