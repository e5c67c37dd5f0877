// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws the live screen.

use std::ops::Range;

use holdfast_policy::VcpuClass;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};

use super::state::{Order, State};
use crate::histogram::{Histogram, NR_SLOTS, time};
use crate::output::count;
use crate::report::shorten;
use crate::sample::{Counters, KvmCounters, Times, VmSample};

const HELP: &str = " Up Down j k   choose a VM, a vCPU       Enter  open a VM
 PgUp PgDn     the same, by a screenful  s      sort by the next: LOST,
 Esc Left      back; Esc at the list:           preemptions, CPU
               quit                      p Space  pause        q  quit

 LOST    time per second that lock holders and next owners spent
         off the CPU while siblings may have waited for them
 PREEMP  preemptions per second          HOLDER  of lock holders (LHP)
 HEAD    of next owners of a lock (LWP)  p99     of holders' absences
 WAIT%   of the VM's CPU time: waiting for any lock
 LHP%    the same while a holder or next owner was preempted
 PLE     pause-loop exits per second     -       not known

 In a VM: its vCPUs, and how long those that were preempted as HOLDER
 and as HEAD stayed off the CPU, since the start";

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(headline(state), top);
    frame.render_widget(
        Line::from(" q quit  Enter open  Esc back  s sort  p pause  h help").dim(),
        bottom,
    );
    state.page = usize::from(body.height).saturating_sub(1);
    match (&state.sample, state.vm_inside().cloned()) {
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
                cells.insert(0, shorten(&vm.label()));
                cells.push(vm.guest.text().to_owned());
                Row::new(cells)
            });
            let table = table(rows.collect(), body.width, "VM", "GUEST KERNEL");
            frame.render_stateful_widget(table, body, &mut state.table);
        }
    }
    if state.helps {
        let [middle] = Layout::vertical([Constraint::Max(18)]).areas(body);
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

/// A table of VMs or vCPUs. The last column is left out if there is no room for it.
fn table(
    rows: Vec<Row<'static>>,
    width: u16,
    first: &'static str,
    last: &'static str,
) -> Table<'static> {
    /// Width of the numbers, and the least width with the other columns.
    const NUMBERS: [u16; 10] = [5, 6, 6, 6, 6, 5, 6, 5, 5, 6];
    const ROOMY: u16 = 95;
    let header = [
        first, "CPU%", "STEAL%", "LOST", "PREEMP", "HOLDER", "HEAD", "p99", "WAIT%", "LHP%", "PLE",
        last,
    ];
    let (of_first, of_last) = match width {
        ROOMY.. => (Constraint::Length(16), Some(Constraint::Fill(1))),
        _ => (Constraint::Fill(1), None),
    };
    let widths = std::iter::once(of_first).chain(NUMBERS.map(Constraint::Length)).chain(of_last);
    let header = Row::new(header.into_iter().take(11 + of_last.iter().count()));
    Table::new(rows, widths)
        .header(header.style(Style::new().bold()))
        .row_highlight_style(Style::new().bg(Color::DarkGray))
}

