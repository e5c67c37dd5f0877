// SPDX-License-Identifier: GPL-2.0-or-later
//! Fake guests: memory with the layout of real kernels, from their BTF.

#![allow(dead_code, unreachable_pub)]

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use holdfast_guest::{
    Gpa, GuestMemory, Hva, HvaRange, Layout, MemoryError, Slot, VcpuRecord, address::PAGE_SIZE,
};

pub const LINUX_6_1: &[u8] = include_bytes!("../data/linux-6.1.btf");
pub const LINUX_6_12: &[u8] = include_bytes!("../data/linux-6.12.btf");
pub const LINUX_7_2: &[u8] = include_bytes!("../data/linux-7.2.btf");
pub const LINUX_7_3: &[u8] = include_bytes!("../data/linux-7.3.btf");
pub const ALL: [(&str, &[u8]); 4] =
    [("6.1", LINUX_6_1), ("6.12", LINUX_6_12), ("7.2", LINUX_7_2), ("7.3", LINUX_7_3)];

/// Host address of the fake guests' memory.
pub const BASE: u64 = 0x7f00_0000_0000;
/// Guest-physical address of the same.
pub const GPA: u64 = 0x10_0000;
/// Address of CPU 0's idle task; the others' follow 8 KiB apart.
pub const IDLE_TASK: u64 = 0xffff_9d00_c200_0000;
/// Bytes of memory of a fake guest.
pub const MEMORY_LEN: usize = 8 << 20;
/// Guest-virtual address of physical address 0 in a fake guest's kernel.
pub const DIRECT_MAP: u64 = 0xffff_9d00_c000_0000;

/// Adds identifiers to a blob's string section, so that it is as long as a real one.
pub fn inflate(blob: &[u8], by: usize) -> Vec<u8> {
    let mut out = blob.to_vec();
    let before = out.len();
    for n in 0.. {
        if out.len() - before >= by {
            break;
        }
        out.extend_from_slice(format!("some_kernel_symbol_{n:x}\0").as_bytes());
    }
    let strings_len = u32::from_le_bytes(blob[20..24].try_into().unwrap());
    let grown = strings_len + (out.len() - before) as u32;
    out[20..24].copy_from_slice(&grown.to_le_bytes());
    out
}

impl Clone for FakeMemory {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), absent: self.absent.clone(), ..Self::new(0) }
    }
}

/// Memory of a guest that exists only in the test.
pub struct FakeMemory {
    pub bytes: Vec<u8>,
    /// Offsets of pages that are not resident.
    pub absent: BTreeSet<u64>,
    /// Set by a read of bytes that must not be touched.
    pub trespassed: AtomicBool,
}

impl FakeMemory {
    pub fn new(len: usize) -> Self {
        Self { bytes: vec![0; len], absent: BTreeSet::new(), trespassed: AtomicBool::new(false) }
    }

    pub fn slot(&self) -> Slot {
        Slot::new(Gpa::new(GPA), Hva::new(BASE), self.bytes.len() as u64).unwrap()
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn put_u64(&mut self, at: u64, value: u64) {
        self.put(at as usize, &value.to_le_bytes());
    }

    pub fn put_u32(&mut self, at: u64, value: u32) {
        self.put(at as usize, &value.to_le_bytes());
    }
}

impl GuestMemory for FakeMemory {
    fn read(&self, at: Hva, buf: &mut [u8]) -> Result<(), MemoryError> {
        let len = buf.len();
        let refused = MemoryError::NotMapped { pid: 0, at, len };
        let offset = at.get().wrapping_sub(BASE);
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.bytes.len() as u64);
        let Some(end) = end else {
            self.trespassed.store(true, Ordering::Relaxed);
            return Err(refused);
        };
        if (offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE)).any(|p| self.absent.contains(&p)) {
            self.trespassed.store(true, Ordering::Relaxed);
        }
        buf.copy_from_slice(&self.bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn resident(&self, range: HvaRange, out: &mut Vec<HvaRange>) -> Result<(), MemoryError> {
        let Some(range) = range.intersect(self.slot().hva_range()) else { return Ok(()) };
        let first = out.len();
        let pages = range.to_pages();
        for page in (pages.start.get()..pages.end.get()).step_by(PAGE_SIZE as usize) {
            let run = HvaRange::new(Hva::new(page), PAGE_SIZE).intersect(range).unwrap();
            if !self.absent.contains(&((page - BASE) / PAGE_SIZE)) {
                match out[first..].last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => out.push(run),
                }
            }
        }
        Ok(())
    }
}

