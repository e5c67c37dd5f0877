// SPDX-License-Identifier: GPL-2.0-or-later
//! The VMs of the host as discovery knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_guest::{MemoryError, ReadError, ResolvedGuest, Slot, Tier, VcpuRecord, WindowsId};

/// Shortest and longest time between attempts to read a guest. A booting guest becomes readable
/// soon; a guest that never does costs little.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The time between attempts is at least this many times the duration of the last attempt: a large
/// guest that is not readable takes at most a tenth of a CPU, and half of one after a change of its
/// records. `REST_MAX` bounds it, because the attempt may have been blocked.
const REST: u32 = 9;
const REST_MAX: Duration = Duration::from_secs(60);
/// Prompt attempts that changes of a guest may cause, and the time after which one more is allowed.
/// A guest may move its records as often as it likes, and searching for its kernel takes a while.
const PROMPT_MAX: u32 = 20;
const PROMPT_EARNED: Duration = Duration::from_secs(10);

/// One vCPU.
#[derive(Debug, Clone)]
pub struct Vcpu {
    /// Thread that runs it.
    pub tid: u32,
    /// Its steal-time record, if the guest has registered one.
    pub record: Option<VcpuRecord>,
}

/// State of reading a guest's kernel.
#[derive(Debug)]
pub enum VmState {
    /// Its layout is not known; with the reason of the last attempt, if there was one.
    Unreadable(Option<ReadError>),
    /// Its classes can be read.
    Readable(Arc<ResolvedGuest>),
}

/// A guest that says it is Windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Its version.
    pub id: WindowsId,
    /// Whether KVM has its task priority in memory, which is its IRQL.
    pub has_irql: bool,
}

/// One VM.
#[derive(Debug)]
pub struct Vm {
    /// Process of its VMM.
    pub pid: u32,
    /// Its vCPUs by number.
    pub vcpus: BTreeMap<u32, Vcpu>,
    /// State of reading its guest.
    pub state: VmState,
    /// Its guest, if it says that it is Windows.
    pub windows: Option<Windows>,
    /// Memory of the guest.
    pub(crate) slots: Vec<Slot>,
    /// Time of its creation, in ns: another VM may lie at its address later.
    pub(crate) born: u64,
    pub(crate) epoch: u32,
    /// Its records changed since the last attempt.
    has_news: bool,
    /// An attempt is in progress.
    is_being_searched: bool,
    /// Prompt attempts left after the last one, and the time of that.
    prompt: u32,
    prompt_since: Instant,
    /// Earliest times of a prompt attempt, and of any attempt.
    prompt_at: Instant,
    retry_at: Instant,
    retry_after: Duration,
}

impl Vm {
    pub(crate) fn new(pid: u32, born: u64, epoch: u32, now: Instant) -> Self {
        Self {
            pid,
            vcpus: BTreeMap::new(),
            state: VmState::Unreadable(None),
            windows: None,
            slots: Vec::new(),
            born,
            epoch,
            has_news: true,
            is_being_searched: false,
            prompt: PROMPT_MAX,
            prompt_since: now,
            prompt_at: now,
            retry_at: now,
            retry_after: RETRY_MIN,
        }
    }

    /// Discards the layout: the guest was reset, or its records moved.
    pub(crate) fn enter_epoch(&mut self, epoch: u32) {
        if self.epoch == epoch {
            return;
        }
        self.epoch = epoch;
        self.state = VmState::Unreadable(None);
        for vcpu in self.vcpus.values_mut() {
            vcpu.record = None;
        }
    }

    /// Notes a change that may make the guest readable.
    pub(crate) fn retry_soon(&mut self) {
        self.has_news = true;
    }

