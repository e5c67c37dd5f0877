// SPDX-License-Identifier: GPL-2.0-or-later
//! A comparison as text, JSON, comma-separated values and a page.

use std::io;

use holdfast_stats::{Change, MIN_WINDOWS, Verdict};
use serde_json::{Map, Value, json};

use super::compare::{Compared, Row, Side};
use super::html::{STYLE, escape};
use crate::histogram::time;
use crate::output::{count, fill, missing};
use crate::report::{csv_line, when};

/// Schema tag.
const SCHEMA: &str = "holdfast.compare/1";

/// A figure of a row, with its name in programs and for people.
struct Figure {
    name: &'static str,
    title: &'static str,
    change: Change,
    /// A value for people.
    shown: fn(f64) -> String,
}

/// The known figures of a row, in their order.
fn figures(row: &Row) -> Vec<Figure> {
    let seconds = |s: f64| time((s * 1e9).round().max(0.0) as u64);
    let plain = |(before, after)| Change { before, after, low: None, high: None };
    let of = |name, title, change: Option<Change>, shown: fn(f64) -> String| {
        change.map(|change| Figure { name, title, change, shown })
    };
    [
        of("lost_seconds_per_vcpu_second", "time lost, per vCPU-second", row.lost, seconds),
        of(
            "holder_preemptions_per_vcpu_second",
            "holders preempted, per vCPU-second",
            row.holders,
            rate,
        ),
        of("holder_offcpu_p99_seconds", "p99 of their off-CPU time", row.p99_s, seconds),
        of("holder_offcpu_worst_seconds", "the longest", row.worst_s.map(plain), seconds),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        r if r < 0.095 => format!("{r:.3}"),
        r if r < 99.5 => format!("{r:.2}"),
        r => format!("{r:.0}"),
    }
}

/// `63 % less`, `12 % more`, `3.4 times as much`.
fn change_in_words(ratio: f64) -> String {
    match ratio {
        r if r.is_infinite() => "infinitely more".into(),
        r if r >= 3.0 => format!("{r:.1} times as much"),
        r if r >= 1.0 => format!("{:.0} % more", (r - 1.0) * 100.0),
        r => format!("{:.0} % less", (1.0 - r) * 100.0),
    }
}

fn percent(ratio: f64) -> String {
    match ratio {
        r if r.is_infinite() => "inf".into(),
        r if r >= 9.995 => format!("x{r:.0}"),
        r => format!("{:+.0}%", (r - 1.0) * 100.0),
    }
}

/// The answer, as a sentence.
pub(super) fn sentence(compared: &Compared) -> String {
    let Some(lost) = compared.total.as_ref().and_then(|row| row.lost) else {
        return "Undecided: no VM in which lock holders are seen ran both before and after.".into();
    };
    let vms = count(compared.nr_total as u64, "VM");
    let what = "time to preempted lock holders";
    let Some(ratio) = lost.ratio() else {
        return format!("Undecided: {vms} lost no {what}, neither before nor after.");
    };
    let (Some(low), Some(high)) = (lost.low, lost.high) else {
        let few = [&compared.before, &compared.after].map(|side| time(side.recorded_ns as u64));
        return format!(
            "Undecided: {vms} lost {} {what} after than before, but {} and {} are too short to \
             tell that from chance; record at least {MIN_WINDOWS} s each.",
            change_in_words(ratio),
            few[0],
            few[1],
        );
    };
    let interval = format!(
        "{:.0} % interval: {} to {}",
        compared.confidence * 100.0,
        change_in_words(low),
        change_in_words(high)
    );
    match lost.verdict() {
        Verdict::Undecided => format!(
            "Undecided: {vms} lost {} {what} after than before, but the interval includes no \
             change ({interval}).",
            change_in_words(ratio)
        ),
        Verdict::Less | Verdict::More => {
            format!("{vms} lost {} {what} after than before ({interval}).", change_in_words(ratio))
        }
    }
}

fn of_side(name: &str, side: &Side) -> String {
    let hosts = match side.hosts.as_slice() {
        [host] => host.clone(),
        hosts => format!("{} hosts", hosts.len()),
    };
    format!(
        "{name:<7} {hosts}, {} from {} on, windows of {}\n",
        time(side.recorded_ns as u64),
        when(side.begin_ns as u64),
        time(side.window_ns as u64)
    )
}

