// SPDX-License-Identifier: GPL-2.0-or-later
//! A fake host in a directory that passes every check; tests take something away.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use holdfast_checks::{Check, Host, Purpose, REQUIRED_KFUNCS, Report, Verdict, before_loading};
use tempfile::TempDir;

/// The kernel of the host.
pub(crate) const RELEASE: &str = "7.2.12+deb14-amd64";

pub(crate) struct FakeHost {
    root: TempDir,
    pub(crate) cookies: BTreeMap<u32, Result<u64, i32>>,
    /// Parts of a CPU that threads of SCHED_DEADLINE are promised.
    pub(crate) promised: BTreeMap<u32, f64>,
}

impl FakeHost {
    /// A host of 8 CPUs with SMT and KVM, without VMs, that passes every check.
    pub(crate) fn new() -> Self {
        let host = Self {
            root: tempfile::tempdir().unwrap(),
            cookies: BTreeMap::new(),
            promised: BTreeMap::new(),
        };
        host.write("/proc/sys/kernel/osrelease", RELEASE);
        host.write("/proc/sys/kernel/ftrace_enabled", "1\n");
        host.write("/proc/sys/net/core/bpf_jit_enable", "1\n");
        host.write("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
        host.write("/proc/self/uid_map", "         0          0 4294967295\n");
        host.link("/proc/self/ns/pid", "pid:[4026531836]");
        host.write("/proc/config.gz", "");
        host.write("/sys/kernel/sched_ext/state", "disabled\n");
        host.write_bytes("/sys/kernel/btf/vmlinux", &vmlinux(&REQUIRED_KFUNCS, &[]));
        host.write(
            "/sys/kernel/btf/kvm",
            "\0kvm_arch_vcpu_load\0kvm_arch_vcpu_destroy\0kvm_arch_destroy_vm\0",
        );
        host.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        host.write("/sys/fs/cgroup/cgroup.stat", "nr_descendants 80\nnr_subsys_cpu 60\n");
        host.write("/sys/devices/system/cpu/isolated", "\n");
        host.write("/proc/sys/kernel/sched_rt_runtime_us", "950000\n");
        host.write("/proc/sys/kernel/sched_rt_period_us", "1000000\n");
        host.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        host.write(
            "/sys/kernel/tracing/available_filter_functions",
            "schedule\nkvm_arch_vcpu_load [kvm]\nkvm_arch_vcpu_destroy [kvm]\nkvm_arch_destroy_vm \
             [kvm]\n",
        );
        host.write("/sys/module/kvm/initstate", "live\n");
        host.write("/sys/module/kvm_amd/parameters/pause_filter_count", "3000\n");
        host.write("/sys/module/kvm_amd/parameters/pause_filter_thresh", "128\n");
        host.write("/sys/devices/system/cpu/possible", "0-7\n");
        host.write("/sys/devices/system/cpu/online", "0-7\n");
        host.write("/sys/devices/system/cpu/smt/active", "1\n");
        host.write("/sys/devices/system/node/online", "0\n");
        for cpu in 0..8 {
            let cache = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
            host.write(&format!("{cache}/index0/level"), "1\n");
            host.write(&format!("{cache}/index0/shared_cpu_list"), &format!("{cpu}\n"));
            host.write(&format!("{cache}/index3/level"), "3\n");
            let list = if cpu < 4 { "0-3\n" } else { "4-7\n" };
            host.write(&format!("{cache}/index3/shared_cpu_list"), list);
        }
        host.process(1, "init", &[1]);
        host
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    pub(crate) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.root().join(&path[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Makes a symbolic link, in place of an older one.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root().join(&path[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.root().join(&path[1..]);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Adds a process with threads of the ordinary class.
    pub(crate) fn process(&self, pid: u32, comm: &str, tids: &[u32]) {
        self.write(&format!("/proc/{pid}/comm"), comm);
        for tid in tids {
            self.thread(pid, *tid, 0);
        }
    }

    /// Adds a thread of a scheduling class, with a name that is hard to parse.
    pub(crate) fn thread(&self, pid: u32, tid: u32, policy: u32) {
        let zeroes = |n| "0 ".repeat(n);
        let stat = format!("{tid} (CPU 0) K VM) R {}{policy} {}", zeroes(41 - 4), zeroes(8));
        self.write(&format!("/proc/{pid}/task/{tid}/stat"), &stat);
    }

    pub(crate) fn host(&self) -> Host {
        Host::at(self.root(), self.cookies.clone()).with_promises(self.promised.clone())
    }

    pub(crate) fn all(&self) -> Report {
        holdfast_checks::all(&self.host())
    }

    pub(crate) fn scheduler(&self) -> Option<String> {
        holdfast_checks::loaded_scheduler(&self.host())
    }

    /// The finding of one check.
    pub(crate) fn found(&self, name: &str) -> String {
        let report = self.all();
        let check = report.checks.iter().find(|check| check.name == name);
        check.unwrap_or_else(|| panic!("no {name}: {report}")).found.clone()
    }

    /// The only check that is not ok; its verdict has to be `expected`.
    pub(crate) fn only(&self, verdict: Verdict) -> Check {
        let report = self.all();
        let odd: Vec<_> = report.checks.iter().filter(|c| c.verdict > Verdict::Ok).collect();
        assert_eq!(odd.len(), 1, "{report}");
        assert_eq!((odd[0].verdict, report.verdict), (verdict, verdict), "{report}");
        assert_eq!(report.passed(), verdict != Verdict::Fail);
        assert!(odd[0].advice.as_ref().is_some_and(|advice| !advice.is_empty()), "{report}");
        odd[0].clone()
    }

    /// Do the checks allow loading a scheduler?
    pub(crate) fn loads(&self, purpose: Purpose) -> bool {
        before_loading(&self.host(), purpose).passed()
    }
}

/// BTF with `struct sched_ext_ops` and functions; `malformed` ones take an `aux`.
pub(crate) fn vmlinux(functions: &[&str], malformed: &[&str]) -> Vec<u8> {
    const STRUCT: u32 = 4;
    const FUNC: u32 = 12;
    const FUNC_PROTO: u32 = 13;
    let mut strings = vec![0u8];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        at
    };
    let head = |name: u32, kind: u32, parts: u32, last: u32| [name, kind << 24 | parts, last];
    let mut words: Vec<u32> = Vec::new();
    // Type 1: int; 2: a function without arguments; 3: one that takes `aux`.
    words.extend(head(name("int"), 1, 0, 4));
    words.push(0x0100_0020);
    words.extend(head(0, FUNC_PROTO, 0, 1));
    words.extend(head(0, FUNC_PROTO, 1, 1));
    words.extend([name("aux"), 1]);
    let callbacks = ["yield", "dump", "cgroup_init", "cgroup_set_weight"];
    words.extend(head(name("sched_ext_ops"), STRUCT, callbacks.len() as u32, 32));
    for (at, callback) in (0..).step_by(64).zip(callbacks) {
        words.extend([name(callback), 1, at]);
    }
    for function in functions {
        let prototype = if malformed.contains(function) { 3 } else { 2 };
        words.extend(head(name(function), FUNC, 0, prototype));
    }
    let types: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
    blob.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    blob.extend(types);
    blob.extend(strings);
    blob
}
