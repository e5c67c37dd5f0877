// SPDX-License-Identifier: GPL-2.0-or-later
//! Files and directories of the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use holdfast_agent::protocol::{Failure, MAX_LINE, Reply};

fn failed(what: &str, path: &str) -> impl Fn(std::io::Error) -> Failure {
    move |e| Failure::new(format!("{what} {path}: {e}"))
}

pub(crate) fn read(path: &str, max_bytes: u64) -> Result<Reply, Failure> {
    // Leave room for base64 and the rest of the answer.
    let limit = max_bytes.min(MAX_LINE as u64 / 2);
    let mut data = Vec::new();
    let file = File::open(path).map_err(failed("opening", path))?;
    file.take(limit + 1).read_to_end(&mut data).map_err(failed("reading", path))?;
    let truncated = data.len() as u64 > limit;
    data.truncate(limit as usize);
    Ok(Reply::ReadFile { data, truncated })
}

pub(crate) fn write(path: &str, data: &[u8], mode: u32) -> Result<Reply, Failure> {
    if let Some(parent) = Path::new(path).parent() {
        fs::create_dir_all(parent).map_err(failed("creating the directory of", path))?;
    }
    // Truncated, not replaced: control files of the kernel are written like this, too.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(path).map_err(failed("opening", path))?;
    file.write_all(data).map_err(failed("writing", path))?;
    Ok(Reply::Done)
}

pub(crate) fn list(path: &str) -> Result<Reply, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("listing", path))? {
        let entry = entry.map_err(failed("listing", path))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(Reply::ListDir { names })
}
