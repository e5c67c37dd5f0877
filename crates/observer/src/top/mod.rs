// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast top`: the live screen. [`view`] draws it, and [`State`] handles keys.

mod absences;
mod columns;
mod history;
mod keys;
#[cfg(test)]
mod picture;
mod state;
mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use holdfast_bpf::BtfFiles;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

pub use self::keys::top_keys;
use self::state::State;
use crate::error::ObserverError;
use crate::observer::{Observer, Options, Storage};
use crate::sample::Sample;
use crate::select::Selection;
use crate::stop;

/// Interval between polls of keys and VMs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of the live screen.
#[derive(Debug, Clone, Default)]
pub struct Top {
    /// Time between two updates.
    pub interval: Duration,
    /// The VMs that it shows, and their order at the beginning.
    pub selection: Selection,
    /// Ticks of the sampling clock per second and CPU.
    pub frequency_hz: u32,
    /// BTF of guest kernels, for guests that have none in memory.
    pub btf: Vec<BtfFiles>,
}

impl Top {
    /// Shows the live screen until the user quits. It restores the terminal, also after a panic and
    /// after a signal.
    pub fn run(&self) -> Result<(), ObserverError> {
        check_terminal()?;
        let (mut discovery, mut program) = (Storage::default(), Storage::default());
        let options = Options { frequency_hz: self.frequency_hz, ..Options::COUNTERS };
        let mut observer = Observer::attach(&mut discovery, &mut program, options, &self.btf)?;
        let mut state = State::new(self.interval, self.selection.clone());
        stop::on_signals()?;
        with_terminal(|terminal| show(terminal, &mut observer, &mut state))
    }
}

/// Refuses before anything is loaded where nothing can be shown.
fn check_terminal() -> Result<(), ObserverError> {
    if !io::stdout().is_terminal() {
        return Err(ObserverError::NoTerminal("standard output is none"));
    }
    if !io::stdin().is_terminal() {
        return Err(ObserverError::NoTerminal("standard input is none"));
    }
    if std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
        return Err(ObserverError::NoTerminal("TERM=dumb is one that cannot place text"));
    }
    Ok(())
}

/// What the screen shows samples of.
trait Source {
    fn poll(&mut self) -> Result<(), ObserverError>;
    fn sample(&mut self) -> Result<Sample, ObserverError>;
}

impl Source for Observer<'_> {
    fn poll(&mut self) -> Result<(), ObserverError> {
        self.poll(Duration::ZERO)
    }

    fn sample(&mut self) -> Result<Sample, ObserverError> {
        self.sample()
    }
}

/// Lends the terminal to a function, and restores it, also after a panic, for which ratatui has a
/// hook.
fn with_terminal(
    show: impl FnOnce(&mut DefaultTerminal) -> Result<(), ObserverError>,
) -> Result<(), ObserverError> {
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let outcome = show(&mut terminal);
    let restored = ratatui::try_restore().map_err(terminal_error);
    outcome.and(restored)
}

fn terminal_error(source: io::Error) -> ObserverError {
    ObserverError::Io { action: "use the terminal", source }
}

