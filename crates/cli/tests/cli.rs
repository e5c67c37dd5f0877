// SPDX-License-Identifier: GPL-2.0-or-later
//! The output and the exit codes of the command line, without booting anything.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

fn holdfast(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_holdfast")).args(args).current_dir(root).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_explains_every_subcommand() {
    for (args, wanted) in [
        (&["--help"][..], "Exit codes"),
        (&["lab", "--help"], "report"),
        (&["lab", "run", "--help"], "Ctrl-C"),
        (&["lab", "run", "--help"], "s1 to s5"),
        (&["report", "--help"], "10ms to 1day"),
        (&["report", "--help"], "LHP%  "),
        (&["lab", "run", "--help"], "--afresh"),
        (&["lab", "report", "--help"], "result.json"),
        (&["lab", "fetch", "--help"], "Debian"),
        (&["doctor", "--help"], "holdfast.doctor/1"),
        (&["preemptions", "--help"], "holdfast.preemptions/1"),
        (&["report", "--help"], "holdfast.report/1"),
        (&["spins", "--help"], "second mode"),
        (&["top", "--help"], "p Space       freeze"),
    ] {
        let output = holdfast(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(text(&output.stdout).contains(wanted), "{args:?}: {}", text(&output.stdout));
    }
}

/// The rest is in the man pages.
#[test]
fn the_help_of_a_command_fits_sixty_lines_of_a_terminal() {
    let commands = text(&holdfast(&["help"]).stdout);
    let names = |listed: &str| {
        let list = listed.split_once("Commands:\n").unwrap().1.split("\n\n").next().unwrap();
        let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
    };
    let lab: Vec<String> = names(&text(&holdfast(&["help", "lab"]).stdout));
    let of_lab = lab.iter().map(|name| vec!["lab".to_owned(), name.clone()]);
    let all: Vec<String> = names(&commands);
    let all: Vec<Vec<String>> = all.into_iter().map(|name| vec![name]).chain(of_lab).collect();
    assert!(all.len() > 12, "{all:?}");
    for name in all {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let help = command.args(&name).arg("--help").env("COLUMNS", "80").output().unwrap();
        let help = text(&help.stdout);
        assert!(help.lines().count() < 60, "{name:?}: {} lines:\n{help}", help.lines().count());
    }
}

#[test]
fn wrong_usage_is_2() {
    for args in [
        &[][..],
        &["lab", "run"],
        &["lab", "run", "x.toml", "--rounds", "1"],
        &["lab", "run", "x.toml", "--here", "--accel", "tcg"],
        &["preemptions"],
        &["report", "0"],
        &["report", "1", "-1"],
        &["spins", "x"],
        &["replay", "x", "--html", "-"],
        &["replay", "Makefile", "--html", "Makefile"],
        &["record", "-o", "-"],
        &["record", "--keep", "7d"],
        &["record", "-o", "x.parquet", "--rotate", "1h"],
        &["record", "-o", "x/", "--rotate", "2d"],
        &["record", "-o", ""],
        &["replay", "x", "--html", ""],
        &["lab", "report", "x", "--markdown", "-"],
        &["lab", "report", "x", "--html", "y", "--markdown", "y"],
        &["lab", "run", "no-such-experiment"],
        &["lab", "run", "experiments"],
        &["lab", "run", "demo", "demo"],
        &["lab", "run", "demo", "--case", "no-such-case"],
        &["lab", "run", "demo", "--here", "--pcpus", "1"],
        &["lab", "run", "demo", "--here", "--pcpus", "1000000"],
        &["report", "--sort", "colour"],
        &["report", "--json", "--format", "csv"],
        &["replay", "x", "--top", "0"],
        &["status", "--time", "never"],
        &["no-such-thing"],
    ] {
        let output = holdfast(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn times_have_units_and_what_is_no_time_is_refused_with_examples() {
    for args in [&["report", "soon"][..], &["record", "5 parsecs"], &["vms", "--wait", "x"]] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("give 100ms, 5s or 1m; bare numbers are seconds"), "{said}");
    }
    // Their times are accepted, and then the files are missing.
    for time in ["100ms", "5s", "1m", "5", "0.5"] {
        for command in ["report", "top", "record"] {
            let said = text(&holdfast(&[command, time, "--btf", "/nonexist"]).stderr);
            assert!(said.contains("cannot read /nonexist"), "{command} {time}: {said}");
        }
    }
}

/// Every command that takes numbers.
#[test]
fn what_is_no_whole_number_is_refused_with_the_range() {
    for (args, range) in [
        (&["report", "1", "1.5"][..], "1 or more"),
        (&["report", "--frequency", "10001"], "from 0 to 10000"),
        (&["top", "--top", "0"], "1 or more"),
        (&["record", "--frequency", "x"], "from 0 to 10000"),
        (&["export", "--frequency", ""], "from 0 to 10000"),
        (&["spins", "1", "99999999999999999999"], "1 or more"),
        (&["lab", "run", "demo", "--rounds", "1"], "from 2 to 1000"),
        (&["lab", "run", "demo", "--hosts", "0"], "from 1 to 1024"),
        (&["lab", "run", "demo", "--seed", "1e9"], "0 or more"),
    ] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("give a whole number") && said.contains(range), "{args:?}: {said}");
    }
}

