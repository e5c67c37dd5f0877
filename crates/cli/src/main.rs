// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds, measures and removes lock-holder preemption on KVM hosts.
//!
//! Holds the subcommands; the crates that they call do the work.

mod btf;
mod compare;
mod doctor;
mod export;
mod lab;
mod manual;
mod preemptions;
mod record;
mod replay;
mod report;
mod shown;
mod spins;
mod status;
mod top;
mod vms;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand};
use holdfast_args::{
    SKIPPED, VERSION, WRONG_USAGE, did_you_mean, parse, quoted, with_args_escaped,
};
use holdfast_checks::steers;
use holdfast_observer::{ObserverError, error_line};

// The exporter's server recognises its collector's exit code by it.
const _: () = assert!(SKIPPED == ObserverError::UNSUPPORTED);

/// A request that no machine can fulfil.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct WrongUsage(anyhow::Error);

/// Makes an error that ends the program with [`WRONG_USAGE`].
fn wrong_usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    WrongUsage(error.into()).into()
}

const AFTER_HELP: &str = "\
The scheduler is a program of its own, scx_holdfast. `holdfast doctor` says whether
it can run here, `scx_holdfast --help` how to start it, and `holdfast status` how
things stand.";

/// Finds, measures and removes lock-holder preemption on KVM hosts, for unmodified guests.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 77 skipped because this machine, or the rights of
/// this process, do not allow it. Wrong usage is an option, value, experiment or case that does not
/// exist or is not possible. A recording or result that cannot be read is a failure.
#[derive(Debug, Parser)]
#[command(version = VERSION, propagate_version = true, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    say: Say,
}

/// How much is said beside the results.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Say {
    /// Say more: messages of libbpf, and the counters of the scheduler's decisions.
    #[arg(long, short, global = true)]
    verbose: bool,

    /// Say only what is asked for, and what is wrong.
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(compare::Args),
    Doctor(doctor::Args),
    Export(export::Args),
    /// Runs experiments in an emulated KVM host: the stock scheduler and others side by side.
    #[command(subcommand)]
    Lab(lab::Command),
    /// Writes man pages and completions into a directory: the build does.
    #[command(hide = true)]
    Manual(manual::Args),
    /// For other programs: counts preemptions of vCPUs by class, under any scheduler.
    ///
    /// Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)
    /// and a kernel with BTF. Each line printed is a JSON object of schema holdfast.preemptions/1
    /// with counters since the start.
    #[command(hide = true)]
    Preemptions(preemptions::Args),
    Record(record::Args),
    Replay(replay::Args),
    Report(report::Args),
    Spins(spins::Args),
    Status(status::Args),
    Top(top::Args),
    Vms(vms::Args),
}

/// The reader of standard output has left.
#[derive(Debug, thiserror::Error)]
#[error("the reader of standard output has left")]
struct ReaderLeft;

fn main() -> ExitCode {
    let Cli { command, say } = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // Errors are printed below, in a sentence each. libbpf's own lines appear on request only.
    if std::env::var_os("LIBBPF_LOG_LEVEL").is_none() && !say.verbose {
        libbpf_rs::set_print(None);
    }
    let outcome = match command {
        Command::Compare(args) => compare::main(&args),
        Command::Doctor(args) => doctor::main(&args, say),
        Command::Export(args) => export::main(&args),
        Command::Lab(command) => lab::main(&command, say),
        Command::Manual(args) => manual::main(&args),
        Command::Preemptions(args) => preemptions::main(&args),
        Command::Record(args) => record::main(&args, say),
        Command::Replay(args) => replay::main(&args),
        Command::Report(args) => report::main(&args, say),
        Command::Spins(args) => spins::main(&args, say),
        Command::Status(args) => status::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Vms(args) => vms::main(&args),
    };
    outcome.unwrap_or_else(|error| {
        if error.is::<ReaderLeft>() {
            holdfast_signals::end_by_closed_pipe();
        }
        complain(format_args!("{error:#}"));
        if error.is::<WrongUsage>() { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
    })
}

/// Writes to standard output.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(harmless(text).as_bytes()).and_then(|()| out.flush()))
}

