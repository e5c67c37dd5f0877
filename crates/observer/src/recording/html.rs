// SPDX-License-Identifier: GPL-2.0-or-later
//! A recording as a page: a table of the VMs, histograms, and a time line of the worst second. One
//! file that needs no other and no network. And the worst moment as a picture.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use holdfast_policy::VcpuClass;

use super::{Event, Note, Recording};
use crate::histogram::{Histogram, time};
use crate::output::count;
use crate::report::when;
use crate::sample::{Cost, Sample, VmSample};

pub(super) const STYLE: &str = include_str!("report.css");
/// Style of the time lines, also for the picture.
const LANES_STYLE: &str = include_str!("lanes.css");
const SECOND_NS: i64 = 1_000_000_000;
/// Time lines on a page: of the VMs that lost most in one second.
const MAX_TIME_LINES: usize = 8;
/// Length of the enlarged part of that second: some slices of each vCPU.
const DETAIL_NS: i64 = 50_000_000;

/// The page; `sample` has the sums of the recording.
pub(super) fn render(recording: &Recording, sample: &Sample) -> String {
    let about = &recording.about;
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Holdfast recording</title>\
         <style>{LANES_STYLE}{STYLE}</style>\
         <h1>What preempted lock holders cost</h1><p class=\"about\">{}, {} (Linux {}), {}, {}, \
         {}{}</p>",
        when(about.begin_ns as u64),
        escape(about.host_name()),
        escape(&about.kernel),
        time(sample.interval_ns),
        count(about.vms.len() as u64, "VM"),
        count(recording.notes.len() as u64, "event"),
        match about.lost_events {
            0 => String::new(),
            n => format!(", <b>{n} events lost</b>"),
        }
    );
    page.push_str(&table(&sample.vms, sample.seconds()));
    let mut worst = worst_seconds(recording).take(MAX_TIME_LINES).peekable();
    if worst.peek().is_none() {
        page.push_str("<h2>Worst second</h2><p>No lock holder was preempted.</p>");
    }
    for (vm, from) in worst {
        page.push_str(&worst_second(recording, vm, from));
    }
    for vm in sample.vms.iter().filter(|vm| vm.is_readable()) {
        let total = vm.total();
        for (class, what) in
            [(VcpuClass::Holder, "lock holders (LHP)"), (VcpuClass::Head, "next owners (LWP)")]
        {
            let histogram = &total.offcpu_hist[class];
            if histogram.count() > 0 {
                let title = format!("{}: off-CPU time of preempted {what}", vm.label());
                page.push_str(&bars(&title, histogram, class));
            }
        }
    }
    page.push_str("</html>\n");
    page
}

/// The worst moment of the first VM that has one, as a picture for light and dark pages.
pub(super) fn picture(recording: &Recording) -> String {
    /// Entries of the legend in a row, and the width of each.
    const ENTRIES: usize = 4;
    const WIDTH: usize = 240;
    const HEIGHT: usize = 20;
    let (vm, from) = match worst_seconds(recording).next() {
        Some((vm, second)) => {
            (vm, worst_moment(recording, vm, second).map_or(second, |(_, from)| from))
        }
        None => (recording.about.vms.first().map_or(0, |vm| vm.pid), recording.about.begin_ns),
    };
    let (lanes, height) = lanes(recording, vm, from, DETAIL_NS);
    let is_drawn = |class: &str| lanes.contains(&format!("\"{class}\""));
    let drawn = LEGEND.iter().filter(|(class, _)| is_drawn(class));
    let (mut legend, mut bottom) = (String::new(), height);
    for (i, (class, text)) in drawn.enumerate() {
        let (x, y) = (70 + i % ENTRIES * WIDTH, height + 18 + i / ENTRIES * HEIGHT);
        let _ = write!(
            legend,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" class=\"{class}\"/>\
             <text x=\"{}\" y=\"{}\">{text}</text>",
            x + 18,
            y + 11
        );
        bottom = y + HEIGHT;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1060 {bottom}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\"><style>{LANES_STYLE}</style>\
         <rect width=\"1060\" height=\"{bottom}\" fill=\"var(--paper)\"/>\
         <g transform=\"translate(0 8)\">{lanes}</g>{legend}</svg>\n"
    )
}

