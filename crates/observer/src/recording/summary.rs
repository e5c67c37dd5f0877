// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts a recording to the sample model, so that a replay prints the same tables as the report.

use std::collections::{BTreeMap, HashMap};

use super::{About, Event, Note, PIDS, RecordedVm, Recording};
use crate::sample::{ClockSamples, Counters, Holders, Sample, Times, VcpuSample, VmSample};

/// As `long_absence_ns` of `observe.bpf.c`.
const LONG_NS: i64 = 1_000_000;

/// Recordings of one host with a longer gap between them are of times apart.
const GAP_NS: i64 = 1_000_000_000;

/// Sums of recordings of one host, which are added in the order of their times.
#[derive(Default)]
pub(super) struct Summary {
    /// What they know of themselves together; the VMs have the numbers of [`Self::add`].
    about: About,
    /// Places in it, by process.
    places: HashMap<(u32, Option<i64>), usize>,
    /// Time that was recorded, without gaps.
    recorded_ns: i64,
    files: usize,
    events: u64,
    vcpus: BTreeMap<(u32, u32), VcpuSum>,
}

/// Sums of a vCPU.
struct VcpuSum {
    tid: u32,
    counters: Counters,
    running: Running,
}

impl Summary {
    /// Adds a recording, and gives VMs and events the numbers that they have in all of them.
    pub(super) fn add(&mut self, recording: &mut Recording) {
        let Recording { about, notes } = recording;
        let is_first = self.files == 0;
        if is_first {
            self.about = About { vms: Vec::new(), lost_events: 0, ..about.clone() };
        } else if about.begin_ns - self.about.end_ns > GAP_NS {
            // Nothing is known of the time between them.
            self.vcpus.values_mut().for_each(|vcpu| vcpu.running.close());
        }
        let from_ns = if is_first { about.begin_ns } else { about.begin_ns.max(self.about.end_ns) };
        self.recorded_ns += (about.end_ns - from_ns).max(0);
        self.about.end_ns = self.about.end_ns.max(about.end_ns);
        self.about.lost_events = self.about.lost_events.saturating_add(about.lost_events);
        self.about.frequency_hz = self.about.frequency_hz.max(about.frequency_hz);
        self.about.kernel.clone_from(&about.kernel);
        self.files += 1;
        self.events += notes.len() as u64;

        let here: HashMap<u32, u32> =
            about.vms.iter_mut().map(|vm| (vm.pid, self.number(vm))).collect();
        let clock = (about.frequency_hz > 0).then(ClockSamples::default);
        for note in notes {
            note.vm = here.get(&note.vm).copied().unwrap_or(note.vm);
            let vcpu = self.vcpus.entry((note.vm, note.vcpu)).or_insert_with(|| VcpuSum {
                tid: note.tid,
                counters: Counters { times: Some(Times::default()), clock, ..Counters::default() },
                running: Running::default(),
            });
            vcpu.tid = note.tid;
            count(&mut vcpu.counters, note);
            if note.event.is_absence() {
                vcpu.running.is_off(note.begin_ns, note.end_ns);
            }
        }
    }

    /// Gives a VM its number, and keeps what is known of it.
    fn number(&mut self, vm: &mut RecordedVm) -> u32 {
        let vms = &mut self.about.vms;
        let key = (vm.process, vm.begin_ns);
        if let Some(at) = self.places.get(&key) {
            let known = &mut vms[*at];
            vm.pid = known.pid;
            let before = known.clone();
            *known = vm.clone();
            known.name = vm.name.take().or(before.name);
            known.uuid = vm.uuid.take().or(before.uuid);
            *vm = known.clone();
        } else {
            let is_taken = vms.iter().any(|known| known.pid == vm.process);
            vm.pid = if is_taken { PIDS.saturating_add(vms.len() as u32) } else { vm.process };
            if is_taken {
                vm.name.get_or_insert_with(|| format!("pid {} again", vm.process));
            }
            self.places.insert(key, vms.len());
            vms.push(vm.clone());
        }
        vm.pid
    }

