// SPDX-License-Identifier: GPL-2.0-or-later
//! Recordings: every absence of every vCPU, in a Parquet file that DuckDB and Spark read, too.

mod archive;
mod checkpoint;
mod compare;
mod compare_text;
mod content;
mod encode;
mod html;
#[cfg(test)]
mod kill_tests;
mod partial;
mod perfetto;
mod read;
mod record;
mod replay;
mod schema;
mod sources;
mod summary;
mod target;
mod write;

use std::collections::{HashMap, HashSet};

use holdfast_policy::VcpuClass;
use serde::{Deserialize, Serialize};

use crate::guest::Guest;
use crate::sample::Sample;

pub use compare::Compare;
pub use record::{Record, Recorded};
pub use replay::Replay;
pub use sources::{Input, TimeRange};
pub use target::{Bounds, Target};

/// An event of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It was preempted, and ran again at the end.
    Preempted,
    /// It halted in the queue of a lock.
    LockHalt,
    /// It was idle, or waited for its VMM.
    Sleep,
    /// It came back from being preempted and found these siblings queued for a lock.
    Waiting,
    /// The sampling clock found it running.
    Sample,
}

impl Event {
    const ALL: [Self; 5] =
        [Self::Preempted, Self::LockHalt, Self::Sleep, Self::Waiting, Self::Sample];

    /// Its name in recordings.
    const fn name(self) -> &'static str {
        match self {
            Self::Preempted => "preempted",
            Self::LockHalt => "lock_halt",
            Self::Sleep => "sleep",
            Self::Waiting => "waiting",
            Self::Sample => "sample",
        }
    }

    /// Was the vCPU off the CPU?
    fn is_absence(self) -> bool {
        matches!(self, Self::Preempted | Self::LockHalt | Self::Sleep)
    }
}

/// A row of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    /// Since 1970; equal to the end for events without a length.
    pub(crate) begin_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) event: Event,
    /// The VM: its number of [`numbers`].
    pub(crate) vm: u32,
    pub(crate) tid: u32,
    pub(crate) vcpu: u32,
    /// Its class when it left the CPU, or when it was sampled.
    pub(crate) class: VcpuClass,
    /// The CPU that it came back to, or was sampled on.
    pub(crate) cpu: u32,
    /// Of [`Event::Waiting`]: bit i is vCPU i.
    pub(crate) siblings: Option<u64>,
    /// Of [`Event::Sample`]: the vCPU was queued while a lock holder of the VM was preempted.
    pub(crate) holder_off: Option<bool>,
    /// The same for a next owner.
    pub(crate) head_off: Option<bool>,
}

/// Metadata of a recording, as JSON in the key `holdfast.recording` of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Schema tag.
    pub(crate) schema: String,
    pub(crate) begin_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) host: String,
    pub(crate) kernel: String,
    pub(crate) frequency_hz: u32,
    /// Notes that were lost for want of room.
    pub(crate) lost_events: u64,
    pub(crate) vms: Vec<RecordedVm>,
}

impl About {
    /// The host's name for display.
    pub(crate) fn host_name(&self) -> &str {
        // The kernel's default name.
        if self.host == "(none)" { "host without a name" } else { &self.host }
    }
}

/// A VM of the recording, with or without events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedVm {
    /// Its process. Of a VM that was read: its number of [`numbers`].
    pub(crate) pid: u32,
    /// Of a VM that was read: its process.
    #[serde(skip)]
    pub(crate) process: u32,
    /// Start of its process, since 1970, unless it ended before that was read: an earlier process
    /// may have had the same number.
    pub(crate) begin_ns: Option<i64>,
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    #[serde(flatten)]
    pub(crate) guest: Guest,
    /// It ended during the recording.
    pub(crate) ended: bool,
}

impl RecordedVm {
    pub(crate) fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("pid {}", self.pid))
    }
}

/// One more than the largest number of a process (`PID_MAX_LIMIT`).
const PIDS: u32 = 1 << 22;

/// A unique number for each VM: the number of its process, or, if an earlier VM's process had that,
/// a number that no process has.
fn numbers(vms: &[RecordedVm]) -> Vec<u32> {
    let mut used = HashSet::new();
    let number = |(i, vm): (usize, &RecordedVm)| {
        if used.insert(vm.pid) { vm.pid } else { PIDS.saturating_add(i as u32) }
    };
    vms.iter().enumerate().map(number).collect()
}

/// A recording in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Recording {
    pub(crate) about: About,
    pub(crate) notes: Vec<Note>,
}