fn table(vms: &[VmSample], seconds: f64) -> String {
    let mut text = String::from(
        "<h2>VMs</h2><div class=\"wide\"><table><tr><th>VM, guest kernel<th>CPU%<th>LHP%<th>WAIT%\
         <th>PREEMP/s<th>HOLDER/s<th>HEAD/s<th>p99<th>LOST/s<th>vCPUs</tr>",
    );
    for vm in vms {
        let total = vm.total();
        let rate = |n: u64| format!("{:.1}", n as f64 / seconds);
        let percent = |ns: u64| format!("{:.0}", ns as f64 / seconds / 1e7);
        let share = |of| total.share(of).unwrap_or("-".into());
        let is_known = vm.is_readable() && total.tells_classes();
        let known = |text: String| if is_known { text } else { "-".into() };
        let of_holders = |text| total.of_holders(known(text)).unwrap_or("-".into());
        let _ = write!(
            text,
            "<tr><td>{}{}<br><small>{}</small><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}\
             <td>{}</tr>",
            escape(&vm.label()),
            if vm.ended { " (ended)" } else { "" },
            escape(vm.guest.text()),
            total.times.map_or("-".into(), |times| percent(times.run_ns)),
            share(Cost::lost),
            share(|cost| Some(cost.waiting)),
            rate(total.preemptions.total()),
            of_holders(rate(total.preemptions[VcpuClass::Holder])),
            known(rate(total.preemptions[VcpuClass::Head])),
            escape(&total.offcpu_hist[VcpuClass::Holder].quantile(0.99)),
            of_holders(time((total.blocking_ns() as f64 / seconds) as u64)),
            vm.vcpus.len(),
        );
    }
    text + "</table></div><p class=\"legend\">CPU%: percent of one CPU. LHP%: share of the VM's \
            CPU time spent waiting for locks while a lock holder or next owner of the VM was \
            preempted; better scheduling can win back this much at most. WAIT%: share spent \
            waiting for any lock; ~ marks a share of few clock samples. PREEMP, HOLDER, HEAD: \
            preemptions, those of lock holders, those of next owners. p99: 99th percentile of the \
            off-CPU time of preempted holders. LOST: off-CPU time of preempted vCPUs that held a \
            lock, served an interrupt or were next owners.</p>"
}

/// VMs in their order, and the start of the second in which their Holders, Irqs and Heads were off
/// the CPU for longest. VMs without such a second are left out.
fn worst_seconds(recording: &Recording) -> impl Iterator<Item = (u32, i64)> {
    let worst = worst_of_each(&recording.notes, recording.about.begin_ns);
    recording.about.vms.iter().filter_map(move |vm| Some((vm.pid, *worst.get(&vm.pid)?)))
}

/// The start of the worst second of each VM. The first second begins with the recording; earlier
/// events do not count.
fn worst_of_each(notes: &[Note], begin_ns: i64) -> HashMap<u32, i64> {
    // Time of the absences that begin or end in a second, and the change in the number of absences
    // that last all of it. An absence of hours counts for each of its seconds, and takes no longer
    // to process than another.
    let mut seconds = BTreeMap::<(u32, i64), (i64, i64)>::new();
    for note in notes.iter().filter(|note| is_blocking(note)) {
        let since_begin = |ns: i64| ns.saturating_sub(begin_ns).max(0);
        let (begin, end) = (since_begin(note.begin_ns), since_begin(note.end_ns));
        let (first, last) = (begin / SECOND_NS, end / SECOND_NS);
        let mut add = |second, ns, lasting| {
            let sums = seconds.entry((note.vm, second)).or_default();
            *sums = (sums.0 + ns, sums.1 + lasting);
        };
        if first == last {
            add(first, end - begin, 0);
        } else {
            add(first, (first + 1) * SECOND_NS - begin, 0);
            add(first + 1, 0, 1);
            add(last, end - last * SECOND_NS, -1);
        }
    }
    let mut lasting = 0;
    let off_ns = seconds.into_iter().map(|(key, (ns, more))| {
        lasting += more;
        (key, ns + lasting * SECOND_NS)
    });
    let mut worst = HashMap::<u32, (i64, i64)>::new();
    for ((vm, second), ns) in off_ns.filter(|(_, ns)| *ns > 0) {
        let of_vm = worst.entry(vm).or_insert((ns, second));
        *of_vm = (*of_vm).max((ns, second));
    }
    worst.into_iter().map(|(vm, (_, second))| (vm, begin_ns + second * SECOND_NS)).collect()
}