    /// Prompt attempts that are allowed at `now`.
    fn nr_prompt(&self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.prompt_since);
        let earned = passed.as_secs() / PROMPT_EARNED.as_secs();
        PROMPT_MAX.min(self.prompt.saturating_add(earned.try_into().unwrap_or(u32::MAX)))
    }

    /// Time of the next attempt to read it; `None` while it is readable, cannot be read, or is
    /// being tried.
    pub(crate) fn resolving_due(&self, now: Instant) -> Option<Instant> {
        let is_open = !self.is_being_searched
            && matches!(self.state, VmState::Unreadable(_))
            && self.vcpus.values().any(|vcpu| vcpu.record.is_some());
        let is_prompt = self.has_news && self.nr_prompt(now) > 0;
        is_open.then_some(if is_prompt { self.prompt_at } else { self.retry_at })
    }

    pub(crate) fn wants_resolving(&self, now: Instant) -> bool {
        self.resolving_due(now).is_some_and(|due| now >= due)
    }

    /// Begins an attempt to read it.
    pub(crate) fn begin_resolving(&mut self, now: Instant) {
        self.is_being_searched = true;
        let prompt = if self.has_news { self.nr_prompt(now) } else { 0 };
        if prompt > 0 {
            self.prompt = prompt - 1;
            self.prompt_since = now;
        }
        // The last prompt attempt does not make later ones prompt as well.
        self.retry_after =
            if prompt > 1 { RETRY_MIN } else { (self.retry_after * 2).min(RETRY_MAX) };
        self.has_news = false;
    }

    /// Ends an attempt that began in `epoch` and took `took`. Its result counts, and this returns
    /// true, if the epoch is still the same.
    pub(crate) fn end_resolving(
        &mut self,
        state: VmState,
        epoch: u32,
        took: Duration,
        now: Instant,
    ) -> bool {
        self.is_being_searched = false;
        self.prompt_at = now + took.min(REST_MAX);
        self.retry_at = now + self.retry_after.max((took * REST).min(REST_MAX));
        let counts = self.epoch == epoch;
        if counts {
            self.state = state;
        }
        counts
    }

    /// Is its memory being searched?
    pub fn is_being_searched(&self) -> bool {
        self.is_being_searched
    }

    /// Did the kernel forbid the last attempt to read it?
    pub(crate) fn is_denied(&self) -> bool {
        matches!(&self.state, VmState::Unreadable(Some(why)) if is_denial(why))
    }

    pub(crate) fn records(&self) -> Vec<VcpuRecord> {
        self.vcpus.values().filter_map(|vcpu| vcpu.record).collect()
    }

    /// How much is known of its vCPUs.
    pub fn tier(&self) -> Tier {
        match &self.state {
            VmState::Readable(guest) => guest.tier(),
            VmState::Unreadable(_) if self.windows.is_some_and(|w| w.has_irql) => Tier::Irql,
            VmState::Unreadable(_) => Tier::None,
        }
    }

    /// Can its classes be read?
    pub fn is_readable(&self) -> bool {
        matches!(self.state, VmState::Readable(_))
    }
}

/// The kernel does not allow reading the process.
pub(crate) fn is_denial(why: &ReadError) -> bool {
    matches!(why, ReadError::Memory(MemoryError::Permission { .. }))
}

#[cfg(test)]
mod tests {
    use holdfast_guest::{Gpa, Hva};

    use super::*;

    fn vm(now: Instant) -> Vm {
        let slot = Slot::new(Gpa::new(0), Hva::new(1 << 30), 1 << 30).unwrap();
        let record = VcpuRecord::new(0, Gpa::new(1 << 20), slot);
        assert!(record.is_some());
        let mut vm = Vm::new(1, 1, 1, now);
        vm.vcpus.insert(0, Vcpu { tid: 2, record });
        vm
    }

    fn try_in_vain(vm: &mut Vm, now: Instant) {
        vm.begin_resolving(now);
        assert!(vm.end_resolving(VmState::Unreadable(None), vm.epoch, Duration::ZERO, now));
    }

