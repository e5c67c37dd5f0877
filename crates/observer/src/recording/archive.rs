// SPDX-License-Identifier: GPL-2.0-or-later
//! A recording that is being written: one file, or one after another.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::target::Target;
use super::write::Writer;
use super::{About, Note, RecordedVm, numbers};
use crate::error::ObserverError;

/// Time between two looks at what there is of this host's files.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The VMs of a recorder, which may run for longer than they do.
#[derive(Default)]
pub(super) struct Vms {
    known: Vec<KnownVm>,
    /// VMs so far, and the id of the next one.
    seen: u32,
}

struct KnownVm {
    /// The `vm` of its notes until they are written.
    id: u32,
    vm: RecordedVm,
    /// It had ended when the file began.
    is_over: bool,
}

impl Vms {
    /// Marks all of them as ended, until they are [described](Self::describe) again.
    pub(super) fn suppose_ended(&mut self) {
        self.known.iter_mut().for_each(|known| known.vm.ended = true);
    }

    /// What is known of a VM that runs. Returns its id.
    pub(super) fn describe(&mut self, vm: RecordedVm) -> u32 {
        let is_it =
            |known: &&mut KnownVm| (known.vm.pid, known.vm.begin_ns) == (vm.pid, vm.begin_ns);
        if let Some(known) = self.known.iter_mut().find(is_it) {
            (known.vm, known.is_over) = (vm, false);
            return known.id;
        }
        let id = self.seen;
        self.seen += 1;
        self.known.push(KnownVm { id, vm, is_over: false });
        id
    }

    /// VMs that there were.
    pub(super) fn seen(&self) -> usize {
        self.seen as usize
    }

    /// Is this VM still known?
    pub(super) fn has(&self, id: u32) -> bool {
        self.known.iter().any(|known| known.id == id)
    }

    /// A file ends. VMs that ended in it may have late notes in the next one.
    fn end_file(&mut self) {
        self.known.retain(|known| !known.is_over);
        self.known.iter_mut().for_each(|known| known.is_over = known.vm.ended);
    }
}

/// A recording that is being written.
pub(super) struct Archive {
    target: Target,
    sync_every: Duration,
    /// None after it could not be ended, or the next one not be begun.
    writer: Option<Writer>,
    /// The metadata of this file.
    about: About,
    /// Ids of its VMs, in the order in which it has them.
    ids: Vec<u32>,
    /// When the next file begins.
    next_ns: Option<i64>,
    /// Events lost before this file, and notes of VMs that were not known.
    lost_before: u64,
    strays: u64,
    /// Files that are complete.
    files: u64,
    /// When notes were last added.
    added_at: Instant,
    /// When what is kept was last looked at.
    kept_at: Option<Instant>,
}

impl Archive {
    /// Begins the first file; `about` is what is known of the recording. Fails if it could not get
    /// its name, or there is no room.
    pub(super) fn create(
        target: Target,
        sync_every: Duration,
        about: About,
    ) -> Result<Self, ObserverError> {
        let writer = Writer::create(target.begin(&about)?, sync_every)?;
        let next_ns = target.next_ns(about.begin_ns);
        Ok(Self {
            target,
            sync_every,
            writer: Some(writer),
            about: About { vms: Vec::new(), ..about },
            ids: Vec::new(),
            next_ns,
            lost_before: 0,
            strays: 0,
            files: 0,
            added_at: Instant::now(),
            kept_at: None,
        })
    }

    /// The path that the file is to get.
    pub(super) fn path(&self) -> &Path {
        self.writer.as_ref().map_or(self.target.path(), |writer| writer.name().path())
    }

    /// The time from which on the recording is, before its first note.
    pub(super) fn begin_at(&mut self, begin_ns: i64) {
        (self.about.begin_ns, self.about.end_ns) = (begin_ns, begin_ns + 1);
        self.next_ns = self.target.next_ns(begin_ns);
    }

