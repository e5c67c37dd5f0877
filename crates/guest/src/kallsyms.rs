// SPDX-License-Identifier: GPL-2.0-or-later
//! The per-CPU variables of a guest's kernel from its own symbol table, for kernels whose BTF has
//! none: `scripts/link-vmlinux.sh` leaves them out with pahole 1.18 to 1.21.
//!
//! The table is in `.rodata`, which is linked right before `.BTF`. It has every variable where the
//! kernel has CONFIG_KALLSYMS_ALL. `scripts/kallsyms.c` writes it, up to Linux 6.3 as these parts,
//! each at a multiple of 8:
//!
//! | part | contents |
//! |---|---|
//! | offsets | 32 bits for each symbol: of a per-CPU variable its offset, of any other a negative |
//! | relative base | 64 bits |
//! | number of symbols | 32 bits; 64 before Linux 5.0 |
//! | names | for each symbol a length, and as many tokens; the first character is its type |
//! | markers | where every 256th name begins: 32 bits each; 64 before Linux 5.0 |
//! | token table | 256 strings |
//! | token index | where each begins: 16 bits each |
//!
//! Symbols are in the order of their addresses, and the per-CPU ones come first. Every byte is
//! hostile: there is a budget for all work together.

use memchr::memmem;

use crate::{
    address::{Hva, HvaRange, PAGE_SIZE, Slot},
    memory::{GuestMemory, MemoryError},
};

/// Longest distance from the table to the blob. It is 3 MB in Debian 11's kernels.
const BACK_MAX: u64 = 16 << 20;
/// Parts begin at multiples of this.
const ALIGN: usize = 8;
/// Tokens of a table; each is a string.
const NR_TOKENS: usize = 256;
/// Names between two markers.
const MARKED: usize = 256;
/// Longest name in tokens: KSYM_NAME_LEN of the kernel is 512. From 128 on, since Linux 6.1, its
/// length has two bytes.
const NAME_TOKENS_MAX: usize = 512;
/// Most symbols; real kernels have 100 to 250 thousand.
const SYMBOLS_MAX: usize = 1 << 20;
/// Steps of all loops together. A real table takes about as many as it has symbols, and 100
/// thousand to find it.
const STEPS_MAX: u32 = 32 << 20;
/// Any character that names have stands for itself, and no name lacks a digit.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";

/// A per-CPU variable that was asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol<'n> {
    pub(crate) name: &'n str,
    /// Its offset in the per-CPU area.
    pub(crate) offset: u32,
    /// Bytes from there to the next symbol: its size, and what aligns that.
    pub(crate) room: u32,
}

/// The per-CPU variables of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbols<'n> {
    /// Size of the static per-CPU area.
    pub(crate) area_len: u32,
    pub(crate) found: Vec<Symbol<'n>>,
}

/// The variables `wanted` of the kernel whose BTF is at `blob`, if its symbol table is found.
pub(crate) fn find<'n>(
    mem: &dyn GuestMemory,
    slot: Slot,
    blob: Hva,
    wanted: &[&'n str],
) -> Result<Option<Symbols<'n>>, MemoryError> {
    let start = Hva::new(blob.get().saturating_sub(BACK_MAX) / PAGE_SIZE * PAGE_SIZE);
    let start = start.max(slot.hva());
    let mut runs = Vec::new();
    mem.resident(HvaRange { start, end: blob }, &mut runs)?;
    // The image is contiguous.
    let Some(run) = runs.last().filter(|run| run.end == blob) else { return Ok(None) };
    let mut image = vec![0; run.len() as usize];
    match mem.read(run.start, &mut image) {
        Err(MemoryError::NotMapped { .. }) => return Ok(None),
        other => other?,
    }
    // Where a part begins depends on its address.
    let skew = (run.start.get() as usize).next_multiple_of(ALIGN) - run.start.get() as usize;
    Ok(image.get(skew..).and_then(|image| parse(image, wanted)))
}

/// The same in the bytes before a blob, which begin at a multiple of 8.
pub(crate) fn parse<'n>(image: &[u8], wanted: &[&'n str]) -> Option<Symbols<'n>> {
    let mut budget = Budget(STEPS_MAX);
    memmem::find_iter(image, DIGITS).find_map(|digits| {
        let tokens = Tokens::around(image, digits, &mut budget)?;
        [4, 8].into_iter().find_map(|width| {
            let names = Names::before(image, tokens.at, width, &mut budget)?;
            names.per_cpu(&tokens, wanted, &mut budget)
        })
    })
}

/// Steps left.
struct Budget(u32);

