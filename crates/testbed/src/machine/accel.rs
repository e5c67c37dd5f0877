// SPDX-License-Identifier: GPL-2.0-or-later
//! Ways to run the host: a usable KVM, emulation, or the running machine.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use holdfast_agent::protocol::{Reply, Request};

use super::channel::Channel;
use super::process::{Process, SOCKET_FD};
use super::qemu;
use super::spec::{Accel, Acceleration, Clock, MachineSpec};
use crate::error::{Error, Result};
use crate::images::{AGENT, Parts};
use crate::progress::Progress;

/// Longest a small machine may take to boot under a usable KVM.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// Settles [`Accel::Auto`], and refuses a KVM that does not work.
pub(super) fn choose(
    spec: &MachineSpec,
    parts: &Parts,
    probe_image: &Path,
    progress: &Progress,
) -> Result<Acceleration> {
    if spec.accel == Accel::Tcg || spec.clock == Clock::Instructions {
        return Ok(Acceleration::Tcg);
    }
    let why = match kvm_problem(spec, parts, probe_image, progress)? {
        None => return Ok(Acceleration::Kvm),
        Some(why) => why,
    };
    if spec.accel == Accel::Kvm {
        return Err(Error::Unsupported(format!("KVM is not usable here: {why}")));
    }
    progress.note(&format!("no usable KVM ({why}); the host is emulated"));
    Ok(Acceleration::Tcg)
}

/// Why KVM cannot run the host, which runs guests itself; found once per boot of the machine.
fn kvm_problem(
    spec: &MachineSpec,
    parts: &Parts,
    probe_image: &Path,
    progress: &Progress,
) -> Result<Option<String>> {
    if let Err(e) = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Ok(Some(format!("/dev/kvm: {e}")));
    }
    if !passes_virtualization_on(Path::new("/sys/module")) {
        let why = "its guests cannot run guests: module parameter `nested` of kvm_intel or kvm_amd";
        return Ok(Some(why.into()));
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let key = format!("{} {}", boot.trim(), parts.qemu_version());
    let file = spec.cache.join("kvm-probe");
    if let Ok(text) = fs::read_to_string(&file)
        && let Some((known, verdict)) = text.split_once('\n')
        && known == key
    {
        return Ok((verdict != "usable").then(|| verdict.to_owned()));
    }
    let step = progress.step("Trying KVM");
    let problem = match probe(spec, parts, probe_image) {
        Ok(problem) => problem,
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(Error::HostHung { .. }) => Some(format!(
            "/dev/kvm exists, but a small machine did not boot within {} s",
            PROBE_LIMIT.as_secs()
        )),
        Err(Error::HostEnded { console, .. }) => Some(format!(
            "/dev/kvm exists, but a small machine ended at boot: {}",
            console.lines().last().unwrap_or("without a word")
        )),
        Err(e) => Some(e.to_string()),
    };
    let verdict = problem.as_deref().unwrap_or("usable");
    fs::write(&file, format!("{key}\n{verdict}")).map_err(Error::io("writing", &file))?;
    step.done(verdict);
    Ok(problem)
}

fn passes_virtualization_on(modules: &Path) -> bool {
    ["kvm_intel", "kvm_amd"].iter().any(|module| {
        let parameter = modules.join(module).join("parameters/nested");
        fs::read_to_string(parameter).is_ok_and(|value| matches!(value.trim(), "Y" | "1"))
    })
}

fn probe(spec: &MachineSpec, parts: &Parts, image: &Path) -> Result<Option<String>> {
    let small = MachineSpec { cpus: 1, topology: None, memory_mib: 512, ..spec.clone() };
    let kernel = parts.kernel(spec.host_kernel)?;
    let program = qemu::program(&parts.qemu)?;
    let command =
        qemu::host(&small, parts, Acceleration::Kvm, false, &program, &kernel.vmlinuz, image)?;
    let (process, socket) = Process::start(command)?;
    let channel = Channel::new(socket, process.watch())?;
    let found = channel.hello(PROBE_LIMIT).and_then(|_| {
        let path = "/proc/cpuinfo".to_owned();
        channel.request(Request::ReadFile { path, max_bytes: 1 << 16 })
    });
    drop(process);
    let Reply::ReadFile { data, .. } = found? else { return Ok(Some("no answer".into())) };
    let text = String::from_utf8_lossy(&data);
    let nested = text.split_ascii_whitespace().any(|word| word == "vmx" || word == "svm");
    Ok((!nested).then(|| "it does not pass virtualization on (module parameter `nested`)".into()))
}

