// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's command lines: for the host, and for guests in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_agent::protocol::PORT;

use super::process::SOCKET_FD;
use super::spec::{Acceleration, GuestSpec, MachineSpec, Topology};
use super::{GuestPaths, Paths};
use crate::error::Result;
use crate::images::Parts;
use crate::packages::Tree;

/// TCG has no pause filter by default; with these features KVM intercepts PAUSE in the emulated
/// host. QEMU warns that it does not emulate them; [`super::patch`] adds the count.
///
/// Left out are features that are slow in TCG: string instructions that the kernel takes for fast,
/// which copy and clear byte by byte, and a fifth level of page tables, which every TLB miss walks.
const TCG_CPU: &str =
    "max,-erms,-fsrm,-fzrm,-fsrs,-la57,+pause-filter,+pfthreshold,x-force-features=on";

/// QEMU's program in the fetched packages.
pub(super) fn program(tree: &Tree) -> Result<PathBuf> {
    tree.get("usr/bin/qemu-system-x86_64")
}

/// QEMU and its firmware as they lie in the cache, run through its own dynamic loader.
pub(super) fn from_packages(tree: &Tree, program: &Path) -> Result<Vec<String>> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let directories: Vec<_> = tree
        .packages
        .iter()
        .flat_map(|p| ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|d| p.root.join(d)))
        .filter(|d| d.is_dir())
        .map(|d| text(&d))
        .collect();
    let mut words = vec![
        text(&tree.get("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")?),
        "--library-path".to_owned(),
        directories.join(":"),
        text(program),
    ];
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        words.extend(["-L".to_owned(), text(&tree.get(firmware)?)]);
    }
    Ok(words)
}

/// The kernel's command line of host and guests. A reboot ends QEMU, so `panic=-1` makes a panic
/// end it.
fn cmdline(role: &str, more: &str) -> String {
    let line = format!("console=ttyS0 quiet oops=panic panic=-1 holdfast.role={role} {more}");
    line.trim_end().to_owned()
}

pub(super) fn host(
    spec: &MachineSpec,
    parts: &Parts,
    how: Acceleration,
    counts: bool,
    program: &Path,
    kernel: &Path,
    image: &Path,
) -> Result<Command> {
    let words = from_packages(&parts.qemu, program)?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let (accel, cpu) = match how {
        Acceleration::Kvm => ("kvm", "host"),
        // One thread counts for all CPUs; and with a thread for each, hosts that run guests end
        // (docs/lab/machine.md).
        Acceleration::Tcg if counts || !spec.guest_kernels.is_empty() => {
            ("tcg,thread=single", TCG_CPU)
        }
        Acceleration::Tcg | Acceleration::Here => ("tcg,thread=multi", TCG_CPU),
    };
    if counts {
        // 2^0 ns for each instruction: a CPU of 1 GHz that executes one in a cycle.
        command.args(["-icount", "shift=0"]);
    }
    command.args(["-M", "q35", "-accel", accel, "-cpu", cpu]);
    command.args(["-m", &spec.memory_mib.to_string()]);
    command.args(cpus(spec));
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
    command.args(agent_port(&format!("fd={SOCKET_FD}")));
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    // The watchdog of clock sources takes the emulation's delays for an unstable TSC. Then every
    // reading of the clock, the guests' included, goes to an emulated HPET.
    let mut more = format!("tsc=reliable {}", spec.cmdline);
    if counts {
        // Self-tests of ciphers would run for seconds beside the measurement.
        more.push_str(" cryptomgr.notests");
    }
    command.args(["-append", &cmdline("host", &more)]);
    Ok(command)
}

/// The host's CPUs: how many, their topology, and the memory of each node.
fn cpus(spec: &MachineSpec) -> Vec<String> {
    let Some(topology) = spec.topology else { return vec!["-smp".into(), spec.cpus.to_string()] };
    let Topology { sockets, cores, threads } = topology;
    let each = topology.cpus() / sockets;
    let smp = format!("{},sockets={sockets},cores={cores},threads={threads}", topology.cpus());
    let mut words = vec!["-smp".to_owned(), smp];
    for socket in 0..sockets {
        // The first node takes the remainder.
        let mut memory_mib = spec.memory_mib / sockets;
        if socket == 0 {
            memory_mib += spec.memory_mib % sockets;
        }
        let (first, last) = (socket * each, (socket + 1) * each - 1);
        let memory = format!("memory-backend-ram,id=memory{socket},size={memory_mib}M");
        let node = format!("node,nodeid={socket},cpus={first}-{last},memdev=memory{socket}");
        words.extend(["-object".to_owned(), memory, "-numa".to_owned(), node]);
    }
    words
}

