// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests on the lab's host: its kernel, KVM and guests. An emulated host is one busy thread, so
//! that two tests at a time are no slower than one. Tests of exact figures use a host that counts
//! instructions. They need the output of `make build`, and either the network or packages in the
//! cache, but no root.

mod boot;
mod emulated;
mod holdfast;
mod modes;
mod nested;
mod observer;
mod observer_limits;
mod observer_load;
mod scale;
mod scheduler_limits;
mod shares;
mod stress;
mod top;
mod topology;
mod trust;
mod waiters;
mod yields;
