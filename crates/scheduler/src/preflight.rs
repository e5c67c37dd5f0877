// SPDX-License-Identifier: GPL-2.0-or-later
//! What is asked before a scheduler is loaded, and how its end is told.

use std::error::Error;
use std::fmt;

use holdfast_checks::{Check, Host, Purpose, Verdict, before_loading};
use log::warn;

/// Why nothing was loaded, on a host that may well go on without.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Refusal {}

/// Makes the checks that can forbid loading; what is only unfortunate is logged.
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

/// What `scx_ops_attach!` says when the kernel does not take the scheduler.
const ATTACHING: &str = "Failed to attach struct_ops";
/// Or before it has asked.
const RUNNING: &str = "another sched_ext scheduler is already running";

/// What libbpf says in the words of what to do, where that is known. The number is matched because
/// libbpf-rs has no other access to it, and its kind of error for EPERM is that of EACCES, too, which is
/// what the verifier rejects programs with.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Refusal>() {
        return error;
    }
    let text = chain(&error);
    if text.contains("(os error 1)") {
        return Refusal(format!(
            "not loaded: {text}. To do: run it on the host itself, outside of containers: a \
             filter of system calls or a security module forbids what its capabilities allow."
        ))
        .into();
    }
    if text.contains("(os error 16)") && text.contains(ATTACHING) || text.contains(RUNNING) {
        return Refusal(format!(
            "not loaded: {text}. To do: another sched_ext scheduler has come in between; end it first."
        ))
        .into();
    }
    // Checks look for what it says so of; where they cannot know, it does.
    if text.contains("sched_ext: Not compatible with") {
        return Refusal(format!(
            "not loaded: {text}. To do: boot without isolcpus=, and have no cpuset.cpus.partition \
             that is isolated."
        ))
        .into();
    }
    error
}

/// An error with its causes on one line. A cause that has been told already is left out.
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
    fn tells_no_cause_twice() {
        let error = anyhow!("no such file: x").context("cannot read x: no such file: x");
        assert_eq!(chain(&error), "cannot read x: no such file: x");
        let error = anyhow!("gone").context("cannot read x").context("cannot start");
        assert_eq!(chain(&error), "cannot start: cannot read x: gone");
    }

    #[test]
    fn a_kernel_that_forbids_bpf_is_a_refusal_and_a_rejected_program_is_not() {
        for (errno, is_refusal) in [(libc::EPERM, true), (libc::EBUSY, true), (libc::EACCES, false)]
        {
            let error: anyhow::Result<()> =
                Err(std::io::Error::from_raw_os_error(errno)).context(ATTACHING);
            let error = explain(error.unwrap_err());
            assert_eq!(error.is::<Refusal>(), is_refusal, "{error:#}");
        }
    }

    #[test]
    fn a_refusal_is_explained_once() {
        let refusal = || Refusal("not loaded: the kernel refuses fentry: (os error 1)".into());
        assert_eq!(explain(refusal().into()).to_string(), refusal().to_string());
    }

    #[test]
    fn cpus_that_only_the_kernel_knows_to_be_isolated_are_a_refusal() {
        let said = "Failed to attach struct_ops: Invalid argument (os error 22); the kernel's log: \
                    sched_ext: Not compatible with \"isolcpus=\" domain isolation";
        let error = explain(anyhow!(said));
        assert!(error.is::<Refusal>() && error.to_string().contains(said), "{error:#}");
    }

    #[test]
    fn another_scheduler_that_is_there_already_is_a_refusal() {
        assert!(explain(anyhow!(RUNNING)).is::<Refusal>());
    }

    #[test]
    fn a_refusal_has_every_reason_and_what_to_do() {
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
