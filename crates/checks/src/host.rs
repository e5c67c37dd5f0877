// SPDX-License-Identifier: GPL-2.0-or-later
//! The host as checks see it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapHandle, MapType, ProgramType};

/// Who answers what cookie a thread has.
#[derive(Debug)]
enum Cookies {
    Kernel,
    Given(BTreeMap<u32, Result<u64, i32>>),
}

/// A host: its `/sys`, `/proc` and `/boot`, and what else only its kernel can tell.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    cookies: Cookies,
}

impl Host {
    /// The host this program runs on.
    pub fn this() -> Self {
        Self { root: PathBuf::from("/"), cookies: Cookies::Kernel }
    }

    /// A host whose files lie below `root`, with the core-scheduling cookie of each thread or the
    /// error number the kernel answers with (0 for threads not named).
    pub fn at(root: impl Into<PathBuf>, cookies: BTreeMap<u32, Result<u64, i32>>) -> Self {
        Self { root: root.into(), cookies: Cookies::Given(cookies) }
    }

    /// The place of an absolute path.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// What is in a file, without white space around it; `None` if it cannot be read. Names of
    /// processes and threads need not be UTF-8.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Where a symbolic link leads, as it says itself.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let to = fs::read_link(self.path(path)).ok()?;
        Some(to.to_string_lossy().into_owned())
    }

    /// Names in a directory, sorted; none if it cannot be read.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Numbers among the names in a directory, such as the processes of `/proc`.
    pub(crate) fn numbers(&self, path: impl AsRef<Path>) -> Vec<u32> {
        self.list(path).iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// The threads of a process; an error if they are hidden from this one.
    pub(crate) fn threads(&self, pid: u32) -> io::Result<Vec<u32>> {
        let tasks = fs::read_dir(self.path(format!("/proc/{pid}/task")))?.flatten();
        Ok(tasks.filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect())
    }

    /// Release of the running kernel.
    pub(crate) fn release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".into())
    }

    /// What a process calls itself.
    pub(crate) fn comm(&self, pid: u32) -> String {
        self.read(format!("/proc/{pid}/comm")).unwrap_or_else(|| "(ended)".into())
    }

    /// Does the kernel take BPF from this process? A container's filter of system calls or a security
    /// module may refuse what capabilities allow.
    pub(crate) fn takes_bpf(&self) -> io::Result<()> {
        match &self.cookies {
            Cookies::Kernel => make_map(),
            Cookies::Given(_) => Ok(()),
        }
    }

    /// Does it take programs that trace functions? A security module may refuse just those.
    pub(crate) fn takes_tracing(&self) -> bool {
        match &self.cookies {
            Cookies::Kernel => ProgramType::Tracing.is_supported().unwrap_or(false),
            Cookies::Given(_) => true,
        }
    }

    /// The core-scheduling cookie of a thread; 0 for none.
    pub(crate) fn cookie(&self, tid: u32) -> io::Result<u64> {
        match &self.cookies {
            Cookies::Kernel => cookie_of(tid),
            Cookies::Given(cookies) => {
                cookies.get(&tid).copied().unwrap_or(Ok(0)).map_err(io::Error::from_raw_os_error)
            }
        }
    }
}

/// Makes the smallest of maps, and drops it.
fn make_map() -> io::Result<()> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some("holdfast_probe"), 4, 4, 1, &opts);
    map.map(drop).map_err(|_| io::Error::last_os_error())
}

fn cookie_of(tid: u32) -> io::Result<u64> {
    // include/uapi/linux/prctl.h
    const PR_SCHED_CORE: libc::c_int = 62;
    const PR_SCHED_CORE_GET: libc::c_ulong = 0;
    const PR_SCHED_CORE_SCOPE_THREAD: libc::c_ulong = 0;

    let mut cookie = 0u64;
    // SAFETY: PR_SCHED_CORE_GET writes one u64, to where `cookie` lives.
    let answer = unsafe {
        libc::prctl(
            PR_SCHED_CORE,
            PR_SCHED_CORE_GET,
            libc::c_ulong::from(tid),
            PR_SCHED_CORE_SCOPE_THREAD,
            &raw mut cookie,
        )
    };
    if answer == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
