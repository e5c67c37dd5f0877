// SPDX-License-Identifier: GPL-2.0-or-later
//! Checks that serde cannot make: whether the parts of an experiment fit together.

use std::collections::BTreeSet;

use holdfast_testbed::workloads::{IN_GUESTS, ON_HOSTS};

use super::{Beside, Case, Experiment, ON_HOST, Problem};

/// Memory for the rest of the host besides guests and kernel, MiB.
const HOST_RESERVE_MIB: u32 = 1024;

const MAX_HOGS: u64 = 256;

/// Characters. A kernel takes 2048, and the lab needs some of them.
const MAX_CMDLINE: usize = 1500;

impl Experiment {
    /// Every inconsistency of this experiment; none if it can be run.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        self.check_name(&mut found);
        self.check_host_and_guests(&mut found);
        self.check_contenders(&mut found);
        self.check_windows(&mut found);
        self.check_cases(&mut found);
        self.check_expectations(&mut found);
        found.0
    }

    /// Keys that only a result may have, in the experiment that it holds.
    pub(super) fn written_by_the_lab(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        let is_there = [
            ("scaled_from", self.host.scaled_from.is_some()),
            ("cpus", !self.host.cpus.is_empty()),
        ];
        for (key, _) in is_there.into_iter().filter(|(_, is_there)| *is_there) {
            found.add(&format!("host.{key}"), "the lab writes it where it scales; leave it out");
        }
        found.0
    }

    fn check_name(&self, found: &mut Problems) {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || !self.name.chars().all(fits) {
            found
                .add("name", "write lower-case letters, digits and dashes: name = \"my-question\"");
        }
        // Names and the summary are printed to terminals.
        let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
        if !self.summary.chars().all(is_plain) {
            found.add("summary", "it has control characters; write plain text");
        }
    }

    fn check_host_and_guests(&self, found: &mut Problems) {
        found.range("host.pcpus", self.host.pcpus.into(), 1, 64);
        if !self.host.cpus.is_empty() && self.host.cpus.len() != self.host.pcpus as usize {
            found.add("host.cpus", "there must be one for each of the pCPUs");
        }
        if self.guests.is_empty() {
            found.add("guests", "there must be at least one: [guests.main]");
        }
        for (name, guest) in &self.guests {
            let key = format!("guests.{name}");
            if guest.cmdline.len() > MAX_CMDLINE || guest.cmdline.contains(char::is_control) {
                found.add(
                    &format!("{key}.cmdline"),
                    format!("write at most {MAX_CMDLINE} characters, and no control characters"),
                );
            }
            if name == ON_HOST || name.is_empty() || name.chars().any(char::is_control) {
                found.add(&key, "choose another name for the guest");
            }
            found.range(&format!("{key}.vcpus"), guest.vcpus.into(), 1, 64);
            found.range(&format!("{key}.memory_mib"), guest.memory_mib.into(), 128, 1 << 20);
            found.range(&format!("{key}.pin_width"), guest.pin_width.into(), 1, 64);
            let last_of = |cpu: u32| cpu.saturating_add(guest.pin_width.saturating_sub(1));
            if let Some(cpu) = guest.pin.iter().find(|cpu| last_of(**cpu) >= self.host.pcpus) {
                let (cpu, last) = (last_of(*cpu), self.host.pcpus.saturating_sub(1));
                found.add(&format!("{key}.pin"), format!("{cpu} is outside 0 to {last}"));
            }
            let needed = guest.memory_mib.saturating_add(HOST_RESERVE_MIB);
            if self.host.memory_mib < needed {
                found.add(
                    "host.memory_mib",
                    format!(
                        "{} is too little for guest \"{name}\" ({} MiB) and the host itself; \
                         write at least {needed}",
                        self.host.memory_mib, guest.memory_mib
                    ),
                );
            }
        }
        self.check_guest_name("defaults.guest", self.defaults.guest.as_deref(), found);
        found.range("defaults.hogs", self.defaults.hogs.into(), 0, MAX_HOGS);
    }

    fn check_guest_name(&self, key: &str, name: Option<&str>, found: &mut Problems) {
        if let Some(name) = name
            && name != ON_HOST
            && !self.guests.contains_key(name)
        {
            found.unknown(key, "guest", name, self.guests.keys().map(String::as_str));
        }
    }

    fn check_contenders(&self, found: &mut Problems) {
        let names: Vec<&str> = self.contenders.iter().map(|c| c.name.as_str()).collect();
        found.names("contenders", &names);
        for (i, contender) in self.contenders.iter().enumerate() {
            if contender.command.first().is_some_and(String::is_empty) {
                found.add(
                    &format!("contenders[{i}].command"),
                    "the program's name is empty; leave out `command` for the stock scheduler",
                );
            }
            for (j, program) in contender.programs.iter().enumerate() {
                if program.first().is_none_or(String::is_empty) {
                    let key = format!("contenders[{i}].programs[{j}]");
                    found
                        .add(&key, "write a program and its arguments: [\"holdfast\", \"report\"]");
                }
            }
        }
        if let Some(name) = &self.baseline
            && !names.contains(&name.as_str())
        {
            found.unknown("baseline", "contender", name, names.iter().copied());
        }
    }

    fn check_windows(&self, found: &mut Problems) {
        found.range("windows.warmup_ms", self.windows.warmup_ms, 0, 60_000);
        found.range("windows.length_ms", self.windows.length_ms, 100, 600_000);
        // Two are needed for any interval at all; see `stats` for what few rounds can show.
        found.range("windows.rounds", self.windows.rounds.into(), 2, 1000);
    }

    fn check_cases(&self, found: &mut Problems) {
        let names: Vec<&str> = self.cases.iter().map(|c| c.name.as_str()).collect();
        found.names("cases", &names);
        for (i, case) in self.cases.iter().enumerate() {
            let key = |field: &str| format!("cases[{i}].{field}");
            let guest = case.guest.as_deref().or(self.defaults.guest.as_deref());
            let is_on_host = guest == Some(ON_HOST);
            let workloads: &[&str] = if is_on_host { &ON_HOSTS } else { &IN_GUESTS };
            if !workloads.contains(&case.workload.as_str()) {
                let known = workloads.iter().copied();
                found.unknown(&key("workload"), "workload", &case.workload, known);
            }
            if let Some(threads) = case.threads {
                // The counter file has a slot for each thread.
                found.range(&key("threads"), threads.into(), 1, 64);
            }
            if let Some(hogs) = case.hogs {
                found.range(&key("hogs"), hogs.into(), 0, MAX_HOGS);
            }
            if case.args.iter().any(|arg| arg.contains('\0')) {
                found.add(&key("args"), "no program can be given a NUL character; leave it out");
            }
            if let Some(length) = case.length_ms {
                found.range(&key("length_ms"), length, 100, 600_000);
            }
            if let Some(ops) = case.warmup_ops {
                found.range(&key("warmup_ops"), ops, 1, 1_000_000_000);
            }
            self.check_guest_name(&key("guest"), case.guest.as_deref(), found);
            if guest.is_none() && self.guests.len() > 1 {
                found.add(
                    &key("guest"),
                    "there are several guests; say here or in [defaults] which one: guest \
                     = \"...\"",
                );
                continue;
            }
            self.check_beside(case, &key, found);
        }
    }

    fn check_beside(&self, case: &Case, key: &dyn Fn(&str) -> String, found: &mut Problems) {
        let own = case.guest.as_ref().or(self.defaults.guest.as_ref());
        let own = own.or_else(|| self.guests.keys().next()).map(String::as_str);
        let mut taken: Vec<&str> = own.into_iter().filter(|own| *own != ON_HOST).collect();
        for (i, beside) in case.beside.iter().enumerate() {
            let key = |field: &str| key(&format!("beside[{i}].{field}"));
            let Beside { on, workload, threads, .. } = beside;
            if let Some(threads) = *threads {
                found.range(&key("threads"), threads.into(), 1, 64);
            }
            let workloads: &[&str] = if on == ON_HOST { &ON_HOSTS } else { &IN_GUESTS };
            if !workloads.contains(&workload.as_str()) {
                found.unknown(&key("workload"), "workload", workload, workloads.iter().copied());
            }
            if on == ON_HOST {
                continue;
            }
            if !self.guests.contains_key(on) {
                let known = self.guests.keys().map(String::as_str).chain([ON_HOST]);
                found.unknown(&key("on"), "guest", on, known);
            } else if taken.contains(&on.as_str()) {
                found.add(
                    &key("on"),
                    format!(
                        "guest \"{on}\" runs a workload of this case already; name another guest"
                    ),
                );
            }
            taken.push(on);
        }
        let mib = |name: &&str| self.guests.get(*name).map_or(0, |guest| guest.memory_mib);
        let guests_mib = taken.iter().map(mib).fold(0, u32::saturating_add);
        let needed = guests_mib.saturating_add(HOST_RESERVE_MIB);
        if taken.len() > 1 && self.host.memory_mib < needed {
            found.add(
                "host.memory_mib",
                format!(
                    "{} is too little for the guests of case \"{}\" ({guests_mib} MiB) and the \
                     host itself; write at least {needed}",
                    self.host.memory_mib, case.name
                ),
            );
        }
    }

    fn check_expectations(&self, found: &mut Problems) {
        let contenders = || self.contenders.iter().map(|c| c.name.as_str());
        for e in &self.expect {
            // A list of cases or contenders is expanded here, so that a number would mislead.
            let place = format!("expect({}, {}, {})", e.case, e.contender, e.metric);
            let key = |field: &str| format!("{place}.{field}");
            if !self.cases.iter().any(|c| c.name == e.case) {
                let known = self.cases.iter().map(|c| c.name.as_str());
                found.unknown(&key("case"), "case", &e.case, known);
            }
            if !contenders().any(|name| name == e.contender) {
                found.unknown(&key("contender"), "contender", &e.contender, contenders());
            }
            if let Some(case) = &e.over_case {
                if !self.cases.iter().any(|c| c.name == *case) {
                    let known = self.cases.iter().map(|c| c.name.as_str());
                    found.unknown(&key("over_case"), "case", case, known);
                } else if *case == e.case {
                    found.add(&key("over_case"), "this is the case itself; leave it out");
                }
                if !e.of.is_relative() {
                    let why = format!("{} is of one case; leave out `over_case`", e.of);
                    found.add(&key("over_case"), why);
                }
            }
            match &e.over {
                Some(over) if !contenders().any(|name| name == over) => {
                    found.unknown(&key("over"), "contender", over, contenders());
                }
                Some(over) if *over == e.contender && e.over_case.is_none() => {
                    found
                        .add(&key("over"), "this is the contender itself, their ratio is always 1");
                }
                Some(_) if !e.of.is_relative() => {
                    let why = format!("{} is the contender's own; leave out `over`", e.of);
                    found.add(&key("over"), why);
                }
                None if e.of.is_relative()
                    && e.over_case.is_none()
                    && !self.contenders.is_empty()
                    && self.baseline().name == e.contender =>
                {
                    found.add(
                        &key("contender"),
                        "this is the baseline itself, its ratio is always 1",
                    );
                }
                _ => (),
            }
            if e.of.is_ratio_of_means() && !e.metric.has_ratio() {
                found.add(
                    &key("of"),
                    format!("{} is a difference and has no ratio; write of = \"mean\"", e.metric),
                );
            }
            for (field, bound) in [("min", e.min), ("max", e.max)] {
                if bound.is_some_and(|bound| !bound.is_finite()) {
                    found.add(&key(field), "write a finite number, or leave it out for no bound");
                }
            }
            match (e.min, e.max) {
                (None, None) => found.add(&place, "nothing is expected; write min or max"),
                (Some(min), Some(max)) if min > max => {
                    found.add(&key("min"), format!("{min} is larger than max = {max}"));
                }
                _ => (),
            }
        }
    }
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.0.push(Problem { key: key.into(), message: message.into() });
    }

    fn range(&mut self, key: &str, value: u64, min: u64, max: u64) {
        if value < min || value > max {
            self.add(key, format!("{value} is outside {min} to {max}"));
        }
    }

    fn unknown<'a>(
        &mut self,
        key: &str,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) {
        let known: Vec<String> = known.map(|k| format!("\"{k}\"")).collect();
        self.add(key, format!("there is no {what} \"{name}\"; there is {}", known.join(", ")));
    }

    /// Names must be there and be unique: results are keyed by them.
    fn names(&mut self, key: &str, names: &[&str]) {
        if names.is_empty() {
            self.add(key, format!("there must be at least one: [[{key}]]"));
        }
        let mut seen = BTreeSet::new();
        for (i, name) in names.iter().enumerate() {
            if name.is_empty() {
                self.add(&format!("{key}[{i}].name"), "the name is empty");
            } else if name.chars().any(char::is_control) {
                let what = format!("{name:?} has control characters; write plain text");
                self.add(&format!("{key}[{i}].name"), what);
            } else if !seen.insert(name) {
                self.add(&format!("{key}[{i}].name"), format!("\"{name}\" is there already"));
            }
        }
    }
}