fn show(
    terminal: &mut DefaultTerminal,
    source: &mut impl Source,
    state: &mut State,
) -> Result<(), ObserverError> {
    let interval = state.interval;
    state.take(source.sample()?);
    let mut due = Instant::now() + interval;
    let mut changed = true;
    while !stop::is_asked() && !state.quits {
        if changed {
            terminal.draw(|frame| view::draw(frame, state)).map_err(terminal_error)?;
        }
        changed = event::poll(POLL_INTERVAL).map_err(terminal_error)?;
        if changed {
            match event::read().map_err(terminal_error)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => state.press(key),
                _ => {}
            }
        }
        source.poll()?;
        if Instant::now() >= due {
            due = (due + interval).max(Instant::now());
            state.take(source.sample()?);
            changed = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::sample::tests::sample;
    use crate::stop::ignoring;

    const CHILD: &str = "HOLDFAST_TEST_TOP";
    /// Escape sequences that enter and leave the alternate screen.
    const TAKEN: &str = "\x1b[?1049h";
    const GIVEN_BACK: &str = "\x1b[?1049l";

    /// A VM that loses 10 ms in each second.
    struct Steady(u64);

    impl Source for Steady {
        fn poll(&mut self) -> Result<(), ObserverError> {
            Ok(())
        }

        fn sample(&mut self) -> Result<Sample, ObserverError> {
            self.0 += 1;
            Ok(sample(self.0 * 1_000_000_000, 7, self.0 * 10))
        }
    }

    /// Not a test of its own: the other tests start this process.
    #[test]
    #[ignore = "the other tests start it"]
    fn child() {
        match std::env::var(CHILD).as_deref() {
            Ok("panics") => with_terminal(|_| panic!("out of luck")).unwrap(),
            Ok("shows") => {
                let mut state = State::new(Duration::from_millis(20), Selection::default());
                stop::on_signals().unwrap();
                with_terminal(|terminal| show(terminal, &mut Steady(0), &mut state)).unwrap();
                println!("\nended in order");
            }
            _ => {}
        }
    }

    /// Starts the child in a terminal, which script(1) makes.
    fn start(what: &str) -> Child {
        let exe = std::env::current_exe().unwrap();
        let session = format!(
            "stty rows 24 cols 80; before=$(stty -g); \
             {} --exact top::tests::child --ignored --nocapture; \
             [ \"$before\" = \"$(stty -g)\" ] && echo terminal as before",
            exe.display()
        );
        let mut command = Command::new("script");
        command.args(["-qec", &session, "/dev/null"]).env(CHILD, what);
        ignoring(&mut command, &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Its output up to and with this text.
    fn until(child: &mut Child, what: &str) -> String {
        let mut said = Vec::new();
        let mut byte = [0];
        while !String::from_utf8_lossy(&said).ends_with(what) {
            let output = child.stdout.as_mut().unwrap();
            assert_eq!(output.read(&mut byte).unwrap(), 1, "no {what:?}: {said:?}");
            said.extend(byte);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was_and_is_seen() {
        let mut child = start("panics");
        let said = until(&mut child, "terminal as before");
        let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("no {what:?}: {said:?}"));
        assert!(at(TAKEN) < at(GIVEN_BACK), "{said:?}");
        assert!(at(GIVEN_BACK) < at("out of luck"), "{said:?}");
        child.wait().unwrap();
    }

    #[test]
    fn keys_and_signals_end_it_and_the_terminal_is_as_before() {
        // Only changed cells are written, so this is of a whole line.
        let shown = "web";
        for key in ["q", "\x03", "/we\x03"] {
            let mut child = start("shows");
            until(&mut child, TAKEN);
            until(&mut child, shown);
            child.stdin.as_mut().unwrap().write_all(key.as_bytes()).unwrap();
            let said = until(&mut child, "terminal as before");
            assert!(said.find(GIVEN_BACK) < said.find("ended in order"), "{key:?}: {said:?}");
            child.wait().unwrap();
        }
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            let mut child = start("shows");
            until(&mut child, TAKEN);
            until(&mut child, shown);
            // SAFETY: has no preconditions; the process waits for the signal.
            assert_eq!(unsafe { libc::kill(shown_by(child.id()), signal) }, 0);
            let said = until(&mut child, "terminal as before");
            assert!(said.find(GIVEN_BACK) < said.find("ended in order"), "{signal}: {said:?}");
            child.wait().unwrap();
        }
    }

    /// The process that draws: the child of the shell that script(1) has started.
    fn shown_by(script: u32) -> libc::pid_t {
        let child_of = |pid: u32| -> u32 {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(path).unwrap();
            children.split_whitespace().next().unwrap().parse().unwrap()
        };
        child_of(child_of(script)) as libc::pid_t
    }
}
