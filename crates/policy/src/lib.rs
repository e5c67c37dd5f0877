// SPDX-License-Identifier: GPL-2.0-or-later
//! The decisions of Holdfast, callable from Rust.
//!
//! `policy.h` is the one place where they are written. This crate compiles it for user space and
//! gives it a safe face, for the reader and the property tests. The BPF scheduler includes the same
//! file.

#[allow(missing_docs, unreachable_pub, non_camel_case_types, dead_code)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod raw {
    include!(concat!(env!("OUT_DIR"), "/policy.rs"));
}

pub use raw::{
    Budget, CountKind, Decision, Grace, GuestFacts, Limit, Mode, Params, Reason, Siblings, Spin,
    Target, VcpuClass, Verdict,
};

/// The most that a running task takes at once from a budget.
pub const RESERVE_MAX_NS: u64 = raw::HF_RESERVE_MAX_NS as u64;

/// The weight of nice 0; weights are those of sched_ext in 1/1024.
pub const WEIGHT_NICE0: u32 = raw::HF_WEIGHT_NICE0;

/// Number of classes a vCPU can be in; classes are dense from 0.
pub const NR_CLASSES: usize = raw::HF_NR_CLASSES as usize;
/// Number of verdicts; verdicts are dense from 0.
pub const NR_VERDICTS: usize = raw::HF_NR_VERDICTS as usize;
/// Number of targets of a yield; targets are dense from 0.
pub const NR_TARGETS: usize = raw::HF_NR_TARGETS as usize;

impl VcpuClass {
    /// Every class, in the order of its number.
    pub const ALL: [Self; NR_CLASSES] = [
        Self::Unknown,
        Self::Preemptible,
        Self::Holder,
        Self::Irq,
        Self::Waiter,
        Self::Head,
        Self::LikelyHolder,
        Self::LikelyIrq,
        Self::LikelyWaiter,
    ];

    /// The name used in every output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Preemptible => "preemptible",
            Self::Holder => "holder",
            Self::Irq => "irq",
            Self::Waiter => "waiter",
            Self::Head => "head",
            Self::LikelyHolder => "likely_holder",
            Self::LikelyIrq => "likely_irq",
            Self::LikelyWaiter => "likely_waiter",
        }
    }

    /// Is it what signs of a vCPU make likely, and not what its guest's memory says?
    pub fn is_likely(self) -> bool {
        matches!(self, Self::LikelyHolder | Self::LikelyIrq | Self::LikelyWaiter)
    }

    /// Would preempting a vCPU of this class make its siblings wait?
    pub fn is_protected(self) -> bool {
        // SAFETY: a pure function of its argument.
        unsafe { raw::hf_is_protected(self) }
    }
}

/// A guest's preemption count as Linux had it up to 7.2, from the lower half of the word; `wide` if
/// the word has 64 bits.
pub fn preempt_count(word: u32, wide: bool) -> u32 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_preempt_count(word, wide) }
}

/// The class of a vCPU, from the words in its per-CPU area.
pub fn classify(facts: &GuestFacts) -> VcpuClass {
    // SAFETY: reads `facts` only, and returns a declared class for every input (property-tested).
    unsafe { raw::hf_classify(facts) }
}

/// The class of a vCPU of a Windows guest, from its task priority register; `spins` if it seems to.
pub fn classify_irql(tpr: u32, spins: bool) -> VcpuClass {
    // SAFETY: a pure function, which returns a declared class for every input (tested).
    unsafe { raw::hf_classify_irql(tpr, spins) }
}

/// Is a vCPU at `rip` in the loop of the PAUSE at `pause_rip`?
pub fn is_in_spin(rip: u64, pause_rip: u64) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_is_in_spin(rip, pause_rip) }
}

/// Does a vCPU spin that told of a spin `since_ns` ago, and `gap_ns` before that as well?
pub fn still_spins(since_ns: u64, gap_ns: u64) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_still_spins(since_ns, gap_ns) }
}

