// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws the live screen.

use holdfast_policy::VcpuClass;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};

use super::state::{Order, State};
use crate::histogram::time;
use crate::output::count;
use crate::sample::{Counters, VmSample};

const HELP: &str = " Up Down j k   choose a VM               Enter  look into it
 Esc Left      back; Esc at the list: quit
 s             sort by the next: LOST, preemptions, CPU
 p Space       pause                     q      quit

 LOST    time per second that lock holders and next owners spent
         off the CPU while siblings may have waited for them
 PREEMP  preemptions per second          HOLDER  of lock holders (LHP)
 HEAD    of next owners of a lock (LWP)  p99     of holders' absences
 WAIT%   of the VM's CPU time: waiting for any lock
 LHP%    the same while a holder or next owner was preempted
 PLE     pause-loop exits per second     -       not known";

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(headline(state), top);
    frame.render_widget(
        Line::from(" q quit  Enter look into  Esc back  s sort  p pause  h help").dim(),
        bottom,
    );
    let inside = state.inside.and_then(|pid| state.vms().iter().find(|vm| vm.pid == pid).cloned());
    match (&state.sample, inside) {
        (None, _) => frame.render_widget(Paragraph::new("\n  Watching..."), body),
        (Some(_), Some(vm)) => draw_vm(frame, body, state, &vm),
        (Some(_), None) if state.inside.is_some() => {
            frame.render_widget(Paragraph::new("\n  This VM has ended. Esc: back."), body);
        }
        (Some(sample), None) if sample.vms.is_empty() => {
            let text = "\n  No vCPU ran: there is no VM, or all of them are idle.";
            frame.render_widget(Paragraph::new(text), body);
        }
        (Some(sample), None) => {
            let seconds = sample.seconds();
            let rows = sample.vms.iter().map(|vm| {
                let mut cells = cells(&vm.total(), vm.is_readable(), seconds);
                cells.insert(0, vm.label());
                let guest = vm.kernel.clone().or_else(|| vm.unreadable.clone());
                cells.push(guest.unwrap_or_default());
                Row::new(cells)
            });
            let table = table(rows.collect(), "VM", "GUEST KERNEL");
            frame.render_stateful_widget(table, body, &mut state.table);
        }
    }
    if state.helps {
        let [middle] = Layout::vertical([Constraint::Length(14)]).areas(body);
        let [middle] = Layout::horizontal([Constraint::Max(76)]).areas(middle);
        frame.render_widget(Clear, middle);
        let block = Block::bordered().title(" holdfast top: any key to go on ");
        frame.render_widget(Paragraph::new(HELP).block(block), middle);
    }
}

fn headline(state: &State) -> Line<'static> {
    let vcpus: usize = state.vms().iter().map(|vm| vm.vcpus.len()).sum();
    let order = match state.order {
        Order::Lost => "LOST",
        Order::Preemptions => "PREEMP",
        Order::Cpu => "CPU%",
    };
    let mut text = format!(
        " holdfast top   {}, {}   every {:?}, sorted by {order}",
        count(state.vms().len() as u64, "VM"),
        count(vcpus as u64, "vCPU"),
        state.interval
    );
    if state.paused {
        text.push_str("   PAUSED");
    }
    let lost = state.total.as_ref().map_or(0, |sample| sample.lost_events);
    if lost > 0 {
        text.push_str(&format!("   {lost} EVENTS LOST"));
    }
    Line::from(text).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn table(rows: Vec<Row<'static>>, first: &'static str, last: &'static str) -> Table<'static> {
    let header = [
        first, "CPU%", "STEAL%", "LOST", "PREEMP", "HOLDER", "HEAD", "p99", "WAIT%", "LHP%", "PLE",
        last,
    ];
    let widths = [16, 5, 6, 6, 6, 6, 5, 6, 5, 5, 6].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Fill(1)]);
    Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().bold()))
        .row_highlight_style(Style::new().bg(Color::DarkGray))
}

/// The numbers of a row, all but the first and the last column.
fn cells(c: &Counters, readable: bool, seconds: f64) -> Vec<String> {
    let known = |text: String| if readable { text } else { "-".into() };
    let percent = |ns: u64| format!("{:>5.0}", ns as f64 / seconds / 1e7);
    let rate = |n: u64| format!("{:>5.0}", n as f64 / seconds);
    let share = |s: Option<f64>| s.map_or("    -".into(), |s| format!("{:>5.1}", s * 100.0));
    vec![
        percent(c.run_ns),
        percent(c.steal_ns),
        known(time((c.blocking_ns() as f64 / seconds) as u64)),
        rate(c.preemptions.total()),
        known(rate(c.preemptions[VcpuClass::Holder])),
        known(rate(c.preemptions[VcpuClass::Head])),
        c.offcpu_hist[VcpuClass::Holder].quantile(0.99),
        share(c.cost().map(|cost| cost.waiting)),
        share(c.cost().map(|cost| cost.holder_preempted + cost.head_preempted)),
        c.kvm.map_or("    -".into(), |kvm| rate(kvm.pause_exits)),
    ]
}

