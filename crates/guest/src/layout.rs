// SPDX-License-Identifier: GPL-2.0-or-later
//! The layout of a kernel build: offsets of the words that Holdfast reads in a CPU's per-CPU area.
//!
//! The offsets come from the DATASEC `.data..percpu` of the kernel's BTF, which counts from the
//! start of the per-CPU section whether the kernel links it at zero (up to 6.14) or not. Where the
//! BTF has types alone, the kernel's symbol table gives the offsets ([`crate::kallsyms`]).
//!
//! | kernels | preemption count | CPU number, current task |
//! |---|---|---|
//! | up to 6.1, 6.15 to 7.2 | `__preempt_count`, 32 bits | `cpu_number`, `current_task` |
//! | from 7.3 | `__preempt_count`, 64 bits | `cpu_number`, `current_task` |
//! | 6.2 to 6.14 | `pcpu_hot.preempt_count` | `pcpu_hot.cpu_number`, `pcpu_hot.current_task` |
//!
//! Debian's kernels 6.1, 6.12, 7.2 and 7.3 all name the section `.data..percpu`. The preemption
//! counts with 32 bits all have the same bits; see `hf_preempt_count()` in `crates/policy`.

use std::fmt;

use holdfast_policy::CountKind;
use sha2::{Digest, Sha256};

use crate::btf::{Btf, BtfError, SectionVar, kind};
use crate::kallsyms::Symbols;

/// Largest static per-CPU area accepted; real ones have about 220 kB.
const AREA_MAX: u32 = 16 << 20;
/// Most queue nodes a CPU can have; kernels have 4, one for each level of nesting.
const QUEUE_NODES_MAX: u32 = 8;
/// MAX_NODES of kernel/locking/qspinlock.c.
const QUEUE_NODES: u32 = 4;

/// Identity of a kernel build: the SHA-256 of its BTF.
///
/// The hash is cryptographic, so that a guest cannot forge another build's identity and poison the
/// cache of layouts for its neighbours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId([u8; 32]);

impl BuildId {
    /// Identity of the build whose BTF is `blob`.
    pub fn of(blob: &[u8]) -> Self {
        Self(Sha256::digest(blob).into())
    }
}

impl fmt::Display for BuildId {
    /// The first 8 bytes, enough to distinguish builds by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// A CPU's queue nodes for contended spinlocks (`qnodes` of kernel/locking/qspinlock.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueLayout {
    /// Offset of the first node in the per-CPU area.
    pub at: u32,
    /// Bytes from node to node: 32 with paravirtual spinlocks, 16 without.
    pub node_size: u32,
    /// Number of nodes, at most 8.
    pub nr_nodes: u32,
    /// Offset in a node of the pointer to the successor's node.
    pub next: u32,
    /// Offset in a node of the word that the predecessor sets when it hands over.
    pub locked: u32,
    /// Offset in the *first* node of the number of nodes in use.
    pub count: u32,
}

/// A per-CPU structure that holds a pointer to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelfPointer {
    /// Offset of the structure.
    pub target: u32,
    /// Offset of the pointer to it.
    pub pointer: u32,
}

/// Offsets, in bytes from the start of a CPU's per-CPU area, in one kernel build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Size of the static per-CPU area; every offset below lies within.
    pub area_len: u32,
    /// The steal-time record, 64 bytes.
    pub steal_time: u32,
    /// The preemption count: 32 bits, or the lower half of 64.
    pub preempt_count: u32,
    /// What it counts, and how wide it is.
    pub count_kind: CountKind,
    /// The number of the CPU, 32 bits.
    pub cpu_number: u32,
    /// Pointer to the running task.
    pub current_task: Option<u32>,
    /// Pointer to the CPU's idle task (`idle_threads` of kernel/smpboot.c).
    pub idle_task: Option<u32>,
    /// Added to a per-CPU symbol's address it gives this CPU's copy.
    pub this_cpu_off: Option<u32>,
    /// Queued spinlocks; `None` in a kernel built without them.
    pub queue: Option<QueueLayout>,
    /// Head of the list of function calls that other CPUs have sent to this one (kernel/smp.c).
    /// While it is not null, a sender may spin for the answer.
    pub call_queue: Option<u32>,
    /// `hrtimer_bases`, whose clocks point back to it: gives the area's guest-virtual address.
    pub self_pointer: Option<SelfPointer>,
}

