// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles `policy.h` for user space and generates its Rust face, so that each type and each
//! decision is written down once.

use std::{env, path::PathBuf};

use bindgen::callbacks::{DeriveInfo, EnumVariantValue, ItemInfo, ItemKind, ParseCallbacks};

/// `hf_class` and `HF_PREEMPTIBLE` in C are `VcpuClass` and `Preemptible` in Rust.
#[derive(Debug)]
struct RustNames;

fn camel(snake: &str) -> String {
    snake
        .split('_')
        .map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_uppercase() + &rest.to_lowercase()
        })
        .collect()
}

impl ParseCallbacks for RustNames {
    fn item_name(&self, item: ItemInfo) -> Option<String> {
        match item.name {
            "hf_class" => Some("VcpuClass".into()),
            "hf_params" => Some("Params".into()),
            name => match (name.strip_prefix("hf_"), item.kind) {
                (Some(bare), ItemKind::Type) => Some(camel(bare)),
                _ => None,
            },
        }
    }

    fn enum_variant_name(
        &self,
        _enum_name: Option<&str>,
        variant: &str,
        _value: EnumVariantValue,
    ) -> Option<String> {
        let prefixes = ["HF_COUNT_", "HF_MODE_", "HF_"];
        prefixes.iter().find_map(|prefix| variant.strip_prefix(prefix)).map(camel)
    }

    /// A class is a key of maps.
    fn add_derives(&self, info: &DeriveInfo) -> Vec<String> {
        let is_class = info.name == "VcpuClass";
        ["PartialOrd", "Ord"].into_iter().filter(|_| is_class).map(str::to_owned).collect()
    }
}

fn main() {
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-changed=native.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    bindgen::Builder::default()
        .header("native.c")
        .clang_arg("-Iinclude")
        .allowlist_item("(hf|HF)_.*")
        .rustified_enum("hf_(class|verdict|target|reason|count_kind|mode)")
        .derive_default(true)
        // Its defaults are those of the scheduler, in src/lib.rs.
        .no_default("hf_params")
        .derive_eq(true)
        .derive_hash(true)
        .parse_callbacks(Box::new(RustNames))
        .generate()
        .expect("bindgen reads policy.h (it needs libclang; see the Makefile)")
        .write_to_file(out.join("policy.rs"))
        .expect("OUT_DIR is writable");

    cc::Build::new()
        .file("native.c")
        .include("include")
        .warnings_into_errors(true)
        .compile("holdfast_policy");
}
