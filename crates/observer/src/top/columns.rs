// SPDX-License-Identifier: GPL-2.0-or-later
//! The columns of the two tables of the live screen: their values, and what the help says of them.

use std::cmp::Ordering;

use holdfast_policy::VcpuClass;

use crate::histogram::{Histogram, time};
use crate::sample::{Counters, Times, VcpuSample, VmSample};

/// What a row is made of.
pub(super) struct Row {
    counters: Counters,
    readable: bool,
    seconds: f64,
}

impl Row {
    pub(super) fn of_vm(vm: &VmSample, seconds: f64) -> Self {
        Self { counters: vm.total(), readable: vm.is_readable(), seconds }
    }

    pub(super) fn of_vcpu(vcpu: &VcpuSample, seconds: f64) -> Self {
        Self { counters: vcpu.counters, readable: vcpu.readable, seconds }
    }

    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// A value that only a guest that is read gives.
    fn known(&self, value: f64) -> Option<f64> {
        (self.readable && self.counters.tells_classes()).then_some(value)
    }

    fn preempted(&self, class: VcpuClass) -> Option<f64> {
        let rate = self.known(self.rate(self.counters.preemptions[class]))?;
        if class == VcpuClass::Holder { self.counters.of_holders(rate) } else { Some(rate) }
    }

    fn percent(&self, of: fn(Times) -> u64) -> Option<f64> {
        self.counters.times.map(|times| self.rate(of(times)) / 1e7)
    }

    /// Time per second that Holders, Heads and Irqs were kept off the CPU, ns.
    pub(super) fn lost_ns(&self) -> Option<f64> {
        self.known(self.counters.of_holders(self.rate(self.counters.blocking_ns()))?)
    }

    /// The class that most ticks of the clock found it in, and their share.
    fn class(&self) -> Option<(VcpuClass, f64)> {
        let samples = self.counters.clock?.samples;
        let most = VcpuClass::ALL.into_iter().max_by_key(|class| samples[*class])?;
        let all = samples.total();
        (all > 0).then(|| (most, samples[most] as f64 / all as f64))
    }
}

/// A column of numbers.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) width: u16,
    /// At most 32 characters for the help.
    pub(super) meaning: &'static str,
    /// Rows are sorted by it. None if it is not known.
    pub(super) value: fn(&Row) -> Option<f64>,
    text: fn(f64) -> String,
}

impl Column {
    /// A cell, aligned to the right.
    pub(super) fn cell(&self, row: &Row) -> String {
        let text = (self.value)(row).map_or_else(|| "-".into(), self.text);
        format!("{text:>width$}", width = usize::from(self.width))
    }

    pub(super) fn header(&self) -> String {
        format!("{:>width$}", self.name, width = usize::from(self.width))
    }

