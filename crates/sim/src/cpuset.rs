// SPDX-License-Identifier: GPL-2.0-or-later
//! Sets of CPUs, in the kernel's bit order.

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

    pub(crate) const fn words(&self) -> &[u64; MAX_CPUS / 64] {
        &self.words
    }

    pub(crate) fn from_words(words: [u64; MAX_CPUS / 64]) -> Self {
        Self { words }
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
