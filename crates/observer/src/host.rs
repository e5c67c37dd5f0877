// SPDX-License-Identifier: GPL-2.0-or-later
//! Facts from the host's own interfaces, without BPF.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use holdfast_checks::{Host, foreign_pid_namespace};

use crate::error::ObserverError;
use crate::sample::Times;

pub(crate) const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";
const KVM_BTF: &str = "/sys/kernel/btf/kvm";
/// Missing if KVM is part of the kernel itself.
const KVM_IS_MODULE: &str = "/sys/module/kvm/initstate";

// include/uapi/linux/capability.h; CAP_SYS_ADMIN implies the first two.
const CAP_SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");
const CAP_PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const CAP_BPF: (u32, &str) = (39, "CAP_BPF");

/// Fails with a clear error where loading a program would fail with an obscure one.
pub(crate) fn check_bpf() -> Result<(), ObserverError> {
    check_bpf_of("CAP_BPF and CAP_PERFMON")
}

/// The same, if there is no KVM to observe, or its functions cannot be found.
pub(crate) fn check_kvm() -> Result<(), ObserverError> {
    let needed = "CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH";
    check_bpf_of(needed)?;
    let is_module = find_kvm(|path| Path::new(path).exists())?;
    // Looking up a module's BTF by its id takes CAP_SYS_ADMIN.
    match missing(&[CAP_SYS_ADMIN]).filter(|_| is_module) {
        Some(missing) => Err(ObserverError::NotPermitted { missing, needed }),
        None => foreign_pid_namespace(&Host::this())
            .map_or(Ok(()), |other| Err(ObserverError::PidNamespace(other))),
    }
}

/// Is KVM a module with BTF of its own? If it is part of the kernel, its types are in the kernel's
/// BTF.
fn find_kvm(exists: impl Fn(&str) -> bool) -> Result<bool, ObserverError> {
    // Built in or a module, KVM has a directory there as soon as it can run VMs.
    if !exists("/sys/module/kvm") {
        return Err(ObserverError::NoKvm);
    }
    match (exists(KVM_IS_MODULE), exists(KVM_BTF)) {
        (true, false) => Err(ObserverError::NoKvmBtf(KVM_BTF.into())),
        (_, has_types) => Ok(has_types),
    }
}

fn check_bpf_of(needed: &'static str) -> Result<(), ObserverError> {
    if !Path::new(VMLINUX_BTF).exists() {
        return Err(ObserverError::NoBtf(VMLINUX_BTF.into()));
    }
    match missing(&[CAP_PERFMON, CAP_BPF]) {
        Some(_) if missing(&[CAP_SYS_ADMIN]).is_none() => Ok(()),
        Some(missing) => Err(ObserverError::NotPermitted { missing, needed }),
        None => Ok(()),
    }
}

/// The first of these capabilities that this process lacks.
fn missing(needed: &[(u32, &'static str)]) -> Option<&'static str> {
    let effective = effective_capabilities().unwrap_or(u64::MAX);
    needed.iter().find(|(cap, _)| effective >> cap & 1 == 0).map(|(_, name)| *name)
}

fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The name of this host, as uname(2) has it; empty if it cannot be read.
pub(crate) fn nodename() -> String {
    first_line("/proc/sys/kernel/hostname")
}

pub(crate) fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// CPU time of a thread and the time that it waited for a CPU, in ns, as the scheduler accounts for
/// them. KVM reports the latter to the guest as steal time.
pub(crate) fn schedstat(pid: u32, tid: u32) -> Option<Times> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(run_ns)), Some(Ok(steal_ns))) => Some(Times { run_ns, steal_ns }),
        _ => None,
    }
}

/// Does a thread of this number exist? (`/proc` lists processes only, but has entries for threads.)
pub(crate) fn thread_exists(tid: u32) -> bool {
    Path::new(&format!("/proc/{tid}")).exists()
}

