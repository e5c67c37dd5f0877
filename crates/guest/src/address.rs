// SPDX-License-Identifier: GPL-2.0-or-later
//! Types for addresses, one for each address space, and the memory slots that translate between
//! them.
//!
//! Three address spaces meet here: guest-physical ([`Gpa`]), host-virtual in the process that runs
//! the guest ([`Hva`]) and guest-virtual ([`Gva`]). Arithmetic is checked everywhere, because the
//! operands come from a guest.

use std::fmt;

/// Smallest page of x86-64, in bytes; residency is tracked in this unit.
pub const PAGE_SIZE: u64 = 4096;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw address.
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The raw address.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The address `bytes` further up, or `None` past the end of the address space.
            pub fn checked_add(self, bytes: u64) -> Option<Self> {
                self.0.checked_add(bytes).map(Self)
            }

            /// The address `bytes` further down, or `None` below zero.
            pub fn checked_sub(self, bytes: u64) -> Option<Self> {
                self.0.checked_sub(bytes).map(Self)
            }

            /// Distance in bytes from `base` up to this address, or `None` if it lies below.
            pub fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }

            /// Is this the first byte of a page?
            pub const fn is_page_aligned(self) -> bool {
                self.0.is_multiple_of(PAGE_SIZE)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address! {
    /// A guest-physical address.
    Gpa
}
address! {
    /// A virtual address in the host process that runs the guest.
    Hva
}
address! {
    /// A virtual address of the guest's kernel.
    Gva
}

/// A half-open range of host-virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HvaRange {
    /// First byte.
    pub start: Hva,
    /// One past the last byte.
    pub end: Hva,
}

impl HvaRange {
    /// `len` bytes from `start`, cut off at the end of the address space.
    pub fn new(start: Hva, len: u64) -> Self {
        Self { start, end: Hva(start.0.saturating_add(len)) }
    }

    /// Length in bytes; 0 for an inverted range.
    pub fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Is it empty?
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Does it hold all of `other`?
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The intersection of both ranges, if it is not empty.
    pub fn intersect(self, other: Self) -> Option<Self> {
        let both = Self { start: self.start.max(other.start), end: self.end.min(other.end) };
        (!both.is_empty()).then_some(both)
    }

    /// The smallest range of whole pages that holds this one.
    pub fn to_pages(self) -> Self {
        Self {
            start: Hva(self.start.0 & !(PAGE_SIZE - 1)),
            end: Hva(self.end.0.checked_next_multiple_of(PAGE_SIZE).unwrap_or(!(PAGE_SIZE - 1))),
        }
    }
}

/// A KVM memory slot: `len` bytes of guest-physical memory at `gpa`, mapped at `hva`.
///
/// The constructor checks that both ends of both mappings fit in 64 bits, so translation within a
/// slot cannot overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    gpa: Gpa,
    hva: Hva,
    len: u64,
}

impl Slot {
    /// A slot, or `None` if it is empty or wraps around in either address space.
    pub fn new(gpa: Gpa, hva: Hva, len: u64) -> Option<Self> {
        gpa.checked_add(len)?;
        hva.checked_add(len)?;
        (len > 0).then_some(Self { gpa, hva, len })
    }

    /// First guest-physical address.
    pub fn gpa(&self) -> Gpa {
        self.gpa
    }

    /// First host-virtual address.
    pub fn hva(&self) -> Hva {
        self.hva
    }

    /// Length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The host-virtual addresses of the slot.
    pub fn hva_range(&self) -> HvaRange {
        HvaRange::new(self.hva, self.len)
    }

    /// Guest-physical address of `hva`, if all `len` bytes from it lie in this slot.
    pub fn to_gpa(&self, hva: Hva, len: u64) -> Option<Gpa> {
        self.gpa.checked_add(self.offset_within(hva.offset_from(self.hva)?, len)?)
    }

    /// Host-virtual address of `gpa`, if all `len` bytes from it lie in this slot.
    pub fn to_hva(&self, gpa: Gpa, len: u64) -> Option<Hva> {
        self.hva.checked_add(self.offset_within(gpa.offset_from(self.gpa)?, len)?)
    }

    fn offset_within(&self, offset: u64, len: u64) -> Option<u64> {
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_a_slot_that_wraps_or_is_empty() {
        assert!(Slot::new(Gpa::new(0), Hva::new(0x1000), 0).is_none());
        assert!(Slot::new(Gpa::new(u64::MAX), Hva::new(0x1000), 2).is_none());
        assert!(Slot::new(Gpa::new(0), Hva::new(u64::MAX - 1), 4096).is_none());
    }

    #[test]
    fn translates_up_to_the_last_byte_and_not_beyond() {
        let slot = Slot::new(Gpa::new(0x10_0000), Hva::new(0x7f00_0000_0000), 0x2000).unwrap();
        assert_eq!(slot.to_hva(Gpa::new(0x10_1fff), 1), Some(Hva::new(0x7f00_0000_1fff)));
        assert_eq!(slot.to_hva(Gpa::new(0x10_1fff), 2), None);
        assert_eq!(slot.to_hva(Gpa::new(0xf_ffff), 1), None);
        assert_eq!(slot.to_hva(Gpa::new(0x10_0000), u64::MAX), None);
    }

    #[test]
    fn whole_pages_of_a_range_hold_it() {
        let range = HvaRange::new(Hva::new(0x1fff), 2).to_pages();
        assert_eq!(range, HvaRange { start: Hva::new(0x1000), end: Hva::new(0x3000) });
        assert!(!HvaRange { start: Hva::new(5), end: Hva::new(u64::MAX) }.to_pages().is_empty());
    }

    proptest! {
        #[test]
        fn translation_is_its_own_inverse(gpa: u64, hva: u64, len: u64, at: u64, n: u64) {
            let Some(slot) = Slot::new(Gpa::new(gpa), Hva::new(hva), len) else { return Ok(()) };
            let at = Gpa::new(gpa.wrapping_add(at % len));
            if let Some(there) = slot.to_hva(at, n) {
                prop_assert_eq!(slot.to_gpa(there, n), Some(at));
                prop_assert!(slot.hva_range().contains(HvaRange::new(there, n)));
            }
        }
    }
}
