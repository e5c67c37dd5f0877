// SPDX-License-Identifier: GPL-2.0-or-later
//! Answers requests for samples, one line each, for programs that choose the moments themselves.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use holdfast_bpf::BtfFiles;
use serde::Serialize;

use crate::error::ObserverError;
use crate::observer::{Observer, Options, Storage};
use crate::sample::{PREEMPTIONS, Sample};

/// Time that VMs are followed between two polls of the input.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A sample after a schema tag.
#[derive(Serialize)]
pub(crate) struct Tagged<'a> {
    pub(crate) schema: &'static str,
    #[serde(flatten)]
    pub(crate) sample: &'a Sample,
}

/// Prints a sample as a line of JSON for each line read from standard input, until it ends.
pub fn serve_requests(btf: &[BtfFiles]) -> Result<(), ObserverError> {
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let options = Options::PREEMPTIONS;
    let mut observer = Observer::attach(&mut discovery, &mut program, options, btf)?;
    let (send, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() || send.send(()).is_err() {
                break;
            }
        }
    });

    let io_error = |source| ObserverError::Io { action: "write a sample", source };
    let mut out = io::stdout().lock();
    loop {
        match requests.recv_timeout(POLL_INTERVAL) {
            Ok(()) => {
                observer.poll(Duration::ZERO)?;
                let sample = observer.sample()?;
                let line = Tagged { schema: PREEMPTIONS, sample: &sample };
                let line = serde_json::to_string(&line).map_err(|err| io_error(err.into()))?;
                writeln!(out, "{line}").and_then(|()| out.flush()).map_err(io_error)?;
            }
            Err(RecvTimeoutError::Timeout) => observer.poll(Duration::ZERO)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}
