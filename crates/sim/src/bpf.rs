// SPDX-License-Identifier: GPL-2.0-or-later
//! Maps, task storage and timers of the scheduler's BPF side.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::kernel::{Event, Job, Kernel};
use crate::task::Task;

/// `include/uapi/linux/bpf.h`.
const TYPE_HASH: u32 = 1;
const TYPE_ARRAY: u32 = 2;
const TYPE_PERCPU_ARRAY: u32 = 6;
pub(crate) const NOEXIST: u64 = 1;
pub(crate) const STORAGE_CREATE: u64 = 1;

const EEXIST: i64 = -17;
const ENOENT: i64 = -2;
const E2BIG: i64 = -7;

/// `struct hf_map_desc` of `shim/model.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MapDesc {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// A map. The C variable of its name holds its address.
struct Map {
    desc: MapDesc,
    /// Of an array: all values, of each CPU one after another.
    values: Vec<u64>,
    /// Of a hash table with keys of 8 bytes.
    entries: RefCell<BTreeMap<u64, Box<[u64]>>>,
    /// Deleted values: a reader may still have their address.
    deleted: RefCell<Vec<Box<[u64]>>>,
}

struct Timer {
    callback: Cell<u64>,
    map: u64,
    key: u32,
    value: u64,
    start: Cell<u64>,
}

#[derive(Default)]
pub(crate) struct Bpf {
    // Boxed: C code keeps their addresses.
    #[allow(clippy::vec_box)]
    maps: RefCell<Vec<Box<Map>>>,
    timers: RefCell<Vec<Timer>>,
    nr_storages: Cell<u64>,
}

impl MapDesc {
    pub(crate) fn is_hash(&self) -> bool {
        self.kind == TYPE_HASH
    }
}

impl Bpf {
    fn map(&self, k: &Kernel, map: *mut u64, desc: &MapDesc) -> *const Map {
        // SAFETY: the C variable of a map begins with pointers, which nothing else uses.
        let known = unsafe { map.read() };
        if known != 0 {
            return known as *const Map;
        }
        let words = (desc.value_size as usize).div_ceil(8);
        let values = match desc.kind {
            TYPE_ARRAY => words * desc.max_entries as usize,
            TYPE_PERCPU_ARRAY => words * desc.max_entries as usize * k.config().nr_cpus,
            TYPE_HASH if desc.key_size == 8 => 0,
            kind => panic!("a BPF map of type {kind} is not modelled"),
        };
        let made = Box::new(Map {
            desc: *desc,
            values: vec![0; values],
            entries: RefCell::default(),
            deleted: RefCell::default(),
        });
        let address: *const Map = &raw const *made;
        self.maps.borrow_mut().push(made);
        // SAFETY: as above.
        unsafe { map.write(address as u64) };
        address
    }

    /// `bpf_map_lookup_elem()`.
    pub(crate) fn lookup(&self, k: &Kernel, map: *mut u64, desc: &MapDesc, key: *const u64) -> u64 {
        // SAFETY: maps live as long as this.
        let map = unsafe { &*self.map(k, map, desc) };
        if desc.kind == TYPE_HASH {
            // SAFETY: a key of 8 bytes, as map() has checked.
            let key = unsafe { key.read_unaligned() };
            return map.entries.borrow().get(&key).map_or(0, |value| value.as_ptr() as u64);
        }
        // SAFETY: keys of arrays have 4 bytes.
        let mut index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
        if index >= desc.max_entries as usize {
            return 0;
        }
        if desc.kind == TYPE_PERCPU_ARRAY {
            index += k.this_cpu() * desc.max_entries as usize;
        }
        let words = (desc.value_size as usize).div_ceil(8);
        (&raw const map.values[index * words]) as u64
    }

    /// `bpf_map_update_elem()`.
    pub(crate) fn update(
        &self,
        k: &Kernel,
        map: *mut u64,
        desc: &MapDesc,
        (key, value): (*const u64, *const u8),
        flags: u64,
    ) -> i64 {
        // SAFETY: as lookup().
        let map = unsafe { &*self.map(k, map, desc) };
        assert_eq!(desc.kind, TYPE_HASH, "only hash tables are updated");
        // SAFETY: as lookup().
        let key = unsafe { key.read_unaligned() };
        let mut entries = map.entries.borrow_mut();
        if flags == NOEXIST && entries.contains_key(&key) {
            return EEXIST;
        }
        if entries.len() >= desc.max_entries as usize {
            return E2BIG;
        }
        let size = desc.value_size as usize;
        let mut words = vec![0u64; size.div_ceil(8)].into_boxed_slice();
        // SAFETY: a value has `size` bytes, and so have the words.
        unsafe { std::ptr::copy_nonoverlapping(value, words.as_mut_ptr().cast(), size) };
        if let Some(old) = entries.insert(key, words) {
            map.deleted.borrow_mut().push(old);
        }
        0
    }

    /// `bpf_map_delete_elem()`.
    pub(crate) fn delete(&self, k: &Kernel, map: *mut u64, desc: &MapDesc, key: *const u64) -> i64 {
        // SAFETY: as lookup().
        let (map, key) = unsafe { (&*self.map(k, map, desc), key.read_unaligned()) };
        match map.entries.borrow_mut().remove(&key) {
            Some(old) => {
                map.deleted.borrow_mut().push(old);
                0
            }
            None => ENOENT,
        }
    }

