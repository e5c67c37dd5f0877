// SPDX-License-Identifier: GPL-2.0-or-later
//! What is known of the guest of a VM, as all outputs say it.

use holdfast_bpf::{Vm, VmState};

/// Name of the guest's kernel, or the reason why it is not known. Without a steal-time record there
/// is no attempt to read it.
pub(crate) fn kernel_of(vm: &Vm) -> (Option<String>, Option<String>) {
    let why = match &vm.state {
        VmState::Readable(guest) => return (Some(guest.kernel().to_string()), None),
        VmState::Unreadable(Some(why)) => chain(why),
        VmState::Unreadable(None) if vm.is_being_searched() => {
            "its memory is being searched".into()
        }
        VmState::Unreadable(None) => "no vCPU has a steal-time record".into(),
    };
    (None, Some(why))
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
