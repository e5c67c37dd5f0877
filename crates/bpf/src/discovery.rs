// SPDX-License-Identifier: GPL-2.0-or-later
//! Follows the VMs of the host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_guest::{BtfFiles, Gpa, Hva, Reader, ResolvedGuest, Slot, VcpuRecord, WindowsId};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, RingBuffer, RingBufferBuilder};

use crate::error::DiscoveryError;
use crate::searches::{Search, Searches};
use crate::skel::types::{hf_event, hf_layout, hf_slot, hf_vm};
use crate::skel::{DiscoverySkel, DiscoverySkelBuilder};
use crate::vm::{Vcpu, Vm, VmState, Windows, is_denial};

/// Interval between searches for ended VMs.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// Finds vCPUs and resolves their guests, until it is dropped.
pub struct Discovery<'obj> {
    skel: DiscoverySkel<'obj>,
    ring: RingBuffer<'obj>,
    received: Rc<RefCell<Vec<hf_event>>>,
    links: Vec<Link>,
    vms: BTreeMap<u64, Vm>,
    /// VMs that the last search found ended.
    ended: Vec<(u64, Vm)>,
    reader: Arc<Reader>,
    searches: Searches,
    reaped_at: Instant,
}

impl<'obj> Discovery<'obj> {
    /// Loads and attaches the program. `storage` keeps libbpf's object alive; `btf` holds BTF of
    /// guest kernels, for guests that have none in memory.
    ///
    /// The kvm module has to be loaded: its BTF has the offsets of the fields.
    pub fn attach(
        storage: &'obj mut MaybeUninit<OpenObject>,
        btf: &[BtfFiles],
    ) -> Result<Self, DiscoveryError> {
        if !Path::new("/sys/kernel/btf/kvm").exists() && !Path::new("/dev/kvm").exists() {
            log::warn!("this host has no /dev/kvm: no vCPU will be found");
        }
        let skel = load(storage)?;
        let programs = [
            &skel.progs.vcpu_load,
            &skel.progs.vcpu_spins,
            &skel.progs.process_exec,
            &skel.progs.vcpu_destroyed,
            &skel.progs.vm_destroyed,
        ];
        let links = programs.map(|program| {
            program.attach().map_err(|source| DiscoveryError::bpf("attach", source))
        });
        let links = links.into_iter().collect::<Result<Vec<_>, _>>()?;

        let received = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&skel.maps.events, move |bytes| {
                if let Some(event) = parse_event(bytes) {
                    sink.borrow_mut().push(event);
                }
                0
            })
            .map_err(|source| map_error("open the ring", "events", source))?;
        let ring =
            builder.build().map_err(|source| map_error("open the ring", "events", source))?;

