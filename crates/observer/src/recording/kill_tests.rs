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

use super::partial::recover;
use super::read::read;
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
fn killed(after: Duration) -> (tempfile::TempDir, Vec<(u128, u64)>) {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recording::kill_tests::sigkill_loses_nothing_but_the_last_moment"])
        .arg("--nocapture")
        .env(RECORDER, dir.path().join("a.parquet"))
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
    if let Some(path) = std::env::var_os(RECORDER).map(PathBuf::from) {
        return record(&path);
    }
    let mut random = ChaCha8Rng::seed_from_u64(50);
    let (mut unreadable, mut all, mut kept) = (0, 0, 0);
    for round in 0..50 {
        let (dir, given) = killed(Duration::from_millis(random.random_range(0..1200)));
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
