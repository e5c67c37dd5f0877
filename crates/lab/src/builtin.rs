// SPDX-License-Identifier: GPL-2.0-or-later
//! Experiments that are run by name, wherever the program is.

use std::path::Path;

use crate::experiment::{Experiment, ExperimentError};

/// Name of the whole campaign.
pub const ALL: &str = "all";

/// Name and text of the experiments of [`ALL`], in order: the five replications, and several VMs.
const CAMPAIGN: [(&str, &str); 6] = [
    ("s1", include_str!("../../../experiments/replications/s1.toml")),
    ("s2", include_str!("../../../experiments/replications/s2.toml")),
    ("s3", include_str!("../../../experiments/replications/s3.toml")),
    ("s4", include_str!("../../../experiments/replications/s4.toml")),
    ("s5", include_str!("../../../experiments/replications/s5.toml")),
    ("vms", include_str!("../../../experiments/vms.toml")),
];

/// The other experiments.
const SINGLE: [(&str, &str); 19] = [
    ("demo", include_str!("../../../experiments/demo.toml")),
    ("contention", include_str!("../../../experiments/contention.toml")),
    ("cgroups", include_str!("../../../experiments/cgroups.toml")),
    ("bound", include_str!("../../../experiments/bound.toml")),
    ("ablation", include_str!("../../../experiments/ablation.toml")),
    ("overcommit", include_str!("../../../experiments/overcommit.toml")),
    ("no-overcommit", include_str!("../../../experiments/no-overcommit.toml")),
    ("others", include_str!("../../../experiments/others.toml")),
    ("price", include_str!("../../../experiments/price.toml")),
    ("sharing", include_str!("../../../experiments/sharing.toml")),
    ("waits", include_str!("../../../experiments/waits.toml")),
    ("reasons", include_str!("../../../experiments/reasons.toml")),
    ("margins", include_str!("../../../experiments/margins.toml")),
    ("wakeups", include_str!("../../../experiments/wakeups.toml")),
    ("overhead", include_str!("../../../experiments/overhead.toml")),
    ("guests", include_str!("../../../experiments/guests.toml")),
    ("workloads", include_str!("../../../experiments/workloads.toml")),
    ("aa", include_str!("../../../experiments/aa.toml")),
    ("smoke", include_str!("../../../experiments/smoke.toml")),
];

fn experiments() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    SINGLE.iter().chain(&CAMPAIGN)
}

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    experiments().map(|(name, _)| *name)
}

/// The experiments called `what`: one of [`names`], [`ALL`], or else a file.
pub fn find(what: &str) -> Result<Vec<Experiment>, ExperimentError> {
    let path = Path::new(what);
    let wanted: Vec<_> = match what {
        ALL => CAMPAIGN.iter().collect(),
        _ => experiments().filter(|(name, _)| what == *name).collect(),
    };
    if wanted.is_empty() || path.is_file() {
        return Experiment::read(path).map(|e| vec![e]);
    }
    wanted.into_iter().map(|(_, text)| Experiment::parse(text, path)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_testbed::machine::Clock;

    use super::*;
    use crate::resume::Done;
    use crate::runner::{self, Pace};

    /// On a machine with two CPUs, where two hosts that count their instructions measure together.
    fn total(experiments: &[Experiment]) -> Duration {
        // A boot of the host is not in the estimate.
        let boots = Duration::from_secs(10) * experiments.len() as u32;
        let time = |e: &Experiment| {
            let hosts = if e.host.clock == Clock::Machine { 1 } else { 2 };
            runner::estimate(e, Pace::of(e.host.clock, true), &Done::default()) / hosts
        };
        boots + experiments.iter().map(time).sum::<Duration>()
    }

    #[test]
    fn each_has_its_name() {
        for name in names() {
            let found = find(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(found.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(find(ALL).unwrap().len(), CAMPAIGN.len());
        assert!(find("s6").unwrap_err().to_string().contains("s6"));
    }

    #[test]
    fn all_of_them_take_less_than_90_minutes_and_quickly_less_than_15() {
        let all = find(ALL).unwrap();
        let whole = total(&all);
        assert!(whole < Duration::from_secs(90 * 60), "{whole:?}");
        let quick = total(&all.into_iter().map(Experiment::quick).collect::<Vec<_>>());
        assert!(quick < Duration::from_secs(15 * 60), "{quick:?}");
    }

    #[test]
    fn each_of_the_campaign_has_something_to_check() {
        for e in find(ALL).unwrap() {
            assert!(!e.expect.is_empty() && e.expect.iter().all(|x| x.contender == "holdfast"));
            assert!(!e.clone().quick().expect.is_empty(), "{}: nor has a quick run", e.name);
        }
    }

    #[test]
    fn one_of_few_cases_expects_something_of_those_alone() {
        let [contention] = &find("contention").unwrap()[..] else { panic!("not one") };
        let few = contention.clone().only(&["lock".into(), "tlb".into()]);
        assert_eq!(few.cases.len(), 2);
        assert!(!few.expect.is_empty() && few.expect.len() < contention.expect.len());
        assert!(few.problems().is_empty(), "{:?}", few.problems());
        assert!(contention.clone().only(&["none".into()]).cases.is_empty());
    }

    #[test]
    fn a_quick_experiment_is_sound() {
        for e in find(ALL).unwrap() {
            let quick = e.clone().quick();
            assert!(quick.problems().is_empty(), "{:?}", quick.problems());
            assert!(quick.windows.rounds >= 2 && quick.windows.length_ms >= 600);
            assert!(quick.cases.len() <= e.cases.len() && quick.cases.iter().all(|c| !c.slow));
        }
    }
}
