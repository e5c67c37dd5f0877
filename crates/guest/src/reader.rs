// SPDX-License-Identifier: GPL-2.0-or-later
//! From a process, its memory slots and its vCPUs' steal-time records to a guest that can be read.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    address::{Hva, Slot},
    error::ReadError,
    fit::{Fit, Misfit, fit},
    kallsyms,
    layout::{BuildId, Layout, LayoutError, PER_CPU_VARIABLES},
    memory::{GuestMemory, MemoryError},
    process::ProcessMemory,
    release,
    resolved::{Kernel, ResolvedGuest},
    scan::{Effort, scan},
    source::BtfFiles,
    vcpu::VcpuRecord,
};

/// Layouts kept. A full cache is emptied at once, because guests choose its contents.
const CACHE_MAX: usize = 64;
/// Limits of the exhaustive pass for one process: the shortest interval, and the largest share of a
/// CPU, as one part in this many. The pass costs a quarter of a second of CPU time for each GiB,
/// and a guest without BTF would cause it at every attempt.
const EXHAUST_EVERY: Duration = Duration::from_secs(60);
const EXHAUST_PART: u32 = 100;

/// The result of an attempt to read a guest.
#[derive(Debug)]
pub struct Attempt {
    /// The guest, or the reason why it cannot be read.
    pub found: Result<Arc<ResolvedGuest>, ReadError>,
    /// Duration of the exhaustive pass, if one was made. It has a limit of its own.
    pub exhaustive: Duration,
}

/// Resolves guests, and caches the layouts of their kernels. A program needs only one.
#[derive(Debug, Default)]
pub struct Reader {
    layouts: Mutex<HashMap<BuildId, Result<Layout, LayoutError>>>,
    /// Kernels whose BTF was given as files.
    given: Vec<(BuildId, Layout)>,
    /// Earliest time of the next exhaustive pass, by process id.
    exhausted: Mutex<HashMap<u32, Instant>>,
}

impl Reader {
    /// A reader that takes BTF from guests' memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader that also has the BTF of these kernels, for guests that have none in memory.
    ///
    /// It is used only for guests that it fits, and only if the sampled pass finds no layout in
    /// memory that fits, or several.
    pub fn with_files(files: &[BtfFiles]) -> Self {
        let given = files.iter().flat_map(|files| files.kernels.iter().copied()).collect();
        Self { given, ..Self::default() }
    }

    /// Resolves the guest of process `pid`.
    ///
    /// Call it when a guest appears, and again when its records or slots change (reboot, hot-plug).
    /// It takes tens of milliseconds if the sampled pass finds the kernel's BTF, as it usually
    /// does. Otherwise it searches memory exhaustively, in half a second for 4 GiB, but at most
    /// once a minute for one process.
    pub fn resolve(
        &self,
        pid: u32,
        slots: &[Slot],
        records: &[VcpuRecord],
    ) -> Result<Arc<ResolvedGuest>, ReadError> {
        self.attempt(pid, slots, records).found
    }

    /// [`resolve`](Self::resolve), and what it took.
    pub fn attempt(&self, pid: u32, slots: &[Slot], records: &[VcpuRecord]) -> Attempt {
        let mut exhaustive = Duration::ZERO;
        let found = self.resolve_process(pid, slots, records, &mut exhaustive);
        Attempt { found, exhaustive }
    }

    fn resolve_process(
        &self,
        pid: u32,
        slots: &[Slot],
        records: &[VcpuRecord],
        exhaustive: &mut Duration,
    ) -> Result<Arc<ResolvedGuest>, ReadError> {
        // Records first: guests without steal time are more common, and cheaper to recognise.
        if records.is_empty() {
            return Err(ReadError::NoStealTime);
        }
        let mem = ProcessMemory::open(pid)?;
        let efforts: &[Effort] = match self.may_exhaust(pid, Instant::now()) {
            true => &[Effort::Sampled, Effort::Exhaustive],
            false => &[Effort::Sampled],
        };
        let exhausts = Cell::new(None);
        let on_exhaust = || {
            self.note_exhausted(pid, Instant::now(), Duration::ZERO);
            exhausts.set(Some(Instant::now()));
        };
        let found = self.search(&mem, slots, records, efforts, &on_exhaust);
        if let Some(start) = exhausts.get() {
            *exhaustive = start.elapsed();
            self.note_exhausted(pid, Instant::now(), *exhaustive);
        }
        found
    }

