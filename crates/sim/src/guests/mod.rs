// SPDX-License-Identifier: GPL-2.0-or-later
//! Guests: VMs whose vCPUs run a small guest kernel on real lock algorithms.
//!
//! A [`Vm`] has vCPUs, threads and locks. Threads are `async` functions of a [`Ctx`]: each `await`
//! is a stretch of CPU time, a spin, or an exit to the host, and a preemption hits between any two
//! of them. Words that the scheduler reads (preemption count, queue nodes, call queue, current
//! task) are written to the VM's memory as the guest's kernel writes them.
//!
//! | module | what | source |
//! |---|---|---|
//! | `vm`, `vcpu` | a VM; exits, halts, directed yields | `virt/kvm/kvm_main.c` |
//! | `ctx`, `sched` | preemption count, interrupts; threads | `kernel/sched/core.c` |
//! | `word` | memory that other CPUs poll | |
//! | `qspinlock` | native, paravirtual, test-and-set | `kernel/locking/qspinlock.c` |
//! | `rwlock` | queued reader-writer locks | `kernel/locking/qrwlock.c` |
//! | `mutex` | mutexes with owner spinning | `kernel/locking/mutex.c` |
//! | `futex`, `pipe` | futexes, pipes | `kernel/futex/`, `fs/pipe.c` |
//! | `ipi` | function calls, TLB shootdowns | `kernel/smp.c` |
//! | `loads`, `hostile` | the lab's workloads, and lies | `workloads/` |

mod costs;
mod ctx;
mod futex;
mod hostile;
mod ipi;
pub mod loads;
mod mutex;
mod pipe;
mod qspinlock;
mod rwlock;
mod sched;
mod vcpu;
mod vm;
mod word;

pub use costs::Costs;
pub use ctx::Ctx;
pub use futex::Futex;
pub use hostile::{Claim, hostile_vm};
pub use mutex::Mutex;
pub use pipe::Pipe;
pub use qspinlock::SpinLock;
pub use rwlock::RwLock;
pub use sched::ThreadId;
pub use vm::{Exits, Features, Vm};
