// SPDX-License-Identifier: GPL-2.0-or-later
//! Searches random small hosts for a violated rule.
//!
//!     cargo run --release -p holdfast-sim --example explore -- --seeds 100000

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use holdfast_sim::{Source, hosts};

/// Runs the scheduler on random small hosts, and prints the seeds of those that violate a rule.
#[derive(Parser)]
struct Options {
    /// How many hosts.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed; with --seeds 1 this replays one host.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The directory `crates` of another tree, whose scheduler to run.
    #[arg(long)]
    crates: Option<std::path::PathBuf>,
    /// Print what each host counted.
    #[arg(long)]
    verbose: bool,
    /// Stop after so many violations.
    #[arg(long, default_value_t = 10)]
    violations: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let source = match options.crates.as_deref().map(Source::compile).transpose() {
        Ok(source) => source.unwrap_or_default(),
        Err(error) => {
            eprintln!("explore: {error}");
            return ExitCode::FAILURE;
        }
    };
    let began = Instant::now();
    let (mut found, mut done) = (0, 0u32);
    for seed in options.first..options.first + options.seeds {
        done += 1;
        match hosts::run(seed, &source) {
            Ok(totals) if options.verbose => println!("seed {seed}: {totals:?}"),
            Ok(_) => {}
            Err(violation) => {
                println!("seed {seed}: {violation}");
                found += 1;
            }
        }
        if found == options.violations {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{done} hosts, {found} violations, {:.0} hosts a second", f64::from(done) / seconds);
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