/// Reasons why a BTF blob gives no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The blob itself is broken.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// No per-CPU section: not a kernel's BTF, or made without per-CPU variables, as
    /// `scripts/link-vmlinux.sh` has it done by pahole 1.18 to 1.21.
    #[error(
        "no per-CPU variables in the BTF (made by pahole 1.21 or older, or without SMP, or a \
         module's BTF)"
    )]
    NoPerCpu,
    /// No per-CPU section, and no symbols either.
    #[error(
        "no per-CPU variables in the BTF (made by pahole 1.21 or older), and none in a symbol \
         table in memory (CONFIG_KALLSYMS_ALL)"
    )]
    NoSymbols,
    /// A variable is missing.
    #[error("no per-CPU variable {0} in the BTF: the guest kernel lacks the feature")]
    Missing(&'static str),
    /// A variable exists, but does not have the type that its name implies.
    #[error("per-CPU variable {0} has an unexpected size, type or place")]
    Odd(&'static str),
    /// The kernel counts no preemption, and has no queued spinlocks either: neither holders nor
    /// waiters can be recognised.
    #[error(
        "the guest kernel does not count preemption (CONFIG_PREEMPT_COUNT), and has no queued \
         spinlocks"
    )]
    NotCounted,
}

impl Layout {
    /// Reads the layout from a raw BTF blob. Safe on any bytes.
    ///
    /// ```
    /// # use holdfast_guest::{Layout, LayoutError};
    /// assert!(matches!(Layout::from_btf(b"not BTF"), Err(LayoutError::Btf(_))));
    /// ```
    pub fn from_btf(blob: &[u8]) -> Result<Self, LayoutError> {
        let btf = Btf::parse(blob)?;
        Self::of(&PerCpu::find(&btf)?)
    }

    /// The same of a blob without variables, with the symbol table of its kernel, if there is one.
    pub(crate) fn from_symbols(
        blob: &[u8],
        symbols: Option<&Symbols<'static>>,
    ) -> Result<Self, LayoutError> {
        let btf = Btf::parse(blob)?;
        let symbols = symbols.ok_or(LayoutError::NoSymbols)?;
        Self::of(&PerCpu::from_symbols(&btf, symbols)?)
    }

    fn of(vars: &PerCpu<'_>) -> Result<Self, LayoutError> {
        let steal_time = vars.sized("steal_time", 64)?;
        let (preempt_count, is_wide, cpu_number, current_task) = match vars.get("pcpu_hot")? {
            Some(hot) => {
                let member = |name: &'static str, size| vars.member(hot, name, size);
                (
                    member("preempt_count", 4)?.ok_or(LayoutError::Missing("preempt_count"))?,
                    false,
                    member("cpu_number", 4)?.ok_or(LayoutError::Missing("cpu_number"))?,
                    member("current_task", 8)?,
                )
            }
            None => {
                let (preempt_count, is_wide) = vars.preempt_count()?;
                (
                    preempt_count,
                    is_wide,
                    vars.sized("cpu_number", 4)?,
                    vars.optional("current_task", 8)?,
                )
            }
        };
        let is_counted =
            ["preempt_schedule", "rcu_read_lock_nesting"].map(|name| vars.btf.has_string(name));
        let queue = vars.queue()?;
        let count_kind = match (is_counted.contains(&true), is_wide) {
            (true, false) => CountKind::Narrow,
            (true, true) => CountKind::Wide,
            (false, false) if queue.is_some() => CountKind::Interrupts,
            (false, _) => return Err(LayoutError::NotCounted),
        };
        Ok(Self {
            area_len: vars.area_len,
            steal_time,
            preempt_count,
            count_kind,
            cpu_number,
            current_task,
            idle_task: vars.optional("idle_threads", 8)?,
            this_cpu_off: vars.optional("this_cpu_off", 8)?,
            queue,
            call_queue: vars.optional("call_single_queue", 8)?,
            self_pointer: vars.self_pointer(),
        })
    }

    /// Are all offsets the same? After an update a guest may have two builds of a kernel in its
    /// memory, and these often differ in the length of the area only.
    pub(crate) fn has_words_of(&self, other: &Self) -> bool {
        *self == Self { area_len: self.area_len, ..*other }
    }

    /// Has the preemption count 64 bits?
    pub fn is_wide(&self) -> bool {
        self.count_kind == CountKind::Wide
    }

