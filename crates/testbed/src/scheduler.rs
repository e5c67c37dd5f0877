// SPDX-License-Identifier: GPL-2.0-or-later
//! A scheduler's own counters: the statistics that schedulers of the sched_ext project serve on a
//! Unix socket (the crate `scx_stats`).
//!
//! Each request of a connection is answered with the counts since its last request. So a request at
//! both ends of a window gives, at the end, the counts of the window.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where schedulers serve their statistics.
pub const SOCKET: &str = "/var/run/scx/root/stats";
/// The request for them.
pub const REQUEST: &str = r#"{"req":"stats","args":{"target":"top"}}"#;

/// The counts of a scheduler between two requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Time of the answer; host clock.
    pub t_ns: u64,
    /// Counter: value, verbatim.
    pub counters: Map<String, Value>,
}

impl Counted {
    /// Reads a scheduler's answer to [`REQUEST`]; none if it is an error or something else.
    pub fn parse(line: &str, t_ns: u64) -> Option<Counted> {
        let answer: Value = serde_json::from_str(line).ok()?;
        if answer.get("errno")?.as_i64()? != 0 {
            return None;
        }
        let counters = answer.get("args")?.get("resp")?.as_object()?.clone();
        Some(Counted { t_ns, counters })
    }

    /// Counts per second since `before`, of the host and of the VM with process `vm`, under the
    /// scheduler's own names. Gauges are left out.
    pub fn per_second(&self, before: &Counted, vm: i32) -> BTreeMap<String, f64> {
        self.rates(before, self.counters.iter().chain(self.of_vm(vm).into_iter().flatten()))
    }

    /// The same of the VM alone; empty if there is no such VM, or the scheduler does not report it.
    pub fn per_second_of(&self, before: &Counted, vm: i32) -> BTreeMap<String, f64> {
        self.rates(before, self.of_vm(vm).into_iter().flatten())
    }

    fn rates<'a>(
        &self,
        before: &Counted,
        counts: impl Iterator<Item = (&'a String, &'a Value)>,
    ) -> BTreeMap<String, f64> {
        let seconds = self.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
        if seconds <= 0.0 {
            return BTreeMap::new();
        }
        let counts = counts.filter(|(name, _)| !is_gauge(name));
        counts.filter_map(|(name, v)| Some((name.clone(), v.as_f64()? / seconds))).collect()
    }

    /// Lengths of graces of the VM with process `vm` that ended because a vCPU left its critical
    /// section: `[i]` counts [2^i, 2^(i+1)) us. Empty if the scheduler does not report them.
    pub fn grace_need_us_log2(&self, vm: i32) -> Vec<u64> {
        let need = self.of_vm(vm).and_then(|counts| counts.get("grace_need_us_log2"));
        let need = need.and_then(Value::as_array).into_iter().flatten();
        need.map(Value::as_u64).collect::<Option<_>>().unwrap_or_default()
    }

    fn of_vm(&self, vm: i32) -> Option<&Map<String, Value>> {
        self.counters.get("vms")?.get(vm.to_string())?.as_object()
    }
}

/// The number of VMs is not a count of events.
fn is_gauge(counter: &str) -> bool {
    counter.starts_with("nr_vms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_window_become_rates() {
        let at = |t_ns, line: &str| Counted::parse(line, t_ns).unwrap();
        let before = at(1_000_000_000, r#"{"errno":0,"args":{"resp":{"nr_kept":7}}}"#);
        let line = r#"{"errno":0,"args":{"resp":{"nr_vms_readable":2,"nr_kept":30,"name":"x",
            "vcpus":{"nr_extended":90},
            "vms":{"77":{"nr_extended":50,"grace_need_us_log2":[1,2]},"78":{"nr_extended":40}}}}}"#;
        let after = at(3_000_000_000, line);
        let expected = [("nr_extended".to_string(), 25.0), ("nr_kept".into(), 15.0)];
        assert_eq!(after.per_second(&before, 77), BTreeMap::from(expected));
        let expected = BTreeMap::from([("nr_extended".to_string(), 20.0)]);
        assert_eq!(after.per_second_of(&before, 78), expected);
        assert!(after.per_second_of(&before, 79).is_empty(), "there is no such VM");
        assert_eq!(after.grace_need_us_log2(77), [1, 2]);
        assert!(after.grace_need_us_log2(78).is_empty(), "it says nothing of it");
        assert!(before.per_second(&before, 77).is_empty());
    }

    #[test]
    fn other_answers_have_no_counts() {
        for line in ["", "[]", r#"{"errno":22,"args":{"resp":{}}}"#, r#"{"errno":0,"args":{}}"#] {
            assert_eq!(Counted::parse(line, 1), None, "{line}");
        }
    }
}
