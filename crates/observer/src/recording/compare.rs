// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast compare`: what changed between two times, per VM and in total.
//!
//! Each time is cut into windows, and both are resampled apart ([`holdfast_stats::change`]). Rates
//! are per vCPU-second: a second in which a vCPU exists.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write as _};
use std::path::PathBuf;

use holdfast_policy::VcpuClass;
use holdfast_stats::{Change, Settings, change};

use super::compare_text as text;
use super::replay::write_file;
use super::sources::{Input, Source, sources};
use super::{Event, Note, RecordedVm, Recording};
use crate::error::ObserverError;
use crate::output::show;
use crate::report::Format;
use crate::sample::Holders;
use crate::select::Wanted;

const SECOND_NS: i64 = 1_000_000_000;

/// Lengths of windows, in seconds.
const WINDOWS_S: [i64; 14] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];

/// As many windows as a time has at most, of the shorter ones. More would be more alike.
const MAX_WINDOWS: i64 = 60;

/// Off-CPU times below which their 99th percentile is one of the longest, and has no interval.
const MIN_FOR_P99: u64 = 200;

/// Options of a comparison.
#[derive(Debug, Clone)]
pub struct Compare {
    /// The recordings before.
    pub before: Input,
    /// The recordings after.
    pub after: Input,
    /// The form of what is printed.
    pub format: Format,
    /// The VMs that are compared.
    pub vms: Wanted,
    /// Write the comparison as a page to this file.
    pub html: Option<PathBuf>,
}

impl Compare {
    /// Prints what changed.
    pub fn run(&self) -> Result<(), ObserverError> {
        let [before, after] = [&self.before, &self.after].map(|input| Side::read(input, &self.vms));
        let compared = Compared::of(before?, after?)?;
        if let Some(path) = &self.html {
            let page = text::page(&compared);
            write_file(path, "write the report", |out| out.write_all(page.as_bytes()))?;
        }
        let written = |source| ObserverError::Io { action: "write the report", source };
        let text = match self.format {
            Format::Text => text::table(&compared),
            Format::Json => text::json(&compared).map_err(written)?,
            Format::Csv => text::csv(&compared),
        };
        show(&mut io::stdout(), &text)
    }
}

/// Off-CPU times, in slots of a thirty-second of a power of two.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Times(BTreeMap<u16, u64>);

impl Times {
    const SLOTS_LOG2: u32 = 5;

    fn add(&mut self, ns: u64) {
        let ns = ns.max(1);
        let power = ns.ilog2();
        let within = match power.checked_sub(Self::SLOTS_LOG2) {
            Some(shift) => ns >> shift,
            None => ns << (Self::SLOTS_LOG2 - power),
        };
        let slot = u64::from(power << Self::SLOTS_LOG2) + (within & ((1 << Self::SLOTS_LOG2) - 1));
        *self.0.entry(slot as u16).or_default() += 1;
    }

    /// The middle of a slot.
    fn ns(slot: u16) -> f64 {
        let (power, within) = (slot >> Self::SLOTS_LOG2, slot & ((1 << Self::SLOTS_LOG2) - 1));
        let slots = f64::from(1u32 << Self::SLOTS_LOG2);
        f64::from(power).exp2() * (1.0 + (f64::from(within) + 0.5) / slots)
    }
}

/// What happened in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Window {
    vcpu_s: f64,
    /// Preempted holders, if they are told from others.
    holders: Option<Times>,
    longest_holder_ns: i64,
    /// Off-CPU time of preempted holders, next owners and vCPUs in interrupts.
    lost_ns: f64,
}

impl Window {
    fn add(&mut self, note: &Note) {
        let ns = note.end_ns - note.begin_ns;
        if note.event != Event::Preempted || !note.class.is_protected() {
            return;
        }
        self.lost_ns += ns as f64;
        if let (VcpuClass::Holder, Some(holders)) = (note.class, &mut self.holders) {
            holders.add(ns.max(0) as u64);
            self.longest_holder_ns = self.longest_holder_ns.max(ns);
        }
    }

