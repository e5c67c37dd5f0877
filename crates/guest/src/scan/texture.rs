// SPDX-License-Identifier: GPL-2.0-or-later
//! Recognises pages of a BTF blob by their contents.
//!
//! These functions only guide the sampled pass. A page wrongly taken for BTF costs a little time;
//! the exhaustive pass finds the pages that are not recognised.

/// Does a page look like part of a BTF string section: printable text, a NUL after each string, no
/// empty strings? In Debian's 6.1, 6.12 and 7.2 every such page does, with at least 91 NULs.
pub(super) fn looks_like_strings(page: &[u8]) -> bool {
    const NULS_MIN: usize = 32;
    let mut previous = b'x';
    let mut nuls = 0;
    for &byte in page {
        match byte {
            0 if previous == 0 => return false,
            0 => nuls += 1,
            0x20..=0x7e => {}
            _ => return false,
        }
        previous = byte;
    }
    nuls >= NULS_MIN
}

/// Could a page be part of a BTF type section? Its words are offsets of names, numbers of types,
/// sizes, and kinds in the top byte: small numbers, few of them 0. In Debian's 6.1, 6.12 and 7.2
/// three quarters of the words of every page are like that, and less than half are 0.
pub(super) fn looks_like_types(page: &[u8]) -> bool {
    const KINDS: u32 = 0x20;
    let words =
        page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()));
    let (small, zero) = words.fold((0, 0), |(small, zero), word| {
        (small + usize::from(word >> 24 < KINDS), zero + usize::from(word == 0))
    });
    small * 2 >= page.len() / 4 && zero * 2 < page.len() / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(piece: &str) -> Vec<u8> {
        let piece = format!("{piece}\0");
        piece.bytes().cycle().take(4096).collect()
    }

    #[test]
    fn strings_are_text_with_a_nul_after_each() {
        assert!(looks_like_strings(&strings("tick_nohz_full_running")));
        assert!(!looks_like_strings(&strings("")), "zeroes");
        assert!(!looks_like_strings(&strings(&"a".repeat(300))), "too few ends");
        assert!(!looks_like_strings(&strings("caf\u{e9}")));
        assert!(!looks_like_strings(&[b'x'; 4096]), "plain text");
    }

    #[test]
    fn types_are_small_numbers() {
        let words = |of: &dyn Fn(u32) -> u32| (0..1024).flat_map(|n| of(n).to_le_bytes()).collect();
        let types: Vec<u8> = words(&|n| if n % 3 == 1 { 0x0400_0000 | n } else { n });
        assert!(looks_like_types(&types));
        let pointers: Vec<u8> =
            words(&|n| if n % 2 == 0 { n << 16 | 0x4000_0000 } else { 0xffff_9d00 });
        assert!(!looks_like_types(&pointers));
        assert!(!looks_like_types(&[0; 4096]));
        assert!(!looks_like_types(&strings("text")));
    }
}
