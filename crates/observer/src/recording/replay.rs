// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::fs::{self, File};
use std::io::ErrorKind::NotFound;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::partial::{directory, partial_file};
use super::{Recording, html, perfetto, read};
use crate::error::ObserverError;
use crate::histogram::time;
use crate::output::{count, show};
use crate::report::{CSV_COLUMNS, Format, Report, csv_line, when};
use crate::select::Selection;

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The recording.
    pub path: PathBuf,
    /// The form of what is printed.
    pub format: Format,
    /// The VMs that are shown, in each output.
    pub selection: Selection,
    /// Also print a line for each vCPU.
    pub vcpus: bool,
    /// Also print histograms of the off-CPU time of lock holders.
    pub histogram: bool,
    /// Write a Perfetto trace to this file.
    pub perfetto: Option<PathBuf>,
    /// Write an HTML report to this file.
    pub html: Option<PathBuf>,
    /// Write a picture of the worst moment to this file.
    pub svg: Option<PathBuf>,
}

impl Replay {
    /// Prints a recording, and writes the requested files.
    pub fn run(&self) -> Result<(), ObserverError> {
        self.check_outputs()?;
        let mut recording = read::read(&self.path)?;
        let sample = recording.select(&self.selection)?;
        if let Some(path) = &self.perfetto {
            write_file(path, "write the trace", |out| perfetto::write(&recording, out))?;
        }
        if let Some(path) = &self.html {
            let page = html::render(&recording, &sample);
            write_file(path, "write the report", |out| out.write_all(page.as_bytes()))?;
        }
        if let Some(path) = &self.svg {
            let picture = html::picture(&recording);
            write_file(path, "write the picture", |out| out.write_all(picture.as_bytes()))?;
        }
        let report = Report {
            format: self.format,
            vcpus: self.vcpus,
            histogram: self.histogram,
            frequency_hz: recording.about.frequency_hz,
            ..Report::default()
        };
        let head = match self.format {
            Format::Text => headline(&recording),
            Format::Json => String::new(),
            Format::Csv => csv_line(CSV_COLUMNS),
        };
        let text = report.render(&sample).map(|text| head + &text);
        let written = |source| ObserverError::Io { action: "write the report", source };
        show(&mut io::stdout(), &text.map_err(written)?)
    }

    /// No output may overwrite the recording or another output.
    fn check_outputs(&self) -> Result<(), ObserverError> {
        let mut taken = vec![(self.path.as_path(), "the recording")];
        for (action, output) in [
            ("write the report", &self.html),
            ("write the trace", &self.perfetto),
            ("write the picture", &self.svg),
        ] {
            let Some(output) = output else { continue };
            if let Some((_, what)) = taken.iter().find(|(other, _)| is_same_file(output, other)) {
                return Err(ObserverError::SameFile { action, path: output.to_owned(), what });
            }
            taken.push((output, "another output, too"));
        }
        Ok(())
    }
}

/// The heading of the table.
fn headline(recording: &Recording) -> String {
    let about = &recording.about;
    format!(
        "{}, {} from {} on, {} of {}\n",
        about.host_name(),
        time((about.end_ns - about.begin_ns) as u64),
        when(about.begin_ns as u64),
        count(recording.notes.len() as u64, "event"),
        count(about.vms.len() as u64, "VM"),
    )
}

/// Do both names mean the same file, or would they once it exists? Devices may be written to twice.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => file_behind(a).is_some_and(|a| file_behind(b) == Some(a)),
        _ => false,
    }
}

/// The file of this name, existing or not: links are followed, also to files that do not exist yet.
/// None for devices, pipes, and open files of a process (`/dev/stdout`).
fn file_behind(path: &Path) -> Option<PathBuf> {
    /// As many links as the kernel follows.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let dir = directory(&path).canonicalize().ok()?;
        if dir.starts_with("/proc") {
            return None;
        }
        path = dir.join(path.file_name()?);
        match fs::read_link(&path) {
            Ok(target) => path = dir.join(target),
            Err(_) => {
                let is_file = fs::metadata(&path).map(|there| there.is_file());
                return is_file.unwrap_or_else(|e| e.kind() == NotFound).then_some(path);
            }
        }
    }
    None
}