/// The result of a write to standard output. A reader that has left is not worth a message.
fn written(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        other => other.context("cannot write to standard output"),
    }
}

/// Writes text with colours and without anything else that steers a terminal. Pipes, files and
/// terminals of users that set NO_COLOR get no colours.
fn print_styled(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints an error. If standard error cannot be written to, the exit code stays the same.
fn complain(what: impl Display) {
    let text = with_args_escaped(&format!("holdfast: {what}"));
    let line = error_line(harmless(&text));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Makes text safe to show: names from files, guests and other users cannot steer the terminal.
/// Valid JSON stays valid.
fn harmless(text: &str) -> String {
    let replaced = |c| if steers(c) && !matches!(c, '\n' | '\t') { '?' } else { c };
    text.chars().map(replaced).collect()
}

/// Value of an option that names a file to write.
fn output_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("give the name of a file".into()),
        "-" => Err("give the name of a file (./- for a file named -)".into()),
        name => Ok(name.into()),
    }
}

/// Exit code for a result of the observer: 77 where this machine, or the rights of this process, do
/// not allow it, 2 where no machine would.
fn outcome(result: Result<(), ObserverError>) -> anyhow::Result<ExitCode> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is_unsupported() => {
            complain(format_args!("{:#}", anyhow::Error::from(error)));
            Ok(ExitCode::from(SKIPPED))
        }
        Err(error) if error.is_wrong_usage() => Err(wrong_usage(error)),
        Err(ObserverError::ReaderLeft) => Err(ReaderLeft.into()),
        Err(ObserverError::NoSuchVm { wanted, place, names }) => {
            Err(no_such_vm(&wanted, place, names))
        }
        Err(error) => Err(error.into()),
    }
}

fn no_such_vm(wanted: &str, place: &str, names: Vec<String>) -> anyhow::Error {
    let mut known = did_you_mean(wanted, &names);
    if known.is_empty() && !names.is_empty() {
        let verb = if names.len() == 1 { "is" } else { "are" };
        known = format!("; there {verb} {}", listed(&names));
    }
    anyhow!("there is no VM {} {place}{known}", quoted(wanted))
}

/// The first of these names, and the number of the others.
fn listed(names: &[String]) -> String {
    const FIRST: usize = 5;
    let first: Vec<_> = names.iter().take(FIRST).map(|name| quoted(name)).collect();
    match names.len().saturating_sub(FIRST) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_vm_gets_a_suggestion_or_the_list() {
        let said = |wanted: &str, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            no_such_vm(wanted, "on this host", names).to_string()
        };
        assert_eq!(
            said("wbe1", &["db", "web1"]),
            "there is no VM `wbe1` on this host; did you mean `web1`?"
        );
        assert_eq!(
            said("99", &["db", "web1"]),
            "there is no VM `99` on this host; there are `db`, `web1`"
        );
        assert_eq!(said("99", &["pid 7"]), "there is no VM `99` on this host; there is `pid 7`");
        assert_eq!(said("99", &[]), "there is no VM `99` on this host");
        let many = said("99", &["a", "b", "c", "d", "e", "f", "g"]);
        assert!(many.ends_with("`d`, `e` and 2 more"), "{many}");
    }

    #[test]
    fn names_in_errors_stay_on_their_line_and_steer_nothing() {
        let said = no_such_vm("a\nb\u{1b}[2J\u{202e}\t", "on this host", vec!["c\nd".into()]);
        assert_eq!(
            said.to_string(),
            "there is no VM `a\\nb\\u{1b}[2J\\u{202e}\\t` on this host; there is `c\\nd`"
        );
    }
}
