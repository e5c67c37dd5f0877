// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast status`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstyle::Style;
use holdfast_args::interval;
use holdfast_checks::{Host, KernelLog, all, fill, is_holdfast, last_exit, loaded_scheduler};
use holdfast_observer::scheduler::{Connection, Period, SOCKET};
use holdfast_observer::{Look, Report, Sample, boot_time, look, process_start};
use serde::Serialize;
use serde_json::Value;

use crate::{harmless, print, print_styled};

/// Shows how things stand, on one screen: scheduler, VMs, their losses, and what needs attention.
///
/// Watches VMs for a moment, and changes nothing. Needs the same rights as `holdfast report` for
/// all of it; without them it shows what it can, and says what is missing. Exits with 0 whatever it
/// finds: `holdfast doctor --for` is the gate for scripts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  holdfast status
  holdfast status --time 10s     # watch VMs for longer
  holdfast status --json | jq -r '.attention[]'")]
pub(crate) struct Args {
    /// How long to watch VMs, 10ms to 1day; bare numbers are seconds.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    time: Duration,

    /// Print one JSON object of schema holdfast.status/1.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    guests: crate::btf::Args,
}

/// How things stand. JSON schema tag: `holdfast.status/1`. What is not known is absent.
#[derive(Serialize)]
struct Status {
    schema: &'static str,
    scheduler: Scheduler,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Sample>,
    /// VMs whose vCPUs did not run meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_rest: Option<Vec<holdfast_observer::VmInfo>>,
    /// The reason why VMs were not watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    unobserved: Option<String>,
    attention: Vec<String>,
}

/// The sched_ext scheduler.
#[derive(Default, Serialize)]
struct Scheduler {
    /// Does the kernel have sched_ext?
    is_supported: bool,
    /// The one that is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded: Option<String>,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// When that began, ns since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_ns: Option<u64>,
    /// The last end of a scheduler, by the kernel's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_exit: Option<LastExit>,
    /// The reason why the log does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_log: Option<String>,
    /// What it did since it was loaded, and while VMs were watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recent: Option<Value>,
    /// The reason why its counters are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_counters: Option<String>,
}

