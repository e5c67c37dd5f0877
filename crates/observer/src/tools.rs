// SPDX-License-Identifier: GPL-2.0-or-later
//! Programs of others, which tests ask what they make of our output.
//!
//! `make test` installs them (`scripts/install-test-tools`) and says where: then one that is
//! missing is a failure, as what it proves would go unproven. Without it, a test that finds none
//! says so and passes.

use std::path::PathBuf;
use std::process::Command;

/// The directory that has them in `bin/`.
const VARIABLE: &str = "HOLDFAST_TOOLS";

/// A program that ends well when it is given these arguments.
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
