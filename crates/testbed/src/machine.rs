// SPDX-License-Identifier: GPL-2.0-or-later
//! The lab's host and its guests: booting, talking, ending.
//!
//! ```no_run
//! use holdfast_agent::protocol::Request;
//! use holdfast_testbed::machine::{GuestSpec, Machine, MachineSpec};
//! use holdfast_testbed::progress::Progress;
//!
//! # fn main() -> holdfast_testbed::Result<()> {
//! let machine = Machine::boot(&MachineSpec::new("target/dist"), &Progress::stderr())?;
//! machine.start_guest(&GuestSpec::new("vm0"))?;
//! let lock = ["/workloads/lock", "--counters", "/tmp/lock", "--threads", "4"];
//! let run = Request::spawn("lock", lock);
//! machine.request(run.relayed_to("vm0"))?;
//! # Ok(())
//! # }
//! ```

mod accel;
mod channel;
mod console;
mod guest;
mod patch;
mod pause;
mod process;
mod qemu;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{Hello, Reply, Request};
use serde::{Deserialize, Serialize};

pub use self::accel::{check, cpus_here};
use self::channel::Channel;
use self::process::Process;
pub use self::spec::{Accel, Acceleration, Clock, GuestSpec, MachineSpec, PV_FEATURES, Topology};
use crate::error::{Error, Result};
use crate::images::{self, Local, Parts};
use crate::packages::{Kernel, Package, Source};
use crate::progress::{Progress, megabytes};

/// Longest a host may take from the start of its QEMU to the agent's first answer.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Seconds that a second of a host that counts its instructions takes at most.
const COUNTING_SLOWDOWN: u32 = 20;
/// The same of an emulated host whose clock is the machine's, where other work of the machine takes
/// its CPUs.
const EMULATED_SLOWDOWN: u32 = 4;

/// The parts of a machine, for the provenance of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// How the host's instructions are executed.
    pub accelerator: Acceleration,
    /// Version of the QEMU package.
    pub qemu: String,
    /// Whether the host's clock counts its instructions.
    pub counts_instructions: bool,
    /// Kernel of the host.
    pub kernel_release: String,
    /// Kernel command line of the host.
    pub cmdline: String,
    /// CPUs of the host.
    pub nr_cpus: u32,
    /// Memory of the host, in MiB; absent where the host is the running machine.
    pub memory_mib: Option<u32>,
    /// Every package used.
    pub packages: Vec<Package>,
    /// Every source package used.
    pub source_packages: Vec<Source>,
}

/// How long each stage of a boot took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Looking up and fetching packages.
    pub packages: Duration,
    /// Building images.
    pub images: Duration,
    /// From the start of QEMU to the agent's first answer.
    pub boot: Duration,
}

/// A running host. Dropping it ends it and everything in it.
pub struct Machine {
    channel: Channel,
    process: Process,
    paths: Paths,
    hello: Hello,
    provenance: Provenance,
    timings: Timings,
    guests: Mutex<BTreeSet<String>>,
    pause_exits: Mutex<pause::PauseExits>,
}

/// Where things are, as the host's agent sees them.
#[derive(Clone, Debug)]
struct Paths {
    /// Program and first arguments of QEMU.
    qemu: Vec<String>,
    dist: String,
    workloads: String,
    guests: BTreeMap<Kernel, GuestPaths>,
    run: String,
    /// Owns `run` where it is a directory of the running machine.
    _run: Option<std::sync::Arc<tempfile::TempDir>>,
}

#[derive(Clone, Debug)]
struct GuestPaths {
    vmlinuz: String,
    initrd: String,
}

impl Machine {
    /// Fetches what is lacking, builds images that are out of date, and boots.
    pub fn boot(spec: &MachineSpec, progress: &Progress) -> Result<Machine> {
        let start = Instant::now();
        check(spec)?;
        let kernels = [&spec.guest_kernels[..], &[spec.host_kernel]].concat();
        let parts = Parts::fetch(&spec.cache, &kernels, progress)?;
        let packages = start.elapsed();

        let start = Instant::now();
        let step = progress.step("Images");
        let local = Local {
            dist: &spec.dist,
            extra: &spec.extra,
            holdfast_in_guests: spec.holdfast_in_guests,
            kvm_in_guests: spec.kvm_in_guests,
        };
        let directory = spec.cache.join("images");
        let mut guests = BTreeMap::new();
        for &kernel in &spec.guest_kernels {
            guests.insert(kernel, images::guest(&parts, kernel, &local)?.build(&directory)?);
        }
        let (how, host) = if spec.accel == Accel::Here {
            (Acceleration::Here, None)
        } else {
            let host =
                images::host(&parts, spec.host_kernel, &guests, &local)?.build(&directory)?;
            (Acceleration::Tcg, Some(host))
        };
        images::tidy(&directory);
        let size = host.as_ref().and_then(|h| h.metadata().ok()).map(|m| megabytes(m.len()));
        step.done(&size.map(|s| format!("host {s}")).unwrap_or_default());
        let images = start.elapsed();

        let (how, host) = match host {
            Some(host) => {
                let probe = guests.values().next().unwrap_or(&host);
                (accel::choose(spec, &parts, probe, progress)?, Some(host))
            }
            None => (how, None),
        };
        let start = Instant::now();
        let mut qemu_version = parts.qemu_version().to_owned();
        let mut counts = false;
        let step = progress.step(format!("Booting the host ({how})"));
        let (process, socket, paths) = match &host {
            Some(image) => {
                let kernel = parts.kernel(spec.host_kernel)?;
                let mut program = qemu::program(&parts.qemu)?;
                if how == Acceleration::Tcg {
                    match patch::copy_for(spec.clock, &program, &directory, progress)? {
                        Some((patched, counting)) => {
                            program = patched;
                            counts = counting;
                            qemu_version.push_str(" (patched)");
                        }
                        None => progress.note(patch::NOT_PATCHED),
                    }
                }
                if counts {
                    qemu_version.push_str(", instructions counted");
                }
                let command =
                    qemu::host(spec, &parts, how, counts, &program, &kernel.vmlinuz, image)?;
                let (process, socket) = Process::start(command)?;
                (process, socket, Paths::in_image(&guests))
            }
            None => {
                let (process, socket) = Process::start(accel::agent_here(spec))?;
                (process, socket, Paths::here(spec, &parts, &guests)?)
            }
        };
        let slowdown = match how {
            _ if counts => COUNTING_SLOWDOWN,
            Acceleration::Tcg => EMULATED_SLOWDOWN,
            Acceleration::Kvm | Acceleration::Here => 1,
        };
        let channel = Channel::new(socket, process.watch())?.slowed_down(slowdown);
        let hello = channel.hello(BOOT_LIMIT)?;
        let boot = start.elapsed();
        step.done(&format!("Linux {}, {} CPUs", hello.kernel_release, hello.nr_cpus));
        let provenance = Provenance {
            accelerator: how,
            qemu: qemu_version,
            counts_instructions: counts,
            kernel_release: hello.kernel_release.clone(),
            cmdline: hello.cmdline.clone(),
            nr_cpus: hello.nr_cpus,
            memory_mib: host.map(|_| spec.memory_mib),
            packages: parts.packages,
            source_packages: parts.source_packages,
        };
        Ok(Machine {
            channel,
            process,
            paths,
            hello,
            provenance,
            timings: Timings { packages, images, boot },
            guests: Mutex::default(),
            pause_exits: Mutex::default(),
        })
    }

