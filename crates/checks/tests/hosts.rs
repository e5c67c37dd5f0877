// SPDX-License-Identifier: GPL-2.0-or-later
//! Hosts that lack something, or on which loading a scheduler would be dangerous.

mod common;

use std::os::unix::fs::symlink;

use common::{FakeHost, RELEASE, vmlinux};
use holdfast_checks::{
    Check, DISCOVERY_PROGRAMS, Host, OBSERVER_PROGRAMS, Purpose, REQUIRED_KFUNCS,
    SCHEDULER_PROGRAMS, SPINS_PROGRAMS, Scheduler, Verdict, before_loading,
};

#[test]
fn a_host_that_has_everything_passes_every_check() {
    let host = FakeHost::new();
    let report = host.all();
    assert!(report.checks.iter().all(|check| check.verdict == Verdict::Ok), "{report}");
    assert!(report.checks.iter().all(|check| check.advice.is_none()), "{report}");
    assert!(host.loads(Purpose::Guests));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["schema"], &json["verdict"]), (&"holdfast.doctor/1".into(), &"ok".into()));
    let limits = report.checks.iter().find(|check| check.name == "cpus").unwrap();
    assert!(limits.found.contains("8 CPUs online") && limits.found.contains("2 last level"));
}

#[test]
fn a_report_fits_a_terminal_and_loses_no_word() {
    let host = FakeHost::new();
    host.remove("/sys/kernel/sched_ext");
    host.remove("/sys/module/kvm_amd");
    let report = host.all();
    let text = report.to_string();
    assert!(text.lines().all(|line| line.len() < 80), "{text}");
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    for check in &report.checks {
        let mut told = words(&format!("{} {} {}", check.verdict, check.name, check.found));
        if let Some(advice) = &check.advice {
            told.push("->".into());
            told.extend(words(advice));
        }
        assert!(words(&text).windows(told.len()).any(|shown| shown == told), "{text}");
    }
    let blind: Vec<_> = report.blind().map(|check| check.name).collect();
    assert_eq!(blind, ["kvm"], "without kvm_amd there is no VM to observe");
}

#[test]
fn the_process_of_the_scheduler_holds_its_link() {
    let host = FakeHost::new();
    let process = || Scheduler::of(&host.host()).map(|scheduler| scheduler.pid);
    assert_eq!(process(), None, "none is loaded");
    host.write("/sys/kernel/sched_ext/state", "enabled\n");
    assert_eq!(process(), Some(None), "no process is seen to hold it");
    for (pid, comm, link) in [
        (9, "bpftool", "struct_ops"),
        (410, "scx_x", "struct_ops"),
        (41, "scx_holdfast", "struct_ops"),
        (39, "x", "tracing"),
    ] {
        host.write(&format!("/proc/{pid}/comm"), comm);
        let info = format!("pos:\t0\nlink_type:\t{link}\nlink_id:\t7\n");
        host.write(&format!("/proc/{pid}/fdinfo/5"), &info);
    }
    assert_eq!(process(), Some(Some(41)), "the first by its number");
    host.remove("/proc/41");
    host.remove("/proc/410");
    assert_eq!(process(), Some(Some(9)));
}

#[test]
fn a_kernel_without_sched_ext_is_refused_with_its_release() {
    let host = FakeHost::new();
    host.remove("/sys/kernel/sched_ext");
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "sched-ext");
    assert!(check.found.contains(RELEASE), "{check:?}");
    assert!(check.advice.unwrap().contains("6.12"));
}

#[test]
fn missing_functions_and_callbacks_are_named() {
    let host = FakeHost::new();
    host.write_bytes("/sys/kernel/btf/vmlinux", &vmlinux(&REQUIRED_KFUNCS[1..], &[]));
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "kfuncs");
    assert_eq!(check.found, format!("the kernel lacks {}", REQUIRED_KFUNCS[0]));
}

#[test]
fn functions_that_libbpf_would_not_find_are_named() {
    let host = FakeHost::new();
    let wrong = ["scx_bpf_kick_cpu"];
    host.write_bytes("/sys/kernel/btf/vmlinux", &vmlinux(&REQUIRED_KFUNCS, &wrong));
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "kfuncs");
    assert!(check.found.contains("scx_bpf_kick_cpu wrongly"), "{check:?}");
    assert!(check.advice.unwrap().contains("pahole"));
}