/// Is a guest with this `HV_X64_MSR_GUEST_OS_ID` Windows?
pub fn is_windows(guest_os_id: u64) -> bool {
    // SAFETY: a pure function of its argument.
    unsafe { raw::hf_is_windows(guest_os_id) }
}

impl Params {
    /// The defaults of the scheduler's options.
    pub const DEFAULT: Self = Self {
        slice_ns: 2_000_000,
        grace_max_ns: 3_000_000,
        grace_step_ns: 30_000,
        grace_budget_max_ns: 20_000_000,
        grace_share_permille: 100,
        resume_boost_permille: 2500,
        spin_ns: 200_000,
        probe_ns: 100_000,
        wakeup_margin_permille: 500,
        sibling_margin_permille: 1500,
    };

    /// Decides, at the end of a slice or of a step of grace, whether a vCPU keeps its CPU.
    /// `budget_ns` is the grace that its VM has left.
    pub fn decide(
        &self,
        grace: &mut Grace,
        budget_ns: &mut u64,
        class: VcpuClass,
        siblings: &Siblings,
    ) -> Decision {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_grace_decide(grace, budget_ns, class, siblings, self) }
    }

    /// The class by which a preempted vCPU is scheduled that has used `cpu_ns` of CPU time.
    pub fn trusted(&self, class: VcpuClass, grace: &Grace, cpu_ns: u64) -> VcpuClass {
        // SAFETY: reads `grace` and `self` only.
        unsafe { raw::hf_trusted(class, grace, cpu_ns, self) }
    }

    /// A running vCPU has a pause exit at `now_ns`: has it spun for `spin_ns`?
    pub fn spun_long(&self, spin: &mut Spin, now_ns: u64) -> bool {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_spun_long(spin, now_ns, self) }
    }

    /// Is the candidate of a vCPU trusted that yields for `reason` at `now_ns`?
    /// `pause_exits_seen`: waiters for PV locks of its VM have pause exits.
    pub fn trusts_candidate(
        &self,
        reason: Reason,
        spin: &mut Spin,
        now_ns: u64,
        pause_exits_seen: bool,
    ) -> bool {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_trusts_candidate(reason, spin, now_ns, pause_exits_seen, self) }
    }

    /// How soon a vCPU is probed after it has begun to run. `pause_exits_seen`: waiters for PV
    /// locks of its VM have pause exits.
    pub fn first_probe(&self, random: u32, pause_exits_seen: bool) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_first_probe(random, pause_exits_seen, self) }
    }

    /// How long a vCPU that cannot be read, and may spin, runs while others wait.
    pub fn spinner_slice(&self) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_spinner_slice(self) }
    }

    /// Budget of a VM after one of its vCPUs ran for `ran_ns`.
    pub fn earn(&self, budget_ns: u64, ran_ns: u64) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_grace_earn(budget_ns, ran_ns, self) }
    }

    /// Virtual time of a task that becomes runnable; `slept` if it did not want to run before.
    pub fn place(&self, vtime: u64, vtime_now: u64, weight: u32, slept: bool) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_place(vtime, vtime_now, weight, slept, self) }
    }

    /// Does a CPU have a virtual time of its own? `first` is the virtual time of the task furthest
    /// behind of those that wait, or run and may run nowhere else. That task has `weight`, and may
    /// be `pinned`. `had`: did the CPU have a time of its own before?
    pub fn has_own_time(
        &self,
        vtime_now: u64,
        first: u64,
        weight: u32,
        pinned: bool,
        had: bool,
    ) -> bool {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_has_own_time(vtime_now, first, weight, pinned, had, self) }
    }

    /// By how much a rebase moves the tasks of a CPU whose time is `here`.
    pub fn rebase(&self, vtime_now: u64, here: u64) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_rebase(vtime_now, here, self) }
    }

    /// Beyond this the times of two CPUs differ by contention alone.
    pub fn far_apart(&self) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_far_apart(self) }
    }

    /// Virtual time of a task that moves from a CPU whose time is `there` to one whose is `here`.
    pub fn move_to(&self, vtime: u64, there: u64, here: u64) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_move(vtime, there, here, self) }
    }

    /// Lag limit: how far behind the host's virtual time a task of `weight` may be.
    pub fn lag_limit(&self, weight: u32, slept: bool) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_lag_limit(weight, slept, self) }
    }

    /// Virtual time of a group after a member of `weight` ran.
    pub fn place_group(&self, group_vtime: u64, vtime_now: u64, weight: u32) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_place_group(group_vtime, vtime_now, weight, self) }
    }

    /// Virtual time of a member of `weight` of a group of `group_weight` at `group_vtime`.
    pub fn place_in_group(
        &self,
        vtime: u64,
        group_vtime: u64,
        weight: u32,
        group_weight: u32,
        slept: bool,
    ) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_place_in_group(vtime, group_vtime, weight, group_weight, slept, self) }
    }

    /// Virtual time of a task whose CPU was not contended: ahead by `slices` at most.
    pub fn clamp_lag(&self, vtime: u64, vtime_now: u64, weight: u32, slices: u32) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_clamp_lag(vtime, vtime_now, weight, slices, self) }
    }

    /// Position in the queue of a runnable task that was `class` when it stopped; `woken` if it had
    /// stopped by itself.
    pub fn queue_key(&self, vtime: u64, class: VcpuClass, woken: bool, weight: u32) -> u64 {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_queue_key(vtime, class, woken, weight, self) }
    }

    /// May a vCPU give its CPU to another, although the task with `first_key` is next? `from` and
    /// `to` are virtual time and weight of the two.
    pub fn may_give(&self, from: (u64, u32), to: (u64, u32), first_key: u64) -> bool {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_may_give(from.0, from.1, to.0, to.1, first_key, self) }
    }

    /// May a waking task of `weight` preempt a running one?
    pub fn wakeup_preempts(
        &self,
        key: u64,
        curr_vtime: u64,
        weight: u32,
        by_sibling: bool,
    ) -> bool {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_wakeup_preempts(key, curr_vtime, weight, by_sibling, self) }
    }
}

