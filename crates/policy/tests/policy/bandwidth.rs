// SPDX-License-Identifier: GPL-2.0-or-later
//! Budgets of cgroups with a limit (cpu.max).

use holdfast_policy::{Budget, Limit, RESERVE_MAX_NS};
use proptest::prelude::*;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const START: u64 = 1 << 40;

/// Any limit that the kernel takes.
fn limit() -> impl Strategy<Value = Limit> {
    (1_000u64..=1_000_000, 1_000u64..4_000_000, 0u64..8_000_000)
        .prop_map(|(period, quota, burst)| Limit::new(period, quota, burst))
}

/// What a group whose tasks always want to run uses.
#[derive(Debug)]
struct Greedy {
    budget: Budget,
    used_ns: u64,
    now: u64,
    longest_stall_ns: u64,
}

impl Greedy {
    fn new(limit: &Limit) -> Self {
        Self { budget: Budget::start(limit, START), used_ns: 0, now: START, longest_stall_ns: 0 }
    }

    /// Runs on CPUs that together pass `cpus` ns in a ns until `until`. Each run uses `overrun_ns`
    /// more than it has taken.
    fn run(&mut self, limit: &Limit, cpus: u64, overrun_ns: u64, until: u64) {
        let mut stalls_since = None;
        while self.now < until {
            self.budget.refill(limit, self.now);
            let took = self.budget.take(limit, RESERVE_MAX_NS);
            if took == 0 {
                stalls_since.get_or_insert(self.now);
                self.now += self.budget.next_period_ns(limit, self.now).max(1);
                continue;
            }
            let stalled_ns = stalls_since.take().map_or(0, |since| self.now - since);
            self.longest_stall_ns = self.longest_stall_ns.max(stalled_ns);
            let used = took + overrun_ns;
            self.budget.give_back(limit, -(overrun_ns as i64));
            self.used_ns += used;
            self.now += used.div_ceil(cpus);
        }
    }
}

/// Takes all that is left.
fn drain(budget: &mut Budget, limit: &Limit) -> u64 {
    std::iter::from_fn(|| Some(budget.take(limit, RESERVE_MAX_NS)).filter(|ns| *ns != 0)).sum()
}

proptest! {
    /// A debt is paid, but for the last one.
    #[test]
    fn ten_periods_give_ten_quotas(limit in limit(), overrun_permille in 0u64..200) {
        prop_assume!(limit.binds(64));
        let mut group = Greedy::new(&limit);
        let overrun_ns = RESERVE_MAX_NS.min(limit.quota_ns) * overrun_permille / 1000;
        group.run(&limit, 64 * 2, overrun_ns, START + 10 * limit.period_ns - 1);
        let ten = 10 * limit.quota_ns;
        prop_assert!((ten..=ten + overrun_ns).contains(&group.used_ns), "{group:?}, {limit:?}");
    }

    #[test]
    fn debt_stalls_a_group_for_no_more_than_two_periods(limit in limit(), debt_ns: u32) {
        let mut group = Greedy::new(&limit);
        group.budget.give_back(&limit, -i64::from(debt_ns) - limit.quota_ns as i64);
        group.run(&limit, 64, 0, START + 5 * limit.period_ns);
        prop_assert!(group.longest_stall_ns <= 2 * limit.period_ns, "{}", group.longest_stall_ns);
        prop_assert!(group.used_ns > 0);
    }

    #[test]
    fn budget_is_never_more_than_quota_and_burst(
        limit in limit(),
        steps in prop::collection::vec((0..3000 * MS, 0..200 * MS, any::<i32>()), 1..50),
    ) {
        let mut budget = Budget::start(&limit, START);
        let most = (limit.quota_ns + limit.burst_ns) as i64;
        let mut now = START;
        for (passed, want, unused) in steps {
            now += passed;
            let before = budget.left_ns;
            budget.refill(&limit, now);
            prop_assert!(budget.left_ns >= before.min(most) && budget.left_ns <= most);
            prop_assert!(now - budget.period_at < limit.period_ns);
            let took = budget.take(&limit, want);
            prop_assert!(took <= want && (took == 0 || budget.left_ns >= 0));
            budget.give_back(&limit, unused.into());
            prop_assert!(budget.left_ns <= most);
        }
    }

    #[test]
    fn next_period_is_when_the_budget_is_refilled(limit in limit(), passed in 0u64..5_000_000_000) {
        let mut budget = Budget::start(&limit, START);
        budget.refill(&limit, START + passed);
        drain(&mut budget, &limit);
        let now = START + passed;
        let next = budget.next_period_ns(&limit, now);
        prop_assert!(next > 0 && next <= limit.period_ns);
        budget.refill(&limit, now + next - 1);
        prop_assert_eq!(budget.left_ns, 0);
        budget.refill(&limit, now + next);
        prop_assert_eq!(budget.left_ns, limit.quota_ns as i64);
    }
}

#[test]
fn idle_group_saves_its_burst_and_no_more() {
    let limit = Limit::new(100_000, 20_000, 10_000);
    let mut budget = Budget::start(&limit, START);
    budget.refill(&limit, START + 1000 * MS);
    assert_eq!(drain(&mut budget, &limit), 30 * MS);
    let plain = Limit::new(100_000, 20_000, 0);
    let mut budget = Budget::start(&plain, START);
    budget.refill(&plain, START + 1000 * MS);
    assert_eq!(drain(&mut budget, &plain), 20 * MS);
}

/// Tasks on several CPUs share a small quota.
#[test]
fn no_task_takes_a_small_quota_as_a_whole() {
    for (quota_us, took_us) in [(1_000, 250), (4_000, 500), (200_000, 5_000)] {
        let limit = Limit::new(100_000, quota_us, 0);
        let mut budget = Budget::start(&limit, START);
        assert_eq!(budget.take(&limit, RESERVE_MAX_NS), took_us * US);
    }
}

#[test]
fn clock_of_another_cpu_may_be_behind() {
    let limit = Limit::new(100_000, 20_000, 0);
    let mut budget = Budget::start(&limit, START);
    drain(&mut budget, &limit);
    budget.refill(&limit, START - 5 * US);
    assert_eq!(budget.left_ns, 0);
    assert_eq!(budget.next_period_ns(&limit, START - 5 * US), limit.period_ns);
}

#[test]
fn limit_that_no_number_of_cpus_reaches_is_none() {
    assert!(Limit::new(100_000, 150_000, 0).binds(2));
    assert!(!Limit::new(100_000, 150_000, 0).binds(1));
    // As the kernel writes "max".
    for none in [u64::MAX, u64::MAX / 1000, 0] {
        assert_eq!(Limit::new(100_000, none, 0), Limit::default());
    }
    assert!(!Limit::default().binds(1));
}
