// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests the exporter as a process of its own, with a script as its collector: effects of clients,
//! collectors and signals. Deadlines are far longer than a loaded machine needs.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use holdfast_bpf::BtfFiles;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Uid, fork, geteuid, setuid};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities,
};

use super::{Ended, Export, SHOW_ENDED, Series, run};
use crate::error::ObserverError;
use crate::sample::VmSample;
use crate::sample::tests::sample;
use crate::select::Wanted;
use crate::stop;

const DEADLINE: Duration = Duration::from_secs(60);
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// Collectors.
const GOOD: &str = "while read x; do echo holdfast_x 1; echo '# EOF'; done";
/// A page larger than all buffers of the kernel, and made quickly.
const LARGE: &str = "while read x; do head -c 16000000 /dev/zero | tr '\\0' x; echo
    echo holdfast_x 1; echo '# EOF'; done";
const SILENT: &str = "echo started >&2; cat >/dev/null";

const COLLECTOR: &str = "HOLDFAST_TEST_COLLECTOR";
const ADDRESS: &str = "HOLDFAST_TEST_ADDRESS";
const START_AS: &str = "HOLDFAST_TEST_START_AS";
/// Text before its process id in its output.
const PID: &str = "the server is process ";

/// Not a test of its own: the other tests start this process.
#[test]
#[ignore = "the other tests start it"]
fn server() {
    let Ok(script) = env::var(COLLECTOR) else { return };
    // The test harness has two threads, the exporter has one. SAFETY: the other thread waits for
    // this one, and holds no lock.
    if let ForkResult::Parent { child } = unsafe { fork() }.unwrap() {
        match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, code) => std::process::exit(code),
            other => panic!("{other:?}"),
        }
    }
    // Ends it, and so the test that waits for its output.
    nix::unistd::alarm::set(5 * DEADLINE.as_secs() as u32);
    writeln!(std::io::stdout(), "{PID}{}", std::process::id()).unwrap();
    match env::var(START_AS).as_deref() {
        Ok("user with capabilities") => become_user_with_capabilities(),
        Ok("two threads") => {
            become_user_with_capabilities();
            thread::spawn(|| thread::sleep(DEADLINE));
        }
        Ok("full output") => {
            let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            rustix::stdio::dup2_stdout(full).unwrap();
        }
        Ok("blocked output") => {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
            while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
            rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
            rustix::stdio::dup2_stdout(writer).unwrap();
            std::mem::forget(reader);
        }
        _ => {}
    }
    let mut collector = Command::new("sh");
    collector.args(["-c", &script]);
    let code = match run(env::var(ADDRESS).unwrap().parse().unwrap(), collector) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}: {}", error.source().unwrap());
            if error.is_unsupported() { ObserverError::UNSUPPORTED.into() } else { 1 }
        }
    };
    // Exits without the test harness, which has other exit codes.
    std::process::exit(code)
}

/// As a systemd unit with `User=` and `AmbientCapabilities=`.
fn become_user_with_capabilities() {
    let given = CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE;
    set_keep_capabilities(true).unwrap();
    setuid(Uid::from_raw(65534)).unwrap();
    set_capabilities(
        None,
        CapabilitySets { effective: given, permitted: given, inheritable: given },
    )
    .unwrap();
    for capability in given.iter() {
        configure_capability_in_ambient_set(capability, true).unwrap();
    }
}

struct Server {
    /// The harness, which ends in the same way as the server.
    process: Child,
    pid: Pid,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Server {
    /// A server that serves.
    fn start(collector: &str) -> Self {
        Self::start_as("", collector, "")
    }

    fn start_as(start_as: &str, collector: &str, limits: &str) -> Self {
        let mut server = Self::spawn(start_as, collector, limits, "127.0.0.1:0");
        match find(&mut server.stdout, "Serving http://") {
            Some(rest) => server.address = rest.split_once('/').unwrap().0.parse().unwrap(),
            None => panic!("it does not serve: {}", server.end().1),
        }
        server
    }

    fn spawn(start_as: &str, collector: &str, limits: &str, address: &str) -> Self {
        let mut command = Command::new("sh");
        stop::ignoring(&mut command, &[]);
        let mut process = command
            .args(["-c", &format!("{limits}\nexec \"$@\""), "sh"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "export::tests::server", "--ignored", "--nocapture"])
            .envs([(COLLECTOR, collector), (ADDRESS, address), (START_AS, start_as)])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let pid = find(&mut stdout, PID).unwrap().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        Self { process, pid, stdout, stderr, address: address.parse().unwrap() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, DEADLINE).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// The whole answer to a request; empty if the connection was closed.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(request.as_bytes());
        answer(&mut stream)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        eventually("the server ends", || self.process.try_wait().unwrap())
    }

    /// Its exit code and its output, after it ended by itself.
    fn end(&mut self) -> (ExitStatus, String) {
        let status = self.wait();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (status, said)
    }

    /// Checks that it still serves, and ends on a signal, while the clients of the test are still
    /// connected.
    fn stays_well(mut self) {
        assert!(self.ask(SCRAPE).starts_with("HTTP/1.1 200 OK\r\n"));
        self.ends_on(Signal::TERM);
    }

    fn ends_on(&mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.wait().code(), Some(0));
    }

