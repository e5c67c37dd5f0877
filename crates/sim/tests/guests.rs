// SPDX-License-Identifier: GPL-2.0-or-later
//! Guests on real lock algorithms, under stock and under Holdfast.
//! One alone: `cargo test --release -p holdfast-sim --test guests NAME`.

use std::cell::Cell;
use std::rc::Rc;

use holdfast_policy::VcpuClass;
use holdfast_sim::guests::{Claim, Ctx, Features, Futex, Mutex, Pipe, RwLock, SpinLock, Vm};
use holdfast_sim::guests::{hostile_vm, loads};
use holdfast_sim::stock::Stock;
use holdfast_sim::{MS, Machine, SEC, US, hog, task};

/// A machine of two CPUs that has been up for a while, with two hogs.
fn machine(seed: u64, holdfast: bool) -> Machine {
    let builder = Machine::new(seed).cpus(2).switch_ns(US);
    let m = if holdfast { builder.boot() } else { builder.boot_class(Stock::class) };
    m.run(2 * SEC);
    for _ in 0..2 {
        m.spawn(task("hog", hog()));
        m.run(MS);
    }
    m
}

/// Kinds of guests, by their spinlocks and pause exits.
fn guests() -> impl Iterator<Item = Features> {
    let locks = [(true, false), (false, false), (false, true)];
    locks.into_iter().flat_map(|(pv_spinlocks, test_and_set)| {
        [false, true].map(|pause_exits| Features {
            pv_spinlocks,
            test_and_set,
            pause_exits,
            ..Features::default()
        })
    })
}

/// Runs 6 threads of a section that excludes itself on 4 vCPUs, under both schedulers and in all
/// kinds of guests, and checks that each of them gets on until the end.
fn excludes<L: Default + 'static>(section: impl AsyncFn(&Ctx, &L, &dyn Fn(bool)) + Copy + 'static) {
    const THREADS: usize = 6;
    for (seed, features) in guests().enumerate() {
        for holdfast in [false, true] {
            let m = machine(seed as u64, holdfast);
            let vm = Vm::boot(&m, 4, features, None);
            let lock = Rc::new(L::default());
            let inside = Rc::new(Cell::new(0));
            let rounds = Rc::new([const { Cell::new(0u64) }; THREADS]);
            for thread in 0..THREADS {
                let (lock, inside, rounds) =
                    (Rc::clone(&lock), Rc::clone(&inside), Rc::clone(&rounds));
                vm.spawn(&m, async move |cx: Ctx| {
                    let enters = |enters: bool| {
                        assert_eq!(inside.get(), i32::from(!enters), "{features:?}");
                        inside.set(i32::from(enters));
                    };
                    loop {
                        cx.user(cx.random(2000)).await;
                        section(&cx, &lock, &enters).await;
                        rounds[thread].set(rounds[thread].get() + 1);
                    }
                });
            }
            m.run(50 * MS);
            let before = rounds.each_ref().map(Cell::get);
            // A native lock's queue may need a slice of each of its vCPUs for a round.
            m.run(100 * MS);
            for (thread, before) in before.into_iter().enumerate() {
                let more = rounds[thread].get() - before;
                assert!(
                    more > 0,
                    "thread {thread} stands still, Holdfast: {holdfast}, {features:?}"
                );
            }
        }
    }
}

#[test]
fn spinlock_excludes_and_loses_no_wakeup() {
    excludes(async |cx: &Ctx, lock: &SpinLock, enters: &dyn Fn(bool)| {
        lock.lock(cx).await;
        enters(true);
        cx.run(500).await;
        enters(false);
        lock.unlock(cx).await;
    });
}

#[test]
fn writers_of_rwlock_exclude_and_lose_no_wakeup() {
    excludes(async |cx: &Ctx, lock: &RwLock, enters: &dyn Fn(bool)| {
        let on = lock.write_lock_irq(cx).await;
        enters(true);
        cx.run(500).await;
        enters(false);
        lock.write_unlock_irq(cx, on).await;
        lock.read_lock(cx).await;
        cx.run(500).await;
        lock.read_unlock(cx).await;
    });
}

#[test]
fn mutex_excludes_and_loses_no_wakeup() {
    excludes(async |cx: &Ctx, mutex: &Mutex, enters: &dyn Fn(bool)| {
        mutex.lock(cx).await;
        enters(true);
        cx.run(3000).await;
        enters(false);
        mutex.unlock(cx).await;
    });
}

#[test]
fn futex_excludes_and_loses_no_wakeup() {
    excludes(async |cx: &Ctx, futex: &Futex, enters: &dyn Fn(bool)| {
        futex.lock(cx).await;
        enters(true);
        cx.user(1000).await;
        enters(false);
        futex.unlock(cx).await;
    });
}

