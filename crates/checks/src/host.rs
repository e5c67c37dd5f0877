// SPDX-License-Identifier: GPL-2.0-or-later
//! The host as the checks see it.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapHandle, MapType};

/// Source of the answers that no file has.
#[derive(Debug)]
enum Answers {
    Kernel,
    Given {
        /// The core-scheduling cookie of each thread.
        cookies: BTreeMap<u32, Result<u64, i32>>,
        /// The part of a CPU that each of these threads is promised.
        promised: BTreeMap<u32, f64>,
        /// Error number with which the kernel refuses programs that trace functions.
        tracing: Option<i32>,
    },
}

/// A host: its `/sys`, `/proc` and `/boot`, and the answers of its kernel.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    answers: Answers,
}

impl Host {
    /// The host this program runs on.
    pub fn this() -> Self {
        Self { root: PathBuf::from("/"), answers: Answers::Kernel }
    }

    /// A host whose files lie below `root`, with the core-scheduling cookie of each thread, or the
    /// error number that the kernel answers with (0 for threads not in the map).
    pub fn at(root: impl Into<PathBuf>, cookies: BTreeMap<u32, Result<u64, i32>>) -> Self {
        Self {
            root: root.into(),
            answers: Answers::Given { cookies, promised: BTreeMap::new(), tracing: None },
        }
    }

    /// The same host, whose kernel refuses programs that trace functions with this error number.
    pub fn without_tracing(mut self, errno: i32) -> Self {
        if let Answers::Given { tracing, .. } = &mut self.answers {
            *tracing = Some(errno);
        }
        self
    }

    /// The same host, with threads of SCHED_DEADLINE that are promised these parts of a CPU.
    pub fn with_promises(mut self, parts: BTreeMap<u32, f64>) -> Self {
        if let Answers::Given { promised, .. } = &mut self.answers {
            *promised = parts;
        }
        self
    }

    /// Maps an absolute path to this host's root.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Contents of a file, without white space around them; `None` if it cannot be read. Names of
    /// processes and threads need not be UTF-8.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The target of a symbolic link, as written in it.
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

    /// Numbers among the names in a directory, such as the processes of `/proc`, sorted.
    pub(crate) fn numbers(&self, path: impl AsRef<Path>) -> Vec<u32> {
        let names = self.list(path);
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The threads of a process; an error if this process may not see them.
    pub(crate) fn threads(&self, pid: u32) -> io::Result<Vec<u32>> {
        let tasks = fs::read_dir(self.path(format!("/proc/{pid}/task")))?.flatten();
        Ok(tasks.filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect())
    }

    /// Release of the running kernel.
    pub(crate) fn release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".into())
    }

    /// The first two numbers of the kernel's release.
    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        let release = self.release();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        }
    }

    /// Name of a process (`comm`).
    pub(crate) fn comm(&self, pid: u32) -> String {
        self.read(format!("/proc/{pid}/comm")).unwrap_or_else(|| "(ended)".into())
    }

    /// Does the kernel accept BPF from this process? A container's filter of system calls or a
    /// security module may refuse BPF despite the capabilities.
    pub(crate) fn takes_bpf(&self) -> io::Result<()> {
        match &self.answers {
            Answers::Kernel => make_map(),
            Answers::Given { .. } => Ok(()),
        }
    }

    /// Does it accept programs that trace functions (fentry)? A security module may refuse just
    /// those.
    pub(crate) fn takes_tracing(&self) -> io::Result<()> {
        match &self.answers {
            Answers::Kernel => load_tracing(),
            Answers::Given { tracing, .. } => {
                tracing.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// The part of a CPU that a thread is promised; 0 unless it is of SCHED_DEADLINE.
    pub(crate) fn promised(&self, tid: u32) -> f64 {
        match &self.answers {
            Answers::Kernel => promised_to(tid),
            Answers::Given { promised, .. } => promised.get(&tid).copied().unwrap_or(0.0),
        }
    }

    /// The core-scheduling cookie of a thread; 0 for none.
    pub(crate) fn cookie(&self, tid: u32) -> io::Result<u64> {
        match &self.answers {
            Answers::Kernel => cookie_of(tid),
            Answers::Given { cookies, .. } => {
                cookies.get(&tid).copied().unwrap_or(Ok(0)).map_err(io::Error::from_raw_os_error)
            }
        }
    }
}

/// Creates a minimal map, and drops it.
fn make_map() -> io::Result<()> {
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some("holdfast_probe"), 4, 4, 1, &opts);
    map.map(drop).map_err(|_| io::Error::last_os_error())
}

/// Loads a program for the entry of a function, and drops it without attaching it.
fn load_tracing() -> io::Result<()> {
    /// Every kernel has it.
    const FUNCTION: &CStr = c"kernel_clone";
    const BPF_MOV64_IMM: u8 = 0xb7;
    const BPF_EXIT: u8 = 0x95;
    let code = |code| sys::bpf_insn { code, ..Default::default() };
    let returns_0 = [code(BPF_MOV64_IMM), code(BPF_EXIT)];

    // SAFETY: the name ends with a zero.
    let id = unsafe { sys::libbpf_find_vmlinux_btf_id(FUNCTION.as_ptr(), sys::BPF_TRACE_FENTRY) };
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: sys::BPF_TRACE_FENTRY,
        attach_btf_id: u32::try_from(id).map_err(|_| io::Error::from_raw_os_error(-id))?,
        ..Default::default()
    };
    // SAFETY: the names end with a zero, and the instructions and options live until it returns.
    let fd = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_TRACING,
            c"holdfast_probe".as_ptr(),
            c"GPL".as_ptr(),
            returns_0.as_ptr(),
            returns_0.len() as _,
            &raw mut opts,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just given it to this function alone.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

fn promised_to(tid: u32) -> f64 {
    // SAFETY: it consists of integers.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr) as libc::c_uint;
    // SAFETY: the kernel writes as much as `size` says, to where `attr` lives.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0) };
    // A thread that has ended is promised nothing either.
    let is_promised =
        answer == 0 && attr.sched_policy == libc::SCHED_DEADLINE as u32 && attr.sched_period > 0;
    if is_promised { attr.sched_runtime as f64 / attr.sched_period as f64 } else { 0.0 }
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
