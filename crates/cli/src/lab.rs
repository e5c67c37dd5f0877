// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast lab`.

use std::fmt::Display;
use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use holdfast_args::{COMMIT, SKIPPED, did_you_mean, number_within, quoted};
use holdfast_checks::fill;
use holdfast_lab::campaign::{Campaign, Finished, is_kept_result};
use holdfast_lab::experiment::{Experiment, ExperimentError};
use holdfast_lab::report::{html, markdown, terminal};
use holdfast_lab::result::RunResult;
use holdfast_lab::runner::{Options, Place, available_mib};
use holdfast_lab::stats::Settings;
use holdfast_lab::{analysis, builtin};
use holdfast_testbed::machine::{Accel, cpus_here};
use holdfast_testbed::packages::Kernel;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::{fetch, images};

use crate::{Say, complain, output_file, print, wrong_usage};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs experiments in a KVM host, which it boots and, without usable KVM, emulates. Ctrl-C
    /// ends the run in order, and the same command then continues it.
    Run(RunArgs),
    /// Shows a result again.
    Report(ReportArgs),
    /// Downloads QEMU and kernels from Debian, so that later runs need no network.
    Fetch(FetchArgs),
    /// Lists the experiments that come with this program, or those of a directory.
    List(ListArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  holdfast lab run demo              # the main claim: 20 to 30 minutes
  holdfast lab run demo --quick      # only which way it goes
  holdfast lab run s1 -o /srv/s1     # a replication, with its results in /srv/s1")]
pub(crate) struct RunArgs {
    /// Experiments to run: TOML files, or names that `holdfast lab list` shows. `all` runs the
    /// replications of published documents (s1 to s5) and the experiments with several VMs (vms).
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,

    /// Measure fewer and shorter windows, and only the cases that matter most.
    #[arg(long)]
    quick: bool,

    /// Measure this case and no others; may be given more than once.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,

    /// Start over instead of continuing a stopped run of the same experiments.
    #[arg(long)]
    afresh: bool,

    /// Directory for result.json, report.html and windows.jsonl; by default results/NAME, where
    /// NAME is the first experiment.
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Number of rounds, 2 to 1000; fewer than 6 cannot show a significant difference.
    #[arg(long, value_name = "N", value_parser = number_within(2..=1000u32))]
    rounds: Option<u32>,

    /// Print the result as JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Fail if the result does not show what the experiments expect.
    #[arg(long)]
    check: bool,

    /// Use this machine as the host instead of booting one: loads schedulers, reloads KVM, and runs
    /// guests and hogs beside everything else here. Needs root.
    #[arg(long, conflicts_with = "accel")]
    here: bool,

    /// Do what --here says without asking.
    #[arg(long, short, requires = "here")]
    yes: bool,

    /// Use this many of this machine's CPUs, and scale experiments to them; all by default.
    #[arg(long, value_name = "N", requires = "here")]
    #[arg(value_parser = number_within(1u32..))]
    pcpus: Option<u32>,

    /// How the host is run: KVM where it is usable and else emulated, emulated (tcg), or by KVM.
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,

    /// Number of hosts that measure an experiment together, 1 to 1024; by default as many as this
    /// machine has CPUs and memory for.
    #[arg(long, value_name = "N", value_parser = number_within(1..=1024u32))]
    hosts: Option<u32>,

    /// Directory with the built programs; by default this program's own, or ../lib/holdfast from
    /// there.
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,

    /// Seed of the statistics.
    #[arg(long, value_name = "N", default_value_t = Settings::default().seed)]
    #[arg(value_parser = number_within(0u64..))]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccelArg {
    Auto,
    Tcg,
    Kvm,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A result.json, or the directory it is in.
    #[arg(value_name = "RESULT")]
    result: PathBuf,

    /// Also write a page with plots to this file.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    html: Option<PathBuf>,

    /// Also write the result as Markdown to this file.
    #[arg(long, value_name = "FILE", value_parser = output_file)]
    markdown: Option<PathBuf>,

    /// Fail if the result does not show what the experiments expect.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Guest kernels to fetch: 5.10, 6.1, 6.12, 7 or backports. 7 is always fetched, because the
    /// host runs it.
    #[arg(long, value_name = "LINE,...", value_delimiter = ',', default_value = "7")]
    kernels: Vec<Kernel>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// A directory with your own experiments.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn main(command: &Command, say: Say) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run(args, say),
        Command::Report(args) => report(args, say),
        Command::Fetch(args) => fetch_packages(args, say),
        Command::List(args) => list(args),
    }
}

