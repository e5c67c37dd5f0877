// SPDX-License-Identifier: GPL-2.0-or-later
//! An interrupted run keeps its windows. In a test program of its own: the signal ends all of it.

mod local;

use std::path::PathBuf;

use holdfast_lab::campaign::Campaign;
use holdfast_lab::result::RunResult;
use holdfast_lab::runner::{Options, Place};
use holdfast_lab::stats::Settings;
use holdfast_lab::window::Window;
use holdfast_testbed::machine::Accel;
use holdfast_testbed::progress::Progress;

#[test]
fn leaves_a_result_when_whole_and_when_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut campaign = Campaign {
        experiments: vec![local::experiment("rounds = 2", "rounds = 2")],
        place: Place { accel: Accel::Here, dist: PathBuf::new() },
        options: Options { observer: vec!["observer".into()], ..Options::default() },
        statistics: Settings::default(),
        out: dir.path().join("whole"),
        verbose: false,
        afresh: false,
        version: "0".into(),
        commit: None,
    };
    let whole = campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    assert!(whole.ended_by.is_none() && !whole.result.partial);
    let read = RunResult::read(&whole.result_path).unwrap();
    // On a busy machine a window may be measured again; the failed one is kept beside it.
    let problems: Vec<_> = read.windows.iter().filter_map(|s| s.problem.as_ref()).collect();
    let nr_valid = read.windows.len() - problems.len();
    assert_eq!(nr_valid, 8, "{problems:?}");
    assert_eq!(read, whole.result);
    assert!(!read.comparisons.is_empty());
    assert!(std::fs::read_to_string(&whole.report_path).unwrap().contains("</html>"));

    // Dates are of whole seconds.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let another = campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    assert_eq!(RunResult::read(&another.result_path).unwrap(), another.result);
    assert_eq!(RunResult::read(&campaign.out.join("previous.json")).unwrap(), whole.result);

    // A version that reads no such results keeps them all the same.
    std::fs::write(&another.result_path, "{\"schema\": \"holdfast.result/1\"}").unwrap();
    campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    let kept = std::fs::read_to_string(campaign.out.join("previous-2.json")).unwrap();
    assert!(kept.contains("holdfast.result/1"));
    assert_eq!(RunResult::read(&campaign.out.join("previous.json")).unwrap(), whole.result);

    campaign.out = dir.path().join("full");
    let in_the_way = campaign.out.join("result.json.new");
    std::fs::create_dir_all(&in_the_way).unwrap();
    let unwritten = campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    assert!(unwritten.unwritten.is_some() && !unwritten.result_path.exists());
    assert!(!unwritten.result.comparisons.is_empty(), "it is shown all the same");
    std::fs::remove_dir(in_the_way).unwrap();
    let again = campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    assert!(again.unwritten.is_none());
    assert_eq!(again.result.windows, unwritten.result.windows, "nothing is measured twice");

    campaign.out = dir.path().join("interrupted");
    campaign.options.rounds = Some(500);
    let log = campaign.out.join("windows.jsonl");
    // A shell that runs the tests in the background has it ignored, and so it would stay.
    // SAFETY: a plain system call; there is no handler yet.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    holdfast_signals::catch().unwrap();
    let watcher = std::thread::spawn({
        let log = log.clone();
        move || {
            // As soon as three windows are on disk.
            while std::fs::read_to_string(&log).unwrap_or_default().lines().count() < 3 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            // SAFETY: plain system calls; the handler is installed.
            unsafe {
                libc::kill(libc::getpid(), libc::SIGINT);
                // Two that come together count as one.
                libc::kill(libc::getpid(), libc::SIGINT);
            }
        }
    });
    let ended = campaign.run_on(&local::boot, &Progress::silent()).unwrap();
    watcher.join().unwrap();
    assert!(ended.result.partial && ended.ended_by.is_some());
    let read = RunResult::read(&ended.result_path).unwrap();
    assert!((3..20).contains(&read.windows.len()), "{}", read.windows.len());
    assert_eq!(read.experiments[0].windows.rounds, 500);
    let logged: Vec<Window> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(logged, read.windows);
}
