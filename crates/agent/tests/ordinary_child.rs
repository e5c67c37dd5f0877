// SPDX-License-Identifier: GPL-2.0-or-later
//! The real agent as an ordinary child, with real programs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use holdfast_agent::protocol::*;

struct Agent {
    process: Child,
    stream: BufReader<UnixStream>,
    next_id: u64,
}

impl Agent {
    fn start() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let theirs = OwnedFd::from(theirs);
        let fd = theirs.as_raw_fd();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-agent"));
        command.args(["--fd", "200", "--role", "host"]);
        // SAFETY: dup2 is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(fd, 200) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let process = command.spawn().unwrap();
        Agent { process, stream: BufReader::new(ours), next_id: 1 }
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        let call = Call { id: self.next_id, request };
        self.next_id += 1;
        let line = serde_json::to_string(&call).unwrap() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let answer: Answer = serde_json::from_str(&line).unwrap();
        assert_eq!(answer.id, call.id);
        answer.outcome.into()
    }

    fn sh(&mut self, name: &str, script: &str, stdin: bool) -> i32 {
        let request = Request::Spawn(Spawn {
            name: name.into(),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            stdin,
            ..Spawn::default()
        });
        match self.ask(request).unwrap() {
            Reply::Spawn { pid } => pid,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, name: &str) -> Ended {
        match self.ask(Request::Wait { name: name.into(), timeout_ms: 20_000 }).unwrap() {
            Reply::Wait(ended) => ended,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until `done` returns true, which has to happen soon.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn describes_itself() {
    let Reply::Hello(hello) = Agent::start().ask(Request::Hello).unwrap() else { panic!() };
    assert_eq!((hello.protocol, hello.role), (PROTOCOL, Role::Host));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(hello.kernel_release, release.trim());
    assert!(hello.nr_cpus >= 1 && hello.uptime_ms > 0);
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(hello.boot_id, boot_id.trim());
}

#[test]
fn reports_how_a_child_ended_and_what_it_said() {
    let mut agent = Agent::start();
    agent.sh("a", "echo out; echo err >&2; exit 3", false);
    let ended = agent.wait("a");
    assert_eq!(ended.status, ExitStatus { code: Some(3), signal: None });
    assert_eq!((ended.stdout_tail.as_str(), ended.stderr_tail.as_str()), ("out\n", "err\n"));
    let error = agent.ask(Request::Status { name: "a".into() }).unwrap_err();
    assert!(error.message.contains("no child is called `a`"), "{error}");
}

#[test]
fn asks_a_child_line_by_line() {
    let mut agent = Agent::start();
    agent.sh("echo", "echo banner; while read -r l; do echo \"<$l>\"; done", true);
    let seen = |agent: &mut Agent| {
        let (name, stream) = ("echo".to_owned(), Stream::Stdout);
        match agent.ask(Request::Output { name, stream, after: 0, timeout_ms: 10_000 }).unwrap() {
            Reply::Output { data, .. } => String::from_utf8(data).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(seen(&mut agent), "banner\n");
    for line in ["one", "two"] {
        let ask = Request::Ask { name: "echo".into(), line: line.into(), timeout_ms: 10_000 };
        assert_eq!(agent.ask(ask).unwrap(), Reply::Ask { line: format!("<{line}>") });
    }
    assert_eq!(seen(&mut agent), "banner\n<one>\n<two>\n");
}

#[test]
fn an_answer_that_does_not_come_is_an_error_with_the_childs_last_words() {
    let mut agent = Agent::start();
    agent.sh("mute", "read -r l; echo bye >&2; exec 1>&-; exit 4", true);
    let ask = Request::Ask { name: "mute".into(), line: "x".into(), timeout_ms: 10_000 };
    let error = agent.ask(ask).unwrap_err();
    assert!(error.message.contains("instead of answering"), "{error}");
    agent.sh("slow", "read -r l; exec sleep 60", true);
    let ask = Request::Ask { name: "slow".into(), line: "x".into(), timeout_ms: 100 };
    let error = agent.ask(ask).unwrap_err();
    assert!(error.message.contains("no line within 100 ms"), "{error}");
}

#[test]
fn a_program_that_does_not_exist_is_an_error_and_harms_nothing() {
    let mut agent = Agent::start();
    for _ in 0..20 {
        let error = agent.ask(Request::spawn("x", ["/nonexistent/program"])).unwrap_err();
        assert!(error.message.contains("/nonexistent/program"), "{error}");
    }
    agent.sh("x", "exit 0", false);
    assert!(agent.wait("x").status.success());
}

#[test]
fn kills_children_by_name() {
    let mut agent = Agent::start();
    agent.sh("sleeper", "exec sleep 60", false);
    let again = Request::spawn("sleeper", ["true"]);
    assert!(agent.ask(again).unwrap_err().message.contains("is running"));
    agent.ask(Request::Kill { name: "sleeper".into(), signal: libc::SIGTERM }).unwrap();
    assert_eq!(agent.wait("sleeper").status.signal, Some(libc::SIGTERM));
}

#[test]
fn keeps_children_on_their_cpus() {
    let mut agent = Agent::start();
    let spawn = Spawn {
        name: "pinned".into(),
        argv: ["grep", "Cpus_allowed_list", "/proc/self/status"].map(str::to_owned).to_vec(),
        cpus: Some(vec![0]),
        ..Spawn::default()
    };
    agent.ask(Request::Spawn(spawn)).unwrap();
    assert_eq!(agent.wait("pinned").stdout_tail, "Cpus_allowed_list:\t0\n");
}

#[test]
fn counts_the_cpu_time_of_every_thread() {
    let mut agent = Agent::start();
    let pid = agent.sh("busy", "while :; do :; done", false);
    let names = vec!["busy".to_owned()];
    let mut sample = || match agent.ask(Request::CpuTimes { names: names.clone() }).unwrap() {
        Reply::CpuTimes(times) => times,
        other => panic!("{other:?}"),
    };
    let first = sample();
    assert_eq!((first.tasks.len(), first.tasks[0].pid, first.tasks[0].tid), (1, pid, pid));
    eventually("using 50 ms of CPU time", || {
        let now = sample();
        now.t_ns > first.t_ns && now.tasks[0].run_ns >= first.tasks[0].run_ns + 50_000_000
    });
    agent.ask(Request::Kill { name: "busy".into(), signal: libc::SIGKILL }).unwrap();
    eventually("an error that it has ended", || {
        let error = agent.ask(Request::CpuTimes { names: names.clone() }).err();
        error.is_some_and(|e| e.message.contains("has ended"))
    });
}

#[test]
fn adds_up_the_counters_of_all_slots() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("counters");
    let mut bytes = vec![0u8; 64 + 3 * 1024];
    let words = |bytes: &mut Vec<u8>, at: usize, value: u64| {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    words(&mut bytes, 0, 0x4846_4354 | 1 << 32);
    words(&mut bytes, 8, 3);
    for (slot, ops) in [(0, 5), (1, 7), (2, 11)] {
        let base = 64 + slot * 1024;
        words(&mut bytes, base, ops);
        words(&mut bytes, base + 64 + 8 * 10, ops);
    }
    fs::write(&path, &bytes).unwrap();
    let mut agent = Agent::start();
    let request = Request::Counters { path: path.to_string_lossy().into() };
    let Reply::Counters(counters) = agent.ask(request.clone()).unwrap() else { panic!() };
    assert_eq!((counters.ops, counters.hist[10], counters.hist.len()), (23, 23, 64));
    assert_eq!(counters.hist.iter().sum::<u64>(), 23);

    words(&mut bytes, 8, 64);
    fs::write(&path, &bytes).unwrap();
    assert!(agent.ask(request.clone()).unwrap_err().message.contains("64 slots do not fit"));
    words(&mut bytes, 0, 7);
    fs::write(&path, &bytes).unwrap();
    assert!(agent.ask(request).unwrap_err().message.contains("magic 0x7"));
}

#[test]
fn reads_and_writes_files_of_any_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/file").to_string_lossy().into_owned();
    let data: Vec<u8> = (0..=255).collect();
    let mut agent = Agent::start();
    let (at, mode) = (path.clone(), 0o600);
    agent.ask(Request::WriteFile { path: at, data: data.clone(), mode }).unwrap();
    let read = agent.ask(Request::ReadFile { path: path.clone(), max_bytes: 1000 }).unwrap();
    assert_eq!(read, Reply::ReadFile { data: data.clone(), truncated: false });
    let read = agent.ask(Request::ReadFile { path, max_bytes: 3 }).unwrap();
    assert_eq!(read, Reply::ReadFile { data: data[..3].to_vec(), truncated: true });
    let list = Request::ListDir { path: dir.path().join("a").to_string_lossy().into() };
    assert_eq!(agent.ask(list).unwrap(), Reply::ListDir { names: vec!["b".into()] });
}

#[test]
fn serves_a_batch_in_order_and_goes_on_after_a_failure() {
    let mut agent = Agent::start();
    let wait = Request::Wait { name: "a".into(), timeout_ms: 10_000 };
    let requests =
        vec![Request::spawn("a", ["true"]), Request::Status { name: "nobody".into() }, wait];
    let Reply::Batch { responses } = agent.ask(Request::Batch { requests }).unwrap() else {
        panic!()
    };
    assert!(matches!(responses[0], Outcome::Ok(Reply::Spawn { .. })), "{responses:?}");
    assert!(matches!(responses[1], Outcome::Error(_)), "{responses:?}");
    assert!(matches!(responses[2], Outcome::Ok(Reply::Wait(_))), "{responses:?}");
}

#[test]
fn a_line_it_does_not_understand_is_answered_with_an_error() {
    let mut agent = Agent::start();
    agent.stream.get_mut().write_all(b"junk\n{\"id\":5,\"op\":\"fly\"}\n").unwrap();
    let mut line = String::new();
    agent.stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"id\":5,\"error\":") && line.contains("fly"), "{line}");
}

#[test]
fn relays_to_a_guest_and_reports_its_console_when_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(file("console"), "Linux version 7\nKernel panic - not syncing\n").unwrap();
    // Another agent is the guest; this thread is the cable between them.
    let listener = UnixListener::bind(file("socket")).unwrap();
    let cable = std::thread::spawn(move || {
        let (port, _) = listener.accept().unwrap();
        let mut guest = Agent::start();
        let mut line = String::new();
        BufReader::new(port.try_clone().unwrap()).read_line(&mut line).unwrap();
        let call: Call = serde_json::from_str(&line).unwrap();
        let outcome = guest.ask(call.request).into();
        let answer = serde_json::to_string(&Answer { id: call.id, outcome }).unwrap() + "\n";
        (&port).write_all(answer.as_bytes()).unwrap();
    });
    let mut host = Agent::start();
    let connect = Connect {
        guest: "vm0".into(),
        socket: file("socket"),
        console: Some(file("console")),
        ..Connect::default()
    };
    host.ask(Request::Connect(connect)).unwrap();
    let reply = host.ask(Request::Hello.relayed_to("vm0")).unwrap();
    let Reply::Relay { reply } = reply else { panic!("{reply:?}") };
    assert!(matches!(*reply, Reply::Hello(_)));
    cable.join().unwrap();
    let error = host.ask(Request::Hello.relayed_to("vm0")).unwrap_err();
    assert!(error.message.contains("vm0") && error.console.contains("Kernel panic"), "{error}");
    let error = host.ask(Request::Hello.relayed_to("vm1")).unwrap_err();
    assert!(error.message.contains("no guest called `vm1`"), "{error}");
}

#[test]
fn takes_its_children_with_it() {
    let mut agent = Agent::start();
    let by_hangup = agent.sh("sleeper", "exec sleep 600", false);
    let is_gone = |pid: i32| move || !Path::new(&format!("/proc/{pid}")).exists();
    agent.stream.get_mut().shutdown(std::net::Shutdown::Both).unwrap();
    eventually("its end once the connection is closed", || {
        agent.process.try_wait().unwrap().is_some()
    });
    eventually("the end of its child", is_gone(by_hangup));

    let mut agent = Agent::start();
    let by_kill = agent.sh("sleeper", "exec sleep 600", false);
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    eventually("the end of a killed agent's child", is_gone(by_kill));
}
