// SPDX-License-Identifier: GPL-2.0-or-later
//! What needs the lab's host: its kernel, KVM and guests. An emulated one is one thread at work, so
//! that two tests at a time are no slower than one; what asks for exact figures has a host that
//! counts instructions. Needs what `make build` builds, and either the network or packages in the
//! cache; no root.

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
