// SPDX-License-Identifier: GPL-2.0-or-later
//! Files in the making, and what processes that were killed have left of theirs.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tempfile::NamedTempFile;

use super::checkpoint::{Kept, kept};
use crate::error::ObserverError;
use crate::output::count;

/// Age from which a partial file that is not locked was left by a process that was killed: others
/// lock theirs as soon as they have made it.
const ABANDONED: Duration = Duration::from_secs(60);

/// Beginning and end of the names of partial files.
const PARTIAL: (&str, &str) = (".holdfast-", ".partial");

/// Is this the name of a partial file?
pub(super) fn is_partial(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(PARTIAL.0) && name.ends_with(PARTIAL.1)
}

/// A hidden file for something that gets its name once it is complete. Removes what processes that
/// were killed have left of theirs, but for recordings.
pub(super) fn partial_file(dir: &Path) -> io::Result<NamedTempFile> {
    remove_abandoned(dir, ABANDONED);
    let partial = tempfile::Builder::new()
        .prefix(PARTIAL.0)
        .suffix(PARTIAL.1)
        // Mode of a new file, reduced by the umask.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)?;
    // Where files cannot be locked, none is removed either.
    let _ = partial.as_file().lock();
    Ok(partial)
}

/// The file's directory.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A renamed or new file is there after a loss of power only once its directory is written.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // A file system that has no such call has nothing to wait for.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Partial files of this user that no process has locked. They are locked while they are looked at.
fn unlocked(dir: &Path) -> impl Iterator<Item = (PathBuf, File)> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| is_partial(path)).filter_map(|path| {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).ok()?);
        let about = file.metadata().ok()?;
        let is_mine = about.is_file() && about.uid() == rustix::process::geteuid().as_raw();
        // Since it was opened its process may have ended, and given it its name.
        let is_left = is_mine && file.try_lock().is_ok() && path.exists();
        is_left.then_some((path, file))
    })
}

/// Removes partial files of this user that are as old as this, that no process has locked, and that
/// have nothing of a recording.
fn remove_abandoned(dir: &Path, age: Duration) {
    for (path, file) in unlocked(dir) {
        let modified = file.metadata().and_then(|about| about.modified()).ok();
        let is_old = modified.and_then(|at| at.elapsed().ok()).is_some_and(|old| old >= age);
        if is_old && matches!(kept(&file, 1), Ok(None)) {
            // It may be gone already.
            let _ = fs::remove_file(path);
        }
    }
}

/// A recording that was cut short, and has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recovered {
    pub(super) path: PathBuf,
    pub(super) events: u64,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, events) = (self.path.display(), count(self.events, "event"));
        write!(f, "A recording that was cut short is in {path}: {events}.")
    }
}

/// Ends the recordings in this directory whose processes were killed, and gives them names.
pub(super) fn recover(dir: &Path) -> Vec<Result<Recovered, ObserverError>> {
    let left = unlocked(dir).filter_map(|(path, file)| match kept(&file, usize::MAX) {
        Ok(None) => None,
        Ok(Some(kept)) => Some(complete(&path, &file, &kept)),
        Err(source) => Some(Err((path, source))),
    });
    let failed = |(path, source): (PathBuf, io::Error)| ObserverError::File {
        action: "recover the recording in",
        path,
        source: source.into(),
    };
    left.map(|outcome| outcome.map_err(failed)).collect()
}

fn complete(path: &Path, file: &File, kept: &Kept) -> Result<Recovered, (PathBuf, io::Error)> {
    let completed = || {
        file.set_len(kept.end)?;
        file.write_all_at(&kept.footer, kept.end)?;
        file.sync_all()?;
        let name = free_name(directory(path), &kept.name);
        fs::rename(path, &name)?;
        sync_directory(directory(path))?;
        Ok(name)
    };
    match completed() {
        Ok(path) => Ok(Recovered { path, events: kept.events }),
        Err(error) => Err((path.to_owned(), error)),
    }
}

/// A name like `web.recovered.parquet` that no file has.
fn free_name(dir: &Path, name: &str) -> PathBuf {
    let name = Path::new(name);
    let stem = name.file_stem().unwrap_or_default().to_string_lossy();
    let extension = name.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    let numbered = |number: u32| match number {
        1 => dir.join(format!("{stem}.recovered{extension}")),
        _ => dir.join(format!("{stem}.recovered-{number}{extension}")),
    };
    let names = (1..).map(numbered);
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    names.into_iter().find(is_free).expect("there are more names than files")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn what_killed_processes_have_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        for name in [".holdfast-killed.partial", ".holdfast-notes", "x.partial"] {
            fs::write(in_dir(name), "x").unwrap();
        }
        symlink("x.partial", in_dir(".holdfast-link.partial")).unwrap();
        fs::create_dir(in_dir(".holdfast-dir.partial")).unwrap();
        let running = partial_file(dir.path()).unwrap();
        assert!(in_dir(".holdfast-killed.partial").exists(), "it may be new and not locked yet");
        remove_abandoned(dir.path(), Duration::ZERO);
        assert!(!in_dir(".holdfast-killed.partial").exists());
        assert!(running.path().exists(), "it is locked");
        assert_eq!(files(dir.path()), 5);
        drop(running);
        assert_eq!(files(dir.path()), 4);
    }

    #[test]
    fn a_recovered_recording_takes_no_name_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let free = |name| free_name(dir.path(), name).file_name().unwrap().to_owned();
        assert_eq!(free("web.parquet"), "web.recovered.parquet");
        fs::write(dir.path().join("web.recovered.parquet"), "").unwrap();
        assert_eq!(free("web.parquet"), "web.recovered-2.parquet");
        assert_eq!(free("../../web"), "web.recovered");
    }
}
