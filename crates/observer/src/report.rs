// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast report`: a table at intervals, or the same as JSON Lines.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant, UNIX_EPOCH};

use holdfast_bpf::{BtfFiles, Tier};
use holdfast_checks::columns;
use holdfast_policy::VcpuClass;

use crate::error::ObserverError;
use crate::histogram::{Histogram, time};
use crate::observer::{Observer, Options, Storage};
use crate::output::{fill, missing, show};
use crate::sample::{Cost, Counters, Sample, Times, VmSample};
use crate::select::Selection;
use crate::serve::Tagged;
use crate::stop;
use crate::takers;

/// Schema tag of a line of the report in JSON.
const SCHEMA: &str = "holdfast.report/1";

/// Longest wait for reports of vCPUs, so that Ctrl-C is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The form of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// A table.
    #[default]
    Text,
    /// JSON Lines.
    Json,
    /// Comma-separated values, a line for each VM.
    Csv,
}

/// Options of a report.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Time between two reports.
    pub interval: Duration,
    /// Number of reports; until interrupted if None.
    pub count: Option<u64>,
    /// Do not say what is watched.
    pub quiet: bool,
    /// Its form.
    pub format: Format,
    /// The VMs that it shows.
    pub selection: Selection,
    /// Also a line for each vCPU.
    pub vcpus: bool,
    /// Histograms of the off-CPU time of lock holders after each table.
    pub histogram: bool,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// BTF of guest kernels, for guests that have none in memory.
    pub btf: Vec<BtfFiles>,
}

impl Report {
    /// Reports until the count is reached or a signal ends it.
    pub fn run(&self) -> Result<(), ObserverError> {
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, ..Options::COUNTERS };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;
        stop::on_signals()?;
        observer.settle()?;
        let mut out = io::stdout().lock();
        let written = |source| ObserverError::Io { action: "write the report", source };
        if self.format == Format::Text && !self.quiet {
            let first = format!(
                "Watching vCPUs lose their CPUs, every {:?}. Ctrl-C ends it.\n",
                self.interval
            );
            show(&mut out, &first)?;
        }
        if self.format == Format::Csv {
            show(&mut out, &csv_line(CSV_COLUMNS))?;
        }
        let mut before = observer.sample()?;
        let mut due = Instant::now() + self.interval;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            let wait = due.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
            if wait > Duration::ZERO && !stop::is_asked() {
                observer.poll(wait)?;
                continue;
            }
            observer.poll(Duration::ZERO)?;
            let now = observer.sample()?;
            let mut sample = now.since(&before);
            self.selection.apply(&mut sample);
            let text = self.render(&sample);
            show(&mut out, &text.map_err(written)?)?;
            if stop::is_asked() {
                break;
            }
            before = now;
            // After a stop of this process, the missed intervals become one.
            due = (due + self.interval).max(Instant::now());
            left -= 1;
        }
        Ok(())
    }

    /// One report of these VMs in the wanted form.
    pub(crate) fn render(&self, sample: &Sample) -> io::Result<String> {
        match self.format {
            Format::Text => Ok(self.table(sample)),
            Format::Json => {
                let line = Tagged { schema: SCHEMA, sample };
                serde_json::to_string(&line).map(|line| line + "\n").map_err(io::Error::from)
            }
            Format::Csv => Ok(sample.vms.iter().map(|vm| csv_row(sample, vm)).collect()),
        }
    }

    /// One table, as wide as the terminal and at most 79 columns.
    pub fn table(&self, sample: &Sample) -> String {
        self.table_within(sample, columns())
    }

    fn table_within(&self, sample: &Sample, columns: usize) -> String {
        let shown = Shown::within(columns);
        let mut text = String::new();
        if sample.vms.is_empty() {
            let none = "No vCPU ran: there is no VM, or all of them are idle.";
            text.push_str(&format!("\n{}", fill(none)));
        } else {
            text.push_str(&format!("\n{}\n", shown.groups(&when(sample.t_ns))));
            text.push_str(&shown.line(COLUMNS.map(|column| column.title.to_owned())));
        }
        for vm in &sample.vms {
            let seconds = sample.seconds();
            let of_vm = cells(&vm.label(), &vm.total(), vm.is_readable(), seconds);
            text.push_str(&shown.line(of_vm));
            for vcpu in vm.vcpus.iter().filter(|_| self.vcpus) {
                let label = format!("  vCPU {}", vcpu.vcpu);
                let of_vcpu = cells(&label, &vcpu.counters, vcpu.readable, seconds);
                text.push_str(&shown.line(of_vcpu));
            }
            let is_exact = vm.is_readable() && vm.guest.tier != Some(Tier::Queue);
            if let (false, Some(why)) = (is_exact, vm.guest.why()) {
                let what = match vm.guest.tier {
                    Some(tier @ (Tier::Irql | Tier::Queue)) => format!("tier {}", tier.name()),
                    _ => "not readable".into(),
                };
                text.push_str(&fill(&format!("  {what}: {why}")));
            }
            if vm.ended {
                text.push_str("  It ended meanwhile: its rates are over all of the time.\n");
            }
            text.push_str(&rest(&vm.total(), vm.is_readable(), seconds));
            text.push_str(&taken_by(vm, seconds));
        }
        if let Some(left_out) = shown.left_out().filter(|_| !sample.vms.is_empty()) {
            text.push_str(&fill(&format!("The terminal is too narrow for {left_out}.")));
        }
        if self.histogram {
            text.push_str(&histograms(&sample.vms));
        }
        if sample.lost_events > 0 {
            text.push_str(&missing(sample.lost_events, "event"));
        }
        text
    }
}