/// The numbers of a row, all but the first and the last column.
fn cells(c: &Counters, readable: bool, seconds: f64) -> Vec<String> {
    let known = |text: String| if readable && c.tells_classes() { text } else { "-".into() };
    let percent = |ns: u64| format!("{:>5.0}", ns as f64 / seconds / 1e7);
    let timed = |of: fn(Times) -> u64| c.times.map_or("    -".into(), |times| percent(of(times)));
    let rate = |n: u64| format!("{:>5.0}", n as f64 / seconds);
    let share = |s: Option<f64>| s.map_or("    -".into(), |s| format!("{:>5.1}", s * 100.0));
    vec![
        timed(|times| times.run_ns),
        timed(|times| times.steal_ns),
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

fn draw_vm(frame: &mut Frame<'_>, area: Rect, state: &mut State, vm: &VmSample) {
    /// The line of counters, the names of the columns, and a frame around all.
    const AROUND: usize = 4;
    let seconds = state.sample.as_ref().map_or(1.0, |sample| sample.seconds());
    let since_start = state.total.iter().flat_map(|sample| &sample.vms).find(|v| v.pid == vm.pid);
    let total = since_start.map(VmSample::total).unwrap_or_default();
    let absences = Absences::of(&total);

    // The histogram gets the lines that it needs, and the vCPUs the rest, but at least a third if
    // they need it.
    let room = area.height.saturating_sub(1);
    let needed = u16::try_from(absences.slots().len().max(1) + AROUND).unwrap_or(u16::MAX);
    let all = u16::try_from(vm.vcpus.len() + 1).unwrap_or(u16::MAX);
    let height = all.min(room.saturating_sub(needed).max(room / 3));
    let [title, vcpus, histogram] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(height), Constraint::Fill(1)])
            .areas(area);

    let (tier, guest) = (vm.guest.tier_name(), vm.guest.text());
    let title_text = format!(" {} (pid {}), tier {tier}: {guest}", vm.label(), vm.pid);
    frame.render_widget(Paragraph::new(Line::from(title_text).bold()), title);

    let rows = vm.vcpus.iter().map(|vcpu| {
        let mut cells = cells(&vcpu.counters, vcpu.readable, seconds);
        cells.insert(0, format!("vCPU {}", vcpu.vcpu));
        cells.push(format!("thread {}", vcpu.tid));
        Row::new(cells)
    });
    let table = table(rows.collect(), vcpus.width, "VCPU", "RUN BY");
    state.page = usize::from(height).saturating_sub(1);
    frame.render_stateful_widget(table, vcpus, &mut state.vcpus);

    let kvm = |of: fn(KvmCounters) -> u64| {
        total.kvm.map_or("-".into(), |counted| of(counted).to_string())
    };
    let counted = format!(
        "lock halts {}  kicks {}  directed yields {} of {} granted\n",
        total.lock_halts,
        kvm(|counted| counted.kicks),
        kvm(|counted| counted.yields_done),
        kvm(|counted| counted.yields_tried),
    );
    let text = match absences.slots().len() {
        0 => "No lock holder and no next owner was preempted since the start.".to_owned(),
        _ => absences.render(usize::from(histogram.height).saturating_sub(AROUND)),
    };
    let block = Block::bordered().title(" time off the CPU since the start ");
    frame.render_widget(Paragraph::new(counted + &text).block(block), histogram);
}

/// Histograms of the off-CPU time of preempted Holders and Heads, side by side.
struct Absences {
    holders: Histogram,
    heads: Histogram,
}

impl Absences {
    fn of(total: &Counters) -> Self {
        Self {
            holders: total.offcpu_hist[VcpuClass::Holder],
            heads: total.offcpu_hist[VcpuClass::Head],
        }
    }

    /// From the first to the last slot that is not empty in one of them.
    fn slots(&self) -> Range<usize> {
        let is_used = |slot: &usize| self.holders.0[*slot] + self.heads.0[*slot] > 0;
        let first = (0..NR_SLOTS).find(is_used);
        first.map_or(0..0, |first| first..(0..NR_SLOTS).rfind(is_used).map_or(first, |l| l + 1))
    }

