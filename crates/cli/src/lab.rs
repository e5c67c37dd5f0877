// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast lab`.

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use holdfast_lab::campaign::{Campaign, Finished};
use holdfast_lab::experiment::{Experiment, ExperimentError};
use holdfast_lab::machine::{Accel, cpus_here};
use holdfast_lab::packages::Kernel;
use holdfast_lab::progress::Progress;
use holdfast_lab::report::{html, markdown, terminal};
use holdfast_lab::result::RunResult;
use holdfast_lab::runner::{Options, Place, available_mib};
use holdfast_lab::stats::Settings;
use holdfast_lab::{analysis, builtin, fetch, images, interrupt};

use crate::{SKIPPED, complain, output_file, print, wrong_usage};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs experiments and shows what came of them.
    ///
    /// Boots a stock Linux kernel as a KVM host, emulated where this machine has no usable KVM,
    /// starts unmodified guests in it and measures each case under each contender in short,
    /// alternating windows. Without --here nothing on this machine is installed or changed. Ctrl-C
    /// ends it in order: what was measured until then is kept, marked partial. The same command
    /// then goes on where it was.
    Run(RunArgs),
    /// Shows a result again.
    Report(ReportArgs),
    /// Downloads what the lab needs (QEMU and kernels, from Debian), so that later runs need no
    /// network.
    Fetch(FetchArgs),
    /// Lists the experiments that come with this program, or those of a directory.
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Experiments to run: TOML files, or names that `holdfast lab list` shows; `all` is those of
    /// the five sources (s1 to s5) and of several VMs (vms).
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,

    /// Fewer and shorter windows, and only the cases that matter most: shows which way each row
    /// goes, and how sure that is.
    #[arg(long)]
    quick: bool,

    /// Measure this case and no others; may be given more than once.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,

    /// Begin anew where a run of the same experiments was stopped; else it goes on where it was.
    #[arg(long)]
    afresh: bool,

    /// Directory for result.json, report.html and samples.jsonl.
    ///
    /// Without it: results/NAME, where NAME is what is run first.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Rounds instead of the experiments' own; fewer than 6 cannot show a significant difference.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: Option<u32>,

    /// Show what the scheduler counted of its decisions, too.
    #[arg(long, short)]
    verbose: bool,

    /// Print the result as JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Fail if the result does not show what the experiments expect.
    #[arg(long)]
    check: bool,

    /// Use this machine as the host instead of booting one: schedulers are loaded here, KVM is
    /// reloaded, guests and hogs run beside whatever else does. Needs root.
    ///
    /// Experiments are scaled to the CPUs that this program may use (see taskset(1)): as many times
    /// the vCPUs, loops and threads as there are times the pCPUs they are written for.
    #[arg(long, conflicts_with = "accel")]
    here: bool,

    /// Use this many of this machine's CPUs, and scale experiments to them; all unless given.
    #[arg(long, value_name = "N", requires = "here", value_parser = clap::value_parser!(u32).range(1..))]
    pcpus: Option<u32>,

    /// What runs the host.
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,

    /// Hosts that measure an experiment together; as many as this machine has CPUs and memory for
    /// unless given. Only emulated hosts that count their instructions do, which notice nothing of
    /// each other.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    hosts: Option<u32>,

    /// Directory with the programs built; unless given that of this program, or
    /// ../lib/holdfast from there.
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,

    /// Seed of the statistics.
    #[arg(long, value_name = "N", default_value_t = Settings::default().seed)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccelArg {
    /// KVM where it can be used, else emulation.
    Auto,
    /// Emulation.
    Tcg,
    /// KVM.
    Kvm,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A result.json, or the directory it is in.
    #[arg(value_name = "RESULT")]
    result: PathBuf,

    /// Show what the scheduler counted of its decisions, too.
    #[arg(long, short)]
    verbose: bool,

    /// Write the page with plots here, too.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    html: Option<PathBuf>,

    /// Write it as Markdown here, too.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    markdown: Option<PathBuf>,

    /// Fail if the result does not show what the experiments expect.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Kernels of guests to fetch, of 6.1, 6.12, 7 and backports; 7, which the host runs, is always
    /// among them.
    #[arg(long, value_name = "LINE,...", value_delimiter = ',', default_value = "7")]
    kernels: Vec<Kernel>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// A directory with experiments of yours.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn main(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run(args),
        Command::Report(args) => report(args),
        Command::Fetch(args) => fetch_packages(args),
        Command::List(args) => list(args),
    }
}

fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let named = args.experiments.iter().map(|e| builtin::find(e)).collect::<Result<Vec<_>, _>>();
    let mut experiments = named.map_err(unusable)?.concat();
    if args.quick {
        experiments = experiments.into_iter().map(Experiment::quick).collect();
    }
    if !args.cases.is_empty() {
        experiments = only(experiments, &args.cases)?;
    }
    if args.here {
        let cpus = wanted_cpus(args.pcpus)?;
        let memory_mib = available_mib();
        let scaled = experiments.into_iter().map(|e| e.scaled_to(&cpus, memory_mib));
        experiments = match scaled.collect() {
            Err(e) if args.pcpus.is_some() => return Err(wrong_usage(e)),
            // Not asked for fewer: the machine has no more.
            Err(e) => return Ok(skipped(e)),
            Ok(scaled) => scaled,
        };
    }
    let accel = match (args.here, args.accel) {
        (true, _) => Accel::Here,
        (_, AccelArg::Auto) => Accel::Auto,
        (_, AccelArg::Tcg) => Accel::Tcg,
        (_, AccelArg::Kvm) => Accel::Kvm,
    };
    let dist = args.dist.clone().map_or_else(dist_of_this_program, Ok)?;
    let campaign = Campaign {
        out: args
            .out
            .clone()
            .unwrap_or_else(|| Path::new("results").join(name(args, &experiments))),
        verbose: args.verbose,
        afresh: args.afresh,
        experiments,
        place: Place { accel, dist },
        options: Options {
            rounds: args.rounds,
            hosts: args.hosts.map(|n| n as usize),
            ..Options::default()
        },
        statistics: Settings { seed: args.seed, ..Settings::default() },
        version: env!("CARGO_PKG_VERSION").into(),
        commit: option_env!("HOLDFAST_COMMIT").map(str::to_owned),
    };
    interrupt::install();
    let finished = match campaign.run(&Progress::stderr()) {
        Err(e) if e.is_unsupported() => return Ok(skipped(e)),
        Err(e) if e.is_wrong_usage() => return Err(wrong_usage(e)),
        finished => finished?,
    };
    show(&finished, args)?;
    let is_whole = finished.ended_by.is_none() && finished.unwritten.is_none();
    let failed = !is_whole || args.check && !as_expected(&finished.result);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Without something that this machine lacks there is nothing to run.
fn skipped(error: impl Into<anyhow::Error>) -> ExitCode {
    complain(format_args!("skipped: {:#}", error.into()));
    ExitCode::from(SKIPPED)
}

/// An experiment that does not exist, or is none, is wrong usage; one that cannot be read is a
/// failure.
fn unusable(error: ExperimentError) -> anyhow::Error {
    if error.is_wrong_usage() { wrong_usage(error) } else { error.into() }
}

/// The experiments that have some of `cases`, with those alone.
fn only(experiments: Vec<Experiment>, cases: &[String]) -> anyhow::Result<Vec<Experiment>> {
    let names: Vec<_> = experiments.iter().flat_map(|e| &e.cases).map(|c| &c.name).collect();
    if let Some(unknown) = cases.iter().find(|case| !names.contains(case)) {
        let known = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        let unknown = anyhow!("there is no case `{unknown}`; there are {known}");
        return Err(wrong_usage(unknown));
    }
    let experiments = experiments.into_iter().map(|e| e.only(cases));
    Ok(experiments.filter(|e| !e.cases.is_empty()).collect())
}

/// So many of the CPUs that this program may use; all of them unless given.
fn wanted_cpus(wanted: Option<u32>) -> anyhow::Result<Vec<u32>> {
    let mut cpus = cpus_here();
    let (nr, wanted) = (cpus.len(), wanted.map_or(cpus.len(), |wanted| wanted as usize));
    if wanted > nr {
        return Err(wrong_usage(anyhow!(
            "there are {nr} CPUs for this program, and not {wanted}; give a smaller --pcpus, or \
             leave it out"
        )));
    }
    cpus.truncate(wanted);
    Ok(cpus)
}

/// What a directory for it is called.
fn name(args: &RunArgs, experiments: &[Experiment]) -> String {
    let is_all = args.experiments.iter().any(|e| e == builtin::ALL);
    let name = if is_all { builtin::ALL } else { &experiments[0].name };
    if args.quick { format!("{name}-quick") } else { name.into() }
}

fn show(finished: &Finished, args: &RunArgs) -> anyhow::Result<()> {
    // What could not be written is named below instead.
    let places = match &finished.unwritten {
        Some(_) => String::new(),
        None => format!(
            "result: {}\nreport: {}\n",
            finished.result_path.display(),
            finished.report_path.display()
        ),
    };
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&finished.result)?))?;
        // Nobody has to be there to read it.
        let _ = write!(std::io::stderr(), "{places}");
    } else {
        print(&format!("{}\n{places}", terminal::render(&finished.result, args.verbose)))?;
    }
    if let Some(error) = &finished.ended_by {
        // What is not on disk cannot be gone on with.
        let advice = match &finished.unwritten {
            Some(_) => "",
            None => "; given again, without --afresh, the command goes on where it was",
        };
        complain(format_args!("the run ended early: {error}{advice}"));
    }
    if let Some(error) = &finished.unwritten {
        complain(error);
    }
    Ok(())
}