/// The columns of the report as comma-separated values. A value that is not known is empty.
pub(crate) const CSV_COLUMNS: [&str; 14] = [
    "time",
    "vm",
    "pid",
    "cpu_percent",
    "steal_percent",
    "preemptions_per_second",
    "holder_preemptions_per_second",
    "head_preemptions_per_second",
    "holder_offcpu_p99_seconds",
    "lock_wait_percent",
    "lhp_percent",
    "pause_exits_per_second",
    "clock_samples",
    "host",
];

/// A line of comma-separated values.
pub(crate) fn csv_line(values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer.write_record(values).ok().and_then(|()| writer.into_inner().ok());
    String::from_utf8(written.expect("memory takes everything")).expect("the values are text")
}

fn csv_row(sample: &Sample, vm: &VmSample) -> String {
    let (c, seconds) = (vm.total(), sample.seconds());
    let some = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let rate = |count: u64| count as f64 / seconds;
    let percent = |ns: u64| ns as f64 / seconds / 1e7;
    let known = |count| (vm.is_readable() && c.tells_classes()).then(|| rate(count));
    let p99 = c.offcpu_hist[VcpuClass::Holder].quantile_bound_ns(0.99);
    csv_line([
        when(sample.t_ns),
        vm.label(),
        vm.pid.to_string(),
        some(c.times.map(|times| percent(times.run_ns))),
        some(c.times.map(|times| percent(times.steal_ns))),
        some(Some(rate(c.preemptions.total()))),
        some(known(c.preemptions[VcpuClass::Holder]).and_then(|rate| c.of_holders(rate))),
        some(known(c.preemptions[VcpuClass::Head])),
        p99.map_or_else(String::new, |ns| (ns / 1e9).to_string()),
        some(c.cost().map(|cost| cost.waiting * 100.0)),
        some(c.cost().and_then(|cost| Some(cost.lost()? * 100.0))),
        some(c.kvm.map(|kvm| rate(kvm.pause_exits))),
        c.cost().map_or_else(String::new, |cost| cost.samples.to_string()),
        sample.host.clone().unwrap_or_default(),
    ])
}

