// SPDX-License-Identifier: GPL-2.0-or-later
//! Experiments on another number of pCPUs than they are written for: `--here` on a real host.
//!
//! A cell is about the number of runnable threads for a CPU and about pinning, so all numbers grow
//! by the same whole factor. A machine whose CPUs are not a multiple leaves some unused: half a
//! vCPU more would be another experiment.

use super::{Beside, Experiment, ExperimentError, Guest, ON_HOST};

/// Left to the machine beside its guests, MiB.
const RESERVE_MIB: u64 = 1024;

impl Experiment {
    /// The same with `cpus` of the running machine as its pCPUs, and `memory_mib` for guests. It
    /// takes the first of `cpus`, as many as are a multiple of its own pCPUs and keep it within the
    /// limits of experiments.
    ///
    /// # Errors
    /// If they are fewer than it is written for.
    pub fn scaled_to(self, cpus: &[u32], memory_mib: u64) -> Result<Experiment, ExperimentError> {
        let pcpus = self.host.pcpus;
        let most = cpus.len() as u32 / pcpus;
        if most == 0 {
            let has = cpus.len();
            return Err(ExperimentError::TooFewCpus { name: self.name, pcpus, has });
        }
        // An experiment as written needs no check.
        let fits =
            |e: &Experiment| e.problems().is_empty() && e.guests_mib() + RESERVE_MIB <= memory_mib;
        let larger = (2..=most).rev().map(|factor| self.clone().times(factor)).find(fits);
        let mut scaled = larger.unwrap_or(self);
        scaled.host.cpus = cpus[..scaled.host.pcpus as usize].to_vec();
        Ok(scaled)
    }

    /// A description of the scaling and of the machine's CPUs that it uses, of which `nr_online`
    /// are online; none if it has a host of its own.
    pub fn scaling(&self, nr_online: u32) -> Option<String> {
        let host = &self.host;
        if host.cpus.is_empty() {
            return None;
        }
        let (name, pcpus) = (&self.name, host.pcpus);
        let mut text = match host.scaled_from {
            None => format!("{name}: on {pcpus} pCPUs, as it is written"),
            Some(from) => {
                let vcpus: Vec<String> = self
                    .guests
                    .iter()
                    .map(|(name, guest)| format!("{name} {}", guest.vcpus))
                    .collect();
                let hogs = self.cases.iter().map(|case| self.hogs_of(case)).max().unwrap_or(0);
                format!(
                    "{name}: scaled from {from} to {pcpus} pCPUs: {} times as many vCPUs ({}), \
                     loops (up to {hogs}) and \
                     threads; its names and texts still count for {from}",
                    pcpus / from,
                    vcpus.join(", ")
                )
            }
        };
        let which = ranges(&host.cpus);
        text.push_str(&format!(
            "; guests and loops run on CPUs {which} of this machine's {nr_online}"
        ));
        if pcpus < nr_online {
            text.push_str(", all of which the scheduler has");
        }
        Some(text)
    }

    /// Memory of the guests that run together, MiB.
    fn guests_mib(&self) -> u64 {
        let of = |name: &str| u64::from(self.guests[name].memory_mib);
        let cases = self.cases.iter().map(|case| self.guests_of(case).into_iter().map(of).sum());
        cases.max().unwrap_or(0)
    }