#[test]
fn a_kernel_without_types_is_refused() {
    let host = FakeHost::new();
    host.remove("/sys/kernel/btf/vmlinux");
    assert_eq!(host.only(Verdict::Fail).name, "kernel-btf");
    assert_eq!(host.all().verdict_of("vcpu-tracing"), Some(Verdict::Skip));
}

#[test]
fn a_configuration_kept_elsewhere_comes_with_the_command_that_helps() {
    let host = FakeHost::new();
    host.remove("/proc/config.gz");
    host.write(&format!("/usr/lib/modules/{RELEASE}/config"), "CONFIG_BPF=y\n");
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "kernel-config");
    let wanted = format!("ln -s /usr/lib/modules/{RELEASE}/config /boot/config-{RELEASE}");
    assert_eq!(check.advice.unwrap(), wanted);

    host.write(&format!("/boot/config-{RELEASE}"), "CONFIG_BPF=y\n");
    assert!(host.all().passed());
}

#[test]
fn missing_capabilities_are_named() {
    let host = FakeHost::new();
    // All capabilities but CAP_BPF.
    host.write("/proc/self/status", "CapEff:\t0000017fffffffff\n");
    let check = host.only(Verdict::Fail);
    assert_eq!((check.name, check.found.as_str()), ("privileges", "this process lacks CAP_BPF"));
}

#[test]
fn root_of_a_container_is_not_root() {
    let host = FakeHost::new();
    host.write("/proc/self/uid_map", "         0     100000      65536\n");
    let check = host.only(Verdict::Fail);
    assert!(check.name == "privileges" && check.found.contains("user namespace"), "{check:?}");
}

#[test]
fn another_pid_namespace_is_refused_because_it_hides_guests() {
    let host = FakeHost::new();
    host.link("/proc/self/ns/pid", "pid:[4026532201]");
    host.write("/sys/devices/system/cpu/smt/active", "0\n");
    let check = host.only(Verdict::Fail);
    assert!(check.name == "pid-namespace" && check.found.contains("4026532201"), "{check:?}");
    assert!(host.loads(Purpose::BaseOnly));

    // It also hides the host's tasks that use core scheduling.
    host.write("/sys/devices/system/cpu/smt/active", "1\n");
    assert!(!host.loads(Purpose::BaseOnly));
    let report = before_loading(&host.host(), Purpose::BaseOnly);
    assert!(report.failures().any(|check| check.found.contains("4026532201")), "{report}");
}

#[test]
fn another_scheduler_is_named() {
    let host = FakeHost::new();
    host.write("/sys/kernel/sched_ext/state", "enabled\n");
    host.write("/sys/kernel/sched_ext/root/ops", "lavd_1.1.4\n");
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "other-scheduler");
    assert!(check.found.starts_with("lavd_1.1.4 is loaded"), "{check:?}");
    assert_eq!(host.scheduler().as_deref(), Some("lavd_1.1.4"));

    assert!(!host.loads(Purpose::Guests));

    // For doctor, scx_holdfast is no other scheduler; it could not be loaded twice.
    host.write("/sys/kernel/sched_ext/root/ops", "holdfast_0.1.0\n");
    host.write("/proc/12/comm", "scx_holdfast");
    host.write("/proc/12/fdinfo/5", "link_type:\tstruct_ops\n");
    let report = host.all();
    assert!(report.passed(), "{report}");
    assert_eq!(host.found("other-scheduler"), "none: holdfast_0.1.0 is loaded, by process 12");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["scheduler"], serde_json::json!({ "name": "holdfast_0.1.0", "pid": 12 }));
    assert!(!host.loads(Purpose::Guests));

    host.write("/sys/kernel/sched_ext/state", "disabling\n");
    assert!(host.only(Verdict::Fail).found.contains("disabling"));
    assert_eq!(host.scheduler().as_deref(), Some(""));
    host.remove("/sys/kernel/sched_ext/state");
    assert_eq!(host.scheduler(), None);
}

