// SPDX-License-Identifier: GPL-2.0-or-later
//! A recorder is killed, or its file is torn, at any moment.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::archive::{Archive, Vms};
use super::partial::{is_partial, recover};
use super::read::read;
use super::target::{Bounds, Target};
use super::tests::{recording, writer};
use super::{About, Note};

const RECORDER: &str = "HOLDFAST_TEST_RECORDER";
const SYNC: Duration = Duration::from_millis(150);

/// The note of this number: each has its own times.
fn note(number: u64) -> Note {
    let note = recording().notes[0];
    let ns = (number % 1_000_000) as i64;
    Note { begin_ns: note.begin_ns + ns, end_ns: note.end_ns + ns, ..note }
}

/// Records until it is killed, and prints after each step when that was, and how many events it has
/// been given.
fn record(path: &Path) {
    let mut writer = writer(path, SYNC);
    let mut about = recording().about;
    let (start, mut given) = (Instant::now(), 0);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    // Far longer than a loaded machine needs.
    while start.elapsed() < Duration::from_secs(60) {
        let notes: Vec<Note> = (given..).take(random.random_range(0..3000)).map(note).collect();
        given += notes.len() as u64;
        // Each second has a VM more.
        while about.vms.len() as u64 <= start.elapsed().as_secs() {
            let pid = 100 + about.vms.len() as u32;
            about.vms.push(super::RecordedVm { pid, ..about.vms[0].clone() });
        }
        about.lost_events = given;
        let before = start.elapsed().as_nanos();
        writer.add(&notes, &about);
        println!("\nat {before} {given}");
        std::thread::sleep(Duration::from_millis(random.random_range(0..10)));
    }
}

/// Kills a recorder, and returns its directory, and what it was given when.
fn killed(
    test: &str,
    variable: &str,
    file: &str,
    after: Duration,
) -> (tempfile::TempDir, Vec<(u128, u64)>) {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("recording::kill_tests::{test}"), "--nocapture"])
        .env(variable, dir.path().join(file))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let at = |line: String| {
        let (ns, given) = line.strip_prefix("at ")?.split_once(' ')?;
        Some((ns.parse().unwrap(), given.parse().unwrap()))
    };
    let mut given = vec![lines.by_ref().find_map(at).expect("it records")];
    // Its pipe has room for what it says until then.
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    given.extend(lines.filter_map(at));
    (dir, given)
}

#[test]
fn sigkill_loses_nothing_but_the_last_moment() {
    const NAME: &str = "sigkill_loses_nothing_but_the_last_moment";
    if let Some(path) = std::env::var_os(RECORDER).map(PathBuf::from) {
        return record(&path);
    }
    let mut random = ChaCha8Rng::seed_from_u64(50);
    let (mut unreadable, mut all, mut kept) = (0, 0, 0);
    for round in 0..50 {
        let (dir, given) = killed(
            NAME,
            RECORDER,
            "a.parquet",
            Duration::from_millis(random.random_range(0..1200)),
        );
        assert!(!dir.path().join("a.parquet").exists(), "it was not finished");
        let partial = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
        // As it was left, and as it is recovered.
        let left = read(&partial).ok();
        let recovered = recover(dir.path());
        let recovered = recovered.into_iter().next().map(|outcome| outcome.unwrap().path);
        let events = match &recovered {
            None => 0,
            Some(path) => {
                assert_eq!(path.file_name().unwrap(), "a.recovered.parquet");
                let recording = read(path).unwrap();
                assert_eq!(left.as_ref(), Some(&recording));
                let right = recording.notes.iter().zip(0..).all(|(have, i)| *have == note(i));
                assert!(right, "round {round}: they are the first");
                recording.notes.len() as u64
            }
        };
        let (last, total) = *given.last().unwrap();
        // When the last step began, all that was given before that and `SYNC` had to be kept.
        let old = given.iter().filter(|(at, _)| at + SYNC.as_nanos() <= last).map(|(_, n)| *n);
        let promised = old.max().unwrap_or(0);
        assert!(events >= promised, "round {round}: {events} of {promised}, given {total}");
        unreadable += usize::from(recovered.is_none());
        (all, kept) = (all + total, kept + events);
    }
    println!("50 kills: {kept} of {all} events kept, {unreadable} before the first checkpoint");
    assert!(kept > 0 && unreadable < 25, "{unreadable}");
}

const DIRECTORY_RECORDER: &str = "HOLDFAST_TEST_DIRECTORY_RECORDER";