    fn times(mut self, factor: u32) -> Experiment {
        let is_fixed = |case| self.guest_of(case).is_some_and(|(_, guest)| guest.fixed);
        let is_fixed: Vec<bool> = self.cases.iter().map(is_fixed).collect();
        for (case, is_fixed) in self.cases.iter_mut().zip(is_fixed) {
            case.hogs = case.hogs.map(|n| n.saturating_mul(factor));
            if !is_fixed {
                case.threads = case.threads.map(|n| n.saturating_mul(factor));
                // That many more threads share them.
                case.warmup_ops = case.warmup_ops.map(|n| n.saturating_mul(factor.into()));
            }
            for Beside { on, threads, .. } in &mut case.beside {
                if on == ON_HOST || self.guests.get(on).is_some_and(|guest| !guest.fixed) {
                    *threads = threads.map(|n| n.saturating_mul(factor));
                }
            }
        }
        self.defaults.hogs = self.defaults.hogs.saturating_mul(factor);
        self.guests.values_mut().for_each(|guest| guest.grow(factor));
        self.host.scaled_from = Some(self.host.scaled_from.unwrap_or(self.host.pcpus));
        self.host.pcpus = self.host.pcpus.saturating_mul(factor);
        self.host.memory_mib = self.host.memory_mib.saturating_mul(factor);
        self
    }
}

impl Guest {
    /// CPU k becomes the k-th block of `factor` CPUs. A vCPU with a CPU to itself has one in its
    /// block; vCPUs that share a CPU share the whole block.
    fn grow(&mut self, factor: u32) {
        if self.fixed {
            self.pin.iter_mut().for_each(|cpu| *cpu = cpu.saturating_mul(factor));
            return;
        }
        if self.pin.len() >= self.vcpus as usize && self.pin_width == 1 {
            let own = &self.pin[..self.vcpus as usize];
            let block = |cpu: &u32| {
                cpu.saturating_mul(factor)..cpu.saturating_add(1).saturating_mul(factor)
            };
            self.pin = own.iter().flat_map(block).collect();
        } else if !self.pin.is_empty() {
            self.pin.iter_mut().for_each(|cpu| *cpu = cpu.saturating_mul(factor));
            self.pin_width = self.pin_width.saturating_mul(factor);
        }
        self.vcpus = self.vcpus.saturating_mul(factor);
        self.memory_mib = self.memory_mib.saturating_mul(factor);
    }
}

