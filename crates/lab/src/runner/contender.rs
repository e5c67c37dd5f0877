// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler of a session, and programs beside it: loading, watching and unloading contenders.

use holdfast_agent::protocol::{Reply, Request, Stream};
use holdfast_testbed::scheduler::{self, Counted};

use super::session::{CONTENDER, CONTENDER_LIMIT, Outcome, Session, Trouble, tell};

/// Longest a scheduler may take to report its counters.
const STATS_LIMIT_MS: u64 = 2000;

impl Session<'_> {
    /// Loads contender `wanted`; none is the kernel's own scheduler.
    pub(super) fn ensure_contender(&mut self, wanted: Option<usize>) -> Outcome<()> {
        let wanted = wanted.filter(|&i| !self.experiment.contenders[i].is_stock());
        if self.contender == wanted {
            return Ok(());
        }
        self.counts = false;
        self.end_contender()?;
        let Some(i) = wanted else { return Ok(()) };
        self.contender = wanted;
        // A scheduler loads in a quarter of the time while nothing else wants the CPUs.
        self.signal_load(libc::SIGSTOP)?;
        let loaded = self.start(i);
        self.signal_load(libc::SIGCONT)?;
        loaded?;
        self.await_quiet(self.children())?;
        self.counts = match self.ask(self.counters_request()) {
            Ok(Reply::Exchange { line, t_ns }) => Counted::parse(&line, t_ns).is_some(),
            Err(e @ Trouble::Host(_)) => return Err(e),
            // Not every scheduler serves statistics.
            _ => false,
        };
        Ok(())
    }

    /// Ends the scheduler and the programs beside it, in reverse order of their start.
    pub(super) fn end_contender(&mut self) -> Outcome<()> {
        let children = self.children();
        let mut outcome = Ok(());
        if self.contender.take().is_some() {
            for child in children.iter().rev() {
                // A program that has ended already does not spare the others.
                match self.end(child, libc::SIGINT, CONTENDER_LIMIT) {
                    Err(e @ Trouble::Host(_)) => return Err(e),
                    ended => outcome = outcome.and(ended),
                }
            }
            outcome = outcome.and(self.await_state(false));
        }
        outcome
    }

    /// Whether the contender is another scheduler than the kernel's own.
    fn schedules(&self) -> bool {
        self.contender.is_some_and(|i| self.experiment.contenders[i].schedules())
    }

    /// Names of the contender's processes among the agent's children.
    fn children(&self) -> Vec<String> {
        let Some(i) = self.contender else { return Vec::new() };
        let contender = &self.experiment.contenders[i];
        let programs = (0..contender.programs.len()).map(program_name);
        contender.schedules().then(|| CONTENDER.to_owned()).into_iter().chain(programs).collect()
    }

    fn start(&self, contender: usize) -> Outcome<()> {
        let contender = &self.experiment.contenders[contender];
        let argv = |command: &[String]| [&[self.host.program(&command[0])], &command[1..]].concat();
        if contender.schedules() {
            self.spawn(CONTENDER, argv(&contender.command))?;
            self.await_state(true)?;
        }
        for (i, program) in contender.programs.iter().enumerate() {
            self.spawn(&program_name(i), argv(program))?;
            self.await_word(&program_name(i))?;
        }
        Ok(())
    }

    fn spawn(&self, child: &str, argv: Vec<String>) -> Outcome<()> {
        match self.ask(Request::spawn(child, argv)) {
            Err(Trouble::Window(problem)) => Err(Trouble::Contender(problem)),
            other => other.map(drop),
        }
    }

    /// Waits for a program's first output: then it is ready.
    fn await_word(&self, child: &str) -> Outcome<()> {
        let stream = Stream::Stdout;
        let timeout_ms = CONTENDER_LIMIT.as_millis() as u64;
        let request = Request::Output { name: child.into(), stream, after: 0, timeout_ms };
        match self.ask(request)? {
            Reply::Output { data, .. } if !data.is_empty() => Ok(()),
            _ => {
                let how = self.ended(child)?.unwrap_or_else(|| {
                    format!("it has printed nothing after {} s", CONTENDER_LIMIT.as_secs())
                });
                Err(Trouble::Contender(format!("the program beside the scheduler: {how}")))
            }
        }
    }

    /// Requests the contender's counts since the last request.
    pub(super) fn counters_request(&self) -> Request {
        Request::Exchange {
            socket: self.host.scx_stats(),
            line: scheduler::REQUEST.into(),
            timeout_ms: STATS_LIMIT_MS,
        }
    }

    /// Sends a signal to the guests' QEMU, to the workloads beside them on the host, and to the
    /// hogs.
    pub(super) fn signal_load(&self, signal: i32) -> Outcome<()> {
        let guests = self.guests.iter().map(|name| self.host.vm_child(name));
        for name in self.hogs().into_iter().chain(self.beside_on_host()).chain(guests) {
            self.ask(Request::Kill { name, signal })?;
        }
        Ok(())
    }

    /// Waits until a sched_ext scheduler is loaded, or none is.
    pub(super) fn await_state(&self, loaded: bool) -> Outcome<()> {
        let mut state = String::new();
        let reached = self.await_within(CONTENDER_LIMIT, || {
            if let Some(problem) = self.contender_ended()? {
                return Err(Trouble::Contender(problem));
            }
            state = self.scx_state()?;
            let reached = (state == "enabled") == loaded && (loaded || state == "disabled");
            Ok(reached.then_some(()))
        })?;
        reached.ok_or_else(|| {
            let wanted = if loaded { "enabled" } else { "disabled" };
            let limit = CONTENDER_LIMIT.as_secs();
            let problem =
                format!("sched_ext is still \"{state}\" and not \"{wanted}\" after {limit} s");
            if loaded { Trouble::Contender(problem) } else { Trouble::Window(problem) }
        })
    }

    /// Whether sched_ext has a scheduler: `enabled`, `disabled`, or something in between.
    fn scx_state(&self) -> Outcome<String> {
        match self.ask(Request::ReadFile { path: self.host.scx_state(), max_bytes: 64 }) {
            Ok(Reply::ReadFile { data, .. }) => {
                Ok(String::from_utf8_lossy(&data).trim().to_string())
            }
            // A kernel without sched_ext runs its own scheduler.
            Err(Trouble::Window(_)) if !self.schedules() => Ok("disabled".into()),
            Ok(other) => Err(Trouble::Window(format!("unexpected answer {other:?}"))),
            Err(e) => Err(e),
        }
    }

    /// Why this window would not be the wanted contender's, if it would not.
    pub(super) fn contender_problem(&self) -> Outcome<Option<String>> {
        if let Some(problem) = self.contender_ended()? {
            return Ok(Some(problem));
        }
        let state = self.scx_state()?;
        let wanted = if self.schedules() { "enabled" } else { "disabled" };
        Ok((state != wanted).then(|| format!("sched_ext is \"{state}\" and not \"{wanted}\"")))
    }

    /// The part of the contender that has ended, and how.
    fn contender_ended(&self) -> Outcome<Option<String>> {
        for child in self.children() {
            if let Reply::Status { running: true, .. } =
                self.ask(Request::Status { name: child.clone() })?
            {
                continue;
            }
            let what = if child == CONTENDER { "the scheduler" } else { "the program beside it" };
            let how = self.ended(&child)?.unwrap_or_default();
            return Ok(Some(format!("{what} ended: {how}")));
        }
        Ok(None)
    }

    /// How a child ended, with its last output; none if it runs.
    fn ended(&self, child: &str) -> Outcome<Option<String>> {
        match self.ask(Request::Wait { name: child.into(), timeout_ms: 1000 }) {
            Ok(reply) => Ok(Some(tell(&reply))),
            Err(Trouble::Window(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn program_name(i: usize) -> String {
    format!("{CONTENDER}-program{i}")
}
