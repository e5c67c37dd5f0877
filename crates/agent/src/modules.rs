// SPDX-License-Identifier: GPL-2.0-or-later
//! Kernel modules. The lab's images list them, with their dependencies, in one file.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::time::Duration;

use holdfast_agent::protocol::{Failure, Reply, Spawn};

use crate::children::Children;

/// One line a module: `name: file needed needed...`.
const TABLE: &str = "/lib/modules/holdfast.dep";
/// Names of modules to load at boot.
const AT_BOOT: &str = "/lib/modules/holdfast.load";

struct Module {
    file: String,
    needs: Vec<String>,
}

/// The kernel's own spelling of a module's name.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn parse(table: &str) -> HashMap<String, Module> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let mut words = rest.split_ascii_whitespace();
        let file = words.next()?.to_owned();
        Some((canonical(name.trim()), Module { file, needs: words.map(canonical).collect() }))
    };
    table.lines().filter_map(line).collect()
}

/// The module and its dependencies, each after its own.
fn order<'a>(table: &'a HashMap<String, Module>, name: &str) -> Result<Vec<&'a str>, String> {
    fn visit<'a>(
        table: &'a HashMap<String, Module>,
        name: &str,
        seen: &mut HashSet<&'a str>,
        out: &mut Vec<&'a str>,
    ) -> Result<(), String> {
        let (key, module) = table
            .get_key_value(name)
            .ok_or_else(|| format!("module {name} is not in this image ({TABLE})"))?;
        if seen.insert(key) {
            for need in &module.needs {
                visit(table, need, seen, out)?;
            }
            out.push(key);
        }
        Ok(())
    }
    let mut out = Vec::new();
    visit(table, name, &mut HashSet::new(), &mut out)?;
    Ok(out)
}

fn is_loaded(name: &str) -> bool {
    // Built-in modules with parameters are there, too; either way there is nothing to load.
    fs::exists(format!("/sys/module/{name}")).unwrap_or(false)
}

fn insert(module: &Module, params: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("loading {} with `{params}`: {e}", module.file);
    let file = File::open(&module.file).map_err(failed)?;
    let params = CString::new(params).map_err(|e| format!("parameters `{params}`: {e}"))?;
    // SAFETY: plain system call; the string and the file live through it.
    let done =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), params.as_ptr(), 0) };
    match std::io::Error::last_os_error() {
        _ if done == 0 => Ok(()),
        e if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        e => Err(failed(e)),
    }
}

pub(crate) fn load(children: &Children, name: &str, params: &str) -> Result<Reply, Failure> {
    let name = canonical(name);
    if is_loaded(&name) {
        return Ok(Reply::Done);
    }
    let Ok(text) = fs::read_to_string(TABLE) else {
        let mut args = vec![name.as_str()];
        args.extend(params.split_ascii_whitespace());
        return modprobe(children, &args);
    };
    load_from(&parse(&text), &name, params).map_err(Failure::new)?;
    Ok(Reply::Done)
}

fn load_from(table: &HashMap<String, Module>, name: &str, params: &str) -> Result<(), String> {
    for needed in order(table, name)? {
        if !is_loaded(needed) {
            insert(&table[needed], if needed == name { params } else { "" })?;
        }
    }
    Ok(())
}

/// As [`load`], at boot, from the image's own table.
pub(crate) fn load_at_boot() -> Result<(), String> {
    let table = parse(&fs::read_to_string(TABLE).unwrap_or_default());
    for name in fs::read_to_string(AT_BOOT).unwrap_or_default().split_ascii_whitespace() {
        load_from(&table, &canonical(name), "")?;
    }
    Ok(())
}

pub(crate) fn unload(name: &str) -> Result<Reply, Failure> {
    let name = canonical(name);
    if !is_loaded(&name) {
        return Ok(Reply::Done);
    }
    let c_name = CString::new(name.as_str()).map_err(|e| Failure::new(e.to_string()))?;
    let flags = libc::O_NONBLOCK;
    // SAFETY: plain system call; the string lives through it.
    if unsafe { libc::syscall(libc::SYS_delete_module, c_name.as_ptr(), flags) } == 0 {
        return Ok(Reply::Done);
    }
    let e = std::io::Error::last_os_error();
    Err(Failure::new(format!("unloading module {name}: {e}")))
}

/// The machine is not an image of the lab and has its own tools.
fn modprobe(children: &Children, args: &[&str]) -> Result<Reply, Failure> {
    let name = ["modprobe", args.join(" ").as_str()].join(" ");
    let argv = ["modprobe"].iter().chain(args).map(|&s| s.to_owned()).collect();
    children.spawn(&Spawn { name: name.clone(), argv, ..Spawn::default() })?;
    match children.wait(&name, Duration::from_secs(20))? {
        Reply::Wait(ended) if !ended.status.success() => {
            let message = format!("`{name}` ended with {}", ended.status);
            Err(Failure { message, console: ended.stderr_tail })
        }
        _ => Ok(Reply::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_what_is_needed_first() {
        let table = parse(
            "kvm-amd: /m/kvm-amd.ko kvm ccp\nkvm: /m/kvm.ko irqbypass\n\
             irqbypass: /m/i.ko\nccp: /m/ccp.ko\n",
        );
        assert_eq!(order(&table, "kvm_amd").unwrap(), ["irqbypass", "kvm", "ccp", "kvm_amd"]);
        assert!(order(&table, "nosuch").unwrap_err().contains("nosuch"));
    }
}