    /// The first `nr` values of an array at `map`.
    pub(crate) fn array_values<T: Copy>(&self, map: u64, nr: usize) -> Vec<T> {
        // SAFETY: as map(): the C variable holds the address of a Map, or zero.
        let Some(map) = (unsafe { (*(map as *const *const Map)).as_ref() }) else {
            return Vec::new();
        };
        assert_eq!(map.desc.value_size as usize, size_of::<T>());
        let words = size_of::<T>().div_ceil(8);
        let read = |value: &[u64]| {
            // SAFETY: as many bytes as a `T`, which the caller knows the map to hold.
            unsafe { value.as_ptr().cast::<T>().read_unaligned() }
        };
        map.values.chunks_exact(words).take(nr).map(read).collect()
    }

    /// The values of a hash table at `map`, by key.
    pub(crate) fn hash_values<T: Copy>(&self, map: u64) -> Vec<(u64, T)> {
        // SAFETY: as map(): the C variable holds the address of a Map, or zero.
        let Some(map) = (unsafe { (*(map as *const *const Map)).as_ref() }) else {
            return Vec::new();
        };
        assert_eq!(map.desc.value_size as usize, size_of::<T>());
        let entries = map.entries.borrow();
        let read = |value: &[u64]| {
            // SAFETY: as many bytes as a `T`, which the caller knows the map to hold.
            unsafe { value.as_ptr().cast::<T>().read_unaligned() }
        };
        entries.iter().map(|(key, value)| (*key, read(value))).collect()
    }

    /// Sum over CPUs of an element of a per-CPU array of counters.
    pub(crate) fn percpu_sum(&self, map: u64, index: usize) -> u64 {
        // SAFETY: as hash_values().
        let Some(map) = (unsafe { (*(map as *const *const Map)).as_ref() }) else { return 0 };
        map.values.iter().skip(index).step_by(map.desc.max_entries as usize).sum()
    }

    /// `bpf_task_storage_get()`.
    pub(crate) fn storage(&self, map: *mut u64, size: u32, task: &Task, flags: u64) -> u64 {
        // SAFETY: as map(); the variable holds the number of a storage.
        let mut number = unsafe { map.read() };
        if number == 0 {
            number = self.nr_storages.get() + 1;
            self.nr_storages.set(number);
            // SAFETY: as above.
            unsafe { map.write(number) };
        }
        let mut storages = task.ext.storages.borrow_mut();
        let index = number as usize - 1;
        if storages.len() <= index {
            storages.resize_with(index + 1, || None);
        }
        let slot = &mut storages[index];
        if slot.is_none() && flags & STORAGE_CREATE != 0 {
            *slot = Some(vec![0; (size as usize).div_ceil(8)].into_boxed_slice());
        }
        slot.as_ref().map_or(0, |value| value.as_ptr() as u64)
    }

    /// `bpf_timer_init()` of a timer in an array's value.
    pub(crate) fn timer_init(&self, k: &Kernel, timer: *mut u64, map: *mut u64, desc: &MapDesc) {
        // SAFETY: as lookup().
        let array = unsafe { &*self.map(k, map, desc) };
        let first = array.values.as_ptr() as u64;
        let key = (timer as u64 - first) / (u64::from(desc.value_size.div_ceil(8)) * 8);
        let value = first + key * u64::from(desc.value_size.div_ceil(8)) * 8;
        let mut timers = self.timers.borrow_mut();
        timers.push(Timer {
            callback: Cell::new(0),
            map: map as u64,
            key: key as u32,
            value,
            start: Cell::new(0),
        });
        // SAFETY: a bpf_timer has 16 bytes, which only helpers use.
        unsafe { timer.write(timers.len() as u64) };
    }

    fn timer_index(timer: *const u64) -> usize {
        // SAFETY: as timer_init().
        (unsafe { timer.read() }) as usize - 1
    }

    pub(crate) fn timer_set_callback(&self, timer: *const u64, callback: u64) {
        self.timers.borrow()[Self::timer_index(timer)].callback.set(callback);
    }

    /// `bpf_timer_start()`, pinned to this CPU.
    pub(crate) fn timer_start(&self, k: &Kernel, timer: *const u64, ns: u64) {
        let index = Self::timer_index(timer);
        let timers = self.timers.borrow();
        let start = timers[index].start.get() + 1;
        timers[index].start.set(start);
        k.post_in(ns, Event::On(k.this_cpu(), Job::Timer(index, start)));
    }

    /// Calls a timer's function, unless the timer was started again.
    pub(crate) fn timer_expires(&self, index: usize, start: u64) {
        let (callback, map, mut key, value) = {
            let timer = &self.timers.borrow()[index];
            if timer.start.get() != start {
                return;
            }
            (timer.callback.get(), timer.map, timer.key, timer.value)
        };
        type Callback = unsafe extern "C-unwind" fn(u64, *mut u32, u64) -> i32;
        // SAFETY: the address is a function of the scheduler with these arguments.
        unsafe { std::mem::transmute::<u64, Callback>(callback)(map, &raw mut key, value) };
    }
}
