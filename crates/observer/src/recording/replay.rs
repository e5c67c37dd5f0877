// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Recording, html, perfetto, read};
use crate::error::ObserverError;
use crate::histogram::time;
use crate::output::{count, show};
use crate::report::{Report, when};
use crate::serve::Tagged;

/// What is to be made of a recording.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The recording.
    pub path: PathBuf,
    /// Print a JSON object instead of a table.
    pub json: bool,
    /// Print a line for each vCPU, too.
    pub vcpus: bool,
    /// Print a histogram of the absences of lock holders, too.
    pub histogram: bool,
    /// Write a Perfetto trace there.
    pub perfetto: Option<PathBuf>,
    /// Write an HTML report there.
    pub html: Option<PathBuf>,
}

impl Replay {
    /// Prints what was recorded, and writes what was asked for.
    pub fn run(&self) -> Result<(), ObserverError> {
        self.check_outputs()?;
        let recording = read::read(&self.path)?;
        if let Some(path) = &self.perfetto {
            write_file(path, "write the trace", |out| perfetto::write(&recording, out))?;
        }
        if let Some(path) = &self.html {
            let page = html::render(&recording);
            write_file(path, "write the report", |out| out.write_all(page.as_bytes()))?;
        }
        let sample = recording.summary();
        let text = if self.json {
            let line = Tagged { schema: "holdfast.report/1", sample: &sample };
            serde_json::to_string(&line).map(|line| line + "\n").map_err(io::Error::from)
        } else {
            let report = Report {
                interval: Duration::ZERO,
                count: None,
                json: false,
                vcpus: self.vcpus,
                histogram: self.histogram,
                frequency_hz: recording.about.frequency_hz,
            };
            Ok(headline(&recording) + &report.table(&sample))
        };
        let written = |source| ObserverError::Io { action: "write the report", source };
        show(&mut io::stdout(), &text.map_err(written)?).map(|_| ())
    }

    /// Nothing is to be written over the recording, nor one output over another.
    fn check_outputs(&self) -> Result<(), ObserverError> {
        let (html, perfetto) = (self.html.as_deref(), self.perfetto.as_deref());
        for (action, output, other, what) in [
            ("write the report", html, Some(self.path.as_path()), "the recording"),
            ("write the trace", perfetto, Some(self.path.as_path()), "the recording"),
            ("write the trace", perfetto, html, "the report, too"),
        ] {
            let (Some(output), Some(other)) = (output, other) else { continue };
            if is_same_file(output, other) {
                return Err(ObserverError::File {
                    action,
                    path: output.to_owned(),
                    source: format!("that is {what}; name another file").into(),
                });
            }
        }
        Ok(())
    }
}

/// What the table below it is about.
fn headline(recording: &Recording) -> String {
    let about = &recording.about;
    format!(
        "{}, {} from {} on, {} of {}\n",
        about.host,
        time((about.end_ns - about.begin_ns) as u64),
        when(about.begin_ns as u64),
        count(recording.notes.len() as u64, "event"),
        count(about.vms.len() as u64, "VM"),
    )
}

/// Do both names mean one file, or would they once it is there? Devices may be written to twice.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => {
            let whole = |path: &Path| {
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                Some(dir.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
            };
            whole(a).is_some_and(|a| whole(b) == Some(a))
        }
        _ => false,
    }
}

fn write_file(
    path: &Path,
    action: &'static str,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), ObserverError> {
    let failed = |source: io::Error| ObserverError::File {
        action,
        path: path.to_owned(),
        source: source.into(),
    };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    write(&mut out).and_then(|()| out.flush()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::tests::recording;
    use super::super::write::Writer;
    use super::*;

    #[test]
    fn nothing_is_written_over_the_recording_or_another_output() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        let recording = recording();
        let mut writer = Writer::create(&in_dir("a")).unwrap();
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();
        fs::hard_link(in_dir("a"), in_dir("hard")).unwrap();
        std::os::unix::fs::symlink("a", in_dir("soft")).unwrap();
        let replay = |html: Option<&str>, perfetto: Option<&str>| Replay {
            path: in_dir("a"),
            json: false,
            vcpus: false,
            histogram: false,
            html: html.map(in_dir),
            perfetto: perfetto.map(in_dir),
        };
        let again = format!("../{}/new", dir.path().file_name().unwrap().to_str().unwrap());
        for (html, perfetto) in [
            (Some("a"), None),
            (Some("hard"), None),
            (None, Some("soft")),
            (Some("new"), Some("new")),
            (Some("new"), Some("./new")),
            (Some("new"), Some(again.as_str())),
        ] {
            let error = replay(html, perfetto).run().unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains("name another file"), "{error}: {source}");
        }
        assert!(!in_dir("new").exists() && read::read(&in_dir("a")).unwrap() == recording);
        replay(Some("new"), Some("other")).check_outputs().unwrap();
        replay(Some("/dev/null"), Some("/dev/null")).check_outputs().unwrap();
    }
}
