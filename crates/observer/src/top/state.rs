// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of the screen, and its changes by keys.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use crate::sample::{Counters, Sample, VmSample};

/// The order of VMs, and of a VM's vCPUs; each press of `s` selects the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Time that lock holders and next owners were kept off the CPU.
    Lost,
    /// Preemptions.
    Preemptions,
    /// CPU time.
    Cpu,
}

impl Order {
    /// Most comes first.
    fn key(self, counters: &Counters) -> std::cmp::Reverse<Option<u64>> {
        std::cmp::Reverse(match self {
            Self::Lost => Some(counters.blocking_ns()),
            Self::Preemptions => Some(counters.preemptions.total()),
            Self::Cpu => counters.times.map(|times| times.run_ns),
        })
    }
}

pub(super) struct State {
    /// Counters of the last interval; None before its end.
    pub(super) sample: Option<Sample>,
    /// Counters since the start, for histograms.
    pub(super) total: Option<Sample>,
    pub(super) interval: Duration,
    pub(super) order: Order,
    pub(super) table: TableState,
    /// Process of the open VM.
    pub(super) inside: Option<u32>,
    /// Its vCPUs.
    pub(super) vcpus: TableState,
    /// Rows of the table that fit on the screen.
    pub(super) page: usize,
    pub(super) helps: bool,
    pub(super) paused: bool,
    pub(super) quits: bool,
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            sample: None,
            total: None,
            interval,
            order: Order::Lost,
            table: TableState::default().with_selected(0),
            inside: None,
            vcpus: TableState::default(),
            page: 1,
            helps: false,
            paused: false,
            quits: false,
        }
    }

    /// A new sample, and the one before it.
    pub(super) fn show(&mut self, now: &Sample, before: &Sample) {
        if self.paused {
            return;
        }
        let selected = self.selected();
        self.sample = Some(now.since(before));
        self.total = Some(now.clone());
        self.sort(selected);
    }

    /// VMs of the sample shown.
    pub(super) fn vms(&self) -> &[VmSample] {
        self.sample.as_ref().map_or(&[], |sample| &sample.vms)
    }

    /// The open VM, if it still runs.
    pub(super) fn vm_inside(&self) -> Option<&VmSample> {
        let pid = self.inside?;
        self.vms().iter().find(|vm| vm.pid == pid)
    }

    fn selected_pid(&self) -> Option<u32> {
        self.vms().get(self.table.selected()?).map(|vm| vm.pid)
    }

    /// Positions of the cursors: a VM's process, and a vCPU's thread in the open VM.
    fn selected(&self) -> (Option<u32>, Option<u32>) {
        let vcpu = self.vm_inside().and_then(|vm| vm.vcpus.get(self.vcpus.selected()?));
        (self.selected_pid(), vcpu.map(|vcpu| vcpu.tid))
    }

    /// Sorts, with the cursors staying on their VM and its vCPU.
    fn sort(&mut self, (pid, tid): (Option<u32>, Option<u32>)) {
        let order = self.order;
        let Some(sample) = &mut self.sample else { return };
        sample.vms.sort_by_key(|vm| (order.key(&vm.total()), vm.pid));
        for vm in &mut sample.vms {
            vm.vcpus.sort_by_key(|vcpu| (order.key(&vcpu.counters), vcpu.vcpu));
        }
        let at = pid.and_then(|pid| self.vms().iter().position(|vm| vm.pid == pid));
        self.table.select(Some(at.unwrap_or(0)));
        let vcpus = self.vm_inside().map_or(&[][..], |vm| &vm.vcpus);
        let at = tid.and_then(|tid| vcpus.iter().position(|vcpu| vcpu.tid == tid));
        self.vcpus.select(Some(at.unwrap_or(0)));
    }

    /// Moves the cursor of the table that is shown.
    fn step(&mut self, by: isize) {
        let (table, rows) = match self.inside {
            None => (&self.table, self.vms().len()),
            Some(_) => (&self.vcpus, self.vm_inside().map_or(0, |vm| vm.vcpus.len())),
        };
        let at = table.selected().unwrap_or(0).saturating_add_signed(by);
        let at = Some(at.min(rows.saturating_sub(1)));
        if self.inside.is_some() { self.vcpus.select(at) } else { self.table.select(at) }
    }

    pub(super) fn press(&mut self, key: KeyEvent) {
        if self.helps {
            self.helps = false;
            return;
        }
        let page = self.page.max(1) as isize;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.quits = true;
            }
            KeyCode::Char('q') => self.quits = true,
            KeyCode::Char('h' | '?') => self.helps = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Lost => Order::Preemptions,
                    Order::Preemptions => Order::Cpu,
                    Order::Cpu => Order::Lost,
                };
                self.sort(self.selected());
            }
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-page),
            KeyCode::PageDown => self.step(page),
            KeyCode::Enter | KeyCode::Right if self.inside.is_none() => {
                self.inside = self.selected_pid();
                self.vcpus = TableState::default().with_selected(0);
            }
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => match self.inside.take() {
                Some(_) => {}
                None => self.quits = key.code == KeyCode::Esc,
            },
            _ => {}
        }
    }
}
