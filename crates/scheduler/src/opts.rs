// SPDX-License-Identifier: GPL-2.0-or-later
//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::{PathBufValueParser, TypedValueParser};
use holdfast_args::{number_within, parse, refuse, time_within};
use holdfast_bpf::BtfFiles;
use holdfast_policy::Params;
use scx_utils::libbpf_clap_opts::LibbpfOpts;

/// A sched_ext scheduler for KVM hosts that avoids lock-holder preemption.
///
/// It discovers the vCPUs of the host, reads the state of their guest kernels from outside, and
/// lets a vCPU that holds a lock finish before it is preempted. Guests need no change and no agent.
/// Ctrl-C unloads it and gives the host back to the kernel's own scheduler.
///
/// Exit codes: 0 ended as asked (SysRq-S counts as asking), 1 failed or ended by the kernel,
/// 2 wrong usage, 77 refused by this host, or for want of privileges: nothing was loaded. `holdfast
/// doctor` shows what is checked before.
#[derive(Debug, Parser)]
#[clap(version = holdfast_args::VERSION)]
pub(crate) struct Opts {
    /// Slice: how long a task may run while others wait, in us, 100 to 20000. The kernel ends a
    /// scheduler under which a task waits for 30 s: with 20000 that takes 1500 tasks on one CPU.
    #[clap(short = 's', long, default_value_t = Params::DEFAULT.slice_ns / 1000)]
    #[clap(value_parser = number_within(100..=20_000u64))]
    pub(crate) slice_us: u64,

    /// Cap of a grace: how long a protected vCPU runs on at the end of its slice, in us, 5 to
    /// 10000.
    #[clap(long, default_value_t = Params::DEFAULT.grace_max_ns / 1000)]
    #[clap(value_parser = number_within(5..=10_000u64))]
    pub(crate) grace_max_us: u64,

    /// First step of a grace, after which the vCPU is probed, in us, 5 to --grace-max-us. Each
    /// further step is twice as long.
    #[clap(long, default_value_t = Params::DEFAULT.grace_step_ns / 1000)]
    #[clap(value_parser = number_within(5..=10_000u64))]
    pub(crate) grace_step_us: u64,

    /// Grace that a VM earns, in per mille of the CPU time that it uses: 0 to 1000.
    #[clap(long, default_value_t = Params::DEFAULT.grace_share_permille)]
    #[clap(value_parser = number_within(0..=1000u32))]
    pub(crate) grace_share: u32,

    /// Budget: most grace that a VM can save up, in us, 0 to 1000000.
    #[clap(long, default_value_t = Params::DEFAULT.grace_budget_max_ns / 1000)]
    #[clap(value_parser = number_within(0..=1_000_000u64))]
    pub(crate) grace_budget_us: u64,

    /// Resume boost: how far ahead of its place a preempted, protected vCPU is queued, in per mille
    /// of a slice, 0 to 10000. Best as long as a slice and the longest grace together, as the
    /// defaults are: change it with them.
    #[clap(long, default_value_t = Params::DEFAULT.resume_boost_permille)]
    #[clap(value_parser = number_within(0..=10_000u32))]
    pub(crate) resume_boost: u32,

    /// How soon a running vCPU is probed while its VM has blockers, in us, 20 to 100000. A probe
    /// that leaves it running makes the next one twice as late. The first probe of a vCPU that has
    /// begun to run is sooner, at random, by up to 32 times.
    #[clap(long, default_value_t = Params::DEFAULT.probe_ns / 1000)]
    #[clap(value_parser = number_within(20..=100_000u64))]
    pub(crate) probe_us: u64,

    /// How long a vCPU may spin, by its pause exits, before KVM's candidate is trusted where no
    /// holder is preempted, in us, 0 to 100000. Where waiters for paravirtual locks have pause
    /// exits the candidate is trusted at once. A vCPU that looks like a holder for as long, while
    /// a holder is preempted, is taken to spin for that one.
    #[clap(long, default_value_t = Params::DEFAULT.spin_ns / 1000)]
    #[clap(value_parser = number_within(0..=100_000u64))]
    pub(crate) spin_us: u64,

    /// Wakeup margin: how far a waking task has to be behind a running one to preempt it, in per
    /// mille of a slice, 0 to 10000. With 1000 or more even a task that has slept for long may have
    /// to wait for the end of a slice.
    #[clap(long, default_value_t = Params::DEFAULT.wakeup_margin_permille)]
    #[clap(value_parser = number_within(0..=10_000u32))]
    pub(crate) wakeup_margin: u32,

