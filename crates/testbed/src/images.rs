// SPDX-License-Identifier: GPL-2.0-or-later
//! File systems of the lab's host and guests: initramfs archives, built from a declaration, the
//! same bytes for the same input, cached by content. Only the agent is started in them.

mod cpio;
mod elf;
mod files;
mod manifest;
mod modules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub use self::files::GuestFiles;
pub use self::manifest::Manifest;
pub(crate) use self::manifest::{hex, made_once};
use self::modules::Modules;
use crate::error::{Error, Result};
use crate::packages::{Kernel, Package, Packages, Source, Suite, Tree, package_of};
use crate::progress::Progress;

/// First program of the lab's host and of its guests, in the dist directory.
pub const AGENT: &str = "holdfast-agent";
/// Where the programs of the dist directory are, in the host.
pub const DIST: &str = "/opt/holdfast";
/// Where the workloads are, in the host and in guests.
pub const WORKLOADS: &str = "/workloads";
/// Where QEMU is, in the host.
pub(crate) const QEMU: &str = "/opt/qemu";
/// Where the guests' kernels and images are, in the host.
pub(crate) const GUESTS: &str = "/guests";

/// Firmware that QEMU reads for the lab's machines: path in its packages, and name.
const FIRMWARE: [(&str, &str); 3] = [
    ("usr/share/seabios/bios-256k.bin", "bios-256k.bin"),
    ("usr/share/qemu/linuxboot_dma.bin", "linuxboot_dma.bin"),
    ("usr/share/qemu/kvmvapic.bin", "kvmvapic.bin"),
];

/// Modules that are loaded on demand.
const KVM: [&str; 2] = ["kvm_amd", "kvm_intel"];

/// Small tools of the image, all one program.
const BUSYBOX: [&str; 24] = [
    "sh", "rm", "dd", "cat", "ls", "ps", "top", "dmesg", "sleep", "mount", "grep", "kill", "mkdir",
    "cp", "mv", "head", "tail", "wc", "sed", "awk", "env", "true", "uname", "taskset",
];

/// A kernel, unpacked.
#[derive(Clone, Debug)]
pub struct KernelFiles {
    /// `uname -r`.
    pub release: String,
    /// What the boot loader loads.
    pub vmlinuz: PathBuf,
    /// The kernel's configuration.
    pub config: PathBuf,
    tree: Tree,
}

impl KernelFiles {
    fn of(tree: Tree) -> Result<Self> {
        let modules = tree.get("usr/lib/modules")?;
        let mut entries = fs::read_dir(&modules).map_err(Error::io("listing", &modules))?;
        let entry = entries.next().ok_or_else(|| {
            let (modules, package) = (modules.display(), package_of(&modules).display());
            Error::Packages(format!("{modules} is empty; remove {package} to fetch it again"))
        })?;
        let entry = entry.map_err(Error::io("listing", &modules))?;
        let release = entry.file_name().to_string_lossy().into_owned();
        // Newer packages keep everything in one directory.
        let either = |new: &str, old: String| {
            let new = tree.find(&format!("usr/lib/modules/{release}/{new}"));
            new.map_or_else(|| tree.get(&old), Ok)
        };
        let vmlinuz = either("vmlinuz", format!("boot/vmlinuz-{release}"))?;
        let config = either("config", format!("boot/config-{release}"))?;
        Ok(KernelFiles { release, vmlinuz, config, tree })
    }
}

/// Everything for images and machines, in the cache.
pub struct Parts {
    /// QEMU with its libraries and firmware.
    pub qemu: Tree,
    /// Kernels asked for.
    pub kernels: BTreeMap<Kernel, KernelFiles>,
    /// Programs of guests besides the agent and the workloads.
    pub userland: Tree,
    /// Source packages' upstream archives, unpacked, by name.
    pub sources: BTreeMap<String, PathBuf>,
    /// Every package used, for the provenance of results.
    pub packages: Vec<Package>,
    /// Every source package used, likewise.
    pub source_packages: Vec<Source>,
}

impl Parts {
    /// Finds all parts in the cache, or fetches them.
    pub fn fetch(cache: &Path, kernels: &[Kernel], progress: &Progress) -> Result<Self> {
        let mut packages = Packages::open(cache)?;
        match Parts::fetch_from(&mut packages, kernels, progress) {
            // A mirror has the files of its newest lists, and soon drops those of older ones.
            Err(Error::Download(why)) if packages.expire()? => {
                progress.note(&format!("{why}; trying again with new lists"));
                Parts::fetch_from(&mut packages, kernels, progress)
            }
            other => other,
        }
    }

