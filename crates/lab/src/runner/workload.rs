// SPDX-License-Identifier: GPL-2.0-or-later
//! The workloads of a session: starting, watching and ending them, in guests and beside them.

use std::time::Duration;

use holdfast_agent::protocol::{Outcome as Answered, Reply, Request};

use super::session::{LOOK, Outcome, Session, Trouble, WORKLOAD, WORKLOAD_LIMIT, failed, tell};
use crate::experiment::ON_HOST;

/// A workload of a case, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// The guest; none on the host itself.
    pub(super) guest: Option<String>,
    /// Its name among the agent's children.
    pub(super) child: String,
    argv: Vec<String>,
    counters: String,
    threads: u32,
}

impl Job {
    /// Requests to its agent at both ends of a window.
    pub(super) fn counters_requests(&self) -> Vec<Request> {
        vec![
            Request::ReadFile { path: "/proc/stat".into(), max_bytes: 64 << 10 },
            Request::Counters { path: self.counters.clone() },
            Request::Status { name: self.child.clone() },
        ]
    }

    /// Ends it and removes its counters, which must not be taken for the next job's.
    fn end_requests(&self) -> Vec<Request> {
        let timeout_ms = WORKLOAD_LIMIT.as_millis() as u64;
        vec![
            Request::Kill { name: self.child.clone(), signal: libc::SIGTERM },
            Request::Wait { name: self.child.clone(), timeout_ms },
            Request::WriteFile { path: self.counters.clone(), data: Vec::new(), mode: 0o644 },
        ]
    }

    /// One request for several things where the job runs.
    pub(super) fn batch(&self, requests: Vec<Request>) -> Request {
        let batch = Request::Batch { requests };
        match &self.guest {
            Some(guest) => batch.relayed_to(guest),
            None => batch,
        }
    }

    /// Its name in messages.
    fn title(&self) -> String {
        match &self.guest {
            _ if self.child == WORKLOAD => "the workload".into(),
            Some(guest) => format!("the workload in {guest}"),
            None => "the workload beside the guest".into(),
        }
    }
}

/// The answers to a [`Job::batch`].
pub(super) fn answers(reply: Reply) -> Outcome<Vec<Answered>> {
    match reply {
        Reply::Batch { responses } => Ok(responses),
        Reply::Relay { reply } => answers(*reply),
        other => Err(Trouble::Window(format!("unexpected answer {other:?}"))),
    }
}