    fn may_exhaust(&self, pid: u32, now: Instant) -> bool {
        let exhausted = self.exhausted.lock().unwrap_or_else(PoisonError::into_inner);
        exhausted.get(&pid).is_none_or(|again| now >= *again)
    }

    fn note_exhausted(&self, pid: u32, now: Instant, took: Duration) {
        let mut exhausted = self.exhausted.lock().unwrap_or_else(PoisonError::into_inner);
        exhausted.retain(|_, again| now < *again);
        exhausted.insert(pid, now + EXHAUST_EVERY.max(took * EXHAUST_PART));
    }

    /// [`resolve`](Self::resolve) with any kind of memory, exhaustively if it takes that.
    pub fn resolve_in(
        &self,
        mem: &dyn GuestMemory,
        slots: &[Slot],
        records: &[VcpuRecord],
    ) -> Result<Arc<ResolvedGuest>, ReadError> {
        self.search(mem, slots, records, &[Effort::Sampled, Effort::Exhaustive], &|| ())
    }

    fn search(
        &self,
        mem: &dyn GuestMemory,
        slots: &[Slot],
        records: &[VcpuRecord],
        efforts: &[Effort],
        on_exhaust: &dyn Fn(),
    ) -> Result<Arc<ResolvedGuest>, ReadError> {
        if records.is_empty() {
            return Err(ReadError::NoStealTime);
        }
        if let Some(bad) = records.iter().find(|record| !record.is_sound()) {
            let (vcpu, hva, gpa) = (bad.vcpu_idx, bad.steal_time, bad.steal_time_gpa);
            return Err(ReadError::BadRecord { vcpu, hva, gpa });
        }
        let mut choice = Choice::default();
        let (mut resident_bytes, mut gave_up) = (0, false);
        for &effort in efforts {
            if effort == Effort::Exhaustive {
                on_exhaust();
            }
            let found = scan(mem, slots, effort)?;
            resident_bytes = found.resident_bytes;
            gave_up |= found.gave_up;
            for blob in &found.blobs {
                let build = BuildId::of(&blob.bytes);
                let mut layout = self.layout(build, &blob.bytes);
                if layout == Err(LayoutError::NoPerCpu) {
                    // Not kept: the symbols are not part of the build's identity.
                    let symbols = kallsyms::find(mem, blob.slot, blob.at, &PER_CPU_VARIABLES)?;
                    layout = Layout::from_symbols(&blob.bytes, symbols.as_ref());
                }
                choice.consider(mem, records, build, layout, Some((blob.slot, blob.at)))?;
            }
            if !choice.has_fit() {
                for (build, layout) in &self.given {
                    choice.consider(mem, records, *build, Ok(*layout), None)?;
                }
            }
            if choice.has_fit() || choice.is_early() {
                break;
            }
        }
        let nr_files = self.given.len();
        let chosen = choice.decide(&self.given).map_err(|reason| match reason {
            Some(error) => error,
            None if gave_up => ReadError::Decoys,
            None => ReadError::NoBtf { resident_mib: resident_bytes >> 20, nr_files },
        })?;
        let banner = match chosen.place {
            Some((slot, at)) => release::find(mem, slot, at)?,
            None => None,
        };
        Ok(Arc::new(ResolvedGuest {
            kernel: Kernel { build: chosen.build, release: banner },
            layout: chosen.layout,
            vcpus: chosen.fit.vcpus,
            direct_map: chosen.fit.direct_map,
        }))
    }

    /// The layout of a blob, read once for each build.
    fn layout(&self, build: BuildId, blob: &[u8]) -> Result<Layout, LayoutError> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if layouts.len() >= CACHE_MAX && !layouts.contains_key(&build) {
            layouts.clear();
        }
        layouts.entry(build).or_insert_with(|| Layout::from_btf(blob)).clone()
    }
}

