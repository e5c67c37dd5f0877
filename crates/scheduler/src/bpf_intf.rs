// SPDX-License-Identifier: GPL-2.0-or-later
//! Constants and types shared with the BPF part, generated from `bpf/intf.h`.
#![allow(missing_docs, dead_code, unreachable_pub)]
#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case)]
#![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bpf_intf.rs"));
