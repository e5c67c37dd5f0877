// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs the cases of `experiments/contention.toml` in the model and compares with the lab: `cargo
//! run --release -p holdfast-sim --example contention`. docs/lab/model.md says what to make of it.

use std::time::Instant;

use clap::Parser;
use holdfast_policy::VcpuClass;
use holdfast_sim::guests::{Features, Vm, loads};
use holdfast_sim::stock::Stock;
use holdfast_sim::{Knobs, MS, Machine, SEC, hog, task};

/// Compares the model with the lab in the cases of experiments/contention.toml.
#[derive(Parser)]
struct Args {
    /// Windows of each case and scheduler
    #[arg(long, default_value_t = 6)]
    seeds: u64,
    /// Length of a window in virtual milliseconds, as long as the lab's
    #[arg(long, default_value_t = 375)]
    window_ms: u64,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    case: String,
    /// Show each scheduler's figures
    #[arg(long)]
    verbose: bool,

    /// Run a reader-writer lock with 8 vCPUs and no hogs instead, and show each window
    #[arg(long)]
    rwlock: bool,
}

/// A load, and the lab's ratios of Holdfast over stock (docs/results.md, Contention): work and
/// throughput, without and with pause exits.
struct Case {
    name: &'static str,
    start: fn(&Machine, &Vm, usize),
    threads: usize,
    pv: bool,
    lab: [(f64, f64); 2],
}

const CASES: [Case; 7] = [
    Case {
        name: "lock",
        start: loads::lock,
        threads: 4,
        pv: true,
        lab: [(1.44, 1.46), (1.03, 1.32)],
    },
    Case {
        name: "lock, no PV",
        start: loads::lock,
        threads: 4,
        pv: false,
        lab: [(1249.0, 1252.0), (150.0, 586.0)],
    },
    Case {
        name: "metadata",
        start: loads::metadata,
        threads: 8,
        pv: true,
        lab: [(1.11, 1.21), (1.02, 1.17)],
    },
    Case {
        name: "tlb",
        start: loads::tlb,
        threads: 4,
        pv: true,
        lab: [(1.49, 1.91), (1.12, 1.71)],
    },
    Case {
        name: "hackbench",
        start: loads::hackbench,
        threads: 8,
        pv: true,
        lab: [(1.23, 1.26), (1.01, 1.17)],
    },
    Case {
        name: "fork",
        start: loads::fork,
        threads: 8,
        pv: true,
        lab: [(1.80, 1.89), (1.10, 1.38)],
    },
    Case {
        name: "pipes",
        start: loads::pipes,
        threads: 8,
        pv: true,
        lab: [(1.01, 1.01), (1.01, 1.02)],
    },
];

/// What windows of one scheduler found, summed up.
#[derive(Default)]
struct Sum {
    ops: f64,
    cpu_s: f64,
    wall_s: f64,
    preemptions: [u64; 6],
}

impl Sum {
    fn work(&self) -> f64 {
        self.ops / self.cpu_s
    }

    fn throughput(&self) -> f64 {
        self.ops / self.wall_s
    }

    fn show(&self, name: &str) {
        let class = |class: VcpuClass| self.preemptions[class as usize] as f64 / self.cpu_s;
        println!(
            "    {name}: {:.0} per CPU-s, share {:.1} %, preempted per CPU-s: {:.1} holder, {:.1} \
             irq, {:.1} head, {:.1} waiter, {:.0} preemptible",
            self.work(),
            100.0 * self.cpu_s / self.wall_s,
            class(VcpuClass::Holder),
            class(VcpuClass::Irq),
            class(VcpuClass::Head),
            class(VcpuClass::Waiter),
            class(VcpuClass::Preemptible),
        );
    }
}

const CLASSES: [VcpuClass; 6] = [
    VcpuClass::Unknown,
    VcpuClass::Preemptible,
    VcpuClass::Holder,
    VcpuClass::Irq,
    VcpuClass::Waiter,
    VcpuClass::Head,
];

