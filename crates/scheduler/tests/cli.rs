// SPDX-License-Identifier: GPL-2.0-or-later
//! Exit codes and messages of `scx_holdfast` for what it needs no kernel for: those of `holdfast`.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

fn scx_holdfast(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scx_holdfast"));
    command.args(args);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_usage_is_2_and_says_what_can_be_given() {
    for (args, wanted) in [
        (&["-s", "x"][..], "give a whole number from 100 to 20000"),
        (&["--grace-share", "1001"], "give a whole number from 0 to 1000"),
        (&["--exit-dump-len", "99999999999999999999"], "from 0 to 16777216"),
        (&["--stats", "soon"], "give 100ms, 5s or 1m"),
        (&["--monitor", "-1"], "not negative"),
        (&["--grace-step-us", "50", "--grace-max-us", "10"], "has to be at most"),
        (&["--btf-custom-path", "/nonexistent"], "No such file"),
        (&["--btf-custom-path", "/x\n\u{1b}[2J"], "/x\\n"),
        (&["--btf", "/nonexistent"], "cannot read /nonexistent"),
        (&["--stats", "1", "--check"], "cannot be used with"),
    ] {
        let output = scx_holdfast(args).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted) && !said.contains('\u{1b}'), "{args:?}: {said:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure_unless_its_reader_has_left() {
    for args in [["--help"], ["--version"], ["--help-stats"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = scx_holdfast(&args).stdout(full).output().unwrap();
        let said_of_full = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said_of_full}");
        let why = "scx_holdfast: cannot write to standard output: No space left";
        assert!(said_of_full.contains(why), "{args:?}: {said_of_full}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = scx_holdfast(&args);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let ended = (output.status.signal(), said(&output));
        assert_eq!(ended, (Some(libc::SIGPIPE), String::new()), "{args:?}");
    }
}
