// SPDX-License-Identifier: GPL-2.0-or-later
//! `--btf`, an option of every command that reads guests.

use clap::builder::{PathBufValueParser, TypedValueParser};
use holdfast_observer::BtfFiles;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// BTF of a guest kernel, for guests that have no BTF in memory: a copy of such a guest's
    /// /sys/kernel/btf/vmlinux, its vmlinux, or a directory of such files. May be given more than
    /// once.
    #[arg(long, value_name = "FILE|DIR")]
    #[arg(value_parser = PathBufValueParser::new().try_map(BtfFiles::load))]
    pub(crate) btf: Vec<BtfFiles>,
}
