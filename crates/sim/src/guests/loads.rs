// SPDX-License-Identifier: GPL-2.0-or-later
//! The lab's workloads (`workloads/`), as far as their locks go.
//!
//! Lengths are in nanoseconds of CPU time, 2 for an instruction. What an operation takes in all is
//! what the lab measures where no vCPU is preempted; sections are counted in the kernel's source.

use std::rc::Rc;

use super::ctx::Ctx;
use super::futex::Futex;
use super::mutex::Mutex;
use super::pipe::Pipe;
use super::qspinlock::SpinLock;
use super::rwlock::RwLock;
use super::vm::Vm;
use crate::config::{MS, US};
use crate::machine::{Machine, task};
use crate::program::napper;

/// CPU time that a switch costs the next task on a host of the lab, without loading a vCPU.
pub const SWITCH_NS: u64 = US;

/// A length that varies by half of it to either side, so that CPUs do not fall into step.
fn about(cx: &Ctx, ns: u64) -> u64 {
    ns / 2 + cx.random(ns + 1)
}

/// Work in the kernel, so many percent of it with preemption off: per-CPU data, and locks that no
/// other CPU wants. Nobody waits for it, but from outside it looks like a critical section.
pub(super) async fn work(cx: &Ctx, ns: u64, percent_off: u64) {
    let off = ns * percent_off / 100;
    cx.run(about(cx, ns - off)).await;
    cx.preempt_disable();
    cx.run(about(cx, off)).await;
    cx.preempt_enable().await;
}

/// A critical section.
async fn section(cx: &Ctx, lock: &SpinLock, ns: u64) {
    lock.lock(cx).await;
    cx.run(about(cx, ns)).await;
    lock.unlock(cx).await;
}

/// What else a host of the lab does. A kernel thread of each CPU and two processes (agent, VMM)
/// wake 40 times a second each and run for up to 100 us. The observer wakes 10 times a second and
/// runs for up to 3 ms.
pub fn host_noise(m: &Machine) {
    const SLEEP_NS: u64 = 50 * MS;
    const RUN_NS: u64 = 100 * US;
    for cpu in 0..m.kernel().config().nr_cpus {
        m.spawn(task(format!("kworker/{cpu}"), napper(RUN_NS, SLEEP_NS)).on([cpu]).kthread());
    }
    for _ in 0..2 {
        m.spawn(task("agent", napper(RUN_NS, SLEEP_NS)));
    }
    m.spawn(task("observer", napper(3 * MS, 200 * MS)));
}

/// `lock`: `dup()` and `close()` in one descriptor table: two acquisitions of its spinlock.
pub fn lock(m: &Machine, vm: &Vm, threads: usize) {
    let file_lock = Rc::new(SpinLock::new());
    for _ in 0..threads {
        let file_lock = Rc::clone(&file_lock);
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                for _ in 0..2 {
                    cx.user(about(&cx, 450)).await;
                    cx.run(about(&cx, 350)).await;
                    section(&cx, &file_lock, 200).await;
                    cx.run(about(&cx, 250)).await;
                }
                cx.count();
            }
        });
    }
}

/// `rwlock`: 7 `getpriority()` of a group and one `setpgid()`, by processes: `tasklist_lock`.
pub fn rwlock(m: &Machine, vm: &Vm, threads: usize) {
    let tasklist = Rc::new(RwLock::new());
    for _ in 0..threads {
        let tasklist = Rc::clone(&tasklist);
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                for _ in 0..7 {
                    cx.user(about(&cx, 250)).await;
                    cx.run(about(&cx, 200)).await;
                    tasklist.read_lock(&cx).await;
                    cx.run(about(&cx, 200)).await;
                    tasklist.read_unlock(&cx).await;
                    cx.run(about(&cx, 100)).await;
                }
                cx.user(about(&cx, 250)).await;
                cx.run(about(&cx, 200)).await;
                let on = tasklist.write_lock_irq(&cx).await;
                cx.run(about(&cx, 200)).await;
                tasklist.write_unlock_irq(&cx, on).await;
                cx.run(about(&cx, 100)).await;
                cx.count();
            }
        });
    }
}

