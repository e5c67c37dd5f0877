// SPDX-License-Identifier: GPL-2.0-or-later
//! What the command lines of `holdfast` and `scx_holdfast` have in common: exit codes, the version,
//! numbers, times, and suggestions for misspelt names.

mod bounds;
mod number;
mod similar;
mod time;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use holdfast_checks::steers;

pub use bounds::{Bounds, bounds};
pub use number::number_within;
pub use similar::{did_you_mean, similar};
pub use time::{interval, time_within};

/// Exit code: it failed.
pub const FAILED: u8 = 1;
/// Exit code: every machine would refuse it.
pub const WRONG_USAGE: u8 = 2;
/// Exit code: this machine, or the rights of this process, do not allow it.
pub const SKIPPED: u8 = 77;

/// Version of the programs, and the commit that they are built from, if it is known.
pub const VERSION: &str = env!("HOLDFAST_VERSION");
/// That commit.
pub const COMMIT: Option<&str> = option_env!("HOLDFAST_COMMIT");

/// Reads the command line. An error is the exit code after the help, the version or what is wrong
/// has been printed. A reader of the help that has left ends the process.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|said| {
        // What is wrong with a command line does not depend on a reader.
        if said.use_stderr() {
            return refused::<P>(said);
        }
        match said.print().and_then(|()| io::stdout().flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                holdfast_signals::end_by_closed_pipe()
            }
            Err(error) => {
                let name = P::command().get_name().to_owned();
                let _ = writeln!(io::stderr(), "{name}: cannot write to standard output: {error}");
                ExitCode::from(FAILED)
            }
        }
    })
}

/// Refuses a command line whose values are good one by one, and not together.
pub fn refuse<P: Parser>(why: &str) -> ExitCode {
    refused::<P>(P::command().error(ErrorKind::ValueValidation, why))
}

/// Prints what is wrong with a command line.
fn refused<P: Parser>(mut said: clap::Error) -> ExitCode {
    correct_tips::<P>(&mut said);
    let text = said.to_string();
    // What cannot be printed changes nothing about the exit code.
    let _ = match escape_args(&text, env::args_os()) {
        safe if safe == text => said.print(),
        safe => io::stderr().write_all(safe.as_bytes()),
    };
    ExitCode::from(WRONG_USAGE)
}

/// clap advises to give what it does not know after `--`, also where that fails.
fn correct_tips<P: Parser>(said: &mut clap::Error) {
    let Some(ContextValue::String(arg)) = said.get(ContextKind::InvalidArg) else { return };
    let is_number = |arg: &str| arg.starts_with(|c: char| c.is_ascii_digit());
    if arg.strip_prefix('-').is_some_and(is_number) {
        let tip = vec!["times and numbers are not negative".into()];
        said.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
    } else if said.kind() == ErrorKind::UnknownArgument
        && has_tip(said, "' as a value, use '")
        && !works_as_value::<P>(arg, env::args_os().collect())
    {
        said.remove(ContextKind::Suggested);
    }
}

fn has_tip(said: &clap::Error, text: &str) -> bool {
    match said.get(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => {
            tips.iter().any(|tip| tip.to_string().contains(text))
        }
        _ => false,
    }
}

/// Is the command line a good one with `--` before `arg`?
fn works_as_value<P: Parser>(arg: &str, mut args: Vec<OsString>) -> bool {
    let Some(at) = args.iter().position(|given| *given == *arg) else { return false };
    args.insert(at, "--".into());
    P::try_parse_from(args).is_ok()
}

/// A message with those arguments of this process escaped that would steer a terminal, or begin a
/// line of their own.
pub fn with_args_escaped(message: &str) -> String {
    escape_args(message, env::args_os())
}

fn escape_args(message: &str, args: impl Iterator<Item = OsString>) -> String {
    let args = args.skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let mut safe = message.to_owned();
    for arg in args.filter(|arg| arg.contains(steers)) {
        let value = arg.split_once('=').map_or("", |(_, value)| value);
        // clap shows text without the escape sequences in it.
        let shown = [arg.as_str(), value].map(|text| StyledStr::from(text.to_owned()).to_string());
        for part in [&arg, value].into_iter().chain(shown.iter().map(String::as_str)) {
            if part.contains(steers) {
                safe = safe.replace(part, &escaped(part));
            }
        }
    }
    safe
}

/// Text on one line, with nothing in it that steers a terminal.
fn escaped(text: &str) -> String {
    let shown = |c: char| if steers(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A name or value of the user or of another program, in the quotes of messages.
pub fn quoted(text: &str) -> String {
    format!("`{}`", escaped(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_is_a_value_only_where_that_works() {
        #[derive(Debug, Parser)]
        struct Times {
            #[arg(value_parser = interval)]
            _time: Option<std::time::Duration>,
        }
        #[derive(Debug, Parser)]
        struct Files {
            _file: Option<std::path::PathBuf>,
        }
        let args = || ["holdfast", "--nope"].map(OsString::from).to_vec();
        assert!(works_as_value::<Files>("--nope", args()));
        assert!(!works_as_value::<Times>("--nope", args()));
        assert!(!works_as_value::<Files>("--other", args()));
        let tip = "' as a value, use '";
        let mut said = Times::try_parse_from(args()).unwrap_err();
        assert!(has_tip(&said, tip), "clap has other words: {said}");
        // The arguments of this process are others, so that nothing works.
        correct_tips::<Times>(&mut said);
        assert!(!has_tip(&said, tip), "{said}");
    }

    #[test]
    fn quoted_text_stays_on_its_line_and_steers_nothing() {
        assert_eq!(quoted("a\nb\u{1b}[2J\u{202e}\t"), r"`a\nb\u{1b}[2J\u{202e}\t`");
        let args = ["holdfast", "a\nb", "--vm=c\u{1b}", "d"].map(OsString::from).into_iter();
        let said = "no `a\nb`,\nno c\u{1b} and no d";
        assert_eq!(escape_args(said, args), "no `a\\nb`,\nno c\\u{1b} and no d");
        let args = ["holdfast", "a\n\u{1b}[2Jb"].map(OsString::from).into_iter();
        assert_eq!(escape_args("no a\nb", args), "no a\\nb", "as clap shows it");
        assert_eq!(quoted("it's \"w\u{e9}b\" \\"), "`it's \"w\u{e9}b\" \\`");
    }
}