/// Refuses a machine that this one cannot provide, before anything is fetched for it.
pub fn check(spec: &MachineSpec) -> Result<()> {
    match (spec.accel, spec.clock) {
        (Accel::Kvm | Accel::Here, Clock::Instructions) => return Err(Error::Counting),
        (Accel::Here, _) => (),
        _ => return Ok(()),
    }
    let refuse = |why: &str| {
        Err(Error::Unsupported(format!(
            "this machine cannot be the lab's host itself: {why}; leave out `--here` to boot one"
        )))
    };
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return refuse("loading schedulers and KVM settings needs root");
    }
    if !Path::new("/sys/kernel/sched_ext").exists() {
        return refuse("its kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT, Linux 6.12)");
    }
    if !Path::new("/dev/kvm").exists() {
        return refuse("it has no /dev/kvm");
    }
    Ok(())
}

/// The agent, for the running machine.
pub(super) fn agent_here(spec: &MachineSpec) -> Command {
    let mut command = Command::new(spec.dist.join(AGENT));
    command.args(["--fd", &SOCKET_FD.to_string(), "--role", "host"]);
    if !spec.cpus_here.is_empty() {
        let set = cpu_set(&spec.cpus_here);
        // SAFETY: one async-signal-safe system call between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::sched_setaffinity(0, size_of_val(&set), &set) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
    }
    command
}

fn cpu_set(cpus: &[u32]) -> libc::cpu_set_t {
    // SAFETY: an empty set is all zeroes, and CPU_SET checks its bounds.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        set
    }
}

/// CPUs that this process may use, in order.
pub fn cpus_here() -> Vec<u32> {
    let mut set = cpu_set(&[]);
    // SAFETY: the set is valid and says its size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } == -1 {
        let nr = std::thread::available_parallelism().map_or(1, usize::from);
        return (0..nr as u32).collect();
    }
    // SAFETY: within the bounds of the set.
    let is_in = |cpu: &u32| unsafe { libc::CPU_ISSET(*cpu as usize, &set) };
    (0..libc::CPU_SETSIZE as u32).filter(is_in).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_real_machine_counts_instructions() {
        let refused = |accel| {
            let clock = Clock::Instructions;
            check(&MachineSpec { accel, clock, ..MachineSpec::new("dist") }).err()
        };
        for accel in [Accel::Kvm, Accel::Here] {
            assert!(matches!(refused(accel), Some(Error::Counting)), "{accel:?}");
        }
        assert!(refused(Accel::Auto).is_none() && refused(Accel::Tcg).is_none());
    }

    #[test]
    fn what_is_started_here_uses_the_cpus_it_is_given() {
        let dist = tempfile::tempdir().unwrap();
        let agent = dist.path().join("holdfast-agent");
        fs::write(&agent, "#!/bin/sh\ngrep Cpus_allowed_list: /proc/self/status\n").unwrap();
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
        let one = *cpus_here().last().unwrap();
        let spec = MachineSpec { cpus_here: vec![one], ..MachineSpec::new(dist.path()) };
        let said = agent_here(&spec).output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.split_whitespace().last(), Some(&*one.to_string()), "{said}");
    }

    #[test]
    fn a_kvm_that_is_not_nested_or_not_hardwares_passes_nothing_on() {
        let modules = tempfile::tempdir().unwrap();
        assert!(!passes_virtualization_on(modules.path()));
        let parameters = modules.path().join("kvm_intel/parameters");
        fs::create_dir_all(&parameters).unwrap();
        for (value, expected) in [("N\n", false), ("Y\n", true), ("0\n", false), ("1\n", true)] {
            fs::write(parameters.join("nested"), value).unwrap();
            assert_eq!(passes_virtualization_on(modules.path()), expected, "{value}");
        }
    }
}