fn draw_vm(frame: &mut Frame<'_>, area: Rect, state: &State, vm: &VmSample) {
    let seconds = state.sample.as_ref().map_or(1.0, |sample| sample.seconds());
    let height = (vm.vcpus.len() as u16).saturating_add(2).min(area.height / 2);
    let [title, vcpus, histogram] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(height), Constraint::Fill(1)])
            .areas(area);

    let guest = vm.kernel.clone().or_else(|| vm.unreadable.clone()).unwrap_or_default();
    let title_text = format!(" {} (pid {}): {guest}", vm.label(), vm.pid);
    frame.render_widget(Paragraph::new(Line::from(title_text).bold()), title);

    let rows = vm.vcpus.iter().map(|vcpu| {
        let mut cells = cells(&vcpu.counters, vcpu.readable, seconds);
        cells.insert(0, format!("vCPU {}", vcpu.vcpu));
        cells.push(format!("thread {}", vcpu.tid));
        Row::new(cells)
    });
    frame.render_widget(table(rows.collect(), "VCPU", "RUN BY"), vcpus);

    let since_start = state.total.iter().flat_map(|sample| &sample.vms).find(|v| v.pid == vm.pid);
    let total = since_start.map(VmSample::total).unwrap_or_default();
    let holders = total.offcpu_hist[VcpuClass::Holder];
    let text = match holders.count() {
        0 => "No lock holder was preempted since the start.".to_owned(),
        n => format!("{n} lock holders preempted since the start:\n{}", holders.render()),
    };
    let kvm = total.kvm.unwrap_or_default();
    let halts = format!(
        "lock halts {}  kicks {}  directed yields {} of {} granted\n\n",
        total.lock_halts, kvm.kicks, kvm.yields_done, kvm.yields_tried
    );
    let block = Block::bordered().title(" time off the CPU ");
    frame.render_widget(Paragraph::new(halts + &text).block(block), histogram);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::sample::tests::sample;

    fn screen(state: &mut State, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().to_string()
    }

    fn two_vms() -> State {
        let mut state = State::new(Duration::from_secs(1));
        let mut now = sample(2_000_000_000, 7, 30);
        now.vms.extend(sample(2_000_000_000, 9, 500).vms);
        now.vms[1].name = Some("db".into());
        state.show(&now, &sample(1_000_000_000, 7, 10));
        state
    }

    fn press(state: &mut State, code: KeyCode) {
        state.press(KeyEvent::from(code));
    }

    #[test]
    fn shows_the_vm_that_loses_most_first() {
        let text = screen(&mut two_vms(), 100);
        let (db, web) = (text.find("db ").unwrap(), text.find("web ").unwrap());
        assert!(db < web, "{text}");
        assert!(text.contains("2 VMs, 2 vCPUs"), "{text}");
    }

    #[test]
    fn enter_looks_into_a_vm_and_escape_comes_back_before_it_quits() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 100);
        assert!(text.contains("web (pid 7)") && text.contains("vCPU 0"), "{text}");
        assert!(text.contains("30 lock holders preempted"), "{text}");
        press(&mut state, KeyCode::Esc);
        assert!(screen(&mut state, 100).contains("db "));
        assert!(!state.quits);
        press(&mut state, KeyCode::Esc);
        assert!(state.quits);
    }

    #[test]
    fn the_cursor_stays_on_its_vm_when_the_order_changes() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Down);
        let mut now = sample(3_000_000_000, 7, 9000);
        now.vms.extend(sample(3_000_000_000, 9, 501).vms);
        let mut before = sample(2_000_000_000, 7, 30);
        before.vms.extend(sample(2_000_000_000, 9, 500).vms);
        state.show(&now, &before);
        assert_eq!(state.vms()[0].pid, 7);
        assert_eq!(state.table.selected(), Some(0));
    }

    #[test]
    fn help_and_pause_and_small_terminals_work() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Char('?'));
        assert!(screen(&mut state, 80).contains("lock holders and next owners"));
        press(&mut state, KeyCode::Char('q'));
        assert!(!state.quits, "any key leaves the help");
        press(&mut state, KeyCode::Char('p'));
        state.show(&sample(9, 7, 0), &sample(8, 7, 0));
        let text = screen(&mut state, 90);
        assert!(text.contains("PAUSED") && text.contains("db "), "{text}");
        screen(&mut state, 1);
    }

    #[test]
    fn a_vm_that_ends_while_it_is_looked_into_is_no_surprise() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Enter);
        let mut none = sample(9, 7, 0);
        none.vms.clear();
        state.show(&none, &none);
        assert!(screen(&mut state, 80).contains("has ended"));
    }
}