/// Writes a file that gets its name only when it is complete, so a failed write does not destroy an
/// older file of that name. Devices and pipes are written to directly.
fn write_file(
    path: &Path,
    action: &'static str,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), ObserverError> {
    let failed = |source: io::Error| ObserverError::File {
        action,
        path: path.to_owned(),
        source: source.into(),
    };
    let fill = |file: &File| {
        let mut out = BufWriter::new(file);
        write(&mut out).and_then(|()| out.flush())
    };
    let Some(target) = file_behind(path) else {
        return File::create(path).and_then(|file| fill(&file)).map_err(failed);
    };
    let dir = target.parent().unwrap_or(Path::new("/"));
    let partial = partial_file(dir).map_err(failed)?;
    fill(partial.as_file()).map_err(failed)?;
    // Users that could not read the old file cannot read the new one.
    if let Ok(old) = fs::metadata(&target) {
        partial.as_file().set_permissions(old.permissions()).map_err(failed)?;
    }
    partial.persist(&target).map(drop).map_err(|error| failed(error.error))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::tests::{SYNC, recording, writer};
    use super::*;

    #[test]
    fn no_output_overwrites_the_recording_or_another_output() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        let recording = recording();
        let mut writer = writer(&in_dir("a"), SYNC);
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();
        fs::hard_link(in_dir("a"), in_dir("hard")).unwrap();
        symlink("a", in_dir("soft")).unwrap();
        symlink("link2", in_dir("link")).unwrap();
        symlink("new", in_dir("link2")).unwrap();
        let replay = |html: Option<&str>, perfetto: Option<&str>| Replay {
            path: in_dir("a"),
            format: Format::Text,
            selection: Selection::default(),
            vcpus: false,
            histogram: false,
            html: html.map(in_dir),
            perfetto: perfetto.map(in_dir),
            svg: Some(in_dir("picture")),
        };
        let again = format!("../{}/new", dir.path().file_name().unwrap().to_str().unwrap());
        for (html, perfetto) in [
            (Some("a"), None),
            (Some("hard"), None),
            (None, Some("soft")),
            (Some("new"), Some("new")),
            (Some("new"), Some("./new")),
            (Some("new"), Some(again.as_str())),
            (Some("new"), Some("link")),
            (Some("link"), Some("link2")),
            (Some("picture"), None),
            (None, Some("picture")),
        ] {
            let error = replay(html, perfetto).run().unwrap_err();
            assert!(matches!(error, ObserverError::SameFile { .. }), "{error}");
        }
        assert!(!in_dir("new").exists() && read::read(&in_dir("a")).unwrap() == recording);
        replay(Some("new"), Some("other")).check_outputs().unwrap();
        replay(Some("/dev/null"), Some("/dev/null")).check_outputs().unwrap();
        replay(Some("link"), Some("other")).check_outputs().unwrap();
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        fs::write(in_dir("old"), "old").unwrap();
        fs::set_permissions(in_dir("old"), Permissions::from_mode(0o640)).unwrap();
        symlink("old", in_dir("link")).unwrap();
        symlink("none", in_dir("dangling")).unwrap();
        let write = |name, text: &str, result: fn() -> io::Result<()>| {
            write_file(&in_dir(name), "write", |out| {
                out.write_all(text.as_bytes())?;
                assert!(in_dir("old").metadata().unwrap().len() == 3, "it is not touched yet");
                result()
            })
        };
        write("old", "half", || Err(NotFound.into())).unwrap_err();
        assert_eq!(fs::read(in_dir("old")).unwrap(), b"old");
        write("dangling", "half", || Err(NotFound.into())).unwrap_err();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3, "nothing is left");
        write("link", "new", || Ok(())).unwrap();
        assert_eq!(fs::read(in_dir("old")).unwrap(), b"new");
        assert_eq!(fs::metadata(in_dir("old")).unwrap().mode() & 0o777, 0o640);
        write("dangling", "more", || Ok(())).unwrap();
        assert_eq!(fs::read(in_dir("none")).unwrap(), b"more");
        assert!(in_dir("link").is_symlink() && in_dir("dangling").is_symlink());
    }

    #[test]
    fn pipes_devices_and_open_files_are_written_to_as_they_are() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        write_file(Path::new("/dev/null"), "write", |out| out.write_all(b"x")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let full = write_file(Path::new("/dev/full"), "write", |out| out.write_all(b"x"));
        assert!(matches!(full, Err(ObserverError::File { .. })));

        let (mut reader, writer) = io::pipe().unwrap();
        let fd = |fd: i32| PathBuf::from(format!("/dev/fd/{fd}"));
        write_file(&fd(writer.as_raw_fd()), "write", |out| out.write_all(b"x")).unwrap();
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "x");

        // An open file stays the same file.
        let open = tempfile::NamedTempFile::new().unwrap();
        write_file(&fd(open.as_file().as_raw_fd()), "write", |out| out.write_all(b"x")).unwrap();
        assert_eq!(open.as_file().metadata().unwrap().len(), 1);
    }
}
