// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast top`: the live screen. [`view`] draws it, and [`State`] handles keys.

mod state;
mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::state::State;
use crate::error::ObserverError;
use crate::observer::{Observer, Options, Storage};
use crate::stop;

/// Interval between polls of keys and VMs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Shows the live screen until the user quits. It restores the terminal, also after a panic.
pub fn top(interval: Duration, frequency_hz: u32, btf: &[BtfFiles]) -> Result<(), ObserverError> {
    let terminal_error = |source| ObserverError::Io { action: "use the terminal", source };
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "input or output is not one; `holdfast report` needs none";
        return Err(terminal_error(io::Error::other(why)));
    }
    let (mut discovery, mut program) = (Storage::default(), Storage::default());
    let options = Options { frequency_hz, ..Options::COUNTERS };
    let mut observer = Observer::attach(&mut discovery, &mut program, options, btf)?;
    stop::on_signals()?;
    with_terminal(|terminal| run(terminal, &mut observer, interval))
}

/// Lends the terminal to a function, and restores it, also after a panic, for which ratatui has a
/// hook.
fn with_terminal(
    show: impl FnOnce(&mut DefaultTerminal) -> Result<(), ObserverError>,
) -> Result<(), ObserverError> {
    let terminal_error = |source| ObserverError::Io { action: "use the terminal", source };
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let outcome = show(&mut terminal);
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    const CHILD: &str = "HOLDFAST_TEST_TOP";
    /// Escape sequences that enter and leave the alternate screen.
    const TAKEN: &str = "\x1b[?1049h";
    const GIVEN_BACK: &str = "\x1b[?1049l";

    /// Not a test of its own: the other test starts this process.
    #[test]
    #[ignore = "the other test starts it"]
    fn panics() {
        if std::env::var_os(CHILD).is_some() {
            super::with_terminal(|_| panic!("out of luck")).unwrap();
        }
    }

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was_and_is_seen() {
        let exe = std::env::current_exe().unwrap();
        let session = format!(
            "before=$(stty -g); {} --exact top::tests::panics --ignored --nocapture; \
             [ \"$before\" = \"$(stty -g)\" ] && echo terminal as before",
            exe.display()
        );
        // script(1) makes a terminal.
        let output = Command::new("script")
            .args(["-qec", &session, "/dev/null"])
            .env(CHILD, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("no {what:?}: {said:?}"));
        assert!(at(TAKEN) < at(GIVEN_BACK), "{said:?}");
        assert!(at(GIVEN_BACK) < at("out of luck"), "{said:?}");
        at("terminal as before");
    }
}