    /// What they know of themselves together.
    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// Recordings, and events in them.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.files, self.events)
    }

    /// Time that was recorded, without gaps.
    pub(super) fn recorded_ns(&self) -> u64 {
        self.recorded_ns.max(0) as u64
    }

    /// The sums.
    pub(super) fn sample(&self) -> Sample {
        let vms = self.about.vms.iter().map(|vm| {
            let of_vm = self.vcpus.range((vm.pid, 0)..=(vm.pid, u32::MAX));
            let vcpus = of_vm.map(|((_, number), vcpu)| {
                let c = &vcpu.counters;
                let run_ns = vcpu.running.run_ns();
                let times = c.times.zip(run_ns).map(|(times, run_ns)| Times { run_ns, ..times });
                let holders = Holders::of(vm.guest.tier);
                let counters = Counters { holders, times, ..*c };
                let (vcpu, tid) = (*number, vcpu.tid);
                VcpuSample { vcpu, tid, readable: vm.guest.is_read(), counters }
            });
            VmSample {
                pid: vm.pid,
                name: vm.name.clone(),
                uuid: vm.uuid.clone(),
                guest: vm.guest.clone(),
                ended: vm.ended,
                vcpus: vcpus.collect(),
                takers: Vec::new(),
            }
        });
        Sample {
            t_ns: self.about.end_ns.max(0) as u64,
            interval_ns: self.recorded_ns(),
            host: Some(self.about.host.clone()),
            lost_events: self.about.lost_events,
            vms: vms.collect(),
        }
    }
}

#[cfg(test)]
impl Recording {
    /// Sums the events of a recording.
    pub(crate) fn summary(&self) -> Sample {
        let mut summary = Summary::default();
        summary.add(&mut self.clone());
        summary.sample()
    }
}

/// When a vCPU ran: when it was not off its CPU, between its first and its last absence.
#[derive(Default)]
struct Running {
    /// Begin of the first absence, end of the last one, and their sum.
    open: Option<(i64, i64, i64)>,
    /// Time that it ran before.
    run_ns: Option<u64>,
}

impl Running {
    fn is_off(&mut self, begin_ns: i64, end_ns: i64) {
        let (first, last, off) = self.open.unwrap_or((begin_ns, end_ns, 0));
        // Absences of one vCPU cannot overlap in a real recording. In a forged file they may, and
        // their sum has no limit.
        let off = off.saturating_add(end_ns - begin_ns);
        self.open = Some((first.min(begin_ns), last.max(end_ns), off));
    }

    fn close(&mut self) {
        self.run_ns = self.run_ns();
        self.open = None;
    }

    /// None if it was never off its CPU.
    fn run_ns(&self) -> Option<u64> {
        let open = self.open.map(|(first, last, off)| (last - first).saturating_sub(off).max(0));
        match (open, self.run_ns) {
            (None, run_ns) => run_ns,
            (Some(open), run_ns) => Some(run_ns.unwrap_or(0).saturating_add(open as u64)),
        }
    }
}

fn count(c: &mut Counters, note: &Note) {
    let ns = (note.end_ns - note.begin_ns).max(0);
    let add = |sum: &mut u64| *sum = sum.saturating_add(ns as u64);
    let class = note.class as usize;
    match note.event {
        Event::Preempted => {
            c.preemptions.0[class] += 1;
            c.resumed += u64::from(note.class.is_protected());
            add(&mut c.offcpu_ns.0[class]);
            c.offcpu_over_cap.0[class] += u64::from(ns > LONG_NS);
            c.offcpu_hist.0[class].add_ns(ns as u64);
            // Wakeups that waited for a CPU are not recorded, so this is a lower bound.
            add(&mut c.times.get_or_insert_default().steal_ns);
        }
        Event::LockHalt => {
            c.lock_halts += 1;
            add(&mut c.lock_halt_ns);
        }
        Event::Waiting => {
            c.siblings_waiting += u64::from(note.siblings.unwrap_or(0).count_ones());
        }
        Event::Sample => {
            let clock = c.clock.get_or_insert_default();
            let [holder, head] = [note.holder_off, note.head_off].map(|off| off == Some(true));
            clock.samples.0[class] += 1;
            clock.samples_holder_off += u64::from(holder);
            clock.samples_head_off += u64::from(head && !holder);
        }
        Event::Sleep => {}
    }
}

#[cfg(test)]
mod tests {
    use holdfast_policy::VcpuClass;

    use super::super::{Event, tests::recording};
    use super::*;