    /// Adds a window of the same time.
    fn merge(&mut self, other: &Self) {
        self.vcpu_s += other.vcpu_s;
        self.lost_ns += other.lost_ns;
        self.longest_holder_ns = self.longest_holder_ns.max(other.longest_holder_ns);
        if let (Some(all), Some(more)) = (&mut self.holders, &other.holders) {
            for (slot, count) in &more.0 {
                *all.0.entry(*slot).or_default() += count;
            }
        }
    }
}

/// Per vCPU-second; none of no time.
fn rate(windows: &[&Window], of: impl Fn(&Window) -> f64) -> Option<f64> {
    let vcpu_s: f64 = windows.iter().map(|window| window.vcpu_s).sum();
    let sum: f64 = windows.iter().map(|window| of(window)).sum();
    (vcpu_s > 0.0).then(|| sum / vcpu_s)
}

fn nr_holders(windows: &[&Window]) -> u64 {
    let holders = windows.iter().filter_map(|window| window.holders.as_ref());
    holders.flat_map(|times| times.0.values()).sum()
}

/// 99th percentile in seconds; none of no off-CPU times.
fn p99_s(windows: &[&Window]) -> Option<f64> {
    let mut all: HashMap<u16, u64> = HashMap::new();
    for (slot, count) in windows.iter().filter_map(|w| w.holders.as_ref()).flat_map(|t| &t.0) {
        *all.entry(*slot).or_default() += count;
    }
    let mut all: Vec<(u16, u64)> = all.into_iter().collect();
    all.sort_unstable();
    let wanted = all.iter().map(|(_, count)| count).sum::<u64>() as f64 * 0.99;
    let mut below = 0;
    all.into_iter().find_map(|(slot, count)| {
        below += count;
        (below as f64 >= wanted).then(|| Times::ns(slot) / 1e9)
    })
}

/// What identifies a VM in several recordings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Uuid(String),
    Name { host: String, name: String },
    Process { host: String, pid: u32, begin_ns: Option<i64> },
}

impl Key {
    fn of(host: &str, vm: &RecordedVm) -> Self {
        let host = host.to_owned();
        match (&vm.uuid, &vm.name) {
            (Some(uuid), _) => Self::Uuid(uuid.to_ascii_lowercase()),
            (None, Some(name)) => Self::Name { host, name: name.clone() },
            (None, None) => Self::Process { host, pid: vm.process, begin_ns: vm.begin_ns },
        }
    }
}

/// A VM at one of the times.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SideVm {
    pub(super) label: String,
    pub(super) uuid: Option<String>,
    pub(super) hosts: BTreeSet<String>,
    vcpus: HashSet<u32>,
    /// Is its kernel read, and are holders told from others in it?
    is_read: bool,
    tells_holders: bool,
    /// By number since 1970. Until the end of reading, `vcpu_s` are seconds.
    windows: BTreeMap<i64, Window>,
}

/// The recordings of one of the times.
pub(super) struct Side {
    pub(super) hosts: Vec<String>,
    pub(super) begin_ns: i64,
    pub(super) end_ns: i64,
    /// Of the host that was recorded for longest.
    pub(super) recorded_ns: i64,
    pub(super) window_ns: i64,
    pub(super) files: usize,
    pub(super) lost_events: u64,
    vms: BTreeMap<Key, SideVm>,
}

impl Side {
    fn read(input: &Input, wanted: &Wanted) -> Result<Self, ObserverError> {
        let hosts = sources(std::slice::from_ref(input))?;
        let all = || hosts.values().flatten().map(|source| &source.about);
        let length = |sources: &Vec<Source>| {
            sources.iter().map(|source| source.about.end_ns - source.about.begin_ns).sum::<i64>()
        };
        let recorded_ns = hosts.values().map(length).max().unwrap_or(0);
        let mut side = Self {
            hosts: hosts.values().map(|of| of[0].about.host_name().to_owned()).collect(),
            begin_ns: all().map(|about| about.begin_ns).min().unwrap_or(0),
            end_ns: all().map(|about| about.end_ns).max().unwrap_or(0),
            recorded_ns,
            window_ns: window_ns(recorded_ns),
            files: 0,
            lost_events: 0,
            vms: BTreeMap::new(),
        };
        for source in hosts.values().flatten() {
            if let Some(recording) = source.read()? {
                side.add(&recording, wanted);
            }
        }
        wanted.check(
            all()
                .flat_map(|about| &about.vms)
                .map(|vm| (vm.process, vm.name.as_deref(), vm.uuid.as_deref())),
            "in the recording",
        )?;
        side.complete();
        Ok(side)
    }

