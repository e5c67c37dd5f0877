// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer in the lab's host. It sees lock-holder preemption only where there is some. Its
//! counts agree with the scheduler's, with its recordings, and with the guest's own view.

use std::time::Duration;

use holdfast_agent::protocol::{Ended, Request};
use holdfast_testbed::machine::{Machine, MachineSpec};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    Lines, contend, count_costs, counted, counting_spec, eventually_within, observe, of_vcpus,
    pass, pin, preemptions, replay, start_guest, start_observer, start_scheduler, uptime, wait,
};
use serde_json::Value;

const HOGS: [&str; 2] = ["hog0", "hog1"];

/// An emulated host is slow.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs `holdfast` in the idle host to its end.
fn holdfast(machine: &Machine, args: &[&str]) -> Ended {
    let program = machine.dist_path("holdfast");
    let argv = std::iter::once(program.as_str()).chain(args.iter().copied());
    machine.request(Request::spawn("once", argv)).unwrap();
    wait(machine, "once", LIMIT)
}

/// Neither is a failure, and each is reported in a sentence.
fn nothing_to_be_seen(machine: &Machine) {
    let no_kvm = holdfast(machine, &["report", "1", "1"]);
    assert_eq!(no_kvm.status.code, Some(77), "{no_kvm:?}");
    assert!(no_kvm.stderr_tail.contains("this host has no KVM"), "{no_kvm:?}");

    machine.request(Request::LoadModule { name: "kvm".into(), params: String::new() }).unwrap();
    for args in [&["vms", "--wait", "1"][..], &["report", "1", "1"]] {
        let no_vm = holdfast(machine, args);
        assert!(no_vm.status.success(), "{no_vm:?}");
        assert!(no_vm.stdout_tail.contains("No vCPU ran"), "{no_vm:?}");
    }
}

fn signal(machine: &Machine, names: &[&str], signal: i32) {
    for &name in names {
        machine.request(Request::Kill { name: name.into(), signal }).unwrap();
    }
}

/// Reports of a host with one VM, of all its vCPUs together.
struct Seen(Vec<Value>);

impl Seen {
    fn over(reports: Vec<String>) -> Self {
        let reports: Vec<Value> =
            reports.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for report in &reports {
            assert_eq!(report["schema"], "holdfast.report/1");
            assert_eq!(report["lost_events"], 0, "{report}");
            assert_eq!(report["vms"].as_array().unwrap().len(), 1, "{report}");
        }
        Seen(reports)
    }

    fn sum(&self, of: impl Fn(&Value) -> &Value) -> f64 {
        let vcpus = self.0.iter().flat_map(|report| report["vms"][0]["vcpus"].as_array().unwrap());
        vcpus.map(|vcpu| of(vcpu).as_u64().unwrap() as f64).sum()
    }

    fn sum_of_classes(&self, counter: &str, classes: &[&str]) -> f64 {
        classes.iter().map(|class| self.sum(|vcpu| &vcpu[counter][class])).sum()
    }

    fn cpu_seconds(&self) -> f64 {
        self.sum(|vcpu| &vcpu["run_ns"]) / 1e9
    }

    /// Lock holders off the CPU for longer than 1 ms, per CPU second of the VM.
    fn long_holders(&self) -> f64 {
        self.sum(|vcpu| &vcpu["offcpu_over_cap"]["holder"]) / self.cpu_seconds()
    }

    /// Share of the VM's CPU time spent waiting while a lock holder was preempted.
    fn lost_share(&self) -> f64 {
        self.sum(|vcpu| &vcpu["samples_holder_off"]) / self.sum_of_classes("samples", &KNOWN)
    }

    fn preempted(&self) -> f64 {
        self.sum_of_classes("preemptions", &[&KNOWN[..], &["unknown"]].concat())
    }

    /// A figure of all takers of CPUs, of this name or all.
    fn taken(&self, figure: &str, name: Option<&str>) -> f64 {
        let takers =
            self.0.iter().flat_map(|report| report["vms"][0]["takers"].as_array().unwrap());
        let named = takers.filter(|taker| name.is_none_or(|name| taker["name"] == name));
        named.map(|taker| taker[figure].as_f64().unwrap()).sum()
    }

    fn interval_ns(&self) -> f64 {
        self.0.iter().map(|report| report["interval_ns"].as_f64().unwrap()).sum()
    }