impl Session<'_> {
    /// The workloads of a case, its own first.
    pub(super) fn jobs(&self, case: usize) -> Vec<Job> {
        let e = self.experiment;
        let case = &e.cases[case];
        let job = |guest: Option<&str>,
                   child: String,
                   workload: &str,
                   threads: u32,
                   args: &[String]| {
            let program = match guest {
                Some(_) => self.host.workload_in_guest(workload),
                None => self.host.workload_in_host(workload),
            };
            let counters = self.counters(&child);
            let options = ["--counters", &counters, "--threads", &threads.to_string()];
            let options = options.into_iter().map(str::to_owned);
            Job {
                guest: guest.map(str::to_owned),
                argv: std::iter::once(program).chain(options).chain(args.iter().cloned()).collect(),
                child,
                counters,
                threads,
            }
        };
        let own = job(
            e.guest_of(case).map(|(name, _)| name),
            WORKLOAD.into(),
            &case.workload,
            e.threads_of(case),
            &case.args,
        );
        let beside = case.beside.iter().enumerate().map(|(i, b)| {
            let guest = (b.on != ON_HOST).then_some(b.on.as_str());
            job(guest, format!("beside{i}"), &b.workload, e.threads_beside(b), &b.args)
        });
        std::iter::once(own).chain(beside).collect()
    }

    /// The jobs that run.
    pub(super) fn running_jobs(&self) -> Vec<Job> {
        self.workload.map_or_else(Vec::new, |case| self.jobs(case))
    }

    /// Names, in windows, of other processes that run a workload beside the VM: programs and VMs.
    pub(super) fn beside(&self) -> Vec<String> {
        let jobs = self.running_jobs().into_iter().skip(1);
        jobs.map(|job| job.guest.map_or(job.child, |guest| self.host.vm_child(&guest))).collect()
    }

    /// The programs of the host among them.
    pub(super) fn beside_on_host(&self) -> Vec<String> {
        let jobs = self.running_jobs().into_iter();
        jobs.filter(|job| job.guest.is_none()).map(|job| job.child).collect()
    }

    /// Starts the workloads of case `wanted` and waits for their first operations.
    ///
    /// Running ones are ended, even if they are the same. Where a workload has phases, as a build
    /// has, windows that are compared begin in the same phase.
    ///
    /// A guest's agent waits for a CPU with every message, so it is sent few.
    pub(super) fn start_workload(&mut self, wanted: usize) -> Outcome<()> {
        let mut old = self.running_jobs();
        self.workload = Some(wanted);
        let jobs = self.jobs(wanted);
        for job in &jobs {
            let place = old.iter().position(|o| o.guest == job.guest && o.child == job.child);
            let mut requests = place.map_or_else(Vec::new, |i| old.remove(i).end_requests());
            requests.push(Request::spawn(job.child.clone(), job.argv.clone()));
            match answers(self.ask(job.batch(requests))?)?.pop() {
                Some(Answered::Ok(_)) if job.guest.is_none() => {
                    self.group(job.child.clone(), job.threads, Vec::new())?;
                }
                Some(Answered::Ok(_)) => (),
                Some(Answered::Error(e)) => {
                    return Err(failed(&format!("starting {}", job.title()), &e));
                }
                None => {
                    let what = format!("starting {} was not answered", job.title());
                    return Err(Trouble::Window(what));
                }
            }
        }
        // Jobs of the case before that this case does not have.
        for job in old {
            self.ask(job.batch(job.end_requests()))?;
        }
        jobs.iter().try_for_each(|job| self.await_first_operation(job))
    }

    /// Waits until the workload of `case` has done its warm-up operations, but no longer than a
    /// window: a workload that hangs is measured as it is.
    pub(super) fn await_warmup(&self, case: usize) -> Outcome<()> {
        /// Short, so that contenders of different speed do not pass the mark by far.
        const OFTEN: Duration = Duration::from_millis(10);
        let case_of = &self.experiment.cases[case];
        let Some(ops) = case_of.warmup_ops else { return Ok(()) };
        let limit = self.experiment.length_ms_of(case_of) / self.shortened();
        let own = self.jobs(case).swap_remove(0);
        self.await_operations(&own, ops, Duration::from_millis(limit), OFTEN).map(drop)
    }

    /// Ends the workloads beside the guests on the host.
    pub(super) fn end_beside_on_host(&mut self) -> Outcome<()> {
        let jobs = self.running_jobs().into_iter().filter(|job| job.guest.is_none());
        let mut jobs = jobs.collect::<Vec<_>>().into_iter();
        jobs.try_for_each(|job| self.ask(job.batch(job.end_requests())).map(drop))
    }

    fn await_first_operation(&self, job: &Job) -> Outcome<()> {
        if self.await_operations(job, 1, WORKLOAD_LIMIT, LOOK)? {
            return Ok(());
        }
        let limit = WORKLOAD_LIMIT.as_secs();
        Err(Trouble::Window(format!("{} did nothing for {limit} s", job.title())))
    }

    /// Whether a job does `ops` operations within `limit`, checked with this much time `between`.
    fn await_operations(
        &self,
        job: &Job,
        ops: u64,
        limit: Duration,
        between: Duration,
    ) -> Outcome<bool> {
        let done = || {
            let mut answered = answers(self.ask(job.batch(job.counters_requests()))?)?;
            if let Some(how) = self.workload_problem(job, answered.pop())? {
                return Err(Trouble::Window(how));
            }
            // The workload has to make the file first.
            let counts = answered.pop();
            let enough = matches!(counts, Some(Answered::Ok(Reply::Counters(c))) if c.ops >= ops);
            Ok(enough.then_some(()))
        };
        Ok(self.look_within(limit, between, done)?.is_some())
    }

    /// Why a job's counters are void, if they are; `status` is its agent's report of it.
    pub(super) fn workload_problem(
        &self,
        job: &Job,
        status: Option<Answered>,
    ) -> Outcome<Option<String>> {
        if let Some(Answered::Ok(Reply::Status { running: true, .. })) = status {
            return Ok(None);
        }
        let wait = Request::Wait { name: job.child.clone(), timeout_ms: 1000 };
        let how = match answers(self.ask(job.batch(vec![wait]))?)?.pop() {
            Some(Answered::Ok(reply)) => tell(&reply),
            Some(Answered::Error(e)) => e.to_string(),
            None => "it is not known how".into(),
        };
        Ok(Some(format!("{} ended: {how}", job.title())))
    }
}
