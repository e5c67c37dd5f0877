// SPDX-License-Identifier: GPL-2.0-or-later
//! What the screen shows now, and what keys do to it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use crate::sample::{Sample, VmSample};

/// What VMs are sorted by; the next one with each press of `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Time that lock holders and next owners were kept off the CPU.
    Lost,
    /// Preemptions.
    Preemptions,
    /// CPU time.
    Cpu,
}

pub(super) struct State {
    /// What came in the last interval; None before the first has passed.
    pub(super) sample: Option<Sample>,
    /// What came since the start, for histograms.
    pub(super) total: Option<Sample>,
    pub(super) interval: Duration,
    pub(super) order: Order,
    pub(super) table: TableState,
    /// Process of the VM that is looked into.
    pub(super) inside: Option<u32>,
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
        let selected = self.selected_pid();
        self.sample = Some(now.since(before));
        self.total = Some(now.clone());
        self.sort(selected);
    }

    /// VMs of the sample shown.
    pub(super) fn vms(&self) -> &[VmSample] {
        self.sample.as_ref().map_or(&[], |sample| &sample.vms)
    }

    fn selected_pid(&self) -> Option<u32> {
        self.vms().get(self.table.selected()?).map(|vm| vm.pid)
    }

    /// Sorts, with the cursor staying on its VM.
    fn sort(&mut self, selected: Option<u32>) {
        let order = self.order;
        let Some(sample) = &mut self.sample else { return };
        sample.vms.sort_by_key(|vm| {
            let total = vm.total();
            let key = match order {
                Order::Lost => total.blocking_ns(),
                Order::Preemptions => total.preemptions.total(),
                Order::Cpu => total.run_ns,
            };
            (std::cmp::Reverse(key), vm.pid)
        });
        let at = selected.and_then(|pid| sample.vms.iter().position(|vm| vm.pid == pid));
        self.table.select(Some(at.unwrap_or(0)));
    }

    pub(super) fn press(&mut self, key: KeyEvent) {
        if self.helps {
            self.helps = false;
            return;
        }
        let rows = self.vms().len();
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
                self.sort(self.selected_pid());
            }
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::Down | KeyCode::Char('j') => {
                let next = self.table.selected().map_or(0, |at| at + 1);
                self.table.select(Some(next.min(rows.saturating_sub(1))));
            }
            KeyCode::Enter | KeyCode::Right => self.inside = self.selected_pid(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => match self.inside.take() {
                Some(_) => {}
                None => self.quits = key.code == KeyCode::Esc,
            },
            _ => {}
        }
    }
}
