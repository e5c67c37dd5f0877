// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives the program the commit that it is built from, for the provenance of results.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string()).filter(|s| !s.is_empty())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(dir) = git(&["rev-parse", "--absolute-git-dir"]) {
        // The reflog changes with every commit and every switch of branches.
        println!("cargo::rerun-if-changed={dir}/logs/HEAD");
        println!("cargo::rerun-if-changed={dir}/HEAD");
    }
    if let Some(commit) = git(&["describe", "--always", "--abbrev=12"]) {
        println!("cargo::rustc-env=HOLDFAST_COMMIT={commit}");
    }
}
