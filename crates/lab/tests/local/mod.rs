// SPDX-License-Identifier: GPL-2.0-or-later
//! A host without a virtual machine: the real agent as ordinary processes, one as the host and one
//! as a guest, real workloads, and shell scripts that behave like schedulers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use holdfast_agent::protocol::{Answer, Call, Connect, Hello, Reply, Request};
use holdfast_lab::experiment::{Experiment, Guest};
use holdfast_lab::runner::{Host, HostFacts};
use holdfast_testbed::{Error, Result};

/// Programs the tests run: the agent and the workloads, built once.
fn programs() -> &'static (PathBuf, PathBuf) {
    static PROGRAMS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let run = |command: &mut Command| {
            let output = command.current_dir(&root).output().expect("it starts");
            assert!(output.status.success(), "{command:?}: {output:?}");
        };
        // In the tests' own target directory, so that nothing is built twice.
        let target = tmp.parent().expect("the target directory holds it");
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let release = (!cfg!(debug_assertions)).then_some("--release");
        run(Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "holdfast-agent"])
            .args(release)
            .arg("--target-dir")
            .arg(target));
        let workloads = tmp.join("workloads-for-runner");
        run(Command::new("make")
            .args(["-C", "workloads"])
            .arg(format!("O={}", workloads.display())));
        (target.join(profile).join("holdfast-agent"), workloads.join("workloads"))
    })
}

/// Starts the agent on one end of a connection.
fn agent(socket: UnixStream, role: &str) -> Child {
    let socket = OwnedFd::from(socket);
    let fd = socket.as_raw_fd();
    let mut command = Command::new(&programs().0);
    command.args(["--fd", &fd.to_string(), "--role", role]);
    // SAFETY: fcntl is async-signal-safe, and the descriptor stays open until after the spawn.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(fd, libc::F_SETFD, 0) == -1 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn().expect("the agent starts")
}

pub(crate) struct LocalHost {
    dir: tempfile::TempDir,
    port: RefCell<(UnixStream, BufReader<UnixStream>, u64)>,
    host: RefCell<Child>,
    guests: RefCell<BTreeMap<String, Child>>,
    /// Whether it claims to count its instructions.
    counts: bool,
}

impl LocalHost {
    pub(crate) fn boot(counts: bool) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let host = agent(theirs, "host");
        let reader = BufReader::new(ours.try_clone().unwrap());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state"), "disabled\n").unwrap();
        LocalHost {
            dir,
            port: RefCell::new((ours, reader, 0)),
            host: RefCell::new(host),
            guests: RefCell::default(),
            counts,
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }
}