/// Records into files of a quarter of a second until it is killed, and prints what it was given.
fn record_files(path: &Path) {
    const PERIOD: Duration = Duration::from_millis(250);
    let rotate = Bounds { time: Some(PERIOD), bytes: None };
    let target = Target::Directory { path: path.to_owned(), rotate, keep: Bounds::default() };
    let begin_ns = recording().about.begin_ns;
    let mut vms = Vms::default();
    let vm = vms.describe(recording().about.vms[0].clone());
    let about = About { begin_ns, ..recording().about };
    let mut archive = Archive::create(target, SYNC, about).unwrap();
    let start = Instant::now();
    let (mut given, mut random) = (0, ChaCha8Rng::seed_from_u64(8));
    while start.elapsed() < Duration::from_secs(60) {
        let before = start.elapsed().as_nanos();
        let now_ns = begin_ns + before as i64;
        // Each event ends before this moment, and has its number in its length.
        let notes: Vec<Note> = (given..)
            .take(random.random_range(0..300))
            .map(|number| Note {
                vm,
                begin_ns: now_ns - number as i64 - 1,
                end_ns: now_ns - 1,
                ..note(0)
            })
            .collect();
        given += notes.len() as u64;
        archive.add(notes, &mut vms, now_ns, 0).unwrap();
        println!("\nat {before} {given}");
        std::thread::sleep(Duration::from_millis(random.random_range(0..10)));
    }
}

#[test]
fn sigkill_during_rotation_loses_nothing_but_the_last_moment() {
    const NAME: &str = "sigkill_during_rotation_loses_nothing_but_the_last_moment";
    if let Some(path) = std::env::var_os(DIRECTORY_RECORDER).map(PathBuf::from) {
        return record_files(&path);
    }
    let mut random = ChaCha8Rng::seed_from_u64(51);
    let (mut all, mut kept, mut complete, mut recovered) = (0, 0, 0, 0);
    for round in 0..50 {
        let after = Duration::from_millis(random.random_range(0..1200));
        let (dir, given) = killed(NAME, DIRECTORY_RECORDER, "", after);
        let target = Target::Directory {
            path: dir.path().to_owned(),
            rotate: Bounds::default(),
            keep: Bounds::default(),
        };
        let files = || {
            let partitions = target.directories("here");
            let files = partitions.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
            let paths = files.map(|file| file.unwrap().path());
            paths.filter(|path| !is_partial(path)).collect::<Vec<_>>()
        };
        let before = files();
        for partition in target.directories("here") {
            recovered += recover(&partition).into_iter().map(Result::unwrap).count();
        }
        complete += before.len();
        let mut numbers = Vec::new();
        for path in files() {
            // Whatever has a name is complete.
            let recording = read(&path).unwrap_or_else(|error| panic!("{round}: {error}"));
            numbers.extend(recording.notes.iter().map(|n| (n.end_ns - n.begin_ns) as u64));
        }
        numbers.sort_unstable();
        let (last, total) = *given.last().unwrap();
        assert!(
            numbers.iter().copied().eq(0..numbers.len() as u64),
            "round {round}: each event of the first {} is there once",
            numbers.len()
        );
        let old = given.iter().filter(|(at, _)| at + SYNC.as_nanos() <= last).map(|(_, n)| *n);
        let promised = old.max().unwrap_or(0);
        let events = numbers.len() as u64;
        assert!(events >= promised, "round {round}: {events} of {promised}, given {total}");
        (all, kept) = (all + total, kept + events);
    }
    println!(
        "50 kills: {kept} of {all} events kept, in {complete} files that were complete and \
         {recovered} that were recovered"
    );
    assert!(complete > 60 && recovered > 5, "{complete} {recovered}");
}

/// As after a loss of power: what was not synced is missing, or zeros.
#[test]
fn a_torn_file_has_all_that_was_before_the_tear() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let mut writer = writer(&path, Duration::ZERO);
    let about = About { lost_events: 3, ..recording().about };
    let ends: Vec<u64> = (0..4)
        .map(|group| {
            let notes: Vec<Note> = (group * 50..(group + 1) * 50).map(note).collect();
            writer.add(&notes, &about);
            writer.len()
        })
        .collect();
    // As if the process were killed.
    std::mem::forget(writer);
    let partial = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&partial).unwrap();
    let torn = dir.path().join(".holdfast-torn.partial");
    for len in (0..=whole.len()).rev().step_by(7) {
        for fill in [0, 100] {
            let mut bytes = whole[..len].to_vec();
            bytes.resize(len + fill, 0);
            File::create(&torn).unwrap().write_all(&bytes).unwrap();
            let groups = ends.iter().filter(|end| **end <= len as u64).count();
            match read(&torn) {
                Ok(recording) => {
                    assert_eq!(
                        recording.notes,
                        (0..groups as u64 * 50).map(note).collect::<Vec<_>>()
                    );
                    assert_eq!(recording.about, about);
                }
                Err(error) => {
                    assert!(groups == 0, "{len} of {}: {error}", whole.len());
                    assert!(error.to_string().contains("no event yet"), "{error}");
                }
            }
        }
    }
}