#[derive(Serialize)]
struct LastExit {
    t_ns: u64,
    scheduler: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl LastExit {
    /// Did the kernel end it, and not its user?
    fn is_failure(&self) -> bool {
        // `scx_exit_reason()`: "unregistered from user space", "... by sysrq-S", and so on.
        self.message.is_some() || self.reason.contains("error") || self.reason.contains("stall")
    }
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    let mut scheduler = Scheduler::of(&host);
    let mut stats = scheduler.is_holdfast().then(|| Connection::open(Path::new(SOCKET)));
    if let Some(Ok(stats)) = &mut stats {
        scheduler.ask(Period::SinceLoaded, stats);
        // The next answer is of the time from here on.
        let _ = stats.counters(Period::SinceLast);
    }
    let looked = look(args.time, &args.guests.btf);
    match &mut stats {
        Some(Ok(stats)) => scheduler.ask(Period::SinceLast, stats),
        Some(Err(error)) => scheduler.no_counters = Some(format!("{SOCKET}: {error}")),
        None => {}
    }
    let (looked, unobserved) = match looked {
        Ok(looked) => (Some(looked), None),
        Err(error) => (None, Some(format!("{:#}", anyhow::Error::from(error)))),
    };
    let attention = attention(&host, &scheduler, looked.as_ref(), unobserved.as_deref());
    let (sample, at_rest) = looked.map(|look| (look.sample, look.at_rest)).unzip();
    let schema = "holdfast.status/1";
    let status = Status { schema, scheduler, sample, at_rest, unobserved, attention };
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&status)?))?;
    } else {
        print_styled(&status.text(args.time))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Scheduler {
    fn of(host: &Host) -> Self {
        if loaded_scheduler(host).is_none() {
            return Self::default();
        }
        let loaded = holdfast_checks::Scheduler::of(host);
        let (loaded, pid) = loaded.map(|scheduler| (scheduler.name, scheduler.pid)).unzip();
        let pid = pid.flatten();
        let (last_exit, no_log) = match KernelLog::from_start() {
            Ok(mut log) => (last_exit(&log.lines()), None),
            Err(error) => (None, Some(format!("/dev/kmsg: {error}"))),
        };
        let last_exit = last_exit.map(|exit| LastExit {
            t_ns: since_1970(boot_time() + exit.since_boot),
            scheduler: exit.scheduler,
            reason: exit.reason,
            message: exit.message,
        });
        let since_ns = pid.and_then(process_start).map(since_1970);
        Self { is_supported: true, loaded, pid, since_ns, last_exit, no_log, ..Self::default() }
    }

    fn is_holdfast(&self) -> bool {
        self.loaded.as_deref().is_some_and(is_holdfast)
    }

    fn ask(&mut self, period: Period, stats: &mut Connection) {
        match (stats.counters(period), period) {
            (Ok(counters), Period::SinceLoaded) => self.total = Some(counters),
            (Ok(counters), Period::SinceLast) => self.recent = Some(counters),
            (Err(error), _) => self.no_counters = Some(format!("{SOCKET}: {error}")),
        }
    }

    fn lines(&self, watched: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        lines.push(match (&self.loaded, self.is_supported) {
            (_, false) => "The kernel has no sched_ext: its own scheduler runs.".into(),
            (None, _) => "None is loaded: the kernel's own scheduler runs.".into(),
            (Some(name), _) => {
                let by = self.pid.map(|pid| format!(", by process {pid}")).unwrap_or_default();
                let since = self.since_ns.map(|t| format!(", since {}", when(t)));
                format!("{name} is loaded{by}{}.", since.unwrap_or_default())
            }
        });
        if let Some(counters) = &self.total {
            lines.push(format!("Since it was loaded: {}.", sentence(counters)));
        }
        if let Some(counters) = &self.recent {
            let watched = humantime::format_duration(watched);
            lines.push(format!("In the last {watched}: {}.", sentence(counters)));
        }
        if let Some(why) = &self.no_counters {
            lines.push(format!("What it did is not known: {why}."));
        }
        match (&self.last_exit, &self.no_log) {
            (Some(exit), _) => {
                let message = exit.message.as_deref().map(|said| format!(": {said}"));
                lines.push(format!(
                    "Last end: {} at {}, {}{}.",
                    exit.scheduler,
                    when(exit.t_ns),
                    exit.reason,
                    message.unwrap_or_default()
                ));
            }
            (None, Some(why)) => lines.push(format!("The last end is not known: {why}.")),
            (None, None) if self.is_supported => {
                lines.push("The kernel's log tells of no end of a scheduler.".into());
            }
            (None, None) => {}
        }
        lines
    }
}

impl Status {
    /// The screen; headings in bold.
    fn text(&self, watched: Duration) -> String {
        let bold = Style::new().bold();
        let mut text = String::new();
        let mut section = |heading: &str, body: &str| {
            text.push_str(&format!(
                "{bold}{heading}{bold:#}\n{}\n",
                harmless(body.trim_matches('\n'))
            ));
        };
        section("SCHEDULER", &sentences(&self.scheduler.lines(watched)));
        let mut vms = match (&self.sample, &self.unobserved) {
            (Some(sample), _) => table(sample, watched),
            (None, Some(why)) => sentence_line(&format!("Not known: {why}.")),
            (None, None) => String::new(),
        };
        for vm in self.at_rest.iter().flatten() {
            let name = vm.name.as_deref().unwrap_or("-");
            vms.push_str(&sentence_line(&format!(
                "{name} (pid {}) did not run meanwhile.",
                vm.pid
            )));
        }
        section("\nVMS", &vms);
        let attention = match &self.attention[..] {
            [] => "Nothing.".to_owned(),
            some => sentences(some),
        };
        section("\nATTENTION", &attention);
        text
    }
}

/// The table of `holdfast report`.
fn table(sample: &Sample, interval: Duration) -> String {
    Report { interval, ..Report::default() }.table(sample)
}

/// What an operator should look after.
fn attention(
    host: &Host,
    scheduler: &Scheduler,
    looked: Option<&Look>,
    unobserved: Option<&str>,
) -> Vec<String> {
    /// Share of a VM's CPU time from which its losses are worth a scheduler.
    const MUCH: f64 = 0.01;
    let mut all_of = Vec::new();
    if let Some(exit) = scheduler.last_exit.as_ref().filter(|exit| exit.is_failure())
        && scheduler.loaded.is_none()
    {
        all_of.push(format!("The kernel ended {}: see its last end.", exit.scheduler));
    }
    let starving = scheduler.recent.as_ref().and_then(|recent| recent["nr_starving"].as_u64());
    if let Some(nr) = starving.filter(|nr| *nr > 0) {
        all_of.push(format!("{nr} slices went to tasks that had waited for 5 s."));
    }
    for vm in looked.iter().flat_map(|look| &look.sample.vms) {
        if let Some(why) = vm.guest.why() {
            let tier = vm.guest.tier_name();
            all_of.push(format!("{} is of tier {tier}: {why}.", vm.label()));
        }
        let cost = vm.total().cost().and_then(|cost| Some((cost, cost.lost()?)));
        let cost = cost.filter(|(_, lost)| *lost >= MUCH);
        if let Some((cost, lost)) = cost.filter(|_| !scheduler.is_holdfast()) {
            all_of.push(format!(
                "{} waits for {} % of its CPU time while a lock holder is preempted: scx_holdfast \
                 may help.",
                vm.label(),
                cost.percent(lost)
            ));
        }
    }
    if looked.is_some_and(|look| look.sample.lost_events > 0) {
        all_of.push("Events were lost: the figures of VMs are too low.".into());
    }
    let report = all(host);
    let failed: Vec<_> = report.failures().map(|check| check.name).collect();
    if !failed.is_empty() {
        let names = failed.join(", ");
        all_of.push(format!("Checks fail: {names}. `holdfast doctor` says what to do."));
    } else if unobserved.is_some() {
        all_of.push("VMs cannot be observed: `holdfast doctor` may say why.".into());
    }
    all_of
}

fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn when(t_ns: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(t_ns);
    humantime::format_rfc3339_seconds(time).to_string()
}

fn sentences(lines: &[String]) -> String {
    lines.iter().map(|line| sentence_line(line)).collect()
}

fn sentence_line(text: &str) -> String {
    fill("", "  ", text) + "\n"
}

/// What these counters say, in a line.
pub(super) fn sentence(counters: &Value) -> String {
    let of = |key: &str| counters["vcpus"][key].as_u64().unwrap_or(0);
    let granted: u64 = ["pause", "kick", "ipi", "other", "probe"]
        .iter()
        .flat_map(|why| {
            ["holder", "call_pending", "candidate"].map(|to| format!("nr_{why}_to_{to}"))
        })
        .map(|key| of(&key))
        .sum();
    format!(
        "{} graces ended in time and {} at the cap, {} holders preempted, {} resume boosts, {} \
         CPUs given to siblings",
        of("nr_released"),
        of("nr_capped"),
        of("nr_preempted_holder"),
        of("nr_resumed_first"),
        granted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let scheduler = Scheduler {
            is_supported: true,
            loaded: Some("holdfast_0.1.0_x86_64_unknown_linux_gnu".into()),
            pid: Some(12),
            since_ns: Some(1_700_000_000_000_000_000),
            last_exit: Some(LastExit {
                t_ns: 1_600_000_000_000_000_000,
                scheduler: "holdfast\u{1b}[2J".into(),
                reason: "runnable task stall".into(),
                message: Some("qemu[12] failed to run for 30.1s".into()),
            }),
            total: Some(serde_json::json!({ "vcpus": { "nr_capped": 3 } })),
            ..Scheduler::default()
        };
        Status {
            schema: "holdfast.status/1",
            scheduler,
            sample: None,
            at_rest: None,
            unobserved: Some("needs root".into()),
            attention: vec!["Checks fail: kvm.".into()],
        }
    }

    #[test]
    fn one_screen_says_what_is_known_and_what_is_not() {
        let text = anstream::adapter::strip_str(&status().text(Duration::from_secs(2))).to_string();
        for line in [
            "holdfast_0.1.0_x86_64_unknown_linux_gnu is loaded, by process 12, since\n  \
             2023-11-14T22:13:20Z.",
            "Since it was loaded: 0 graces ended in time and 3 at the cap,",
            "Last end: holdfast?[2J at 2020-09-13T12:26:40Z, runnable task stall: qemu[12]",
            "Not known: needs root.",
            "Checks fail: kvm.",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.lines().count() <= 24, "{text}");
    }

    #[test]
    fn what_is_not_known_is_absent_from_the_json() {
        let json = serde_json::to_value(status()).unwrap();
        assert_eq!(json["scheduler"]["pid"], 12);
        assert_eq!(json["unobserved"], "needs root");
        for (of, key) in [(&json, "sample"), (&json, "at_rest"), (&json["scheduler"], "recent")] {
            assert!(of.get(key).is_none(), "{key}: {json}");
        }
    }

    #[test]
    fn a_scheduler_that_the_kernel_ended_needs_attention_until_one_is_loaded() {
        let host = Host::at("/nonexistent", Default::default());
        let mut scheduler = status().scheduler;
        let has = |scheduler: &Scheduler| {
            let all = attention(&host, scheduler, None, None);
            all.iter().any(|line| line.starts_with("The kernel ended"))
        };
        assert!(!has(&scheduler));
        scheduler.loaded = None;
        assert!(has(&scheduler));
        let exit = scheduler.last_exit.as_mut().unwrap();
        (exit.reason, exit.message) = ("unregistered from user space".into(), None);
        assert!(!has(&scheduler));
    }
}