impl Default for Params {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Does keeping a vCPU of this class running help its VM?
pub fn is_worth_extending(class: VcpuClass, siblings: &Siblings) -> bool {
    // SAFETY: reads `siblings` only.
    unsafe { raw::hf_is_worth_extending(class, siblings) }
}

/// A vCPU that has used `cpu_ns` of CPU time is probed and has this class.
pub fn note_class(grace: &mut Grace, class: VcpuClass, cpu_ns: u64) {
    // SAFETY: valid reference; nothing is kept.
    unsafe { raw::hf_note_class(grace, class, cpu_ns) }
}

/// The target of a yield. `candidate`: KVM's candidate can have the CPU; `trusted`: as
/// [`Params::trusts_candidate`] says.
pub fn yield_target(
    class: VcpuClass,
    siblings: &Siblings,
    candidate: bool,
    trusted: bool,
) -> Target {
    // SAFETY: reads `siblings` only.
    unsafe { raw::hf_yield_target(class, siblings, candidate, trusted) }
}

/// Does a vCPU give its CPU away if KVM asks for `reason`?
pub fn yields_for(reason: Reason) -> bool {
    // SAFETY: a pure function of its argument.
    unsafe { raw::hf_yields_for(reason) }
}

/// Is a blocker a better target than KVM's candidate?
pub fn prefers_blocker(reason: Reason, class: VcpuClass, pause_exits_seen: bool) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_prefers_blocker(reason, class, pause_exits_seen) }
}

/// The target of a vCPU that is probed within its slice. `pause_exits_seen`: waiters for PV locks
/// have pause exits; `spun_long`: each probe for `spin_ns` saw a spin for a holder.
pub fn probe_target(
    class: VcpuClass,
    siblings: &Siblings,
    pause_exits_seen: bool,
    spun_long: bool,
) -> Target {
    // SAFETY: reads `siblings` only.
    unsafe { raw::hf_probe_target(class, siblings, pause_exits_seen, spun_long) }
}

/// Has a task waited for so long that it gets a slice, whatever it weighs?
pub fn is_starving(waited_ns: u64) -> bool {
    // SAFETY: a pure function of its argument.
    unsafe { raw::hf_is_starving(waited_ns) }
}

