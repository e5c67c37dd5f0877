// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the BPF part, with the headers that `holdfast-bpf` shares.

use std::env;

fn main() {
    let include = env::var("DEP_HOLDFAST_BPF_HEADERS_INCLUDE").expect("holdfast-bpf sets it");
    println!("cargo::rerun-if-changed={include}");
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    // SAFETY: build scripts are single-threaded here; BpfBuilder takes its flags from the
    // environment only.
    unsafe { env::set_var("BPF_EXTRA_CFLAGS_PRE_INCL", format!("-I{include}")) };
    let build = || {
        let mut scheduler = scx_cargo::BpfBuilder::new()?;
        scheduler
            .enable_intf("src/bpf/intf.h", "bpf_intf.rs")
            .enable_skel("src/bpf/main.bpf.c", "bpf")
            .build()?;
        scx_cargo::BpfBuilder::new()?.enable_skel("src/bpf/cookies.bpf.c", "cookies").build()
    };
    build().expect("the BPF programs compile (they need clang; see the Makefile)");
}
