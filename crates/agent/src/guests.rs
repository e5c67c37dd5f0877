// SPDX-License-Identifier: GPL-2.0-or-later
//! Guests of this host: passing requests on to their agents, and their QEMU monitors.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Answer, Call, Connect, Failure, MAX_LINE, Outcome, Reply, Request};
use serde_json::{Value, json};

use crate::children::Children;

/// Time QEMU may take from its start to its sockets; an emulated host is slow.
const SOCKET_PATIENCE: Duration = Duration::from_secs(25);
/// Longest wait for one line of a QEMU monitor.
const MONITOR_PATIENCE: Duration = Duration::from_secs(20);
/// Part of a guest's console that an error carries.
const CONSOLE_BYTES: u64 = 4096;

pub(crate) struct Guests {
    by_name: Mutex<HashMap<String, Arc<Guest>>>,
    children: Arc<Children>,
}

struct Guest {
    spec: Connect,
    stream: UnixStream,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    last_id: u64,
    closed: bool,
    calls: HashMap<u64, Sender<Outcome>>,
}

impl Guests {
    pub(crate) fn new(children: Arc<Children>) -> Self {
        Guests { by_name: Mutex::default(), children }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<Guest>>> {
        self.by_name.lock().expect("no holder of this lock panics")
    }

    fn get(&self, name: &str) -> Result<Arc<Guest>, Failure> {
        let none = || Failure::new(format!("no guest called `{name}` is connected"));
        self.table().get(name).cloned().ok_or_else(none)
    }

    pub(crate) fn connect(&self, spec: &Connect) -> Result<Reply, Failure> {
        let stream = self.open(spec, &spec.socket)?;
        let reader = stream.try_clone().map_err(|e| Failure::new(e.to_string()))?;
        let guest = Arc::new(Guest { spec: spec.clone(), stream, pending: Mutex::default() });
        let for_reader = Arc::clone(&guest);
        std::thread::spawn(move || for_reader.read(reader));
        self.table().insert(spec.guest.clone(), guest);
        Ok(Reply::Done)
    }

    pub(crate) fn disconnect(&self, name: &str) -> Result<Reply, Failure> {
        if let Some(guest) = self.table().remove(name) {
            let _ = guest.stream.shutdown(std::net::Shutdown::Both);
        }
        Ok(Reply::Done)
    }

    /// Connects to a socket of a guest's QEMU, which may not have made it yet.
    fn open(&self, spec: &Connect, socket: &str) -> Result<UnixStream, Failure> {
        let deadline = Instant::now() + SOCKET_PATIENCE;
        loop {
            let error = match UnixStream::connect(socket) {
                Ok(stream) => return Ok(stream),
                Err(e) => e,
            };
            let ended = self.qemu_ended(spec);
            if ended.is_some() || Instant::now() > deadline {
                let why = ended.unwrap_or_else(|| error.to_string());
                let message = format!("connecting to {socket} of guest `{}`: {why}", spec.guest);
                return Err(Failure { message, console: self.console(spec) });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn qemu_ended(&self, spec: &Connect) -> Option<String> {
        let child = self.children.get(spec.child.as_ref()?).ok()?;
        child.status().map(|status| format!("its QEMU ended with {status}"))
    }

    /// The guest's last console lines and its QEMU's messages.
    fn console(&self, spec: &Connect) -> String {
        let mut text = spec.console.as_ref().and_then(|p| tail(p).ok()).unwrap_or_default();
        let child = spec.child.as_ref().and_then(|name| self.children.get(name).ok());
        if let Some(child) = child {
            text.push_str(&child.tails(Duration::ZERO));
        }
        text
    }

    pub(crate) fn relay(&self, name: &str, request: &Request) -> Result<Reply, Failure> {
        let guest = self.get(name)?;
        let failed = |why: String| Failure {
            message: format!("guest `{name}`: {why}"),
            console: self.console(&guest.spec),
        };
        let gone = || {
            // The socket closes a moment before the process is collected.
            let deadline = Instant::now() + Duration::from_secs(1);
            loop {
                match self.qemu_ended(&guest.spec) {
                    Some(why) => return failed(why),
                    None if Instant::now() > deadline || guest.spec.child.is_none() => {
                        return failed("its agent's connection was closed".into());
                    }
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        let (sender, answer) = channel();
        let id = {
            let mut pending = guest.pending();
            if pending.closed {
                drop(pending);
                return Err(gone());
            }
            pending.last_id += 1;
            let id = pending.last_id;
            pending.calls.insert(id, sender);
            let call = Call { id, request: request.clone() };
            let mut line = serde_json::to_vec(&call).expect("calls have string keys only");
            line.push(b'\n');
            if let Err(e) = (&guest.stream).write_all(&line) {
                pending.calls.remove(&id);
                drop(pending);
                return Err(failed(format!("writing to its agent: {e}")));
            }
            id
        };
        let limit = request.time_limit();
        match answer.recv_timeout(limit) {
            Ok(Outcome::Ok(reply)) => Ok(Reply::Relay { reply: Box::new(reply) }),
            Ok(Outcome::Error(f)) => {
                let message = format!("guest `{name}`: {}", f.message);
                Err(Failure { message, console: f.console })
            }
            Err(RecvTimeoutError::Timeout) => {
                guest.pending().calls.remove(&id);
                Err(failed(format!("its agent did not answer within {} s", limit.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }

    pub(crate) fn qmp(&self, name: &str, command: &Value) -> Result<Reply, Failure> {
        let guest = self.get(name)?;
        let none = || Failure::new(format!("guest `{name}` was connected without a monitor"));
        let stream = self.open(&guest.spec, guest.spec.qmp.as_ref().ok_or_else(none)?)?;
        let failed = |why: String| Failure {
            message: format!("monitor command {command} for guest `{name}`: {why}"),
            console: self.console(&guest.spec),
        };
        let command = match command {
            Value::String(name) => json!({ "execute": name }),
            other => other.clone(),
        };
        let value = converse(&stream, &command).map_err(|e| failed(e.to_string()))?;
        Ok(Reply::Qmp { value })
    }
}

impl Guest {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no holder of this lock panics")
    }

    /// Hands answers to the threads that wait for them, until QEMU closes the socket.
    fn read(&self, stream: UnixStream) {
        let mut lines = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match lines.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line) {
                Ok(1..) => {}
                _ => break,
            }
            // A guest that reboots in the middle of a line leaves half of one.
            if let Ok(answer) = serde_json::from_slice::<Answer>(&line)
                && let Some(waiting) = self.pending().calls.remove(&answer.id)
            {
                let _ = waiting.send(answer.outcome);
            }
        }
        let mut pending = self.pending();
        pending.closed = true;
        pending.calls.clear();
    }
}

/// One QMP conversation: greeting, capabilities, the command, its return value.
fn converse(stream: &UnixStream, command: &Value) -> io::Result<Value> {
    stream.set_read_timeout(Some(MONITOR_PATIENCE))?;
    let mut lines = BufReader::new(stream).lines();
    let mut next = || -> io::Result<Value> {
        let line = lines.next().ok_or_else(|| io::Error::other("the monitor hung up"))??;
        serde_json::from_str(&line).map_err(io::Error::other)
    };
    let mut execute = |command: &Value| -> io::Result<Value> {
        (&*stream).write_all(format!("{command}\n").as_bytes())?;
        loop {
            // Events and the greeting come in between.
            let mut message = next()?;
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
        }
    };
    execute(&json!({ "execute": "qmp_capabilities" }))?;
    execute(command)
}

fn tail(path: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(CONSOLE_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(CONSOLE_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match text.find('\n') {
        Some(i) if start > 0 => text[i + 1..].to_owned(),
        _ => text.into_owned(),
    })
}
