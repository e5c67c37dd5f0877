// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer on an emulated KVM host. Its tests need the output of `make build`, and either the
//! network or packages in the cache, but no root.

mod agreement;
mod guests;
mod limits;
mod load;
mod nested;
mod rotation;
mod top;