impl Recording {
    /// Leaves the VMs of a sample, in their order, and their events.
    pub(crate) fn keep(&mut self, sample: &Sample) {
        let places: HashMap<u32, usize> = sample.vms.iter().map(|vm| vm.pid).zip(0..).collect();
        self.about.vms.retain(|vm| places.contains_key(&vm.pid));
        self.about.vms.sort_by_key(|vm| places[&vm.pid]);
        self.notes.retain(|note| places.contains_key(&note.vm));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::ObserverError;
    use crate::select::Selection;

    impl Recording {
        /// Leaves the selected VMs, as a replay does. Returns their sums.
        pub(crate) fn select(&mut self, selection: &Selection) -> Result<Sample, ObserverError> {
            let mut sample = self.summary();
            selection.check([&sample], "in the recording")?;
            selection.apply(&mut sample);
            self.keep(&sample);
            Ok(sample)
        }
    }

    /// As `--sync` by default.
    pub(crate) const SYNC: std::time::Duration = std::time::Duration::from_secs(10);

    /// A writer of a file, which it replaces.
    pub(super) fn writer(path: &std::path::Path, sync: std::time::Duration) -> write::Writer {
        write::Writer::create(target::Name::Given(path.to_owned()), sync).unwrap()
    }

    /// A second in which vCPU 0 is preempted as holder for 4 ms, and vCPU 1 spins meanwhile.
    pub(crate) fn recording() -> Recording {
        const T: i64 = 1_700_000_000_000_000_000;
        const MS: i64 = 1_000_000;
        use Event::*;
        use VcpuClass::*;
        let note = |from_ms: i64, to_ms: i64, event, vcpu, class| Note {
            begin_ns: T + from_ms * MS,
            end_ns: T + to_ms * MS,
            event,
            vm: 7,
            tid: 8 + vcpu,
            vcpu,
            class,
            cpu: vcpu,
            siblings: (event == Waiting).then_some(0b10),
            holder_off: (event == Sample).then_some(class == Waiter),
            head_off: (event == Sample).then_some(false),
        };
        let notes = vec![
            note(0, 1, Preempted, 0, Preemptible),
            note(1, 2, Sleep, 1, Preemptible),
            note(9, 9, Sample, 0, Holder),
            note(12, 12, Sample, 1, Waiter),
            note(10, 14, Preempted, 0, Holder),
            note(14, 14, Waiting, 0, Holder),
            note(20, 21, LockHalt, 1, Waiter),
            note(999, 1000, Preempted, 1, Head),
        ];
        let vm = RecordedVm {
            pid: 7,
            process: 7,
            begin_ns: Some(T - 3_600_000 * MS),
            name: Some("web <1>".into()),
            guest: Guest { kernel: Some("6.1.0".into()), ..Guest::default() },
            ..RecordedVm::default()
        };
        let about = About {
            schema: schema::SCHEMA.into(),
            begin_ns: T,
            end_ns: T + 1000 * MS,
            host: "here".into(),
            kernel: "7.2".into(),
            frequency_hz: 99,
            lost_events: 0,
            vms: vec![vm],
        };
        Recording { about, notes }
    }

    /// The same beside a second VM that loses more, and uses less CPU time.
    pub(crate) fn two_vms() -> Recording {
        let mut both = recording();
        let mut more: Vec<Note> = both.notes.iter().map(|note| Note { vm: 9, ..*note }).collect();
        more[4].begin_ns -= 7_000_000;
        both.notes.extend(more);
        let uuid = Some("0c24e29f-0000-4000-8000-000000000001".into());
        let db = RecordedVm {
            pid: 9,
            process: 9,
            name: Some("db".into()),
            uuid,
            ..both.about.vms[0].clone()
        };
        both.about.vms.push(db);
        both
    }

    #[test]
    fn a_selection_leaves_vms_their_events_and_their_order() {
        use crate::select::{Column, Wanted};
        let order = |vms: &[&str], sort, top| {
            let mut both = two_vms();
            let vms = Wanted(vms.iter().map(|vm| (*vm).to_owned()).collect());
            let sample = both.select(&Selection { vms, sort, top })?;
            let left: Vec<u32> = both.about.vms.iter().map(|vm| vm.pid).collect();
            assert_eq!(left, sample.vms.iter().map(|vm| vm.pid).collect::<Vec<_>>());
            assert!(both.notes.iter().all(|note| left.contains(&note.vm)));
            assert_eq!(both.notes.len(), left.len() * recording().notes.len());
            Ok::<_, ObserverError>(left)
        };
        assert_eq!(order(&[], Column::Lost, None).unwrap(), [9, 7]);
        assert_eq!(order(&[], Column::Cpu, None).unwrap(), [7, 9]);
        assert_eq!(order(&[], Column::Lost, Some(1)).unwrap(), [9]);
        assert_eq!(order(&["pid 7"], Column::Lost, None).unwrap(), [7]);
        assert_eq!(order(&["7", "db"], Column::Vm, None).unwrap(), [9, 7]);
        let uuid = ["0C24E29F-0000-4000-8000-000000000001"];
        assert_eq!(order(&uuid, Column::Lost, None).unwrap(), [9]);
        let error = order(&["none"], Column::Lost, None).unwrap_err().to_string();
        assert_eq!(error, "there is no VM `none` in the recording");
    }
}
