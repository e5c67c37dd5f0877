// SPDX-License-Identifier: GPL-2.0-or-later
//! A bounded reader for BTF from a guest's memory.
//!
//! Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h. The reader interprets only the
//! types that the layout needs, and skips all others. Every byte is hostile: there is no recursion,
//! each walk has a budget, and the only allocation is an index of at most a third of the blob's
//! size. docs/decisions/0002-btf-parser.md says why no library is used.

/// First bytes of every little-endian BTF blob without flags: magic 0xeb9f, version 1, flags 0.
pub(crate) const MAGIC: [u8; 4] = [0x9f, 0xeb, 1, 0];
/// Length of the header that all versions share.
pub(crate) const HEADER_LEN: usize = 24;
/// Longest header accepted. The header of Linux 7.1 has 32 bytes.
const HEADER_MAX: u32 = 256;
/// Length of `struct btf_layout`: one byte for the length after the common part, one for the length
/// of each of the `vlen` parts, and flags.
const LAYOUT_LEN: usize = 4;
/// Largest blob considered. Distributions' kernels have 4 to 6 MB, their debug kernels 10 MB.
pub(crate) const BLOB_MAX: u64 = 24 << 20;
/// Typedefs, qualifiers and arrays between a variable and its struct; real ones have below 5.
const HOPS_MAX: usize = 32;
/// Length of a name; KSYM_NAME_LEN of the kernel is 512.
const NAME_MAX: usize = 512;
/// Struct members read to find one; the largest real struct has a few hundred.
const MEMBERS_MAX: usize = 64 * 1024;

/// Errors of a BTF blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Not BTF, or a version or byte order that no x86-64 kernel uses.
    #[error("not BTF of version 1: the header is wrong")]
    Header,
    /// A section lies outside the blob.
    #[error("{0} lies outside the blob")]
    Bounds(&'static str),
    /// BTF that continues another BTF. Its first string is not empty.
    #[error("this is split BTF of a module, and not a kernel's BTF")]
    Split,
    /// A type of a kind that neither this reader nor the blob's layout section knows, so the next
    /// type cannot be found.
    #[error("type {id} is of unknown kind {kind}, whose length is not in the BTF")]
    Kind {
        /// Number of the type.
        id: u32,
        /// Its kind.
        kind: u32,
    },
    /// Types refer to each other in a cycle, or in a chain that is too long.
    #[error("types nest too deeply at type {0}")]
    Depth(u32),
    /// A reference to a type that is missing, or of the wrong kind.
    #[error("type {0} is missing or of the wrong kind")]
    Type(u32),
}

/// The header, checked so that all sections lie within `total_len` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    types_at: usize,
    types_len: usize,
    strings_at: usize,
    strings_len: usize,
}

impl Header {
    /// Reads the first [`HEADER_LEN`] bytes of a blob.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        if bytes.get(..4) != Some(&MAGIC[..]) || bytes.len() < HEADER_LEN {
            return Err(BtfError::Header);
        }
        let word = |at| u32_at(bytes, at).ok_or(BtfError::Header);
        let (header_len, types_off, types_len) = (word(4)?, word(8)?, word(12)?);
        let (strings_off, strings_len) = (word(16)?, word(20)?);
        if !(HEADER_LEN as u32..=HEADER_MAX).contains(&header_len) || header_len % 4 != 0 {
            return Err(BtfError::Header);
        }
        // Neither section is empty, and types are aligned (btf_parse_hdr, btf_check_*).
        if types_len < 12 || types_len % 4 != 0 || types_off % 4 != 0 || strings_len < 2 {
            return Err(BtfError::Header);
        }
        let end = |off: u32, len: u32| u64::from(header_len) + u64::from(off) + u64::from(len);
        if end(types_off, types_len) > BLOB_MAX || end(strings_off, strings_len) > BLOB_MAX {
            return Err(BtfError::Bounds("a section"));
        }
        // The kernel demands sections that follow each other without overlap.
        if u64::from(types_off) + u64::from(types_len) > u64::from(strings_off) {
            return Err(BtfError::Bounds("the type section"));
        }
        Ok(Self {
            types_at: (header_len + types_off) as usize,
            types_len: types_len as usize,
            strings_at: (header_len + strings_off) as usize,
            strings_len: strings_len as usize,
        })
    }

    /// Bytes from the header to the end of the last section.
    pub(crate) fn total_len(&self) -> usize {
        self.strings_at + self.strings_len
    }

    /// Offset and length of the string section.
    pub(crate) fn strings(&self) -> (usize, usize) {
        (self.strings_at, self.strings_len)
    }
}

/// BTF_KIND_* of include/uapi/linux/btf.h, as far as they are used.
pub(crate) mod kind {
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const STRUCT: u32 = 4;
    pub(crate) const UNION: u32 = 5;
    pub(crate) const TYPEDEF: u32 = 8;
    pub(crate) const VOLATILE: u32 = 9;
    pub(crate) const CONST: u32 = 10;
    pub(crate) const RESTRICT: u32 = 11;
    pub(crate) const VAR: u32 = 14;
    pub(crate) const DATASEC: u32 = 15;
    pub(crate) const TYPE_TAG: u32 = 18;
}

