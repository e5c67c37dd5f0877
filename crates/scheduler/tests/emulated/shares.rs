// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of the host's CPUs under `scx_holdfast`, and delays: weights of cgroups, tasks that move
//! between them, tasks pinned to one CPU, tasks whose CPU a real-time task takes, wakeups beside
//! tasks of little weight, such tasks beside tasks of great weight, and groups of short tasks.

use std::time::Duration;

use holdfast_agent::protocol::{Counters, Reply, Request};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    assert_schedules, counted, counting_spec, end, end_scheduler, eventually_within, hog, pass,
    read, shell, spec, start_in_group, start_scheduler, start_shell, uptime,
};

/// Length of a window: hundreds of slices.
const WINDOW: Duration = Duration::from_secs(3);
/// The host has two CPUs.
const HOST_PERCENT: f64 = 200.0;

fn names_of(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// A host with a thread of this machine for each CPU.
fn without_guests() -> Machine {
    let spec = MachineSpec { guest_kernels: Vec::new(), ..spec() };
    Machine::boot(&spec, &Progress::stderr()).unwrap()
}

fn kill(machine: &Machine, names: &[&str]) {
    for name in names {
        end(machine, name, libc::SIGKILL);
    }
}

/// CPU time of each of these children in a window, in percent of one CPU.
fn used(machine: &Machine, names: &[&str]) -> Vec<f64> {
    let sample = || {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        match machine.request(Request::CpuTimes { names }).unwrap() {
            Reply::CpuTimes(times) => times,
            other => panic!("{other:?}"),
        }
    };
    // Earlier lag is made up for first.
    std::thread::sleep(Duration::from_millis(500));
    let before = sample();
    std::thread::sleep(WINDOW);
    let after = sample();
    let passed = (after.t_ns - before.t_ns) as f64;
    let ran = |times: &holdfast_agent::protocol::CpuTimes, name: &str| -> u64 {
        times.tasks.iter().filter(|task| task.name == name).map(|task| task.run_ns).sum()
    };
    names
        .iter()
        .map(|name| (ran(&after, name) - ran(&before, name)) as f64 / passed * 100.0)
        .collect()
}

#[track_caller]
fn assert_shares(what: &str, used: &[f64], expected: &[f64]) {
    println!("{what}: {used:.0?}, expected {expected:.0?}");
    for (used, expected) in used.iter().zip(expected) {
        assert!(
            (used - expected).abs() < HOST_PERCENT * 0.04,
            "{what}: {used:.1} of {expected:.1}"
        );
    }
}

#[test]
fn weights_of_groups_are_honoured() {
    let machine = without_guests();
    shell(
        &machine,
        "cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; \
         mkdir -p one three; echo 100 > one/cpu.weight; echo 300 > three/cpu.weight",
    );
    // No VM runs here, and KVM is not loaded.
    start_scheduler(&machine, &["--no-guest-knowledge"]);

    // A group's weight is shared by its members, however many.
    let names = ["a", "b", "c", "d"];
    hog(&machine, "a", "one", None);
    for name in &names[1..] {
        hog(&machine, name, "three", None);
    }
    assert_shares("weights 1 and 3", &used(&machine, &names), &[50.0; 4]);

    shell(&machine, "echo 100 > /sys/fs/cgroup/three/cpu.weight");
    let third = 100.0 / 3.0;
    assert_shares("weights 1 and 1", &used(&machine, &names), &[100.0, third, third, third]);

    // Nested groups, one of them created while the scheduler runs: `a` has half of half.
    shell(
        &machine,
        "cd /sys/fs/cgroup; mkdir outer; echo +cpu > outer/cgroup.subtree_control; \
         mkdir outer/x outer/y",
    );
    let pid_of = |name: &str| match machine
        .request(Request::CpuTimes { names: vec![name.to_owned()] })
        .unwrap()
    {
        Reply::CpuTimes(times) => times.tasks[0].pid,
        other => panic!("{other:?}"),
    };
    for (name, group) in [("a", "outer/x"), ("b", "outer/y"), ("c", "outer/y")] {
        let pid = pid_of(name);
        shell(&machine, &format!("echo {pid} > /sys/fs/cgroup/{group}/cgroup.procs"));
    }
    // `d` alone is due as much as the three, and cannot use more than one CPU.
    assert_shares("nested", &used(&machine, &names), &[50.0, 25.0, 25.0, 100.0]);
    // A group in a heavy group gets more than its own weight suggests.
    shell(&machine, "echo 400 > /sys/fs/cgroup/outer/cpu.weight");
    assert_shares("a heavy one", &used(&machine, &names), &[80.0, 40.0, 40.0, 40.0]);
    kill(&machine, &names);

    // Eight that alternate, each asleep while its partner runs, get no more than two that never
    // sleep.
    let pipes = format!("{} --threads 8 --work-us 3000", machine.workload_path("pipes"));
    start_in_group(&machine, "turns", "one", None, &pipes);
    for name in &names[..2] {
        hog(&machine, name, "three", None);
    }
    assert_shares("beside those that take turns", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &["turns", "a", "b"]);

    // An idle group gets the rest.
    shell(&machine, "echo 1 > /sys/fs/cgroup/three/cpu.idle");
    hog(&machine, "a", "one", Some(vec![0]));
    hog(&machine, "b", "three", Some(vec![0]));
    assert_shares("beside an idle group", &used(&machine, &names[..2]), &[99.0, 1.0]);
    shell(&machine, "echo 0 > /sys/fs/cgroup/three/cpu.idle");
    assert_shares("which is idle no more", &used(&machine, &names[..2]), &[50.0, 50.0]);
    // Managers write the weight again of a group that is not idle.
    shell(&machine, "cd /sys/fs/cgroup/three; echo 300 > cpu.weight; echo 0 > cpu.idle");
    assert_shares("which is heavier now", &used(&machine, &names[..2]), &[25.0, 75.0]);
    shell(&machine, "echo 100 > /sys/fs/cgroup/three/cpu.weight");
    kill(&machine, &names[1..2]);

    // Groups at this depth have no weight of their own: `b` counts as a member of the last group
    // that has one.
    let deep = ["deep"].iter().chain(&["d"; 19]).copied().collect::<Vec<_>>().join("/");
    shell(
        &machine,
        "cd /sys/fs/cgroup; mkdir deep; cd deep; \
         for i in $(seq 19); do echo +cpu > cgroup.subtree_control; mkdir d; cd d; echo 10000 > \
         cpu.weight; done",
    );
    hog(&machine, "b", &deep, Some(vec![0]));
    assert_shares("in a group of level 20", &used(&machine, &names[..2]), &[50.0, 50.0]);
    kill(&machine, &names[..2]);

    // Two pinned to one CPU, and two that may run anywhere.
    for name in &names[..2] {
        hog(&machine, name, "", Some(vec![0]));
    }
    for name in &names[2..] {
        hog(&machine, name, "", None);
    }
    assert_shares("two of four pinned", &used(&machine, &names), &[50.0; 4]);
    kill(&machine, &names);

    // A task whose slice ends while it may not migrate waits for the next one like all others.
    let filtered = format!("{} --filters 3", machine.workload_path("hog"));
    start_in_group(&machine, "a", "", Some(vec![0]), &filtered);
    hog(&machine, "b", "", Some(vec![0]));
    assert_shares("beside long filters", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &names[..2]);

    // More tasks want one CPU than the other: weights hold there, too.
    for name in &names[..2] {
        hog(&machine, name, "", Some(vec![0]));
    }
    nice_hog(&machine, "c", -5, Some(vec![1]));
    for name in ["d", "e", "f"] {
        hog(&machine, name, "", Some(vec![1]));
    }
    let all = ["a", "b", "c", "d", "e", "f"];
    let light = 100.0 * 1024.0 / (3121.0 + 3.0 * 1024.0);
    let heavy = 100.0 - 3.0 * light;
    let used_by_all = used(&machine, &all);
    // Shares of their sum: the host's own tasks run on the CPU with fewer loops.
    let of_cpu = |used: &[f64]| -> Vec<f64> {
        let sum: f64 = used.iter().sum();
        used.iter().map(|used| used / sum * 100.0).collect()
    };
    assert_shares("two pinned to a CPU", &of_cpu(&used_by_all[..2]), &[50.0, 50.0]);
    assert_shares("four to another", &of_cpu(&used_by_all[2..]), &[heavy, light, light, light]);
    kill(&machine, &all);

    // A group's weight is shared by all its tasks, also by one that has a CPU to itself: on CPU 1
    // `one` has half of its weight.
    hog(&machine, "a", "one", Some(vec![0]));
    hog(&machine, "b", "one", Some(vec![1]));
    hog(&machine, "c", "three", Some(vec![1]));
    let third = 100.0 / 3.0;
    assert_shares("alone elsewhere", &used(&machine, &names[..3]), &[100.0, third, 2.0 * third]);
    kill(&machine, &names[..3]);

    // A task that a real-time task preempts goes on elsewhere, and does not wait for its end.
    for name in &names[..2] {
        hog(&machine, name, "", None);
    }
    let realtime = format!("{} --real-time 1", machine.workload_path("hog"));
    start_in_group(&machine, "realtime", "", Some(vec![0]), &realtime);
    assert_shares("beside a real-time task", &used(&machine, &names[..2]), &[50.0; 2]);
    kill(&machine, &["a", "b", "realtime"]);
    woken_by_a_waker_that_goes_on(&machine);

    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// A synchronous wakeup whose waker does not sleep: the woken task runs at once on an idle CPU. A
/// writer to a pipe claims that it is about to sleep, and goes on.
fn woken_by_a_waker_that_goes_on(machine: &Machine) {
    shell(machine, "mkfifo /tmp/lines");
    let on_cpu_0 = |name, command: &str| start_shell(machine, name, Some(vec![0]), command);
    let reader =
        || match machine.request(Request::CpuTimes { names: vec!["reader".into()] }).unwrap() {
            Reply::CpuTimes(times) => (times.t_ns, times.tasks[0].clone()),
            other => panic!("{other:?}"),
        };
    // It goes to sleep on CPU 0, and may run on both when it wakes.
    on_cpu_0("reader", "exec <> /tmp/lines; while read -r line; do :; done");
    std::thread::sleep(Duration::from_secs(1));
    shell(machine, &format!("taskset -p 3 {}", reader().1.pid));
    let line = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); done; echo";
    on_cpu_0("writer", &format!("exec > /tmp/lines; while :; do {line}; done"));
    let (from, before) = reader();
    std::thread::sleep(WINDOW);
    let (to, after) = reader();
    let percent = |ns: u64| ns as f64 / (to - from) as f64 * 100.0;
    let (ran, waited) =
        (percent(after.run_ns - before.run_ns), percent(after.wait_ns - before.wait_ns));
    println!("a reader beside an idle CPU ran for {ran:.0} % and waited for {waited:.0}");
    assert!(ran > 1.0 && waited < 10.0, "{ran} {waited}");
    kill(machine, &["writer", "reader"]);
}

/// Two tasks wake each other synchronously and do sleep. They leave the CPU to a task that is
/// pinned to it. They may run on two CPUs. Because a third CPU is idle, the kernel puts the woken
/// task behind the waker without asking.
#[test]
fn two_tasks_that_wake_each_other_leave_the_cpu_to_a_third() {
    let spec = MachineSpec { cpus: 3, guest_kernels: Vec::new(), ..counting_spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    hog(&machine, "hog", "", Some(vec![1]));
    // Its clock counts in 10 ms.
    let pinned = "last=; while read -r up _ < /proc/uptime; do now=${up%.*}${up#*.}; \
                  [ $((now - ${last:-$now})) -lt 4 ] || echo $((now - last)); last=$now; done > \
                  /tmp/gaps";
    start_shell(&machine, "pinned", Some(vec![0]), pinned);
    let pair = format!("{} --threads 2 --work-us 1500", machine.workload_path("pipes"));
    start_in_group(&machine, "pair", "", Some(vec![0, 1]), &pair);
    pass(&machine, 6.0);
    let used = used(&machine, &["pinned", "pair"]);
    let gaps = shell(&machine, "cat /tmp/gaps");
    println!("{used:.0?} % of a CPU, one of them off it for so many times 10 ms: {gaps}");
    assert!(used[0] > 40.0 && gaps.is_empty(), "{used:?} {gaps}");
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// An endless loop of this nice value, on these CPUs or all.
fn nice_hog(machine: &Machine, name: &str, nice: i32, cpus: Option<Vec<u32>>) {
    let command = format!("renice -n {nice} -p $$; exec {}", machine.workload_path("hog"));
    start_shell(machine, name, cpus, &command);
}

/// After one slice a task of nice 19 would get the next when a task of nice -20 has run for 35 s.
/// The kernel ends a scheduler after 30 s. At each wakeup a CPU may find only light tasks waiting.
/// There are several of them, so that none lives on such slices, and the host is left alone
/// meanwhile.
#[test]
fn light_tasks_beside_heavy_ones_do_not_end_the_scheduler() {
    const PASSES: Duration = Duration::from_secs(60);
    const STARVING_AFTER_S: f64 = 5.0;
    let machine = without_guests();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    let anywhere: Vec<_> = (0..12).map(|i| format!("anywhere{i}")).collect();
    let pinned: Vec<_> = (0..12).map(|i| format!("pinned{i}")).collect();
    let (anywhere, pinned) = (names_of(&anywhere), names_of(&pinned));
    let heavy = ["a", "b"];
    for name in &anywhere {
        nice_hog(&machine, name, 19, None);
    }
    for name in &pinned {
        nice_hog(&machine, name, 19, Some(vec![0]));
    }
    for name in heavy {
        nice_hog(&machine, name, -20, None);
    }
    let starving = || counted(&machine).counters["nr_starving"].as_u64().unwrap();
    let begun_s = uptime(&machine);
    let before = starving();
    std::thread::sleep(PASSES);
    assert_schedules(&machine);
    let starved = starving() - before;
    let passed_s = uptime(&machine) - begun_s;
    let shares = (used(&machine, &anywhere), used(&machine, &pinned), used(&machine, &heavy));
    println!(
        "{starved} slices of starving tasks in {passed_s:.0} s; light tasks used {:.2} and pinned \
         ones {:.2} % of a CPU, heavy ones {:.0?}",
        shares.0.iter().sum::<f64>(),
        shares.1.iter().sum::<f64>(),
        shares.2
    );
    // The first of its slices may follow an earlier wait.
    let most = (anywhere.len() + pinned.len()) as f64 * (1.0 + passed_s / STARVING_AFTER_S);
    let range = 1..=most as u64;
    assert!(range.contains(&starved), "{starved} slices of starving tasks, at most {most:.0}");
    assert!(shares.2.iter().sum::<f64>() > 0.97 * HOST_PERCENT, "{shares:?}");
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// Longest wait of a task that wakes every few ms: some slices, each until the tick after its end.
const LATE: Duration = Duration::from_millis(32);

/// None until it has begun.
fn wakeups(machine: &Machine, path: &str) -> Option<Counters> {
    match machine.request(Request::Counters { path: path.into() }) {
        Ok(Reply::Counters(counters)) => Some(counters),
        Err(holdfast_testbed::Error::Refused(_)) => None,
        other => panic!("{other:?}"),
    }
}

/// Groups are charged for short tasks, too, which end before they have run for an eighth of a
/// slice. Without that, such a group gets 80 to 85 % of both CPUs, beside a group of two loops.
#[test]
fn a_group_of_short_tasks_has_no_more_than_its_share() {
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    shell(&machine, "cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; mkdir short loops");
    for name in ["a", "b"] {
        hog(&machine, name, "loops", None);
    }
    let short = format!("{} --threads 64 --lives-us 100", machine.workload_path("hog"));
    start_in_group(&machine, "short", "short", None, &short);
    let ran = |group: &str| -> f64 {
        let stat = read(&machine, &format!("/sys/fs/cgroup/{group}/cpu.stat"));
        stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap().parse().unwrap()
    };
    let ran = || ["short", "loops"].map(ran);
    // By the host's clock. Lag from the start is made up for first.
    pass(&machine, 0.5);
    let before = ran();
    pass(&machine, 2.0);
    let after = ran();
    let [short, loops] = [0, 1].map(|group| after[group] - before[group]);
    let part = short / (short + loops);
    println!("a group of short tasks has {part:.3} of the CPU time of it and two loops");
    assert!((part - 0.5).abs() < 0.04, "{part}");
    kill(&machine, &["short", "a", "b"]);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}

/// After each of its slices a task of little weight is far ahead in virtual time. The host's
/// virtual time must not follow it: a waking task would wait for all others to catch up, for 190 ms
/// and more.
#[test]
fn light_tasks_do_not_delay_waking_tasks() {
    const COUNTERS: &str = "/tmp/wakeups";
    const WAKEUPS: u64 = 2000;
    // Other load of the machine must not look like lateness.
    let machine = Machine::boot(&counting_spec(), &Progress::stderr()).unwrap();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    for name in ["a", "b", "c", "d"] {
        hog(&machine, name, "", None);
    }
    let names: Vec<String> = (0..8).map(|i| format!("light{i}")).collect();
    for name in &names {
        nice_hog(&machine, name, 19, None);
    }
    let wakeup = machine.workload_path("wakeup");
    let argv = [&wakeup, "--threads", "1", "--counters", COUNTERS].map(str::to_owned);
    machine.request(Request::spawn("wakeup", argv)).unwrap();
    let counted = eventually_within(Duration::from_secs(240), "wakeups", || {
        wakeups(&machine, COUNTERS).filter(|counters| counters.ops >= WAKEUPS)
    });
    let late = |(log2, count): (usize, &u64)| if 1 << log2 >= LATE.as_nanos() { *count } else { 0 };
    let late: u64 = counted.hist.iter().enumerate().map(late).sum();
    println!("{} wakeups, {late} of them later than {LATE:?}: {:?}", counted.ops, counted.hist);
    assert_eq!(late, 0, "late wakeups: {:?}", counted.hist);
    // They are not late only because the light tasks do not run.
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let used = used(&machine, &names);
    println!("light tasks used {used:.1?} % of a CPU");
    assert!((0.2..10.0).contains(&used.iter().sum()), "{used:?}");
    kill(&machine, &names);
    kill(&machine, &["a", "b", "c", "d", "wakeup"]);
    end_scheduler(&machine);
    machine.shut_down().unwrap();
}