/// `futex`: lock and unlock of one pthread mutex, 200 rounds of a loop inside.
pub fn futex(m: &Machine, vm: &Vm, threads: usize) {
    let mutex = Rc::new(Futex::new());
    for _ in 0..threads {
        let mutex = Rc::clone(&mutex);
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                cx.user(about(&cx, 400)).await;
                mutex.lock(&cx).await;
                cx.user(about(&cx, 800)).await;
                mutex.unlock(&cx).await;
                cx.count();
            }
        });
    }
}

/// `tlb`: `mmap()`, 16 page faults, `munmap()` with a shootdown; threads of one process. Half of an
/// operation has `mmap_lock`; `munmap()` becomes its reader before it unmaps. Faults take the lock
/// of their own mapping only, but mappings are next to each other: all pages are in one page table,
/// and under its lock.
pub fn tlb(m: &Machine, vm: &Vm, threads: usize) {
    let mmap_lock = Rc::new(Mutex::new());
    let page_table = Rc::new(SpinLock::new());
    let all = (1 << vm.vcpus.len()) - 1;
    for _ in 0..threads {
        let (mmap_lock, page_table) = (Rc::clone(&mmap_lock), Rc::clone(&page_table));
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                cx.user(US).await;
                mmap_lock.lock(&cx).await;
                work(&cx, 15 * US, 40).await;
                mmap_lock.unlock(&cx).await;
                for _ in 0..16 {
                    work(&cx, 3 * US, 40).await;
                    section(&cx, &page_table, 600).await;
                    cx.user(about(&cx, 500)).await;
                }
                mmap_lock.lock(&cx).await;
                work(&cx, 8 * US, 40).await;
                mmap_lock.downgrade(&cx);
                section(&cx, &page_table, 10 * US).await;
                cx.flush_tlb(all).await;
                work(&cx, 20 * US, 40).await;
                mmap_lock.unlock(&cx).await;
                cx.count();
            }
        });
    }
}

/// `metadata`: create, rename and unlink; two workers in a directory.
pub fn metadata(m: &Machine, vm: &Vm, threads: usize) {
    const OFF: u64 = 30;
    let dirs: Vec<_> = (0..threads.div_ceil(2)).map(|_| Rc::new(Mutex::new())).collect();
    let rename = Rc::new(Mutex::new());
    let locks: Rc<[SpinLock; 3]> = Rc::default();
    for worker in 0..threads {
        let (dir, next) = (worker % dirs.len(), (worker + 1) % dirs.len());
        let (dir, next) = (Rc::clone(&dirs[dir]), Rc::clone(&dirs[next]));
        let (rename, locks) = (Rc::clone(&rename), Rc::clone(&locks));
        vm.spawn(m, async move |cx: Ctx| {
            for n in 0u64.. {
                // open(O_CREAT): a new inode, with the directory's i_rwsem.
                cx.user(US).await;
                work(&cx, 5 * US, OFF).await;
                dir.lock(&cx).await;
                work(&cx, 4 * US, OFF).await;
                section(&cx, &locks[0], 500).await;
                work(&cx, 4 * US, OFF).await;
                section(&cx, &locks[1], 500).await;
                dir.unlock(&cx).await;
                work(&cx, 6 * US, OFF).await;
                // rename(): every 16th to the next directory, with s_vfs_rename_mutex.
                let cross = n % 16 == 0;
                if cross {
                    rename.lock(&cx).await;
                    next.lock(&cx).await;
                } else {
                    dir.lock(&cx).await;
                }
                work(&cx, 5 * US, OFF).await;
                section(&cx, &locks[2], 600).await;
                work(&cx, 3 * US, OFF).await;
                if cross {
                    next.unlock(&cx).await;
                    rename.unlock(&cx).await;
                } else {
                    dir.unlock(&cx).await;
                }
                work(&cx, 5 * US, OFF).await;
                // unlink()
                dir.lock(&cx).await;
                work(&cx, 5 * US, OFF).await;
                dir.unlock(&cx).await;
                section(&cx, &locks[0], 500).await;
                section(&cx, &locks[1], 500).await;
                work(&cx, 8 * US, OFF).await;
                cx.count();
            }
        });
    }
}