    /// The histograms in this many lines below a headline. If there is no room for all slots, the
    /// shortest times share one line, because long ones matter more.
    fn render(&self, lines: usize) -> String {
        const BAR: u64 = 19;
        let slots = self.slots();
        let first = slots.start.max(slots.end.saturating_sub(lines.max(1)));
        let both = [&self.holders, &self.heads];
        let counts = |slot: usize| {
            let from = if slot == first { slots.start } else { slot };
            both.map(|h| h.0[from..=slot].iter().fold(0, |sum: u64, n| sum.saturating_add(*n)))
        };
        let most = (first..slots.end).flat_map(counts).max().unwrap_or(1).max(1);
        let named = both.map(|h| count(h.count(), "time"));
        let mut text = format!(
            "{:>17} {:<28} {:<28}\n",
            "",
            format!("HOLDER preempted {}", named[0]),
            format!("HEAD preempted {}", named[1]),
        );
        for slot in first..slots.end {
            let from = match if slot == first { slots.start } else { slot } {
                0 => 0,
                from => 1 << from,
            };
            let range = format!("{} -> {}", time(from), time(1 << (slot + 1)));
            let part = |n: u64| {
                let bar = "*".repeat((u128::from(n) * u128::from(BAR) / u128::from(most)) as usize);
                format!("{n:<8} |{bar:<19}")
            };
            let [holders, heads] = counts(slot).map(part);
            text.push_str(&format!("{range:>16}: {holders} {heads}\n"));
        }
        text
    }
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
        screen_of(state, width, 30)
    }

    fn screen_of(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
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
    fn enter_opens_a_vm_and_escape_goes_back_before_it_quits() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 100);
        assert!(text.contains("web (pid 7)") && text.contains("vCPU 0"), "{text}");
        assert!(text.contains("HOLDER preempted 30 times"), "{text}");
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
    fn a_vm_that_ends_while_it_is_open_is_reported() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Enter);
        let mut none = sample(9, 7, 0);
        none.vms.clear();
        state.show(&none, &none);
        assert!(screen(&mut state, 80).contains("has ended"));
    }

    /// An open VM of this many vCPUs. vCPUs of higher numbers lose more.
    fn inside_a_vm_of(vcpus: u32) -> State {
        let mut now = sample(2_000_000_000, 7, 30);
        now.vms[0].vcpus = (0..vcpus)
            .map(|vcpu| {
                let mut each = now.vms[0].vcpus[0].clone();
                (each.vcpu, each.tid) = (vcpu, 100 + vcpu);
                each.counters.offcpu_ns.0[VcpuClass::Holder as usize] = u64::from(vcpu) << 20;
                for slot in 10..24 {
                    each.counters.offcpu_hist.0[VcpuClass::Head as usize].0[slot] = 3;
                }
                each
            })
            .collect();
        let mut state = State::new(Duration::from_secs(1));
        let mut before = now.clone();
        (before.interval_ns, before.vms) = (1_000_000_000, Vec::new());
        state.show(&now, &before);
        press(&mut state, KeyCode::Enter);
        state
    }

    /// vCPUs on the screen, from the top.
    fn vcpus_of(screen: &str) -> Vec<u32> {
        let word = |line: &str| line.split("vCPU ").nth(1)?.split(' ').next()?.parse().ok();
        screen.lines().filter_map(word).collect()
    }

    #[test]
    fn vcpus_that_lose_most_come_first_and_keys_scroll_to_the_last() {
        let mut state = inside_a_vm_of(40);
        let shown = vcpus_of(&screen_of(&mut state, 80, 24));
        assert!(shown.len() >= 6 && shown[..3] == [39, 38, 37], "{shown:?}");
        press(&mut state, KeyCode::PageDown);
        press(&mut state, KeyCode::Char('j'));
        let next = vcpus_of(&screen_of(&mut state, 80, 24));
        assert_eq!((next.len(), next.last()), (shown.len(), Some(&(39 - next.len() as u32 - 1))));
        for _ in 0..20 {
            press(&mut state, KeyCode::PageDown);
        }
        assert_eq!(vcpus_of(&screen_of(&mut state, 80, 24)).last(), Some(&0));
        for _ in 0..50 {
            press(&mut state, KeyCode::Up);
        }
        assert_eq!(vcpus_of(&screen_of(&mut state, 80, 24)), shown);
        press(&mut state, KeyCode::Esc);
        press(&mut state, KeyCode::Enter);
        assert_eq!(state.vcpus.selected(), Some(0));
    }

    #[test]
    fn both_histograms_and_all_columns_fit_a_terminal() {
        let mut state = inside_a_vm_of(40);
        let text = screen_of(&mut state, 80, 24);
        for what in ["HOLDER preempted 1200 times", "HEAD preempted 1680 times", "WAIT%", "PLE"] {
            assert!(text.contains(what), "{what}: {text}");
        }
        // The longest times have lines, and the first line counts those without a line.
        assert!(
            text.contains("8.4ms -> 17ms: 0        |                    120      |*"),
            "{text}"
        );
        let of_heads = |line: &str| {
            let (_, counts) = line.split_once(": ")?;
            counts.split('|').nth(1)?.split_whitespace().last()?.parse::<u64>().ok()
        };
        let heads = text.lines().filter(|line| line.contains(" -> ")).filter_map(of_heads);
        assert_eq!(heads.sum::<u64>(), 1680, "{text}");
        press(&mut state, KeyCode::Esc);
        let list = screen_of(&mut state, 80, 24);
        assert!(list.contains("PLE") && !list.contains("GUEST"), "{list}");
        assert!(screen_of(&mut state, 100, 24).contains("GUEST KERNEL"));
        press(&mut state, KeyCode::Char('h'));
        let help = screen_of(&mut state, 80, 24);
        assert!(help.contains("choose a VM") && help.contains("CPU, since the start"), "{help}");
    }
}