    fn add(&mut self, recording: &Recording, wanted: &Wanted) {
        let Recording { about, notes } = recording;
        self.files += 1;
        self.lost_events += about.lost_events;
        let mut keys = HashMap::new();
        for vm in &about.vms {
            if !wanted.has(vm.process, vm.name.as_deref(), vm.uuid.as_deref()) {
                continue;
            }
            let key = Key::of(&about.host, vm);
            let known = self.vms.entry(key.clone()).or_insert_with(|| SideVm {
                label: vm.label(),
                uuid: vm.uuid.clone(),
                hosts: BTreeSet::new(),
                vcpus: HashSet::new(),
                is_read: false,
                tells_holders: true,
                windows: BTreeMap::new(),
            });
            known.label = vm.label();
            known.hosts.insert(about.host_name().to_owned());
            known.is_read |= vm.guest.is_read();
            known.tells_holders &=
                !vm.guest.is_read() || Holders::of(vm.guest.tier) == Holders::Told;
            let last_ns = notes.iter().filter(|n| n.vm == vm.pid).map(|n| n.end_ns).max();
            let until_ns = match (vm.ended, last_ns) {
                (false, _) => about.end_ns,
                (true, last_ns) => last_ns.unwrap_or(about.begin_ns).min(about.end_ns),
            };
            let since_ns = vm.begin_ns.unwrap_or(about.begin_ns).max(about.begin_ns);
            exists(known, since_ns, until_ns, self.window_ns);
            keys.insert(vm.pid, key);
        }
        let window_ns = self.window_ns;
        for note in notes {
            let Some(vm) = keys.get(&note.vm).and_then(|key| self.vms.get_mut(key)) else {
                continue;
            };
            vm.vcpus.insert(note.vcpu);
            let at = note.end_ns.clamp(about.begin_ns, about.end_ns - 1).div_euclid(window_ns);
            vm.windows.entry(at).or_insert_with(window).add(note);
        }
    }

    /// Makes vCPU-seconds of seconds, once it is known how many vCPUs there are.
    fn complete(&mut self) {
        for vm in self.vms.values_mut() {
            let vcpus = vm.vcpus.len() as f64;
            for window in vm.windows.values_mut() {
                window.vcpu_s *= vcpus;
                window.holders.take_if(|_| !vm.tells_holders);
            }
        }
    }
}

/// An empty one.
fn window() -> Window {
    Window { holders: Some(Times::default()), ..Window::default() }
}

/// Adds a time in which a VM existed to its windows.
fn exists(vm: &mut SideVm, mut from_ns: i64, to_ns: i64, window_ns: i64) {
    while from_ns < to_ns {
        let at = from_ns.div_euclid(window_ns);
        let part_ns = ((at + 1) * window_ns).min(to_ns) - from_ns;
        vm.windows.entry(at).or_insert_with(window).vcpu_s += part_ns as f64 / SECOND_NS as f64;
        from_ns += part_ns;
    }
}

/// The shortest windows of which there are not too many.
fn window_ns(recorded_ns: i64) -> i64 {
    let fits = |s: &&i64| recorded_ns / (**s * SECOND_NS) <= MAX_WINDOWS;
    WINDOWS_S.iter().find(fits).unwrap_or(&WINDOWS_S[WINDOWS_S.len() - 1]) * SECOND_NS
}

