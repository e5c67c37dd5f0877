// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives the programs the commit that they are built from. A source tree without git has none,
//! unless the variable `HOLDFAST_COMMIT` is set while building.

use std::{env, process::Command};

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string()).filter(|s| !s.is_empty())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HOLDFAST_COMMIT");
    // Sources that were unpacked in another project's repository are not of its commit.
    let is_ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    if let Some(dir) = git(&["rev-parse", "--absolute-git-dir"]).filter(|_| is_ours) {
        // The reflog changes with every commit and every switch of branches.
        println!("cargo::rerun-if-changed={dir}/logs/HEAD");
        println!("cargo::rerun-if-changed={dir}/HEAD");
    }
    let given = env::var("HOLDFAST_COMMIT").ok().filter(|commit| !commit.is_empty());
    let found = || git(&["describe", "--always", "--abbrev=12"]).filter(|_| is_ours);
    let mut version = env!("CARGO_PKG_VERSION").to_owned();
    if let Some(commit) = given.or_else(found) {
        println!("cargo::rustc-env=HOLDFAST_COMMIT={commit}");
        version = format!("{version} ({commit})");
    }
    println!("cargo::rustc-env=HOLDFAST_VERSION={version}");
}