#[test]
fn cpus_isolated_at_boot_are_refused_and_those_of_nohz_full_are_not() {
    let host = FakeHost::new();
    host.write("/proc/cmdline", "root=/dev/vda1 nohz_full=2-3 isolcpus=managed_irq,2-3\n");
    host.write("/sys/devices/system/cpu/nohz_full", "2-3\n");
    assert!(host.all().passed());
    host.write("/sys/devices/system/cpu/isolated", "2-3\n");
    let check = host.only(Verdict::Fail);
    assert!(check.name == "isolated-cpus" && check.found.contains("CPUs 2-3"), "{check:?}");
    assert!(check.advice.unwrap().contains("cpuset.cpus.partition"));
    assert!(!host.loads(Purpose::BaseOnly));
}

#[test]
fn cpus_isolated_by_a_cpuset_matter_to_linux_7_0_alone() {
    let host = FakeHost::new();
    host.write("/sys/fs/cgroup/cpuset.cpus.isolated", "2-3\n");
    for release in ["6.12.107-amd64", "7.2.12+deb14-amd64"] {
        host.write("/proc/sys/kernel/osrelease", release);
        assert_eq!(host.all().verdict, Verdict::Ok, "{release}");
    }
    host.write("/proc/sys/kernel/osrelease", "7.0.3-1-default");
    assert_eq!(host.only(Verdict::Warn).name, "isolated-cpus");
    host.write("/sys/fs/cgroup/cpuset.cpus.isolated", "\n");
    assert_eq!(host.all().verdict, Verdict::Ok);
}

#[test]
fn more_cgroups_than_there_is_room_for_are_refused() {
    let host = FakeHost::new();
    let stat = |of_cpu| format!("nr_descendants 70000\nnr_dying_descendants 9\n{of_cpu}");
    let write = |text: &str| host.write("/sys/fs/cgroup/cgroup.stat", text);
    write(&stat("nr_subsys_cpu 65536\n"));
    assert!(host.all().passed());
    write(&stat("nr_subsys_cpu 65537\n"));
    let check = host.only(Verdict::Fail);
    assert!(check.name == "cgroups" && check.found.starts_with("65537 cgroups"), "{check:?}");
    // Before Linux 6.13 the number of cgroups with the controller `cpu` is not known.
    write(&stat(""));
    assert_eq!(host.only(Verdict::Fail).name, "cgroups");
    host.remove("/sys/fs/cgroup/cgroup.stat");
    assert!(host.all().passed());
}

#[test]
fn time_promised_to_deadline_tasks_must_leave_the_kernels_reserve() {
    const LIMIT: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    let mut host = FakeHost::new();
    // 86 % of each of 8 CPUs.
    host.write("/proc/700/cmdline", "camera\0");
    for tid in 701..709 {
        host.thread(700, tid, 6);
        host.promised.insert(tid, 0.86);
    }
    // A thread of the kernel itself.
    host.thread(20, 20, 6);
    host.promised.insert(20, 0.1);
    let check = host.only(Verdict::Warn);
    assert_eq!(check.name, "deadline-tasks");
    assert!(check.found.starts_with("86 % of the CPUs' time is promised"), "{check:?}");
    host.write(LIMIT, "-1\n");
    assert!(host.found("deadline-tasks").contains("no limit"));

    host.write(LIMIT, "950000\n");
    host.promised.remove(&701);
    assert!(host.found("deadline-tasks").starts_with("75 %"), "{}", host.all());
    assert_eq!(host.all().verdict, Verdict::Ok);

    host.write(LIMIT, "60000\n");
    let check = host.only(Verdict::Fail);
    assert!(check.found.contains("leaves 6 % of each CPU"), "{check:?}");
    assert!(check.advice.unwrap().contains("sched_rt_runtime_us=950000"));
    host.write("/proc/sys/kernel/osrelease", "6.18.2");
    assert_eq!(host.all().verdict, Verdict::Ok, "this kernel reserves no time for sched_ext");
}

#[test]
fn core_scheduling_cookies_are_refused_on_a_host_with_smt_only() {
    let mut host = FakeHost::new();
    host.process(300, "cloud-hyperviso", &[300, 301, 302]);
    host.process(400, "bash", &[400]);
    host.cookies.extend([(301, Ok(0xfeed)), (302, Ok(0xfeed))]);
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "core-scheduling");
    assert!(check.found.contains("cloud-hyperviso (pid 300, 2 threads);"), "{check:?}");
    assert!(check.found.contains("3715"));
    assert!(check.advice.unwrap().contains("core_scheduling=off"));
    assert!(!host.loads(Purpose::Guests));
    assert!(!host.loads(Purpose::BaseOnly));

    host.write("/sys/devices/system/cpu/smt/active", "0\n");
    assert!(host.all().passed());
}

