// SPDX-License-Identifier: GPL-2.0-or-later
//! Finding the guest kernel's BTF in the guest's memory.
//!
//! The blob is part of the kernel image (`.BTF`, between `.notes` and `.BTF_ids`), so it is
//! contiguous in guest-physical memory and never moves. It begins at any multiple of 4: at 0x070
//! and 0x85c of a page in Debian's 6.1 and 6.12; from 6.15 on it begins a page. There can be more
//! than one: BTF of modules, which is small and has no per-CPU section, and kernels that ran before
//! a kexec or a reboot.
//!
//! Two passes, so that a large guest costs little and a strange one is still read:
//!
//! - *Sampled.* A blob's string section is about 2 MB of identifiers with a NUL after each. The
//!   pass reads one resident page in every 256 KiB. If the page and its neighbours hold such text,
//!   it searches memory backwards for the header. String tables of programs in the page cache are
//!   shorter, and scattered.
//! - *Exhaustive.* Every resident byte is searched for the header, by several threads.
//!
//! Only resident pages are read: a scan must not make the guest larger.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use memchr::memmem;

use crate::{
    address::{Gpa, Hva, HvaRange, PAGE_SIZE, Slot},
    btf::{HEADER_LEN, Header, MAGIC},
    memory::{GuestMemory, MemoryError},
};
use texture::{looks_like_strings, looks_like_types};

mod texture;

/// The sampled pass reads one page in this many bytes. It hits every string section longer than
/// this; those of Debian's kernels have 1.7 to 2.2 MB.
const STRIDE: u64 = 256 << 10;
/// This much contiguous text is taken for a string section. The shortest section that a sample
/// always hits has a little more.
const TEXT_MIN: u64 = STRIDE / 4 * 3;
/// Longest distance from the header to a page of strings; 5 MB in real blobs.
const BACK_MAX: u64 = 32 << 20;
/// Step of the search for the header, which goes on as long as at least half of each step looks
/// like BTF.
const BACK_STEP: u64 = 64 << 10;
/// Bytes read and searched at a time: they fit in a CPU's L2 cache, so the search reads warm data.
const CHUNK: u64 = 256 << 10;
/// Bytes handed to a thread at a time. This also bounds the list of resident ranges.
const WINDOW: u64 = 64 << 20;
/// Limits of the headers examined in full, and of the bytes read for that: a guest full of false
/// headers must not keep the scan busy.
const HEADERS_MAX: usize = 4096;
const EXAMINE_MAX: u64 = 512 << 20;
/// Bytes that the sampled pass may read around samples that look like BTF: some 40 times the bytes
/// that a kernel's BTF takes, or as many as the samples take. Beyond that the exhaustive pass is
/// cheaper, and it is made rarely.
const CLOSE_MAX: u64 = 256 << 20;
/// Blobs kept from one scan, and their bytes: a kernel's blob has 5 to 7 MB.
const BLOBS_MAX: usize = 8;
const BLOBS_BYTES_MAX: usize = 32 << 20;
/// Threads of the exhaustive pass.
const THREADS_MAX: usize = 4;

/// The thoroughness of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Read one page in each 256 KiB, and more where it looks like BTF.
    Sampled,
    /// Search every resident byte.
    Exhaustive,
}

/// A copy of a blob that may be a kernel's BTF, and its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob {
    /// Host address of the header.
    pub at: Hva,
    /// The slot it lies in.
    pub slot: Slot,
    /// The blob. Its header is sound, and its strings name the variables of a kernel with KVM guest
    /// support; nothing else has been checked.
    pub bytes: Vec<u8>,
}

impl Blob {
    /// Guest-physical address of the header.
    pub fn gpa(&self) -> Gpa {
        self.slot.to_gpa(self.at, 0).unwrap_or(self.slot.gpa())
    }
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blob({} bytes at {})", self.bytes.len(), self.gpa())
    }
}