        Ok(Self {
            skel,
            ring,
            received,
            links,
            vms: BTreeMap::new(),
            ended: Vec::new(),
            reader: Arc::new(Reader::with_files(btf)),
            searches: Searches::default(),
            reaped_at: Instant::now(),
        })
    }

    /// Loads the program and drops it, without attaching it.
    pub fn try_load() -> Result<(), DiscoveryError> {
        load(&mut MaybeUninit::uninit()).map(drop)
    }

    /// The map of vCPU threads, for sharing with programs that read classes.
    pub fn vcpus(&self) -> BorrowedFd<'_> {
        self.skel.maps.vcpus.as_fd()
    }

    /// The VMs known, by the address of their `struct kvm`.
    pub fn vms(&self) -> &BTreeMap<u64, Vm> {
        &self.vms
    }

    /// The VMs that the last call of [`Self::poll`] or [`Self::process`] found ended, as they were
    /// known: those whose keys it returned, and those whose `struct kvm` another VM has replaced
    /// already.
    pub fn ended(&self) -> &[(u64, Vm)] {
        &self.ended
    }

    /// Waits up to `timeout` for vCPUs' reports, and processes them. Returns the keys of VMs that
    /// have ended.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<u64>, DiscoveryError> {
        let heard = self.ring.poll(timeout);
        self.act(heard)
    }

    /// Processes pending reports without waiting, for callers with an event loop of their own. They
    /// call it when the file descriptor of [`AsFd`] is readable, and at [`Self::next_due`]. Returns
    /// the keys of VMs that have ended.
    pub fn process(&mut self) -> Result<Vec<u64>, DiscoveryError> {
        let heard = self.ring.consume();
        self.act(heard)
    }

    /// Next time at which work is due even without a report; `None` without VMs.
    pub fn next_due(&self) -> Option<Instant> {
        let reap = (!self.vms.is_empty()).then(|| self.reaped_at + REAP_INTERVAL);
        let now = Instant::now();
        let searched = self.searches.next_check(now);
        // At the limit of searches, the next search waits for the end of another one.
        let vms = self.vms.values().filter(|vm| self.searches.have_room_for(vm.pid));
        let due = vms.filter_map(|vm| vm.resolving_due(now));
        due.chain(searched).chain(reap).min()
    }

    fn act(&mut self, heard: libbpf_rs::Result<()>) -> Result<Vec<u64>, DiscoveryError> {
        heard
            .or_else(|err| match err.kind() {
                libbpf_rs::ErrorKind::Interrupted => Ok(()),
                _ => Err(err),
            })
            .map_err(|source| map_error("wait for events", "events", source))?;
        self.ended.clear();
        for event in self.received.take() {
            self.handle(&event);
        }

        let now = Instant::now();
        let ended = if now - self.reaped_at >= REAP_INTERVAL {
            self.reaped_at = now;
            self.reap()?
        } else {
            Vec::new()
        };
        self.resolve(now);
        Ok(ended)
    }

    fn handle(&mut self, event: &hf_event) {
        let raw = &event.vcpu;
        // A thread runs one vCPU. KVM does not forget at once the vCPU of a VM that the thread ran
        // before.
        for vm in self.vms.values_mut().filter(|vm| vm.pid == event.tgid) {
            vm.vcpus.retain(|_, vcpu| vcpu.tid != raw.tid);
        }
        let new = || Vm::new(event.tgid, raw.born, event.epoch, Instant::now());
        let vm = self.vms.entry(raw.kvm).or_insert_with(new);
        if vm.born != raw.born {
            self.ended.push((raw.kvm, std::mem::replace(vm, new())));
        }
        vm.enter_epoch(event.epoch);
        let slot = |gpa, hva, len| Slot::new(Gpa::new(gpa), Hva::new(hva), len);
        let record = slot(raw.slot_gpa, raw.slot_hva, raw.slot_len)
            .filter(|_| raw.steal_hva != 0)
            .and_then(|slot| VcpuRecord::new(raw.vcpu_idx, Gpa::new(raw.steal_gpa), slot));
        vm.slots = event.slots[..event.nr_slots as usize]
            .iter()
            .filter_map(|raw| slot(raw.gpa, raw.hva, raw.len))
            .collect();
        let windows = WindowsId::new(raw.guest_os_id);
        let windows = windows.map(|id| Windows { id, has_irql: raw.tpr != 0 });
        if vm.windows != windows {
            vm.windows = windows;
            if let Some(Windows { id, .. }) = windows {
                log::info!("pid {}: tier {}: {id}", vm.pid, vm.tier().name());
            }
        }
        log::debug!("pid {} vCPU {} (tid {}): {record:?}", event.tgid, raw.vcpu_idx, raw.tid);
        vm.vcpus.insert(raw.vcpu_idx, Vcpu { tid: raw.tid, record });
        vm.retry_soon();
    }

    /// Learns the layouts of guests that are not readable yet. Searching a large guest takes long,
    /// so a thread of its own does it.
    fn resolve(&mut self, now: Instant) {
        for search in self.searches.take_finished(now) {
            self.learn(search, now);
        }
        let mut waiting: Vec<_> =
            self.vms.iter_mut().filter(|(_, vm)| vm.wants_resolving(now)).collect();
        // The VM that has waited longest comes first: others may be due again and again.
        waiting.sort_by_key(|(_, vm)| vm.resolving_due(now));
        for (&kvm, vm) in waiting {
            if !self.searches.have_room_for(vm.pid) {
                continue;
            }
            let (pid, born, epoch) = (vm.pid, vm.born, vm.epoch);
            let (mut slots, records) = (vm.slots.clone(), vm.records());
            // Before Linux 5.17 no other slots are known.
            if slots.is_empty() {
                slots.extend(records.iter().map(|record| record.slot));
            }
            let reader = Arc::clone(&self.reader);
            vm.begin_resolving(now);
            let begun = self
                .searches
                .begin((kvm, born, epoch, pid), now, move || reader.attempt(pid, &slots, &records));
            // Other programs may have used up the limit of threads for a moment.
            if let Err(why) = begun {
                log::warn!("pid {pid}: no thread to search its memory: {why}");
                vm.end_resolving(VmState::Unreadable(None), epoch, Duration::ZERO, now);
            }
        }
    }

    fn learn(&mut self, search: Search, now: Instant) {
        let (kvm, born, epoch, mut took) =
            (search.kvm, search.born, search.epoch, search.took(now));
        let found = search.join().map(|attempt| {
            // The exhaustive pass has a limit of its own.
            took = took.saturating_sub(attempt.exhaustive);
            attempt.found
        });
        let Some(vm) = self.vms.get_mut(&kvm).filter(|vm| vm.born == born) else {
            return;
        };
        let state = match found {
            Ok(Ok(guest)) => {
                log::info!("pid {}: tier {}: {}", vm.pid, guest.tier().name(), guest.kernel());
                VmState::Readable(guest)
            }
            Ok(Err(why)) => {
                // Later attempts fail in the same way, until the operator changes something.
                let level = match vm.is_denied() {
                    false if is_denial(&why) => log::Level::Warn,
                    _ => log::Level::Debug,
                };
                let remedy = why.remedy().map(|text| format!("; {text}")).unwrap_or_default();
                log::log!(level, "pid {}: tier none: {why}{remedy}", vm.pid);
                VmState::Unreadable(Some(why))
            }
            // The panic has printed its reason. One guest does not stop the work for the others.
            Err(_) => VmState::Unreadable(None),
        };
        if vm.end_resolving(state, epoch, took, now)
            && let VmState::Readable(guest) = &vm.state
        {
            let layout = layout_of(guest, epoch);
            let layouts = &self.skel.maps.layouts;
            // This VM's vCPUs stay ordinary tasks; other VMs are not affected.
            if let Err(why) = layouts.update(&kvm.to_ne_bytes(), as_bytes(&layout), MapFlags::ANY) {
                log::warn!("pid {}: cannot publish the layout of its guest: {why}", vm.pid);
            }
        }
    }

    /// Forgets VMs that KVM has destroyed.
    fn reap(&mut self) -> Result<Vec<u64>, DiscoveryError> {
        let mut ended = Vec::new();
        for (kvm, vm) in &self.vms {
            let map = &self.skel.maps.vms;
            let found = map
                .lookup(&kvm.to_ne_bytes(), MapFlags::ANY)
                .map_err(|source| map_error("look up a VM", "vms", source))?;
            // Another VM may lie at this address already.
            let found = found.and_then(|bytes| from_bytes::<hf_vm>(&bytes));
            if found.is_none_or(|found| found.born != vm.born) {
                ended.push(*kvm);
            }
        }
        for kvm in &ended {
            self.ended.extend(self.vms.remove(kvm).map(|vm| (*kvm, vm)));
            // The layout may have been published after KVM destroyed the VM.
            let _ = self.skel.maps.layouts.delete(&kvm.to_ne_bytes());
        }
        Ok(ended)
    }

    /// Reports that waited for room in the ring, and vCPU threads that could not be tracked.
    pub fn losses(&self) -> (u64, u64) {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or((0, 0), |bss| (bss.nr_deferred_events, bss.nr_untracked))
    }
}

