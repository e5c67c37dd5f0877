// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of the guest of a VM, as all outputs say it.

use holdfast_bpf::{COUNT_PREEMPTION, ReadError, Tier, Vm, VmState, Windows};
use serde::{Deserialize, Serialize};

/// Why a guest is of tier queue.
const UNCOUNTED: &str = "its kernel does not count preemption (CONFIG_PREEMPT_COUNT), so that \
                         lock holders are not told from the rest of its kernel";

/// What is known of the guest of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// How much is known of its vCPUs; not in recordings that say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Its kernel, where it can be read, or the version of Windows that it says it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The reason why its kernel cannot be read, or not all of it, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// What would lift its tier, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Guest {
    /// Without a steal-time record there is no attempt to read a guest.
    pub(crate) fn of(vm: &Vm) -> Self {
        let tier = vm.tier();
        if let (VmState::Unreadable(_), Some(windows)) = (&vm.state, vm.windows) {
            return Self::of_windows(tier, windows);
        }
        let (why, remedy) = match &vm.state {
            VmState::Readable(guest) => {
                let kernel = Some(guest.kernel().to_string());
                let (unreadable, remedy) = match tier {
                    Tier::Queue => (Some(UNCOUNTED.into()), Some(COUNT_PREEMPTION.into())),
                    _ => (None, None),
                };
                return Self { tier: Some(tier), kernel, unreadable, remedy };
            }
            VmState::Unreadable(Some(why)) => (chain(why), why.remedy()),
            VmState::Unreadable(None) if vm.is_being_searched() => {
                ("its memory is being searched".into(), None)
            }
            VmState::Unreadable(None) => {
                (ReadError::NoStealTime.to_string(), ReadError::NoStealTime.remedy())
            }
        };
        Self { remedy: remedy.map(Into::into), ..Self::unknown(why) }
    }

    /// Windows has no public layout, so that its kernel is never read.
    fn of_windows(tier: Tier, windows: Windows) -> Self {
        let (why, remedy) = if windows.has_irql {
            (
                "its interrupt request level (IRQL) alone tells what its vCPUs are likely to do",
                "no tier above it is for Windows; pause-loop exits or hv-spinlocks tell which \
                 vCPU spins",
            )
        } else {
            (
                "KVM does not have its interrupt request level (IRQL): its APIC is not KVM's, or \
                 it is protected from the host",
                "give it KVM's APIC (kernel-irqchip=on or split)",
            )
        };
        Self {
            tier: Some(tier),
            kernel: Some(windows.id.to_string()),
            unreadable: Some(why.into()),
            remedy: Some(remedy.into()),
        }
    }

    /// A guest of which nothing is known.
    pub(crate) fn unknown(why: String) -> Self {
        Self { tier: Some(Tier::None), unreadable: Some(why), ..Self::default() }
    }

    /// The kernel, or else the reason why it is not known.
    pub(crate) fn text(&self) -> &str {
        self.kernel.as_deref().or(self.unreadable.as_deref()).unwrap_or_default()
    }

    /// Are words of its kernel read, that tell most classes of its vCPUs exactly?
    pub(crate) fn is_read(&self) -> bool {
        self.kernel.is_some() && (self.unreadable.is_none() || self.tier == Some(Tier::Queue))
    }

    /// The name of its tier, or `-`.
    pub fn tier_name(&self) -> &'static str {
        self.tier.map_or("-", Tier::name)
    }

    /// Why it is not of the highest tier, and what would lift it, in one sentence without a stop.
    pub fn why(&self) -> Option<String> {
        let why = self.unreadable.as_deref()?;
        let remedy = self.remedy.as_ref().map(|text| format!("; {text}")).unwrap_or_default();
        Some(format!("{why}{remedy}"))
    }
}

/// An error with its causes, on one line.
fn chain(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use holdfast_bpf::WindowsId;

    use super::*;

    #[test]
    fn windows_says_why_it_is_not_exact_and_what_would_lift_it() {
        let id = WindowsId::new(0x0001_040a_0000_4f7c).unwrap();
        let guest = |tier, has_irql| Guest::of_windows(tier, Windows { id, has_irql });
        let known = guest(Tier::Irql, true);
        assert_eq!((known.text(), known.tier_name()), ("Windows 10.0 build 20348", "irql"));
        assert!(known.why().unwrap().contains("IRQL") && !known.is_read());
        let hidden = guest(Tier::None, false);
        assert!(hidden.why().unwrap().ends_with("(kernel-irqchip=on or split)"));
        assert!(!hidden.is_read());
    }
}