impl Drop for LocalHost {
    fn drop(&mut self) {
        for child in self.guests.borrow_mut().values_mut().chain([&mut *self.host.borrow_mut()]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Host for LocalHost {
    fn request(&self, request: Request) -> Result<Reply> {
        let mut port = self.port.borrow_mut();
        let (writer, reader, id) = &mut *port;
        *id += 1;
        let ended = || Error::HostEnded { how: "test".into(), console: String::new() };
        let line = serde_json::to_string(&Call { id: *id, request }).unwrap() + "\n";
        writer.write_all(line.as_bytes()).map_err(|_| ended())?;
        let mut line = String::new();
        if reader.read_line(&mut line).map_err(|_| ended())? == 0 {
            return Err(ended());
        }
        let answer: Answer = serde_json::from_str(&line).unwrap();
        assert_eq!(answer.id, *id);
        let result: std::result::Result<Reply, _> = answer.outcome.into();
        Ok(result?)
    }

    fn hello(&self) -> Hello {
        match self.request(Request::Hello) {
            Ok(Reply::Hello(hello)) => hello,
            other => panic!("{other:?}"),
        }
    }

    fn start_guest(&self, name: &str, _: &Guest, _: bool) -> Result<Hello> {
        let socket = self.path(&format!("{name}.sock"));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        // The process in place of the VM uses CPU time, as a booted VM does.
        let idle = "while :; do i=0; while [ $i -lt 999 ]; do i=$((i + 1)); done; sleep 0.05; done";
        self.request(Request::spawn(self.vm_child(name), ["sh", "-c", idle]))?;
        let accepted = std::thread::spawn(move || listener.accept().unwrap().0);
        self.request(Request::Connect(Connect {
            guest: name.into(),
            socket,
            child: Some(self.vm_child(name)),
            ..Connect::default()
        }))?;
        let guest = agent(accepted.join().unwrap(), "guest");
        self.guests.borrow_mut().insert(name.into(), guest);
        match self.request(Request::Hello.relayed_to(name))? {
            Reply::Relay { reply } => match *reply {
                Reply::Hello(hello) => Ok(hello),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn stop_guest(&self, name: &str) -> Result<()> {
        if let Some(mut guest) = self.guests.borrow_mut().remove(name) {
            let _ = guest.kill();
            let _ = guest.wait();
        }
        let _ = self.request(Request::Disconnect { guest: name.into() });
        let child = self.vm_child(name);
        let _ = self.request(Request::Kill { name: child.clone(), signal: libc::SIGKILL });
        self.request(Request::Wait { name: child, timeout_ms: 5000 }).map(drop)
    }

    fn vm_child(&self, guest: &str) -> String {
        format!("guest-{guest}")
    }

    /// Every command of a test's experiment is a script.
    fn program(&self, name: &str) -> String {
        let path = self.path(name);
        let script = match name {
            "good-scheduler" => SCHEDULER.replace("BODY", "while :; do sleep 0.02; done"),
            "bad-scheduler" => SCHEDULER
                .replace("BODY", "sleep 0.2; echo it is broken >&2; echo disabled >$STATE; exit 3"),
            "good-program" => PROGRAM.replace("BODY", "while :; do sleep 0.02; done"),
            "bad-program" => PROGRAM.replace("BODY", "sleep 0.2; echo it is broken >&2; exit 3"),
            "observer" => OBSERVER.into(),
            // Missing.
            _ => return path,
        };
        if !Path::new(&path).exists() {
            std::fs::write(&path, script.replace("$STATE", &self.scx_state())).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        path
    }

    fn workload_in_host(&self, name: &str) -> String {
        programs().1.join(name).to_string_lossy().into_owned()
    }

    fn workload_in_guest(&self, name: &str) -> String {
        self.workload_in_host(name)
    }

    fn holdfast_in_guest(&self) -> Vec<String> {
        vec![self.program("spins")]
    }

    fn scratch(&self) -> String {
        self.dir.path().to_string_lossy().into_owned()
    }

    fn scx_state(&self) -> String {
        self.path("state")
    }

    fn scx_stats(&self) -> String {
        self.path("stats")
    }

    fn facts(&self) -> HostFacts {
        let counts_instructions = self.counts;
        HostFacts { accelerator: "here".into(), counts_instructions, ..HostFacts::default() }
    }
}

const SCHEDULER: &str = "#!/bin/sh
trap 'echo disabled >$STATE; exit 0' INT TERM
echo enabled >$STATE
BODY
";

const PROGRAM: &str = "#!/bin/sh
trap 'exit 0' INT
echo ready
BODY
";

/// Sees no VM.
const OBSERVER: &str = r#"#!/bin/sh
while read -r line; do
	echo '{"schema":"holdfast.preemptions/1","t_ns":1,"interval_ns":1,"lost_events":0,"vms":[]}'
done
"#;

/// Boots local hosts for any experiment.
pub(crate) fn boot<'a>(_: &Experiment) -> Result<Box<dyn Host + 'a>> {
    Ok(Box::new(LocalHost::boot(false)))
}

pub(crate) const TOML: &str = r#"
name = "local"
[host]
pcpus = 2
[guests.main]
vcpus = 2
[defaults]
hogs = 1
[windows]
warmup_ms = 30
length_ms = 300
rounds = 2
[[contenders]]
name = "stock"
[[contenders]]
name = "other"
command = ["good-scheduler"]
[[cases]]
name = "lock"
workload = "lock"
[[cases]]
name = "hog"
workload = "hog"
threads = 1
hogs = 0
"#;

/// The experiment of these tests, with `from` replaced by `to`.
pub(crate) fn experiment(from: &str, to: &str) -> Experiment {
    assert!(TOML.contains(from));
    Experiment::parse(&TOML.replace(from, to), Path::new("local.toml")).unwrap()
}
