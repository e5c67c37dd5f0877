// SPDX-License-Identifier: GPL-2.0-or-later
//! A lab for development: boots the host, starts a guest with a workload, hogs beside it, runs
//! programs of the dist directory (or shell commands) in the host, and shows their output.
//!
//! ```text
//! cargo run --release -p holdfast-testbed --example boot -- --dist target/dist --hogs 2 \
//!     --workload 'lock --threads 4' --exec 'scx_holdfast --stats 1' --seconds 20
//! ```
//!
//! `--exec` runs one command after the other, each for `--seconds` at most, then sends SIGINT. A
//! command that ends in `&` keeps running beside the others.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use holdfast_agent::protocol::{Reply, Request, Spawn, Stream};
use holdfast_testbed::machine::{Accel, Clock, GuestSpec, Machine, MachineSpec, PV_FEATURES};
use holdfast_testbed::packages::{Kernel, Packages};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::{Error, Result, images};

#[derive(Parser)]
struct Args {
    /// Directory with holdfast-agent, workloads/ and the programs to run.
    #[arg(long, default_value = "target/dist")]
    dist: PathBuf,
    /// More files for the host, as HERE:THERE.
    #[arg(long)]
    file: Vec<String>,
    /// auto, tcg, kvm or here.
    #[arg(long, default_value = "auto")]
    accel: String,
    /// Clock of the host: auto, machine or instructions.
    #[arg(long, default_value = "auto")]
    clock: String,
    /// CPUs of the host.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory of the host, in MiB.
    #[arg(long, default_value_t = 6144)]
    memory_mib: u32,
    /// Added to the host's kernel command line.
    #[arg(long, default_value = "")]
    cmdline: String,
    /// vCPUs of the guest; 0 for no guest.
    #[arg(long, default_value_t = 4)]
    vcpus: u32,
    /// Kernel of the guest: 5.10, 6.1, 6.12, 7 or backports.
    #[arg(long, default_value_t)]
    kernel: Kernel,
    /// Kernel of the host: 7 or backports.
    #[arg(long, default_value_t)]
    host_kernel: Kernel,
    /// CPU features of the guest, separated by commas.
    #[arg(long, default_value_t = PV_FEATURES.join(","))]
    features: String,
    /// Added to the guest's kernel command line.
    #[arg(long, default_value = "")]
    guest_cmdline: String,
    /// Give the guest KVM's modules; it needs the CPU feature +svm, too.
    #[arg(long)]
    kvm_in_guests: bool,
    /// Have KVM intercept PAUSE.
    #[arg(long)]
    pause_exits: bool,
    /// Endless loops beside the guest.
    #[arg(long, default_value_t = 0)]
    hogs: u32,
    /// Workload in the guest with its arguments; its counters are printed after each command.
    #[arg(long)]
    workload: Option<String>,
    /// Shell command in the guest.
    #[arg(long)]
    guest_exec: Vec<String>,
    /// Shell command in the host.
    #[arg(long)]
    exec: Vec<String>,
    /// Files of the host to keep at the end, of 64 MiB at most, as THERE:HERE.
    #[arg(long)]
    fetch: Vec<String>,
    /// Longest each command runs.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

const COUNTERS: &str = "/tmp/counters";

fn main() {
    holdfast_signals::catch().expect("these signals can be caught");
    if let Err(e) = run(&Args::parse()) {
        eprintln!("boot: {e}");
        std::process::exit(1);
    }
}

fn run(args: &Args) -> Result<()> {
    let kernel = args.kernel;
    let extra = args.file.iter().filter_map(|f| f.split_once(':'));
    let spec = MachineSpec {
        holdfast_in_guests: false,
        kvm_in_guests: args.kvm_in_guests,
        clock: match args.clock.as_str() {
            "machine" => Clock::Machine,
            "instructions" => Clock::Instructions,
            _ => Clock::Auto,
        },
        accel: match args.accel.as_str() {
            "tcg" => Accel::Tcg,
            "kvm" => Accel::Kvm,
            "here" => Accel::Here,
            _ => Accel::Auto,
        },
        cpus: args.cpus,
        cpus_here: Vec::new(),
        topology: None,
        memory_mib: args.memory_mib,
        host_kernel: args.host_kernel,
        guest_kernels: vec![kernel],
        dist: args.dist.clone(),
        extra: extra.map(|(here, there)| (here.into(), there.to_owned())).collect(),
        cmdline: args.cmdline.clone(),
        cache: Packages::default_cache(),
    };
    let machine = Machine::boot(&spec, &Progress::stderr())?;
    let t = machine.timings();
    eprintln!("packages {:?}, images {:?}, boot {:?}", t.packages, t.images, t.boot);
    if args.vcpus > 0 {
        start_guest(&machine, args, kernel)?;
    } else {
        // Loads KVM, as a guest does: scx_holdfast refuses to start without it.
        machine.set_pause_exits(args.pause_exits)?;
    }
    for i in 0..args.hogs {
        machine.request(Request::spawn(format!("hog{i}"), [machine.workload_path("hog")]))?;
    }
    for command in &args.guest_exec {
        println!("guest# {command}");
        let Reply::Spawn { .. } = machine.request_guest("vm0", shell("run", command, ""))? else {
            continue;
        };
        follow(args, "run", |r| machine.request_guest("vm0", r))?;
    }
    let path = machine.dist_path("");
    for (i, command) in args.exec.iter().enumerate() {
        println!("host# {command}");
        let name = format!("run{i}");
        let before = machine.request_guest("vm0", counters());
        let start = Instant::now();
        if let Some(command) = command.strip_suffix('&') {
            machine.request(shell(&name, command, &path))?;
            continue;
        }
        machine.request(shell(&name, command, &path))?;
        follow(args, &name, |r| machine.request(r))?;
        let after = machine.request_guest("vm0", counters());
        if let (Ok(Reply::Counters(a)), Ok(Reply::Counters(b))) = (before, after) {
            let seconds = (b.t_ns - a.t_ns) as f64 / 1e9;
            let rate = (b.ops - a.ops) as f64 / seconds;
            println!("workload: {rate:.0} operations a second over {:?}", start.elapsed());
        }
    }
    for (there, here) in args.fetch.iter().filter_map(|f| f.split_once(':')) {
        fetch(&machine, there, here)?;
    }
    machine.shut_down()
}

fn fetch(machine: &Machine, there: &str, here: &str) -> Result<()> {
    let request = Request::ReadFile { path: there.into(), max_bytes: 64 << 20 };
    let Reply::ReadFile { data, truncated } = machine.request(request)? else { return Ok(()) };
    let failed = |why| Error::Io { what: "writing to", path: here.into(), why };
    std::fs::write(here, data).map_err(failed)?;
    println!("{there} is {here}{}", if truncated { ", its first 64 MiB" } else { "" });
    Ok(())
}

fn counters() -> Request {
    Request::Counters { path: COUNTERS.into() }
}

fn start_guest(machine: &Machine, args: &Args, kernel: Kernel) -> Result<()> {
    let start = Instant::now();
    let features = args.features.split(',').filter(|f| !f.is_empty()).map(str::to_owned);
    let hello = machine.start_guest(&GuestSpec {
        kernel,
        vcpus: args.vcpus,
        features: features.collect(),
        cmdline: args.guest_cmdline.clone(),
        pause_exits: args.pause_exits,
        ..GuestSpec::new("vm0")
    })?;
    eprintln!("guest: Linux {} after {:?}", hello.kernel_release, start.elapsed());
    if let Some(workload) = &args.workload {
        let mut argv: Vec<_> = workload.split_ascii_whitespace().map(str::to_owned).collect();
        argv[0] = format!("{}/{}", images::WORKLOADS, argv[0]);
        argv.extend(["--counters".to_owned(), COUNTERS.to_owned()]);
        machine.request_guest("vm0", Request::spawn("workload", argv))?;
    }
    Ok(())
}

/// `sh -c` with the dist directory in PATH.
fn shell(name: &str, command: &str, path: &str) -> Request {
    let path = format!("{path}:/usr/local/bin:/usr/bin:/bin:{}", images::WORKLOADS);
    Request::Spawn(Spawn {
        name: name.to_owned(),
        argv: ["/bin/sh", "-c", &format!("exec {command}")].map(str::to_owned).to_vec(),
        env: [("PATH".to_owned(), path)].into(),
        ..Spawn::default()
    })
}

/// Shows a child's output until it ends; SIGINT when its time is over, SIGKILL if it stays.
fn follow(args: &Args, name: &str, send: impl Fn(Request) -> Result<Reply>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut at = [(Stream::Stdout, 0), (Stream::Stderr, 0)];
    let mut signalled = false;
    loop {
        let mut open = false;
        for (stream, after) in &mut at {
            let (stream, name) = (*stream, name.to_owned());
            let answer = send(Request::Output { name, stream, after: *after, timeout_ms: 100 })?;
            let Reply::Output { data, next, ended, .. } = answer else { continue };
            *after = next;
            open |= !ended;
            std::io::stdout().write_all(&data).map_err(|why| Error::Io {
                what: "writing to",
                path: "stdout".into(),
                why,
            })?;
        }
        if !open {
            break;
        }
        if Instant::now() > deadline && !signalled {
            signalled = true;
            send(Request::Kill { name: name.to_owned(), signal: 2 })?;
        }
        if Instant::now() > deadline + Duration::from_secs(10) {
            send(Request::Kill { name: name.to_owned(), signal: 9 })?;
        }
    }
    let Reply::Wait(ended) = send(Request::Wait { name: name.to_owned(), timeout_ms: 5000 })?
    else {
        return Ok(());
    };
    println!("{}", ended.status);
    Ok(())
}
