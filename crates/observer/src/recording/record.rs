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
use crate::skel::types::hf_note;
use crate::stop;

/// How often notes are taken out of the kernel: it has room for 29 000 of each CPU, and each time
/// takes a CPU from somebody for a moment.
const TAKE_INTERVAL: Duration = Duration::from_millis(500);

/// Notes kept until it is known of which VM they are.
const MAX_HELD_BACK: usize = 100_000;

/// What is to be recorded.
#[derive(Debug, Clone)]
pub struct Record {
    /// File to be written.
    pub path: PathBuf,
    /// How long; until interrupted if None.
    pub duration: Option<Duration>,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// BTF of guest kernels that may have none in memory.
    pub btf: Vec<BtfFiles>,
}

/// What was recorded, for whoever asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Rows in the file.
    pub events: u64,
    /// Those that found no room.
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
    /// Records until the time is over or somebody interrupts.
    pub fn run(&self) -> Result<Recorded, ObserverError> {
        // First: whoever is killed cannot remove its partial file.
        stop::on_signals()?;
        // Before anything is attached: that it cannot be written should not take time to find out.
        let mut writer = Writer::create(&self.path)?;
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, kvm_events: false, notes: true };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;

        observer.settle()?;
        observer.take_notes()?;
        let first =
            format!("Recording what vCPUs lose to {}. Ctrl-C ends it.\n", self.path.display());
        // What is recorded is in the file, whether anybody is told or not.
        let _ = show(&mut io::stdout(), &first);

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
        let mut vms: HashMap<u64, u32> = HashMap::new();
        let (mut events, mut all) = (0, 0);
        let mut held_back: Vec<hf_note> = Vec::new();
        loop {
            let ends = stop::is_asked() || until.is_some_and(|until| Instant::now() >= until);
            observer.poll(if ends { Duration::ZERO } else { TAKE_INTERVAL })?;
            let taken = observer.take_notes()?;
            observer.poll(Duration::ZERO)?;
            observer.describe_vms(&mut about.vms, &mut vms);
            all += taken.len() as u64;
            // Where many VMs begin at once, what a vCPU does may be known before whose it is.
            let mut notes = Vec::new();
            for raw in std::mem::take(&mut held_back).into_iter().chain(taken) {
                match vms.get(&raw.kvm) {
                    Some(&vm) => notes.extend(convert(&raw, vm, to_unix_ns)),
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
        // By the notes' clock: the other one may have been set meanwhile.
        about.end_ns = monotonic_ns() as i64 + to_unix_ns;
        about.lost_events = observer.lost_events() + (all - events);
        let recorded = Recorded { events, lost_events: about.lost_events, vms: about.vms.len() };
        writer.finish(&about)?;
        Ok(recorded)
    }
}

impl Observer<'_> {
    /// Adds what is new of VMs, and marks those that have ended.
    fn describe_vms(&mut self, known: &mut Vec<RecordedVm>, vms: &mut HashMap<u64, u32>) {
        let mut places = HashMap::new();
        for vm in known.iter_mut() {
            vm.ended = true;
        }
        for (kvm, vm) in self.vms() {
            let is_it = |known: &RecordedVm| (known.pid, known.begin_ns) == (vm.pid, vm.begin_ns);
            let at = known.iter().position(is_it).unwrap_or(known.len());
            match known.get_mut(at) {
                Some(known) => *known = vm,
                None => known.push(vm),
            }
            places.insert(kvm, at);
        }
        let numbers = numbers(known);
        vms.extend(places.into_iter().map(|(kvm, at)| (kvm, numbers[at])));
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
        siblings: raw.siblings,
        holder_off: event == Event::Sample && raw.what & 1 != 0,
        head_off: event == Event::Sample && raw.what & 2 != 0,
    })
}
