// SPDX-License-Identifier: GPL-2.0-or-later
//! Kernel modules for an image: with their dependencies, uncompressed, listed for the agent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::Manifest;
use super::elf::module_needs;
use crate::error::{Error, Result};
use crate::packages::{Tree, package_of};

/// A kernel's modules in its packages.
pub(super) struct Modules {
    files: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// `kvm_amd` of `.../kvm-amd.ko.xz`.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let stem = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(canonical(stem))
}

impl Modules {
    pub(super) fn of(tree: &Tree, release: &str) -> Result<Self> {
        let mut files = HashMap::new();
        walk(&tree.get(&format!("usr/lib/modules/{release}/kernel"))?, &mut files)?;
        let list = tree.get(&format!("usr/lib/modules/{release}/modules.builtin"))?;
        let text = fs::read_to_string(&list).map_err(Error::io("reading", &list))?;
        Ok(Modules { files, builtin: text.lines().filter_map(module_name).collect() })
    }

    /// Adds those of `wanted` that are modules, and lists those of `at_boot` to be loaded at boot.
    pub(super) fn add(
        &self,
        manifest: &mut Manifest,
        wanted: &[&str],
        at_boot: &[&str],
    ) -> Result<()> {
        let mut table = BTreeMap::new();
        let exists = |name: &&&str| self.files.contains_key(&canonical(name));
        let mut todo: Vec<String> =
            wanted.iter().chain(at_boot).filter(exists).map(|n| canonical(n)).collect();
        while let Some(name) = todo.pop() {
            if table.contains_key(&name) || self.builtin.contains(&name) {
                continue;
            }
            let path = self.files.get(&name).ok_or_else(|| {
                Error::Packages(format!("the kernel has no module {name}, which another one needs"))
            })?;
            let module = read_module(path)?;
            let needs: Vec<_> = module_needs(&module).iter().map(|n| canonical(n)).collect();
            let file = format!("/lib/modules/{name}.ko");
            // `lib` is a link in the images.
            manifest.bytes(&format!("/usr{file}"), 0o644, module);
            todo.extend(needs.iter().cloned());
            table.insert(name, (file, needs));
        }
        let line = |(name, (file, needs)): (&String, &(String, Vec<String>))| {
            let needs = needs.iter().filter(|n| table.contains_key(*n));
            let needs: String = needs.map(|n| format!(" {n}")).collect();
            format!("{name}: {file}{needs}\n")
        };
        let text: String = table.iter().map(line).collect();
        let load: String =
            at_boot.iter().filter(exists).map(|n| format!("{}\n", canonical(n))).collect();
        manifest.bytes("/usr/lib/modules/holdfast.dep", 0o644, text);
        manifest.bytes("/usr/lib/modules/holdfast.load", 0o644, load);
        Ok(())
    }
}

fn walk(directory: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(Error::io("listing", directory))? {
        let entry = entry.map_err(Error::io("listing", directory))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&path, files)?;
        } else if let Some(name) = module_name(&path.to_string_lossy()) {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let data = fs::read(path).map_err(Error::io("reading", path))?;
    if path.extension().is_none_or(|e| e != "xz") {
        return Ok(data);
    }
    let mut module = Vec::with_capacity(data.len() * 4);
    lzma_rs::xz_decompress(&mut data.as_slice(), &mut module).map_err(|e| {
        let (path, package) = (path.display(), package_of(path).display());
        Error::Packages(format!("unpacking {path}: {e:?}; remove {package} to fetch it again"))
    })?;
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_damaged_module_the_package_is_to_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("unpacked/0123abcd");
        let module = package.join("usr/lib/modules/7/kernel/kvm.ko.xz");
        fs::create_dir_all(module.parent().unwrap()).unwrap();
        fs::write(&module, "not xz").unwrap();
        let error = read_module(&module).unwrap_err().to_string();
        let advice = format!("; remove {} to fetch it again", package.display());
        assert!(error.ends_with(&advice), "{error}");
    }

    #[test]
    fn names_modules_as_the_kernel_does() {
        assert_eq!(module_name("kernel/arch/x86/kvm/kvm-amd.ko.xz").unwrap(), "kvm_amd");
        assert_eq!(module_name("kernel/virt/lib/irqbypass.ko").unwrap(), "irqbypass");
        assert_eq!(module_name("kernel/modules.order"), None);
    }
}