/// The build and the start of a fake guest's kernel.
pub struct Spec<'a> {
    pub blob: &'a [u8],
    pub blob_at: usize,
    pub nr_vcpus: u32,
    /// Link address of the per-CPU section, with KASLR: 0 up to Linux 6.14.
    pub link_address: u64,
}

/// Offsets in the fake guest's memory of the per-CPU areas of the first four vCPUs.
pub const AREAS: std::ops::Range<u64> = 0x40_0000..0x50_0000;

/// Offset of vCPU `n`'s per-CPU area in the fake guest's memory.
pub fn area_at(n: u32) -> u64 {
    let order = [2, 0, 3, 1];
    AREAS.start + 0x4_0000 * order[n as usize % 4] + 0x10_0000 * u64::from(n / 4)
}

/// Link address that goes with a real kernel's layout.
pub fn link_address(version: &str) -> u64 {
    if version == "7.2" || version == "7.3" { 0xffff_ffff_a1da_5000 } else { 0 }
}

/// A booted guest, all vCPUs in a task that holds nothing, and its steal-time records.
pub fn boot(spec: &Spec<'_>) -> (FakeMemory, Vec<VcpuRecord>) {
    let mut mem = FakeMemory::new(MEMORY_LEN);
    mem.put(spec.blob_at, spec.blob);
    let layout = Layout::from_btf(spec.blob).unwrap();
    let records = start_vcpus(&mut mem, &layout, spec.nr_vcpus, spec.link_address);
    (mem, records)
}

/// Fills in vCPUs' per-CPU areas for a kernel with this layout.
pub fn start_vcpus(
    mem: &mut FakeMemory,
    layout: &Layout,
    nr_vcpus: u32,
    link_address: u64,
) -> Vec<VcpuRecord> {
    let slot = mem.slot();
    (0..nr_vcpus)
        .map(|n| {
            let at = area_at(n);
            let area_gva = DIRECT_MAP + GPA + at;
            mem.put_u32(at + u64::from(layout.cpu_number), n);
            put_preempt_count(mem, layout, n, 0);
            if let Some(task) = layout.current_task {
                mem.put_u64(at + u64::from(task), 0xffff_9d00_c123_4000 + u64::from(n) * 0x2000);
            }
            if let Some(idle) = layout.idle_task {
                mem.put_u64(at + u64::from(idle), IDLE_TASK + u64::from(n) * 0x2000);
            }
            if let Some(offset) = layout.this_cpu_off {
                mem.put_u64(at + u64::from(offset), area_gva.wrapping_sub(link_address));
            }
            if let Some(place) = layout.self_pointer {
                mem.put_u64(at + u64::from(place.pointer), area_gva + u64::from(place.target));
            }
            let steal_time = Gpa::new(GPA + at + u64::from(layout.steal_time));
            // KVM numbers vCPUs by APIC id, the guest in the order of discovery.
            VcpuRecord::new(n * 2, steal_time, slot).unwrap()
        })
        .collect()
}

/// Sets vCPU `n`'s preemption count, and keeps the inverted need-resched bit.
pub fn put_preempt_count(mem: &mut FakeMemory, layout: &Layout, n: u32, count: u32) {
    let at = area_at(n) + u64::from(layout.preempt_count);
    if layout.is_wide() {
        mem.put_u64(at, 1 << 63 | u64::from(count));
    } else {
        mem.put_u32(at, 1 << 31 | count);
    }
}

/// Guest-virtual address of a vCPU's first queue node.
pub fn node_gva(layout: &Layout, n: u32) -> u64 {
    DIRECT_MAP + GPA + area_at(n) + u64::from(layout.queue.unwrap().at)
}

/// Makes vCPU `n` wait at the head of a queue with its first queue node.
pub fn wait_in_queue(mem: &mut FakeMemory, layout: &Layout, n: u32, next: u64) {
    let queue = layout.queue.unwrap();
    let at = area_at(n) + u64::from(queue.at);
    mem.put_u64(at + u64::from(queue.next), next);
    mem.put_u32(at + u64::from(queue.locked), 1);
    mem.put_u32(at + u64::from(queue.count), 1);
    put_preempt_count(mem, layout, n, 1);
}
