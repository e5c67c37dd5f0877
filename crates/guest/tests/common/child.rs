// SPDX-License-Identifier: GPL-2.0-or-later
//! A child process whose memory stands in for a VMM's.

#![allow(dead_code, unreachable_pub)]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};

use holdfast_guest::{Gpa, Hva, Slot};

use crate::common::{AREAS, FakeMemory, GPA};

const ENTRY: &str = "HOLDFAST_FAKE_GUEST";

/// Backing of the guest's memory: as QEMU's default, as its memfd backend, or with huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Private,
    Shared,
    Huge,
}

/// A child process with `len` bytes mapped, none of them touched yet. Killed when dropped.
pub struct FakeVmm {
    pub child: Child,
    pub slot: Slot,
}

impl FakeVmm {
    pub fn start(backing: Backing, len: u64) -> Self {
        Self::start_as(None, backing, len)
    }

    /// Runs it as another user (and the group of the same number), as libvirt runs its VMMs. Needs
    /// root.
    pub fn start_as(user: Option<u32>, backing: Backing, len: u64) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "fake_vmm_process", "--nocapture", "--test-threads=1"])
            .env(ENTRY, format!("{backing:?} {len} {}", user.unwrap_or(0)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            line.rsplit_once("mapped at ").map(|(_, address)| address.parse().unwrap())
        });
        let slot = Slot::new(Gpa::new(GPA), Hva::new(address.unwrap()), len).unwrap();
        Self { child, slot }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes into the child's memory, which makes the pages resident.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let remote =
            libc::iovec { iov_base: (self.slot.hva().get() + at) as *mut _, iov_len: bytes.len() };
        // SAFETY: the local vector covers `bytes`, which is only read; the kernel checks the remote
        // one, which lies in a child process.
        let written =
            unsafe { libc::process_vm_writev(self.pid().cast_signed(), &local, 1, &remote, 1, 0) };
        assert_eq!(written, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Copies the pages of a fake guest that are not empty, and its per-CPU areas, which a kernel
    /// writes.
    pub fn load(&self, mem: &FakeMemory) {
        for (n, page) in mem.bytes.chunks(4096).enumerate() {
            let is_area = AREAS.contains(&(n as u64 * 4096));
            if is_area || page.iter().any(|byte| *byte != 0) {
                self.write(n as u64 * 4096, page);
            }
        }
    }

    /// Resident bytes of the mapping, from /proc/PID/smaps.
    pub fn resident(&self) -> u64 {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let start = format!("{:x}-", self.slot.hva().get());
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the mapping is there");
        rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for FakeVmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side; does nothing in the process that runs the tests.
pub fn run_if_asked() {
    let Ok(order) = env::var(ENTRY) else { return };
    let [backing, len, user] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{order}");
    };
    let sharing = if backing == "Shared" { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let (len, align) = (len.parse::<usize>().unwrap(), 2usize << 20);
    // SAFETY: a new anonymous mapping without another reference.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len + align,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | sharing,
            -1,
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let start = (map as usize).next_multiple_of(align);
    // A mapping of its own in /proc/PID/smaps, with or without huge pages independent of the
    // default.
    let advice = if backing == "Huge" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: within the mapping made above, which is empty.
    unsafe { libc::munmap(map, start - map as usize) };
    // SAFETY: as above.
    unsafe { libc::madvise(start as *mut _, len, advice) };
    let user = user.parse().unwrap();
    if user != 0 {
        // SAFETY: the calls take numbers. A process that changes its user is undumpable, and root's
        // in /proc; a program executed as that user is not.
        let done = unsafe {
            [
                libc::setresgid(user, user, user),
                libc::setresuid(user, user, user),
                libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0),
            ]
        };
        assert_eq!(done, [0; 3], "{}", std::io::Error::last_os_error());
    }
    println!("mapped at {start}");
    std::io::stdout().flush().unwrap();
    // Until the parent closes the pipe, or is gone.
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}
