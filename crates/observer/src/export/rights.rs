// SPDX-License-Identifier: GPL-2.0-or-later
//! Gives up the server's rights.

use std::{fs, io};

use nix::unistd::{Gid, Uid, geteuid, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// Gives up every capability, and root's user and groups, for good. A right that is left, also in
/// another thread, is an error.
pub(super) fn drop_all() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    clear_ambient_capability_set()?;
    // Dropping the bounding set takes CAP_SETPCAP, which a service may lack. The set only limits
    // the capabilities that an exec may add, and `no_new_privs` rules these out.
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if remove_capability_from_bounding_set(capability).is_err() {
            break;
        }
    }
    if geteuid().is_root() {
        setgroups(&[])?;
        setgid(Gid::from_raw(NOBODY))?;
        setuid(Uid::from_raw(NOBODY))?;
    }
    // A user other than root may have been given capabilities, and loses them here.
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    for thread in fs::read_dir("/proc/self/task")? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        if let Some(left) = left(&status) {
            return Err(io::Error::other(format!("this is left: {left}")));
        }
    }
    Ok(())
}

/// A line of a thread's `status` that shows a right.
fn left(status: &str) -> Option<&str> {
    status.lines().find(|line| {
        let Some((name, value)) = line.split_once(':') else { return false };
        let value = value.trim();
        match name {
            "Uid" => value.split_ascii_whitespace().any(|uid| uid == "0"),
            "CapInh" | "CapPrm" | "CapEff" | "CapAmb" => value.bytes().any(|digit| digit != b'0'),
            "NoNewPrivs" => value != "1",
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::left;

    #[test]
    fn a_single_right_is_found() {
        let none = "Name:\tx\nUid:\t1\t1\t1\t1\nCapInh:\t0000\nCapPrm:\t0000\nCapEff:\t0000\n\
                    CapBnd:\t01ff\nCapAmb:\t0000\nNoNewPrivs:\t1\n";
        assert_eq!(left(none), None);
        for (is, could_be) in [
            ("Uid:\t1\t1\t1\t1", "Uid:\t1\t1\t0\t1"),
            ("CapInh:\t0000", "CapInh:\t1000"),
            ("CapPrm:\t0000", "CapPrm:\t0001"),
            ("CapEff:\t0000", "CapEff:\t0200"),
            ("CapAmb:\t0000", "CapAmb:\t8000"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
        ] {
            assert_eq!(left(&none.replace(is, could_be)), Some(could_be));
        }
    }
}