impl AsFd for Discovery<'_> {
    /// Readable (poll(2), epoll(7)) when there are reports of vCPUs.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns its epoll instance, which stays open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

impl Drop for Discovery<'_> {
    fn drop(&mut self) {
        // Detach before the maps are freed.
        self.links.clear();
    }
}

fn load(storage: &mut MaybeUninit<OpenObject>) -> Result<DiscoverySkel<'_>, DiscoveryError> {
    let open = DiscoverySkelBuilder::default()
        .open(storage)
        .map_err(|source| DiscoveryError::bpf("open", source))?;
    open.load().map_err(|source| DiscoveryError::bpf("load", source))
}

fn map_error(action: &'static str, map: &'static str, source: libbpf_rs::Error) -> DiscoveryError {
    DiscoveryError::Map { action, map, source }
}

/// The layout in the form that BPF needs. Queue nodes that do not have the shape of `struct
/// hf_qnode` are left out: a Waiter then looks like a Holder, which the bound on grace makes
/// harmless.
fn layout_of(guest: &ResolvedGuest, epoch: u32) -> hf_layout {
    let deltas = guest.deltas();
    let qnodes = deltas
        .queue
        .filter(|queue| queue.locked == queue.next + 8 && queue.count == queue.next + 12);
    hf_layout {
        epoch,
        count_kind: guest.layout().count_kind as u32,
        preempt_count_delta: deltas.preempt_count,
        qnodes_delta: qnodes.map_or(0, |queue| queue.next),
        current_task_delta: deltas.current_task.unwrap_or(0),
        idle_task_delta: deltas.idle_task.unwrap_or(0),
        call_queue_delta: deltas.call_queue.unwrap_or(0),
        direct_map: guest.direct_map().unwrap_or(0),
    }
}

