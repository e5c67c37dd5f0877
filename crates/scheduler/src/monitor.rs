// SPDX-License-Identifier: GPL-2.0-or-later
//! `--monitor`: reports of a scheduler that runs already.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_checks::{Host, loaded_scheduler};
use log::info;
use scx_stats::prelude::StatsClient;

use crate::stats::Metrics;
use crate::waker::Waker;

/// How long a scheduler that restarts itself (CPU hotplug) is waited for.
const RESTART_LIMIT: Duration = Duration::from_secs(5);

/// Reports every `interval` until `shutdown`, or until the scheduler has ended.
pub(crate) fn watch(interval: Duration, shutdown: &AtomicBool, waker: &Waker) -> Result<()> {
    let mut client = connect()?;
    while !shutdown.load(Ordering::Relaxed) {
        match client.request::<Metrics>("stats", Vec::new()) {
            Ok(metrics) => metrics.format(&mut std::io::stdout())?,
            Err(_) => match reconnect(shutdown, waker)? {
                Some(again) => {
                    client = again;
                    continue;
                }
                None => {
                    info!("scx_holdfast has ended");
                    break;
                }
            },
        }
        waker.sleep(None, interval)?;
    }
    Ok(())
}

fn connect() -> Result<StatsClient> {
    // Every scx scheduler answers at the same socket.
    match loaded_scheduler(&Host::this()).unwrap_or_default() {
        name if name.starts_with("holdfast") => {}
        name if name.is_empty() => {
            bail!("no scheduler runs to be monitored; --stats starts one and reports")
        }
        name => bail!("the scheduler that runs is not scx_holdfast but {name}"),
    }
    StatsClient::new()
        .connect(None)
        .context("cannot ask scx_holdfast for statistics (are you root?)")
}

fn reconnect(shutdown: &AtomicBool, waker: &Waker) -> Result<Option<StatsClient>> {
    let until = Instant::now() + RESTART_LIMIT;
    while !shutdown.load(Ordering::Relaxed) && Instant::now() < until {
        if let Ok(client) = connect() {
            return Ok(Some(client));
        }
        waker.sleep(None, Duration::from_millis(200))?;
    }
    Ok(None)
}