impl Budget {
    /// `None` once it is used up.
    fn spend(&mut self, steps: usize) -> Option<()> {
        self.0 = self.0.checked_sub(u32::try_from(steps).ok()?)?;
        Some(())
    }
}

/// The table of tokens and its index.
struct Tokens<'a> {
    /// Where the table begins.
    at: usize,
    tokens: Vec<&'a [u8]>,
}

impl<'a> Tokens<'a> {
    /// The tables in which the tokens of digits are at `digits`.
    fn around(image: &'a [u8], digits: usize, budget: &mut Budget) -> Option<Self> {
        const LONGEST: usize = 64;
        let mut end = digits;
        for _ in usize::from(b'0')..NR_TOKENS {
            budget.spend(1)?;
            let rest = image.get(end..)?;
            end += memchr::memchr(0, &rest[..rest.len().min(LONGEST)])? + 1;
        }
        let index_at = end.next_multiple_of(ALIGN);
        let index = image.get(index_at..index_at + NR_TOKENS * 2)?;
        let place = |token: usize| usize::from(u16_at(index, token * 2));
        let at = digits.checked_sub(place(b'0'.into()))?;
        if place(0) != 0 || !at.is_multiple_of(ALIGN) {
            return None;
        }
        let mut tokens = Vec::with_capacity(NR_TOKENS);
        for token in 0..NR_TOKENS {
            budget.spend(1)?;
            let end = if token + 1 < NR_TOKENS { at + place(token + 1) } else { end };
            let (text, zero) = image
                .get(at + place(token)..end)?
                .split_at_checked(end.checked_sub(at + place(token) + 1)?)?;
            if zero != [0] || memchr::memchr(0, text).is_some() {
                return None;
            }
            tokens.push(text);
        }
        Some(Self { at, tokens })
    }
}

/// The names of all symbols, and their offsets.
struct Names<'a> {
    offsets: &'a [u8],
    names: &'a [u8],
    nr: usize,
}

impl<'a> Names<'a> {
    /// The names whose markers, of `width` bytes each, end at `tokens_at`.
    fn before(
        image: &'a [u8],
        tokens_at: usize,
        width: usize,
        budget: &mut Budget,
    ) -> Option<Self> {
        let markers = Markers::ending_at(image, tokens_at, width, budget)?;
        let last = *markers.places.last()?;
        // The last part has at least one name, which has a length.
        let longest = MARKED * (NAME_TOKENS_MAX + 2);
        let first_len = (last + 2).next_multiple_of(ALIGN);
        (first_len..=last + longest).step_by(ALIGN).find_map(|len| {
            budget.spend(1)?;
            let at = markers.at.checked_sub(len)?;
            // The number, and the relative base, come before.
            let nr = u32_at(image, at.checked_sub(ALIGN)?)? as usize;
            if nr > SYMBOLS_MAX || nr.div_ceil(MARKED) != markers.places.len() {
                return None;
            }
            let offsets_len = (nr * 4).next_multiple_of(ALIGN);
            let offsets_at = at.checked_sub(2 * ALIGN + offsets_len)?;
            let names = &image[at..markers.at];
            markers.agree_with(names, nr, budget)?;
            Some(Self { offsets: &image[offsets_at..][..nr * 4], names, nr })
        })
    }

    /// The variables `wanted`, if these are the symbols of a kernel with per-CPU variables.
    fn per_cpu<'n>(
        &self,
        tokens: &Tokens<'_>,
        wanted: &[&'n str],
        budget: &mut Budget,
    ) -> Option<Symbols<'n>> {
        const FIRST: &str = "__per_cpu_start";
        const END: &str = "__per_cpu_end";
        let longest = wanted.iter().chain(&[FIRST, END]).map(|name| name.len()).max()?;
        let (mut at, mut name) = (0, Vec::new());
        let (mut began, mut found) = (false, Vec::<Symbol<'n>>::new());
        let mut last = 0;
        for nr in 0..self.nr {
            budget.spend(1)?;
            let offset = u32_at(self.offsets, nr * 4)?;
            // They ascend, and several can be the same.
            if offset < last || offset > i32::MAX as u32 {
                return None;
            }
            last = offset;
            for symbol in found.iter_mut().filter(|symbol| symbol.room == 0) {
                symbol.room = offset - symbol.offset;
            }
            let (first, end) = name_at(self.names, at)?;
            name.clear();
            for token in self.names.get(first..end)? {
                budget.spend(1)?;
                // Its type comes first. A longer name is none that is wanted.
                if name.len() <= longest + 1 {
                    name.extend_from_slice(tokens.tokens[usize::from(*token)]);
                }
            }
            at = end;
            let text = name.get(1..)?;
            if text == FIRST.as_bytes() {
                began = offset == 0;
            } else if text == END.as_bytes() {
                return began.then_some(Symbols { area_len: offset, found });
            } else if let Some(name) = wanted.iter().find(|name| name.as_bytes() == text) {
                // Two variables of one name cannot be told apart.
                if found.iter().any(|symbol| symbol.name == *name) {
                    return None;
                }
                found.push(Symbol { name, offset, room: 0 });
            }
        }
        None
    }
}

