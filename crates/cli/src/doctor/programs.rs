// SPDX-License-Identifier: GPL-2.0-or-later
//! Checks whether the kernel's verifier accepts the BPF programs.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_checks::{
    Check, DISCOVERY_PROGRAMS, OBSERVER_PROGRAMS, Report, SCHEDULER_PROGRAMS, SPINS_PROGRAMS,
    Verdict,
};
use holdfast_observer::{Observer, ObserverError, Spins, with_last_words};

const SCHEDULER: &str = "scx_holdfast";
/// Last lines shown of the output of a program that failed, and characters of each.
const LINES: usize = 4;
const LINE_LEN: usize = 600;
/// Bytes of its output that are kept.
const MESSAGES_MAX: usize = 64 << 10;
/// Longest that loading the scheduler may take; an emulated host takes tens of seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Tries each wanted program whose prerequisites have passed.
pub(super) fn try_all(report: &mut Report, is_wanted: &dyn Fn(&'static str) -> bool) {
    const BPF: [&str; 2] = ["privileges", "kernel-btf"];
    const KVM: [&str; 7] =
        ["privileges", "kernel-btf", "bpf-jit", "lockdown", "kvm", "vcpu-tracing", "pid-namespace"];
    type Load = fn() -> Result<(), ObserverError>;
    let ours: [(&'static str, &[&str], Load); 3] = [
        (DISCOVERY_PROGRAMS, &KVM, holdfast_observer::try_discovery),
        (OBSERVER_PROGRAMS, &KVM, Observer::try_load),
        (SPINS_PROGRAMS, &BPF, Spins::try_load),
    ];
    for (name, needed, load) in ours.into_iter().filter(|(name, ..)| is_wanted(name)) {
        let failed = needed.iter().find(|of| report.verdict_of(of) == Some(Verdict::Fail));
        report.add(match failed {
            Some(failed) => not_tried(name, failed),
            None => outcome(name, with_last_words(load)),
        });
    }
    if !is_wanted(SCHEDULER_PROGRAMS) {
        return;
    }
    let failed = report.unschedulable().next().map(|check| check.name);
    let ours = report.scheduler.as_ref().filter(|scheduler| scheduler.is_holdfast());
    report.add(match failed {
        Some(failed) => not_tried(SCHEDULER_PROGRAMS, failed),
        // It would refuse to load a second time.
        None if ours.is_some() => Check::ok(SCHEDULER_PROGRAMS, "the kernel runs them"),
        None => scheduler(find(SCHEDULER)),
    });
}

fn not_tried(name: &'static str, failed: &str) -> Check {
    Check::skip(name, format!("not tried: `{failed}` has to pass first"))
}

fn outcome(name: &'static str, (loaded, words): (Result<(), ObserverError>, String)) -> Check {
    let error = match loaded {
        Ok(()) => return Check::ok(name, "the kernel accepts them"),
        Err(error @ ObserverError::NoContentionTracepoints) => {
            return Check::skip(name, error.to_string());
        }
        Err(error) => error,
    };
    let error = anyhow::Error::from(error);
    let why = error.root_cause();
    let words = if words.is_empty() { words } else { format!(". libbpf: {words}") };
    let found = format!("the kernel does not accept them: {why}{words}");
    Check::fail(
        name,
        found,
        "run a kernel that the README names, or report it with the output of \
         `LIBBPF_LOG_LEVEL=debug holdfast vms` (or `spins 1 1`)",
    )
}

/// The licences of the scheduler's libraries forbid linking them into this program, so
/// `scx_holdfast` checks itself.
fn scheduler(program: Option<PathBuf>) -> Check {
    const NAME: &str = SCHEDULER_PROGRAMS;
    let Some(program) = program else {
        return Check::skip(
            NAME,
            format!("not tried: {SCHEDULER} is neither beside this program nor in PATH"),
        );
    };
    let output = output_of(Command::new(&program).arg("--check"));
    let (said, advice) = match output {
        Ok(output) if output.status.success() => {
            return Check::ok(NAME, format!("the kernel accepts those of {}", program.display()));
        }
        Ok(output) if output.status.code() == Some(2) => (
            last_lines(&output.stderr),
            "install holdfast and scx_holdfast of the same version".to_owned(),
        ),
        Ok(output) => (
            last_lines(&output.stderr),
            format!(
                "follow its advice, or report it with the output of `{} --check --verbose`",
                program.display()
            ),
        ),
        Err(error) => (format!("does not run: {error}"), "install it again".to_owned()),
    };
    Check::fail(NAME, format!("{} --check: {said}", program.display()), advice)
}

/// Runs a program to its end, for `LIMIT` at most, and keeps the end of its messages.
fn output_of(command: &mut Command) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut messages = child.stderr.take().expect("it is piped");
    let reader = thread::spawn(move || {
        let (mut kept, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = messages.read(&mut part) {
            kept.extend_from_slice(&part[..len]);
            kept.drain(..kept.len().saturating_sub(MESSAGES_MAX));
        }
        kept
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other(format!("not within {} s", LIMIT.as_secs())));
            }
        }
    };
    Ok(Output { status, stdout: Vec::new(), stderr: reader.join().unwrap_or_default() })
}

fn last_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines: Vec<String> =
        text.lines().rev().take(LINES).map(|line| line.chars().take(LINE_LEN).collect()).collect();
    lines.reverse();
    lines.join(" ")
}

/// Finds a program beside this one, where both are installed together, or in PATH.
fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let directories = own.into_iter().chain(named);
    directories.map(|directory| directory.join(name)).find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
