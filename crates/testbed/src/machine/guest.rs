// SPDX-License-Identifier: GPL-2.0-or-later
//! Guests of the host.

use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Connect, ExitStatus, Hello, Reply, Request, Spawn};
use serde_json::{Value, json};

use super::spec::{GuestSpec, child_name};
use super::{Machine, confused, qemu};
use crate::error::{Error, Result};

/// Bounds of the time that a guest may take to boot.
const BOOT_LIMITS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(300)];
/// Within them, this many times as long as its host took. A guest takes about as long as its host,
/// or twice that under a busy scheduler. Six times is too little if other programs take the
/// machine's CPUs after the host has booted.
const BOOT_LIMIT_IN_HOST_BOOTS: u32 = 10;
/// Longest a killed QEMU may take to end.
const END_LIMIT_MS: u64 = 20_000;

impl Machine {
    /// Starts a guest and waits until its agent answers.
    pub fn start_guest(&self, spec: &GuestSpec) -> Result<Hello> {
        let files = self.paths.guests.get(&spec.kernel).ok_or_else(|| {
            let kernel = spec.kernel;
            Error::Unsupported(format!("{kernel} was not asked for when booting the host"))
        })?;
        self.set_pause_exits(spec.pause_exits)?;
        let sockets = qemu::GuestSockets::new(&self.paths.run, &spec.name);
        let (path, mode) = (sockets.console.clone(), 0o644);
        // Makes the directory as well.
        self.request(Request::WriteFile { path, data: Vec::new(), mode })?;
        let child = spec.child();
        self.request(Request::Spawn(Spawn {
            name: child.clone(),
            argv: qemu::guest(spec, &self.paths, files, &sockets),
            cpus: spec.cpus.clone(),
            ..Spawn::default()
        }))?;
        self.guests.lock().expect("no holder panics").insert(spec.name.clone());
        self.request(Request::Connect(Connect {
            guest: spec.name.clone(),
            socket: sockets.agent,
            qmp: Some(sockets.qmp),
            console: Some(sockets.console),
            child: Some(child),
        }))?;
        self.wait_for_guest(&spec.name, |_| true)
    }

    /// Waits until a guest's agent gives an answer that `is_right` accepts.
    fn wait_for_guest(&self, name: &str, is_right: impl Fn(&Hello) -> bool) -> Result<Hello> {
        let [least, most] = BOOT_LIMITS;
        let limit = (self.timings.boot * BOOT_LIMIT_IN_HOST_BOOTS).clamp(least, most);
        let deadline = Instant::now() + limit;
        loop {
            let error = match self.request_guest(name, Request::Hello) {
                Ok(Reply::Hello(hello)) if is_right(&hello) => return Ok(hello),
                Ok(Reply::Hello(_)) => {
                    std::thread::sleep(Duration::from_millis(100));
                    None
                }
                Ok(answer) => return Err(confused("hello", &answer)),
                Err(Error::Refused(failure)) => Some(Error::Refused(failure)),
                Err(e) => return Err(e),
            };
            let ended = self.guest_status(name)?.is_some();
            if let Some(error) = error
                && (ended || Instant::now() > deadline)
            {
                return Err(error);
            }
            if Instant::now() > deadline {
                let secs = limit.as_secs();
                return Err(Error::Unsupported(format!(
                    "guest `{name}` did not reboot within {secs} s"
                )));
            }
        }
    }

    /// How a guest's QEMU ended, if it has.
    pub fn guest_status(&self, name: &str) -> Result<Option<ExitStatus>> {
        match self.request(Request::Status { name: child_name(name) })? {
            Reply::Status { status, .. } => Ok(status),
            answer => Err(confused("status", &answer)),
        }
    }

    /// Ends a guest at once and forgets it.
    pub fn stop_guest(&self, name: &str) -> Result<()> {
        let child = child_name(name);
        self.request(Request::Disconnect { guest: name.to_owned() })?;
        if self.guest_status(name)?.is_none() {
            // It may end by itself in between.
            let _ = self.request(Request::Kill { name: child.clone(), signal: libc::SIGKILL });
        }
        self.request(Request::Wait { name: child, timeout_ms: END_LIMIT_MS })?;
        self.guests.lock().expect("no holder panics").remove(name);
        Ok(())
    }

    /// Sends a command to a guest's QEMU monitor, e.g. `json!({"execute": "stop"})`.
    pub fn qmp(&self, guest: &str, command: Value) -> Result<Value> {
        match self.request(Request::Qmp { guest: guest.to_owned(), command })? {
            Reply::Qmp { value } => Ok(value),
            answer => Err(confused("qmp", &answer)),
        }
    }

    /// Resets a guest as its reset button would, and waits until it has booted again.
    pub fn reset_guest(&self, name: &str) -> Result<Hello> {
        let before = match self.request_guest(name, Request::Hello)? {
            Reply::Hello(hello) => hello.boot_id,
            answer => return Err(confused("hello", &answer)),
        };
        // `-no-reboot` has a panic end QEMU; a requested reset must not.
        let action = |what| json!({ "execute": "set-action", "arguments": { "reboot": what } });
        self.qmp(name, action("reset"))?;
        self.qmp(name, json!({ "execute": "system_reset" }))?;
        let hello = self.wait_for_guest(name, |hello| hello.boot_id != before)?;
        self.qmp(name, action("shutdown"))?;
        Ok(hello)
    }

    /// Adds vCPUs to a guest until it has this many; it was started with `max_vcpus` for that.
    pub fn plug_vcpus(&self, name: &str, vcpus: usize) -> Result<()> {
        let list = self.qmp(name, json!({ "execute": "query-hotpluggable-cpus" }))?;
        let mut all = list.as_array().cloned().unwrap_or_default();
        let is_there = |cpu: &Value| cpu.get("qom-path").is_some();
        let have = all.iter().filter(|c| is_there(c)).count();
        if all.len() < vcpus {
            let most = all.len();
            return Err(Error::Unsupported(format!(
                "guest `{name}` was started for {most} vCPUs at most (max_vcpus)"
            )));
        }
        // QEMU lists the last vCPU first.
        all.reverse();
        let lacking = vcpus.saturating_sub(have);
        for (number, cpu) in (have..).zip(all.iter().filter(|c| !is_there(c)).take(lacking)) {
            let mut arguments = cpu["props"].clone();
            arguments["driver"] = cpu["type"].clone();
            arguments["id"] = json!(format!("hotplug{number}"));
            self.qmp(name, json!({ "execute": "device_add", "arguments": arguments }))?;
        }
        Ok(())
    }
}