    /// The lines of all of its threads' `status` that have this name, without it.
    fn status(&self, name: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let status = |task: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(task.unwrap().path().join("status")).unwrap()
        };
        tasks.map(|task| line_of(&status(task), name)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

/// The rest of the line after this text.
fn find(output: &mut impl BufRead, what: &str) -> Option<String> {
    output.lines().find_map(|line| Some(line.unwrap().split_once(what)?.1.to_owned()))
}

fn line_of(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

fn answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no answer and no end");
    }
    String::from_utf8(answer).unwrap()
}

fn eventually<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = happens() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "not in {DEADLINE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_root() -> bool {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
    }
    geteuid().is_root()
}

/// A VM that ends between two scrapes is on both pages, whoever else has read one in between.
#[test]
fn a_vm_that_has_ended_stays_on_the_page_for_a_while() {
    let start = Instant::now();
    let mut ended = Ended::default();
    let mut page = |now: Instant, vms: &[(u32, bool)]| {
        let mut all = sample(1, 7, 10);
        let vm = all.vms.remove(0);
        all.vms.extend(vms.iter().map(|(pid, ended)| VmSample {
            pid: *pid,
            ended: *ended,
            ..vm.clone()
        }));
        ended.keep(&mut all, now);
        all.vms.iter().map(|vm| (vm.pid, vm.ended)).collect::<Vec<_>>()
    };
    assert_eq!(page(start, &[(7, true), (8, false)]), [(7, true), (8, false)]);
    let later = start + SHOW_ENDED / 2;
    assert_eq!(page(later, &[(8, false)]), [(8, false), (7, true)]);
    assert_eq!(page(later, &[(8, true)]), [(8, true), (7, true)]);
    // Another process has its number.
    assert_eq!(page(later, &[(7, false)]), [(7, false), (8, true)]);
    assert_eq!(page(later + SHOW_ENDED, &[]), []);
}

#[test]
fn the_collector_gets_the_vms_and_the_btf_of_guests() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/tests/data/linux-");
    let files = ["6.12.btf", "7.2.btf"].map(|kernel| BtfFiles::load(format!("{data}{kernel}")));
    let files = files.map(Result::unwrap);
    let options = files.each_ref().map(|files| format!("--btf={}", files.path().display()));
    let vms = Wanted(vec!["web".into(), "-x".into()]);
    let export = Export { vms, series: Series::All, frequency_hz: 19, btf: files.to_vec() };
    let command = export.collector_command(Path::new("holdfast"));
    let args: Vec<_> = command.get_args().skip(4).map(|arg| arg.to_str().unwrap()).collect();
    assert_eq!(args, ["--all", "--vm=web", "--vm=-x", &options[0], &options[1]]);
}