/// `0-3,8`.
fn ranges(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[u32]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::experiment::Case;

    const PLENTY_MIB: u64 = 1 << 20;

    fn all() -> Vec<Experiment> {
        builtin::names().flat_map(|name| builtin::find(name).unwrap()).collect()
    }

    fn on(e: &Experiment, nr_cpus: u32) -> Result<Experiment, ExperimentError> {
        e.clone().scaled_to(&(0..nr_cpus).collect::<Vec<_>>(), PLENTY_MIB)
    }

    #[test]
    fn every_experiment_keeps_what_there_is_for_a_cpu_on_any_machine() {
        for e in all() {
            for nr_cpus in [1, 2, 4, 6, 7, 16] {
                let Ok(scaled) = on(&e, nr_cpus) else {
                    assert!(nr_cpus < e.host.pcpus, "{} on {nr_cpus}", e.name);
                    continue;
                };
                let what = format!("{} on {nr_cpus}", e.name);
                assert_eq!(scaled.problems(), [], "{what}");
                let factor = nr_cpus / e.host.pcpus;
                assert_eq!(scaled.host.pcpus, factor * e.host.pcpus, "{what}");
                assert_eq!(scaled.host.cpus, (0..scaled.host.pcpus).collect::<Vec<_>>());
                assert_eq!(scaled.host.scaled_from, (factor > 1).then_some(e.host.pcpus));
                for (name, guest) in &e.guests {
                    let grown = &scaled.guests[name];
                    let times = if guest.fixed { 1 } else { factor };
                    assert_eq!(grown.vcpus, times * guest.vcpus, "{what}: {name}");
                    assert_eq!(grown.memory_mib, times * guest.memory_mib, "{what}: {name}");
                    pins_keep_their_company(guest, grown, factor);
                }
                for (case, grown) in e.cases.iter().zip(&scaled.cases) {
                    let what = format!("{what}: {}", case.name);
                    let is_fixed = e.guest_of(case).is_some_and(|(_, guest)| guest.fixed);
                    let times = if is_fixed { 1 } else { factor };
                    assert_eq!(scaled.hogs_of(grown), factor * e.hogs_of(case), "{what}");
                    assert_eq!(scaled.threads_of(grown), times * e.threads_of(case), "{what}");
                    for (b, grown) in case.beside.iter().zip(&grown.beside) {
                        assert_eq!(
                            scaled.threads_beside(grown),
                            factor * e.threads_beside(b),
                            "{what}"
                        );
                    }
                }
            }
        }
    }

    /// As many vCPUs for each CPU they are pinned to, and the same part of the host.
    fn pins_keep_their_company(guest: &Guest, grown: &Guest, factor: u32) {
        let cpus = |g: &Guest| {
            let mut all: Vec<u32> = g.pin.iter().flat_map(|cpu| *cpu..*cpu + g.pin_width).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let (before, after) = (cpus(guest), cpus(grown));
        let times = if guest.fixed { 1 } else { factor };
        assert_eq!(after.len(), before.len() * times as usize);
        assert!(after.iter().all(|cpu| before.contains(&(cpu / factor))));
    }

    #[test]
    fn the_scenarios_of_s1_are_what_they_were_on_sixteen_cpus() {
        let s1 = on(&builtin::find("s1").unwrap()[0], 16).unwrap();
        let guest = |name: &str| &s1.guests[name];
        let a = guest("a-pv");
        assert_eq!((a.vcpus, a.pin_width), (16, 1), "each vCPU has a pCPU of its own");
        assert_eq!(a.pin, (0..16).collect::<Vec<_>>());
        assert!(guest("b-pv").pin.is_empty());
        let c = guest("c-pv");
        assert_eq!((c.vcpus, &*c.pin, c.pin_width), (16, &[0][..], 8), "on half of them");
        let hogs = |name: &str| {
            let case: &Case = s1.cases.iter().find(|c| c.name == name).unwrap();
            s1.hogs_of(case)
        };
        assert_eq!(hogs("B 4x, native"), 48);
    }

    #[test]
    fn what_is_all_on_one_cpu_stays_there() {
        let s3 = on(&builtin::find("s3").unwrap()[0], 16).unwrap();
        let one = &s3.guests["one"];
        assert_eq!((one.vcpus, &*one.pin, one.pin_width), (4, &[0][..], 1));
        let case = s3.cases.iter().find(|c| c.name == "pool x 4, on one pCPU").unwrap();
        assert_eq!(s3.threads_of(case), 4);
    }

    #[test]
    fn a_machine_that_is_too_large_or_has_too_little_memory_is_used_in_part() {
        let s1 = &builtin::find("s1").unwrap()[0];
        // The counter file of 8 threads of a workload has room for 64.
        assert_eq!(on(s1, 128).unwrap().host.pcpus, 16);
        let small = s1.clone().scaled_to(&[0, 1, 2, 3, 4, 5, 6, 7], 3 * 384 + RESERVE_MIB).unwrap();
        assert_eq!(small.host.pcpus, 6);
        let written = s1.clone().scaled_to(&[0, 1, 2, 3], 0).unwrap();
        assert_eq!(written.host.pcpus, 2, "as it is written it is taken for granted");
    }

    #[test]
    fn says_what_was_done_and_what_is_used() {
        let vms = &builtin::find("vms").unwrap()[0];
        assert_eq!(vms.scaling(8), None);
        let cpus = [0, 1, 2, 3, 8, 10, 12];
        let text = vms.clone().scaled_to(&cpus, PLENTY_MIB).unwrap().scaling(16).unwrap();
        for said in [
            "from 2 to 6 pCPUs",
            "3 times",
            "first 12",
            "up to 6",
            "CPUs 0-3,8,10 of this machine's 16, all of",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let text = vms.clone().scaled_to(&cpus[..2], PLENTY_MIB).unwrap().scaling(2).unwrap();
        assert!(text.contains("as it is written") && text.ends_with("machine's 2"), "{text}");
        let why = on(vms, 1).unwrap_err().to_string();
        assert!(why.contains("vms") && why.contains("2 CPUs") && why.contains("--here"), "{why}");
    }
}