    /// Average numbers of vCPUs of these classes: running, and preempted.
    fn vcpus_of(&self, classes: &[&str]) -> (f64, f64) {
        let ran = self.sum_of_classes("samples", classes) / self.sum_of_classes("samples", &KNOWN);
        let off = self.sum_of_classes("offcpu_ns", classes);
        (ran * self.cpu_seconds() * 1e9 / self.interval_ns(), off / self.interval_ns())
    }

    /// Average numbers of vCPUs that wait for a lock: spinning, and preempted or halted in the
    /// queue.
    fn waiting(&self) -> f64 {
        let (spinning, off) = self.vcpus_of(&["waiter", "head"]);
        spinning + off + self.sum(|vcpu| &vcpu["lock_halt_ns"]) / self.interval_ns()
    }
}

/// Waits for the guest's spinlocks, in its own view.
struct Spins(Vec<Value>);

impl Spins {
    fn over(reports: Vec<String>) -> Self {
        let reports: Vec<Value> =
            reports.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for report in &reports {
            assert_eq!(report["schema"], "holdfast.spins/1");
            assert_eq!(report["guest"], true);
            let spinlocks = &report["locks"][0];
            assert_eq!(spinlocks["lock"], "spinlock");
            // An interrupt may begin a wait while another one is recorded.
            let (lost, seen) = (&report["lost_events"], &spinlocks["count"]);
            let lost_share = lost.as_f64().unwrap() / seen.as_f64().unwrap();
            assert!(lost_share < 0.01, "{lost} waits lost, {seen} seen");
        }
        Spins(reports)
    }

    fn sum(&self, of: impl Fn(&Value) -> &Value) -> f64 {
        self.0.iter().map(|report| of(report).as_f64().unwrap()).sum()
    }

    fn waited_ns(&self) -> f64 {
        self.sum(|report| &report["locks"][0]["total_ns"])
    }

    /// Average number of vCPUs that wait for a spinlock.
    fn waiting(&self) -> f64 {
        self.waited_ns() / self.sum(|report| &report["interval_ns"])
    }

    fn mean_ns(&self) -> f64 {
        self.waited_ns() / self.sum(|report| &report["locks"][0]["count"])
    }

    /// Share of waits of at least 2^20 ns, about 1 ms.
    fn long_share(&self) -> f64 {
        let count = |from| -> u64 {
            let slots = self.0.iter().map(|report| report["locks"][0]["hist"].as_array().unwrap());
            slots.flat_map(|slots| slots.get(from..)).flatten().map(|n| n.as_u64().unwrap()).sum()
        };
        assert!(count(0) > 0, "nothing was waited for");
        count(20) as f64 / count(0) as f64
    }
}

/// Both views of the same seconds.
fn look(machine: &Machine, reports: &mut Lines<'_>, spins: &mut Lines<'_>) -> (Seen, Spins) {
    reports.forget();
    spins.forget();
    pass(machine, 5.0);
    (Seen::over(reports.ready()), Spins::over(spins.ready()))
}

/// The VM of a sample that began last: a VM that has ended is reported once more, and comes first.
fn newest(sample: &Value) -> Option<&Value> {
    sample["vms"].as_array()?.last()
}