pub(super) fn table(compared: &Compared) -> String {
    let mut text = fill(&sentence(compared));
    text.push('\n');
    text.push_str(&of_side("before", &compared.before));
    text.push_str(&of_side("after", &compared.after));
    let all = count(compared.nr_total as u64, "VM");
    let total = compared.total.iter().map(|row| (format!("together, {all}"), row));
    for (label, row) in total.chain(compared.vms.iter().map(|vm| (vm.label.clone(), &vm.row))) {
        text.push_str(&format!(
            "\n{label:<36} {:>8} {:>8} {:>8}  {}\n",
            "before",
            "after",
            "change",
            interval_title(compared)
        ));
        for figure in figures(row) {
            let Figure { title, change, shown, .. } = figure;
            let line = format!(
                "  {title:<34} {:>8} {:>8} {:>8}  {}",
                shown(change.before),
                shown(change.after),
                change.ratio().map_or_else(|| "-".into(), percent),
                interval(&change)
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.push_str(&left_out(compared).into_iter().map(|line| fill(&line)).collect::<String>());
    let lost = compared.before.lost_events + compared.after.lost_events;
    if lost > 0 {
        text.push_str(&missing(lost, "event"));
    }
    text
}

fn interval_title(compared: &Compared) -> String {
    format!("{:.0}% interval", compared.confidence * 100.0)
}

fn interval(change: &Change) -> String {
    match (change.low, change.high) {
        (Some(low), Some(high)) => format!("{} to {}", percent(low), percent(high)),
        _ => String::new(),
    }
}

/// Sentences on VMs that are not compared.
fn left_out(compared: &Compared) -> Vec<String> {
    [
        ("Only before", &compared.only_before),
        ("Only after", &compared.only_after),
        ("Not compared, because nothing is known of them or they were idle", &compared.unknown),
    ]
    .into_iter()
    .filter(|(_, vms)| !vms.is_empty())
    .map(|(why, vms)| format!("{why}: {}.", vms.join(", ")))
    .collect()
}

fn verdict(change: &Change) -> &'static str {
    match change.verdict() {
        Verdict::Less => "less",
        Verdict::More => "more",
        Verdict::Undecided => "undecided",
    }
}

/// Numbers that JSON has none for are absent.
fn json_of(row: &Row) -> Value {
    let mut object = Map::new();
    for Figure { name, change, .. } in figures(row) {
        let mut of = Map::new();
        let numbers = [
            ("before", Some(change.before)),
            ("after", Some(change.after)),
            ("ratio", change.ratio()),
            ("low", change.low),
            ("high", change.high),
        ];
        for (key, number) in numbers {
            let number = number.and_then(serde_json::Number::from_f64);
            of.extend(number.map(|number| (key.to_owned(), number.into())));
        }
        if change.low.is_some() {
            of.insert("verdict".into(), verdict(&change).into());
        }
        object.insert(name.into(), of.into());
    }
    object.into()
}

fn json_of_side(side: &Side) -> Value {
    json!({
        "hosts": side.hosts,
        "begin_ns": side.begin_ns,
        "end_ns": side.end_ns,
        "recorded_ns": side.recorded_ns,
        "window_ns": side.window_ns,
        "files": side.files,
        "lost_events": side.lost_events,
    })
}

pub(super) fn json(compared: &Compared) -> io::Result<String> {
    let vms = compared.vms.iter().map(|vm| {
        let mut object = json!({ "name": vm.label, "figures": json_of(&vm.row) });
        if let Some(uuid) = &vm.uuid {
            object["uuid"] = uuid.clone().into();
        }
        object
    });
    let lost = compared.total.as_ref().and_then(|row| row.lost);
    let mut object = json!({
        "schema": SCHEMA,
        "summary": sentence(compared),
        "verdict": lost.map_or("undecided", |lost| verdict(&lost)),
        "confidence": compared.confidence,
        "before": json_of_side(&compared.before),
        "after": json_of_side(&compared.after),
        "vms": vms.collect::<Vec<_>>(),
        "only_before": compared.only_before,
        "only_after": compared.only_after,
        "not_compared": compared.unknown,
    });
    if let Some(total) = &compared.total {
        object["total"] = json!({ "vms": compared.nr_total, "figures": json_of(total) });
    }
    Ok(serde_json::to_string(&object)? + "\n")
}

/// A line for each figure; that of all VMs together has no VM.
pub(super) fn csv(compared: &Compared) -> String {
    let columns = ["vm", "uuid", "figure", "before", "after", "ratio", "low", "high", "verdict"];
    let mut text = csv_line(columns);
    let none = None;
    let total = compared.total.iter().map(|row| ("", &none, row));
    for (label, uuid, row) in
        total.chain(compared.vms.iter().map(|vm| (vm.label.as_str(), &vm.uuid, &vm.row)))
    {
        for Figure { name, change, .. } in figures(row) {
            let some = |value: Option<f64>| {
                value.filter(|v| v.is_finite()).map_or_else(String::new, |v| v.to_string())
            };
            text.push_str(&csv_line([
                label.to_owned(),
                uuid.clone().unwrap_or_default(),
                name.to_owned(),
                some(Some(change.before)),
                some(Some(change.after)),
                some(change.ratio()),
                some(change.low),
                some(change.high),
                change.low.map_or_else(String::new, |_| verdict(&change).to_owned()),
            ]));
        }
    }
    text
}

/// A page that needs no other and no network.
pub(super) fn page(compared: &Compared) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Holdfast comparison</title><style>{STYLE}</style>\
         <h1>{}</h1>",
        escape(&sentence(compared))
    );
    for (name, side) in [("before", &compared.before), ("after", &compared.after)] {
        page.push_str(&format!("<p class=\"about\">{}</p>", escape(&of_side(name, side))));
    }
    let all = count(compared.nr_total as u64, "VM");
    let total = compared.total.iter().map(|row| (format!("together, {all}"), row));
    for (label, row) in total.chain(compared.vms.iter().map(|vm| (vm.label.clone(), &vm.row))) {
        page.push_str(&format!(
            "<h2>{}</h2><table><tr><th></th><th>before</th><th>after</th><th>change</th>\
             <th>{}</th></tr>",
            escape(&label),
            interval_title(compared)
        ));
        for Figure { title, change, shown, .. } in figures(row) {
            let cells = [
                shown(change.before),
                shown(change.after),
                change.ratio().map_or_else(|| "-".into(), percent),
                interval(&change),
            ];
            let cells: String =
                cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            page.push_str(&format!("<tr><td>{title}</td>{cells}</tr>"));
        }
        page.push_str("</table>");
    }
    for line in left_out(compared) {
        page.push_str(&format!("<p>{}</p>", escape(&line)));
    }
    page.push_str("</html>\n");
    page
}