/// The time line of a second of a VM, and an enlarged one of the longest absence in it.
fn worst_second(recording: &Recording, vm: u32, from: i64) -> String {
    let label =
        recording.about.vms.iter().find(|v| v.pid == vm).map_or(String::new(), |v| v.label());
    let mut text = format!(
        "<h2>Worst second of {}</h2><p>{:.3} s into the recording. Each mark under a lane is a \
         sample of the vCPU waiting for a lock; a red mark, while a holder or next owner was \
         preempted.</p><p class=\"legend\">{}</p>",
        escape(&label),
        (from - recording.about.begin_ns) as f64 / 1e9,
        legend(),
    );
    text.push_str(&time_line(recording, vm, from, SECOND_NS));
    if let Some((longest, from)) = worst_moment(recording, vm, from) {
        let _ = write!(
            text,
            "<p>Enlarged, from {:.3} s on: its longest absence, {} of vCPU {}.</p>",
            (from - recording.about.begin_ns) as f64 / 1e9,
            time((longest.end_ns - longest.begin_ns) as u64),
            longest.vcpu,
        );
        text.push_str(&time_line(recording, vm, from, DETAIL_NS));
    }
    text
}

/// The longest absence in a second of a VM, and the start of an enlarged time line that shows it
/// and the time before it.
fn worst_moment(recording: &Recording, vm: u32, from: i64) -> Option<(&Note, i64)> {
    let here = |note: &Note| note.end_ns.min(from + SECOND_NS) - note.begin_ns.max(from);
    let of_vm = recording.notes.iter().filter(|note| note.vm == vm && is_blocking(note));
    let longest = of_vm.filter(|note| here(note) > 0).max_by_key(|note| here(note))?;
    let begin = longest.begin_ns - DETAIL_NS / 4;
    Some((longest, begin.clamp(from, from + SECOND_NS - DETAIL_NS)))
}

/// May siblings wait for its end?
fn is_blocking(note: &Note) -> bool {
    note.event == Event::Preempted && note.class.is_protected()
}

fn time_line(recording: &Recording, vm: u32, from: i64, len_ns: i64) -> String {
    let (lanes, height) = lanes(recording, vm, from, len_ns);
    format!(
        "<div class=\"wide\"><svg viewBox=\"0 0 1060 {height}\" role=\"img\" \
         aria-label=\"time line\">{lanes}</svg></div>"
    )
}

/// A lane for each vCPU, with a scale below, and its height; 1060 wide.
fn lanes(recording: &Recording, vm: u32, from: i64, len_ns: i64) -> (String, usize) {
    const WIDTH: f64 = 960.0;
    const LANE: usize = 26;
    let to = from + len_ns;
    let mut vcpus = BTreeMap::<u32, Lane>::new();
    let x = |ns: i64| (ns.clamp(from, to) - from) as f64 / len_ns as f64 * WIDTH;
    let here = |note: &&Note| note.vm == vm && note.end_ns >= from && note.begin_ns < to;
    for note in recording.notes.iter().filter(here) {
        vcpus.entry(note.vcpu).or_default().add(note, x(note.begin_ns), x(note.end_ns));
    }
    let height = vcpus.len() * LANE + 24;
    let mut svg = String::new();
    for (number, (vcpu, lane)) in vcpus.iter().enumerate() {
        let y = number * LANE;
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">vCPU {vcpu}</text><rect x=\"70\" y=\"{y}\" width=\"{WIDTH}\" \
             height=\"16\" class=\"runs\"/>",
            y + 13
        );
        for ((.., kind), mark) in &lane.absences {
            let _ = write!(
                svg,
                "<rect x=\"{:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"16\" class=\"{kind}\">\
                 <title>{kind}, {}{}</title></rect>",
                70.0 + mark.begin,
                (mark.end - mark.begin).max(0.3),
                time(mark.ns),
                match mark.count {
                    1 => String::new(),
                    n => format!(" in {n} times"),
                }
            );
        }
        for (pixel, mark) in &lane.samples {
            let _ = write!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"1.5\" height=\"6\" class=\"{mark}\"/>",
                70 + pixel,
                y + 17
            );
        }
    }
    for tenth in 0..=10 {
        let x = 70.0 + WIDTH * f64::from(tenth) / 10.0;
        let _ = write!(
            svg,
            "<text x=\"{x:.0}\" y=\"{}\" text-anchor=\"middle\">{} ms</text>",
            height - 4,
            i64::from(tenth) * len_ns / 10_000_000
        );
    }
    (svg, height)
}