/// Where every 256th name begins.
struct Markers {
    at: usize,
    places: Vec<usize>,
}

impl Markers {
    /// They ascend, and the first is 0. Up to one word of zeroes may follow.
    fn ending_at(image: &[u8], end: usize, width: usize, budget: &mut Budget) -> Option<Self> {
        let word = |at: usize| match width {
            4 => u32_at(image, at).map(u64::from),
            _ => Some(u64::from(u32_at(image, at)?) | u64::from(u32_at(image, at + 4)?) << 32),
        };
        let mut places = Vec::new();
        let mut at = end.checked_sub(width)?;
        if word(at)? == 0 {
            at = at.checked_sub(width)?;
        }
        loop {
            budget.spend(1)?;
            let place = usize::try_from(word(at)?).ok()?;
            if places.last().is_some_and(|later| place >= *later) || place > image.len() {
                return None;
            }
            places.push(place);
            if place == 0 {
                places.reverse();
                return at.is_multiple_of(ALIGN).then_some(Self { at, places });
            }
            if places.len() > SYMBOLS_MAX / MARKED {
                return None;
            }
            at = at.checked_sub(width)?;
        }
    }

    /// Are there `nr` names, which end where the markers begin, each marked one where it should be?
    fn agree_with(&self, names: &[u8], nr: usize, budget: &mut Budget) -> Option<()> {
        // The last part alone rejects nearly every false place.
        let last = self.places.len() - 1;
        for part in std::iter::once(last).chain(0..last) {
            let mut at = self.places[part];
            for _ in part * MARKED..nr.min((part + 1) * MARKED) {
                budget.spend(1)?;
                (_, at) = name_at(names, at)?;
            }
            let end = match self.places.get(part + 1) {
                Some(next) => at == *next,
                None => at.next_multiple_of(ALIGN) == names.len(),
            };
            if !end {
                return None;
            }
        }
        Some(())
    }
}