/// A layout that fits, and where it came from.
struct Chosen {
    build: BuildId,
    layout: Layout,
    place: Option<(Slot, Hva)>,
    fit: Fit,
}

/// Candidates so far; candidates from files have no place.
#[derive(Default)]
struct Choice {
    tried: Vec<BuildId>,
    fits: Vec<Chosen>,
    misfit: Option<Misfit>,
    broken: Option<(BuildId, LayoutError)>,
}

impl Choice {
    fn has_fit(&self) -> bool {
        !self.fits.is_empty()
    }

    /// Layouts that fit and differ.
    fn ambiguity(&self) -> Option<ReadError> {
        let (first, others) = self.fits.split_first()?;
        let other = others.iter().find(|other| !other.layout.has_words_of(&first.layout))?;
        Some(ReadError::Ambiguous(first.build, other.build))
    }

    /// A layout may fit in a moment, so no more memory is searched.
    fn is_early(&self) -> bool {
        matches!(self.misfit, Some(Misfit::Booting))
    }

    fn consider(
        &mut self,
        mem: &dyn GuestMemory,
        records: &[VcpuRecord],
        build: BuildId,
        layout: Result<Layout, LayoutError>,
        place: Option<(Slot, Hva)>,
    ) -> Result<(), MemoryError> {
        if self.tried.contains(&build) {
            return Ok(());
        }
        // Another copy of the blob may have its symbols.
        if layout != Err(LayoutError::NoSymbols) {
            self.tried.push(build);
        }
        match layout {
            Err(error) => {
                self.broken.get_or_insert((build, error));
            }
            Ok(layout) => match fit(mem, &layout, records)? {
                Ok(fit) => self.fits.push(Chosen { build, layout, place, fit }),
                Err(Misfit::Booting) => self.misfit = Some(Misfit::Booting),
                // The file belongs to another guest's kernel.
                Err(_) if place.is_none() => {}
                Err(misfit) => {
                    self.misfit.get_or_insert(misfit);
                }
            },
        }
        Ok(())
    }

    /// The layout that fits. If several fit and differ, a layout that was also given as a file
    /// decides. An error of `None` means that there was no candidate in memory.
    fn decide(mut self, given: &[(BuildId, Layout)]) -> Result<Chosen, Option<ReadError>> {
        if let Some(ambiguous) = self.ambiguity() {
            let is = |fit: &Chosen, layout: &Layout| layout.has_words_of(&fit.layout);
            self.fits.retain(|fit| given.iter().any(|(_, layout)| is(fit, layout)));
            if self.fits.is_empty() || self.ambiguity().is_some() {
                return Err(Some(ambiguous));
            }
        }
        if self.has_fit() {
            return Ok(self.fits.swap_remove(0));
        }
        let candidates = self.tried.len();
        Err(match (self.misfit, self.broken) {
            (Some(source), _) => Some(ReadError::Stale { candidates, source }),
            (None, Some((build, source))) => Some(ReadError::Layout { build, source }),
            (None, None) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_a_process_exhaustively_once_a_minute() {
        let (reader, start) = (Reader::new(), Instant::now());
        assert!(reader.may_exhaust(7, start));
        reader.note_exhausted(7, start, Duration::ZERO);
        assert!(!reader.may_exhaust(7, start + Duration::from_secs(59)));
        assert!(reader.may_exhaust(8, start));
        assert!(reader.may_exhaust(7, start + EXHAUST_EVERY));
        reader.note_exhausted(8, start + EXHAUST_EVERY, Duration::ZERO);
        assert_eq!(reader.exhausted.lock().unwrap().len(), 1, "old entries are forgotten");
    }

    #[test]
    fn searches_a_large_one_exhaustively_more_rarely() {
        let (reader, start) = (Reader::new(), Instant::now());
        reader.note_exhausted(7, start, Duration::from_secs(30));
        assert!(!reader.may_exhaust(7, start + Duration::from_secs(2999)));
        assert!(reader.may_exhaust(7, start + Duration::from_secs(3000)));
    }
}