/// The marks of a vCPU's lane. Events that begin and end in the same pixels are one mark: they look
/// the same, and browsers cannot show a page of a million marks.
#[derive(Default)]
struct Lane {
    /// By first and last pixel, and class of style.
    absences: BTreeMap<(u32, u32, &'static str), Mark>,
    /// By pixel, and class of style.
    samples: BTreeSet<(u32, &'static str)>,
}

/// One absence or several.
struct Mark {
    begin: f64,
    end: f64,
    count: u64,
    ns: u64,
}

impl Lane {
    fn add(&mut self, note: &Note, begin: f64, end: f64) {
        if note.event.is_absence() {
            let key = (begin as u32, end as u32, kind(note));
            let none = Mark { begin, end, count: 0, ns: 0 };
            let mark = self.absences.entry(key).or_insert(none);
            mark.begin = mark.begin.min(begin);
            mark.end = mark.end.max(end);
            mark.count += 1;
            mark.ns = mark.ns.saturating_add((note.end_ns - note.begin_ns) as u64);
        } else if note.event == Event::Sample
            && matches!(note.class, VcpuClass::Waiter | VcpuClass::Head)
        {
            let lost = note.holder_off == Some(true) || note.head_off == Some(true);
            self.samples.insert((begin as u32, if lost { "lost" } else { "waits" }));
        }
    }
}

/// CSS class of an absence.
fn kind(note: &Note) -> &'static str {
    match (note.event, note.class) {
        (Event::Preempted, class) => class.name(),
        (Event::LockHalt, _) => "halted",
        _ => "idle",
    }
}

/// CSS classes of a lane, and their meaning.
const LEGEND: [(&str, &str); 9] = [
    ("runs", "runs"),
    ("holder", "preempted holding a lock"),
    ("irq", "preempted serving an interrupt"),
    ("head", "preempted next in line"),
    ("waiter", "preempted in a queue"),
    ("preemptible", "preempted, delays no vCPU"),
    ("unknown", "preempted, unknown"),
    ("halted", "halted in a queue"),
    ("idle", "idle"),
];

fn legend() -> String {
    let entry = |(class, text): (&str, &str)| {
        format!(
            "<span><svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" \
             class=\"{class}\"/></svg> {text}</span> "
        )
    };
    LEGEND.map(entry).concat()
}

/// A histogram, in the colour of its class on the time line.
fn bars(title: &str, histogram: &Histogram, class: VcpuClass) -> String {
    const HEIGHT: f64 = 160.0;
    let used = histogram.0.iter().enumerate().filter(|(_, n)| **n > 0).map(|(slot, _)| slot);
    let (first, last) = (used.clone().min().unwrap_or(0), used.max().unwrap_or(0));
    let most = histogram.0.iter().copied().max().unwrap_or(1).max(1) as f64;
    let mut svg = format!(
        "<h2>{}</h2><div class=\"wide\"><svg viewBox=\"0 0 1040 200\" role=\"img\" \
         aria-label=\"histogram\">",
        escape(title)
    );
    let width = 1000.0 / (last - first + 1) as f64;
    let edge = |slot: usize| 20.0 + (slot - first) as f64 * width;
    for slot in first..=last {
        let n = histogram.0[slot];
        let height = n as f64 / most * HEIGHT;
        let x = edge(slot);
        let middle = x + width / 2.0;
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"{}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{n}</text>",
            16.0 + HEIGHT - height,
            width - 2.0,
            class.name(),
            12.0 + HEIGHT - height,
        );
    }
    for slot in first..=last + 1 {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"196\" text-anchor=\"middle\">{}</text>",
            edge(slot),
            time(1 << slot)
        );
    }
    svg + "</svg></div>"
}

