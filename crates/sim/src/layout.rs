// SPDX-License-Identifier: GPL-2.0-or-later
//! Offsets, sizes and constants of `shim/layout.h`, as bindgen has them.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unreachable_pub,
    clippy::all
)]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));