/// The host's virtual time, when `least` is that of the task furthest behind.
pub fn advance(vtime_now: u64, least: u64) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_advance(vtime_now, least) }
}

/// Is a rebase due at `now_ns` on a CPU that last checked at `since_ns`?
pub fn may_rebase(now_ns: u64, since_ns: u64) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_may_rebase(now_ns, since_ns) }
}

/// The virtual times of two vCPUs after the first gave its CPU to the second. `from` and `to` are
/// virtual time and weight of the two before.
pub fn swap_places(from: (u64, u32), to: (u64, u32)) -> (u64, u64) {
    let (mut from_vtime, mut to_vtime) = (from.0, to.0);
    // SAFETY: two valid, distinct references; nothing is kept.
    unsafe { raw::hf_swap_places(&mut from_vtime, from.1, &mut to_vtime, to.1) };
    (from_vtime, to_vtime)
}

/// Weight of a member of a group, among the siblings of the group. The group has `group_weight`,
/// and its active members have `total` together. `weight` and the result are in the unit of
/// [`WEIGHT_NICE0`].
pub fn weight_in_group(weight: u32, group_weight: u32, total: u64) -> u32 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_weight_in_group(weight, group_weight, total) }
}

/// Weight, among all tasks of a host, of a group whose active members have `total` together. One of
/// them has `own` of that, and weighs `below` among all tasks.
pub fn weight_among_all(total: u64, own: u32, below: u32) -> u32 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_weight_among_all(total, own, below) }
}

/// Virtual time after running for `ran_ns` at `weight` (in the unit of [`WEIGHT_NICE0`]).
pub fn charge(vtime: u64, ran_ns: u64, weight: u32) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_charge(vtime, ran_ns, weight) }
}

/// Virtual time of a task whose weight changes from `from` to `to`.
pub fn reweigh(vtime: u64, vtime_now: u64, from: u32, to: u32) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_reweigh(vtime, vtime_now, from, to) }
}

/// Order of virtual times, which may wrap.
pub fn vtime_before(a: u64, b: u64) -> bool {
    // SAFETY: a pure function of its arguments.
    unsafe { raw::hf_vtime_before(a, b) }
}

impl Limit {
    /// As the kernel has `cpu.max` and `cpu.max.burst`, in microseconds.
    pub fn new(period_us: u64, quota_us: u64, burst_us: u64) -> Self {
        let mut limit = Self::default();
        // SAFETY: valid reference; nothing is kept.
        unsafe { raw::hf_limit_set(&mut limit, period_us, quota_us, burst_us) };
        limit
    }

    /// Can `nr_cpus` CPUs, which are not 0, reach it?
    pub fn binds(&self, nr_cpus: u32) -> bool {
        // SAFETY: reads `self` only.
        unsafe { raw::hf_limit_binds(self, nr_cpus) }
    }
}

impl Budget {
    /// A full one, whose first period begins at `now_ns`.
    pub fn start(limit: &Limit, now_ns: u64) -> Self {
        let mut budget = Self::default();
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_budget_start(&mut budget, limit, now_ns) };
        budget
    }

    /// Begins a new period if the last one is over.
    pub fn refill(&mut self, limit: &Limit, now_ns: u64) {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_budget_refill(self, limit, now_ns) }
    }

    /// Takes up to `want_ns` for a task; returns how much.
    pub fn take(&mut self, limit: &Limit, want_ns: u64) -> u64 {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_budget_take(self, limit, want_ns) }
    }

    /// Gives back what was taken and not used; below 0 more was used than taken.
    pub fn give_back(&mut self, limit: &Limit, unused_ns: i64) {
        // SAFETY: valid, distinct references; nothing is kept.
        unsafe { raw::hf_budget_return(self, limit, unused_ns) }
    }

    /// In how many ns the next period begins.
    pub fn next_period_ns(&self, limit: &Limit, now_ns: u64) -> u64 {
        // SAFETY: reads its arguments only.
        unsafe { raw::hf_next_period_ns(self, limit, now_ns) }
    }
}