#[test]
fn an_unknown_option_is_no_value_where_values_are_times() {
    for (args, is_file) in [
        (&["report", "--nope"][..], false),
        (&["record", "--nope"], false),
        (&["spins", "--nope=1"], false),
        (&["replay", "--nope"], true),
        (&["lab", "list", "--nope"], true),
    ] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("unexpected argument '--nope"), "{said}");
        // A similar option is the better advice.
        let similar = said.contains("a similar argument");
        assert_eq!(said.contains("use '-- --nope'"), is_file && !similar, "{args:?}: {said}");
    }
}

#[test]
fn a_file_without_an_end_is_not_read_to_it() {
    for (args, code) in [
        (&["lab", "report", "/dev/zero"][..], 1),
        (&["lab", "run", "/dev/zero"], 2),
        (&["replay", "/dev/zero"], 1),
        (&["vms", "--btf", "/dev/zero"], 2),
    ] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains("/dev/zero") && said.lines().count() < 5, "{args:?}: {said}");
    }
}

/// The page, the help texts and the man pages list the codes that the programs have.
#[test]
fn the_reference_has_the_exit_codes() {
    use holdfast_args::{FAILED, SKIPPED, WRONG_USAGE};

    let codes = [0, FAILED, WRONG_USAGE, SKIPPED];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/reference/exit-codes.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    assert_eq!(rows.filter_map(|code| code.parse().ok()).collect::<Vec<u8>>(), codes);

    let sections = std::fs::read_to_string(root.join("crates/manual/src/sections.roff")).unwrap();
    let statuses: Vec<Vec<u8>> = sections
        .split(".SH ")
        .filter_map(|section| section.strip_prefix("\"EXIT STATUS\""))
        .map(|section| section.lines().filter_map(|line| line.strip_prefix(".B ")?.parse().ok()))
        .map(Iterator::collect)
        .collect();
    assert_eq!(statuses, [codes, codes], "holdfast and scx_holdfast");

    let help = text(&holdfast(&["--help"]).stdout).replace('\n', " ");
    for code in codes {
        assert!(help.contains(&format!(" {code} ")), "{code}: {help}");
    }
}

#[test]
fn a_misspelt_name_gets_a_suggestion() {
    for (args, meant) in [
        (&["reprot"][..], "'report'"),
        (&["lab", "run", "demmo"], "did you mean `demo`?"),
        (&["lab", "run", "demo", "--case", "lokc"], "did you mean `lock`?"),
    ] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(meant), "{args:?}: {said}");
    }
}

