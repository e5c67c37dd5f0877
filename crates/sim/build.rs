// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the scheduler's BPF source natively, and generates the layout of what it shares with
//! the model.

use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "src/compile.rs"]
mod compile;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let crates = manifest.parent().expect("it is a member of the workspace");
    let shim = manifest.join("shim");
    for dir in [
        shim.as_path(),
        Path::new("src/compile.rs"),
        &crates.join("scheduler/src/bpf"),
        &crates.join("bpf/include"),
        &crates.join("policy/include"),
    ] {
        println!("cargo::rerun-if-changed={}", dir.display());
    }
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    // For sources that are compiled at run time.
    if let Ok(clang) = env::var("BPF_CLANG") {
        println!("cargo::rustc-env=HOLDFAST_SIM_CLANG={clang}");
    }

    // Unpacks the scx headers into OUT_DIR.
    scx_cargo::BpfBuilder::new().expect("the scx headers can be unpacked (it needs clang)");
    let libbpf = out.join("libbpf/bpf");
    fs::create_dir_all(&libbpf).expect("OUT_DIR is writable");
    for (name, text) in libbpf_sys::API_HEADERS {
        fs::write(libbpf.join(name), text).expect("OUT_DIR is writable");
    }

    let build = compile::Build { shim: &shim, headers: &out, crates, out: &out };
    build.run().unwrap_or_else(|error| panic!("the scheduler does not compile natively: {error}"));

    bindgen::Builder::default()
        .header(shim.join("layout.h").display().to_string())
        .clang_args(build.flags())
        .clang_arg("-Wno-everything")
        .allowlist_type("hf_(vcpu|stat|vm_ctx)|sim_layout")
        .allowlist_var(
            "(ENQ|DEQ|WAKE|KICK|PICK|SLICE|DSQ|OPS|CPU_PREEMPT)_.*|TASK_QUEUED|HF_.*|KVM_HC_.*",
        )
        .layout_tests(false)
        .prepend_enum_name(false)
        .generate()
        .expect("bindgen reads layout.h (it needs libclang; see the Makefile)")
        .write_to_file(out.join("layout.rs"))
        .expect("OUT_DIR is writable");
}