/// The result of a scan, and its cost.
#[derive(Debug, Default)]
pub struct Scan {
    /// Plausible blobs, by address.
    pub blobs: Vec<Blob>,
    /// Bytes of the slots that were in memory.
    pub resident_bytes: u64,
    /// Bytes copied out of the guest.
    pub read_bytes: u64,
    /// Whether a limit ended the scan early: the guest is full of data that looks like BTF.
    pub gave_up: bool,
}

/// Searches the resident memory of `slots` for kernels' BTF.
pub fn scan(mem: &dyn GuestMemory, slots: &[Slot], effort: Effort) -> Result<Scan, MemoryError> {
    // One slot may map the same memory as another (firmware shadows): search it once.
    let mut distinct: Vec<Slot> = Vec::new();
    for slot in slots {
        if !distinct.iter().any(|seen| seen.hva_range().contains(slot.hva_range())) {
            distinct.push(*slot);
        }
    }
    let search = Search {
        mem,
        examined: Mutex::default(),
        blobs: Mutex::default(),
        resident_bytes: AtomicU64::new(0),
        read_bytes: AtomicU64::new(0),
        close_max: CLOSE_MAX
            .max(distinct.iter().map(|slot| slot.hva_range().len() / (STRIDE / PAGE_SIZE)).sum()),
        close_bytes: AtomicU64::new(0),
        examined_bytes: AtomicU64::new(0),
        gave_up: AtomicBool::new(false),
    };
    match effort {
        Effort::Sampled => distinct.iter().try_for_each(|slot| search.sample(*slot))?,
        Effort::Exhaustive => search.exhaust(&distinct)?,
    }
    let mut blobs = search.blobs.into_inner().unwrap_or_else(PoisonError::into_inner);
    blobs.sort_by_key(|blob| blob.at);
    Ok(Scan {
        blobs,
        resident_bytes: search.resident_bytes.into_inner(),
        read_bytes: search.read_bytes.into_inner(),
        gave_up: search.gave_up.into_inner(),
    })
}

/// Copies the blob whose header is at `at`, if it is plausible and resident as a whole.
pub fn blob_at(mem: &dyn GuestMemory, slot: Slot, at: Hva) -> Result<Option<Blob>, MemoryError> {
    let mut bytes = [0; HEADER_LEN];
    if slot.to_gpa(at, HEADER_LEN as u64).is_none() || !mem.is_resident(at, HEADER_LEN as u64)? {
        return Ok(None);
    }
    match mem.read(at, &mut bytes) {
        Err(MemoryError::NotMapped { .. }) => return Ok(None),
        other => other?,
    }
    let header = Header::parse(&bytes).ok();
    match header.filter(|h| slot.to_gpa(at, h.total_len() as u64).is_some()) {
        Some(header) => examine(mem, slot, at, header, &mut |_| true),
        None => Ok(None),
    }
}

struct Search<'a> {
    mem: &'a dyn GuestMemory,
    /// Places of the headers that have been examined.
    examined: Mutex<BTreeSet<Hva>>,
    blobs: Mutex<Vec<Blob>>,
    resident_bytes: AtomicU64,
    read_bytes: AtomicU64,
    close_max: u64,
    close_bytes: AtomicU64,
    examined_bytes: AtomicU64,
    gave_up: AtomicBool,
}

