// SPDX-License-Identifier: GPL-2.0-or-later
//! `--monitor`: reports of a scheduler that runs already.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use holdfast_checks::{Host, is_holdfast, loaded_scheduler};
use log::info;
use scx_stats::prelude::StatsClient;

use crate::NO_STDOUT;
use crate::preflight::Refusal;
use crate::stats::Metrics;

/// How long to wait for a scheduler that restarts itself (CPU hotplug).
const RESTART_LIMIT: Duration = Duration::from_secs(5);

/// The scheduler ends a connection when it ends or restarts. After so many failures in a row its
/// answers are those of another version.
const FAILURES_MAX: u32 = 3;

/// Reports every `interval` until the scheduler has ended.
pub(crate) fn watch(interval: Duration) -> Result<()> {
    let mut client = connect()?;
    let mut nr_failed = 0;
    loop {
        match client.request::<Metrics>("stats", Vec::new()) {
            Ok(metrics) => {
                nr_failed = 0;
                metrics.format(&mut std::io::stdout()).context(NO_STDOUT)?;
                thread::sleep(interval);
            }
            Err(why) => {
                nr_failed += 1;
                let Some(again) = reconnect() else {
                    info!("scx_holdfast has ended");
                    return Ok(());
                };
                if nr_failed == FAILURES_MAX {
                    return Err(why.context(
                        "the scx_holdfast that runs does not answer as this one expects: \
                         another version?",
                    ));
                }
                client = again;
            }
        }
    }
}

fn connect() -> Result<StatsClient> {
    // Every scx scheduler answers at the same socket.
    match loaded_scheduler(&Host::this()).unwrap_or_default() {
        name if is_holdfast(&name) => {}
        name if name.is_empty() => {
            bail!("no scheduler runs to be monitored; --stats starts one and reports")
        }
        name => bail!("the scheduler that runs is not scx_holdfast but {name}"),
    }
    StatsClient::new().connect(None).map_err(explain)
}

/// The socket is root's.
fn explain(error: Error) -> Error {
    let error = error.context("cannot ask scx_holdfast for statistics");
    let io = error.root_cause().downcast_ref::<std::io::Error>();
    if io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied) {
        return Refusal::for_want_of_root(&error).into();
    }
    error
}

fn reconnect() -> Option<StatsClient> {
    let until = Instant::now() + RESTART_LIMIT;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(200));
        if let Ok(client) = connect() {
            return Some(client);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_root_is_refused_and_a_missing_one_is_a_failure() {
        let said = |errno| explain(std::io::Error::from_raw_os_error(errno).into());
        let refused = said(libc::EACCES);
        assert!(refused.is::<Refusal>() && refused.to_string().contains("run it as root"));
        assert!(!said(libc::ENOENT).is::<Refusal>());
    }
}