    /// Adds the notes up to `now_ns`, and begins the next file when it is time to. `lost` are the
    /// events that were lost so far.
    pub(super) fn add(
        &mut self,
        notes: Vec<Note>,
        vms: &mut Vms,
        now_ns: i64,
        lost: u64,
    ) -> Result<(), ObserverError> {
        let due_ns = self.next_ns.filter(|next_ns| *next_ns <= now_ns).map(|next_ns| {
            // The last time that is due, if the recorder was stopped for long.
            let mut last_ns = next_ns;
            while let Some(next_ns) = self.target.next_ns(last_ns).filter(|next| *next <= now_ns) {
                last_ns = next_ns;
            }
            last_ns
        });
        let is_full = self.writer.as_ref().is_some_and(|writer| self.target.is_full(writer.len()));
        // Without a length it could not be read.
        let ends_ns = due_ns.or(is_full.then_some(now_ns)).filter(|at| *at > self.about.begin_ns);
        let notes = match ends_ns {
            None => notes,
            Some(at_ns) => {
                let (before, after) = notes.into_iter().partition(|note| note.end_ns < at_ns);
                self.write(before, vms, at_ns, lost);
                self.next_file(vms, at_ns, lost)?;
                after
            }
        };
        self.write(notes, vms, now_ns, lost);
        self.added_at = Instant::now();
        Ok(())
    }

    /// Ends the file, and begins one at `begin_ns`: at the end of the last one, unless the clock
    /// was set. A file that could not be written is left for [`finish`](Self::finish).
    pub(super) fn next_file(
        &mut self,
        vms: &mut Vms,
        begin_ns: i64,
        lost: u64,
    ) -> Result<(), ObserverError> {
        if self.has_failed() {
            return Ok(());
        }
        if let Some(writer) = self.writer.take() {
            writer.finish(&self.about)?;
            self.files += 1;
        }
        vms.end_file();
        let about = &mut self.about;
        (about.begin_ns, about.end_ns, about.lost_events) = (begin_ns, begin_ns + 1, 0);
        about.vms.clear();
        self.ids.clear();
        self.lost_before = lost + self.strays;
        self.next_ns = self.target.next_ns(begin_ns);
        let mut writer = Writer::create(self.target.begin(&self.about)?, self.sync_every)?;
        // Ending a file may take long, and the next events wait for it already.
        writer.waits_since(self.added_at);
        self.writer = Some(writer);
        Ok(())
    }

    fn write(&mut self, mut notes: Vec<Note>, vms: &Vms, end_ns: i64, lost: u64) {
        let about = &mut self.about;
        let noted: HashSet<u32> = notes.iter().map(|note| note.vm).collect();
        for known in &vms.known {
            match self.ids.iter().position(|id| *id == known.id) {
                Some(at) => about.vms[at] = known.vm.clone(),
                None if !known.is_over || noted.contains(&known.id) => {
                    self.ids.push(known.id);
                    about.vms.push(known.vm.clone());
                }
                None => {}
            }
        }
        let numbers: HashMap<u32, u32> =
            self.ids.iter().copied().zip(numbers(&about.vms)).collect();
        let all = notes.len();
        // A file with an event of no VM would be refused.
        notes.retain_mut(|note| match numbers.get(&note.vm) {
            Some(number) => {
                note.vm = *number;
                true
            }
            None => false,
        });
        self.strays += (all - notes.len()) as u64;
        // Nor may it end where it began.
        about.end_ns = end_ns.max(about.begin_ns + 1);
        about.lost_events = (lost + self.strays).saturating_sub(self.lost_before);
        if let Some(writer) = &mut self.writer {
            writer.add(&notes, about);
        }
    }

    /// Events lost so far.
    pub(super) fn lost_events(&self) -> u64 {
        self.lost_before + self.about.lost_events
    }

    /// Has a write failed, so that the recording should end?
    pub(super) fn has_failed(&self) -> bool {
        self.writer.as_ref().is_none_or(Writer::has_failed)
    }

