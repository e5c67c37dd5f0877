// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast spins`: how long this kernel waits for its own locks. In a guest it shows lock-holder
//! preemption as its victim sees it; on bare metal it shows waits without.

mod cycles;
mod probe;
mod text;
mod waits;

use std::io;
use std::time::{Duration, Instant};

use self::cycles::tsc_hz;
use self::probe::Probe;
pub use self::waits::{LockWaits, SPINS, Waits};
use crate::error::ObserverError;
use crate::observer::Storage;
use crate::output::show;
use crate::stop;

/// Options of a trace.
#[derive(Debug, Clone)]
pub struct Spins {
    /// Time between two reports; one report at the end if None.
    pub interval: Option<Duration>,
    /// Number of reports; until interrupted if None.
    pub count: Option<u64>,
    /// Do not say what is traced.
    pub quiet: bool,
    /// JSON Lines.
    pub json: bool,
    /// Also locks other than spinlocks.
    pub all: bool,
}

impl Spins {
    /// Loads the program and drops it, without attaching it.
    pub fn try_load() -> Result<(), ObserverError> {
        probe::load(&mut Storage::default()).map(drop)
    }

    /// Traces until the count is reached or a signal ends it.
    pub fn run(&self) -> Result<(), ObserverError> {
        let written = |source| ObserverError::Io { action: "write the report", source };
        let mut storage = Storage::default();
        let probe = Probe::attach(&mut storage)?;
        stop::on_signals()?;
        let tsc_hz = tsc_hz();
        let mut out = io::stdout().lock();
        if !self.json && !self.quiet {
            let first = "Tracing waits for this kernel's contended locks. Ctrl-C ends it.\n";
            show(&mut out, first)?;
        }
        let mut before = probe.read(tsc_hz)?;
        for _ in 0..self.count.unwrap_or(u64::MAX) {
            let until = self.interval.map(|interval| Instant::now() + interval);
            while !stop::is_asked() && until.is_none_or(|until| Instant::now() < until) {
                let left =
                    until.map_or(Duration::MAX, |u| u.saturating_duration_since(Instant::now()));
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            let now = probe.read(tsc_hz)?;
            let waits = now.since(&before);
            before = now;
            let text = if self.json {
                serde_json::to_string(&waits).map(|line| line + "\n").map_err(io::Error::from)
            } else {
                Ok(text::render(&waits, self.all))
            };
            show(&mut out, &text.map_err(written)?)?;
            if stop::is_asked() {
                break;
            }
        }
        Ok(())
    }
}
