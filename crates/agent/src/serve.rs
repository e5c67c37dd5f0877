// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads calls, serves them, writes answers.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use holdfast_agent::protocol::{
    Answer, Call, Failure, Hello, MAX_LINE, Outcome, PROTOCOL, Reply, Request, Role,
};

use crate::children::Children;
use crate::groups::Groups;
use crate::guests::Guests;
use crate::perf::Perf;
use crate::sockets::Sockets;
use crate::{files, measure, modules, witness};

struct Agent {
    role: Role,
    is_init: bool,
    children: Arc<Children>,
    groups: Groups,
    guests: Guests,
    sockets: Sockets,
    perf: Perf,
    port: Mutex<File>,
}

/// Serves as an ordinary process until the other end is closed.
pub(crate) fn ordinary_child(port: File, role: Role) -> io::Result<()> {
    let agent = Agent::new(port.try_clone()?, role, false);
    let mut lines = BufReader::new(port);
    while let Some(line) = next_line(&mut lines)? {
        agent.take(line);
    }
    agent.groups.remove();
    // Children die with this process: PR_SET_PDEATHSIG.
    Ok(())
}

/// Serves as PID 1, for as long as the machine runs.
pub(crate) fn as_init(port: File, role: Role) -> io::Result<Infallible> {
    let agent = Agent::new(port.try_clone()?, role, true);
    let mut lines = BufReader::new(port);
    loop {
        match next_line(&mut lines)? {
            Some(line) => agent.take(line),
            // A port without a peer reads as ended; there is no blocking wait for one.
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The next line; `None` at the end of the stream.
fn next_line(lines: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    lines.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
    if line.len() > MAX_LINE {
        return Err(io::Error::other(format!("a line is longer than {MAX_LINE} bytes")));
    }
    Ok((!line.is_empty()).then_some(line))
}

impl Agent {
    fn new(port: File, role: Role, is_init: bool) -> Arc<Self> {
        let children = Children::new();
        let guests = Guests::new(Arc::clone(&children));
        Arc::new(Agent {
            role,
            is_init,
            children,
            groups: Groups::default(),
            guests,
            sockets: Sockets::default(),
            perf: Perf::default(),
            port: Mutex::new(port),
        })
    }

    /// Serves one call in a thread of its own, so that a slow call holds up no other.
    fn take(self: &Arc<Self>, line: Vec<u8>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let call: Call = match serde_json::from_slice(&line) {
            Ok(call) => call,
            Err(e) => return self.refuse(&line, &e),
        };
        let agent = Arc::clone(self);
        std::thread::spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| agent.serve(&call.request)));
            let outcome = done
                .unwrap_or_else(|_| Err(Failure::new("the agent failed; its console says why")))
                .into();
            agent.answer(&Answer { id: call.id, outcome });
            if matches!(call.request, Request::Poweroff | Request::Reboot) {
                agent.leave(&call.request);
            }
        });
    }

    fn refuse(&self, line: &[u8], why: &serde_json::Error) {
        let value: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        match value.get("id").and_then(serde_json::Value::as_u64) {
            Some(id) => {
                let failure = Failure::new(format!("the agent does not understand this: {why}"));
                self.answer(&Answer { id, outcome: Outcome::Error(failure) });
            }
            None => eprintln!("holdfast-agent: ignoring a line that is no call: {why}"),
        }
    }

    fn answer(&self, answer: &Answer) {
        let mut line = serde_json::to_vec(answer).expect("answers have string keys only");
        line.push(b'\n');
        let mut port = self.port.lock().expect("no holder of this lock panics");
        if let Err(e) = port.write_all(&line) {
            eprintln!("holdfast-agent: answering call {}: {e}", answer.id);
        }
    }

    fn serve(&self, request: &Request) -> Result<Reply, Failure> {
        let ms = |n: &u64| Duration::from_millis(*n);
        let children = &self.children;
        match request {
            Request::Hello => Ok(Reply::Hello(self.hello())),
            Request::Spawn(spec) => children.spawn(spec),
            Request::Ask { name, line, timeout_ms } => {
                children.get(name)?.ask(name, line, ms(timeout_ms))
            }
            Request::Wait { name, timeout_ms } => children.wait(name, ms(timeout_ms)),
            Request::Kill { name, signal } => children.get(name)?.kill(name, *signal),
            Request::Status { name } => Ok(children.get(name)?.reply()),
            Request::Output { name, stream, after, timeout_ms } => {
                Ok(children.get(name)?.output(*stream, *after, ms(timeout_ms)))
            }
            Request::ReadFile { path, max_bytes } => files::read(path, *max_bytes),
            Request::WriteFile { path, data, mode } => files::write(path, data, *mode),
            Request::ListDir { path } => files::list(path),
            Request::LoadModule { name, params } => modules::load(children, name, params),
            Request::UnloadModule { name } => modules::unload(name),
            Request::CpuTimes { names } => measure::cpu_times(children, names),
            Request::Pin { name, threads } => children.get(name)?.pin(name, threads),
            Request::Group(spec) => self.groups.put(children.get(&spec.name)?.as_ref(), spec),
            Request::Counters { path } => measure::counters(path),
            Request::PerfStart { name } => self.perf.start(children, name),
            Request::PerfRead { name } => self.perf.read(name),
            Request::Exchange { socket, line, timeout_ms } => {
                self.sockets.exchange(socket, line, ms(timeout_ms))
            }
            Request::Connect(spec) => self.guests.connect(spec),
            Request::Disconnect { guest } => self.guests.disconnect(guest),
            Request::Relay { guest, request } => self.guests.relay(guest, request),
            Request::Qmp { guest, command } => self.guests.qmp(guest, command),
            Request::Batch { requests } => {
                let responses = requests.iter().map(|r| self.serve(r).into()).collect();
                Ok(Reply::Batch { responses })
            }
            Request::Sleep { ms: time } => {
                thread::sleep(ms(time));
                Ok(Reply::Done)
            }
            Request::Witness { symbols } => witness::witness(symbols),
            Request::Poweroff | Request::Reboot => Ok(Reply::Done),
        }
    }

    fn hello(&self) -> Hello {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        // SAFETY: plain library call.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let uptime = read("/proc/uptime");
        let uptime_s: f64 = uptime.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
        Hello {
            protocol: PROTOCOL,
            role: self.role,
            kernel_release: read("/proc/sys/kernel/osrelease").trim_end().to_owned(),
            cmdline: read("/proc/cmdline").trim_end().to_owned(),
            nr_cpus: cpus.try_into().unwrap_or(1),
            uptime_ms: (uptime_s * 1000.0) as u64,
            boot_id: read("/proc/sys/kernel/random/boot_id").trim_end().to_owned(),
        }
    }

    fn leave(&self, request: &Request) -> ! {
        if !self.is_init {
            self.groups.remove();
            std::process::exit(0);
        }
        let how = match request {
            Request::Reboot => libc::RB_AUTOBOOT,
            _ => libc::RB_POWER_OFF,
        };
        // SAFETY: plain system calls; no disk here holds anything of value.
        unsafe { libc::reboot(how) };
        panic!("reboot: {}", io::Error::last_os_error());
    }
}