/// What changed for a VM, or for all of them. A figure that is not known is none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// Preempted lock holders per vCPU-second.
    pub(super) holders: Option<Change>,
    /// Seconds per vCPU-second that preempted holders, next owners and vCPUs in interrupts were off
    /// their CPUs.
    pub(super) lost: Option<Change>,
    /// 99th percentile of the off-CPU time of preempted holders, in seconds.
    pub(super) p99_s: Option<Change>,
    /// The longest, in seconds. A longest one has no interval.
    pub(super) worst_s: Option<(f64, f64)>,
}

impl Row {
    fn of(before: &[Window], after: &[Window], settings: &Settings) -> Self {
        let change =
            |figure: &dyn Fn(&[&Window]) -> Option<f64>| change(before, after, figure, settings);
        let tells = [before, after]
            .iter()
            .all(|windows| windows.iter().all(|window| window.holders.is_some()));
        let holders_of =
            |window: &Window| window.holders.iter().flat_map(|t| t.0.values()).sum::<u64>() as f64;
        let counts = [before, after].map(|windows| nr_holders(&windows.iter().collect::<Vec<_>>()));
        let mut p99 = change(&p99_s).filter(|_| tells);
        if counts.iter().any(|count| *count < MIN_FOR_P99)
            && let Some(p99) = &mut p99
        {
            (p99.low, p99.high) = (None, None);
        }
        let longest = |windows: &[Window]| {
            windows.iter().map(|window| window.longest_holder_ns).max().unwrap_or(0) as f64 / 1e9
        };
        Self {
            holders: change(&|windows| rate(windows, holders_of)).filter(|_| tells),
            lost: change(&|windows| rate(windows, |window| window.lost_ns / 1e9)),
            p99_s: p99,
            worst_s: tells.then(|| (longest(before), longest(after))),
        }
    }
}

/// A VM that was there at both times.
pub(super) struct RowVm {
    pub(super) label: String,
    pub(super) uuid: Option<String>,
    pub(super) row: Row,
}

/// What changed between two times.
pub(super) struct Compared {
    pub(super) before: Side,
    pub(super) after: Side,
    pub(super) confidence: f64,
    /// Sums over VMs of both times in which holders are told from others.
    pub(super) total: Option<Row>,
    pub(super) nr_total: usize,
    /// The VM that loses most first.
    pub(super) vms: Vec<RowVm>,
    pub(super) only_before: Vec<String>,
    pub(super) only_after: Vec<String>,
    /// VMs of which nothing is known, or that were idle throughout.
    pub(super) unknown: Vec<String>,
}

impl Compared {
    pub(super) fn of(mut before: Side, mut after: Side) -> Result<Self, ObserverError> {
        let settings = Settings { resamples: 2000, ..Settings::default() };
        let [mut was, mut is] = [&mut before, &mut after].map(|side| std::mem::take(&mut side.vms));
        let pairs = pairs(&mut was, &mut is);
        let labels = |vms: BTreeMap<Key, SideVm>| -> Vec<String> {
            vms.into_values().map(|vm| vm.label).collect()
        };
        let [only_before, only_after] = [was, is].map(labels);
        if pairs.is_empty() {
            return Err(ObserverError::NothingToCompare { before: only_before, after: only_after });
        }
        let is_known = |vm: &SideVm| vm.is_read && !vm.vcpus.is_empty();
        let (known, unknown): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(was, is)| is_known(was) && is_known(is));
        let unknown = unknown.into_iter().map(|(was, _)| was.label).collect();

        let mut totals = [BTreeMap::<i64, Window>::new(), BTreeMap::new()];
        let (mut vms, mut nr_total) = (Vec::new(), 0);
        for (was, is) in known {
            if was.tells_holders && is.tells_holders {
                nr_total += 1;
                for (total, vm) in totals.iter_mut().zip([&was, &is]) {
                    for (at, of_vm) in &vm.windows {
                        total.entry(*at).or_insert_with(window).merge(of_vm);
                    }
                }
            }
            let [before, after] =
                [&was, &is].map(|vm| vm.windows.values().cloned().collect::<Vec<_>>());
            let row = Row::of(&before, &after, &settings);
            vms.push(RowVm { label: is.label, uuid: is.uuid.or(was.uuid), row });
        }
        let loss = |vm: &RowVm| vm.row.lost.map_or(0.0, |lost| lost.before + lost.after);
        vms.sort_by(|a, b| loss(b).total_cmp(&loss(a)).then_with(|| a.label.cmp(&b.label)));
        let [total_before, total_after] =
            totals.map(|windows| windows.into_values().collect::<Vec<_>>());
        let total = (nr_total > 0).then(|| Row::of(&total_before, &total_after, &settings));
        let confidence = settings.confidence;
        Ok(Self {
            before,
            after,
            confidence,
            total,
            nr_total,
            vms,
            only_before,
            only_after,
            unknown,
        })
    }
}

