// SPDX-License-Identifier: GPL-2.0-or-later
//! Sets of CPUs, in the kernel's bit order.

use crate::layout as l;
use crate::raw::Raw;

/// As many CPUs as the scheduler can handle (`HF_MAX_CPUS`).
pub const MAX_CPUS: usize = 1024;

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet {
    words: [u64; MAX_CPUS / 64],
}

impl CpuSet {
    /// No CPU.
    pub const fn empty() -> Self {
        Self { words: [0; MAX_CPUS / 64] }
    }

    /// CPUs 0 to `nr` - 1.
    pub fn first(nr: usize) -> Self {
        (0..nr).collect()
    }

    /// One CPU.
    pub fn one(cpu: usize) -> Self {
        std::iter::once(cpu).collect()
    }

    /// Is `cpu` in it?
    pub fn has(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// Adds or removes `cpu`.
    pub fn set(&mut self, cpu: usize, on: bool) {
        let bit = 1 << (cpu % 64);
        match on {
            true => self.words[cpu / 64] |= bit,
            false => self.words[cpu / 64] &= !bit,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// CPUs that are in both.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = *self;
        both.words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        both
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::empty();
        for cpu in cpus {
            set.set(cpu, true);
        }
        set
    }
}

/// A `struct cpumask`: a set of CPUs that C code reads. Its bits beyond [`MAX_CPUS`] stay zero.
pub(crate) struct Mask {
    raw: Raw,
}

impl Mask {
    pub(crate) fn new() -> Self {
        Self { raw: Raw::new(l::CPUMASK_SIZE as usize) }
    }

    pub(crate) fn address(&self) -> u64 {
        self.raw.address()
    }

    /// CPUs `index * 64` to `index * 64 + 63`.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.raw.get(index as u32 * 8)
    }

    pub(crate) fn has(&self, cpu: usize) -> bool {
        self.word(cpu / 64) >> (cpu % 64) & 1 != 0
    }

    pub(crate) fn set(&self, cpu: usize, on: bool) {
        let (word, bit) = (self.word(cpu / 64), 1 << (cpu % 64));
        self.raw.set((cpu / 64) as u32 * 8, if on { word | bit } else { word & !bit });
    }

    pub(crate) fn get(&self) -> CpuSet {
        CpuSet { words: std::array::from_fn(|index| self.word(index)) }
    }

    pub(crate) fn assign(&self, cpus: &CpuSet) {
        for (index, word) in cpus.words.iter().enumerate() {
            self.raw.set(index as u32 * 8, *word);
        }
    }
}
