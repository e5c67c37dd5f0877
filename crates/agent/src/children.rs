// SPDX-License-Identifier: GPL-2.0-or-later
//! Programs the agent has started, by name, and the reaping of everything PID 1 inherits.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child as StdChild, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Ended, ExitStatus, Failure, Reply, Spawn, Stream};

use crate::ring::{NoLine, Ring};

/// Part of a child's output that an error or [`Ended`] carries.
const TAIL_BYTES: usize = 16 << 10;
/// Time that the end of a dead child's output may take to arrive; a grandchild may hold it open.
const DRAIN: Duration = Duration::from_millis(500);

pub(crate) struct Child {
    pub(crate) pid: i32,
    stdin: Mutex<Option<ChildStdin>>,
    stdout: Arc<Ring>,
    stderr: Arc<Ring>,
    status: Mutex<Option<ExitStatus>>,
    ended: Condvar,
}

type Order = (Command, Sender<std::io::Result<StdChild>>);

/// All children; shared by the threads that serve requests.
pub(crate) struct Children {
    by_name: Mutex<HashMap<String, Arc<Child>>>,
    spawned: Condvar,
    spawner: Mutex<Sender<Order>>,
}

impl Children {
    pub(crate) fn new() -> Arc<Self> {
        let (spawner, orders) = channel::<Order>();
        // PR_SET_PDEATHSIG follows the *thread* that forked: it has to be one that stays.
        std::thread::spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        let children = Arc::new(Children {
            by_name: Mutex::default(),
            spawned: Condvar::new(),
            spawner: Mutex::new(spawner),
        });
        let for_reaper = Arc::clone(&children);
        std::thread::spawn(move || for_reaper.reap());
        children
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<Child>>> {
        self.by_name.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn get(&self, name: &str) -> Result<Arc<Child>, Failure> {
        let none = || Failure::new(format!("no child is called `{name}`"));
        self.table().get(name).cloned().ok_or_else(none)
    }

    pub(crate) fn spawn(&self, spec: &Spawn) -> Result<Reply, Failure> {
        let failed = |what: String| Failure::new(format!("starting `{}`: {what}", spec.name));
        let (program, args) =
            spec.argv.split_first().ok_or_else(|| failed("argv is empty".into()))?;
        let mut command = Command::new(program);
        command.args(args).envs(&spec.env).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if spec.stdin { Stdio::piped() } else { Stdio::null() });
        let cpus = spec.cpus.as_deref().map(cpu_set).transpose().map_err(failed)?;
        // SAFETY: only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if let Some(set) = &cpus {
                    check(libc::sched_setaffinity(0, size_of_val(set), set))?;
                }
                // PID 1 is a real-time task (see init.rs); its children must not be.
                let ordinary = libc::sched_param { sched_priority: 0 };
                check(libc::sched_setscheduler(0, libc::SCHED_OTHER, &ordinary))?;
                // A shell that starts the agent in the background has it ignore the signal.
                if libc::signal(libc::SIGINT, libc::SIG_DFL) == libc::SIG_ERR {
                    return Err(std::io::Error::last_os_error());
                }
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))
            });
        }

        // Held until the child is in the table, so that the reaper cannot overtake it.
        let mut table = self.table();
        if let Some(old) = table.get(&spec.name)
            && old.status().is_none()
        {
            return Err(failed("a child of that name is running".into()));
        }
        let (reply, started) = channel();
        let spawner = self.spawner.lock().expect("no holder of this lock panics");
        spawner.send((command, reply)).expect("the spawner thread stays");
        drop(spawner);
        let mut process = started
            .recv()
            .expect("the spawner thread answers")
            .map_err(|e| failed(format!("{program}: {e}")))?;
        let child = Arc::new(Child {
            pid: process.id().cast_signed(),
            stdin: Mutex::new(process.stdin.take()),
            stdout: pump(process.stdout.take().expect("was piped")),
            stderr: pump(process.stderr.take().expect("was piped")),
            status: Mutex::default(),
            ended: Condvar::new(),
        });
        let pid = child.pid;
        table.insert(spec.name.clone(), child);
        self.spawned.notify_all();
        Ok(Reply::Spawn { pid })
    }

    pub(crate) fn wait(&self, name: &str, timeout: Duration) -> Result<Reply, Failure> {
        let child = self.get(name)?;
        let Some(status) = child.wait(timeout) else {
            let message = format!("`{name}` still runs after {} ms", timeout.as_millis());
            return Err(Failure { message, console: child.tails(Duration::ZERO) });
        };
        let ended = Ended {
            status,
            stdout_tail: child.stdout.tail(TAIL_BYTES, DRAIN),
            stderr_tail: child.stderr.tail(TAIL_BYTES, DRAIN),
        };
        let mut table = self.table();
        if table.get(name).is_some_and(|c| Arc::ptr_eq(c, &child)) {
            table.remove(name);
        }
        Ok(Reply::Wait(ended))
    }

    /// Collects every process that ends: our children, and as PID 1 orphans of other processes.
    fn reap(&self) {
        loop {
            // SAFETY: a zeroed siginfo_t is valid, and the kernel only writes to it.
            let (peeked, pid) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let flags = libc::WEXITED | libc::WNOWAIT;
                (libc::waitid(libc::P_ALL, 0, &mut info, flags), info.si_pid())
            };
            let table = self.table();
            if peeked != 0 {
                // No child at all: sleep until there is one.
                let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
                if none && table.values().all(|c| c.status().is_some()) {
                    drop(self.spawned.wait(table));
                }
                continue;
            }
            // Only peeked at so far: a spawn that fails in exec reaps its own process, and holds
            // the table for that time.
            let mut status = 0;
            // SAFETY: plain system call with a valid pointer.
            if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
                continue;
            }
            if let Some(child) = table.values().find(|c| c.pid == pid && c.status().is_none()) {
                child.set_status(exit_status(status));
            }
        }
    }
}