fn agent_port(socket: &str) -> Vec<String> {
    let chardev = format!("socket,id=agent,{socket}");
    let port = format!("virtserialport,chardev=agent,name={PORT}");
    ["-chardev", &chardev, "-device", "virtio-serial-pci", "-device", &port]
        .map(str::to_owned)
        .to_vec()
}

/// Files a guest's QEMU makes, in the host.
pub(super) struct GuestSockets {
    pub(super) agent: String,
    pub(super) qmp: String,
    pub(super) console: String,
}

impl GuestSockets {
    pub(super) fn new(run: &str, guest: &str) -> Self {
        let directory = format!("{run}/{guest}");
        let file = |name| format!("{directory}/{name}");
        GuestSockets { agent: file("agent"), qmp: file("qmp"), console: file("console") }
    }
}

pub(super) fn guest(
    spec: &GuestSpec,
    paths: &Paths,
    files: &GuestPaths,
    sockets: &GuestSockets,
) -> Vec<String> {
    // `-cpu host` dies in FPU or AVX set-up under emulated SVM. Without a hardware source of
    // entropy the guest's random number generator stays unseeded for minutes. Then every draw of a
    // random number (a new inode, an exec) takes one global lock that no real guest contends for.
    let mut cpu = "qemu64,+x2apic,+rdrand".to_owned();
    for feature in &spec.features {
        cpu.push(',');
        cpu.push_str(feature);
    }
    let mut words = paths.qemu.clone();
    let mut add = |list: &[&str]| words.extend(list.iter().map(|&w| w.to_owned()));
    add(&["-name", &format!("{},debug-threads=on", spec.name)]);
    // Guests of a real host have no HPET (libvirt leaves it out). QEMU's keeps ticking at the rate
    // of the guest's early boot, 250 times a second, in a thread that competes with the vCPUs.
    add(&["-M", "q35,hpet=off", "-accel", "kvm", "-cpu", &cpu]);
    let max = spec.topology.map_or(spec.vcpus, |t| t.cpus()).max(spec.max_vcpus);
    let mut smp = format!("{},maxcpus={max}", spec.vcpus);
    if let Some(Topology { sockets, cores, threads }) = spec.topology {
        smp.push_str(&format!(",sockets={sockets},cores={cores},threads={threads}"));
    }
    let dimms = spec.dimms;
    let mut memory = format!("{}M", spec.memory_mib);
    if dimms > 0 {
        // Each has a GiB of addresses, for its alignment.
        memory.push_str(&format!(",slots={dimms},maxmem={}M", spec.memory_mib + dimms * 2));
    }
    add(&["-smp", &smp, "-m", &memory]);
    for i in 0..dimms {
        add(&["-object", &format!("memory-backend-ram,id=dimm{i},size=2M")]);
        add(&["-device", &format!("pc-dimm,memdev=dimm{i}")]);
    }
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    add(&["-serial", &format!("file:{}", sockets.console)]);
    add(&["-qmp", &format!("unix:{},server=on,wait=off", sockets.qmp)]);
    add(&["-kernel", &files.vmlinuz, "-initrd", &files.initrd]);
    add(&["-append", &cmdline("guest", &spec.cmdline)]);
    words.extend(agent_port(&format!("path={},server=on,wait=off", sockets.agent)));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_without_a_topology_are_a_number() {
        let spec = MachineSpec::new("dist");
        assert_eq!(cpus(&spec), ["-smp", "2"]);
    }

    #[test]
    fn each_socket_has_a_node_with_its_part_of_the_memory() {
        let topology = Some(Topology { sockets: 2, cores: 1, threads: 2 });
        let spec = MachineSpec { cpus: 4, topology, memory_mib: 3073, ..MachineSpec::new("dist") };
        let words = cpus(&spec).join(" ");
        assert_eq!(
            words,
            "-smp 4,sockets=2,cores=1,threads=2 \
             -object memory-backend-ram,id=memory0,size=1537M -numa \
             node,nodeid=0,cpus=0-1,memdev=memory0 \
             -object memory-backend-ram,id=memory1,size=1536M -numa \
             node,nodeid=1,cpus=2-3,memdev=memory1"
        );
    }
}