    /// Attempts within `seconds`; with `has_news`, the records change all the time.
    fn attempts(vm: &mut Vm, from: Instant, seconds: u32, has_news: bool) -> u32 {
        let steps = (0..seconds * 100).map(|i| from + Duration::from_millis(10) * i);
        steps
            .filter(|&now| {
                if has_news {
                    vm.retry_soon();
                }
                let wants = vm.wants_resolving(now);
                if wants {
                    try_in_vain(vm, now);
                }
                wants
            })
            .count()
            .try_into()
            .unwrap()
    }

    #[test]
    fn a_windows_guest_is_known_by_its_irql_where_kvm_has_it() {
        let mut vm = vm(Instant::now());
        let id = WindowsId::new(0x0001_040a_0000_4f7c).unwrap();
        for (windows, tier) in [
            (None, Tier::None),
            (Some(Windows { id, has_irql: false }), Tier::None),
            (Some(Windows { id, has_irql: true }), Tier::Irql),
        ] {
            vm.windows = windows;
            assert_eq!(vm.tier(), tier);
        }
    }

    #[test]
    fn a_change_causes_an_attempt_at_once() {
        let now = Instant::now();
        let mut vm = vm(now);
        assert!(vm.wants_resolving(now));
        try_in_vain(&mut vm, now);
        assert!(!vm.wants_resolving(now));
        vm.retry_soon();
        assert!(vm.wants_resolving(now));
    }

    #[test]
    fn attempts_do_not_overlap_and_a_change_meanwhile_is_kept() {
        let now = Instant::now();
        let mut vm = vm(now);
        vm.begin_resolving(now);
        vm.retry_soon();
        let later = now + Duration::from_secs(60);
        assert!(!vm.wants_resolving(later));
        assert!(vm.end_resolving(VmState::Unreadable(None), vm.epoch, Duration::ZERO, later));
        assert!(vm.wants_resolving(later));
    }

    #[test]
    fn the_result_of_an_attempt_is_void_after_a_reset() {
        let now = Instant::now();
        let mut vm = vm(now);
        let record = vm.vcpus[&0].record;
        vm.begin_resolving(now);
        vm.enter_epoch(2);
        vm.vcpus.insert(0, Vcpu { tid: 2, record });
        vm.retry_soon();
        let found = VmState::Unreadable(Some(ReadError::NoStealTime));
        assert!(!vm.end_resolving(found, 1, Duration::ZERO, now));
        assert!(matches!(vm.state, VmState::Unreadable(None)));
        assert!(vm.wants_resolving(now));
    }

    #[test]
    fn long_attempts_become_rare() {
        let (now, took) = (Instant::now(), Duration::from_secs(4));
        let mut vm = vm(now);
        vm.begin_resolving(now);
        assert!(vm.end_resolving(VmState::Unreadable(None), vm.epoch, took, now + took));
        assert_eq!(vm.resolving_due(now), Some(now + took * 10));
        vm.retry_soon();
        assert_eq!(vm.resolving_due(now), Some(now + took * 2));

        vm.begin_resolving(now);
        assert!(vm.end_resolving(VmState::Unreadable(None), vm.epoch, REST_MAX * 10, now));
        assert_eq!(vm.resolving_due(now), Some(now + REST_MAX));
    }

    #[test]
    fn attempts_become_rare_without_changes() {
        let now = Instant::now();
        let nr = attempts(&mut vm(now), now, 60, false);
        assert!((10..25).contains(&nr), "{nr}");
    }

    #[test]
    fn a_guest_that_keeps_moving_its_records_gets_few_attempts() {
        let now = Instant::now();
        let mut vm = vm(now);
        let first = attempts(&mut vm, now, 10, true);
        assert!(first >= PROMPT_MAX, "{first}");
        let later = attempts(&mut vm, now + Duration::from_secs(10), 600, true);
        assert!(later < 600 / 2, "{later} in ten minutes");
    }
}
