// SPDX-License-Identifier: GPL-2.0-or-later
//! What the command lines of `holdfast` and `scx_holdfast` have in common: exit codes, the version,
//! times, and suggestions for misspelt names.

mod similar;
mod time;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

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
/// has been printed. A reader that has left is no failure, and a full disk is one.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|said| {
        let code = ExitCode::from(if said.use_stderr() { WRONG_USAGE } else { 0 });
        // What is wrong with a command line does not depend on a reader.
        match said.print().and_then(|()| io::stdout().flush()) {
            Err(error) if !said.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
                let name = P::command().get_name().to_owned();
                let _ = writeln!(io::stderr(), "{name}: cannot write to standard output: {error}");
                ExitCode::from(FAILED)
            }
            _ => code,
        }
    })
}
