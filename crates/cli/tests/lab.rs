// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast lab` with foreign input files and outputs that cannot be written, without booting
//! anything.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn holdfast(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_holdfast")).args(args).current_dir(root).output().unwrap()
}

fn lab(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.arg("lab").args(args).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SMOKE: &str = include_str!("../../../experiments/smoke.toml");

/// Fills `dir` as a build does with the programs that `smoke` needs: empty files of these names.
fn build(dir: &Path) {
    std::fs::create_dir_all(dir.join("workloads")).unwrap();
    for name in ["holdfast", "holdfast-agent", "scx_holdfast", "workloads/hog", "workloads/lock"] {
        let program = dir.join(name);
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
}

/// A measured result, with a change.
fn changed_result(dir: &Path, change: impl FnOnce(&mut Value)) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tests/data/aa-2026-11-20.json");
    let mut result: Value = serde_json::from_slice(&std::fs::read(data).unwrap()).unwrap();
    change(&mut result);
    let path = dir.join("result.json");
    std::fs::write(&path, result.to_string()).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn a_result_that_was_edited_is_refused_and_not_drawn() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 8] = [
        (
            |r| {
                let twice = [&r["experiments"][0], &r["experiments"][0]];
                r["experiments"] = json!(twice);
            },
            "are called",
        ),
        (|r| r["experiments"][0]["contenders"] = json!([]), "contenders"),
        (|r| r["experiments"][0]["cases"][0]["guest"] = json!("nobody"), "cases[0].guest"),
        (|r| r["experiments"][0]["cases"][0]["name"] = json!("other"), "windows[0]"),
        (|r| r["windows"][3]["metrics"]["vm_cpu_percent"] = json!(1e300), "windows[3].metrics"),
        (|r| r["windows"][2]["start_s"] = json!(-1e308), "windows[2].start_s"),
        (|r| r["provenance"]["statistics"]["resamples"] = json!(4_000_000_000u32), "resamples"),
        (|r| r["experiments"][0]["cases"][0]["name"] = json!("\u{1b}[2J"), "control"),
    ];
    for (change, hint) in changes {
        let dir = tempfile::tempdir().unwrap();
        let path = changed_result(dir.path(), change);
        let output = holdfast(&["lab", "report", &path]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{hint}: {said}");
        assert!(said.contains(hint) && said.contains(&path), "{hint}: {said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}

#[test]
fn verdicts_follow_from_the_windows_and_not_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let expect = json!({"case": "lock", "contender": "stock again", "of": "ratio",
                        "metric": "work_per_vm_cpu_second", "min": 3.0});
    let path = changed_result(dir.path(), |r| {
        r["experiments"][0]["expect"] = json!([expect]);
        let mut verdict = expect.clone();
        for (key, value) in
            [("experiment", json!("aa")), ("measured", json!(4.0)), ("met", json!(true))]
        {
            verdict[key] = value;
        }
        r["expectations"] = json!([verdict]);
        r["comparisons"].as_array_mut().unwrap().iter_mut().for_each(|c| c["ratio"] = json!(4.0));
    });
    let output = holdfast(&["lab", "report", &path, "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("MISSED"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("do not follow"), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_has_left_differs_from_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = changed_result(dir.path(), |_| ());
    let mut report = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    report.args(["lab", "report", &path]).stderr(Stdio::piped());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = report.stdout(writer).output().unwrap();
    let ended = (output.status.signal(), text(&output.stderr));
    assert_eq!(ended, (Some(libc::SIGPIPE), String::new()));

    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = report.stdout(full).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output") && said.contains("No space left"), "{said}");
}

#[test]
fn a_page_overwrites_an_older_page_and_no_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let path = changed_result(dir.path(), |_| ());
    let in_dir = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let measured = std::fs::read_to_string(&path).unwrap();
    std::fs::write(in_dir("windows.jsonl"), "windows").unwrap();
    std::os::unix::fs::symlink(&path, in_dir("link")).unwrap();
    for result in [&path, dir.path().to_str().unwrap()] {
        for page in [&path, &in_dir("windows.jsonl"), &in_dir("link")] {
            let output = holdfast(&["lab", "report", result, "--html", page]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{page}: {said}");
            assert!(said.contains("the measurement") && said.contains(page), "{said}");
        }
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), measured);
    assert_eq!(std::fs::read_to_string(in_dir("windows.jsonl")).unwrap(), "windows");

    let page = in_dir("page.html");
    std::fs::write(&page, "an older page").unwrap();
    assert!(holdfast(&["lab", "report", &path, "--html", &page]).status.success());
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    assert!(!Path::new(&in_dir("page.html.new")).exists());
    let output = holdfast(&["lab", "report", &path, "--html", "/dev/stdout"]);
    assert!(output.status.success() && text(&output.stdout).contains("</html>"), "{output:?}");
}

#[test]
fn the_list_goes_on_after_an_experiment_that_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/smoke.toml");
    std::fs::write(dir.path().join("a.toml"), "name = ").unwrap();
    std::fs::copy(good, dir.path().join("smoke.toml")).unwrap();
    let output = holdfast(&["lab", "list", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("smoke.toml"), "{output:?}");
    assert!(text(&output.stderr).contains("a.toml"), "{output:?}");
}

#[test]
fn a_file_in_place_of_a_directory_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    build(&dir.path().join("dist"));
    std::fs::write(dir.path().join("file"), "").unwrap();
    for args in [&["list", "file"][..], &["run", "smoke", "--dist", "dist", "-o", "file"]] {
        let output = lab(dir.path(), args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        let why = said.to_lowercase();
        assert!(why.contains("file: not a directory"), "{args:?}: {said}");
    }
}

#[test]
fn an_error_is_printed_once() {
    let output = holdfast(&["lab", "run", "no-such.toml"]);
    let said = text(&output.stderr);
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn a_contender_that_is_no_program_is_noticed_before_anything_is_booted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    let dist = dir.path().join("dist");
    build(&dist);
    let no_program = dir.path().join("notes");
    std::fs::write(&no_program, "not a program").unwrap();
    let no_program = no_program.to_str().unwrap();
    for (command, hint) in [(no_program, "chmod"), ("scx_no_such_thing", "PATH")] {
        std::fs::write(&path, SMOKE.replace("scx_holdfast", command)).unwrap();
        let out = dir.path().join("out");
        let [path, out, dist] = [&path, &out, &dist].map(|path| path.to_str().unwrap());
        let output = holdfast(&["lab", "run", path, "--output", out, "--dist", dist]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(hint) && said.contains(command), "{said}");
        assert!(!said.contains("Booting") && !Path::new(out).exists(), "{said}");
    }
}

#[test]
fn a_lab_that_is_not_installed_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dist = dir.path().join("dist");
    build(&dist);
    for missing in ["holdfast-agent", "holdfast", "workloads/hog"] {
        std::fs::rename(dist.join(missing), dir.path().join("away")).unwrap();
        let output = lab(dir.path(), &["run", "smoke", "--dist", "dist"]);
        std::fs::rename(dir.path().join("away"), dist.join(missing)).unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("dist lacks {missing},")), "{said}");
        assert!(said.contains("make install") && said.contains("--dist"), "{said}");
        assert!(!dir.path().join("results").exists(), "{said}");
    }
}

/// PREFIX/bin/holdfast finds the lab in PREFIX/lib/holdfast, or where it was built, beside itself.
#[test]
fn the_programs_of_the_lab_are_found_where_they_are_installed() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = bin.join("holdfast");
    // Another process copies it: a program that is open for writing cannot be started.
    let mut copy = Command::new("cp");
    copy.arg(env!("CARGO_BIN_EXE_holdfast")).arg(&program);
    assert!(copy.status().unwrap().success());
    // It refuses the options after it found the programs: this clock cannot be combined with
    // --accel kvm.
    let experiment = SMOKE.replace("\"machine\"", "\"instructions\"");
    std::fs::write(dir.path().join("counting.toml"), experiment).unwrap();
    let run = || {
        let mut command = Command::new(&program);
        command.args(["lab", "run", "counting.toml", "--accel", "kvm"]).current_dir(dir.path());
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = run();
    assert!(code == Some(1) && said.contains("bin lacks holdfast-agent"), "{said}");
    for installed in [dir.path().join("lib/holdfast"), bin] {
        std::fs::create_dir_all(&installed).unwrap();
        let _ = std::fs::rename(&program, dir.path().join("program"));
        build(&installed);
        std::fs::rename(dir.path().join("program"), &program).unwrap();
        let (code, said) = run();
        assert!(code == Some(2) && said.contains("--accel tcg"), "{said}");
        std::fs::remove_file(installed.join("holdfast-agent")).unwrap();
    }
    assert!(!dir.path().join("results").exists());
}
