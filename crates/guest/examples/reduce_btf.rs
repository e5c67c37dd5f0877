// SPDX-License-Identifier: GPL-2.0-or-later
//! Reduces a kernel's BTF to the types that the reader uses, with the true offsets and the true
//! order of types, for use as test data: `reduce_btf IN OUT`. IN is raw BTF that is known to be
//! good.
//!
//! The output keeps the per-CPU section with the variables of interest and every twelfth other one,
//! the types of these variables, and one function. Pointers point to void.

use std::{collections::BTreeMap, env, fs};

use holdfast_guest::layout::PER_CPU_VARIABLES;

const PTR: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A type as its 32-bit words: name, info, size or type, then the words of its kind.
type Words = Vec<u32>;

fn kind(words: &[u32]) -> u32 {
    words[1] >> 24 & 0x1f
}

struct Source {
    types: Vec<Words>,
    strings: Vec<u8>,
}

impl Source {
    fn parse(blob: &[u8]) -> Self {
        let header = word(blob, 4) as usize;
        let at = header + word(blob, 8) as usize;
        let types_bytes = &blob[at..at + word(blob, 12) as usize];
        let at = header + word(blob, 16) as usize;
        let strings = blob[at..at + word(blob, 20) as usize].to_vec();
        let (mut types, mut at) = (vec![Vec::new()], 0);
        while at < types_bytes.len() {
            let info = word(types_bytes, at + 4);
            let vlen = (info & 0xffff) as usize;
            let extra = match info >> 24 & 0x1f {
                1 | 14 | 17 => 1,
                3 => 3,
                4 | 5 | 15 | 19 => 3 * vlen,
                6 | 13 => 2 * vlen,
                _ => 0,
            };
            types.push((0..3 + extra).map(|i| word(types_bytes, at + i * 4)).collect());
            at += 12 + extra * 4;
        }
        Self { types, strings }
    }

    fn string(&self, offset: u32) -> &str {
        let rest = &self.strings[offset as usize..];
        let end = rest.iter().position(|byte| *byte == 0).unwrap();
        std::str::from_utf8(&rest[..end]).unwrap()
    }

    /// Keeps type `id` and the types in it; pointers and functions are cut off.
    fn keep(&self, id: u32, kept: &mut BTreeMap<u32, Words>) {
        if id == 0 || kept.contains_key(&id) {
            return;
        }
        let mut words = self.types[id as usize].clone();
        match kind(&words) {
            PTR => words[2] = 0,
            FUNC_PROTO => {
                words[1] &= !0xffff;
                words[2] = 0;
                words.truncate(3);
            }
            _ => {}
        }
        kept.insert(id, words.clone());
        for at in references(&words) {
            self.keep(words[at], kept);
        }
    }
}

/// Which words of a type are numbers of other types.
fn references(words: &[u32]) -> Vec<usize> {
    match kind(words) {
        2 | 8..=12 | 14 | 17 | 18 => vec![2],
        3 => vec![3, 4],
        STRUCT | UNION => (4..words.len()).step_by(3).collect(),
        DATASEC => (3..words.len()).step_by(3).collect(),
        FUNC_PROTO => vec![2],
        _ => vec![],
    }
}

/// Which words of a type are offsets of strings.
fn names(words: &[u32]) -> Vec<usize> {
    let parts = match kind(words) {
        STRUCT | UNION | 19 => (3..words.len()).step_by(3).collect(),
        6 => (3..words.len()).step_by(2).collect(),
        _ => vec![],
    };
    [vec![0], parts].concat()
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let [_, input, output] = args.as_slice() else { panic!("usage: reduce_btf IN OUT") };
    let source = Source::parse(&fs::read(input).unwrap());
    let mut kept = BTreeMap::new();
    for (id, words) in source.types.iter().enumerate().skip(1) {
        let id = id as u32;
        let is_function = kind(words) == FUNC && source.string(words[0]) == "preempt_schedule";
        if is_function {
            source.keep(id, &mut kept);
        }
        if kind(words) != DATASEC || source.string(words[0]) != ".data..percpu" {
            continue;
        }
        let mut section = words[..3].to_vec();
        for (index, entry) in words[3..].chunks_exact(3).enumerate() {
            let var = &source.types[entry[0] as usize];
            assert_eq!(kind(var), VAR);
            if PER_CPU_VARIABLES.contains(&source.string(var[0])) {
                source.keep(entry[0], &mut kept);
            } else if index % 12 == 0 {
                let mut bare = var.clone();
                bare[2] = 0;
                kept.insert(entry[0], bare);
            } else {
                continue;
            }
            section.extend_from_slice(entry);
        }
        section[1] = (section[1] & !0xffff) | ((section.len() as u32 - 3) / 3);
        kept.insert(id, section);
    }
    let number: BTreeMap<u32, u32> = kept.keys().copied().zip(1..).chain([(0, 0)]).collect();
    let (mut types, mut strings) = (Vec::new(), vec![0u8]);
    let mut placed = BTreeMap::from([(String::new(), 0u32)]);
    for words in kept.values() {
        let mut words = words.clone();
        for at in references(&words) {
            words[at] = number[&words[at]];
        }
        for at in names(&words) {
            let name = source.string(words[at]).to_owned();
            words[at] = *placed.entry(name).or_insert_with_key(|name| {
                let at = strings.len() as u32;
                strings.extend_from_slice(name.as_bytes());
                strings.push(0);
                at
            });
        }
        types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    let (types_len, strings_len) = (types.len() as u32, strings.len() as u32);
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types_len, types_len, strings_len] {
        blob.extend_from_slice(&word.to_le_bytes());
    }
    blob.extend_from_slice(&types);
    blob.extend_from_slice(&strings);
    fs::write(output, &blob).unwrap();
    println!("{output}: {} types, {} bytes", kept.len(), blob.len());
}
