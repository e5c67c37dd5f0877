// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the observer's BPF programs, with the headers that `holdfast-bpf` shares.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let include = env::var("DEP_HOLDFAST_BPF_HEADERS_INCLUDE").expect("holdfast-bpf sets it");
    println!("cargo::rerun-if-changed={include}");
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    for program in ["observe", "spins"] {
        SkeletonBuilder::new()
            .source(format!("src/bpf/{program}.bpf.c"))
            .clang(env::var_os("BPF_CLANG").unwrap_or_else(|| "clang".into()))
            .clang_args([
                format!("-I{include}"),
                "-I/usr/include/x86_64-linux-gnu".into(),
                "-D__TARGET_ARCH_x86".into(),
                "-Wall".into(),
                "-Werror".into(),
            ])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .expect("the BPF program compiles (it needs clang; see the Makefile)");
    }
}