/// Events per second.
fn per_second(count: u64, seconds: f64) -> String {
    let rate = count as f64 / seconds;
    if rate < 99.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Counters of a VM that have no column, if they are not zero. Counters that were not measured are
/// left out.
fn rest(c: &Counters, readable: bool, seconds: f64) -> String {
    let rate = |count| per_second(count, seconds);
    let average = |sum: u64, of: u64| sum as f64 / of.max(1) as f64;
    let mut parts = Vec::new();
    if readable && c.lock_halts > 0 {
        let each = time(average(c.lock_halt_ns, c.lock_halts) as u64);
        parts.push(format!("{} lock halts of {each}", rate(c.lock_halts)));
    }
    if let Some(kvm) = c.kvm.filter(|kvm| kvm.kicks > 0) {
        parts.push(format!("{} kicks", rate(kvm.kicks)));
    }
    if let Some(kvm) = c.kvm.filter(|kvm| kvm.yields_tried > 0) {
        let (done, tried) = (rate(kvm.yields_done), rate(kvm.yields_tried));
        parts.push(format!("{done} of {tried} directed yields"));
    }
    let mut text = String::new();
    if !parts.is_empty() {
        text.push_str(&fill(&format!("  per second: {}", parts.join(", "))));
    }
    if readable && c.resumed > 0 && c.siblings_waiting > 0 {
        let waited = average(c.siblings_waiting, c.resumed);
        text.push_str(&fill(&format!(
            "  siblings that waited when a holder or next owner came back: {waited:.1} on average"
        )));
    }
    text
}

/// What took the CPU of a VM's vCPUs, if they lost more than 1 % of one CPU.
fn taken_by(vm: &VmSample, seconds: f64) -> String {
    const MOST: usize = 4;
    let names = takers::by_name(&vm.takers);
    let all: u64 = names.iter().map(|(_, taken)| taken.offcpu_ns).sum();
    if (all as f64) < seconds * 1e7 {
        return String::new();
    }
    let percent = |ns: u64| format!("{:.0} %", ns as f64 * 100.0 / all as f64);
    let mut parts: Vec<_> = names
        .iter()
        .take(MOST)
        .map(|(name, taken)| format!("{name} {}", percent(taken.offcpu_ns)))
        .collect();
    let others = names.iter().skip(MOST).map(|(_, taken)| taken.offcpu_ns).sum::<u64>();
    if others > 0 {
        parts.push(format!("others {}", percent(others)));
    }
    fill(&format!("  CPU taken by: {}", parts.join(", ")))
}

/// A column of the table.
#[derive(Clone, Copy)]
struct TableColumn {
    title: &'static str,
    width: usize,
    /// Columns of one group stand together, below its heading.
    group: usize,
    /// Columns of higher ranks are left out first where there is no room.
    rank: u8,
}

const COLUMNS: [TableColumn; 10] = {
    const fn column(title: &'static str, width: usize, group: usize, rank: u8) -> TableColumn {
        TableColumn { title, width, group, rank }
    }
    [
        column("VM", 15, 0, 0),
        column("CPU%", 5, 0, 2),
        column("STEAL%", 6, 0, 5),
        column("PREEMP", 6, 1, 6),
        column("HOLDER", 6, 1, 3),
        column("HEAD", 5, 1, 7),
        column("p99", 6, 1, 4),
        column("WAIT%", 5, 2, 2),
        column("LHP%", 5, 2, 1),
        column("PLE/s", 5, 3, 8),
    ]
};

/// Between two groups.
const RULE: &str = " | ";

/// The columns that a terminal has room for.
struct Shown(Vec<usize>);

impl Shown {
    fn within(columns: usize) -> Self {
        let mut shown = Self((0..COLUMNS.len()).collect());
        while shown.width() > columns && shown.0.len() > 1 {
            let last = shown.0.iter().copied().max_by_key(|column| COLUMNS[*column].rank);
            shown.0.retain(|column| Some(*column) != last);
        }
        shown
    }

    /// The groups, as columns of each.
    fn by_group(&self) -> impl Iterator<Item = &[usize]> {
        self.0.chunk_by(|a, b| COLUMNS[*a].group == COLUMNS[*b].group)
    }

    fn width_of(group: &[usize]) -> usize {
        group.iter().map(|column| COLUMNS[*column].width + 1).sum::<usize>() - 1
    }

    fn width(&self) -> usize {
        self.by_group().map(|group| Self::width_of(group) + RULE.len()).sum::<usize>() - RULE.len()
    }

    /// The headings of groups; `first` is that of the first.
    fn groups(&self, first: &str) -> String {
        let headings = self.by_group().map(|group| {
            let width = Self::width_of(group);
            match COLUMNS[group[0]].group {
                0 => format!("{first:<width$}"),
                1 if width < 11 => format!("{:^width$}", "per s"),
                1 if width < 22 => format!("{:^width$}", "preempted/s"),
                1 => format!("{:^width$}", "preemptions per second"),
                2 if width < 9 => format!("{:^width$}", "wait"),
                2 => format!("{:^width$}", "lock wait"),
                _ => String::new(),
            }
        });
        headings.collect::<Vec<_>>().join(RULE).trim_end().to_owned()
    }

    fn line(&self, cells: [String; COLUMNS.len()]) -> String {
        let cell = |column: &usize| match COLUMNS[*column].width {
            width if *column == 0 => format!("{:<width$}", cells[*column]),
            width => format!("{:>width$}", cells[*column]),
        };
        let group = |group: &[usize]| group.iter().map(cell).collect::<Vec<_>>().join(" ");
        self.by_group().map(group).collect::<Vec<_>>().join(RULE) + "\n"
    }

    /// The columns that there is no room for.
    fn left_out(&self) -> Option<String> {
        let is_out = |column: &usize| !self.0.contains(column);
        let titles = (0..COLUMNS.len()).filter(is_out).map(|column| COLUMNS[column].title);
        let titles: Vec<_> = titles.collect();
        (!titles.is_empty()).then(|| titles.join(", "))
    }
}

fn cells(label: &str, c: &Counters, readable: bool, seconds: f64) -> [String; COLUMNS.len()] {
    let rate = |count| per_second(count, seconds);
    // A value that is not known is not zero.
    let known = |text: String| if readable && c.tells_classes() { text } else { "-".into() };
    let percent = |ns: u64| format!("{:.0}", ns as f64 / seconds / 1e7);
    let timed = |of: fn(Times) -> u64| c.times.map_or("-".into(), |times| percent(of(times)));
    let share = |of| c.share(of).unwrap_or("-".into());
    let holders = c.offcpu_hist[VcpuClass::Holder];
    [
        shorten(label),
        timed(|times| times.run_ns),
        timed(|times| times.steal_ns),
        rate(c.preemptions.total()),
        c.of_holders(known(rate(c.preemptions[VcpuClass::Holder]))).unwrap_or("-".into()),
        known(rate(c.preemptions[VcpuClass::Head])),
        holders.quantile(0.99),
        share(|cost| Some(cost.waiting)),
        share(Cost::lost),
        c.kvm.map_or("-".into(), |kvm| rate(kvm.pause_exits)),
    ]
}

/// A time in 20 characters.
pub(crate) fn when(t_ns: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(t_ns)).to_string()
}

