// SPDX-License-Identifier: GPL-2.0-or-later
//! Checks before a scheduler is loaded, and messages of its end.

use std::error::Error;
use std::fmt;

use holdfast_bpf::has_errno;
use holdfast_checks::{Check, Host, Purpose, Verdict, before_loading, core_scheduling_cookies};
use log::warn;

/// Why nothing was loaded or done. The host may go on without it.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Refusal {}

impl Refusal {
    /// `error`: what this process may not do.
    pub(crate) fn for_want_of_root(error: &anyhow::Error) -> Self {
        Self(format!("{}. To do: run it as root.", chain(error)))
    }

    /// `error`: why `prctl()` cannot be kept from setting core-scheduling cookies.
    pub(crate) fn to_let_cookies_be_set(error: &anyhow::Error) -> Self {
        Self(format!(
            "not loaded: SMT is on, this kernel has core scheduling, and core-scheduling cookies \
             cannot be refused, with which sched_ext can hang the host: {}. To do: turn SMT off \
             (echo off > /sys/devices/system/cpu/smt/control), or boot a kernel with \
             CONFIG_SECURITY and CONFIG_FUNCTION_TRACER.",
            chain(error)
        ))
    }
}

/// Checks anew that no task has a core-scheduling cookie.
pub(crate) fn check_cookies(host: &Host) -> Result<(), Refusal> {
    let check = core_scheduling_cookies(host);
    match check.verdict {
        Verdict::Fail => Err(Refusal(format!("not loaded: {}", sentence(&check)))),
        _ => Ok(()),
    }
}

/// Makes the checks that can forbid loading, and logs warnings.
pub(crate) fn check(host: &Host, purpose: Purpose) -> Result<(), Refusal> {
    let report = before_loading(host, purpose);
    for check in report.checks.iter().filter(|check| check.verdict == Verdict::Warn) {
        warn!("{}", sentence(check));
    }
    let failures: Vec<_> = report.failures().map(sentence).collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(Refusal(format!("not loaded: {}", failures.join("\n            also: "))))
}

fn sentence(check: &Check) -> String {
    match &check.advice {
        Some(advice) => format!("{}. To do: {advice}.", check.found),
        None => format!("{}.", check.found),
    }
}

/// Message of `scx_ops_attach!` when the kernel rejects the scheduler.
const ATTACHING: &str = "Failed to attach struct_ops";
/// Message of `scx_ops_open!` before it asks the kernel.
const RUNNING: &str = "another sched_ext scheduler is already running";

/// Adds advice to an error of libbpf, where it is known.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Refusal>() {
        return error;
    }
    let text = chain(&error);
    if has_errno(&text, libc::EPERM) {
        return Refusal(format!(
            "not loaded: {text}. To do: run it on the host itself, outside of containers: a \
             filter of system calls or a security module forbids what its capabilities allow."
        ))
        .into();
    }
    if has_errno(&text, libc::EBUSY) && text.contains(ATTACHING) || text.contains(RUNNING) {
        return Refusal(format!(
            "not loaded: {text}. To do: another sched_ext scheduler has come in between; end it \
             first."
        ))
        .into();
    }
    // The checks find most isolated CPUs; the kernel finds all of them.
    if text.contains("sched_ext: Not compatible with") {
        return Refusal(format!(
            "not loaded: {text}. To do: boot without isolcpus=, and have no cpuset.cpus.partition \
             that is isolated."
        ))
        .into();
    }
    error
}

/// An error with its causes on one line, each cause once.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use holdfast_checks::{Host, Purpose};

    use super::{ATTACHING, RUNNING, Refusal, chain, check, explain};

    #[test]
    fn chain_has_each_cause_once() {
        let error = anyhow!("no such file: x").context("cannot read x: no such file: x");
        assert_eq!(chain(&error), "cannot read x: no such file: x");
        let error = anyhow!("gone").context("cannot read x").context("cannot start");
        assert_eq!(chain(&error), "cannot start: cannot read x: gone");
    }

    #[test]
    fn refuses_if_the_kernel_forbids_bpf_but_not_if_it_rejects_the_program() {
        for (errno, is_refusal) in [(libc::EPERM, true), (libc::EBUSY, true), (libc::EACCES, false)]
        {
            let error: anyhow::Result<()> =
                Err(std::io::Error::from_raw_os_error(errno)).context(ATTACHING);
            let error = explain(error.unwrap_err());
            assert_eq!(error.is::<Refusal>(), is_refusal, "{error:#}");
        }
    }

    #[test]
    fn explains_a_refusal_once() {
        let refusal = || Refusal("not loaded: the kernel refuses fentry: (os error 1)".into());
        assert_eq!(explain(refusal().into()).to_string(), refusal().to_string());
    }

    #[test]
    fn refuses_if_the_kernel_finds_isolated_cpus() {
        let said = "Failed to attach struct_ops: Invalid argument (os error 22); the kernel's log: \
                    sched_ext: Not compatible with \"isolcpus=\" domain isolation";
        let error = explain(anyhow!(said));
        assert!(error.is::<Refusal>() && error.to_string().contains(said), "{error:#}");
    }

    #[test]
    fn refuses_if_another_scheduler_runs() {
        assert!(explain(anyhow!(RUNNING)).is::<Refusal>());
    }

    #[test]
    fn refusal_has_every_reason_and_advice() {
        let empty = tempfile::tempdir().unwrap();
        let host = Host::at(empty.path(), Default::default());
        let text = check(&host, Purpose::Guests).unwrap_err().to_string();
        for wanted in ["CAP_BPF", "run it as root", "without sched_ext", "kvm module"] {
            assert!(text.contains(wanted), "{wanted} is not in: {text}");
        }
        let text = check(&host, Purpose::BaseOnly).unwrap_err().to_string();
        assert!(!text.contains("kvm module"), "{text}");
    }
}