    /// Its name on the command line, after `--sort`.
    fn option(&self) -> String {
        self.name.trim_end_matches('%').trim_end_matches("/s").to_lowercase()
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn percents(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

fn duration(ns: f64) -> String {
    time(ns as u64)
}

const CPU: Column = Column {
    name: "CPU%",
    width: 5,
    meaning: "CPU time, in % of one CPU",
    value: |row| row.percent(|times| times.run_ns),
    text: whole,
};
const STEAL: Column = Column {
    name: "STEAL%",
    width: 6,
    meaning: "runnable without a CPU, the same",
    value: |row| row.percent(|times| times.steal_ns),
    text: whole,
};
const LOST: Column = Column {
    name: "LOST",
    width: 6,
    meaning: "Holders, Heads, Irqs off the CPU",
    value: Row::lost_ns,
    text: duration,
};
const PREEMP: Column = Column {
    name: "PREEMP",
    width: 6,
    meaning: "preemptions per second",
    value: |row| Some(row.rate(row.counters.preemptions.total())),
    text: whole,
};
const HOLDER: Column = Column {
    name: "HOLDER",
    width: 6,
    meaning: "those of lock holders (LHP)",
    value: |row| row.preempted(VcpuClass::Holder),
    text: whole,
};
const IRQ: Column = Column {
    name: "IRQ",
    width: 5,
    meaning: "those in an interrupt handler",
    value: |row| row.preempted(VcpuClass::Irq),
    text: whole,
};
const HEAD: Column = Column {
    name: "HEAD",
    width: 5,
    meaning: "those of next owners (LWP)",
    value: |row| row.preempted(VcpuClass::Head),
    text: whole,
};
const WAITER: Column = Column {
    name: "WAITER",
    width: 6,
    meaning: "those of other waiters",
    value: |row| row.preempted(VcpuClass::Waiter),
    text: whole,
};
const P99: Column = Column {
    name: "p99",
    width: 6,
    meaning: "99 % of Holders were back within",
    value: |row| {
        let slot = row.counters.offcpu_hist[VcpuClass::Holder].quantile_slot(0.99);
        slot.map(|slot| slot as f64)
    },
    text: |slot| Histogram::bound(slot as usize),
};
const WAIT: Column = Column {
    name: "WAIT%",
    width: 5,
    meaning: "CPU time waiting for locks",
    value: |row| row.counters.cost().map(|cost| cost.waiting),
    text: percents,
};
const LHP: Column = Column {
    name: "LHP%",
    width: 5,
    meaning: "... while a Holder or Head is off",
    value: |row| row.counters.cost().and_then(|cost| cost.lost()),
    text: percents,
};
const PLE: Column = Column {
    name: "PLE/s",
    width: 5,
    meaning: "pause-loop exits per second",
    value: |row| row.counters.kvm.map(|kvm| row.rate(kvm.pause_exits)),
    text: whole,
};

/// A table: a first column of names, and columns of numbers.
pub(super) struct Columns {
    pub(super) first: &'static str,
    pub(super) numbers: &'static [Column],
    /// The last column, on screens of this width.
    pub(super) last: &'static str,
}

/// The list of VMs.
pub(super) const OF_VMS: Columns = Columns {
    first: "VM",
    numbers: &[CPU, STEAL, LOST, PREEMP, HOLDER, HEAD, P99, WAIT, LHP, PLE],
    last: "GUEST KERNEL",
};

/// The vCPUs of a VM.
pub(super) const OF_VCPUS: Columns = Columns {
    first: "vCPU",
    numbers: &[CPU, STEAL, LOST, PREEMP, HOLDER, IRQ, HEAD, WAITER, WAIT],
    last: "THREAD",
};

/// What rows are sorted by: a column, or their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    /// 0 is the first column, that of names.
    pub(super) column: usize,
    pub(super) reversed: bool,
}

impl Columns {
    /// The order that `--sort` asks for; by LOST if the table has no such column.
    pub(super) fn order(&self, option: &str) -> Order {
        let of = |option: &str| {
            let mut numbers = self.numbers.iter();
            numbers.position(|column| column.option() == option).map(|at| at + 1)
        };
        let by_name = (option == self.first.to_lowercase()).then_some(0);
        let column = by_name.or_else(|| of(option)).or_else(|| of("lost")).unwrap_or_default();
        Order { column, reversed: false }
    }

    pub(super) fn name(&self, order: Order) -> &'static str {
        match order.column {
            0 => self.first,
            at => self.numbers[at - 1].name,
        }
    }

    /// The column beside it.
    pub(super) fn beside(&self, order: Order, by: isize) -> Order {
        let count = self.numbers.len() + 1;
        let column = (order.column + count).saturating_add_signed(by) % count;
        Order { column, ..order }
    }

    /// Sorts, the largest first, or the names in their order. What is not known comes last.
    pub(super) fn sort<T, N: Ord>(
        &self,
        order: Order,
        items: &mut Vec<T>,
        row: impl Fn(&T) -> Row,
        name: impl Fn(&T) -> N,
    ) {
        let value = |item: &T| match order.column {
            0 => None,
            at => (self.numbers[at - 1].value)(&row(item)),
        };
        let mut keyed: Vec<_> = items.drain(..).map(|item| (value(&item), item)).collect();
        let directed = |order_of: Ordering| match order.reversed {
            false => order_of,
            true => order_of.reverse(),
        };
        keyed.sort_by(|(a, x), (b, y)| {
            let by_name = || name(x).cmp(&name(y));
            match (a, b) {
                _ if order.column == 0 => directed(by_name()),
                (Some(a), Some(b)) => directed(b.total_cmp(a)).then_with(by_name),
                (a, b) => b.is_some().cmp(&a.is_some()).then_with(by_name),
            }
        });
        items.extend(keyed.into_iter().map(|(_, item)| item));
    }
}

/// The class of a vCPU at most ticks of the clock, in at most 16 characters.
pub(super) fn class(row: &Row) -> String {
    let share =
        |(class, share): (VcpuClass, f64)| format!("{} {:.0}%", class.name(), share * 100.0);
    row.class().map_or_else(|| "-".into(), share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::sample;
    use crate::select;

    #[test]
    fn every_sort_of_the_command_line_has_its_column() {
        for column in select::Column::OF_REPORT.into_iter().chain([select::Column::Lost]) {
            let order = OF_VMS.order(column.name());
            let name = OF_VMS.name(order).to_lowercase();
            assert!(name.starts_with(column.name()), "{name} for {}", column.name());
        }
        assert_eq!(OF_VCPUS.name(OF_VCPUS.order("ple")), "LOST", "vCPUs have no such column");
    }

    #[test]
    fn the_largest_comes_first_and_what_is_not_known_last_in_both_directions() {
        let mut vms: Vec<_> = [(7, 10), (8, 30), (9, 20), (10, 0)]
            .into_iter()
            .flat_map(|(pid, holders)| sample(1, pid, holders).vms)
            .collect();
        vms[3].vcpus[0].readable = false;
        let mut sorted = |column: &str, reversed: bool| -> Vec<u32> {
            let order = Order { reversed, ..OF_VMS.order(column) };
            OF_VMS.sort(order, &mut vms, |vm| Row::of_vm(vm, 1.0), |vm| vm.pid);
            vms.iter().map(|vm| vm.pid).collect()
        };
        assert_eq!(sorted("lost", false), [8, 9, 7, 10]);
        assert_eq!(sorted("lost", true), [7, 9, 8, 10]);
        assert_eq!(sorted("vm", false), [7, 8, 9, 10]);
        assert_eq!(sorted("vm", true), [10, 9, 8, 7]);
    }

    #[test]
    fn sort_keys_reach_every_column_and_come_back() {
        let begin = OF_VCPUS.order("lost");
        for by in [-1, 1] {
            let mut names = Vec::new();
            let mut order = begin;
            for _ in 0..=OF_VCPUS.numbers.len() {
                names.push(OF_VCPUS.name(order));
                order = OF_VCPUS.beside(order, by);
            }
            assert_eq!(order, begin);
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), OF_VCPUS.numbers.len() + 1);
        }
    }

    #[test]
    fn cells_fit_their_columns() {
        let mut all = sample(1_000_000_000, 7, 99_999);
        let vcpu = &mut all.vms[0].vcpus[0];
        vcpu.counters.times = Some(Times { run_ns: 99_999_000_000, steal_ns: 99_999_000_000 });
        for columns in [OF_VMS, OF_VCPUS] {
            for row in [Row::of_vm(&all.vms[0], 1.0), Row::of_vcpu(&all.vms[0].vcpus[0], 1.0)] {
                for column in columns.numbers {
                    let (cell, width) = (column.cell(&row), usize::from(column.width));
                    assert_eq!(cell.chars().count(), width, "{}: {cell:?}", column.name);
                    assert_eq!(column.header().len(), width, "{}", column.name);
                    assert!(column.meaning.len() <= 33, "{}", column.name);
                }
            }
        }
        let row = Row::of_vcpu(&all.vms[0].vcpus[0], 1.0);
        assert_eq!(class(&row), "preemptible 67%");
        let unwatched = Row { counters: Counters::default(), readable: true, seconds: 1.0 };
        assert_eq!(class(&unwatched), "-");
    }
}