/// A name in at most 15 characters: its beginning and its end, because names of a fleet differ at
/// the end.
pub(crate) fn shorten(name: &str) -> String {
    match name.chars().count() {
        0..=15 => name.to_owned(),
        n => name.chars().take(6).chain(['+']).chain(name.chars().skip(n - 8)).collect(),
    }
}

fn histograms(vms: &[VmSample]) -> String {
    let mut text = String::new();
    for vm in vms.iter().filter(|vm| vm.is_readable()) {
        let total = vm.total();
        let parts: [(&Histogram, &str); 2] = [
            (&total.offcpu_hist[VcpuClass::Holder], "lock holders (LHP)"),
            (&total.offcpu_hist[VcpuClass::Head], "next owners (LWP)"),
        ];
        for (histogram, what) in parts.into_iter().filter(|(histogram, _)| histogram.count() > 0) {
            let _ = writeln!(text, "\n{}: off-CPU time of preempted {what}", shorten(&vm.label()));
            text.push_str(&histogram.render());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::NR_SLOTS;
    use crate::sample::tests::sample;
    use crate::select::{Column, Wanted};
    use crate::takers::{Taken, Taker, TakerKind};

    const REPORT: Report = Report {
        interval: Duration::from_secs(1),
        count: None,
        quiet: false,
        format: Format::Text,
        selection: Selection { vms: Wanted(Vec::new()), sort: Column::Lost, top: None },
        vcpus: true,
        histogram: true,
        frequency_hz: 99,
        btf: Vec::new(),
    };

    fn table(sample: &Sample) -> String {
        REPORT.table_within(sample, 79)
    }

    #[test]
    fn a_narrow_terminal_shows_what_matters_most_and_says_what_is_missing() {
        let sample = sample(2_000_000_000, 7, 100_000);
        for width in 30..79 {
            let text = REPORT.table_within(&sample, width);
            let table = text.lines().take_while(|line| !line.starts_with("The terminal"));
            assert!(table.clone().all(|line| line.chars().count() <= width), "{width}: {text}");
            let row = table.clone().find(|line| line.starts_with("web")).unwrap();
            assert!(row.contains("12.5"), "LHP% {width}: {text}");
            let note = text.split_once("too narrow for ").unwrap().1.split('.').next().unwrap();
            let note = note.replace("\n    ", " ");
            assert!(note.contains("PLE/s"), "{width}: {text}");
            let heads = table.clone().nth(2).unwrap();
            let named = heads.split_whitespace().filter(|word| *word != "|").count();
            assert_eq!(named + note.split(", ").count(), COLUMNS.len(), "{width}: {text}");
        }
        assert_eq!(Shown::within(79).left_out(), None);
    }

    #[test]
    fn comma_separated_values_have_all_columns_and_nothing_for_what_is_not_known() {
        let csv = Report { format: Format::Csv, ..REPORT };
        let mut all = sample(2_000_000_000, 7, 100);
        all.vms[0].name = Some("a, \"b\"".into());
        all.host = Some("here".into());
        let line = csv.render(&all).unwrap();
        let expected = "1970-01-01T00:00:02Z,\"a, \"\"b\"\"\",7,0.005,0.000,50.000,50.000,0.000,\
                        0.002097152,25.000,12.500,50.000,800,here\n";
        assert_eq!(line, expected);
        let counters = &mut all.vms[0].vcpus[0];
        counters.readable = false;
        (counters.counters.times, counters.counters.clock) = (None, None);
        counters.counters.kvm = None;
        counters.counters.offcpu_hist = Default::default();
        // The last slot has no end.
        counters.counters.offcpu_hist.0[VcpuClass::Holder as usize].0[NR_SLOTS - 1] = 1;
        all.host = None;
        let line = csv.render(&all).unwrap();
        assert!(line.ends_with(",7,,,50.000,,,inf,,,,,\n"), "{line}");
        assert_eq!(csv_line(CSV_COLUMNS).matches(',').count(), line.matches(',').count() - 1);
    }

    #[test]
    fn every_line_fits_a_terminal() {
        let mut sample = sample(2_000_000_000, 7, 100_000);
        sample.vms[0].name = Some("a-name-that-is-longer-than-its-column".into());
        sample.lost_events = 3;
        let counters = &mut sample.vms[0].vcpus[0].counters;
        (counters.lock_halts, counters.lock_halt_ns) = (1_000_000_000, u64::MAX);
        (counters.resumed, counters.siblings_waiting) = (1, 1_000_000_000);
        let kvm = counters.kvm.as_mut().unwrap();
        (kvm.kicks, kvm.yields_tried, kvm.yields_done) = (1 << 40, 1 << 40, 1 << 40);
        sample.vms.push(sample.vms[0].clone());
        sample.vms[1].vcpus[0].readable = false;
        sample.vms[1].guest.unreadable = Some("word ".repeat(20) + &"long".repeat(20));
        let text = table(&sample);
        // A word that is longer than a line stays whole.
        let fits = |line: &str| line.chars().count() < 80 || !line.trim().contains(' ');
        assert!(text.lines().all(fits), "{text}");
        assert_eq!(text.matches("word").count(), 20, "{text}");
        assert!(text.contains("a-name+s-column") && text.contains("vCPU 0"), "{text}");
        assert!(text.contains("50000") && text.contains("25.0") && text.contains("12.5"), "{text}");
        assert!(text.contains("LOST: 3 events"), "{text}");
    }

    #[test]
    fn a_vm_that_has_ended_is_marked() {
        let mut sample = sample(2_000_000_000, 7, 10);
        assert!(!table(&sample).contains("ended"));
        sample.vms[0].ended = true;
        assert!(table(&sample).contains("It ended meanwhile"));
        assert_eq!(serde_json::to_value(&sample).unwrap()["vms"][0]["ended"], true);
    }

    #[test]
    fn counters_without_a_column_are_listed_below_their_vm() {
        let mut sample = sample(2_000_000_000, 7, 10);
        let told = ["per second:", "siblings that waited"];
        let text = table(&sample);
        assert!(told.iter().all(|what| !text.contains(what)), "{text}");
        let counters = &mut sample.vms[0].vcpus[0].counters;
        (counters.lock_halts, counters.lock_halt_ns) = (40, 80_000_000);
        (counters.resumed, counters.siblings_waiting) = (10, 25);
        let kvm = counters.kvm.as_mut().unwrap();
        (kvm.kicks, kvm.yields_tried, kvm.yields_done) = (30, 500, 1);
        let text = table(&sample);
        for line in [
            "  per second: 20.0 lock halts of 2.0ms, 15.0 kicks, 0.5 of 250 directed yields",
            "  siblings that waited when a holder or next owner came back: 2.5 on average",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}: {text}");
        }
        // A replay has no counters of KVM, and an unreadable guest has only these.
        let mut replayed = sample.clone();
        replayed.vms[0].vcpus[0].counters.kvm = None;
        let text = table(&replayed);
        assert!(text.contains("lock halts") && !text.contains("kicks"), "{text}");
        sample.vms[0].vcpus[0].readable = false;
        let text = table(&sample);
        assert!(text.contains("per second: 15.0 kicks, ") && !text.contains(told[1]), "{text}");
        assert!(!text.contains("halts"), "{text}");
    }

    #[test]
    fn what_took_the_cpu_is_said_of_vms_that_lost_some() {
        let mut sample = sample(2_000_000_000, 7, 10);
        let taken = |offcpu_ns| Taken { preemptions: 1, offcpu_ns, protected_offcpu_ns: 0 };
        let of = |kind, name: Option<&str>, ns| Taker {
            kind,
            pid: None,
            name: name.map(str::to_owned),
            taken: taken(ns),
        };
        sample.vms[0].takers = vec![
            of(TakerKind::Vm, Some("db"), 12_000_000),
            of(TakerKind::Idle, None, 5_000_000),
            of(TakerKind::Process, Some("cc1"), 2_000_000),
            of(TakerKind::Own, None, 700_000),
            of(TakerKind::Kernel, None, 300_000),
        ];
        let line = "  CPU taken by: db 60 %, nobody (throttled, or moved) 25 %, cc1 10 %, its own \
                    threads 4 %, others 2 %";
        let text = table(&sample);
        assert!(text.replace("\n    ", " ").contains(line), "{text}");
        let json = serde_json::to_value(&sample).unwrap();
        assert_eq!(json["vms"][0]["takers"][1]["kind"], "idle");
        assert_eq!(json["vms"][0]["takers"][0]["offcpu_ns"], 12_000_000);
        let again: Sample = serde_json::from_value(json).unwrap();
        assert_eq!(again.vms[0].takers, sample.vms[0].takers);
        sample.vms[0].takers.truncate(1);
        // 1 % of two seconds.
        let mut with = |offcpu_ns| {
            sample.vms[0].takers[0].taken = taken(offcpu_ns);
            table(&sample)
        };
        assert!(with(20_000_000).contains("db 100 %"));
        assert!(!with(19_000_000).contains("CPU taken by"));
    }

    #[test]
    fn values_that_are_not_known_are_not_zero() {
        let mut sample = sample(2_000_000_000, 7, 0);
        sample.vms[0].vcpus[0].readable = false;
        sample.vms[0].guest.unreadable = Some("its memory is encrypted".into());
        let text = table(&sample);
        let row = text.lines().find(|line| line.starts_with("web")).unwrap();
        assert!(row.matches(" - ").count() >= 5, "{row}");
        assert!(text.contains("not readable: its memory is encrypted"), "{text}");
        // The guest is readable by now, but nothing is known of the time before.
        let mut booting = sample.clone();
        booting.vms[0].vcpus[0].readable = true;
        booting.vms[0].vcpus[0].counters = Counters::default();
        booting.vms[0].vcpus[0].counters.preemptions.0[VcpuClass::Unknown as usize] = 842;
        let text = table(&booting);
        let row = text.lines().find(|line| line.starts_with("web")).unwrap();
        assert!(row.contains(" 421      -     -      - |     -     - |"), "{row}");
        sample.vms.clear();
        assert!(table(&sample).contains("No vCPU ran"));
    }
}
