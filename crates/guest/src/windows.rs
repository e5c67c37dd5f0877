// SPDX-License-Identifier: GPL-2.0-or-later
//! What a Windows guest says of itself.

use std::fmt;

/// `HV_X64_MSR_GUEST_OS_ID` of a guest that says it is Windows: Microsoft's format of the
/// Hypervisor Top-Level Functional Specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowsId(u64);

impl WindowsId {
    /// `None` for 0, which discovery gives of other guests.
    pub fn new(guest_os_id: u64) -> Option<Self> {
        (guest_os_id != 0).then_some(Self(guest_os_id))
    }
}

impl fmt::Display for WindowsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let byte = |shift: u32| self.0 >> shift & 0xff;
        write!(f, "Windows {}.{} build {}", byte(32), byte(24), self.0 & 0xffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_version_and_build() {
        let text = |id| WindowsId::new(id).map(|id| id.to_string());
        assert_eq!(text(0x0001_040a_0000_4f7c).unwrap(), "Windows 10.0 build 20348");
        assert_eq!(text(0x0001_0406_0101_1db1).unwrap(), "Windows 6.1 build 7601");
        assert_eq!(text(0), None);
    }
}