fn measure(args: &Args, case: &Case, pause_exits: bool, holdfast: bool) -> Sum {
    let mut sum = Sum::default();
    for seed in 1..=args.seeds {
        let builder = Machine::new(seed).cpus(2).switch_ns(loads::SWITCH_NS);
        let m = if holdfast { builder.boot() } else { builder.boot_class(Stock::class) };
        // The scheduler takes what was a second ago or less for recent, also in the first second.
        m.run(2 * SEC);
        loads::host_noise(&m);
        for _ in 0..2 {
            m.spawn(task("hog", hog()));
            m.run(MS);
        }
        let features = Features { pv_spinlocks: case.pv, pause_exits, ..Features::default() };
        let vm = Vm::boot(&m, 4, features, None);
        (case.start)(&m, &vm, case.threads);
        m.run(100 * MS);
        let (ops, cpu_ns) = (vm.ops(), vm.cpu_ns(&m));
        let before = CLASSES.map(|class| vm.preemptions(class));
        m.run(args.window_ms * MS);
        sum.ops += (vm.ops() - ops) as f64;
        sum.cpu_s += (vm.cpu_ns(&m) - cpu_ns) as f64 / 1e9;
        sum.wall_s += args.window_ms as f64 / 1e3;
        for (class, before) in CLASSES.into_iter().zip(before) {
            sum.preemptions[class as usize] += vm.preemptions(class) - before;
        }
    }
    sum
}

/// The windows of a queued rwlock with twice as many vCPUs as the lab's contention has, a guest
/// alone on two CPUs: under stock, Holdfast, and Holdfast without directed yields.
fn rwlock(args: &Args) {
    println!("operations per VM-CPU-second, in thousands, of each window");
    for name in ["stock", "holdfast", "no-yield"] {
        let windows = (1..=args.seeds).map(|seed| {
            let mut builder = Machine::new(seed).cpus(2).switch_ns(loads::SWITCH_NS);
            if name == "no-yield" {
                builder = builder.knobs(Knobs {
                    guest_knowledge: true,
                    grace: true,
                    resume_first: true,
                    directed_yield: false,
                    waiters: true,
                });
            }
            let m = match name {
                "stock" => builder.boot_class(Stock::class),
                _ => builder.boot(),
            };
            m.run(2 * SEC);
            loads::host_noise(&m);
            let vm = Vm::boot(&m, 8, Features::default(), None);
            loads::rwlock(&m, &vm, 8);
            m.run(100 * MS);
            let (ops, cpu_ns) = (vm.ops(), vm.cpu_ns(&m));
            m.run(args.window_ms * MS);
            (vm.ops() - ops) as f64 * 1e6 / (vm.cpu_ns(&m) - cpu_ns) as f64
        });
        let windows: Vec<_> = windows.map(|work| format!("{work:.1}")).collect();
        println!("{name:<9} {}", windows.join(" "));
    }
}

/// Both above 1, both below, or one of them at 1.
fn same_direction(a: f64, b: f64) -> bool {
    const NONE: f64 = 0.03;
    (a - 1.0).abs() <= NONE || (b - 1.0).abs() <= NONE || (a > 1.0) == (b > 1.0)
}

fn main() {
    let args = Args::parse();
    if args.rwlock {
        return rwlock(&args);
    }
    let began = Instant::now();
    println!("work (throughput) of Holdfast over stock; preempted holders over stock's");
    println!(
        "{:<12} {:<5} {:>18} {:>18} {:>9} {:>9} {:>9}",
        "load", "exits", "model", "lab", "direction", "within", "holders"
    );
    let (mut nr, mut nr_directions, mut nr_within) = (0, 0, 0);
    for pause_exits in [false, true] {
        for case in CASES.iter().filter(|case| case.name.contains(&args.case)) {
            let stock = measure(&args, case, pause_exits, false);
            let holdfast = measure(&args, case, pause_exits, true);
            let (work, throughput) =
                (holdfast.work() / stock.work(), holdfast.throughput() / stock.throughput());
            let lab = case.lab[usize::from(pause_exits)];
            let direction = same_direction(work, lab.0) && same_direction(throughput, lab.1);
            let within = (work / lab.0 - 1.0).abs() <= 0.15;
            let holders =
                |sum: &Sum| sum.preemptions[VcpuClass::Holder as usize] as f64 / sum.cpu_s;
            println!(
                "{:<12} {:<5} {:>18} {:>18} {:>9} {:>9} {:>9.3}",
                case.name,
                if pause_exits { "yes" } else { "no" },
                format!("{work:.2} ({throughput:.2})"),
                format!("{:.2} ({:.2})", lab.0, lab.1),
                if direction { "same" } else { "OTHER" },
                if within { "yes" } else { "no" },
                holders(&holdfast) / holders(&stock),
            );
            if args.verbose {
                stock.show("stock");
                holdfast.show("holdfast");
            }
            nr += 1;
            nr_directions += u32::from(direction);
            nr_within += u32::from(within);
        }
    }
    println!(
        "{nr_directions} of {nr} in the lab's direction, work within 15 % in {nr_within}; {:.0} s",
        began.elapsed().as_secs_f64()
    );
}