#[test]
fn lock_holder_preemption_is_seen_where_it_is_and_vanishes_under_scx_holdfast() {
    let spec = MachineSpec { holdfast_in_guests: true, ..counting_spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    let program = machine.dist_path("holdfast");

    nothing_to_be_seen(&machine);

    // Loaded while the host is idle, which takes a fraction of the time.
    let mut reports =
        Lines::of(&machine, "reports", &[&program, "report", "1", "--json", "--frequency", "1999"]);
    reports.next().unwrap();
    start_observer(&machine);

    // Alone on its CPUs.
    eprintln!("a guest alone");
    start_guest(&machine, "alone", 2);
    let mut spins = contend(&machine, "alone", 2, &["1", "--json"]);
    let alone = look(&machine, &mut reports, &mut spins);
    machine.stop_guest("alone").unwrap();

    // Beside hogs.
    eprintln!("a guest in company, recorded");
    // Both have read the guest before its vCPUs contend. A booting guest is tried again after
    // pauses that grow with the cost of an attempt; a booted one is read at once.
    start_guest(&machine, "vm0", 4);
    eventually_within(LIMIT, "the observer reads the guest", || {
        let seen = observe(&machine);
        let vcpus = newest(&seen)?["vcpus"].as_array()?;
        vcpus.iter().any(|vcpu| vcpu["readable"] == true).then_some(())
    });
    let mut recorder = Lines::of(&machine, "recorder", &[&program, "record", "-o", RECORDING]);
    assert!(recorder.next().unwrap().starts_with("Recording"));
    pass(&machine, 6.0);
    let idle = observe(&machine);
    let mut spins = contend(&machine, "vm0", 4, &["1", "--json"]);
    let load = ["guest-vm0", HOGS[0], HOGS[1]];
    for name in HOGS {
        machine.request(Request::spawn(name, [machine.workload_path("hog")])).unwrap();
    }
    pass(&machine, 3.0);
    // Nothing is preempted while only one of them counts.
    signal(&machine, &load, libc::SIGSTOP);
    signal(&machine, &["recorder"], libc::SIGINT);
    let live = observe(&machine);
    let [idle, live] = [&idle, &live].map(|seen| newest(seen).unwrap());
    assert!(wait(&machine, "recorder", LIMIT).status.success());
    let replayed = replay(&machine, RECORDING, &["--html", "a.html", "--perfetto", "a.pftrace"]);
    assert_eq!(replayed["lost_events"], 0, "{replayed}");
    assert_eq!(replayed["vms"].as_array().unwrap().len(), 1, "{replayed}");
    let recorded = &replayed["vms"][0];
    signal(&machine, &load, libc::SIGCONT);
    eprintln!("in company, looked at from both sides");
    let stock = look(&machine, &mut reports, &mut spins);

    // Emulated CPUs whose clock counts instructions take turns, and samples are taken at the ends
    // of turns. So samples differ from the guest's own clock: of a guest alone on two CPUs 0.19 to
    // 0.26 vCPUs wait by samples, and 0.30 by its clock. One CPU takes no turns.
    eprintln!("in company, on one CPU");
    pin(&machine, &load, "0");
    count_costs(|request| machine.request_guest("vm0", request).unwrap());
    let (began, begin) = (spins.costs(), uptime(&machine));
    let one_cpu = look(&machine, &mut reports, &mut spins);
    let probes_ns = (spins.costs() - began) as f64;
    let probes = probes_ns / 1e9 / (uptime(&machine) - begin);
    pin(&machine, &load, "0-1");

    signal(&machine, &load, libc::SIGSTOP);
    start_scheduler(&machine, &[]);
    eprintln!("under scx_holdfast");
    signal(&machine, &load, libc::SIGCONT);
    eventually_within(LIMIT, "scx_holdfast reads the guest", || {
        (counted(&machine).counters["nr_vms_readable"] == 1).then_some(())
    });
    // Nothing is preempted between the two counts.
    let both_count = || {
        signal(&machine, &load, libc::SIGSTOP);
        let counts = (counted(&machine), observe(&machine));
        signal(&machine, &load, libc::SIGCONT);
        counts
    };
    let (_, before) = both_count();
    let held = look(&machine, &mut reports, &mut spins);
    let (scheduler, after) = both_count();
    // The scheduler counts preemptions, but not their length, which is compared below.
    let agreed = KNOWN.map(|class| {
        let of_observer = |sample: &Value| preemptions(&sample["vms"][0], class);
        (
            class,
            of_vcpus(&scheduler, &format!("nr_preempted_{class}")),
            of_observer(&after) - of_observer(&before),
        )
    });

    for (name, (seen, spins)) in
        [("alone", &alone), ("stock", &stock), ("one CPU", &one_cpu), ("holdfast", &held)]
    {
        println!(
            "{name}: {:.2} long holders per CPU second, {:.4} of CPU time lost; {:.3} vCPUs wait, \
             from inside {:.3}; {:.1} us each; {:.5} are long",
            seen.long_holders(),
            seen.lost_share(),
            seen.waiting(),
            spins.waiting(),
            spins.mean_ns() / 1e3,
            spins.long_share()
        );
        for class in KNOWN {
            let (ran, off) = seen.vcpus_of(&[class]);
            println!("    {class}: {ran:.3} ran, {off:.3} were preempted");
        }
    }
    let recorded = KNOWN.map(|class| {
        let offcpu_s = |vm| sum(vm, "offcpu_ns", class) as f64 / 1e9;
        let count = |vm| preemptions(vm, class) as f64;
        let (live, live_s) = (count(live) - count(idle), offcpu_s(live) - offcpu_s(idle));
        (class, [count(recorded), live], [offcpu_s(recorded), live_s])
    });
    println!("recorded and counted live: {recorded:?}; scheduler and observer: {agreed:?}");

    let mut figures = Figures::default();
    let (alone, stock, held) = (&alone, &stock, &held);
    figures.less("10 long holders", 10.0, stock.0.long_holders());
    figures.less("2 % of CPU time lost", 0.02, stock.0.lost_share());
    figures.less("long holders, alone", alone.0.long_holders(), stock.0.long_holders() / 10.0);
    figures.less("CPU time lost, alone", alone.0.lost_share(), stock.0.lost_share() / 5.0);
    figures.less("long holders, holdfast", held.0.long_holders(), stock.0.long_holders() / 5.0);
    figures.less("CPU time lost, holdfast", held.0.lost_share(), stock.0.lost_share() / 2.0);

    // Four vCPUs share two CPUs with two hogs.
    let [all, hogs] = [None, Some("hog")].map(|name| stock.0.taken("offcpu_ns", name));
    println!("hogs took {hogs} of {all} ns");
    figures.less("what hogs took", all / 4.0, hogs);
    figures.less("what all took", hogs, all);
    let (taken, seen) = (stock.0.taken("preemptions", None), stock.0.preempted());
    figures.agree("preemptions with a taker", taken, seen);

    // The second mode, in the guest's view.
    figures.less("long waits, alone", alone.1.long_share(), stock.1.long_share() / 5.0);
    figures.less("long waits, holdfast", held.1.long_share(), stock.1.long_share() / 2.0);

    // Both read the same words by the same function, but the observer about 10 us later. The vCPU
    // itself does nothing in between. A sibling may hand a lock over, which turns a waiter into the
    // next owner. That is the only change, and it is rare among waiters.
    let [preemptible, holder, irq, waiter, head] = agreed;
    let queued = ("queued", waiter.1 + head.1, waiter.2 + head.2);
    // Classes with enough preemptions to compare; preemptible vCPUs always have enough.
    figures.less(
        "preemptible vCPUs preempted, and to be compared",
        ENOUGH as f64,
        preemptible.1 as f64,
    );
    for (class, scheduler, observer) in [preemptible, holder, irq, queued] {
        if scheduler.max(observer) >= ENOUGH {
            figures.agree(class, observer as f64, scheduler as f64);
        }
    }
    for (class, scheduler, observer) in [waiter, head] {
        if scheduler.max(observer) >= ENOUGH {
            let others = queued.1 - scheduler;
            figures.agree(class, (observer + others) as f64, queued.1 as f64);
        }
    }
    if head.1 >= ENOUGH {
        figures.less("next owners", head.1 as f64 * 0.9, head.2 as f64);
    }
    for (class, [recorded, live], [recorded_s, live_s]) in recorded {
        if recorded.max(live) >= ENOUGH as f64 {
            figures.agree(&format!("recorded {class}"), recorded, live);
            figures.agree(&format!("recorded time of {class}"), recorded_s, live_s);
        }
    }
    // Probes of spins run, and are preempted, inside the queue, which spins does not count as
    // waiting.
    println!("{probes:.4} vCPUs in the probes");
    figures.less("no time in the probes", 0.0, probes);
    figures.less("time in the probes", probes, one_cpu.1.waiting() / 10.0);
    figures.agree("waiting", one_cpu.0.waiting(), one_cpu.1.waiting() + probes);
    figures.check();
    machine.shut_down().unwrap();
}

/// Comparisons of figures: all are made before any failure is reported.
#[derive(Default)]
struct Figures(Vec<String>);

impl Figures {
    fn less(&mut self, what: &str, less: f64, more: f64) {
        if less.partial_cmp(&more) != Some(std::cmp::Ordering::Less) {
            self.0.push(format!("{what}: {less} is not below {more}"));
        }
    }

    /// Within 10 %.
    fn agree(&mut self, what: &str, a: f64, b: f64) {
        let apart = (a / b - 1.0).abs();
        if apart.is_nan() || apart > 0.1 {
            self.0.push(format!("{what}: {a} and {b}"));
        }
    }

    fn check(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("; "));
    }
}

const RECORDING: &str = "/tmp/a.parquet";

const KNOWN: [&str; 5] = ["preemptible", "holder", "irq", "waiter", "head"];

/// Fewest preemptions to compare: below that, one or two seen by only one side are too many.
const ENOUGH: u64 = 50;

/// A counter of a class over all vCPUs of a VM.
fn sum(vm: &Value, counter: &str, class: &str) -> u64 {
    let vcpus = vm["vcpus"].as_array().unwrap();
    vcpus.iter().map(|vcpu| vcpu[counter][class].as_u64().unwrap()).sum()
}