#[test]
fn answers_known_requests() {
    let server = Server::start(GOOD);
    for (request, status, end) in [
        ("GET /metrics", "200 OK", "\r\n\r\nholdfast_x 1\n"),
        ("GET /metrics?x=1", "200 OK", "\r\n\r\nholdfast_x 1\n"),
        ("HEAD /metrics", "200 OK", "\r\n\r\n"),
        ("GET /", "200 OK", "\r\n\r\nHoldfast: see /metrics\n"),
        ("HEAD /", "200 OK", "\r\n\r\n"),
        ("GET /other", "404 Not Found", "\r\n\r\nnot found\n"),
        ("GET /%00../../etc/passwd", "404 Not Found", "\r\n\r\nnot found\n"),
        ("POST /metrics", "405 Method Not Allowed", "\r\n\r\nGET and HEAD only\n"),
        ("POST /other", "404 Not Found", "\r\n\r\nnot found\n"),
    ] {
        let answer = server.ask(&format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
        assert!(answer.ends_with(end), "{request}: {answer}");
    }
    let page = server.ask(SCRAPE);
    assert!(page.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{page}");
    for nonsense in ["GET /\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\0\x01\r\n\r\n"] {
        assert!(!server.ask(nonsense).contains("200 OK"), "{nonsense:?}");
    }
    server.stays_well();
}

#[test]
fn does_not_wait_for_announced_bodies() {
    let server = Server::start(GOOD);
    let mut clients = Vec::new();
    for length in ["5000", "60000000000", "9223372036854775808", "18446744073709551615"] {
        let mut client = server.connect();
        write!(client, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n").unwrap();
        assert!(answer(&mut client).starts_with("HTTP/1.1 "), "{length}");
        clients.push(client);
    }
    let mut client = server.connect();
    client
        .write_all(b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n")
        .unwrap();
    answer(&mut client);
    server.stays_well();
}

#[test]
fn a_client_that_reads_nothing_delays_no_other_and_is_dropped() {
    let server = Server::start(LARGE);
    let mut client = server.connect();
    client.write_all(SCRAPE.repeat(50).as_bytes()).unwrap();
    assert!(server.ask(SCRAPE).ends_with("holdfast_x 1\n"));
    eventually("the client is dropped", || client.write_all(b"x").err());
    server.stays_well();
}

#[test]
fn a_header_without_end_is_cut_off() {
    let server = Server::start(GOOD);
    let mut client = server.connect();
    client.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    let piece = [b'a'; 1 << 16];
    // More than all buffers of the kernel hold.
    assert!((0..1024).any(|_| client.write_all(&piece).is_err()), "64 MiB of header were taken");
    server.stays_well();
}

#[test]
fn a_client_that_sends_no_request_is_dropped() {
    let server = Server::start(GOOD);
    let (mut idle, mut slow) = (server.connect(), server.connect());
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    eventually("the slow client is dropped", || slow.write_all(b"X: y\r\n").err());
    answer(&mut idle);
    server.stays_well();
}

#[test]
fn many_idle_connections_keep_no_client_out() {
    let server = Server::start_as("", GOOD, "ulimit -n 64");
    let idle: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    assert!(server.ask(SCRAPE).ends_with("holdfast_x 1\n"));
    assert_eq!(server.status("Threads"), ["1"]);
    server.stays_well();
    drop(idle);
}

/// Each page takes a second and has its number in it. The server itself requests the first.
const SLOW: &str =
    "n=0; while read x; do n=$((n+1)); [ $n = 1 ] || sleep 1; echo page $n; echo '# EOF'; done";

#[test]
fn a_client_being_answered_is_not_dropped_for_others() {
    let server = Server::start(SLOW);
    let mut scraper = server.connect();
    scraper.write_all(SCRAPE.as_bytes()).unwrap();
    let idle: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    assert!(answer(&mut scraper).ends_with("page 2\n"));
    server.stays_well();
    drop(idle);
}

#[test]
fn many_scrapers_cost_no_more_than_one() {
    let server = Server::start(SLOW);
    // More clients than may be connected at once. Each sends its request before the next connects,
    // on a slow machine, too.
    let scrapers = [0; 40].map(|_| {
        let mut scraper = server.connect();
        scraper.write_all(SCRAPE.as_bytes()).unwrap();
        scraper
    });
    for mut scraper in scrapers {
        let answer = answer(&mut scraper);
        let (_, number) = answer.rsplit_once("page ").unwrap_or_else(|| panic!("{answer:?}"));
        // One page for the first client, and one for all others that there is room for.
        assert!(number.trim().parse::<u32>().unwrap() <= 10, "{answer}");
    }
    server.stays_well();
}

#[test]
fn clients_that_read_nothing_keep_no_client_out() {
    let server = Server::start(LARGE);
    let mut clients: Vec<TcpStream> = (0..16).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(SCRAPE.as_bytes()).unwrap();
    }
    assert!(server.ask(SCRAPE).ends_with("holdfast_x 1\n"));
    // The clients were not all dropped by the timeout: the last one is still connected.
    for _ in 0..3 {
        clients[15].write_all(b"x").unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    server.stays_well();
}

#[test]
fn serves_again_after_running_out_of_descriptors() {
    let server = Server::start_as("", GOOD, "ulimit -n 24");
    let idle: Vec<TcpStream> = (0..30).map(|_| server.connect()).collect();
    // The first connections have to time out.
    eventually("it serves again", || server.ask(SCRAPE).contains("200 OK").then_some(()));
    server.stays_well();
    drop(idle);
}

#[test]
fn a_collector_that_ends_is_noticed_without_a_request() {
    let collector = "read x; echo '# EOF'; kill -9 $$";
    let (status, said) = Server::start(collector).end();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("the collector has ended (signal: 9 (SIGKILL))"), "{said}");
}

#[test]
fn a_collector_that_cannot_start_is_an_error() {
    let (status, said) = Server::spawn("", "exit 3", "", "127.0.0.1:0").end();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("the collector has ended (exit status: 3)"), "{said}");
}

#[test]
fn the_server_ends_with_the_exit_code_of_an_unsupported_collector() {
    let (status, said) = Server::spawn("", "exit 77", "", "127.0.0.1:0").end();
    assert_eq!(status.code(), Some(77));
    assert!(said.contains("the collector says why above"), "{said}");
}

#[test]
fn a_stuck_collector_makes_scrapes_fail_and_nothing_else() {
    let server = Server::start("read x; echo '# EOF'; cat >/dev/null");
    thread::scope(|scope| {
        let scrapes = [0; 3].map(|_| scope.spawn(|| server.ask(SCRAPE)));
        assert!(server.ask("GET / HTTP/1.1\r\n\r\n").contains("200 OK"));
        for scrape in scrapes {
            assert!(scrape.join().unwrap().starts_with("HTTP/1.1 503 "));
        }
    });
    let mut client = server.connect();
    client.write_all(SCRAPE.as_bytes()).unwrap();
    let mut server = server;
    server.ends_on(Signal::TERM);
}

#[test]
fn a_late_page_goes_to_no_other_client() {
    let collector = "n=0; while read x; do n=$((n+1)); [ $n = 2 ] && sleep 10
        echo page $n; echo end $n; echo '# EOF'; done";
    let server = Server::start(collector);
    assert!(server.ask(SCRAPE).starts_with("HTTP/1.1 503 "));
    let page = eventually("it answers again", || {
        Some(server.ask(SCRAPE)).filter(|page| page.contains("200 OK"))
    });
    assert!(page.ends_with("\r\n\r\npage 3\nend 3\n"), "{page}");
}

#[test]
fn signals_end_the_server_in_every_state_of_the_collector() {
    // This collector never finishes attaching.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = Server::spawn("", SILENT, "", "127.0.0.1:0");
        let mut said = String::new();
        server.stderr.read_line(&mut said).unwrap();
        assert_eq!(said, "started\n");
        server.ends_on(signal);
    }
    // This collector does not notice that its input has ended.
    let stuck = format!("read x; echo '# EOF'; exec sleep {}", DEADLINE.as_secs() * 2);
    let mut server = Server::start(&stuck);
    let start = Instant::now();
    server.ends_on(Signal::TERM);
    assert!(start.elapsed() < DEADLINE);
}

#[test]
fn an_ignored_signal_does_not_end_the_server() {
    let server = Server::start_as("", GOOD, "trap '' HUP INT");
    server.signal(Signal::HUP);
    server.signal(Signal::INT);
    for _ in 0..3 {
        assert!(server.ask(SCRAPE).contains("200 OK"));
    }
    server.stays_well();
}

#[test]
fn an_unread_greeting_does_not_block_the_server() {
    for output in ["full output", "blocked output"] {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let server = Server::spawn(output, GOOD, "", &address);
        eventually("it serves", || TcpStream::connect(&address).ok());
        server.stays_well();
    }
}

#[test]
fn root_gives_up_everything_and_its_collector_does_not() {
    if !is_root() {
        return;
    }
    let server = Server::start("while read x; do cat /proc/self/status; echo '# EOF'; done");
    assert_eq!(server.status("Uid"), ["65534\t65534\t65534\t65534"]);
    assert_eq!(server.status("Gid"), ["65534\t65534\t65534\t65534"]);
    assert_eq!(server.status("Groups"), [""]);
    // The test itself may lack CAP_SETPCAP.
    let may_shrink = line_of(&fs::read_to_string("/proc/self/status").unwrap(), "CapEff");
    if u64::from_str_radix(&may_shrink, 16).unwrap() >> 8 & 1 == 1 {
        assert_eq!(server.status("CapBnd"), ["0000000000000000"]);
    }
    has_no_capabilities(&server);
    let collector = server.ask(SCRAPE);
    assert_eq!(line_of(&collector, "CapEff"), may_shrink);
    assert_eq!(line_of(&collector, "NoNewPrivs"), "0");
    server.stays_well();
}

#[test]
fn another_user_gives_up_its_capabilities_and_its_collector_does_not() {
    if !is_root() {
        return;
    }
    let collector = "while read x; do cat /proc/self/status; echo '# EOF'; done";
    let server = Server::start_as("user with capabilities", collector, "");
    has_no_capabilities(&server);
    assert_eq!(line_of(&server.ask(SCRAPE), "CapEff"), "0000004000080000");
    server.stays_well();
}

#[test]
fn does_not_start_while_a_thread_has_a_capability() {
    if !is_root() {
        return;
    }
    let (status, said) = Server::spawn("two threads", GOOD, "", "127.0.0.1:0").end();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("cannot give up rights: this is left: CapInh"), "{said}");
}

fn has_no_capabilities(server: &Server) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(server.status(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(server.status("NoNewPrivs"), ["1"]);
}
