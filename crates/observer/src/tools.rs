// SPDX-License-Identifier: GPL-2.0-or-later
//! Other projects' programs, with which tests check Holdfast's output.
//!
//! `make test` installs them (`scripts/install-test-tools`) and names their directory in a
//! variable. If that is set, a missing program is a failure. Otherwise a test without its program
//! prints that it is skipped, and passes.

use std::path::PathBuf;
use std::process::Command;

/// The directory with the programs in `bin/`.
const VARIABLE: &str = "HOLDFAST_TOOLS";

/// A program that succeeds with these arguments.
pub(crate) fn find(name: &str, probe: &[&str], what: &str) -> Option<PathBuf> {
    let dir = std::env::var_os(VARIABLE).map(PathBuf::from);
    let program = dir.as_ref().map_or_else(|| name.into(), |dir| dir.join("bin").join(name));
    let output = Command::new(&program).args(probe).output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    assert!(dir.is_none(), "{VARIABLE} is set, and there is no {what}: {program:?}: {output:?}");
    eprintln!("SKIPPED: there is no {what}; `make test` installs it");
    None
}
