// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast manual`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, ValueEnum};

use crate::{Cli, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory to write them into, as below /usr/share.
    #[arg(value_name = "DIR", required_unless_present = "reference")]
    share: Option<PathBuf>,

    /// Print what the reference has of these instead, in Markdown.
    #[arg(long, conflicts_with = "share")]
    reference: Option<Reference>,
}

/// What the code defines and a page of the reference lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reference {
    /// Checks of `doctor`.
    Checks,
    /// Metrics of `export`.
    Metrics,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match args.reference {
        Some(Reference::Checks) => print(&holdfast_checks::reference())?,
        Some(Reference::Metrics) => print(&holdfast_observer::metrics_reference())?,
        None => {}
    }
    let Some(share) = &args.share else { return Ok(ExitCode::SUCCESS) };
    holdfast_manual::write(Cli::command(), 1, share)
        .with_context(|| format!("cannot write man pages into {}", share.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn examples_of_the_manual_are_commands() {
        let examples = holdfast_manual::examples(&Cli::command());
        assert!(examples.len() > 10, "{examples:?}");
        for words in examples {
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }

    #[test]
    fn sections_written_by_hand_are_of_pages_that_exist() {
        fn names(command: &clap::Command) -> Vec<String> {
            let own = command.get_display_name().unwrap_or_else(|| command.get_name());
            let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            std::iter::once(own.to_owned()).chain(subcommands.flat_map(names)).collect()
        }
        let mut command = Cli::command();
        command.build();
        let pages = names(&command);
        for name in holdfast_manual::described() {
            let exists = name == "scx_holdfast" || pages.iter().any(|page| page == name);
            assert!(exists, "sections.roff describes {name}, and there is {pages:?}");
        }
    }
}
