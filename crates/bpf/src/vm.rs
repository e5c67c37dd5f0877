// SPDX-License-Identifier: GPL-2.0-or-later
//! The VMs of the host as discovery knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_guest::{MemoryError, ReadError, ResolvedGuest, Slot, VcpuRecord};

/// Shortest and longest time between attempts to read a guest. A guest that is still booting
/// becomes readable soon; one that never does costs little.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// And at least so many times as long as the attempt took: a large guest that is not readable takes
/// no more than a tenth of a CPU. Where there is news, half of one. No longer than that, for it may
/// have been stuck.
const REST: u32 = 9;
const REST_MAX: Duration = Duration::from_secs(60);
/// How many attempts news of a guest may cause at once, and after what time one more. A guest moves
/// its records as often as it likes, and looking for its kernel takes a while.
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

/// Whether a guest's kernel can be read.
#[derive(Debug)]
pub enum VmState {
    /// Not known yet, or not any more; the last reason, if it was tried.
    Unreadable(Option<ReadError>),
    /// Its classes are read.
    Readable(Arc<ResolvedGuest>),
}

/// One VM.
#[derive(Debug)]
pub struct Vm {
    /// Process of its VMM.
    pub pid: u32,
    /// Its vCPUs by number.
    pub vcpus: BTreeMap<u32, Vcpu>,
    /// Can it be read?
    pub state: VmState,
    /// Memory of the guest.
    pub(crate) slots: Vec<Slot>,
    /// When it came to be, in ns: another VM may lie at its address later.
    pub(crate) born: u64,
    pub(crate) epoch: u32,
    /// There was news since the last attempt.
    has_news: bool,
    /// An attempt is being made.
    is_being_searched: bool,
    /// Prompt attempts there were left at the last of them, and when that was.
    prompt: u32,
    prompt_since: Instant,
    /// From when on there may be a prompt attempt, and any.
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

    /// What was learnt is stale: the guest was reset, or its records moved.
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

    /// Something changed that may make it readable.
    pub(crate) fn retry_soon(&mut self) {
        self.has_news = true;
    }

    /// Prompt attempts there may be, now.
    fn nr_prompt(&self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.prompt_since);
        let earned = passed.as_secs() / PROMPT_EARNED.as_secs();
        PROMPT_MAX.min(self.prompt.saturating_add(earned.try_into().unwrap_or(u32::MAX)))
    }

    /// From when on it is worth trying to read it; `None` while it is or cannot be, or it is being
    /// tried.
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

    /// An attempt to read it begins.
    pub(crate) fn begin_resolving(&mut self, now: Instant) {
        self.is_being_searched = true;
        let prompt = if self.has_news { self.nr_prompt(now) } else { 0 };
        if prompt > 0 {
            self.prompt = prompt - 1;
            self.prompt_since = now;
        }
        // The last one left does not make those after it prompt as well.
        self.retry_after =
            if prompt > 1 { RETRY_MIN } else { (self.retry_after * 2).min(RETRY_MAX) };
        self.has_news = false;
    }

    /// An attempt that was begun in `epoch` has ended after so long; what came of it counts if it
    /// is still that. True if it does.
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

    /// Did the kernel forbid to read it when that was last tried?
    pub(crate) fn is_denied(&self) -> bool {
        matches!(&self.state, VmState::Unreadable(Some(why)) if is_denial(why))
    }

    pub(crate) fn records(&self) -> Vec<VcpuRecord> {
        self.vcpus.values().filter_map(|vcpu| vcpu.record).collect()
    }

    /// Is its guest readable?
    pub fn is_readable(&self) -> bool {
        matches!(self.state, VmState::Readable(_))
    }
}

/// The kernel does not let us look into the process.
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

    /// Attempts in so many seconds, with news each time it is looked at.
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
    fn news_is_acted_on_at_once() {
        let now = Instant::now();
        let mut vm = vm(now);
        assert!(vm.wants_resolving(now));
        try_in_vain(&mut vm, now);
        assert!(!vm.wants_resolving(now));
        vm.retry_soon();
        assert!(vm.wants_resolving(now));
    }

    #[test]
    fn it_is_tried_once_at_a_time_and_news_meanwhile_is_not_forgotten() {
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
    fn what_was_found_of_a_guest_that_was_reset_meanwhile_does_not_count() {
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
    fn what_takes_long_is_not_done_all_the_time() {
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
    fn without_news_attempts_become_rare() {
        let now = Instant::now();
        let nr = attempts(&mut vm(now), now, 60, false);
        assert!((10..25).contains(&nr), "{nr}");
    }

    #[test]
    fn a_guest_that_never_stops_moving_is_not_followed_for_ever() {
        let now = Instant::now();
        let mut vm = vm(now);
        let first = attempts(&mut vm, now, 10, true);
        assert!(first >= PROMPT_MAX, "{first}");
        let later = attempts(&mut vm, now + Duration::from_secs(10), 600, true);
        assert!(later < 600 / 2, "{later} in ten minutes");
    }
}
