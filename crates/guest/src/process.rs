// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest memory in the process that runs the guest.
//!
//! Data comes through `process_vm_readv(2)`, residency through `/proc/PID/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst): with the `PAGEMAP_SCAN` ioctl where the kernel has
//! it (6.7), entry by entry elsewhere. `process_vm_readv` maps a page that is not resident into the
//! guest's process, so only resident pages are read. The one exception is a page that is removed
//! between the two steps (ballooning): it reads as zero, and costs at most that page.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    address::{Hva, HvaRange, PAGE_SIZE},
    memory::{GuestMemory, MemoryError},
};

/// Remote pieces in one `process_vm_readv` call: UIO_MAXIOV of the kernel.
const MAX_PIECES: usize = 1024;
/// Pagemap entries read at a time.
const ENTRIES: usize = 16 * 1024;
/// Pagemap bit 63: page present in RAM (pagemap.rst). Swapped pages have bit 62 instead.
const ENTRY_PRESENT: u64 = 1 << 63;
/// End of user space with four-level page tables; reads of the pagemap beyond it end early.
const USER_END: u64 = 1 << 47;

/// Memory of a process, by process id.
///
/// Holds on to the process, not to the number: after the process has ended every read reports
/// [`MemoryError::ProcessGone`], even if the id is in use again.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    process: OwnedFd,
    pagemap: File,
    /// Cleared when the kernel turns out not to know `PAGEMAP_SCAN`.
    can_scan: AtomicBool,
}

impl ProcessMemory {
    /// Opens the memory of process `pid` (the thread group's id) for reading.
    pub fn open(pid: u32) -> Result<Self, MemoryError> {
        let number = libc::pid_t::try_from(pid).map_err(|_| MemoryError::ProcessGone { pid })?;
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        let process = match i32::try_from(fd) {
            // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
            Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
            _ => return Err(os_error(pid, "open a pidfd", io::Error::last_os_error())),
        };
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))
            .map_err(|e| os_error(pid, "open the pagemap", e))?;
        let memory = Self { pid, process, pagemap, can_scan: AtomicBool::new(true) };
        // Another process may have got the id between the two opens; the pidfd shows that.
        memory.check_alive()?;
        Ok(memory)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A pidfd becomes readable when its process has ended (pidfd_open(2)).
    fn check_alive(&self) -> Result<(), MemoryError> {
        let mut poll =
            libc::pollfd { fd: self.process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a timeout of zero.
        match unsafe { libc::poll(&raw mut poll, 1, 0) } {
            0 => Ok(()),
            n if n > 0 => Err(MemoryError::ProcessGone { pid: self.pid }),
            _ => Err(os_error(self.pid, "poll the pidfd", io::Error::last_os_error())),
        }
    }

    /// One `process_vm_readv`; bytes copied, which may be fewer than asked for.
    fn read_some(&self, remote: &[libc::iovec], buf: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: `local` covers `buf`, which we own; the remote addresses are only ever
        // dereferenced by the kernel in the other process, and checked there.
        let copied = unsafe {
            libc::process_vm_readv(
                self.pid.cast_signed(),
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    fn read_failed(&self, at: Hva, len: usize, error: io::Error) -> MemoryError {
        match error.raw_os_error() {
            Some(libc::EFAULT | libc::ENOMEM | libc::EIO) => {
                MemoryError::NotMapped { pid: self.pid, at, len }
            }
            _ => os_error(self.pid, "read the memory", error),
        }
    }

    fn resident_by_ioctl(&self, range: HvaRange, out: &mut Runs<'_>) -> io::Result<()> {
        let mut regions = [PageRegion::default(); 512];
        let mut start = range.start;
        while start < range.end {
            let mut arg = PmScanArg {
                size: size_of::<PmScanArg>() as u64,
                start: start.get(),
                end: range.end.get(),
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_mask: PAGE_IS_PRESENT,
                return_mask: PAGE_IS_PRESENT,
                ..PmScanArg::default()
            };
            // SAFETY: `arg` is the structure this request takes and outlives the call; `vec` and
            // `vec_len` describe `regions`, which nothing else uses meanwhile.
            let found =
                unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
            for region in regions.iter().take(found) {
                out.push(HvaRange { start: Hva::new(region.start), end: Hva::new(region.end) });
            }
            // The kernel always makes progress; a kernel that does not must not cause an endless
            // loop.
            if arg.walk_end <= start.get() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            start = Hva::new(arg.walk_end);
        }
        Ok(())
    }

    fn resident_by_entry(&self, range: HvaRange, out: &mut Runs<'_>) -> io::Result<()> {
        let mut entries = vec![0u8; ENTRIES * 8];
        let (mut page, last) = (range.start.get() / PAGE_SIZE, range.end.get() / PAGE_SIZE);
        while page < last {
            let want = usize::try_from(last - page).unwrap_or(usize::MAX).min(ENTRIES);
            let got = self.pagemap.read_at(&mut entries[..want * 8], page * 8)? / 8;
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            for entry in entries[..got * 8].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("chunks of 8"));
                if entry & ENTRY_PRESENT != 0 {
                    out.push(HvaRange::new(Hva::new(page * PAGE_SIZE), PAGE_SIZE));
                }
                page += 1;
            }
        }
        Ok(())
    }
}

impl GuestMemory for ProcessMemory {
    fn read(&self, at: Hva, buf: &mut [u8]) -> Result<(), MemoryError> {
        let len = buf.len();
        let mut done = 0;
        while done < len {
            let remote = libc::iovec {
                iov_base: at.get().wrapping_add(done as u64) as *mut libc::c_void,
                iov_len: len - done,
            };
            match self.read_some(&[remote], &mut buf[done..]) {
                Ok(0) => return Err(MemoryError::NotMapped { pid: self.pid, at, len }),
                Ok(copied) => done += copied,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.check_alive()?;
                    return Err(self.read_failed(at, len, e));
                }
            }
        }
        // The process is alive after the read, so the id was its own all the time.
        self.check_alive()
    }

    fn gather(&self, at: &[Hva], len: usize, buf: &mut [u8]) -> Result<(), MemoryError> {
        let mut next = 0;
        while next < at.len() {
            let batch = &at[next..at.len().min(next + MAX_PIECES)];
            let remote: Vec<libc::iovec> = batch
                .iter()
                .map(|at| libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: len })
                .collect();
            let target = &mut buf[next * len..(next + batch.len()) * len];
            let copied = match self.read_some(&remote, target) {
                Ok(copied) => copied,
                Err(e) => {
                    self.check_alive()?;
                    match self.read_failed(batch[0], len, e) {
                        MemoryError::NotMapped { .. } => 0,
                        other => return Err(other),
                    }
                }
            };
            // The call stops at the first piece it cannot read: zero that one, go on after it.
            let whole = copied / len;
            if whole < batch.len() {
                target[whole * len..(whole + 1) * len].fill(0);
                next += whole + 1;
            } else {
                next += whole;
            }
        }
        self.check_alive()
    }

    fn resident(&self, range: HvaRange, out: &mut Vec<HvaRange>) -> Result<(), MemoryError> {
        let pages = range.to_pages();
        let mut runs = Runs { first: out.len(), out };
        let mut result = Err(ErrorKind::Unsupported.into());
        if self.can_scan.load(Ordering::Relaxed) {
            result = self.resident_by_ioctl(pages, &mut runs);
            let code = result.as_ref().err().and_then(io::Error::raw_os_error);
            if matches!(code, Some(libc::ENOTTY | libc::EINVAL)) {
                self.can_scan.store(false, Ordering::Relaxed);
            }
        }
        if !self.can_scan.load(Ordering::Relaxed) {
            runs.out.truncate(runs.first);
            result = self.resident_by_entry(pages, &mut runs);
        }
        if let Err(e) = result {
            self.check_alive()?;
            return Err(match e.kind() {
                // The pagemap of an exiting process is empty before its pidfd becomes readable.
                ErrorKind::UnexpectedEof if pages.end.get() <= USER_END => {
                    MemoryError::ProcessGone { pid: self.pid }
                }
                ErrorKind::UnexpectedEof => {
                    MemoryError::NotMapped { pid: self.pid, at: range.start, len: 0 }
                }
                _ => os_error(self.pid, "read the pagemap", e),
            });
        }
        runs.cut_to(range);
        self.check_alive()
    }
}