/// Whether a result shows all that its experiments expect, which have to expect something.
fn as_expected(result: &RunResult) -> bool {
    if result.expectations.is_empty() {
        complain("nothing to check: these experiments and cases expect nothing");
        return false;
    }
    if result.partial {
        complain("nothing is shown by a run that ended before all windows were measured");
        return false;
    }
    result.expectations.iter().all(|verdict| verdict.met)
}

/// Programs that are built are beside this one; `make install` has the lab's in ../lib/holdfast.
fn dist_of_this_program() -> anyhow::Result<PathBuf> {
    let exe =
        std::env::current_exe().context("cannot find this program's directory; give --dist")?;
    let dir = exe.parent().unwrap_or(Path::new("."));
    let installed = dir.parent().unwrap_or(dir).join("lib/holdfast");
    let has_lab = |dir: &Path| dir.join(images::AGENT).is_file();
    Ok(if has_lab(dir) || !has_lab(&installed) { dir.to_path_buf() } else { installed })
}

fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    check_pages(args).map_err(wrong_usage)?;
    let stored = RunResult::read(&args.result)?;
    let verdicts = stored.expectations.clone();
    // What is shown and checked follows from the windows, not from what was written beside them.
    let result = analysis::again(stored);
    if result.expectations != verdicts {
        complain(format_args!(
            "the verdicts in {} do not follow from its windows; shown are those that do",
            args.result.display()
        ));
    }
    print(&terminal::render(&result, args.verbose))?;
    if let Some(path) = &args.html {
        html::write(&result, path, args.verbose)?;
        print(&format!("report: {}\n", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        let (from, to) = (args.result.display(), path.display());
        let command = format!("holdfast lab report {from} --markdown {to}");
        markdown::write(&result, path, &command)?;
        print(&format!("report: {to}\n"))?;
    }
    let failed = args.check && !as_expected(&result);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// No page takes the place of a measurement or of the other page.
fn check_pages(args: &ReportArgs) -> anyhow::Result<()> {
    for page in [&args.html, &args.markdown].into_iter().flatten() {
        ensure_no_measurement(page, &args.result)?;
    }
    anyhow::ensure!(
        args.html.is_none() || args.html != args.markdown,
        "one file cannot hold both pages; name another with --markdown"
    );
    Ok(())
}

/// A page is made again from what was measured, not the other way round.
fn ensure_no_measurement(page: &Path, result: &Path) -> anyhow::Result<()> {
    let is_page = |file: &Path| match (fs::metadata(page), fs::metadata(file)) {
        (Ok(a), Ok(b)) => b.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    };
    let dir = if result.is_dir() { result } else { result.parent().unwrap_or(result) };
    let beside = ["result.json", "samples.jsonl", "unfinished.json"].map(|name| dir.join(name));
    anyhow::ensure!(
        !is_page(result) && !beside.iter().any(|file| is_page(file)),
        "cannot write the page to {}: that is the measurement; name another file",
        page.display()
    );
    Ok(())
}

fn fetch_packages(args: &FetchArgs) -> anyhow::Result<ExitCode> {
    interrupt::install();
    fetch::everything(&args.kernels, &Progress::stderr())?;
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let Some(dir) = &args.dir else {
        for name in builtin::names() {
            for e in builtin::find(name)? {
                print_listed(name, &e)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let experiments = Experiment::list(dir)?;
    anyhow::ensure!(!experiments.is_empty(), "{} holds no experiment (NAME.toml)", dir.display());
    let mut code = ExitCode::SUCCESS;
    for (path, experiment) in experiments {
        match experiment {
            Ok(e) => print_listed(path.display(), &e)?,
            // One that is broken does not hide the others.
            Err(e) => {
                complain(e);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn print_listed(name: impl Display, experiment: &Experiment) -> anyhow::Result<()> {
    const INDENT: &str = "    ";
    let options = textwrap::Options::new(100).initial_indent(INDENT).subsequent_indent(INDENT);
    print(&format!("{name}\n{}\n", textwrap::fill(experiment.summary.trim(), options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_takes_the_place_of_a_measurement_or_of_the_other_page() {
        let dir = tempfile::tempdir().unwrap();
        let result = dir.path().join("result.json");
        fs::write(&result, "what was measured").unwrap();
        let refused = |html: Option<&str>, markdown: Option<&str>| {
            let [html, markdown] = [html, markdown].map(|name| Some(dir.path().join(name?)));
            let args =
                ReportArgs { result: result.clone(), verbose: false, html, markdown, check: false };
            report(&args).unwrap_err().to_string()
        };
        assert!(refused(None, Some("result.json")).contains("that is the measurement"));
        assert!(refused(Some("page"), Some("page")).contains("both pages"));
        assert_eq!(fs::read_to_string(&result).unwrap(), "what was measured");
    }
}