/// Takes the VMs out of both that are the same: by UUID, by host and name, and by a name that only
/// one VM of each has.
fn pairs(was: &mut BTreeMap<Key, SideVm>, is: &mut BTreeMap<Key, SideVm>) -> Vec<(SideVm, SideVm)> {
    let mut pairs = Vec::new();
    let keys: Vec<Key> = was.keys().filter(|key| is.contains_key(key)).cloned().collect();
    for key in keys {
        pairs.extend(was.remove(&key).zip(is.remove(&key)));
    }
    let only_one = |vms: &BTreeMap<Key, SideVm>, label: &str| {
        let mut keys = vms.iter().filter(|(_, vm)| vm.label == label).map(|(key, _)| key);
        let first = keys.next().filter(|key| !matches!(key, Key::Process { .. })).cloned();
        first.filter(|_| keys.next().is_none())
    };
    let labels: BTreeSet<String> = was.values().map(|vm| vm.label.clone()).collect();
    for label in labels {
        if let (Some(a), Some(b)) = (only_one(was, &label), only_one(is, &label)) {
            // Two UUIDs are two VMs.
            if !matches!((&a, &b), (Key::Uuid(_), Key::Uuid(_))) {
                pairs.extend(was.remove(&a).zip(is.remove(&b)));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::tests::{SYNC, recording, writer};
    use super::*;

    const SECONDS: i64 = 60;

    /// A minute that begins so many seconds after the recording of other tests. In each second,
    /// each of two vCPUs is preempted as a holder `holders` times on average, for 1 to 3 ms.
    fn minute(later_s: i64, holders: u32, seed: u64) -> Recording {
        let mut minute = recording();
        let begin_ns = minute.about.begin_ns + later_s * SECOND_NS;
        minute.about.begin_ns = begin_ns;
        minute.about.end_ns = begin_ns + SECONDS * SECOND_NS;
        let note = minute.notes[4];
        assert_eq!((note.event, note.class), (Event::Preempted, VcpuClass::Holder));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut notes = Vec::new();
        for second in 0..SECONDS {
            for vcpu in 0..2 {
                for _ in 0..rng.random_range(0..=2 * holders) {
                    let end_ns =
                        begin_ns + second * SECOND_NS + rng.random_range(3_000_000..SECOND_NS);
                    let begin_ns = end_ns - rng.random_range(1_000_000..3_000_000);
                    notes.push(Note { begin_ns, end_ns, vcpu, ..note });
                }
            }
        }
        notes.sort_by_key(|note| note.end_ns);
        Recording { about: minute.about, notes }
    }

    fn write(dir: &Path, name: &str, recording: &Recording) -> Input {
        let path = dir.join(name);
        let mut writer = writer(&path, SYNC);
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();
        Input::all_of(path)
    }

    fn compared(before: &Input, after: &Input) -> Compared {
        let side = |input| Side::read(input, &Wanted::default()).unwrap();
        Compared::of(side(before), side(after)).unwrap()
    }

    #[test]
    fn fewer_preempted_holders_are_a_decision_and_chance_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let many = write(dir.path(), "many.parquet", &minute(0, 8, 1));
        let again = write(dir.path(), "again.parquet", &minute(100, 8, 2));
        let few = write(dir.path(), "few.parquet", &minute(200, 2, 3));

        let less = compared(&many, &few);
        let said = text::sentence(&less);
        assert!(said.starts_with("1 VM lost 7") && said.contains(" % less time"), "{said}");
        let row = less.total.unwrap();
        let lost = row.lost.unwrap();
        // 2 ms each, 8 and 2 a second.
        assert!((0.014..0.018).contains(&lost.before), "{lost:?}");
        assert!((0.003..0.005).contains(&lost.after), "{lost:?}");
        let holders = row.holders.unwrap();
        assert!(holders.high.unwrap() < 0.5 && holders.low.unwrap() > 0.1, "{holders:?}");
        let p99 = row.p99_s.unwrap();
        assert!((p99.before - 0.003).abs() < 0.0001 && p99.low.is_some(), "{p99:?}");
        assert_eq!(p99.verdict(), holdfast_stats::Verdict::Undecided);
        let (worst, _) = row.worst_s.unwrap();
        assert!(worst < 0.003, "{worst}");

        let said = text::sentence(&compared(&many, &again));
        assert!(said.starts_with("Undecided: 1 VM lost "), "{said}");
        assert!(said.contains("the interval includes no change (95 % interval"), "{said}");
        let said = text::sentence(&compared(&few, &many));
        assert!(said.starts_with("1 VM lost ") && said.contains(" times as much time"), "{said}");
    }

    #[test]
    fn rates_are_per_second_of_each_vcpu_that_existed() {
        let dir = tempfile::tempdir().unwrap();
        let mut started = minute(0, 8, 1);
        let begin_ns = started.about.begin_ns;
        // It was started after 20 s, and one of its vCPUs lost nothing.
        started.about.vms[0].begin_ns = Some(begin_ns + 20 * SECOND_NS);
        started.notes.retain(|note| note.begin_ns > begin_ns + 20 * SECOND_NS);
        started.notes.iter_mut().filter(|n| n.vcpu == 1).for_each(|n| n.event = Event::Sleep);
        let input = write(dir.path(), "a.parquet", &started);
        let holders = started.notes.iter().filter(|note| note.vcpu == 0).count() as f64;
        let before = compared(&input, &input).total.unwrap().holders.unwrap().before;
        assert!((before - holders / 80.0).abs() < 1e-9, "{before}");
    }

    #[test]
    fn two_times_of_one_recording_can_be_compared() {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = minute(0, 8, 1);
        let after = minute(SECONDS, 2, 2);
        whole.notes.extend_from_slice(&after.notes);
        whole.about.end_ns = after.about.end_ns;
        write(dir.path(), "a.parquet", &whole);
        let at = crate::report::when(after.about.begin_ns as u64);
        let input = |range: String| {
            let mut text = OsString::from(dir.path());
            text.push("@");
            text.push(range);
            Input::parse(&text).unwrap()
        };
        let compared = compared(&input(format!("..{at}")), &input(format!("{at}..")));
        let said = text::sentence(&compared);
        assert!(said.contains(" % less time"), "{said}");
        assert_eq!(compared.before.recorded_ns, compared.after.recorded_ns);
    }

    #[test]
    fn a_vm_is_known_again_by_its_uuid_or_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let vm = |name: Option<&str>, uuid: Option<&str>, host: &str| {
            let mut recording = minute(0, 8, 1);
            recording.about.host = host.into();
            let vm = &mut recording.about.vms[0];
            (vm.name, vm.uuid) = (name.map(str::to_owned), uuid.map(str::to_owned));
            write(dir.path(), "x.parquet", &recording)
        };
        let is_same = |a: (Option<&str>, Option<&str>, &str),
                       b: (Option<&str>, Option<&str>, &str)| {
            let before = Side::read(&vm(a.0, a.1, a.2), &Wanted::default()).unwrap();
            let after = Side::read(&vm(b.0, b.1, b.2), &Wanted::default()).unwrap();
            Compared::of(before, after).is_ok()
        };
        assert!(is_same((Some("a"), Some("U1"), "h"), (Some("b"), Some("u1"), "i")));
        assert!(!is_same((Some("a"), Some("u1"), "h"), (Some("a"), Some("u2"), "h")));
        assert!(is_same((Some("a"), None, "h"), (Some("a"), None, "h")));
        assert!(is_same((Some("a"), None, "h"), (Some("a"), None, "i")), "only one has the name");
        assert!(is_same((Some("a"), None, "h"), (Some("a"), Some("u1"), "i")));
        assert!(!is_same((Some("a"), None, "h"), (Some("b"), None, "h")));
        assert!(is_same((None, None, "h"), (None, None, "h")), "the same process");
        assert!(!is_same((None, None, "h"), (None, None, "i")));
    }

    #[test]
    fn what_is_not_known_has_no_figure() {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = minute(0, 8, 1);
        queue.about.vms[0].guest.tier = Some(holdfast_bpf::Tier::Queue);
        let input = write(dir.path(), "queue.parquet", &queue);
        let of_queue = compared(&input, &input);
        let row = &of_queue.vms[0].row;
        assert!(row.lost.is_some() && row.holders.is_none() && row.worst_s.is_none(), "{row:?}");
        assert!(of_queue.total.is_none());
        assert!(text::table(&of_queue).starts_with("Undecided: no VM in which lock holders"));
        let mut dark = minute(0, 8, 1);
        dark.about.vms[0].guest.kernel = None;
        let input = write(dir.path(), "dark.parquet", &dark);
        let of_dark = compared(&input, &input);
        assert_eq!((of_dark.vms.len(), of_dark.unknown), (0, vec!["web <1>".to_owned()]));
        let mut short = minute(0, 8, 1);
        short.about.end_ns = short.about.begin_ns + 4 * SECOND_NS;
        short.notes.retain(|note| note.end_ns < short.about.end_ns);
        let input = write(dir.path(), "short.parquet", &short);
        let said = text::sentence(&compared(&input, &input));
        assert!(said.contains("are too short to tell that from chance"), "{said}");
    }

    #[test]
    fn every_form_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let many = write(dir.path(), "many.parquet", &minute(0, 8, 1));
        let few = write(dir.path(), "few.parquet", &minute(200, 2, 3));
        let compared = compared(&many, &few);
        let table = text::table(&compared);
        assert!(table.lines().all(|line| line.chars().count() < 80), "{table}");
        let json: serde_json::Value =
            serde_json::from_str(&text::json(&compared).unwrap()).unwrap();
        assert_eq!(json["schema"], "holdfast.compare/1");
        assert_eq!(json["verdict"], "less");
        let figure = &json["vms"][0]["figures"]["lost_seconds_per_vcpu_second"];
        let lost = compared.vms[0].row.lost.unwrap();
        assert_eq!(figure["before"].as_f64(), Some(lost.before));
        assert_eq!(figure["high"].as_f64(), lost.high);
        assert_eq!(json["total"]["figures"], json["vms"][0]["figures"], "there is only one VM");
        let worst = &json["vms"][0]["figures"]["holder_offcpu_worst_seconds"];
        assert!(worst["low"].is_null() && worst["verdict"].is_null(), "{worst}");
        let csv = text::csv(&compared);
        let line = format!("web <1>,,lost_seconds_per_vcpu_second,{},{},", lost.before, lost.after);
        assert!(csv.contains(&line) && csv.lines().count() == 9, "{csv}");
        let page = text::page(&compared);
        assert!(page.contains("web &lt;1&gt;") && !page.contains("web <1>"), "{page}");
    }

    #[test]
    fn a_slot_is_within_a_thirtieth_of_its_times() {
        let mut ns = 1;
        while ns < 1 << 40 {
            let mut times = Times::default();
            times.add(ns);
            let (slot, _) = times.0.first_key_value().unwrap();
            let shown = Times::ns(*slot);
            assert!((shown / ns as f64 - 1.0).abs() < 1.0 / 30.0, "{ns} {shown}");
            ns += ns / 7 + 1;
        }
    }

    #[test]
    fn windows_are_neither_too_many_nor_shorter_than_a_second() {
        for (recorded_s, window_s) in [(0, 1), (60, 1), (61, 2), (3600, 60), (90_000, 1800)] {
            assert_eq!(window_ns(recorded_s * SECOND_NS), window_s * SECOND_NS, "{recorded_s}");
        }
    }
}