/// Where the tokens of a name begin and end.
fn name_at(names: &[u8], at: usize) -> Option<(usize, usize)> {
    let byte = |at: usize| names.get(at).map(|byte| usize::from(*byte));
    let (len, first) = match byte(at)? {
        low @ 0x80.. => (low & 0x7f | byte(at + 1)? << 7, at + 2),
        len => (len, at + 1),
    };
    (1..=NAME_TOKENS_MAX).contains(&len).then_some((first, first + len))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WANTED: [&str; 3] = ["steal_time", "qnodes", "cpu_number"];

    /// A symbol table as `scripts/kallsyms.c` writes it, after some other bytes. The token after
    /// that of `z` stands for `steal`.
    fn table(symbols: &[(&str, i32)], width: usize) -> Vec<u8> {
        let align = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(ALIGN), 0);
        let mut out = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00 is no table".to_vec();
        align(&mut out);
        out.extend(symbols.iter().flat_map(|(_, offset)| offset.to_le_bytes()));
        align(&mut out);
        out.extend(0xffff_ffff_8100_0000_u64.to_le_bytes());
        out.extend((symbols.len() as u64).to_le_bytes());
        let (mut names, mut markers) = (Vec::new(), Vec::new());
        for (nr, (name, _)) in symbols.iter().enumerate() {
            if nr % MARKED == 0 {
                markers.extend_from_slice(&(names.len() as u64).to_le_bytes()[..width]);
            }
            let tokens = format!("A{}", name.replace("steal", "{"));
            match tokens.len() {
                len @ ..0x80 => names.push(len as u8),
                len => names.extend([len as u8 | 0x80, (len >> 7) as u8]),
            }
            names.extend(tokens.bytes());
        }
        for part in [names, markers] {
            out.extend(part);
            align(&mut out);
        }
        let (at, mut index) = (out.len(), Vec::new());
        for token in 0..=u8::MAX {
            index.extend(((out.len() - at) as u16).to_le_bytes());
            match token {
                b'{' => out.extend(b"steal"),
                b' '..=b'z' => out.push(token),
                _ => {}
            }
            out.push(0);
        }
        align(&mut out);
        out.extend(index);
        out
    }

    /// The symbols of a kernel with `more` others after the per-CPU ones.
    fn kernel(more: usize) -> Vec<(String, i32)> {
        let per_cpu = [
            ("fixed_percpu_data", 0),
            ("__per_cpu_start", 0),
            ("cpu_number", 0x100),
            ("this_cpu_off", 0x108),
            ("qnodes", 0x200),
            ("steal_time", 0x280),
            ("apf_reason", 0x2c0),
            ("__per_cpu_end", 0x1000),
        ];
        let others = (0..more).map(|n| (format!("some_function_{n}"), -1 - n as i32));
        per_cpu.into_iter().map(|(name, at)| (name.to_owned(), at)).chain(others).collect()
    }

    fn table_of(symbols: &[(String, i32)], width: usize) -> Vec<u8> {
        let borrowed: Vec<_> = symbols.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        table(&borrowed, width)
    }

    #[test]
    fn finds_variables_with_the_room_that_each_has() {
        let symbol = |name, offset, room| Symbol { name, offset, room };
        let expected = Symbols {
            area_len: 0x1000,
            found: vec![
                symbol("cpu_number", 0x100, 8),
                symbol("qnodes", 0x200, 0x80),
                symbol("steal_time", 0x280, 0x40),
            ],
        };
        for width in [4, 8] {
            // One part, a whole one, and several.
            for more in [0, 248, 249, 700, 1000] {
                let image = table_of(&kernel(more), width);
                assert_eq!(parse(&image, &WANTED), Some(expected.clone()), "{width} {more}");
            }
        }
        // A name with a length of two bytes.
        let mut long = kernel(300);
        long.push(("l".repeat(300), -900));
        assert_eq!(parse(&table_of(&long, 4), &WANTED), Some(expected));
    }

    #[test]
    fn refuses_tables_without_per_cpu_variables_and_with_two_of_a_name() {
        let mut twice = kernel(300);
        twice.insert(6, ("qnodes".into(), 0x290));
        assert_eq!(parse(&table_of(&twice, 4), &WANTED), None);
        // Without CONFIG_KALLSYMS_ABSOLUTE_PERCPU, or with an area that does not begin at 0.
        let mut relative = kernel(300);
        relative.iter_mut().for_each(|(_, at)| *at = -1 - *at);
        assert_eq!(parse(&table_of(&relative, 4), &WANTED), None);
        let mut shifted = kernel(300);
        shifted.iter_mut().take(8).for_each(|(_, at)| *at += 0x1000);
        assert_eq!(parse(&table_of(&shifted, 4), &WANTED), None);
        // The area would end before a variable does.
        let mut back = kernel(300);
        let end = back.iter_mut().find(|(name, _)| name == "__per_cpu_end").unwrap();
        end.1 = 0x210;
        assert_eq!(parse(&table_of(&back, 4), &WANTED), None);
        assert_eq!(parse(&[], &WANTED), None);
    }

    #[test]
    fn a_guest_full_of_false_tables_is_read_in_bounded_time() {
        let start = std::time::Instant::now();
        let mut image = Vec::new();
        // Digits everywhere; tables whose names do not fit; and markers that ascend for ever.
        image.extend(DIGITS.iter().copied().cycle().take(4 << 20));
        let whole = table_of(&kernel(100_000), 4);
        for n in 0..3 {
            image.resize(image.len().next_multiple_of(ALIGN), 0);
            let mut spoilt = whole.clone();
            let middle = spoilt.len() / 2;
            spoilt[middle + n] ^= 0x55;
            image.extend(spoilt);
        }
        image.resize(image.len().next_multiple_of(ALIGN), 0);
        image.extend((0..1_u32 << 20).flat_map(u32::to_le_bytes));
        image.extend(&whole[whole.len() - 2048..]);
        assert_eq!(parse(&image, &WANTED), None);
        assert!(start.elapsed().as_secs() < 10, "took {:?}", start.elapsed());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn damaged_tables_give_variables_within_the_area_or_nothing(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            cut in any::<prop::sample::Index>(),
            cuts: bool,
        ) {
            let mut image = table_of(&kernel(600), 4);
            for (at, to) in damage {
                let at = at.index(image.len());
                image[at] = to;
            }
            if cuts {
                image.truncate(cut.index(image.len()));
            }
            if let Some(symbols) = parse(&image, &WANTED) {
                prop_assert!(symbols.found.len() <= WANTED.len());
                for symbol in symbols.found {
                    prop_assert!(symbol.offset + symbol.room <= symbols.area_len);
                }
            }
        }
    }
}