/// An event, cut off after the last of its slots.
fn parse_event(bytes: &[u8]) -> Option<hf_event> {
    let mut whole = [0; size_of::<hf_event>()];
    if !(offset_of!(hf_event, slots)..=whole.len()).contains(&bytes.len()) {
        return None;
    }
    whole[..bytes.len()].copy_from_slice(bytes);
    let mut event: hf_event = from_bytes(&whole)?;
    let slots = (bytes.len() - offset_of!(hf_event, slots)) / size_of::<hf_slot>();
    event.nr_slots = event.nr_slots.min(slots as u32);
    Some(event)
}

/// Reads a wire type from the bytes that BPF wrote. `T` is one of the generated `#[repr(C)]` types.
fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, the read is unaligned, and the generated types consist of
    // integers only, for which every bit pattern is valid.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a wire type. `T` is one of the generated `#[repr(C)]` types, without padding.
fn as_bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: any initialised value may be read as bytes; the borrow keeps it alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_slots_that_were_sent() {
        // SAFETY: the type consists of integers.
        let mut sent: hf_event = unsafe { std::mem::zeroed() };
        sent.nr_slots = 40;
        for (i, slot) in sent.slots.iter_mut().enumerate() {
            slot.gpa = (i as u64) << 30;
        }
        let at = |nr: usize| offset_of!(hf_event, slots) + nr * size_of::<hf_slot>();
        let bytes = as_bytes(&sent);
        let event = parse_event(&bytes[..at(40)]).unwrap();
        assert_eq!((event.nr_slots, event.slots[39].gpa), (40, 39 << 30));
        // A count that is too high adds no slots.
        assert_eq!(parse_event(&bytes[..at(39)]).unwrap().nr_slots, 39);
        assert!(parse_event(&bytes[..at(0) - 1]).is_none());
    }
}
