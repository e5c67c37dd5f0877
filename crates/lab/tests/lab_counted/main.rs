// SPDX-License-Identifier: GPL-2.0-or-later
//! What is asserted as sharply as it was measured, in hosts whose clock counts instructions: nothing else that this machine
//! does changes a figure there, so that two of these tests may run at once, which others may not.
//! Needs what `make build` builds, and either the network or packages in the cache; no root.

#[path = "../emulated/mod.rs"]
mod emulated;

/// A module by which `make test` tells them from the others.
mod counted {
    mod modes;
    mod scale;
    mod topology;
    mod yields;
}