    /// Wakeup margin of a vCPU that a sibling wakes, if it is larger, 0 to 10000. With less, vCPUs
    /// that wait for each other in ways that the host cannot see, such as for a mutex, take slices
    /// from each other and from the rest of the host.
    #[clap(long, default_value_t = Params::DEFAULT.sibling_margin_permille)]
    #[clap(value_parser = number_within(0..=10_000u32))]
    pub(crate) sibling_margin: u32,

    /// BTF of a guest kernel, for guests that have none in memory: a copy of
    /// /sys/kernel/btf/vmlinux of such a guest, its vmlinux, or a directory of such files. May be
    /// given more than once.
    #[clap(long, value_name = "FILE|DIR")]
    #[clap(value_parser = PathBufValueParser::new().try_map(BtfFiles::load))]
    pub(crate) btf: Vec<BtfFiles>,

    /// Do not read guests: the base scheduler alone, for comparison.
    #[clap(long)]
    pub(crate) no_guest_knowledge: bool,

    /// Grant no grace, for comparison.
    #[clap(long)]
    pub(crate) no_grace: bool,

    /// Give no resume boost to preempted, protected vCPUs, for comparison.
    #[clap(long)]
    pub(crate) no_resume_first: bool,

    /// Ignore the candidates of directed yields, as other schedulers do, for comparison.
    #[clap(long)]
    pub(crate) no_directed_yield: bool,

    /// Do not probe vCPUs for blockers that they wait for, for comparison.
    #[clap(long)]
    pub(crate) no_waiters: bool,

    /// Size of the kernel's dump if it ends the scheduler, in bytes: 0, for its default, to
    /// 16777216.
    #[clap(long, default_value = "0")]
    #[clap(value_parser = number_within(0..=16u32 << 20))]
    pub(crate) exit_dump_len: u32,

    /// Only check: make the checks, give the kernel every BPF program to see whether it takes it,
    /// and drop them. No scheduler is started. Exits with 0 if one could be, else with 77 or 1.
    #[clap(long, conflicts_with_all = ["stats", "monitor"])]
    pub(crate) check: bool,

    /// Report statistics at this interval: 100ms, 5s, 1m; bare numbers are seconds.
    #[clap(long, value_name = "INTERVAL", value_parser = parse_interval)]
    #[clap(conflicts_with = "monitor")]
    pub(crate) stats: Option<Duration>,

    /// Report statistics of a running scx_holdfast at this interval, and start none.
    #[clap(long, value_name = "INTERVAL", value_parser = parse_interval)]
    pub(crate) monitor: Option<Duration>,

    /// Say more, including the messages of libbpf.
    #[clap(short = 'v', long)]
    pub(crate) verbose: bool,

    /// Say only what is wrong.
    #[clap(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Describe the statistics and exit.
    #[clap(long)]
    pub(crate) help_stats: bool,

    /// Write the man page and completions into a directory, as below /usr/share: the build does.
    #[clap(long, value_name = "DIR", hide = true)]
    pub(crate) manual: Option<PathBuf>,

    #[clap(flatten, next_help_heading = "Libbpf Options")]
    pub(crate) libbpf: LibbpfOpts,
}

fn parse_interval(arg: &str) -> Result<Duration, String> {
    time_within(Duration::from_millis(100)..=Duration::from_secs(86_400))(arg)
}

impl Opts {
    /// Reads the command line. An error is the exit code after what was asked for, or is wrong, is
    /// printed.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        let opts: Self = parse()?;
        if opts.grace_step_us > opts.grace_max_us {
            let (step, max) = (opts.grace_step_us, opts.grace_max_us);
            let why = format!("--grace-step-us ({step}) has to be at most --grace-max-us ({max})");
            return Err(refuse::<Self>(&why));
        }
        if let Some(path) = &opts.libbpf.btf_custom_path
            && let Err(err) = std::fs::File::open(path)
        {
            return Err(refuse::<Self>(&format!("--btf-custom-path {path}: {err}")));
        }
        Ok(opts)
    }

    pub(crate) fn params(&self) -> Params {
        Params {
            slice_ns: self.slice_us * 1000,
            grace_max_ns: self.grace_max_us * 1000,
            grace_step_ns: self.grace_step_us * 1000,
            grace_budget_max_ns: self.grace_budget_us * 1000,
            grace_share_permille: self.grace_share,
            resume_boost_permille: self.resume_boost,
            spin_ns: self.spin_us * 1000,
            probe_ns: self.probe_us * 1000,
            wakeup_margin_permille: self.wakeup_margin,
            sibling_margin_permille: self.sibling_margin,
        }
    }
}