    #[test]
    fn events_add_up_to_the_live_counters() {
        let sample = recording().summary();
        assert_eq!(sample.interval_ns, 1_000_000_000);
        let vm = &sample.vms[0];
        assert_eq!((vm.label().as_str(), vm.vcpus.len()), ("web <1>", 2));
        let total = vm.total();
        assert_eq!(total.preemptions[VcpuClass::Holder], 1);
        assert_eq!(total.offcpu_ns[VcpuClass::Holder], 4_000_000);
        assert_eq!(total.offcpu_over_cap[VcpuClass::Holder], 1);
        assert_eq!((total.lock_halts, total.resumed, total.siblings_waiting), (1, 2, 1));
        assert_eq!(total.kvm, None);
        let cost = total.cost().unwrap();
        assert_eq!((cost.waiting, cost.holder_preempted), (0.5, Some(0.5)));
        // vCPU 0: from 0 to 14 ms, with absences of 1 ms and 4 ms.
        assert_eq!(vm.vcpus[0].counters.times.unwrap().run_ns, 9_000_000);
    }

    /// A recording that begins so many seconds after the first.
    fn later(seconds: i64) -> Recording {
        let mut later = recording();
        let ns = seconds * 1_000_000_000;
        (later.about.begin_ns, later.about.end_ns) =
            (later.about.begin_ns + ns, later.about.end_ns + ns);
        for note in &mut later.notes {
            (note.begin_ns, note.end_ns) = (note.begin_ns + ns, note.end_ns + ns);
        }
        later
    }

    fn sum(recordings: Vec<Recording>) -> Sample {
        let mut summary = Summary::default();
        for mut recording in recordings {
            summary.add(&mut recording);
        }
        summary.sample()
    }

    #[test]
    fn recordings_that_follow_each_other_add_up_to_one() {
        let mut whole = recording();
        let next = later(1);
        whole.notes.extend_from_slice(&next.notes);
        whole.about.end_ns = next.about.end_ns;
        let json = |sample: &Sample| serde_json::to_value(sample).unwrap();
        assert_eq!(json(&sum(vec![recording(), next])), json(&whole.summary()));
    }

    #[test]
    fn nothing_is_said_of_the_time_between_two_recordings() {
        let [one, two] = [vec![recording()], vec![recording(), later(500)]].map(sum);
        assert_eq!((one.interval_ns, two.interval_ns), (1_000_000_000, 2_000_000_000));
        let run = |sample: &Sample| {
            sample.vms[0].vcpus.iter().map(|v| v.counters.times.unwrap().run_ns).collect::<Vec<_>>()
        };
        assert_eq!(run(&two), run(&one).iter().map(|ns| ns * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_vm_is_the_same_in_all_recordings_and_another_of_its_number_is_not() {
        let mut other = later(1);
        other.about.vms[0].begin_ns = other.about.vms[0].begin_ns.map(|ns| ns + 1);
        other.about.vms[0].name = None;
        let mut again = later(2);
        again.about.vms[0].name = None;
        let sums = sum(vec![recording(), other, again]);
        let seen = sums.vms.iter().map(|vm| (vm.label(), vm.total().preemptions.total()));
        assert_eq!(seen.collect::<Vec<_>>(), [("web <1>".into(), 6), ("pid 7 again".into(), 3)]);
    }

    #[test]
    fn what_was_not_recorded_is_not_zero() {
        let mut recording = recording();
        recording.about.frequency_hz = 0;
        recording.notes.retain(|note| note.event != Event::Sample);
        assert_eq!(recording.summary().vms[0].total().clock, None);
        // The time that a vCPU ran is known between two absences only.
        recording.notes.retain(|note| !(note.vcpu == 0 && note.event.is_absence()));
        let vm = &recording.summary().vms[0];
        assert_eq!(vm.vcpus[0].counters.times, None);
        assert!(vm.vcpus[1].counters.times.is_some());
        assert_eq!(vm.total().times, None);
    }

    #[test]
    fn sums_of_overlapping_absences_have_a_limit() {
        let mut recording = recording();
        let mut long = recording.notes[4];
        (long.begin_ns, long.end_ns) = (0, i64::MAX / 2);
        recording.notes = vec![long; 8];
        recording.notes[7].class = VcpuClass::Head;
        let vm = &recording.summary().vms[0];
        assert_eq!(vm.total().times, Some(Times { run_ns: 0, steal_ns: u64::MAX }));
        assert_eq!(vm.total().blocking_ns(), u64::MAX);
    }
}
