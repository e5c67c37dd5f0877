// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the scheduler's BPF source for this machine: a shared object whose helpers and kfuncs
//! are calls through a table. Used by build.rs for the source of this tree, and at run time for
//! another one (`Source`).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::{Object, ObjectSymbol};

/// Defined by `shim/kconfig.c`, or by libc.
const DEFINED: &[&str] = &[
    "LINUX_KERNEL_VERSION",
    "CONFIG_PREEMPT_RCU",
    "hf_loops",
    "memcpy",
    "memset",
    "memcmp",
    "memmove",
];

/// Where the pieces of a build are.
pub(crate) struct Build<'a> {
    /// Directory `shim` of this crate.
    pub shim: &'a Path,
    /// Directory with `scx_utils-bpf_h` and `libbpf`, as build.rs makes them.
    pub headers: &'a Path,
    /// Directory `crates` of the tree whose scheduler is compiled.
    pub crates: &'a Path,
    /// Directory for what is built.
    pub out: &'a Path,
}

impl Build<'_> {
    /// Preprocessor flags.
    pub(crate) fn flags(&self) -> Vec<String> {
        let scx = self.headers.join("scx_utils-bpf_h");
        let include = [
            self.shim.to_path_buf(),
            self.crates.join("bpf/include"),
            self.crates.join("policy/include"),
            self.crates.join("scheduler/src/bpf"),
            scx.join("arch/x86"),
            scx.clone(),
            scx.join("bpf-compat"),
            self.headers.join("libbpf"),
        ];
        let define = [
            "__TARGET_ARCH_x86",
            "__SCX_TARGET_ARCH_x86",
            "BPF_NO_PRESERVE_ACCESS_INDEX",
            // The scx headers: no arena, and constants instead of values that a loader fills in.
            "SCX_ARENA_SCALAR",
            "SCX_BPF_UNITTEST",
            "__SCX_ENUMS_BPF_H",
        ];
        let include = include.iter().map(|dir| format!("-I{}", dir.display()));
        include.chain(define.iter().map(|name| format!("-D{name}"))).collect()
    }

    /// Compiles and links; returns the shared object's path.
    pub(crate) fn run(&self) -> Result<PathBuf, String> {
        let main = self.crates.join("scheduler/src/bpf/main.bpf.c");
        let scheduler = self.out.join("scheduler.o");
        let mut flags = self.flags();
        let options = [
            "-g",
            "-O2",
            "-fPIC",
            // A panic of the model goes through the scheduler to the test that it fails.
            "-fexceptions",
            "-fno-strict-aliasing",
            "-w",
        ];
        flags.extend(options.map(String::from));
        self.clang(flags.iter().map(OsStr::new).chain([
            OsStr::new("-c"),
            main.as_os_str(),
            OsStr::new("-o"),
            scheduler.as_os_str(),
        ]))?;
        let stubs = self.out.join("stubs.s");
        fs::write(&stubs, stubs_of(&scheduler)?)
            .map_err(|e| format!("{}: {e}", stubs.display()))?;
        let object = self.out.join("scheduler.so");
        self.clang([
            OsStr::new("-shared"),
            OsStr::new("-Wl,-Bsymbolic,-z,norelro"),
            OsStr::new("-fPIC"),
            scheduler.as_os_str(),
            stubs.as_os_str(),
            self.shim.join("kconfig.c").as_os_str(),
            OsStr::new("-o"),
            object.as_os_str(),
        ])?;
        Ok(object)
    }

    fn clang<'o>(&self, options: impl IntoIterator<Item = &'o OsStr>) -> Result<(), String> {
        let clang = env::var_os("BPF_CLANG")
            .or_else(|| option_env!("HOLDFAST_SIM_CLANG").map(Into::into))
            .unwrap_or_else(|| "clang".into());
        let output = Command::new(&clang)
            .args(options)
            .output()
            .map_err(|e| format!("cannot start {}: {e}", clang.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{} failed: {}", clang.display(), String::from_utf8_lossy(&output.stderr)))
    }
}

/// Assembly that sends each call of an undefined function through the table `hf_calls`, and names
/// the entries of that table in `hf_call_names`.
fn stubs_of(scheduler: &Path) -> Result<String, String> {
    let bytes = fs::read(scheduler).map_err(|e| format!("{}: {e}", scheduler.display()))?;
    let file = object::File::parse(&*bytes).map_err(|e| format!("{}: {e}", scheduler.display()))?;
    let mut names: Vec<&str> = file
        .symbols()
        .filter(ObjectSymbol::is_undefined)
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty() && !DEFINED.contains(name))
        .collect();
    names.sort_unstable();
    let mut text = String::from(".text\n");
    for (index, name) in names.iter().enumerate() {
        let at = index * 8;
        let _ = writeln!(text, ".globl {name}\n.type {name},@function");
        let _ = writeln!(text, "{name}: .cfi_startproc\njmp *hf_calls+{at}(%rip)\n.cfi_endproc");
    }
    let _ = writeln!(text, ".bss\n.globl hf_calls\n.balign 8\nhf_calls: .zero {}", names.len() * 8);
    text.push_str(".section .rodata\n.globl hf_call_names\nhf_call_names:\n");
    for name in &names {
        let _ = writeln!(text, ".asciz \"{name}\"");
    }
    text.push_str(".byte 0\n.section .note.GNU-stack,\"\",@progbits\n");
    Ok(text)
}