/// Runs of resident pages, appended to the caller's list.
struct Runs<'a> {
    out: &'a mut Vec<HvaRange>,
    /// Index of the first run of this call.
    first: usize,
}

impl Runs<'_> {
    /// Appends a run, joined to the one before it where they touch.
    fn push(&mut self, run: HvaRange) {
        match self.out[self.first..].last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.out.push(run),
        }
    }

    /// The kernel reports whole pages; they are cut to the caller's range.
    fn cut_to(&mut self, range: HvaRange) {
        if let Some(run) = self.out[self.first..].first_mut() {
            run.start = run.start.max(range.start);
        }
        if let Some(run) = self.out[self.first..].last_mut() {
            run.end = run.end.min(range.end);
        }
    }
}

fn os_error(pid: u32, what: &'static str, source: io::Error) -> MemoryError {
    match source.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => MemoryError::ProcessGone { pid },
        Some(libc::EPERM | libc::EACCES) => MemoryError::Permission { pid, what },
        _ => MemoryError::Os { pid, what, source },
    }
}

/// `_IOWR('f', 16, struct pm_scan_arg)` of include/uapi/linux/fs.h.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// `struct page_region` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels before 6.7 have the second method only; the answer must not depend on it.
    #[test]
    fn both_methods_report_the_same_residency() {
        const PAGES: usize = 3000;
        let len = PAGES * PAGE_SIZE as usize;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        for sharing in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            // SAFETY: a new anonymous mapping of our own.
            let map =
                unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags | sharing, -1, 0) };
            assert_ne!(map, libc::MAP_FAILED);
            // SAFETY: advice about the mapping just made.
            unsafe { libc::madvise(map, len, libc::MADV_NOHUGEPAGE) };
            let touched = |page: usize| page % 7 < 2 || page > 2900;
            for page in (0..PAGES).filter(|page| touched(*page)) {
                // SAFETY: within the mapping, to which there is no other reference.
                unsafe { map.cast::<u8>().add(page * PAGE_SIZE as usize).write_volatile(1) };
            }
            let mem = ProcessMemory::open(std::process::id()).unwrap();
            let range = HvaRange::new(Hva::new(map as u64), len as u64);
            let (mut by_ioctl, mut by_entry) = (Vec::new(), Vec::new());
            mem.resident_by_entry(range, &mut Runs { out: &mut by_entry, first: 0 }).unwrap();
            assert_eq!(by_entry.iter().map(|run| run.len()).sum::<u64>() / PAGE_SIZE, {
                (0..PAGES).filter(|page| touched(*page)).count() as u64
            });
            match mem.resident_by_ioctl(range, &mut Runs { out: &mut by_ioctl, first: 0 }) {
                Ok(()) => assert_eq!(by_ioctl, by_entry),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOTTY), "{e}"),
            }
            // SAFETY: the mapping made above; no reference to it is left.
            unsafe { libc::munmap(map, len) };
        }
    }
}
