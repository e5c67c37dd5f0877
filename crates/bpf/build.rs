// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the discovery program, and tells dependent crates where the shared headers are
//! (`DEP_HOLDFAST_BPF_HEADERS_INCLUDE`).

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));

    // One include directory with everything a BPF program of ours may include as <holdfast/...>.
    let include = out.join("include");
    let dir = include.join("holdfast");
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    for from in ["include/holdfast", "../policy/include/holdfast"] {
        let from = manifest.join(from);
        println!("cargo::rerun-if-changed={}", from.display());
        for header in fs::read_dir(from).expect("the headers are there") {
            let header = header.expect("readable directory");
            fs::copy(header.path(), dir.join(header.file_name())).expect("copy a header");
        }
    }
    println!("cargo::metadata=include={}", include.display());

    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    compile("src/bpf/discovery", &include, &out.join("discovery.skel.rs"));
    compile("examples/irql_witness", &include, &out.join("irql_witness.skel.rs"));
}

/// Makes the skeleton of a BPF program.
fn compile(program: &str, include: &Path, skeleton: &Path) {
    let source = format!("{program}.bpf.c");
    println!("cargo::rerun-if-changed={source}");
    SkeletonBuilder::new()
        .source(&source)
        .clang(env::var_os("BPF_CLANG").unwrap_or_else(|| "clang".into()))
        .clang_args([
            format!("-I{}", include.display()),
            "-I/usr/include/x86_64-linux-gnu".into(),
            "-D__TARGET_ARCH_x86".into(),
            "-Wall".into(),
            "-Werror".into(),
        ])
        .build_and_generate(skeleton)
        .expect("the BPF program compiles (it needs clang; see the Makefile)");
}