/// Progress on standard error, unless it is not wanted.
fn progress(say: Say) -> Progress {
    if say.quiet { Progress::silent() } else { Progress::stderr() }
}

/// The experiments of this name.
fn named(what: &str) -> anyhow::Result<Vec<Experiment>> {
    builtin::find(what).map_err(|error| {
        // The name of a file, or of an experiment that comes with the program.
        let names = builtin::names().chain([builtin::ALL]);
        let is_file = Path::new(what).exists() || what.contains('/') || what.ends_with(".toml");
        if is_file {
            return unusable(error);
        }
        let mut hint = did_you_mean(what, names);
        if hint.is_empty() {
            hint = "; `holdfast lab list` shows all".into();
        }
        wrong_usage(anyhow!("there is no experiment {}{hint}", quoted(what)))
    })
}

/// The effects of `--here`.
const WILL: &str = "\
    --here uses this machine itself as the KVM host. It reloads the KVM modules, so that no other \
    VM can run here meanwhile, loads schedulers for all tasks, and starts guests and loops that \
    use all of its CPUs. If it hangs, so does everything on it.";

/// Asks whether this machine may be disturbed.
fn may_disturb(args: &RunArgs) -> anyhow::Result<()> {
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(wrong_usage(anyhow!("{WILL} To agree, add --yes")));
    }
    eprint!("{}\nGo on? [y/N] ", fill("", "", WILL));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    let agrees = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
    anyhow::ensure!(agrees, "nothing was changed");
    Ok(())
}

fn run(args: &RunArgs, say: Say) -> anyhow::Result<ExitCode> {
    let found = args.experiments.iter().map(|e| named(e)).collect::<anyhow::Result<Vec<_>>>();
    let mut experiments = found?.concat();
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
            // Without --pcpus the machine is too small, and not the request too large.
            Err(e) => return Ok(skipped(e)),
            Ok(scaled) => scaled,
        };
        may_disturb(args)?;
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
            .output
            .clone()
            .unwrap_or_else(|| Path::new("results").join(name(args, &experiments))),
        verbose: say.verbose,
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
        commit: COMMIT.map(str::to_owned),
    };
    holdfast_signals::catch().context("catching signals")?;
    let finished = match campaign.run(&progress(say)) {
        Err(e) if e.is_unsupported() => return Ok(skipped(e)),
        Err(e) if e.is_wrong_usage() => return Err(wrong_usage(e)),
        finished => finished?,
    };
    show(&finished, args, say)?;
    let is_whole = finished.ended_by.is_none() && finished.unwritten.is_none();
    let failed = !is_whole || args.check && !as_expected(&finished.result);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reports that this machine lacks something that the run needs.
fn skipped(error: impl Into<anyhow::Error>) -> ExitCode {
    complain(format_args!("skipped: {:#}", error.into()));
    ExitCode::from(SKIPPED)
}

/// An experiment that does not exist or is not valid is wrong usage; a file that cannot be read is
/// a failure.
fn unusable(error: ExperimentError) -> anyhow::Error {
    if error.is_wrong_usage() { wrong_usage(error) } else { error.into() }
}

/// The experiments that have some of `cases`, reduced to these cases.
fn only(experiments: Vec<Experiment>, cases: &[String]) -> anyhow::Result<Vec<Experiment>> {
    let all = experiments.iter().flat_map(|e| &e.cases).map(|c| &c.name);
    // Two experiments may have cases of one name.
    let mut names: Vec<&String> = Vec::new();
    all.for_each(|name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    if let Some(unknown) = cases.iter().find(|case| !names.contains(case)) {
        let known = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        let meant = did_you_mean(unknown, names);
        let unknown = anyhow!("there is no case {}{meant}; there are {known}", quoted(unknown));
        return Err(wrong_usage(unknown));
    }
    let experiments = experiments.into_iter().map(|e| e.only(cases));
    Ok(experiments.filter(|e| !e.cases.is_empty()).collect())
}

/// The first `wanted` of the CPUs that this program may use; all of them by default.
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

/// Name of the directory for the results.
fn name(args: &RunArgs, experiments: &[Experiment]) -> String {
    let is_all = args.experiments.iter().any(|e| e == builtin::ALL);
    let name = if is_all { builtin::ALL } else { &experiments[0].name };
    if args.quick { format!("{name}-quick") } else { name.into() }
}

fn show(finished: &Finished, args: &RunArgs, say: Say) -> anyhow::Result<()> {
    // A file that could not be written is named below instead.
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
        // Standard error may be closed.
        let _ = write!(std::io::stderr(), "{places}");
    } else {
        print(&format!("{}\n{places}", terminal::render(&finished.result, say.verbose)))?;
    }
    if let Some(error) = &finished.ended_by {
        // A run that is not on disk cannot be continued.
        let advice = match &finished.unwritten {
            Some(_) => "",
            None => "; the same command without --afresh continues it",
        };
        complain(format_args!("the run ended early: {error}{advice}"));
    }
    if let Some(error) = &finished.unwritten {
        complain(error);
    }
    Ok(())
}

