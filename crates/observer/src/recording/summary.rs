// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts a recording to the sample model, so that a replay prints the same tables as the report.

use std::collections::BTreeMap;

use super::{Event, Note, Recording};
use crate::sample::{ClockSamples, Counters, Holders, Sample, Times, VcpuSample, VmSample};

/// As `long_absence_ns` of `observe.bpf.c`.
const LONG_NS: i64 = 1_000_000;

impl Recording {
    /// Sums the events of a recording.
    pub(crate) fn summary(&self) -> Sample {
        let has_clock = self.about.frequency_hz > 0;
        let none = Counters {
            times: Some(Times::default()),
            clock: has_clock.then(ClockSamples::default),
            ..Counters::default()
        };
        let mut counted: BTreeMap<(u32, u32), (u32, Counters)> = BTreeMap::new();
        let mut off: BTreeMap<(u32, u32), Vec<(i64, i64)>> = BTreeMap::new();
        for note in &self.notes {
            let key = (note.vm, note.vcpu);
            let (tid, counters) = counted.entry(key).or_insert((note.tid, none));
            *tid = note.tid;
            count(counters, note);
            if note.event.is_absence() {
                off.entry(key).or_default().push((note.begin_ns, note.end_ns));
            }
        }
        let vms = self.about.vms.iter().map(|vm| {
            let vcpus = counted.range((vm.pid, 0)..=(vm.pid, u32::MAX)).map(|(key, (tid, c))| {
                let mut counters = Counters { holders: Holders::of(vm.guest.tier), ..*c };
                // It ran when it was not off the CPU, between its first and its last absence.
                counters.times = off
                    .get(key)
                    .zip(c.times)
                    .map(|(spans, times)| Times { run_ns: running_ns(spans), ..times });
                VcpuSample { vcpu: key.1, tid: *tid, readable: vm.guest.is_read(), counters }
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
            t_ns: self.about.end_ns as u64,
            interval_ns: self.about.end_ns.saturating_sub(self.about.begin_ns).max(0) as u64,
            lost_events: self.about.lost_events,
            vms: vms.collect(),
        }
    }
}

fn running_ns(spans: &[(i64, i64)]) -> u64 {
    let first = spans.iter().map(|span| span.0).min().unwrap_or(0);
    let last = spans.iter().map(|span| span.1).max().unwrap_or(0);
    // Absences of one vCPU cannot overlap in a real recording. In a forged file they may, and their
    // sum has no limit.
    let off = spans.iter().map(|(begin, end)| end - begin).fold(0, i64::saturating_add);
    (last - first).saturating_sub(off).max(0) as u64
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
    use crate::sample::Times;

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