    /// `offset` as a distance from the steal-time record, whose address KVM knows.
    pub fn from_steal_time(&self, offset: u32) -> i64 {
        i64::from(offset) - i64::from(self.steal_time)
    }

    /// Offset and length of everything in the layout.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u32, u32)> {
        let queue = self.queue.map(|queue| (queue.at, queue.node_size * queue.nr_nodes));
        let long = |at: Option<u32>| at.map(|at| (at, 8));
        [
            Some((self.steal_time, 64)),
            Some((self.preempt_count, if self.is_wide() { 8 } else { 4 })),
            Some((self.cpu_number, 4)),
            long(self.current_task),
            long(self.idle_task),
            long(self.this_cpu_off),
            long(self.call_queue),
            long(self.self_pointer.map(|place| place.pointer)),
            queue,
        ]
        .into_iter()
        .flatten()
    }

    /// First and one past the last offset of everything in the layout.
    pub fn span(&self) -> (u32, u32) {
        self.words().fold((u32::MAX, 0), |(low, high), (at, len)| (low.min(at), high.max(at + len)))
    }
}

/// The per-CPU section of a blob. All offsets it hands out lie within the area.
struct PerCpu<'a> {
    btf: &'a Btf<'a>,
    area_len: u32,
    /// Variables with the names we ask for, in the order of the section.
    vars: Vec<(&'a [u8], SectionVar)>,
}

/// Every per-CPU variable that is asked for by name.
pub const PER_CPU_VARIABLES: [&str; 10] = [
    "steal_time",
    "pcpu_hot",
    "__preempt_count",
    "cpu_number",
    "current_task",
    "idle_threads",
    "this_cpu_off",
    "qnodes",
    "call_single_queue",
    "hrtimer_bases",
];

/// Type and size of a variable that is `nr` structs of this name.
fn of_struct(btf: &Btf<'_>, name: &'static str, nr: u32) -> Result<(u32, u32), LayoutError> {
    let id = btf.struct_named(name).ok_or(LayoutError::Missing(name))?;
    let size = btf.type_at(id)?.size_or_type.checked_mul(nr);
    size.map(|size| (id, size)).ok_or(LayoutError::Odd(name))
}

impl<'a> PerCpu<'a> {
    fn find(btf: &'a Btf<'a>) -> Result<Self, LayoutError> {
        let (_, area_len, section) = btf
            .sections()
            .find(|(name, ..)| *name == b".data..percpu")
            .ok_or(LayoutError::NoPerCpu)?;
        if area_len > AREA_MAX {
            return Err(LayoutError::Odd(".data..percpu"));
        }
        let wanted = |name: &[u8]| PER_CPU_VARIABLES.iter().any(|wanted| wanted.as_bytes() == name);
        let mut vars: Vec<_> = btf.vars(section).filter(|(name, _)| wanted(name)).collect();
        vars.shrink_to_fit();
        Ok(Self { btf, area_len, vars })
    }

    /// Variables of a blob that has their types alone. They are as large as in every kernel; the
    /// room that each has to the next symbol is at least that.
    fn from_symbols(btf: &'a Btf<'a>, symbols: &Symbols<'static>) -> Result<Self, LayoutError> {
        if symbols.area_len > AREA_MAX {
            return Err(LayoutError::Odd(".data..percpu"));
        }
        let mut vars = Vec::new();
        for symbol in &symbols.found {
            // Earlier kernels have other entries in it.
            if symbol.name == "call_single_queue"
                && btf.struct_named("__call_single_node").is_none()
            {
                continue;
            }
            let (type_id, size) = match symbol.name {
                "steal_time" => (0, 64),
                "__preempt_count" | "cpu_number" => (0, 4),
                "qnodes" => of_struct(btf, "qnode", QUEUE_NODES)?,
                "hrtimer_bases" => of_struct(btf, "hrtimer_cpu_base", 1)?,
                "pcpu_hot" => of_struct(btf, "pcpu_hot", 1)?,
                _ => (0, 8),
            };
            if size > symbol.room {
                return Err(LayoutError::Odd(symbol.name));
            }
            let var = SectionVar { type_id, offset: symbol.offset, size };
            vars.push((symbol.name.as_bytes(), var));
        }
        Ok(Self { btf, area_len: symbols.area_len, vars })
    }