/// Escapes markup, because names come from guests and their operators.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recording, two_vms};
    use super::*;
    use crate::select::{Column, Selection};

    fn page(recording: &Recording) -> String {
        render(recording, &recording.summary())
    }

    #[test]
    fn the_worst_second_is_that_of_the_longest_absences() {
        let recording = recording();
        let begin = recording.about.begin_ns;
        let worst = |notes: &[Note]| worst_of_each(notes, begin);
        assert_eq!(worst(&recording.notes), HashMap::from([(7, begin)]));
        assert!(worst(&[]).is_empty());
        // An absence that lasts for a century, and is worst in the second that has another one.
        let mut long = recording.notes[4];
        long.end_ns += 100 * 365 * 86_400 * SECOND_NS;
        let mut other = long;
        other.begin_ns += 5 * SECOND_NS;
        other.end_ns = other.begin_ns + 1000;
        let at = begin + 5 * SECOND_NS;
        assert_eq!(worst(&[long, other]), HashMap::from([(7, at)]));
        // Another VM has a worst second of its own.
        let next = Note { vm: 9, end_ns: other.end_ns - 500, ..other };
        assert_eq!(worst(&[next, long])[&9], at);
        let instant = Note { end_ns: long.begin_ns, ..long };
        assert!(worst(&[instant]).is_empty());
    }

    #[test]
    fn vms_are_on_the_page_and_in_the_picture_in_the_order_that_was_selected() {
        let mut both = two_vms();
        for (sort, first) in [(Column::Lost, "db"), (Column::Cpu, "web")] {
            let sample = both.select(&Selection { sort, ..Selection::default() }).unwrap();
            let page = render(&both, &sample);
            for list in ["<tr><td>", "<h2>Worst second of ", "<h2>"] {
                let after = |name: &str| page.find(&format!("{list}{name}")).unwrap_or(usize::MAX);
                let order = after("db") < after("web");
                assert_eq!(order, first == "db", "{list} {first}: {page}");
            }
            // What db has lost is longer.
            let length = if first == "db" { "holder, 11ms" } else { "holder, 4.0ms" };
            assert!(picture(&both).contains(length), "{first}");
        }
        let top = Selection { top: Some(1), ..Selection::default() };
        let sample = both.select(&top).unwrap();
        assert!(!render(&both, &sample).contains("web"));
    }

    #[test]
    fn the_worst_second_is_one_of_the_recording_whenever_that_begins() {
        let mut recording = recording();
        // The recording begins when a holder comes back after a long absence, between two seconds
        // of the clock.
        recording.about.begin_ns += 13_000_000;
        recording.notes[4].begin_ns -= 20 * SECOND_NS;
        let begin = recording.about.begin_ns;
        assert_eq!(worst_seconds(&recording).collect::<Vec<_>>(), [(7, begin)]);
        assert!(page(&recording).contains("<p>0.000 s into the recording"));
        recording.notes[4].end_ns += 3 * SECOND_NS;
        let (_, from) = worst_seconds(&recording).next().unwrap();
        assert!((begin..begin + 3 * SECOND_NS).contains(&from), "{from}");
        assert_eq!((from - begin) % SECOND_NS, 0);
    }

    #[test]
    fn the_page_stands_alone_and_trusts_no_name() {
        let page = page(&recording());
        assert!(!page.contains("http"), "nothing is fetched");
        assert!(page.contains("web &lt;1&gt;") && !page.contains("web <1>"));
        assert!(page.contains("class=\"holder\"><title>holder, 4.0ms"), "{page}");
        assert!(page.contains("class=\"lost\""));
    }

    #[test]
    fn the_picture_shows_the_longest_absence_and_explains_its_colours() {
        let mut recording = recording();
        let svg = picture(&recording);
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("class=\"holder\"><title>holder, 4.0ms"), "{svg}");
        assert!(svg.contains("preempted holding a lock") && !svg.contains("preempted, unknown"));
        recording.notes.clear();
        assert!(!picture(&recording).contains("preempted"), "there is nothing to show");
    }

    #[test]
    fn a_page_has_no_more_marks_than_pixels() {
        let mut recording = recording();
        let (about, first) = (recording.about.clone(), recording.notes[4]);
        recording.notes = (0..100_000)
            .map(|i| Note {
                begin_ns: about.begin_ns + i * 10_000,
                end_ns: about.begin_ns + i * 10_000 + 5_000,
                ..first
            })
            .collect();
        recording.notes.extend(recording.notes.clone().iter().map(|note| Note {
            event: Event::Sample,
            class: VcpuClass::Waiter,
            ..*note
        }));
        let page = page(&recording);
        assert!(page.len() < 500_000, "{}", page.len());
        assert!(page.contains("in 104 times") || page.contains("in 105 times"), "{page}");
    }
}
