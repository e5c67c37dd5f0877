// SPDX-License-Identifier: GPL-2.0-or-later
//! `scx_holdfast` on an emulated KVM host. Such a host is one busy thread, so that two tests at a
//! time are no slower than one. Tests of exact figures use a host that counts instructions. They
//! need the output of `make build`, and either the network or packages in the cache, but no root.

mod cookies;
mod limits;
mod modes;
mod shares;
mod stress;
mod topology;
mod trust;
mod waiters;
mod yields;
