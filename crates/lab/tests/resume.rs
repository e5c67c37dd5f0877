// SPDX-License-Identifier: GPL-2.0-or-later
//! A stopped run goes on where it was.

mod local;

use std::sync::Mutex;

use holdfast_lab::campaign::Campaign;
use holdfast_lab::experiment::Experiment;
use holdfast_lab::runner::{Host, Options, Place};
use holdfast_lab::stats::Settings;
use holdfast_testbed::Error;
use holdfast_testbed::machine::Accel;
use holdfast_testbed::progress::Progress;

#[test]
fn a_resumed_run_does_not_repeat_windows() {
    let dir = tempfile::tempdir().unwrap();
    let experiment =
        |name: &str| local::experiment("name = \"local\"", &format!("name = \"{name}\""));
    let mut campaign = Campaign {
        experiments: vec![experiment("first"), experiment("second")],
        place: Place { accel: Accel::Here, dist: dir.path().join("no-dist") },
        options: Options { observer: vec!["observer".into()], ..Options::default() },
        statistics: Settings::default(),
        out: dir.path().join("out"),
        verbose: false,
        afresh: false,
        version: "0".into(),
        commit: None,
    };
    let booted = Mutex::new(Vec::new());
    let boot = |only: &'static str| {
        let booted = &booted;
        move |e: &Experiment| -> holdfast_testbed::Result<Box<dyn Host>> {
            if !only.is_empty() && e.name != only {
                return Err(Error::Unsupported("the machine is full".into()));
            }
            booted.lock().unwrap().push(e.name.clone());
            local::boot(e)
        }
    };
    let valid = |windows: &[holdfast_lab::window::Window], name: &str| {
        windows.iter().filter(|s| s.is_valid() && s.experiment == name).count()
    };

    let stopped = campaign.run_on(&boot("first"), &Progress::silent()).unwrap();
    assert!(stopped.ended_by.is_some() && stopped.result.partial);
    assert_eq!(valid(&stopped.result.windows, "first"), 8);

    let whole = campaign.run_on(&boot(""), &Progress::silent()).unwrap();
    assert!(whole.ended_by.is_none() && !whole.result.partial);
    assert_eq!(*booted.lock().unwrap(), ["first", "second"], "each was booted once");
    let kept = &whole.result.windows[..stopped.result.windows.len()];
    assert_eq!(kept, stopped.result.windows, "earlier windows are unchanged");
    assert_eq!(valid(&whole.result.windows, "second"), 8);
    let last = kept.last().unwrap().start_s;
    assert!(whole.result.windows[kept.len()..].iter().all(|s| s.start_s > last));
    assert!(whole.result.provenance.notes.iter().any(|note| note.contains("went on at")));
    assert_eq!(whole.result.provenance.date, stopped.result.provenance.date);
    let lines = std::fs::read_to_string(campaign.out.join("windows.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), whole.result.windows.len());

    // A complete run is not resumed, and neither is any run with `afresh`.
    booted.lock().unwrap().clear();
    let again = campaign.run_on(&boot("first"), &Progress::silent()).unwrap();
    assert_eq!(valid(&again.result.windows, "second"), 0);
    campaign.afresh = true;
    campaign.run_on(&boot(""), &Progress::silent()).unwrap();
    assert_eq!(*booted.lock().unwrap(), ["first", "first", "second"]);
}