    /// The variable of this name, if it exists and lies within the area.
    fn get(&self, name: &'static str) -> Result<Option<SectionVar>, LayoutError> {
        let Some((_, var)) = self.vars.iter().find(|(found, _)| *found == name.as_bytes()) else {
            return Ok(None);
        };
        match var.offset.checked_add(var.size) {
            Some(end) if end <= self.area_len => Ok(Some(*var)),
            _ => Err(LayoutError::Odd(name)),
        }
    }

    fn optional(&self, name: &'static str, size: u32) -> Result<Option<u32>, LayoutError> {
        match self.get(name)? {
            Some(var) if var.size != size || !var.offset.is_multiple_of(size.min(8)) => {
                Err(LayoutError::Odd(name))
            }
            found => Ok(found.map(|var| var.offset)),
        }
    }

    fn sized(&self, name: &'static str, size: u32) -> Result<u32, LayoutError> {
        self.optional(name, size)?.ok_or(LayoutError::Missing(name))
    }

    /// Offset of the preemption count, and whether it has 64 bits.
    fn preempt_count(&self) -> Result<(u32, bool), LayoutError> {
        const NAME: &str = "__preempt_count";
        let wide = self.get(NAME)?.is_some_and(|var| var.size == 8);
        Ok((self.sized(NAME, if wide { 8 } else { 4 })?, wide))
    }

    /// Offset in the area of a member of `var`, which must hold all `size` bytes of it.
    fn member(
        &self,
        var: SectionVar,
        name: &'static str,
        size: u32,
    ) -> Result<Option<u32>, LayoutError> {
        let Some(member) = self.btf.member(var.type_id, name)? else { return Ok(None) };
        match member.offset.checked_add(size) {
            Some(end) if end <= var.size && member.offset.is_multiple_of(size.min(8)) => {
                Ok(Some(var.offset + member.offset))
            }
            _ => Err(LayoutError::Odd(name)),
        }
    }

    fn queue(&self) -> Result<Option<QueueLayout>, LayoutError> {
        let Some(var) = self.get("qnodes")? else { return Ok(None) };
        let odd = LayoutError::Odd("qnodes");
        // A symbol has the type of an element alone.
        let whole = self.btf.bare(var.type_id)?;
        let (element, nr_nodes) = match whole.kind {
            kind::STRUCT => (var.type_id, QUEUE_NODES),
            _ => self.btf.array(var.type_id)?,
        };
        let node = self.btf.bare(element)?;
        let node_size = node.size_or_type;
        // A pointer and two words at least; all nodes fill the variable exactly.
        if node.kind != kind::STRUCT
            || !(16..=256).contains(&node_size)
            || !(1..=QUEUE_NODES_MAX).contains(&nr_nodes)
            || node_size * nr_nodes != var.size
            || !var.offset.is_multiple_of(8)
        {
            return Err(odd);
        }
        // With paravirtual spinlocks the node wraps an MCS lock; without them, the node of older
        // kernels is an MCS lock.
        let (mcs_at, mcs) = match self.btf.member(element, "mcs")? {
            Some(mcs) => (mcs.offset, mcs.type_id),
            None => (0, element),
        };
        let field = |name, size: u32| {
            let member = self.btf.member(mcs, name)?.ok_or(LayoutError::Missing(name))?;
            let at = mcs_at.checked_add(member.offset).ok_or(LayoutError::Odd(name))?;
            match at.checked_add(size) {
                Some(end) if end <= node_size && at.is_multiple_of(size) => Ok(at),
                _ => Err(LayoutError::Odd(name)),
            }
        };
        Ok(Some(QueueLayout {
            at: var.offset,
            node_size,
            nr_nodes,
            next: field("next", 8)?,
            locked: field("locked", 4)?,
            count: field("count", 4)?,
        }))
    }

    /// `hrtimer_bases.clock_base[0].cpu_base` (kernel/time/hrtimer.c), if the build has it.
    fn self_pointer(&self) -> Option<SelfPointer> {
        let var = self.get("hrtimer_bases").ok()??;
        let clocks = self.btf.member(var.type_id, "clock_base").ok()??;
        let (clock, _) = self.btf.array(clocks.type_id).ok()?;
        let base = self.btf.member(clock, "cpu_base").ok()??;
        let inner = clocks.offset.checked_add(base.offset)?;
        let fits = inner.checked_add(8)? <= var.size && (var.offset + inner).is_multiple_of(8);
        fits.then_some(SelfPointer { target: var.offset, pointer: var.offset + inner })
    }
}
