// SPDX-License-Identifier: GPL-2.0-or-later
//! Checks whether a layout describes the running kernel.
//!
//! Memory can hold the BTF of kernels that no longer run, and a wrong layout reads arbitrary words
//! as facts. A layout is trusted only if every vCPU has at its offsets the values of a running
//! kernel, and if the values agree between vCPUs.

use crate::{
    address::{Gpa, Gva, PAGE_SIZE},
    layout::{Layout, SelfPointer},
    memory::{GuestMemory, MemoryError},
    vcpu::{Vcpu, VcpuRecord},
};

/// NR_CPUS of the largest x86-64 configurations.
const CPUS_MAX: u32 = 8192;
/// Bits of the preemption count that no kernel sets: between the NMI count and the inverted
/// need-resched bit (include/linux/preempt.h).
const PREEMPT_COUNT_UNUSED: u64 = 0x7f00_0000;
/// The same for a count of 64 bits, from Linux 7.3 on.
const WIDE_COUNT_UNUSED: u64 = 0x7fff_ffff_0000_0000;
/// The direct map begins at a multiple of this with or without KASLR (arch/x86/mm/kaslr.c).
const DIRECT_MAP_ALIGN: u64 = 1 << 30;

/// Reasons why a layout is not the running kernel's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The per-CPU area would not begin on a page.
    #[error("vCPU {vcpu}: its per-CPU area would begin at {base}, which is not a page")]
    Unaligned {
        /// vCPU it was seen on.
        vcpu: u32,
        /// Address of the area.
        base: Gpa,
    },
    /// The per-CPU area does not lie in the slot of the steal-time record.
    #[error("vCPU {vcpu}: its per-CPU area would reach outside the memory slot")]
    OutsideSlot {
        /// vCPU it was seen on.
        vcpu: u32,
    },
    /// A running kernel has written to its per-CPU areas, so they are in memory.
    #[error("vCPU {vcpu}: its per-CPU area would not be resident")]
    Absent {
        /// vCPU it was seen on.
        vcpu: u32,
    },
    /// A word has a value that a running kernel does not have there.
    #[error("vCPU {vcpu}: {name} would be {value:#x}")]
    Value {
        /// vCPU it was seen on.
        vcpu: u32,
        /// The variable.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// Two vCPUs claim to be the same CPU.
    #[error("vCPUs {vcpus:?} would both be CPU {cpu} of the guest")]
    SameCpu {
        /// The two.
        vcpus: [u32; 2],
        /// Number both have.
        cpu: u32,
    },
    /// The layout may fit, but the kernel still boots: it has not written the pointers that give
    /// the start of its direct map.
    #[error("its clocks are not set up yet")]
    Booting,
    /// The distance between two per-CPU areas contradicts the guest's own pointers.
    #[error("vCPUs {vcpus:?}: {name} does not agree with the distance of their per-CPU areas")]
    Distance {
        /// The two.
        vcpus: [u32; 2],
        /// The variable.
        name: &'static str,
    },
}

/// vCPUs under a layout that fits, and the direct map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) vcpus: Vec<Vcpu>,
    /// Guest-virtual minus guest-physical address in the direct map, where it could be learned.
    pub(crate) direct_map: Option<u64>,
}

/// Checks `layout` against every record.
pub(crate) fn fit(
    mem: &dyn GuestMemory,
    layout: &Layout,
    records: &[VcpuRecord],
) -> Result<Result<Fit, Misfit>, MemoryError> {
    let mut seen: Vec<(Vcpu, Words)> = Vec::with_capacity(records.len());
    for record in records {
        let vcpu = match place(layout, record) {
            Ok(vcpu) => vcpu,
            Err(misfit) => return Ok(Err(misfit)),
        };
        // Only resident pages are read: reads through a wrong layout must not make the guest
        // larger.
        for (offset, len) in layout.words() {
            if !mem.is_resident(vcpu.hva(offset), u64::from(len))? {
                return Ok(Err(Misfit::Absent { vcpu: vcpu.vcpu_idx }));
            }
        }
        let words = Words::read(mem, layout, &vcpu)?;
        if let Err(misfit) = words.check(layout, &vcpu) {
            return Ok(Err(misfit));
        }
        seen.push((Vcpu { cpu: words.cpu, ..vcpu }, words));
    }
    Ok(agree(layout, &seen))
}

fn place(layout: &Layout, record: &VcpuRecord) -> Result<Vcpu, Misfit> {
    let vcpu = record.vcpu_idx;
    let outside = Misfit::OutsideSlot { vcpu };
    let steal_time = u64::from(layout.steal_time);
    let area = record.steal_time_gpa.checked_sub(steal_time).ok_or(outside.clone())?;
    if !area.is_page_aligned() {
        return Err(Misfit::Unaligned { vcpu, base: area });
    }
    let (low, high) = layout.span();
    let first = area.checked_add(u64::from(low)).ok_or(outside.clone())?;
    record.slot.to_hva(first, u64::from(high - low)).ok_or(outside.clone())?;
    let area_hva = record.steal_time.checked_sub(steal_time).ok_or(outside)?;
    Ok(Vcpu { vcpu_idx: vcpu, cpu: 0, area, area_hva })
}

/// The values in one vCPU's per-CPU area.
struct Words {
    cpu: u32,
    preempt_count: u64,
    nodes_in_use: u32,
    task: Option<u64>,
    per_cpu_offset: Option<u64>,
    self_pointer: Option<u64>,
}