    /// Removes files of this host that need not be kept, if it is time to look for them.
    pub(super) fn keep(&mut self, warn: &dyn Fn(ObserverError)) {
        if self.kept_at.is_some_and(|at| at.elapsed() < KEEP_INTERVAL) {
            return;
        }
        self.kept_at = Some(Instant::now());
        let unfinished = self.writer.as_ref().map_or(0, Writer::len);
        self.target.remove_old(&self.about.host, unfinished).into_iter().for_each(warn);
    }

    /// Ends the last file. Returns its path, or that of the directory, and the number of files.
    pub(super) fn finish(mut self) -> Result<(PathBuf, u64), ObserverError> {
        let path = self.writer.take().map(|writer| writer.finish(&self.about)).transpose()?;
        let path = path.filter(|_| !self.target.is_directory());
        Ok((path.unwrap_or_else(|| self.target.path().to_owned()), self.files + 1))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::read::read;
    use super::super::target::Bounds;
    use super::super::tests::{SYNC, recording};
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;
    const MINUTE: Duration = Duration::from_secs(60);
    /// Midnight of 2026-11-29 (UTC).
    const DAY_NS: i64 = 1_795_910_400 * SECOND_NS;

    fn vm(pid: u32) -> RecordedVm {
        RecordedVm { pid, begin_ns: Some(1), ..RecordedVm::default() }
    }

    /// An event of this VM that ends so many seconds after midnight.
    fn note(vm: u32, second: i64) -> Note {
        let end_ns = DAY_NS + second * SECOND_NS;
        Note { vm, begin_ns: end_ns - SECOND_NS, end_ns, ..recording().notes[0] }
    }

    fn archive(dir: &Path, rotate: Bounds, begin_s: i64) -> Archive {
        let target = Target::Directory { path: dir.to_owned(), rotate, keep: Bounds::default() };
        let begin_ns = DAY_NS + begin_s * SECOND_NS;
        let about = About { begin_ns, vms: Vec::new(), ..recording().about };
        Archive::create(target, SYNC, about).unwrap()
    }

    fn each_minute() -> Bounds {
        Bounds { time: Some(MINUTE), bytes: None }
    }

    /// Seconds from midnight at which each file begins and ends, and at which its events end.
    fn files(dir: &Path) -> Vec<(String, i64, i64, Vec<i64>)> {
        let mut found = Vec::new();
        for day in fs::read_dir(dir).unwrap().map(|day| day.unwrap().path()) {
            for file in fs::read_dir(day.join("host=here")).unwrap().map(|f| f.unwrap().path()) {
                let read = read(&file).unwrap();
                let at = |ns: i64| (ns - DAY_NS).div_euclid(SECOND_NS);
                let ends = read.notes.iter().map(|note| at(note.end_ns)).collect();
                let name = file.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                found.push((name, at(read.about.begin_ns), at(read.about.end_ns), ends));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn each_event_is_in_the_file_of_its_end_and_files_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut vms = Vms::default();
        let id = vms.describe(vm(7));
        let mut archive = archive(dir.path(), each_minute(), -90);
        for (now, ends) in [(-70, &[-80][..]), (-50, &[-61, -60, -59]), (5, &[-1, 0]), (9, &[])] {
            let notes = ends.iter().map(|second| note(id, *second)).collect();
            archive.add(notes, &mut vms, DAY_NS + now * SECOND_NS, 0).unwrap();
        }
        let (path, nr) = archive.finish().unwrap();
        assert_eq!((path.as_path(), nr), (dir.path(), 3));
        let expected = [
            ("date=2026-11-28/host=here/here-20261128T235830Z.parquet", -90, -60, vec![-80, -61]),
            ("date=2026-11-28/host=here/here-20261128T235900Z.parquet", -60, 0, vec![-60, -59, -1]),
            ("date=2026-11-29/host=here/here-20261129T000000Z.parquet", 0, 9, vec![0]),
        ];
        assert_eq!(files(dir.path()), expected.map(|(a, b, c, d)| (a.to_owned(), b, c, d)));
    }

    #[test]
    fn a_recorder_that_was_stopped_begins_no_file_for_each_period_that_it_missed() {
        let dir = tempfile::tempdir().unwrap();
        let mut vms = Vms::default();
        let id = vms.describe(vm(7));
        let mut archive = archive(dir.path(), each_minute(), 0);
        archive
            .add(vec![note(id, 2), note(id, 200)], &mut vms, DAY_NS + 205 * SECOND_NS, 0)
            .unwrap();
        assert_eq!(archive.finish().unwrap().1, 2);
        let ends: Vec<_> = files(dir.path()).into_iter().map(|file| (file.1, file.3)).collect();
        assert_eq!(ends, [(0, vec![2]), (180, vec![200])]);
    }

    #[test]
    fn a_full_file_is_followed_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut vms = Vms::default();
        let id = vms.describe(vm(7));
        let full = Bounds { time: None, bytes: Some(5) };
        let mut archive = archive(dir.path(), full, 0);
        for second in 1..4 {
            let notes = vec![note(id, second)];
            archive.add(notes, &mut vms, DAY_NS + second * SECOND_NS, 0).unwrap();
            archive.writer.as_mut().unwrap().flush(&archive.about);
        }
        assert_eq!(archive.finish().unwrap().1, 3);
        let ends: Vec<_> = files(dir.path()).into_iter().map(|file| file.3).collect();
        assert_eq!(ends, [[1], [2], [3]]);
    }

    #[test]
    fn a_vm_that_has_ended_is_in_later_files_only_for_late_events() {
        let dir = tempfile::tempdir().unwrap();
        let mut vms = Vms::default();
        let (first, second) = (vms.describe(vm(7)), vms.describe(vm(8)));
        let mut archive = archive(dir.path(), each_minute(), 0);
        let mut add = |now, notes, vms: &mut Vms| {
            archive.add(notes, vms, DAY_NS + now * SECOND_NS, 0).unwrap();
        };
        add(50, vec![note(first, 10), note(second, 11)], &mut vms);
        // The first ends. Its process's number is that of another VM, which has its own events.
        vms.suppose_ended();
        assert_eq!(vms.describe(vm(8)), second);
        let third = vms.describe(RecordedVm { begin_ns: Some(2), ..vm(7) });
        add(70, vec![note(first, 12), note(third, 65)], &mut vms);
        add(80, vec![note(first, 59)], &mut vms);
        add(130, vec![], &mut vms);
        assert!(!vms.has(first), "it ended two files ago");
        add(140, vec![note(first, 139)], &mut vms);
        assert_eq!(archive.lost_events(), 1, "an event of no VM is lost");
        archive.finish().unwrap();
        let seen: Vec<Vec<(Option<i64>, bool, usize)>> = files(dir.path())
            .into_iter()
            .map(|file| {
                let read = read(&dir.path().join(file.0)).unwrap();
                let events = |vm: &RecordedVm| read.notes.iter().filter(|n| n.vm == vm.pid).count();
                read.about.vms.iter().map(|vm| (vm.begin_ns, vm.ended, events(vm))).collect()
            })
            .collect();
        let (one, two) = (Some(1), Some(2));
        assert_eq!(
            seen,
            [
                vec![(one, true, 2), (one, false, 1), (two, false, 0)],
                vec![(one, false, 0), (two, false, 1), (one, true, 1)],
                vec![(one, false, 0), (two, false, 0)],
            ]
        );
    }

    #[test]
    fn lost_events_are_told_in_the_file_of_their_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut vms = Vms::default();
        vms.describe(vm(7));
        let mut archive = archive(dir.path(), each_minute(), 0);
        for (now, lost) in [(30, 5), (70, 7), (80, 10)] {
            archive.add(Vec::new(), &mut vms, DAY_NS + now * SECOND_NS, lost).unwrap();
        }
        assert_eq!(archive.lost_events(), 10);
        archive.finish().unwrap();
        let of = |file: &(String, i64, i64, Vec<i64>)| {
            read(&dir.path().join(&file.0)).unwrap().about.lost_events
        };
        assert_eq!(files(dir.path()).iter().map(of).collect::<Vec<_>>(), [7, 3]);
    }
}
