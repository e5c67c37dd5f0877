// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of the guest of a VM, as all outputs say it.

use holdfast_bpf::{ReadError, Tier, Vm, VmState};
use serde::{Deserialize, Serialize};

/// What is known of the guest of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// How much is known of its vCPUs; not in recordings that say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Its kernel, where it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The reason why it cannot be read, if it cannot.
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
        let (why, remedy) = match &vm.state {
            VmState::Readable(guest) => {
                let kernel = Some(guest.kernel().to_string());
                return Self { tier: Some(tier), kernel, ..Self::default() };
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

    /// A guest of which nothing is known.
    pub(crate) fn unknown(why: String) -> Self {
        Self { tier: Some(Tier::None), unreadable: Some(why), ..Self::default() }
    }

    /// The kernel, or else the reason why it is not known.
    pub(crate) fn text(&self) -> &str {
        self.kernel.as_deref().or(self.unreadable.as_deref()).unwrap_or_default()
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
