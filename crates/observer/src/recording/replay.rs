// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast replay`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{html, perfetto, read};
use crate::error::ObserverError;
use crate::report::Report;
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
    /// Write a Perfetto trace there.
    pub perfetto: Option<PathBuf>,
    /// Write an HTML report there.
    pub html: Option<PathBuf>,
}

impl Replay {
    /// Prints what was recorded, and writes what was asked for.
    pub fn run(&self) -> Result<(), ObserverError> {
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
                histogram: true,
                frequency_hz: recording.about.frequency_hz,
            };
            Ok(report.table(&sample))
        };
        let written = |source| ObserverError::Io { action: "write the report", source };
        match io::stdout().write_all(text.map_err(written)?.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(written),
        }
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