#[test]
fn smt_is_recognised_without_its_switch() {
    let mut host = FakeHost::new();
    host.cookies.insert(1, Ok(1));
    host.remove("/sys/devices/system/cpu/smt");
    assert!(host.all().passed());
    host.write("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n");
    assert_eq!(host.only(Verdict::Fail).name, "core-scheduling");
}

#[test]
fn a_cookie_that_cannot_be_asked_for_is_not_taken_for_none() {
    let mut host = FakeHost::new();
    host.cookies.insert(1, Err(libc::EPERM));
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "core-scheduling");
    assert!(check.found.contains("not known whether 1 tasks"), "{check:?}");

    // The thread has ended; the kernel was built without core scheduling; no core has SMT siblings.
    for errno in [libc::ESRCH, libc::EINVAL, libc::ENODEV] {
        host.cookies.insert(1, Err(errno));
        assert!(host.all().passed(), "errno {errno}");
    }
}

#[test]
fn a_host_that_is_too_large_is_refused() {
    let host = FakeHost::new();
    host.write("/sys/devices/system/cpu/possible", "0-1023\n");
    assert!(host.all().passed());
    host.write("/sys/devices/system/cpu/possible", "0-1024\n");
    assert_eq!(host.only(Verdict::Fail).name, "cpus");
}

#[test]
fn the_base_scheduler_loads_without_what_only_guests_need() {
    let host = FakeHost::new();
    host.remove("/sys/kernel/btf/kvm");
    let check = host.only(Verdict::Fail);
    assert!(check.name == "kvm" && check.advice.unwrap().contains("--no-guest-knowledge"));
    assert!(!host.loads(Purpose::Guests));
    assert!(host.loads(Purpose::BaseOnly));
}

