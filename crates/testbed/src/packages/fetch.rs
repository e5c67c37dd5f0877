// SPDX-License-Identifier: GPL-2.0-or-later
//! Downloading and unpacking. A file under its final name in the cache is whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::apt::Root;
use super::{Package, Source, Tree, Unpacked};
use crate::error::{Error, Result};
use crate::progress::{Progress, megabytes};
use crate::run;

/// Longest all downloads together may take: a slow line is no error, and apt notices a dead one.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(3600);
/// Longest one archive may take to unpack.
const UNPACK_LIMIT: Duration = Duration::from_secs(300);
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// A download: path in the archive, expected size and sum, destination.
struct Item<'a> {
    label: &'a str,
    filename: &'a str,
    sha256: &'a str,
    bytes: u64,
    file: PathBuf,
    unpacked: PathBuf,
}

impl<'a> Item<'a> {
    fn new(cache: &Path, label: &'a str, filename: &'a str, sha256: &'a str, bytes: u64) -> Self {
        let file = cache.join("archives").join(format!("{sha256}-{label}"));
        let unpacked = cache.join("unpacked").join(sha256);
        Item { label, filename, sha256, bytes, file, unpacked }
    }
}

pub(super) fn packages(
    apt: &Root,
    cache: &Path,
    packages: &[Package],
    progress: &Progress,
) -> Result<Tree> {
    let _lock = lock(cache, progress)?;
    let mut tree = Tree::default();
    let items: Vec<_> = packages
        .iter()
        .map(|p| Item::new(cache, &p.name, &p.filename, &p.sha256, p.bytes))
        .collect();
    obtain(apt, &items, progress, |file, into| {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(file).arg(into);
        command
    })?;
    for package in packages {
        let root = cache.join("unpacked").join(&package.sha256);
        tree.packages.push(Unpacked { package: package.clone(), root });
    }
    Ok(tree)
}

pub(super) fn source(
    apt: &Root,
    cache: &Path,
    source: &Source,
    progress: &Progress,
) -> Result<PathBuf> {
    let _lock = lock(cache, progress)?;
    let item = Item::new(cache, &source.name, &source.filename, &source.sha256, source.bytes);
    let unpacked = item.unpacked.clone();
    obtain(apt, &[item], progress, |file, into| {
        let mut command = Command::new("tar");
        command.args(["--extract", "--strip-components=1", "--file"]).arg(file);
        command.arg("--directory").arg(into);
        command
    })?;
    Ok(unpacked)
}

/// One process at a time works on the cache; the others find its files.
pub(super) fn lock(cache: &Path, progress: &Progress) -> Result<File> {
    for sub in ["archives", "unpacked"] {
        let path = cache.join(sub);
        fs::create_dir_all(&path).map_err(Error::io("creating", &path))?;
    }
    let path = cache.join("lock");
    let file = File::create(&path).map_err(Error::io("creating", &path))?;
    if file.try_lock().is_err() {
        progress.note("another process is using the package cache; waiting for it");
        file.lock().map_err(Error::io("locking", &path))?;
    }
    Ok(file)
}

