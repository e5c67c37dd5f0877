// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of the screen, and its changes by keys.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::columns::{Columns, OF_VCPUS, OF_VMS, Order, Row};
use super::history::History;
use super::keys::{Action, View, action, is_interrupt};
use crate::sample::{Sample, VmSample};
use crate::select::Selection;

/// Counters of an interval, and those since the start at its end.
pub(super) struct Shown {
    pub(super) interval: Sample,
    pub(super) total: Sample,
}

/// The pane below the vCPUs of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    History,
    Absences,
}

pub(super) struct State {
    pub(super) interval: Duration,
    selection: Selection,
    /// Counters since the start, of the last sample.
    before: Option<Sample>,
    /// None before the end of the first interval.
    pub(super) shown: Option<Shown>,
    /// While the view is frozen: the last interval, if it is not the one that is shown.
    latest: Option<Shown>,
    pub(super) frozen: bool,
    pub(super) history: History,
    pub(super) order_of_vms: Order,
    pub(super) order_of_vcpus: Order,
    pub(super) table: TableState,
    /// Process of the open VM.
    pub(super) inside: Option<u32>,
    /// Its vCPUs.
    pub(super) vcpus: TableState,
    pub(super) pane: Pane,
    /// Rows of the table that fit on the screen.
    pub(super) page: usize,
    /// Part of the names, processes or UUIDs of the VMs that are shown.
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) types: bool,
    /// The first line of the help that is shown, while it is.
    pub(super) help: Option<u16>,
    pub(super) quits: bool,
}

impl State {
    pub(super) fn new(interval: Duration, selection: Selection) -> Self {
        let sort = selection.sort.name();
        Self {
            interval,
            selection,
            before: None,
            shown: None,
            latest: None,
            frozen: false,
            history: History::default(),
            order_of_vms: OF_VMS.order(sort),
            order_of_vcpus: OF_VCPUS.order(sort),
            table: TableState::default().with_selected(0),
            inside: None,
            vcpus: TableState::default().with_selected(0),
            pane: Pane::History,
            page: 1,
            filter: String::new(),
            types: false,
            help: None,
            quits: false,
        }
    }

    /// Takes the next sample. The first one only begins the first interval.
    pub(super) fn take(&mut self, now: Sample) {
        let Some(before) = self.before.replace(now.clone()) else { return };
        let mut interval = now.since(&before);
        let wanted = &self.selection.vms;
        interval.vms.retain(|vm| wanted.has(vm.pid, vm.name.as_deref(), vm.uuid.as_deref()));
        let frozen = self.shown.as_ref().filter(|_| self.frozen);
        self.history.take(&interval, frozen.map(|shown| &shown.interval));
        let next = Some(Shown { interval, total: now });
        if self.frozen {
            self.latest = next;
        } else {
            let cursors = self.cursors();
            self.shown = next;
            self.sort(cursors);
        }
    }

    /// Time from the interval shown to the latest one.
    pub(super) fn behind(&self) -> Duration {
        let end = |shown: &Shown| shown.interval.t_ns;
        let ns = self.latest.iter().map(end).zip(self.shown.iter().map(end)).next();
        Duration::from_nanos(ns.map_or(0, |(latest, shown)| latest.saturating_sub(shown)))
    }

    /// VMs of the interval shown, whatever the filter.
    pub(super) fn all_vms(&self) -> &[VmSample] {
        self.shown.as_ref().map_or(&[], |shown| &shown.interval.vms)
    }