impl Child {
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        *self.status.lock().expect("no holder of this lock panics")
    }

    fn set_status(&self, status: ExitStatus) {
        *self.status.lock().expect("no holder of this lock panics") = Some(status);
        self.ended.notify_all();
    }

    fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        let mut status = self.status.lock().expect("no holder of this lock panics");
        while status.is_none() {
            let left = deadline.checked_duration_since(Instant::now())?;
            status = self.ended.wait_timeout(status, left).expect("no holder panics").0;
        }
        *status
    }

    /// Last lines of both streams, for an error.
    pub(crate) fn tails(&self, patience: Duration) -> String {
        let mut text = self.stdout.tail(TAIL_BYTES / 4, patience);
        text.push_str(&self.stderr.tail(TAIL_BYTES / 4, patience));
        text
    }

    pub(crate) fn reply(&self) -> Reply {
        let status = self.status();
        Reply::Status { pid: self.pid, running: status.is_none(), status }
    }

    pub(crate) fn output(&self, stream: Stream, after: u64, timeout: Duration) -> Reply {
        let ring = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        let chunk = ring.read(after, timeout);
        Reply::Output { data: chunk.data, next: chunk.next, lost: chunk.lost, ended: chunk.ended }
    }

    pub(crate) fn kill(&self, name: &str, signal: i32) -> Result<Reply, Failure> {
        // Under the lock: after the process is reaped, its number may be another's.
        let status = self.status.lock().expect("no holder of this lock panics");
        if let Some(status) = *status {
            return Err(Failure::new(format!("`{name}` has ended already with {status}")));
        }
        // SAFETY: plain system call.
        check(unsafe { libc::kill(self.pid, signal) }).map_err(|e| {
            Failure::new(format!("sending signal {signal} to `{name}` ({}): {e}", self.pid))
        })?;
        Ok(Reply::Done)
    }

    /// Pins threads by the beginnings of their names; each beginning must match a thread.
    pub(crate) fn pin(&self, name: &str, threads: &[(String, Vec<u32>)]) -> Result<Reply, Failure> {
        let failed = |what: String| Failure::new(format!("pinning threads of `{name}`: {what}"));
        let all = self.threads().map_err(|e| failed(e.to_string()))?;
        for (beginning, cpus) in threads {
            let set = cpu_set(cpus).map_err(failed)?;
            let mut meant = all.iter().filter(|(_, comm)| comm.starts_with(beginning)).peekable();
            if meant.peek().is_none() {
                return Err(failed(format!("none is called {beginning}...")));
            }
            for (tid, comm) in meant {
                // SAFETY: plain system call with a valid pointer.
                check(unsafe { libc::sched_setaffinity(*tid, size_of_val(&set), &set) })
                    .map_err(|e| failed(format!("{comm} to CPUs {cpus:?}: {e}")))?;
            }
        }
        Ok(Reply::Done)
    }

    /// Its threads, with their names.
    pub(crate) fn threads(&self) -> std::io::Result<Vec<(i32, String)>> {
        let mut threads = Vec::new();
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten() {
            let comm = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if let Ok(tid) = thread.file_name().to_string_lossy().parse() {
                threads.push((tid, comm.trim_end().to_owned()));
            }
        }
        Ok(threads)
    }

    pub(crate) fn ask(&self, name: &str, line: &str, timeout: Duration) -> Result<Reply, Failure> {
        let fail = |message: String| Failure { message, console: self.tails(Duration::ZERO) };
        // The lock is kept while waiting: answers carry no number, so questions take turns.
        let mut guard = self.stdin.lock().expect("no holder of this lock panics");
        let stdin = guard
            .as_mut()
            .ok_or_else(|| fail(format!("`{name}` was not started with `stdin: true`")))?;
        let position = self.stdout.position();
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| stdin.flush())
            .map_err(|e| fail(format!("writing to the stdin of `{name}`: {e}")))?;
        match self.stdout.line(position, timeout) {
            Ok(line) => Ok(Reply::Ask { line }),
            Err(NoLine::Timeout) => {
                Err(fail(format!("`{name}` printed no line within {} ms", timeout.as_millis())))
            }
            Err(NoLine::Ended) => Err(fail(match self.wait(DRAIN) {
                Some(status) => format!("`{name}` ended with {status} instead of answering"),
                None => format!("`{name}` closed its stdout instead of answering"),
            })),
        }
    }
}

/// Reads a stream to its end into a ring.
fn pump(mut stream: impl Read + Send + 'static) -> Arc<Ring> {
    let ring = Arc::new(Ring::default());
    let into = Arc::clone(&ring);
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            into.push(&buffer[..n]);
        }
        into.end();
    });
    ring
}

fn cpu_set(cpus: &[u32]) -> Result<libc::cpu_set_t, String> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu as usize >= libc::CPU_SETSIZE as usize {
            return Err(format!("CPU {cpu} is out of range"));
        }
        // SAFETY: in range.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    Ok(set)
}

fn exit_status(raw: i32) -> ExitStatus {
    if libc::WIFSIGNALED(raw) {
        ExitStatus { code: None, signal: Some(libc::WTERMSIG(raw)) }
    } else {
        ExitStatus { code: Some(libc::WEXITSTATUS(raw)), signal: None }
    }
}

/// The error of a system call that returned -1.
pub(crate) fn check(result: i32) -> std::io::Result<()> {
    if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