/// Start of a process, in clock ticks since the host booted. With its number it identifies the
/// process.
pub(crate) fn process_begin(pid: u32) -> Option<u64> {
    // The name need not be UTF-8.
    parse_begin(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

fn parse_begin(stat: &str) -> Option<u64> {
    // proc_pid_stat(5): field 22. The second is a name that may have spaces and brackets in it.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// CPUs online, from a list as in `/sys/devices/system/cpu/online`.
pub(crate) fn online_cpus() -> Vec<i32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_cpu_list(text.trim())
}

fn parse_cpu_list(text: &str) -> Vec<i32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i32>().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// CLOCK_MONOTONIC, the clock of the BPF programs.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Time since 1970.
pub(crate) fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Time of the host's boot, in ns since 1970. It has whole seconds, and is the same each time as
/// long as nobody sets the clock; the difference of two clocks is another one each time.
pub(crate) fn boot_ns() -> i64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    parse_btime(&stat).unwrap_or_else(|| {
        const SECOND_NS: i64 = 1_000_000_000;
        let boot_ns = realtime_ns() as i64 - clock_ns(libc::CLOCK_BOOTTIME) as i64;
        boot_ns / SECOND_NS * SECOND_NS
    })
}

/// proc_stat(5): `btime` in seconds since 1970.
fn parse_btime(stat: &str) -> Option<i64> {
    let seconds: i64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    seconds.checked_mul(1_000_000_000)
}

/// Time of the host's boot, in whole seconds.
pub fn boot_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(boot_ns().try_into().unwrap_or(0))
}

/// Start of a process that runs.
pub fn process_start(pid: u32) -> Option<SystemTime> {
    let since_boot = u64::try_from(ticks_ns(process_begin(pid)?)).ok()?;
    Some(boot_time() + Duration::from_nanos(since_boot))
}

/// Clock ticks in ns.
pub(crate) fn ticks_ns(ticks: u64) -> i64 {
    // SAFETY: it reads a constant.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    (ticks as i64).saturating_mul(1_000_000_000 / hz)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for the call, and the clocks asked for always exist.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_of_cpus() {
        assert_eq!(parse_cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("0"), [0]);
        assert!(parse_cpu_list("").is_empty());
    }

    #[test]
    fn a_module_without_btf_differs_from_a_kvm_that_is_built_in() {
        let kvm = |there: &[&str]| find_kvm(|path| there.contains(&path));
        assert!(matches!(kvm(&[]), Err(ObserverError::NoKvm)));
        assert!(matches!(kvm(&["/sys/module/kvm"]), Ok(false)));
        assert!(matches!(kvm(&["/sys/module/kvm", KVM_IS_MODULE, KVM_BTF]), Ok(true)));
        let error = kvm(&["/sys/module/kvm", KVM_IS_MODULE]).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains(KVM_BTF), "{error}");
    }

    #[test]
    fn reads_the_start_of_a_process() {
        let stat = "7 (a) (b 1) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000 9";
        assert_eq!(parse_begin(stat), Some(4711));
        assert_eq!(parse_begin("7 (short) S 1"), None);
        let begun = boot_ns() + ticks_ns(process_begin(std::process::id()).unwrap());
        let age_ns = realtime_ns() as i64 - begun;
        assert!((-1_000_000_000..601_000_000_000).contains(&age_ns), "{age_ns}");
    }

    #[test]
    fn the_time_of_the_boot_is_the_same_each_time() {
        let first = boot_ns();
        assert!((0..1000).all(|_| boot_ns() == first));
        let stat = "cpu  1 2\nctxt 7\nbtime 1795922168\nprocesses 9\n";
        assert_eq!(parse_btime(stat), Some(1_795_922_168_000_000_000));
        assert_eq!(parse_btime("cpu 1"), None);
        let by_clocks = realtime_ns() as i64 - clock_ns(libc::CLOCK_BOOTTIME) as i64;
        assert!((by_clocks - first).abs() < 2_000_000_000, "{by_clocks} {first}");
    }

    #[test]
    fn reads_its_own_cpu_time() {
        let pid = std::process::id();
        let before = schedstat(pid, pid).unwrap().run_ns;
        assert!(schedstat(pid, pid).unwrap().run_ns >= before);
        assert_eq!(schedstat(pid, 0), None);
    }
}
