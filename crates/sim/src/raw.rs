// SPDX-License-Identifier: GPL-2.0-or-later
//! Structs of the kernel that the scheduler's C code reads: zeroed memory with a fixed address, and
//! fields by offset (`layout`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A struct of the kernel. C code and Rust code both write it, through raw pointers only.
pub(crate) struct Raw {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Raw {
    /// Zeroed memory of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size.max(64), 64).expect("a small struct");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        Self { memory: NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn at<T>(&self, offset: u32) -> *mut T {
        let offset = offset as usize;
        assert!(offset + size_of::<T>() <= self.layout.size());
        // SAFETY: within the allocation, as checked above.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// The field at `offset`, a value of `T`'s size.
    pub(crate) fn get<T: Copy + Plain>(&self, offset: u32) -> T {
        // SAFETY: at() checks bounds; any bits are a value of a plain type.
        unsafe { self.at::<T>(offset).read_unaligned() }
    }

    pub(crate) fn set<T: Copy + Plain>(&self, offset: u32, value: T) {
        // SAFETY: as get().
        unsafe { self.at::<T>(offset).write_unaligned(value) }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: allocated by new() with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// Types of which any bits are a value.
pub(crate) trait Plain {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
