// SPDX-License-Identifier: GPL-2.0-or-later
//! Names of the workloads that images have.

/// Programs that may run in a guest; `workloads/` has them.
pub const IN_GUESTS: [&str; 17] = [
    "lock",
    "build",
    "metadata",
    "tlb",
    "fork",
    "urandom",
    "hackbench",
    "pipes",
    "hog",
    "ebizzy",
    "mm",
    "pool",
    "rwlock",
    "futex",
    "mutex",
    "sysbench",
    "wakeup",
];

/// Programs that may run on the host: those that need no other files, and those that are virtual
/// machines themselves.
pub const ON_HOSTS: [&str; 15] = [
    "hostile", "irql", "hog", "lock", "metadata", "tlb", "fork", "pipes", "ebizzy", "mm", "pool",
    "rwlock", "futex", "mutex", "wakeup",
];