fn obtain(
    apt: &Root,
    items: &[Item<'_>],
    progress: &Progress,
    unpack: impl Fn(&Path, &Path) -> Command + Sync,
) -> Result<()> {
    let lacking: Vec<_> = items.iter().filter(|i| !i.unpacked.exists()).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let absent: Vec<_> = lacking.iter().copied().filter(|i| !is_whole(i)).collect();
    if !absent.is_empty() {
        download(apt, &absent, progress)?;
    }
    let step = progress.step(format!("Unpacking {} packages", lacking.len()));
    let step = Mutex::new((step, 0));
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = lacking.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(e) = place(item, &unpack) {
                        *failure.lock().expect("no holder of this lock panics") = Some(e);
                        next.store(lacking.len(), Ordering::Relaxed);
                        return;
                    }
                    let mut guard = step.lock().expect("no holder of this lock panics");
                    guard.1 += 1;
                    let text = format!("{} of {}", guard.1, lacking.len());
                    guard.0.at(&text);
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().expect("no holder of this lock panics") {
        return Err(error);
    }
    step.into_inner().expect("no holder of this lock panics").0.done("");
    Ok(())
}

fn is_whole(item: &Item<'_>) -> bool {
    item.file.metadata().is_ok_and(|m| m.len() == item.bytes)
}

/// apt's own downloader, with its mirrors, proxies and credentials. It checks the sums, and
/// continues a file that an earlier run left half done.
fn download(apt: &Root, items: &[&Item<'_>], progress: &Progress) -> Result<()> {
    let total: u64 = items.iter().map(|i| i.bytes).sum();
    let name = match items {
        [item] => item.label.to_owned(),
        _ => format!("{} packages", items.len()),
    };
    let mut step = progress.step(format!("Downloading {name} ({})", megabytes(total)));
    let mirror = apt.mirror()?;
    let mirror = mirror.trim_end_matches('/');
    let mut command = apt.command(HELPER);
    command.arg("download-file");
    for item in items {
        command.arg(format!("{mirror}/{}", item.filename)).arg(&item.file);
        command.arg(format!("SHA256:{}", item.sha256));
    }
    let done = || items.iter().filter_map(|i| i.file.metadata().ok()).map(|m| m.len()).sum();
    let result = run::with_limit(&mut command, DOWNLOAD_LIMIT, || step.bytes(done(), total));
    result.map_err(|e| match e {
        Error::Interrupted => e,
        e => Error::Download(format!(
            "{name} could not be downloaded; run it again to continue where it stopped ({e})"
        )),
    })?;
    step.done("");
    Ok(())
}

/// Unpacks beside the final place, then renames: half a package is never seen.
fn place(item: &Item<'_>, unpack: impl Fn(&Path, &Path) -> Command) -> Result<()> {
    let mut partial = OsString::from(&item.unpacked);
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(Error::io("removing", &partial))?;
    }
    fs::create_dir_all(&partial).map_err(Error::io("creating", &partial))?;
    let mut command = unpack(&item.file, &partial);
    run::with_limit(&mut command, UNPACK_LIMIT, || {}).inspect_err(|_| {
        // It is not the expected file: the next run fetches it again.
        let _ = fs::remove_file(&item.file);
    })?;
    fs::rename(&partial, &item.unpacked).map_err(Error::io("renaming", &partial))?;
    fs::remove_file(&item.file).map_err(Error::io("removing", &item.file))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::packages::{Suite, package_of};

    /// A mirror that is a directory, with one package built by dpkg-deb.
    struct Mirror {
        dir: tempfile::TempDir,
        apt: Root,
    }

    impl Mirror {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let apt = Root::open(&dir.path().join("apt")).unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::create_dir_all(at("build/DEBIAN")).unwrap();
            fs::create_dir_all(at("build/usr/share")).unwrap();
            fs::create_dir_all(at("mirror/pool")).unwrap();
            fs::write(at("build/usr/share/greeting"), "hello").unwrap();
            let control =
                "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b>\nDescription: x\n";
            fs::write(at("build/DEBIAN/control"), control).unwrap();
            let mut build = Command::new("dpkg-deb");
            build.arg("-b").arg(at("build")).arg(at("mirror/pool/p.deb"));
            run::output(&mut build).unwrap();
            fs::write(at("apt/mirror"), format!("copy:{}", at("mirror").display())).unwrap();
            fs::write(at("apt/apt.conf"), "").unwrap();
            Mirror { dir, apt }
        }

        fn cache(&self) -> PathBuf {
            self.dir.path().join("cache")
        }

        fn package(&self) -> Package {
            let deb = fs::read(self.dir.path().join("mirror/pool/p.deb")).unwrap();
            Package {
                name: "p".into(),
                version: "1".into(),
                suite: Suite::Trixie,
                sha256: crate::images::hex(&Sha256::digest(&deb)),
                bytes: deb.len() as u64,
                filename: "pool/p.deb".into(),
            }
        }

        fn fetch(&self, package: &Package) -> Result<Tree> {
            let list = std::slice::from_ref(package);
            packages(&self.apt, &self.cache(), list, &Progress::silent())
        }
    }

    #[test]
    fn unpacks_once_and_needs_no_mirror_after_that() {
        let mirror = Mirror::new();
        let package = mirror.package();
        let tree = mirror.fetch(&package).unwrap();
        assert_eq!(fs::read(tree.get("/usr/share/greeting").unwrap()).unwrap(), b"hello");
        assert_eq!(fs::read_dir(mirror.cache().join("archives")).unwrap().count(), 0);
        fs::remove_dir_all(mirror.dir.path().join("mirror")).unwrap();
        assert!(mirror.fetch(&package).unwrap().find("usr/share/greeting").is_some());
        let error = tree.get("usr/bin/nosuch").unwrap_err().to_string();
        assert!(error.contains('p') && error.contains("usr/bin/nosuch"), "{error}");
    }

    #[test]
    fn a_package_that_was_removed_is_fetched_again() {
        let mirror = Mirror::new();
        let package = mirror.package();
        let greeting = mirror.fetch(&package).unwrap().get("usr/share/greeting").unwrap();
        fs::write(&greeting, "damaged").unwrap();
        fs::remove_dir_all(package_of(&greeting)).unwrap();
        mirror.fetch(&package).unwrap();
        assert_eq!(fs::read(greeting).unwrap(), b"hello");
    }

    #[test]
    fn goes_on_after_being_stopped_anywhere() {
        let mirror = Mirror::new();
        let package = mirror.package();
        let item = Item::new(&mirror.cache(), "p", "", &package.sha256, package.bytes);
        let half = PathBuf::from(format!("{}.partial", item.unpacked.display()));
        fs::create_dir_all(half.join("usr/share/leftover")).unwrap();
        fs::create_dir_all(item.file.parent().unwrap()).unwrap();
        let deb = fs::read(mirror.dir.path().join("mirror/pool/p.deb")).unwrap();
        fs::write(&item.file, &deb[..deb.len() / 2]).unwrap();
        let tree = mirror.fetch(&package).unwrap();
        assert!(tree.find("usr/share/greeting").is_some());
        assert!(tree.find("usr/share/leftover").is_none() && !half.exists());
    }

    #[test]
    fn takes_nothing_that_is_not_what_the_list_says() {
        let mirror = Mirror::new();
        let package = Package { sha256: "00".repeat(32), ..mirror.package() };
        let error = mirror.fetch(&package).unwrap_err();
        assert!(matches!(error, Error::Download(_)), "{error}");
        assert!(!mirror.cache().join("unpacked").join(&package.sha256).exists());
    }
}