impl Search<'_> {
    fn sample(&self, slot: Slot) -> Result<(), MemoryError> {
        let (mut runs, mut pages, mut text) = (Vec::new(), Vec::new(), Vec::new());
        // Everything below this address has been searched as far back as it needs to be.
        let mut searched_to = slot.hva();
        for window in windows(slot) {
            if self.gave_up() {
                break;
            }
            runs.clear();
            self.mem.resident(window, &mut runs)?;
            self.count_resident(&runs);
            pages.clear();
            for run in &runs {
                let first = run.start.get().checked_next_multiple_of(STRIDE).unwrap_or(u64::MAX);
                pages.extend((first..run.end.get()).step_by(STRIDE as usize).map(Hva::new));
            }
            pages.retain(|page| slot.to_gpa(*page, PAGE_SIZE).is_some());
            text.resize(pages.len() * PAGE_SIZE as usize, 0);
            self.mem.gather(&pages, PAGE_SIZE as usize, &mut text)?;
            self.count_read(text.len());
            for (page, text) in pages.iter().zip(text.chunks_exact(PAGE_SIZE as usize)) {
                if *page >= searched_to && looks_like_strings(text) {
                    let before = self.read_bytes.load(Ordering::Relaxed);
                    if self.is_long_text(slot, *page)? {
                        searched_to = self.search_back(slot, *page, searched_to)?;
                    }
                    self.count_close(self.read_bytes.load(Ordering::Relaxed) - before);
                }
                if self.gave_up() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Do the pages around a page of strings hold enough text?
    fn is_long_text(&self, slot: Slot, page: Hva) -> Result<bool, MemoryError> {
        const STEP: u64 = 8 * PAGE_SIZE;
        let near = HvaRange {
            start: Hva::new(page.get().saturating_sub(TEXT_MIN)),
            end: page.checked_add(TEXT_MIN).unwrap_or(page),
        };
        let (mut runs, mut buf) = (Vec::new(), [0; STEP as usize]);
        if let Some(near) = near.intersect(slot.hva_range()) {
            self.mem.resident(near, &mut runs)?;
        }
        let Some(run) = runs.iter().find(|run| run.start <= page && page < run.end) else {
            return Ok(false);
        };
        // Text found so far, in whole pages: the search goes outwards from the page, down first.
        let (mut low, mut high) = (page, page);
        for down in [true, false] {
            while high.get() - low.get() < TEXT_MIN {
                let room =
                    if down { low.get() - run.start.get() } else { run.end.get() - high.get() };
                let len = room.min(STEP) / PAGE_SIZE * PAGE_SIZE;
                let start = if down { Hva::new(low.get() - len) } else { high };
                let piece = &mut buf[..len as usize];
                match self.mem.read(start, piece) {
                    Err(MemoryError::NotMapped { .. }) => return Ok(false),
                    other => other?,
                }
                self.count_read(piece.len());
                let mut pages = piece.chunks_exact(PAGE_SIZE as usize);
                let text = if down {
                    pages.rev().take_while(|page| looks_like_strings(page)).count() as u64
                } else {
                    pages.by_ref().take_while(|page| looks_like_strings(page)).count() as u64
                } * PAGE_SIZE;
                if down {
                    low = Hva::new(low.get() - text);
                } else {
                    high = Hva::new(high.get() + text);
                }
                if text < STEP {
                    break;
                }
            }
        }
        Ok(high.get() - low.get() >= TEXT_MIN)
    }

    /// Searches from a page of strings down to `floor` for its blob. Returns the address down to
    /// which the search is complete.
    fn search_back(&self, slot: Slot, page: Hva, floor: Hva) -> Result<Hva, MemoryError> {
        let floor = floor.max(Hva::new(page.get().saturating_sub(BACK_MAX)));
        let done = page.checked_add(PAGE_SIZE).unwrap_or(page);
        let mut runs = Vec::new();
        self.mem.resident(HvaRange { start: floor, end: done }, &mut runs)?;
        // A blob is resident as a whole, so its header is in the same run as its strings.
        let Some(run) = runs.last().filter(|run| run.end == done) else { return Ok(done) };
        let mut buf = Vec::new();
        let mut end = done;
        while end > run.start {
            let start = run.start.max(Hva::new(end.get().saturating_sub(BACK_STEP)));
            for (at, header) in self.headers(slot, HvaRange { start, end }, done, &mut buf)? {
                if let Some(blob) = self.take(slot, at, header)?
                    && blob.start <= page
                    && page < blob.end
                {
                    return Ok(blob.end);
                }
            }
            // These are neither strings nor types: the page belongs to another string table.
            let pages = buf.chunks_exact(PAGE_SIZE as usize);
            let nr_like = pages.filter(|page| looks_like_strings(page) || looks_like_types(page));
            if (nr_like.count() as u64) < BACK_STEP / PAGE_SIZE / 2 {
                return Ok(done);
            }
            end = start;
        }
        Ok(done)
    }

    fn exhaust(&self, slots: &[Slot]) -> Result<(), MemoryError> {
        let work: Vec<(Slot, HvaRange)> =
            slots.iter().flat_map(|slot| windows(*slot).map(|w| (*slot, w))).collect();
        let next = AtomicUsize::new(0);
        let worker = || {
            let (mut runs, mut buf) = (Vec::new(), Vec::new());
            while let Some((slot, window)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.exhaust_window(*slot, *window, &mut runs, &mut buf)?;
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads.min(work.len())).map(|_| scope.spawn(worker)).collect();
            let mine = worker();
            others.into_iter().fold(mine, |result, other| match other.join() {
                Ok(theirs) => result.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn exhaust_window(
        &self,
        slot: Slot,
        window: HvaRange,
        runs: &mut Vec<HvaRange>,
        buf: &mut Vec<u8>,
    ) -> Result<(), MemoryError> {
        // A header may begin in the last bytes of this window and end in the next one.
        let reach = window.end.checked_add(PAGE_SIZE).unwrap_or(window.end);
        runs.clear();
        self.mem.resident(HvaRange { end: reach.min(slot.hva_range().end), ..window }, runs)?;
        for run in runs {
            let Some(mine) = run.intersect(window) else { continue };
            self.count_resident(&[mine]);
            let mut start = mine.start;
            while start < mine.end && !self.gave_up() {
                let end = mine.end.min(HvaRange::new(start, CHUNK).end);
                for (at, header) in self.headers(slot, HvaRange { start, end }, run.end, buf)? {
                    self.take(slot, at, header)?;
                }
                start = end;
            }
        }
        Ok(())
    }

    /// Every sound header that begins in `range` and ends before `limit`, up to which memory is
    /// resident. The blob that a header describes must fit in the slot.
    fn headers(
        &self,
        slot: Slot,
        range: HvaRange,
        limit: Hva,
        buf: &mut Vec<u8>,
    ) -> Result<Vec<(Hva, Header)>, MemoryError> {
        let overlap = HEADER_LEN as u64 - 1;
        let end = limit.min(range.end.checked_add(overlap).unwrap_or(range.end));
        buf.resize(HvaRange { end, ..range }.len() as usize, 0);
        match self.mem.read(range.start, buf) {
            // The guest has released this memory meanwhile, so nothing is lost.
            Err(MemoryError::NotMapped { .. }) => return Ok(Vec::new()),
            other => other?,
        }
        self.count_read(buf.len());
        Ok(memmem::find_iter(buf, &MAGIC)
            .filter_map(|hit| {
                let header = Header::parse(&buf[hit..]).ok()?;
                let at = range.start.checked_add(hit as u64)?;
                slot.to_gpa(at, header.total_len() as u64)?;
                (at < range.end).then_some((at, header))
            })
            // More headers than this in one chunk are a hostile guest's; `take` has a limit for
            // them.
            .take(HEADERS_MAX)
            .collect())
    }

    /// Examines a header, once, and keeps the blob if it is plausible. Returns the range of the
    /// blob.
    fn take(&self, slot: Slot, at: Hva, header: Header) -> Result<Option<HvaRange>, MemoryError> {
        {
            let mut examined = self.examined.lock().unwrap_or_else(PoisonError::into_inner);
            if examined.len() >= HEADERS_MAX {
                self.gave_up.store(true, Ordering::Relaxed);
            }
            if self.gave_up() || !examined.insert(at) {
                return Ok(None);
            }
        }
        let blob = examine(self.mem, slot, at, header, &mut |bytes| {
            self.count_read(bytes as usize);
            let spent = self.examined_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if spent > EXAMINE_MAX {
                self.gave_up.store(true, Ordering::Relaxed);
            }
            spent <= EXAMINE_MAX
        })?;
        let Some(blob) = blob else { return Ok(None) };
        let place = HvaRange::new(at, blob.bytes.len() as u64);
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = blobs.iter().map(|blob| blob.bytes.len()).sum();
        if blobs.len() < BLOBS_MAX && kept + blob.bytes.len() <= BLOBS_BYTES_MAX {
            blobs.push(blob);
        } else {
            self.gave_up.store(true, Ordering::Relaxed);
        }
        Ok(Some(place))
    }

    /// Counts the bytes read around a sample.
    fn count_close(&self, bytes: u64) {
        if self.close_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.close_max {
            self.gave_up.store(true, Ordering::Relaxed);
        }
    }

    fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Relaxed)
    }

    fn count_resident(&self, runs: &[HvaRange]) {
        let bytes = runs.iter().map(|run| run.len()).sum();
        self.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn count_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The slot in pieces that end at multiples of [`WINDOW`].
fn windows(slot: Slot) -> impl Iterator<Item = HvaRange> {
    let all = slot.hva_range();
    let mut start = all.start;
    std::iter::from_fn(move || {
        let next = (start.get() / WINDOW).checked_add(1)?.checked_mul(WINDOW).map(Hva::new);
        let window = HvaRange { start, end: next.unwrap_or(all.end).min(all.end) };
        start = window.end;
        (!window.is_empty()).then_some(window)
    })
}

/// Reads a blob if it is resident and its strings name the variables of a layout. It calls `spend`
/// before each read, which may refuse.
fn examine(
    mem: &dyn GuestMemory,
    slot: Slot,
    at: Hva,
    header: Header,
    spend: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Blob>, MemoryError> {
    let len = header.total_len();
    if !mem.is_resident(at, len as u64)? {
        return Ok(None);
    }
    let (strings_at, strings_len) = header.strings();
    let Some(strings) = at.checked_add(strings_at as u64) else { return Ok(None) };
    if !spend(strings_len as u64) || !names_kernel_variables(mem, strings, strings_len)? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    if !spend(len as u64) || bytes.try_reserve_exact(len).is_err() {
        return Ok(None);
    }
    bytes.resize(len, 0);
    match mem.read(at, &mut bytes) {
        Err(MemoryError::NotMapped { .. }) => return Ok(None),
        other => other?,
    }
    // The guest may have changed the blob since; only the copy counts.
    let unchanged = Header::parse(&bytes).is_ok_and(|now| now == header);
    Ok(unchanged.then_some(Blob { at, slot, bytes }))
}

/// This check rejects modules' BTF and other data: their strings lack the kernel's names.
fn names_kernel_variables(
    mem: &dyn GuestMemory,
    strings: Hva,
    len: usize,
) -> Result<bool, MemoryError> {
    // With per-CPU variables, or with types alone.
    const NAMES: [[&[u8]; 2]; 2] =
        [[b"\0.data..percpu\0", b"\0steal_time\0"], [b"\0task_struct\0", b"\0kvm_steal_time\0"]];
    const OVERLAP: usize = 16;
    let (mut missing, mut done) = (NAMES.map(|names| names.to_vec()), 0);
    let mut buf = vec![0; len.min(CHUNK as usize)];
    while done < len && missing.iter().all(|names| !names.is_empty()) {
        let start = done.saturating_sub(OVERLAP);
        let piece = &mut buf[..(len - start).min(CHUNK as usize)];
        let Some(at) = strings.checked_add(start as u64) else { return Ok(false) };
        match mem.read(at, piece) {
            Err(MemoryError::NotMapped { .. }) => return Ok(false),
            other => other?,
        }
        // The section begins with an empty string, and ends with the end of a string.
        if (done == 0 && piece.first() != Some(&0))
            || (start + piece.len() == len && piece.last() != Some(&0))
        {
            return Ok(false);
        }
        for names in &mut missing {
            names.retain(|name| memmem::find(piece, name).is_none());
        }
        done = start + piece.len();
    }
    Ok(missing.iter().any(Vec::is_empty))
}