    fn fetch_from(
        packages: &mut Packages,
        kernels: &[Kernel],
        progress: &Progress,
    ) -> Result<Self> {
        let mut kernels = kernels.to_vec();
        kernels.sort();
        kernels.dedup();
        let files = GuestFiles::standard();
        let mut suites: Vec<_> = kernels.iter().map(|k| k.suite()).collect();
        suites.extend([Suite::Trixie, Suite::Forky]);
        suites.sort();
        suites.dedup();
        packages.prepare(&suites, &[Suite::Trixie], progress)?;

        let library = |name: &str| name.starts_with("lib") || name == "zlib1g";
        let qemu = ["qemu-system-x86", "qemu-system-data", "seabios"];
        let qemu = packages.resolve(Suite::Forky, &qemu, library)?;
        let mut names = files.packages();
        names.push("busybox-static");
        let userland = packages.resolve(Suite::Trixie, &names, |_| false)?;
        let mut all = [qemu.clone(), userland.clone()].concat();
        let mut by_kernel = BTreeMap::new();
        for kernel in kernels {
            let found = packages.kernel(kernel)?;
            all.extend(found.iter().cloned());
            by_kernel.insert(kernel, found);
        }
        all.sort_by(|a, b| (&a.name, &a.sha256).cmp(&(&b.name, &b.sha256)));
        all.dedup();
        // One download for all, then a view for each purpose.
        packages.fetch(&all, progress)?;
        let view = |list: &[Package]| packages.fetch(list, progress);
        let mut sources = BTreeMap::new();
        let mut source_packages = Vec::new();
        for name in files.sources() {
            let source = packages.source(Suite::Trixie, name)?;
            sources.insert(name.to_owned(), packages.fetch_source(&source, progress)?);
            source_packages.push(source);
        }
        let mut kernels = BTreeMap::new();
        for (kernel, list) in by_kernel {
            kernels.insert(kernel, KernelFiles::of(view(&list)?)?);
        }
        let (qemu, userland) = (view(&qemu)?, view(&userland)?);
        Ok(Parts { qemu, kernels, userland, sources, packages: all, source_packages })
    }

    /// A kernel that was asked for.
    pub fn kernel(&self, kernel: Kernel) -> Result<&KernelFiles> {
        let none = || Error::Unsupported(format!("Linux {kernel} was not asked for when booting"));
        self.kernels.get(&kernel).ok_or_else(none)
    }

    /// Version of QEMU.
    pub fn qemu_version(&self) -> &str {
        let mut all = self.packages.iter();
        all.find(|p| p.name == "qemu-system-x86").map_or("unknown", |p| p.version.as_str())
    }
}

/// Files of this machine for images.
pub struct Local<'a> {
    /// Directory with `holdfast-agent`, `workloads/` and the other programs built.
    pub dist: &'a Path,
    /// More files for the host: here, there.
    pub extra: &'a [(PathBuf, String)],
    /// Whether guests have the program `holdfast`, too.
    pub holdfast_in_guests: bool,
    /// Whether guests have KVM's modules, too: they can run guests of their own then.
    pub kvm_in_guests: bool,
}

/// The common beginning of both kinds of image.
fn base(name: &str, parts: &Parts, local: &Local<'_>) -> Result<Manifest> {
    let mut image = Manifest::new(name);
    for directory in
        ["dev", "proc", "sys", "tmp", "run", "root", "etc", "usr/bin", "usr/lib", "usr/lib64"]
    {
        image.directory(directory);
    }
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        image.symlink(link, target);
    }
    // The kernel opens it before the agent has mounted anything.
    image.char_device("dev/console", 0o600, 5, 1);
    let agent = local.dist.join(AGENT);
    image.local("init", &agent).map_err(|e| Error::Image {
        image: name.to_owned(),
        why: format!("{e}; build it with `make build`"),
    })?;
    image.cached("usr/bin/busybox", &parts.userland.get("usr/bin/busybox")?)?;
    for tool in BUSYBOX {
        image.symlink(&format!("usr/bin/{tool}"), "busybox");
    }
    let workloads = local.dist.join("workloads");
    for file in list(&workloads)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        image.local(&format!("{WORKLOADS}/{name}"), &file)?;
    }
    Ok(image)
}

/// Files in a directory, sorted; none if it does not exist.
fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("listing", directory))?,
    };
    let mut files: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    Ok(files)
}