    /// VMs of the list, in its order.
    pub(super) fn vms(&self) -> Vec<&VmSample> {
        let filter = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&filter);
        let passes = |vm: &&VmSample| {
            has(&vm.label()) || has(&vm.pid.to_string()) || vm.uuid.as_deref().is_some_and(has)
        };
        let most = self.selection.top.unwrap_or(usize::MAX);
        self.all_vms().iter().filter(passes).take(most).collect()
    }

    /// The open VM, if it still runs.
    pub(super) fn vm_inside(&self) -> Option<&VmSample> {
        let pid = self.inside?;
        self.all_vms().iter().find(|vm| vm.pid == pid)
    }

    pub(super) fn view(&self) -> View {
        if self.inside.is_some() { View::Vm } else { View::List }
    }

    /// The columns of the view, and the order of its rows.
    pub(super) fn columns(&self) -> (&'static Columns, Order) {
        match self.view() {
            View::List => (&OF_VMS, self.order_of_vms),
            View::Vm => (&OF_VCPUS, self.order_of_vcpus),
        }
    }

    /// The VM under the cursor.
    pub(super) fn selected(&self) -> Option<&VmSample> {
        self.vms().get(self.table.selected()?).copied()
    }

    /// Positions of the cursors: a VM's process, and a vCPU's thread in the open VM.
    fn cursors(&self) -> (Option<u32>, Option<u32>) {
        let vcpu = self.vm_inside().and_then(|vm| vm.vcpus.get(self.vcpus.selected()?));
        (self.selected().map(|vm| vm.pid), vcpu.map(|vcpu| vcpu.tid))
    }

    /// Sorts, with the cursors staying on their VM and its vCPU.
    fn sort(&mut self, cursors: (Option<u32>, Option<u32>)) {
        if let Some(Shown { interval, .. }) = &mut self.shown {
            let seconds = interval.seconds();
            let row = |vm: &VmSample| Row::of_vm(vm, seconds);
            let name = |vm: &VmSample| (vm.label(), vm.pid);
            OF_VMS.sort(self.order_of_vms, &mut interval.vms, row, name);
            for vm in &mut interval.vms {
                let order = self.order_of_vcpus;
                let row = |vcpu: &_| Row::of_vcpu(vcpu, seconds);
                OF_VCPUS.sort(order, &mut vm.vcpus, row, |vcpu| vcpu.vcpu);
            }
        }
        self.place(cursors);
    }

    /// Puts the cursors on this VM and vCPU, or leaves them where they are if these are gone.
    fn place(&mut self, (pid, tid): (Option<u32>, Option<u32>)) {
        let within = |at: Option<usize>, rows: usize| at.map_or(0, |at| at.min(rows.max(1) - 1));
        let vms = self.vms();
        let at = pid.and_then(|pid| vms.iter().position(|vm| vm.pid == pid));
        let at = at.unwrap_or_else(|| within(self.table.selected(), vms.len()));
        self.table.select(Some(at));
        let vcpus = self.vm_inside().map_or(&[][..], |vm| &vm.vcpus);
        let at = tid.and_then(|tid| vcpus.iter().position(|vcpu| vcpu.tid == tid));
        let at = at.unwrap_or_else(|| within(self.vcpus.selected(), vcpus.len()));
        self.vcpus.select(Some(at));
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

    /// Changes the order of the table that is shown.
    fn reorder(&mut self, change: impl Fn(&Columns, Order) -> Order) {
        let (columns, order) = self.columns();
        let order = change(columns, order);
        match self.view() {
            View::List => self.order_of_vms = order,
            View::Vm => self.order_of_vcpus = order,
        }
        self.sort(self.cursors());
    }

    pub(super) fn press(&mut self, key: KeyEvent) {
        if self.types && !is_interrupt(key) {
            return self.type_filter(key);
        }
        let Some(action) = action(key) else { return };
        let page = self.page.max(1) as isize;
        if let Some(line) = self.help {
            let by = match action {
                Action::Up => -1,
                Action::Down => 1,
                Action::PageUp => -page,
                Action::PageDown => page,
                Action::Quit if is_interrupt(key) => return self.quits = true,
                _ => return self.help = None,
            };
            // Drawing limits it to the lines that there are.
            return self.help = Some(line.saturating_add_signed(by as i16));
        }
        match action {
            Action::Up => self.step(-1),
            Action::Down => self.step(1),
            Action::PageUp => self.step(-page),
            Action::PageDown => self.step(page),
            Action::First => self.step(isize::MIN),
            Action::Last => self.step(isize::MAX),
            Action::Open => self.open(),
            Action::Back => self.go_back(),
            Action::Filter => self.types = self.inside.is_none(),
            Action::SortLeft => self.reorder(|columns, order| columns.beside(order, -1)),
            Action::SortRight => self.reorder(|columns, order| columns.beside(order, 1)),
            Action::Reverse => {
                self.reorder(|_, order| Order { reversed: !order.reversed, ..order });
            }
            Action::Pane => {
                self.pane = match self.pane {
                    Pane::History => Pane::Absences,
                    Pane::Absences => Pane::History,
                }
            }
            Action::Freeze => self.freeze(),
            Action::Help => self.help = Some(0),
            Action::Quit => self.quits = true,
        }
    }

    fn open(&mut self) {
        if self.inside.is_none() {
            self.inside = self.selected().map(|vm| vm.pid);
            self.vcpus = TableState::default().with_selected(0);
        }
    }

    fn go_back(&mut self) {
        if self.inside.take().is_none() {
            self.change_filter(String::clear);
        }
    }

    fn freeze(&mut self) {
        // There is nothing to freeze before the first interval has ended.
        self.frozen = !self.frozen && self.shown.is_some();
        if let Some(latest) = self.latest.take() {
            let cursors = self.cursors();
            self.shown = Some(latest);
            self.sort(cursors);
        }
    }

    fn type_filter(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.types = false,
            KeyCode::Esc => {
                self.types = false;
                self.change_filter(String::clear);
            }
            KeyCode::Backspace => self.change_filter(|filter| _ = filter.pop()),
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.change_filter(String::clear);
            }
            KeyCode::Char(c)
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                self.change_filter(|filter| filter.push(c));
            }
            _ => {}
        }
    }

    /// The cursor stays on its VM while the filter lets it pass.
    fn change_filter(&mut self, change: impl FnOnce(&mut String)) {
        let cursors = self.cursors();
        change(&mut self.filter);
        self.place(cursors);
    }
}