#[test]
fn no_scheduler_is_loaded_where_bpf_may_not_read_the_kernel() {
    let host = FakeHost::new();
    host.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    assert!(host.all().passed());
    host.write("/sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
    let check = host.only(Verdict::Fail);
    assert_eq!(check.name, "lockdown");
    assert!(!check.advice.unwrap().contains("--no-guest-knowledge"));
    assert!(!host.loads(Purpose::Guests) && !host.loads(Purpose::BaseOnly));
}

#[test]
fn yama_scope_3_is_refused_because_no_process_can_read_guests() {
    let host = FakeHost::new();
    host.write("/proc/sys/kernel/yama/ptrace_scope", "3\n");
    assert_eq!(host.only(Verdict::Fail).name, "ptrace-scope");
    assert!(!host.loads(Purpose::Guests) && host.loads(Purpose::BaseOnly));
    host.write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    assert!(host.all().passed());
}

#[test]
fn timers_that_expire_in_threads_are_refused() {
    let host = FakeHost::new();
    host.write("/proc/cmdline", "root=/dev/vda1 threadirqs quiet\n");
    let check = host.only(Verdict::Fail);
    assert!(check.name == "timers" && check.found.contains("threadirqs"), "{check:?}");
    assert!(host.loads(Purpose::BaseOnly) && !host.loads(Purpose::Guests));
    host.write("/proc/cmdline", "root=/dev/vda1 quiet\n");
    assert!(host.all().passed());
    host.write("/sys/kernel/realtime", "1\n");
    assert!(host.only(Verdict::Fail).found.contains("PREEMPT_RT"));
}

#[test]
fn loading_may_hang_linux_7_1() {
    let host = FakeHost::new();
    host.write("/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    for release in ["7.1.0-rc2", "7.1.13+deb13-amd64"] {
        host.write("/proc/sys/kernel/osrelease", release);
        assert_eq!(host.only(Verdict::Warn).name, "psi-triggers");
        assert!(host.loads(Purpose::BaseOnly), "{release}");
    }
    host.remove("/proc/pressure");
    assert_eq!(host.all().verdict, Verdict::Ok);
    host.write("/proc/pressure/cpu", "");
    host.write("/proc/sys/kernel/osrelease", "7.10.1");
    assert_eq!(host.all().verdict, Verdict::Ok);
}

#[test]
fn a_kvm_that_is_missing_or_cannot_be_traced_is_refused() {
    let host = FakeHost::new();
    host.write("/sys/kernel/tracing/available_filter_functions", "schedule\n");
    assert_eq!(host.only(Verdict::Fail).name, "vcpu-functions");
    host.remove("/sys/kernel/tracing");
    assert!(host.all().passed(), "tracefs need not be mounted");
    host.write("/proc/sys/kernel/ftrace_enabled", "0\n");
    assert_eq!(host.only(Verdict::Fail).name, "vcpu-tracing");

    let host = FakeHost::new();
    host.remove("/sys/kernel/btf/kvm");
    assert_eq!(host.only(Verdict::Fail).name, "kvm");
    host.remove("/sys/module/kvm");
    assert_eq!(host.only(Verdict::Fail).name, "kvm");
    let skipped: Vec<_> =
        host.all().checks.into_iter().filter(|c| c.verdict == Verdict::Skip).collect();
    assert!(skipped.iter().any(|check| check.name == "vcpu-functions"), "{skipped:?}");
    assert!(host.loads(Purpose::BaseOnly));
}

#[test]
fn a_refusal_of_tracing_names_its_reason_and_not_capabilities() {
    let host = FakeHost::new();
    host.write("/sys/kernel/security/lsm", "lockdown,capability,selinux\n");
    let refused = |errno| {
        let report = holdfast_checks::all(&host.host().without_tracing(errno));
        let [check] = report.failures().collect::<Vec<_>>()[..] else { panic!("{report}") };
        assert_eq!(check.name, "vcpu-tracing");
        assert_eq!(report.verdict_of("privileges"), Some(Verdict::Ok));
        (check.found.clone(), check.advice.clone().unwrap())
    };
    let (found, advice) = refused(libc::EPERM);
    assert!(found.contains("selinux") && advice.contains("containers"), "{found} {advice}");
    // ENOTSUPP, which has no name for programs.
    for (errno, why) in [(libc::EINVAL, "Invalid argument"), (524, "not supported")] {
        let (found, advice) = refused(errno);
        assert!(found.contains(why) && advice.contains("CONFIG_"), "{found} {advice}");
        assert!(!format!("{found}{advice}").contains("capabilit"), "{found} {advice}");
    }

    // Without privileges the outcome is not known.
    host.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let report = holdfast_checks::all(&host.host().without_tracing(libc::EPERM));
    assert_eq!(report.verdict_of("vcpu-tracing"), Some(Verdict::Skip), "{report}");
}

#[test]
fn checks_of_bpf_programs_count_for_the_commands_that_load_them() {
    let mut report = FakeHost::new().all();
    let fail = |name| Check::fail(name, "not taken", "report it");
    report.add(fail(OBSERVER_PROGRAMS));
    report.add(fail(SPINS_PROGRAMS));
    assert!(!report.passed() && report.unschedulable().next().is_none(), "{report}");
    let blind: Vec<_> = report.blind().map(|check| check.name).collect();
    assert_eq!(blind, [OBSERVER_PROGRAMS]);
    report.add(fail(DISCOVERY_PROGRAMS));
    report.add(fail(SCHEDULER_PROGRAMS));
    let names: Vec<_> = report.unschedulable().map(|check| check.name).collect();
    assert_eq!(names, [DISCOVERY_PROGRAMS, SCHEDULER_PROGRAMS]);
    assert_eq!(report.blind().count(), 2);
}

#[test]
fn a_check_that_cannot_read_its_file_is_skipped_and_not_ok() {
    let host = FakeHost::new();
    host.remove("/sys/fs/cgroup/cgroup.controllers");
    host.remove("/sys/kernel/security/lockdown");
    host.remove("/sys/kernel/tracing/available_filter_functions");
    host.remove("/proc/sys/net/core/bpf_jit_enable");
    let report = host.all();
    let skipped: Vec<_> = report.checks.iter().filter(|c| c.verdict == Verdict::Skip).collect();
    let names: Vec<_> = skipped.iter().map(|check| check.name).collect();
    assert_eq!(names, ["bpf-jit", "lockdown", "cpu-limits", "vcpu-functions"], "{report}");
    assert_eq!(report.verdict, Verdict::Ok);
}

#[test]
fn limits_that_are_not_enforced_are_named() {
    let host = FakeHost::new();
    host.write("/sys/fs/cgroup/machine.slice/cpu.max", "max 100000\n");
    assert!(host.all().checks.iter().all(|check| check.verdict == Verdict::Ok));
    host.write("/sys/fs/cgroup/machine.slice/vm1.scope/cpu.max", "150000 100000\n");
    let check = host.only(Verdict::Warn);
    assert_eq!(check.name, "cpu-limits");
    assert!(check.found.contains("machine.slice/vm1.scope"), "{check:?}");
    // The scheduler warns about the limit, too.
    let report = before_loading(&host.host(), Purpose::BaseOnly);
    assert!(report.passed() && report.checks.iter().any(|c| c.found == check.found), "{report}");
}

#[test]
fn vms_of_a_realtime_class_are_named_and_other_processes_are_not() {
    let host = FakeHost::new();
    host.process(500, "qemu-system-x86", &[500]);
    host.thread(500, 501, 1);
    host.process(600, "jackd", &[600]);
    host.thread(600, 601, 2);
    let fds = host.root().join("proc/500/fd");
    std::fs::create_dir_all(&fds).unwrap();
    symlink("anon_inode:kvm-vm", fds.join("9")).unwrap();
    let check = host.only(Verdict::Warn);
    assert_eq!(check.name, "realtime-vcpus");
    assert!(check.found.starts_with("qemu-system-x86 (pid 500, 1 threads) run"), "{check:?}");
}

#[test]
fn no_name_hides_a_vm_or_steers_the_terminal() {
    let host = FakeHost::new();
    host.write_bytes("/proc/500/comm", b"\x1b]0;owned\x07\xff\n");
    host.thread(500, 501, 1);
    let stat = host.root().join("proc/500/task/501/stat");
    let text = std::fs::read_to_string(&stat).unwrap();
    let named = text.replace("CPU 0", "\u{1b}[2J").into_bytes();
    std::fs::write(&stat, [&named[..6], b"\xff", &named[6..]].concat()).unwrap();
    let fds = host.root().join("proc/500/fd");
    std::fs::create_dir_all(&fds).unwrap();
    symlink("anon_inode:kvm-vm", fds.join("9")).unwrap();
    host.write("/sys/fs/cgroup/a\u{202e}\nok    all is well/cpu.max", "150000 100000\n");
    let report = host.all();
    let found = |name| &report.checks.iter().find(|check| check.name == name).unwrap().found;
    assert!(found("realtime-vcpus").starts_with("?]0;owned?\u{fffd} (pid 500"), "{report}");
    assert!(found("cpu-limits").contains("a??ok    all is well"), "{report}");
    let steers = |c: char| c != '\n' && holdfast_checks::steers(c);
    assert!(!report.to_string().contains(steers), "{:?}", report.to_string());
}

#[test]
fn pause_exits_that_are_off_are_pointed_out() {
    let host = FakeHost::new();
    host.write("/sys/module/kvm_amd/parameters/pause_filter_count", "0\n");
    host.write("/proc/cpuinfo", "flags : svm npt pausefilter pfthreshold\n");
    let check = host.only(Verdict::Warn);
    assert!(check.name == "pause-exits" && check.advice.unwrap().contains("load kvm_amd without"));
    host.write("/proc/cpuinfo", "flags : svm npt\n");
    assert!(host.only(Verdict::Warn).advice.unwrap().contains("this processor has no pause exits"));
}

#[test]
fn a_kernel_without_the_bpf_compiler_is_refused() {
    let host = FakeHost::new();
    host.write("/proc/sys/net/core/bpf_jit_enable", "0\n");
    assert_eq!(host.only(Verdict::Fail).name, "bpf-jit");
    assert!(host.all().blind().any(|check| check.name == "bpf-jit"));
    assert!(!host.loads(Purpose::BaseOnly));
}

#[test]
fn the_checks_of_this_machine_do_not_panic_and_every_failure_has_advice() {
    let report = before_loading(&Host::this(), Purpose::Guests);
    assert_eq!(report.checks.len(), 20);
    assert!(report.failures().all(|check| check.advice.is_some()), "{report}");
}