#[test]
fn readers_of_rwlock_go_on_together_and_keep_writers_out() {
    let m = machine(1, true);
    let vm = Vm::boot(&m, 4, Features::default(), None);
    let lock = Rc::new(RwLock::new());
    let readers = Rc::new(Cell::new(0));
    let most = Rc::new(Cell::new(0));
    for writer in [false, false, false, true] {
        let (lock, readers, most) = (Rc::clone(&lock), Rc::clone(&readers), Rc::clone(&most));
        vm.spawn(&m, async move |cx: Ctx| {
            loop {
                cx.user(cx.random(3000)).await;
                if writer {
                    let on = lock.write_lock_irq(&cx).await;
                    assert_eq!(readers.get(), 0);
                    cx.run(500).await;
                    assert_eq!(readers.get(), 0);
                    lock.write_unlock_irq(&cx, on).await;
                } else {
                    lock.read_lock(&cx).await;
                    readers.set(readers.get() + 1);
                    most.set(most.get().max(readers.get()));
                    cx.run(1000).await;
                    readers.set(readers.get() - 1);
                    lock.read_unlock(&cx).await;
                }
            }
        });
    }
    m.run(100 * MS);
    assert!(most.get() >= 2, "never more than {} reader", most.get());
}

#[test]
fn pipe_passes_each_message_once() {
    for holdfast in [false, true] {
        let m = machine(3, holdfast);
        let vm = Vm::boot(&m, 4, Features::default(), None);
        let (pipe, sent, received) =
            (Rc::new(Pipe::new(4, 500)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for _ in 0..3 {
            let (to, sent) = (Rc::clone(&pipe), Rc::clone(&sent));
            vm.spawn(&m, async move |cx: Ctx| {
                loop {
                    cx.user(cx.random(10_000)).await;
                    sent.set(sent.get() + 1);
                    to.write(&cx).await;
                }
            });
            let (from, received) = (Rc::clone(&pipe), Rc::clone(&received));
            vm.spawn(&m, async move |cx: Ctx| {
                loop {
                    from.read(&cx).await;
                    received.set(received.get() + 1);
                }
            });
        }
        m.run(100 * MS);
        let early = received.get();
        m.run(100 * MS);
        assert!(received.get() > early && early > 100, "{early}, then {}", received.get());
        // 4 in the pipe, 3 that wait to be written.
        let under_way = sent.get() - received.get();
        assert!((0..=7).contains(&under_way), "{under_way} messages are under way");
    }
}

#[test]
fn function_call_waits_for_all_answers_and_shows_in_memory() {
    let m = machine(4, false);
    let features = Features { pv_tlb_flush: false, ..Features::default() };
    let vm = Vm::boot(&m, 4, features, None);
    for _ in 0..4 {
        vm.spawn(&m, async move |cx: Ctx| {
            loop {
                cx.run(cx.random(20_000)).await;
                cx.flush_tlb(0b1111).await;
                cx.count();
            }
        });
    }
    m.run(SEC);
    assert!(vm.ops() > 100, "{} shootdowns", vm.ops());
    // The sender waits with preemption off.
    assert!(vm.preemptions(VcpuClass::Holder) > 50);
}

/// Work and preempted holders per VM-CPU-second of a contended lock beside two hogs.
fn contended_lock(holdfast: bool) -> (f64, f64) {
    let m = machine(5, holdfast);
    loads::host_noise(&m);
    let vm = Vm::boot(&m, 4, Features::default(), None);
    loads::lock(&m, &vm, 4);
    m.run(500 * MS);
    let cpu_s = vm.cpu_ns(&m) as f64 / 1e9;
    (vm.ops() as f64 / cpu_s, vm.preemptions(VcpuClass::Holder) as f64 / cpu_s)
}

#[test]
fn stock_preempts_holders_and_holdfast_does_not() {
    let (stock, holdfast) = (contended_lock(false), contended_lock(true));
    assert!(stock.1 > 40.0, "stock preempts {:.1} holders per CPU-second", stock.1);
    assert!(holdfast.1 < 0.2 * stock.1, "Holdfast preempts {:.1}", holdfast.1);
    assert!(holdfast.0 > 1.2 * stock.0, "work: {:.0}, stock: {:.0}", holdfast.0, stock.0);
}

#[test]
fn same_seed_gives_same_run() {
    let run = |seed| {
        let m = machine(seed, true);
        loads::host_noise(&m);
        let vm = Vm::boot(&m, 4, Features { pause_exits: true, ..Features::default() }, None);
        loads::hackbench(&m, &vm, 8);
        m.run(100 * MS);
        (m.totals().trace, vm.ops(), vm.exits())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_guest_that_lies_has_its_share_and_no_more() {
    for claim in [Claim::Holder, Claim::Irq, Claim::Head, Claim::Waiter, Claim::Flipping] {
        let m = machine(9, true);
        let liars = hostile_vm(&m, 2, claim);
        m.run(4 * SEC);
        // Four tasks on two CPUs.
        let seconds: f64 = liars.iter().map(|id| m.cpu_ns(*id) as f64 / 1e9).sum();
        assert!((seconds - 4.0).abs() < 0.3, "{claim:?}: {seconds:.2} s of 4");
    }
}
