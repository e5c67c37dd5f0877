// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast top`: the live screen. What it shows is [`view`]'s; what keys do is [`State`]'s.

mod state;
mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::state::State;
use crate::error::ObserverError;
use crate::observer::{Observer, Options, Storage};
use crate::stop;

/// How often keys are looked for and VMs followed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Shows the live screen until somebody quits. The terminal is given back as it was, also after a
/// panic.
pub fn top(interval: Duration, frequency_hz: u32) -> Result<(), ObserverError> {
    let terminal_error = |source| ObserverError::Io { action: "use the terminal", source };
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "input or output is not one; `holdfast report` needs none";
        return Err(terminal_error(io::Error::other(why)));
    }
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let options = Options { frequency_hz, ..Options::COUNTERS };
    let mut observer = Observer::attach(&mut discovery, &mut program, options)?;
    stop::on_signals()?;
    // Also makes a panic restore it.
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let outcome = run(&mut terminal, &mut observer, interval);
    let restored = ratatui::try_restore().map_err(terminal_error);
    outcome.and(restored)
}

fn run(
    terminal: &mut DefaultTerminal,
    observer: &mut Observer<'_>,
    interval: Duration,
) -> Result<(), ObserverError> {
    let terminal_error = |source| ObserverError::Io { action: "use the terminal", source };
    let mut state = State::new(interval);
    let mut before = observer.sample()?;
    let mut due = Instant::now() + interval;
    let mut changed = true;
    while !stop::is_asked() && !state.quits {
        if changed {
            terminal.draw(|frame| view::draw(frame, &mut state)).map_err(terminal_error)?;
        }
        changed = event::poll(POLL_INTERVAL).map_err(terminal_error)?;
        if changed {
            match event::read().map_err(terminal_error)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => state.press(key),
                _ => {}
            }
        }
        observer.poll(Duration::ZERO)?;
        if Instant::now() >= due {
            due = (due + interval).max(Instant::now());
            let now = observer.sample()?;
            state.show(&now, &before);
            before = now;
            changed = true;
        }
    }
    Ok(())
}