/// Bytes after the common 12 of a type of a known kind: a fixed number, and a number for each of
/// its `vlen` parts.
fn known_extra_len(kind: u32) -> Option<(usize, usize)> {
    Some(match kind {
        1 | 17 => (4, 0),       // INT, DECL_TAG
        kind::VAR => (4, 0),    // linkage
        kind::ARRAY => (12, 0), // struct btf_array
        kind::STRUCT | kind::UNION => (0, 12),
        6 | 13 => (0, 8),               // ENUM, FUNC_PROTO
        kind::DATASEC | 19 => (0, 12),  // DATASEC, ENUM64
        2 | 7..=12 | 16 | 18 => (0, 0), // PTR, FWD, TYPEDEF .. FUNC, FLOAT, TYPE_TAG
        _ => return None,
    })
}

/// One type: the common part, and the bytes that belong to its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type<'a> {
    pub(crate) kind: u32,
    /// Names a string; 0 is anonymous.
    pub(crate) name: u32,
    /// `size` or `type` of `struct btf_type`, depending on the kind.
    pub(crate) size_or_type: u32,
    kind_flag: bool,
    extra: &'a [u8],
}

/// A variable in a data section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionVar {
    pub(crate) type_id: u32,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// A member found in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) offset: u32,
    pub(crate) type_id: u32,
}

/// A BTF blob, ready for look-ups.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    /// `struct btf_layout` for each kind, from Linux 7.1 on: the lengths of types that this reader
    /// does not know.
    layouts: &'a [u8],
    strings: &'a [u8],
    /// Offset in `types` of type `i + 1`; type 0 is `void` and not stored.
    index: Vec<u32>,
}

impl<'a> Btf<'a> {
    /// Checks the blob's frame and finds where each type begins.
    pub(crate) fn parse(blob: &'a [u8]) -> Result<Self, BtfError> {
        let header = Header::parse(blob)?;
        let section = |at: usize, len: usize| blob.get(at..at.checked_add(len)?);
        let types = section(header.types_at, header.types_len)
            .ok_or(BtfError::Bounds("the type section"))?;
        let strings = section(header.strings_at, header.strings_len)
            .ok_or(BtfError::Bounds("the string section"))?;
        if strings.last() != Some(&0) {
            return Err(BtfError::Bounds("a string"));
        }
        if strings.first() != Some(&0) {
            return Err(BtfError::Split);
        }
        let layouts = layout_section(blob).unwrap_or_default();
        let mut btf = Self { types, layouts, strings, index: Vec::new() };
        let mut at = 0;
        while at < types.len() {
            let id = btf.index.len() as u32 + 1;
            let info = u32_at(types, at + 4).ok_or(BtfError::Type(id))?;
            let len = btf.extra_len(info).ok_or(BtfError::Kind { id, kind: kind_of(info) })?;
            btf.index.push(at as u32);
            at += 12 + len;
        }
        if at != types.len() {
            return Err(BtfError::Bounds("the last type"));
        }
        Ok(btf)
    }

    /// Bytes after the common 12 of a type.
    fn extra_len(&self, info: u32) -> Option<usize> {
        let kind = kind_of(info);
        let (fixed, each) = known_extra_len(kind).or_else(|| {
            // Kind 0 does not exist: zeroes are no list of types.
            let at = (kind as usize).checked_mul(LAYOUT_LEN).filter(|at| *at != 0)?;
            let layout = self.layouts.get(at..at + LAYOUT_LEN)?;
            let (fixed, each) = (usize::from(layout[0]), usize::from(layout[1]));
            (fixed % 4 == 0 && each % 4 == 0).then_some((fixed, each))
        })?;
        Some(fixed + each * vlen_of(info))
    }