/// Checks a result against its experiments' expectations. Experiments without any are an error.
fn as_expected(result: &RunResult) -> bool {
    if result.expectations.is_empty() {
        complain("nothing to check: these experiments and cases expect nothing");
        return false;
    }
    if result.partial {
        complain("the run ended before all windows were measured, and shows nothing");
        return false;
    }
    result.expectations.iter().all(|verdict| verdict.met)
}

/// Built programs are beside this one; `make install` puts the lab's into ../lib/holdfast.
fn dist_of_this_program() -> anyhow::Result<PathBuf> {
    let exe =
        std::env::current_exe().context("cannot find this program's directory; give --dist")?;
    let dir = exe.parent().unwrap_or(Path::new("."));
    let installed = dir.parent().unwrap_or(dir).join("lib/holdfast");
    let has_lab = |dir: &Path| dir.join(images::AGENT).is_file();
    Ok(if has_lab(dir) || !has_lab(&installed) { dir.to_path_buf() } else { installed })
}

fn report(args: &ReportArgs, say: Say) -> anyhow::Result<ExitCode> {
    check_pages(args).map_err(wrong_usage)?;
    let stored = RunResult::read(&args.result)?;
    let verdicts = stored.expectations.clone();
    // The verdicts shown and checked follow from the windows, and not from those in the file.
    let result = analysis::again(stored);
    if result.expectations != verdicts {
        complain(format_args!(
            "the verdicts in {} do not follow from its windows; the verdicts shown do",
            args.result.display()
        ));
    }
    print(&terminal::render(&result, say.verbose))?;
    if let Some(path) = &args.html {
        html::write(&result, path, say.verbose)?;
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

/// Refuses pages that would overwrite a measurement or each other.
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

/// Refuses to overwrite a measurement: it cannot be made from a page again.
fn ensure_no_measurement(page: &Path, result: &Path) -> anyhow::Result<()> {
    let is_page = |file: &Path| match (fs::metadata(page), fs::metadata(file)) {
        (Ok(a), Ok(b)) => b.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    };
    let dir = if result.is_dir() { result } else { result.parent().unwrap_or(result) };
    let beside = ["result.json", "windows.jsonl", "unfinished.json"].map(|name| dir.join(name));
    let is_kept = page.file_name().is_some_and(|name| is_kept_result(&name.to_string_lossy()));
    anyhow::ensure!(
        !is_page(result) && !is_kept && !beside.iter().any(|file| is_page(file)),
        "cannot write the page to {}: that is the measurement; name another file",
        page.display()
    );
    Ok(())
}

fn fetch_packages(args: &FetchArgs, say: Say) -> anyhow::Result<ExitCode> {
    holdfast_signals::catch().context("catching signals")?;
    fetch::everything(&args.kernels, &progress(say))?;
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
            // A broken experiment does not hide the others.
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
    print(&format!("{name}\n{}\n", fill(INDENT, INDENT, experiment.summary.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_overwrites_neither_a_measurement_nor_the_other_page() {
        let dir = tempfile::tempdir().unwrap();
        let result = dir.path().join("result.json");
        fs::write(&result, "what was measured").unwrap();
        let refused = |html: Option<&str>, markdown: Option<&str>| {
            let [html, markdown] = [html, markdown].map(|name| Some(dir.path().join(name?)));
            let args = ReportArgs { result: result.clone(), html, markdown, check: false };
            report(&args, Say { verbose: false, quiet: false }).unwrap_err().to_string()
        };
        for measurement in ["result.json", "previous.json", "previous-2.json"] {
            assert!(refused(None, Some(measurement)).contains("that is the measurement"));
        }
        assert!(refused(Some("page"), Some("page")).contains("both pages"));
        assert_eq!(fs::read_to_string(&result).unwrap(), "what was measured");
    }
}