#[test]
fn help_names_the_scheduler_and_the_version_has_the_commit() {
    assert!(text(&holdfast(&["help"]).stdout).contains("scx_holdfast --help"));
    let version = text(&holdfast(&["--version"]).stdout);
    let expected = format!("holdfast {}\n", holdfast_args::VERSION);
    assert_eq!(version, expected);
    let commit = holdfast_args::COMMIT.unwrap_or_default();
    assert!(version.contains(commit) && version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

/// Without rights, without KVM, and in a container, too.
#[test]
fn status_shows_what_it_can_and_says_what_is_missing() {
    let output = holdfast(&["status", "--time", "10ms"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said} {}", text(&output.stderr));
    for heading in ["SCHEDULER\n", "\nVMS\n", "\nATTENTION\n"] {
        assert!(said.contains(heading), "{heading}: {said}");
    }
    let output = holdfast(&["status", "--time", "10ms", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["schema"], "holdfast.status/1");
    assert!(status["scheduler"]["is_supported"].is_boolean(), "{status}");
    assert_ne!(status.get("sample").is_some(), status.get("unobserved").is_some(), "{status}");
}

/// Before anything is loaded, whatever the rights.
#[test]
fn the_live_screen_in_a_pipe_names_the_command_that_prints() {
    let output = holdfast(&["top"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    let expected = "holdfast: the live screen needs a terminal, and standard output is none: \
                    `holdfast report` prints the same to pipes and files\n";
    assert_eq!(said, expected);
}

#[test]
fn lines_are_as_narrow_as_the_terminal() {
    for columns in [40, 60] {
        for args in [&["doctor"][..], &["status", "--time", "10ms"], &["lab", "list"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
            let output = command.args(args).env("COLUMNS", columns.to_string()).output().unwrap();
            let said = text(&output.stdout);
            // A word stays whole, alone behind a verdict and the name of its check.
            let fits = |line: &str| {
                line.chars().count() <= columns || line.split_whitespace().count() <= 3
            };
            let wide = said.lines().find(|line| !fits(line));
            assert_eq!(wide, None, "{columns} {args:?}: {said}");
            assert!(said.lines().any(|line| line.chars().count() > columns - 12), "{said}");
        }
    }
}

#[test]
fn this_machine_is_disturbed_only_after_a_yes() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(["lab", "run", "smoke", "--here"]).current_dir(dir.path());
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("reloads the KVM modules") && said.contains("add --yes"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is begun");
}

/// A file that cannot be read may be readable tomorrow.
#[test]
fn a_file_that_cannot_be_read_is_a_failure() {
    let calls = [
        &["replay", "no-such-file"][..],
        &["lab", "report", "no-such"],
        &["lab", "list", "no-dir"],
    ];
    for args in calls {
        let output = holdfast(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stderr));
    }
}

/// BTF files are read before anything else, so this machine need not have KVM.
#[test]
fn btf_files_are_read_by_every_command_that_reads_guests() {
    for args in [
        &["vms"][..],
        &["report", "1", "1"],
        &["top"],
        &["record", "1", "-o", "/nonexist/x.parquet"],
        &["export"],
        &["preemptions", "--json", "--stdin"],
    ] {
        let output = holdfast(&[args, &["--btf", "/nonexist", "--btf", "Cargo.toml"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        let why = "'--btf <FILE|DIR>': cannot read /nonexist: No such file or directory";
        assert!(said.contains(why), "{args:?}: {said}");
        let said = text(&holdfast(&[args, &["--btf", "Cargo.toml"]].concat()).stderr);
        assert!(said.contains("Cargo.toml is neither raw BTF nor"), "{args:?}: {said}");
        assert!(
            said.contains("give a copy of the guest's /sys/kernel/btf/vmlinux"),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn an_invalid_experiment_is_wrong_usage_and_names_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    let good = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/smoke.toml"),
    )
    .unwrap();
    std::fs::write(&path, good.replacen("workload = \"lock\"", "workload = \"lok\"", 1)).unwrap();
    let output = holdfast(&["lab", "run", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("cases[0].workload") && said.contains("\"lok\""), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn lists_the_experiments() {
    let output = holdfast(&["lab", "list"]);
    assert_eq!(output.status.code(), Some(0));
    let listed = text(&output.stdout);
    let names: Vec<&str> = listed.lines().filter(|line| !line.starts_with(' ')).collect();
    for name in ["demo", "aa", "s1", "vms"] {
        assert!(names.contains(&name), "{listed}");
    }
    // The directory holds the experiments that come with the program; figures are no experiments.
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    for dir in [dir.clone(), dir.join("replications")] {
        let output = holdfast(&["lab", "list", dir.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let listed = text(&output.stdout);
        for path in listed.lines().filter(|line| !line.starts_with(' ')) {
            let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
    }
}

#[test]
fn an_invalid_result_exits_with_1_and_says_why() {
    let output = holdfast(&["lab", "report", "Cargo.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("holdfast.result/3"), "{}", text(&output.stderr));
}

/// Text from a file is shown, and does not steer the terminal.
#[test]
fn files_and_their_names_do_not_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}.toml");
    let good = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/smoke.toml"),
    )
    .unwrap();
    std::fs::write(&path, good.replacen("The", "\u{202e}The", 1)).unwrap();
    let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    let listed = holdfast(&["lab", "list", dir.path().to_str().unwrap()]);
    let (said, failed) = (text(&listed.stdout), text(&listed.stderr));
    assert!(said.contains("a?]0;x??2J?.toml"), "{said:?} {failed:?}");
    assert!(!said.contains(steers), "{said:?}");
    let output = holdfast(&["lab", "report", path.to_str().unwrap()]);
    let said = text(&output.stderr);
    let shown = "a\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}.toml";
    assert!(said.contains(shown) && !said.contains(steers), "{said:?}");
}

#[test]
fn an_error_that_cannot_be_printed_exits_with_1_too() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for args in [&["lab", "report", "/nonexist"][..], &["replay", "/nonexist"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let status = command.args(args).stderr(full.try_clone().unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{args:?}");
    }
    // A full standard output is an error, too.
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    let command = command.args(["lab", "list"]).stdout(full.try_clone().unwrap()).stderr(full);
    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[test]
fn help_that_cannot_be_written_is_a_failure_unless_its_reader_has_left() {
    for args in [&["--help"][..], &["--version"], &["report", "-h"], &["help", "lab"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let output = command.args(args).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("holdfast: cannot write to standard output: No space"), "{said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        let ended = (output.status.signal(), text(&output.stderr));
        assert_eq!(ended, (Some(libc::SIGPIPE), String::new()));
    }
}

/// As the writes of other tools kill them: `set -o pipefail` sees 141, and nothing is said.
#[test]
fn a_reader_that_has_left_ends_every_command_that_prints_as_it_ends_others() {
    for args in
        [&["lab", "list"][..], &["doctor"], &["doctor", "--json"], &["status", "--time", "10ms"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let output = command.args(args).stdout(writer).output().unwrap();
        let ended = (output.status.signal(), text(&output.stderr));
        assert_eq!(ended, (Some(libc::SIGPIPE), String::new()), "{args:?}");
    }
}

/// Clap would advise `-- -1`.
#[test]
fn a_negative_number_is_refused_without_wrong_advice() {
    for args in
        [&["report", "1", "-1"][..], &["report", "-5s"], &["record", "-1"], &["spins", "-1"]]
    {
        let said = text(&holdfast(args).stderr);
        assert!(said.contains("times and numbers are not negative"), "{args:?}: {said}");
        assert!(!said.contains("-- -"), "{args:?}: {said}");
    }
}

#[test]
fn what_was_typed_stays_on_its_line_in_errors_and_steers_nothing() {
    let hostile = "a\n\u{1b}[2Jb";
    for args in [
        &["report", hostile][..],
        &[hostile],
        &["report", "--sort", hostile],
        &["lab", "run", hostile],
        &["lab", "run", "demo", "--case", hostile],
        &["replay", hostile],
    ] {
        let output = holdfast(args);
        let said = text(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{args:?}: {said:?}");
        // clap leaves out the escape sequence.
        let escaped = ["a\\n\\u{1b}[2Jb", "a\\nb"].iter().any(|text| said.contains(text));
        assert!(escaped && !said.contains('\u{1b}'), "{said:?}");
    }
}

/// An exec as another user drops the capabilities, and so the right to load programs, and nothing
/// else.
#[test]
fn without_permission_it_exits_with_77_and_names_the_missing_right() {
    use std::os::unix::process::CommandExt;

    // SAFETY: has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let copy =
        tempfile::NamedTempFile::with_suffix_in("-holdfast", "/tmp").unwrap().into_temp_path();
    // Another process copies it: a program that another test starts meanwhile would inherit the
    // copy open for writing, and the copy could not be executed.
    let program = env!("CARGO_BIN_EXE_holdfast");
    let status = Command::new("install").args(["-m755", program]).arg(&*copy).status().unwrap();
    assert!(status.success());
    let run = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args);
        if root {
            command.uid(65534).gid(65534);
        }
        command.output().unwrap()
    };
    for args in [&["vms"][..], &["report", "1", "1"], &["spins", "1", "1"]] {
        let output = run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(77), "{args:?}: {said}");
        let of_machine = said.contains("BTF") || said.contains("KVM");
        let of_process = said.contains("CAP_PERFMON") && said.contains("root");
        assert!(of_machine || of_process, "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }

    // For `doctor` this is one failed check, and then it tries no program.
    let output = run(&["doctor"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for name in ["discovery-programs", "observer-programs", "spins-programs", "scheduler-programs"]
    {
        let line = said.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert!(line.starts_with("-     ") && line.contains("not tried"), "{said}");
    }
    assert!(said.contains("fails here, or shows no VM: privileges"), "{said}");

    // The gate of a use: its checks alone, and an exit code.
    for (of, wanted, other) in
        [("observe", "vcpu-tracing", "sched-ext"), ("schedule", "sched-ext", "observer-programs")]
    {
        let output = run(&["doctor", "--for", of]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && !said.contains(other), "{of}: {said}");
        assert!(said.contains("\nNext: "), "{said}");
        let quiet = run(&["doctor", "--for", of, "--quiet"]);
        assert_eq!((quiet.status.code(), quiet.stdout), (Some(1), Vec::new()));
    }
    assert!(!said.contains('\u{1b}'), "a pipe gets no colours: {said}");
}