    /// Type number `id`.
    pub(crate) fn type_at(&self, id: u32) -> Result<Type<'a>, BtfError> {
        let types = self.types;
        let read = || {
            let at = *self.index.get((id as usize).checked_sub(1)?)? as usize;
            let info = u32_at(types, at + 4)?;
            let len = self.extra_len(info)?;
            Some(Type {
                kind: kind_of(info),
                name: u32_at(types, at)?,
                size_or_type: u32_at(types, at + 8)?,
                kind_flag: info >> 31 != 0,
                extra: types.get(at + 12..at + 12 + len)?,
            })
        };
        read().ok_or(BtfError::Type(id))
    }

    /// The string at `offset`, without its terminator; empty where there is no string, or one
    /// longer than any name in a kernel. A guest may name each of a million types by one string of
    /// megabytes.
    pub(crate) fn string(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let rest = &rest[..rest.len().min(NAME_MAX)];
        &rest[..memchr::memchr(0, rest).unwrap_or(0)]
    }

    /// Is `name` among the strings?
    pub(crate) fn has_string(&self, name: &str) -> bool {
        let mut needle = vec![0];
        needle.extend_from_slice(name.as_bytes());
        needle.push(0);
        memchr::memmem::find(self.strings, &needle).is_some()
    }

    /// The first struct of this name.
    pub(crate) fn struct_named(&self, name: &str) -> Option<u32> {
        (1..=self.index.len() as u32).find(|id| {
            let found = self.type_at(*id).ok().filter(|t| t.kind == kind::STRUCT);
            found.is_some_and(|t| self.string(t.name) == name.as_bytes())
        })
    }

    /// Every data section: its name, its size, its variables.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (&'a [u8], u32, Type<'a>)> {
        (1..=self.index.len() as u32).filter_map(|id| {
            let section = self.type_at(id).ok().filter(|t| t.kind == kind::DATASEC)?;
            Some((self.string(section.name), section.size_or_type, section))
        })
    }

    /// Each variable of a section with its name.
    pub(crate) fn vars(&self, section: Type<'a>) -> impl Iterator<Item = (&'a [u8], SectionVar)> {
        section.extra.chunks_exact(12).filter_map(|entry| {
            let var = self.type_at(u32_at(entry, 0)?).ok().filter(|t| t.kind == kind::VAR)?;
            let place = SectionVar {
                type_id: var.size_or_type,
                offset: u32_at(entry, 4)?,
                size: u32_at(entry, 8)?,
            };
            Some((self.string(var.name), place))
        })
    }

    /// Resolves typedefs and qualifiers of `id`.
    pub(crate) fn bare(&self, id: u32) -> Result<Type<'a>, BtfError> {
        let mut at = id;
        for _ in 0..HOPS_MAX {
            let found = self.type_at(at)?;
            match found.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    at = found.size_or_type;
                }
                _ => return Ok(found),
            }
        }
        Err(BtfError::Depth(id))
    }

    /// Element type and number of elements, if `id` is an array.
    pub(crate) fn array(&self, id: u32) -> Result<(u32, u32), BtfError> {
        let array = self.bare(id)?;
        match (u32_at(array.extra, 0), u32_at(array.extra, 8)) {
            (Some(element), Some(count)) if array.kind == kind::ARRAY => Ok((element, count)),
            _ => Err(BtfError::Type(id)),
        }
    }

    /// Byte offset and type of member `name` of the struct or union `id`.
    ///
    /// Members of anonymous structs and unions count as members, as in C. `Ok(None)` means that
    /// there is no such member, or that it is a bit field.
    pub(crate) fn member(&self, id: u32, name: &str) -> Result<Option<Member>, BtfError> {
        let mut todo = vec![(id, 0u32)];
        let mut budget = MEMBERS_MAX;
        while let Some((outer, base)) = todo.pop() {
            let found = self.bare(outer)?;
            if !matches!(found.kind, kind::STRUCT | kind::UNION) {
                if outer == id {
                    return Err(BtfError::Type(id));
                }
                continue;
            }
            for entry in found.extra.chunks_exact(12) {
                budget = budget.checked_sub(1).ok_or(BtfError::Depth(id))?;
                let Some((member, bits)) = member_at(found, entry) else { continue };
                let Some(offset) = base.checked_add(bits / 8) else { continue };
                match self.string(member.0) {
                    [] => todo.push((member.1, offset)),
                    bytes if bytes == name.as_bytes() && bits % 8 == 0 => {
                        return Ok(Some(Member { offset, type_id: member.1 }));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }
}

/// Name and type of a member, and its place in bits; `None` for a bit field.
fn member_at(outer: Type<'_>, entry: &[u8]) -> Option<((u32, u32), u32)> {
    let place = u32_at(entry, 8)?;
    // With the kind flag set the upper byte is a bit field's width (btf.rst, BTF_KIND_STRUCT).
    let (width, bits) = if outer.kind_flag { (place >> 24, place & 0xff_ffff) } else { (0, place) };
    (width == 0).then_some(((u32_at(entry, 0)?, u32_at(entry, 4)?), bits))
}

/// The layout section, if the header is long enough to name one and it lies within the blob. It
/// comes before the strings.
fn layout_section(blob: &[u8]) -> Option<&[u8]> {
    let header_len = u32_at(blob, 4)? as usize;
    let header = blob.get(..header_len)?;
    let (at, len) = (u32_at(header, HEADER_LEN)?, u32_at(header, HEADER_LEN + 4)?);
    let at = header_len.checked_add(at as usize)?;
    blob.get(at..at.checked_add(len as usize)?)
}

/// 7 bits from Linux 7.1 on, 5 before; the others are 0 there.
fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x7f
}

/// 24 bits from Linux 7.1 on, 16 before; the others are 0 there.
fn vlen_of(info: u32) -> usize {
    (info & 0xff_ffff) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