/// `hackbench`: half of the threads send to each of the other half, by pipes.
pub fn hackbench(m: &Machine, vm: &Vm, threads: usize) {
    let pipes: Vec<_> = (0..threads / 2).map(|_| Rc::new(Pipe::new(600, 1200))).collect();
    for sender in 0..threads / 2 {
        let to = pipes.clone();
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                for pipe in &to {
                    cx.user(200).await;
                    work(&cx, 1000, 20).await;
                    pipe.write(&cx).await;
                }
            }
        });
        let from = Rc::clone(&pipes[sender]);
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                cx.user(200).await;
                work(&cx, 1000, 20).await;
                from.read(&cx).await;
                cx.count();
            }
        });
    }
}

/// `pipes`: pairs of processes that pass one byte to and fro.
pub fn pipes(m: &Machine, vm: &Vm, threads: usize) {
    for _ in 0..threads / 2 {
        let there = Rc::new(Pipe::new(16, 1200));
        let back = Rc::new(Pipe::new(16, 1200));
        let pass = async |cx: &Ctx, from: &Pipe, to: &Pipe| {
            cx.user(300).await;
            from.read(cx).await;
            cx.run(about(cx, 1500)).await;
            to.write(cx).await;
        };
        let (from, to) = (Rc::clone(&there), Rc::clone(&back));
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                pass(&cx, &from, &to).await;
            }
        });
        vm.spawn(m, async move |cx: Ctx| {
            there.write(&cx).await;
            loop {
                pass(&cx, &back, &there).await;
                cx.count();
            }
        });
    }
}

/// `fork`: fork, exit of the child, wait: `tasklist_lock` for writing, and much memory management.
pub fn fork(m: &Machine, vm: &Vm, threads: usize) {
    let tasklist = Rc::new(RwLock::new());
    let locks: Rc<[SpinLock; 4]> = Rc::default();
    for _ in 0..threads {
        let (tasklist, locks) = (Rc::clone(&tasklist), Rc::clone(&locks));
        vm.spawn(m, async move |cx: Ctx| {
            loop {
                cx.user(2 * US).await;
                // copy_process(): pages, page tables, the pid.
                memory(&cx, &locks, 230 * US).await;
                write_section(&cx, &tasklist, 6 * US).await;
                let parent = cx.id();
                let done = Rc::new(std::cell::Cell::new(false));
                let (over, tasklist2, locks2) =
                    (Rc::clone(&done), Rc::clone(&tasklist), Rc::clone(&locks));
                cx.spawn(async move |cx: Ctx| {
                    cx.user(5 * US).await;
                    memory(&cx, &locks2, 160 * US).await;
                    // exit_notify()
                    write_section(&cx, &tasklist2, 7 * US).await;
                    over.set(true);
                    cx.wake(parent, true).await;
                    memory(&cx, &locks2, 40 * US).await;
                })
                .await;
                // do_wait()
                while !done.get() {
                    cx.prepare_to_sleep();
                    if !done.get() {
                        cx.schedule().await;
                    }
                    cx.finish_sleep();
                }
                // release_task()
                write_section(&cx, &tasklist, 6 * US).await;
                memory(&cx, &locks, 50 * US).await;
                cx.count();
            }
        });
    }

    /// Memory management: a lock of the page allocator, the slab or reverse mapping now and then.
    async fn memory(cx: &Ctx, locks: &[SpinLock; 4], ns: u64) {
        const PIECE: u64 = 5 * US;
        for piece in 0..ns / PIECE {
            work(cx, PIECE - 700, 40).await;
            section(cx, &locks[piece as usize % locks.len()], 700).await;
        }
    }

    async fn write_section(cx: &Ctx, tasklist: &RwLock, ns: u64) {
        let on = tasklist.write_lock_irq(cx).await;
        cx.run(about(cx, ns)).await;
        tasklist.write_unlock_irq(cx, on).await;
    }
}