impl Words {
    fn read(mem: &dyn GuestMemory, layout: &Layout, vcpu: &Vcpu) -> Result<Self, MemoryError> {
        let long = |at: Option<u32>| at.map(|at| mem.read_u64(vcpu.hva(at))).transpose();
        Ok(Self {
            cpu: mem.read_u32(vcpu.hva(layout.cpu_number))?,
            preempt_count: if layout.is_wide() {
                mem.read_u64(vcpu.hva(layout.preempt_count))?
            } else {
                mem.read_u32(vcpu.hva(layout.preempt_count))?.into()
            },
            nodes_in_use: match layout.queue {
                Some(queue) => mem.read_u32(vcpu.hva(queue.at + queue.count))?,
                None => 0,
            },
            task: long(layout.current_task)?,
            per_cpu_offset: long(layout.this_cpu_off)?,
            self_pointer: long(layout.self_pointer.map(|p| p.pointer))?,
        })
    }

    fn check(&self, layout: &Layout, vcpu: &Vcpu) -> Result<(), Misfit> {
        let wrong = |name, value| Err(Misfit::Value { vcpu: vcpu.vcpu_idx, name, value });
        if self.cpu >= CPUS_MAX {
            return wrong("cpu_number", self.cpu.into());
        }
        let unused = if layout.is_wide() { WIDE_COUNT_UNUSED } else { PREEMPT_COUNT_UNUSED };
        if self.preempt_count & unused != 0 {
            return wrong("preempt_count", self.preempt_count);
        }
        if self.nodes_in_use > layout.queue.map_or(0, |q| q.nr_nodes) {
            return wrong("qnodes[0].count", self.nodes_in_use.into());
        }
        match self.task {
            Some(task) if !is_kernel_address(task) => return wrong("current_task", task),
            _ => {}
        }
        // Null until the clocks of this CPU are set up, early in boot.
        match (layout.self_pointer, self.self_pointer) {
            (Some(place), Some(value)) if value != 0 => match direct_map(place, value, vcpu) {
                Some(_) => Ok(()),
                None => wrong("hrtimer_bases.clock_base[0].cpu_base", value),
            },
            _ => Ok(()),
        }
    }
}

/// Checks the values that must agree, or must differ, between vCPUs.
fn agree(layout: &Layout, seen: &[(Vcpu, Words)]) -> Result<Fit, Misfit> {
    let mut by_cpu: Vec<&Vcpu> = seen.iter().map(|(vcpu, _)| vcpu).collect();
    by_cpu.sort_by_key(|vcpu| vcpu.cpu);
    for pair in by_cpu.windows(2) {
        if pair[0].cpu == pair[1].cpu {
            let vcpus = [pair[0].vcpu_idx, pair[1].vcpu_idx];
            return Err(Misfit::SameCpu { vcpus, cpu: pair[0].cpu });
        }
    }
    // Areas lie in the direct map, so guest-virtual and guest-physical distances are equal. Where
    // the offset counts from (zero, or the link address from 6.15 on) is the same for all CPUs.
    let bias = |(vcpu, words): &(Vcpu, Words)| {
        words.per_cpu_offset.map(|offset| offset.wrapping_sub(vcpu.area.get()))
    };
    same(seen, "this_cpu_off", bias)?;
    let map = |(vcpu, words): &(Vcpu, Words)| {
        let value = words.self_pointer.filter(|value| *value != 0)?;
        direct_map(layout.self_pointer?, value, vcpu)
    };
    let learned = same(seen, "hrtimer_bases.clock_base[0].cpu_base", map)?;
    // With a per-CPU section linked at zero the offset is the address itself; otherwise the bias is
    // off by a link address, which is never a multiple of 1 GiB.
    let zero_based = seen.first().and_then(bias).filter(|bias| is_direct_map(*bias));
    let direct_map = learned.or(zero_based);
    // A guest resolved at this point would lack the direct map for as long as it runs.
    if direct_map.is_none() && layout.self_pointer.is_some() {
        return Err(Misfit::Booting);
    }
    Ok(Fit { vcpus: seen.iter().map(|(vcpu, _)| *vcpu).collect(), direct_map })
}

/// The common value of all vCPUs that have one.
fn same(
    seen: &[(Vcpu, Words)],
    name: &'static str,
    value: impl Fn(&(Vcpu, Words)) -> Option<u64>,
) -> Result<Option<u64>, Misfit> {
    let mut first: Option<(u32, u64)> = None;
    for one in seen {
        match (first, value(one)) {
            (Some((vcpu, expected)), Some(found)) if expected != found => {
                return Err(Misfit::Distance { vcpus: [vcpu, one.0.vcpu_idx], name });
            }
            (None, Some(found)) => first = Some((one.0.vcpu_idx, found)),
            _ => {}
        }
    }
    Ok(first.map(|(_, value)| value))
}

/// Start of the direct map, from a structure's pointer to itself.
fn direct_map(place: SelfPointer, value: u64, vcpu: &Vcpu) -> Option<u64> {
    let area = Gva::new(value).checked_sub(place.target.into())?;
    let map = area.get().checked_sub(vcpu.area.get())?;
    (area.get().is_multiple_of(PAGE_SIZE) && is_direct_map(map)).then_some(map)
}

fn is_direct_map(start: u64) -> bool {
    start.is_multiple_of(DIRECT_MAP_ALIGN) && is_kernel_address(start)
}

fn is_kernel_address(address: u64) -> bool {
    address >= 0xff00_0000_0000_0000
}