    /// Sends the host's agent a request, and waits for as long as such a request may take.
    pub fn request(&self, request: Request) -> Result<Reply> {
        self.channel.request(request)
    }

    /// As [`Machine::request`], served by a guest.
    pub fn request_guest(&self, guest: &str, request: Request) -> Result<Reply> {
        let described = format!("{request:?}");
        match self.request(request.relayed_to(guest))? {
            Reply::Relay { reply } => Ok(*reply),
            answer => Err(confused(&described, &answer)),
        }
    }

    /// The agent's first answer after boot.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The parts of the machine.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// How long the stages of its boot took.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Path, in the host, of a program of the dist directory.
    pub fn dist_path(&self, name: &str) -> String {
        format!("{}/{name}", self.paths.dist)
    }

    /// Path, in the host, of a workload; guests have them at [`images::WORKLOADS`].
    pub fn workload_path(&self, name: &str) -> String {
        format!("{}/{name}", self.paths.workloads)
    }

    /// The last lines of the host's console.
    pub fn console(&self) -> String {
        self.process.watch().console().tail()
    }

    /// Ends the host in order. Dropping it does not wait for its consent.
    pub fn shut_down(self) -> Result<()> {
        match self.request(Request::Poweroff) {
            Ok(_) | Err(Error::HostEnded { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.provenance.accelerator == Acceleration::Here {
            self.restore_pause_exits();
        }
        self.channel.close();
        self.process.end();
    }
}

impl Paths {
    fn in_image(guests: &BTreeMap<Kernel, PathBuf>) -> Self {
        let (qemu, root) = (images::QEMU, images::GUESTS);
        let guest = |kernel: &Kernel| GuestPaths {
            vmlinuz: format!("{root}/{kernel}/vmlinuz"),
            initrd: format!("{root}/{kernel}/initrd"),
        };
        Paths {
            qemu: [
                &format!("{qemu}/lib/ld-linux-x86-64.so.2"),
                "--library-path",
                &format!("{qemu}/lib"),
                &format!("{qemu}/bin/qemu-system-x86_64"),
                "-L",
                &format!("{qemu}/share"),
            ]
            .map(str::to_owned)
            .to_vec(),
            dist: images::DIST.to_owned(),
            workloads: images::WORKLOADS.to_owned(),
            guests: guests.keys().map(|k| (*k, guest(k))).collect(),
            run: "/run/holdfast".to_owned(),
            _run: None,
        }
    }

    fn here(spec: &MachineSpec, parts: &Parts, guests: &BTreeMap<Kernel, PathBuf>) -> Result<Self> {
        let run = tempfile::Builder::new().prefix("holdfast-").tempdir();
        let run = run.map_err(Error::io("creating a directory in", std::env::temp_dir()))?;
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let mut paths = BTreeMap::new();
        for (kernel, initrd) in guests {
            let vmlinuz = text(&parts.kernel(*kernel)?.vmlinuz);
            paths.insert(*kernel, GuestPaths { vmlinuz, initrd: text(initrd) });
        }
        Ok(Paths {
            qemu: qemu::from_packages(&parts.qemu, &qemu::program(&parts.qemu)?)?,
            dist: text(&spec.dist),
            workloads: text(&spec.dist.join("workloads")),
            guests: paths,
            run: text(run.path()),
            _run: Some(std::sync::Arc::new(run)),
        })
    }
}

fn confused(request: &str, answer: &Reply) -> Error {
    Error::Confused { request: request.to_owned(), answer: format!("{answer:?}") }
}

/// Both ends of a connection to an agent.
fn socket_pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(Error::io("creating", "a socket pair"))
}