/// The image of guests that run this kernel.
pub fn guest(parts: &Parts, kernel: Kernel, local: &Local<'_>) -> Result<Manifest> {
    let files = parts.kernel(kernel)?;
    let mut image = base(&format!("guest-{kernel}"), parts, local)?;
    GuestFiles::standard().add(&mut image, &parts.userland, &parts.sources)?;
    // A module, or built in, as in Debian's kernel.
    let modules = Modules::of(&files.tree, &files.release)?;
    let on_demand: &[&str] = if local.kvm_in_guests { &KVM } else { &[] };
    modules.add(&mut image, on_demand, &["virtio_pci", "virtio_console"])?;
    if local.holdfast_in_guests {
        add_holdfast(&mut image, &local.dist.join("holdfast"))?;
    }
    Ok(image)
}

/// The program `holdfast` in a guest, with this machine's libraries and loader in a directory of
/// their own: the workloads use Debian's.
fn add_holdfast(image: &mut Manifest, program: &Path) -> Result<()> {
    let (loader, libraries) = elf::closure(program, elf::find_on_machine)?;
    image.local(&format!("{DIST}/holdfast"), program)?;
    for (name, path) in libraries {
        image.local(&format!("{DIST}/lib/{name}"), &path)?;
    }
    if let Some(loader) = loader {
        image.local(&format!("{DIST}/lib/loader"), Path::new(&loader))?;
    }
    Ok(())
}

/// The command of the program `holdfast` in a guest that has it.
pub fn holdfast_in_guest() -> Vec<String> {
    let file = |name: &str| format!("{DIST}/{name}");
    vec![file("lib/loader"), "--library-path".into(), file("lib"), file("holdfast")]
}

/// The image of a host that runs this kernel; `guests` are the images it starts guests from.
pub fn host(
    parts: &Parts,
    kernel: Kernel,
    guests: &BTreeMap<Kernel, PathBuf>,
    local: &Local<'_>,
) -> Result<Manifest> {
    let kernel = parts.kernel(kernel)?;
    let mut image = base("host", parts, local)?;
    // libbpf reads it for the `__kconfig` variables that every scheduler has.
    image.cached(&format!("boot/config-{}", kernel.release), &kernel.config)?;
    let modules = Modules::of(&kernel.tree, &kernel.release)?;
    modules.add(&mut image, &KVM, &["virtio_pci", "virtio_console"])?;

    // QEMU has libraries of its own: those of this machine's programs may be of another release.
    let program = parts.qemu.get("usr/bin/qemu-system-x86_64")?;
    let library = |name: &str| parts.qemu.find(&format!("usr/lib/x86_64-linux-gnu/{name}"));
    let (_, libraries) = elf::closure(&program, library)?;
    image.cached(&format!("{QEMU}/bin/qemu-system-x86_64"), &program)?;
    for (name, path) in libraries {
        image.cached(&format!("{QEMU}/lib/{name}"), &path)?;
    }
    let loader = "ld-linux-x86-64.so.2";
    image.cached(&format!("{QEMU}/lib/{loader}"), &library(loader).unwrap_or_default())?;
    for (path, name) in FIRMWARE {
        image.cached(&format!("{QEMU}/share/{name}"), &parts.qemu.get(path)?)?;
    }
    for (kernel, guest) in guests {
        let vmlinuz = &parts.kernel(*kernel)?.vmlinuz;
        image.cached(&format!("{GUESTS}/{kernel}/vmlinuz"), vmlinuz)?;
        image.cached(&format!("{GUESTS}/{kernel}/initrd"), guest)?;
    }

    for file in list(local.dist)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != AGENT {
            add_program(&mut image, &file, &format!("{DIST}/{name}"))?;
        }
    }
    for (here, there) in local.extra {
        add_program(&mut image, here, there)?;
    }
    Ok(image)
}

/// A program of this machine with the libraries it needs.
fn add_program(image: &mut Manifest, here: &Path, there: &str) -> Result<()> {
    image.local(there, here)?;
    let (loader, libraries) = elf::closure(here, elf::find_on_machine)?;
    if let Some(loader) = loader {
        let name = loader.rsplit('/').next().unwrap_or_default();
        image.local(&format!("usr/lib64/{name}"), Path::new(&loader))?;
    }
    for (name, path) in libraries {
        image.local(&format!("usr/lib/x86_64-linux-gnu/{name}"), &path)?;
    }
    Ok(())
}

/// Removes images that were not used for a while.
pub(crate) fn tidy(directory: &Path) {
    const KEEP: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);
    for file in list(directory).unwrap_or_default() {
        let used = file.metadata().and_then(|m| m.modified());
        if used.is_ok_and(|t| t.elapsed().is_ok_and(|age| age > KEEP)) {
            let _ = fs::remove_file(file);
        }
    }
}
