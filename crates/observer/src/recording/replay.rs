// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::fs::{self, File};
use std::io::ErrorKind::NotFound;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::partial::{directory, partial_file};
use super::sources::{Input, Source, sources};
use super::summary::Summary;
use super::{About, Recording, html, perfetto};
use crate::error::ObserverError;
use crate::histogram::time;
use crate::output::{count, show};
use crate::report::{CSV_COLUMNS, Format, Report, csv_line, when};
use crate::sample::Sample;
use crate::select::Selection;

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The recordings.
    pub inputs: Vec<Input>,
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
    /// Prints recordings, and writes the requested files.
    pub fn run(&self) -> Result<(), ObserverError> {
        show(&mut io::stdout(), &self.text()?)
    }

    /// What is printed. Writes the requested files, too.
    fn text(&self) -> Result<String, ObserverError> {
        self.check_outputs(self.inputs.iter().map(|input| input.path.as_path()))?;
        let hosts = sources(&self.inputs)?;
        self.check_outputs(hosts.values().flatten().map(|source| source.path.as_path()))?;
        let draws = self.html.is_some() || self.perfetto.is_some() || self.svg.is_some();
        if draws && hosts.len() > 1 {
            let name = |of: &Vec<Source>| of[0].about.host_name().to_owned();
            return Err(ObserverError::SeveralHosts { hosts: hosts.values().map(name).collect() });
        }
        let mut of_hosts = Vec::new();
        for sources in hosts.values() {
            let (mut summary, mut notes) = (Summary::default(), Vec::new());
            for source in sources {
                let Some(mut recording) = source.read()? else { continue };
                summary.add(&mut recording);
                if draws {
                    notes.append(&mut recording.notes);
                }
            }
            of_hosts.push((summary.sample(), summary, notes));
        }
        self.selection.check(of_hosts.iter().map(|(sample, ..)| sample), "in the recording")?;

        let mut text = match self.format {
            Format::Text | Format::Json => String::new(),
            Format::Csv => csv_line(CSV_COLUMNS),
        };
        for (at, (mut sample, summary, notes)) in of_hosts.into_iter().enumerate() {
            self.selection.apply(&mut sample);
            let mut recording = Recording { about: summary.about().clone(), notes };
            recording.keep(&sample);
            self.draw(&recording, &sample)?;
            if self.format == Format::Text {
                text.push_str(if at > 0 { "\n" } else { "" });
                text.push_str(&headline(&recording.about, &summary));
            }
            let report = Report {
                format: self.format,
                vcpus: self.vcpus,
                histogram: self.histogram,
                frequency_hz: recording.about.frequency_hz,
                ..Report::default()
            };
            let written = |source| ObserverError::Io { action: "write the report", source };
            text.push_str(&report.render(&sample).map_err(written)?);
        }
        Ok(text)
    }

    /// Writes the requested files.
    fn draw(&self, recording: &Recording, sample: &Sample) -> Result<(), ObserverError> {
        if let Some(path) = &self.perfetto {
            write_file(path, "write the trace", |out| perfetto::write(recording, out))?;
        }
        if let Some(path) = &self.html {
            let page = html::render(recording, sample);
            write_file(path, "write the report", |out| out.write_all(page.as_bytes()))?;
        }
        if let Some(path) = &self.svg {
            let picture = html::picture(recording);
            write_file(path, "write the picture", |out| out.write_all(picture.as_bytes()))?;
        }
        Ok(())
    }

    /// No output may overwrite a recording or another output.
    fn check_outputs<'a>(
        &'a self,
        recordings: impl Iterator<Item = &'a Path>,
    ) -> Result<(), ObserverError> {
        let mut taken: Vec<(&Path, _)> = recordings.map(|path| (path, "the recording")).collect();
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
fn headline(about: &About, summary: &Summary) -> String {
    let (files, events) = summary.counted();
    let in_files =
        if files > 1 { format!(" in {}", count(files as u64, "file")) } else { "".into() };
    format!(
        "{}, {} from {} on, {} of {}{in_files}\n",
        about.host_name(),
        time(summary.recorded_ns()),
        when(about.begin_ns as u64),
        count(events, "event"),
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
pub(super) fn write_file(
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

    use super::super::read::read;
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
            inputs: vec![Input::all_of(in_dir("a"))],
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
        assert!(!in_dir("new").exists() && read(&in_dir("a")).unwrap() == recording);
        replay(Some("new"), Some("other")).check_outputs([].into_iter()).unwrap();
        replay(Some("/dev/null"), Some("/dev/null")).check_outputs([].into_iter()).unwrap();
        replay(Some("link"), Some("other")).check_outputs([].into_iter()).unwrap();
    }

    #[test]
    fn each_host_has_a_table_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.html");
        for (file, host) in [("1.parquet", "b"), ("2.parquet", "a")] {
            let mut recording = recording();
            recording.about.host = host.into();
            let mut writer = writer(&dir.path().join(file), SYNC);
            writer.add(&recording.notes, &recording.about);
            writer.finish(&recording.about).unwrap();
        }
        let mut replay = Replay {
            inputs: vec![Input::all_of(dir.path())],
            format: Format::Text,
            selection: Selection::default(),
            vcpus: false,
            histogram: false,
            html: None,
            perfetto: None,
            svg: None,
        };
        let table = replay.text().unwrap();
        let heads: Vec<&str> = table.lines().filter(|line| line.contains(" events of ")).collect();
        assert_eq!(
            heads,
            [
                "a, 1.0s from 2023-11-14T22:13:20Z on, 8 events of 1 VM",
                "b, 1.0s from 2023-11-14T22:13:20Z on, 8 events of 1 VM"
            ]
        );
        assert_eq!(table.matches("\nweb <1> ").count(), 2, "{table}");
        replay.format = Format::Json;
        let lines = replay.text().unwrap();
        let host = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["host"].take();
        assert_eq!(lines.lines().map(host).collect::<Vec<_>>(), ["a", "b"]);
        replay.format = Format::Csv;
        let lines = replay.text().unwrap();
        let host = |line: &str| line.rsplit_once(',').unwrap().1.to_owned();
        assert_eq!(lines.lines().map(host).collect::<Vec<_>>(), ["host", "a", "b"]);
        replay.html = Some(page.clone());
        let error = replay.text().unwrap_err();
        assert!(error.is_wrong_usage() && !page.exists(), "{error}");
        assert!(error.to_string().contains("of a, b; name those of one"), "{error}");
        replay.inputs = vec![Input::all_of(dir.path().join("2.parquet"))];
        replay.text().unwrap();
        assert!(page.exists());
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
