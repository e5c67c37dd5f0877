// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws the live screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, RenderDirection, Row, Sparkline, Table};

use super::absences::Absences;
use super::columns::{self, Columns, OF_VCPUS, OF_VMS, Order};
use super::keys::{KEYS, View};
use super::state::{Pane, State};
use crate::histogram::time;
use crate::output::count;
use crate::report::{shorten, when};
use crate::sample::{Counters, KvmCounters, VmSample};

/// The smallest screen on which nothing is cut.
const LEAST: (u16, u16) = (80, 12);
/// A screen of this width has room for the last column.
const ROOMY: u16 = 96;
/// Width of the names of VMs, and of vCPUs with their class.
const VM_WIDTH: u16 = 15;
const VCPU_WIDTH: u16 = 4;
const CLASS_WIDTH: u16 = 16;
/// Lines of the history below the list of VMs, and what the list needs beside it.
const HISTORY_LINES: u16 = 6;
const LIST_LINES: u16 = 6;

const PLAIN: Style = Style::new();
const BOLD: Style = PLAIN.add_modifier(Modifier::BOLD);
const REVERSED: Style = PLAIN.add_modifier(Modifier::REVERSED);

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = too_small(area);
        return frame.render_widget(Paragraph::new(text), area);
    }
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)])
            .areas(area);
    frame.render_widget(headline(state, top.width), top);
    frame.render_widget(footer(state, bottom.width), bottom);
    let say = |frame: &mut Frame<'_>, text: &str| {
        let lines = wrap(&format!("  {text}"), body.width, body.height);
        frame.render_widget(Paragraph::new(format!("\n{lines}")), body);
    };
    match (&state.shown, state.vm_inside().cloned()) {
        (None, _) => say(frame, "Watching. The first figures come after one interval."),
        (Some(_), Some(vm)) => draw_vm(frame, body, state, &vm),
        (Some(_), None) if state.inside.is_some() => say(frame, "This VM has ended. Esc: back."),
        (Some(_), None) if state.all_vms().is_empty() => {
            say(frame, "No vCPU ran: there is no VM, or all of them are idle.");
        }
        (Some(_), None) if state.vms().is_empty() => {
            say(frame, "No VM has this in its name, PID or UUID. Esc clears the filter.");
        }
        (Some(_), None) => draw_list(frame, body, state),
    }
    if state.help.is_some() {
        draw_help(frame, body, state);
    }
}

fn too_small(area: Rect) -> String {
    let text = format!(
        "This terminal has {} columns and {} lines. The live screen needs {} and {}: enlarge it, \
         or press q and use `holdfast report`.",
        area.width, area.height, LEAST.0, LEAST.1
    );
    wrap(&text, area.width, area.height)
}

/// Wraps a text between words to at most so many lines, the last of which ends in `...` if there
/// are more.
fn wrap(text: &str, width: u16, lines: u16) -> String {
    const MORE: &str = " ...";
    let (width, lines) = (usize::from(width.max(1)), usize::from(lines.max(1)));
    let mut wrapped = textwrap::wrap(text, width);
    if wrapped.len() > lines {
        let rest = wrapped.split_off(lines - 1).join(" ");
        let room = width.saturating_sub(MORE.len()).max(1);
        let last = textwrap::wrap(&rest, room).first().map_or_else(String::new, |l| l.to_string());
        wrapped.push((last + MORE).into());
    }
    wrapped.join("\n")
}

/// Joins parts, the important ones in any case, and of the others as many as there is room for.
fn fit(parts: Vec<(bool, String)>, width: u16) -> String {
    let length = |part: &(bool, String)| part.1.chars().count() + 2;
    let mut left = usize::from(width);
    let needed = parts.iter().filter(|part| part.0).map(length).sum();
    left = left.saturating_sub(needed);
    let mut text = String::new();
    for part in parts {
        if !part.0 {
            match left.checked_sub(length(&part)) {
                Some(rest) => left = rest,
                None => continue,
            }
        }
        text.push_str("  ");
        text.push_str(&part.1);
    }
    text.split_off(text.len().min(1))
}

fn headline(state: &State, width: u16) -> Line<'static> {
    let (shown, all) = (state.vms(), state.all_vms().len() as u64);
    let vcpus: usize = shown.iter().map(|vm| vm.vcpus.len()).sum();
    let vms = match shown.len() as u64 {
        some if some < all => format!("{some} of {}", count(all, "VM")),
        all => count(all, "VM"),
    };
    let (columns, order) = state.columns();
    let direction = if order.reversed { ", least first" } else { "" };
    let mut parts = vec![
        (true, "holdfast top".to_owned()),
        (false, format!("{vms}, {}", count(vcpus as u64, "vCPU"))),
        (false, format!("every {}", humantime::format_duration(state.interval))),
        (false, format!("by {}{direction}", columns.name(order))),
    ];
    if !state.filter.is_empty() && !state.types {
        parts.push((false, format!("filter: {}", shorten(&state.filter))));
    }
    if let (true, Some(shown)) = (state.frozen, &state.shown) {
        let (since, behind) = (when(shown.interval.t_ns), state.behind().as_secs());
        let since = since.get(11..).unwrap_or(&since);
        parts.push((true, format!("FROZEN since {since}, {behind}s")));
    }
    let lost = state.shown.as_ref().map_or(0, |shown| shown.total.lost_events);
    if lost > 0 {
        parts.push((true, format!("{lost} EVENTS LOST")));
    }
    Line::from(fit(parts, width)).style(REVERSED)
}

/// The keys of the view, or the filter while it is typed.
fn footer(state: &State, width: u16) -> Line<'static> {
    if state.types {
        const KEYS: &str = "   Enter keeps  Esc clears";
        let room = usize::from(width).saturating_sub(KEYS.len() + 3);
        let typed: Vec<char> = state.filter.chars().collect();
        let end: String = typed[typed.len().saturating_sub(room)..].iter().collect();
        return Line::from(vec![
            Span::styled(format!(" /{end}"), BOLD),
            Span::styled(" ", REVERSED),
            Span::from(KEYS).dim(),
        ]);
    }
    let mut spans = Vec::new();
    for (key, word, views) in KEYS.iter().filter_map(|keys| keys.footer) {
        if views.contains(&state.view()) {
            spans.push(Span::styled(format!(" {key}"), BOLD));
            spans.push(Span::from(format!(" {word} ")).dim());
        }
    }
    Line::from(spans)
}

/// A table of VMs or vCPUs: first columns of their own, the numbers, and a last column where there
/// is room for it.
fn table(
    columns: &'static Columns,
    order: Order,
    first: &[(&'static str, u16)],
    rows: Vec<Row<'static>>,
    width: u16,
) -> Table<'static> {
    let names = first.iter().map(|(name, _)| (*name).to_owned());
    let names = names.chain(columns.numbers.iter().map(|column| column.header()));
    let names = names.chain((width >= ROOMY).then(|| columns.last.to_owned()));
    let sorted = if order.column == 0 { 0 } else { order.column + first.len() - 1 };
    let header: Vec<_> = names
        .enumerate()
        .map(|(at, name)| match at == sorted {
            true => Span::styled(name, BOLD.add_modifier(Modifier::UNDERLINED).fg(Color::Cyan)),
            false => Span::styled(name, BOLD),
        })
        .collect();
    let widths = first.iter().map(|(_, width)| *width);
    let widths = widths.chain(columns.numbers.iter().map(|column| column.width));
    let widths = widths.map(Constraint::Length).chain([Constraint::Fill(1)]);
    Table::new(rows, widths.take(header.len()).collect::<Vec<_>>())
        .header(Row::new(header))
        .row_highlight_style(REVERSED)
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, state: &mut State) {
    let lines = if area.height >= HISTORY_LINES + LIST_LINES { HISTORY_LINES } else { 0 };
    let [list, history] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(lines)]).areas(area);
    let seconds = state.shown.as_ref().map_or(1.0, |shown| shown.interval.seconds());
    let numbers = OF_VMS.numbers;
    let last = list
        .width
        .saturating_sub(VM_WIDTH + numbers.iter().map(|column| column.width + 1).sum::<u16>() + 1);
    let rows = state.vms().into_iter().map(|vm| {
        let row = columns::Row::of_vm(vm, seconds);
        let mut cells = vec![shorten(&vm.label())];
        cells.extend(numbers.iter().map(|column| column.cell(&row)));
        cells.push(wrap(vm.guest.text(), last, 1));
        Row::new(cells)
    });
    let first = [(OF_VMS.first, VM_WIDTH)];
    let table = table(&OF_VMS, state.order_of_vms, &first, rows.collect(), list.width);
    state.page = usize::from(list.height).saturating_sub(1);
    frame.render_stateful_widget(table, list, &mut state.table);
    if let Some(vm) = state.selected().filter(|_| lines > 0) {
        draw_history(frame, history, state, vm);
    }
}

fn draw_vm(frame: &mut Frame<'_>, area: Rect, state: &mut State, vm: &VmSample) {
    let seconds = state.shown.as_ref().map_or(1.0, |shown| shown.interval.seconds());
    let since_start = state.shown.iter().flat_map(|shown| &shown.total.vms);
    let total = since_start.filter(|v| v.pid == vm.pid).map(VmSample::total).next();
    let absences = Absences::of(&total.unwrap_or_default());

    let guest = vm.guest.why().unwrap_or_else(|| vm.guest.text().to_owned());
    let text = format!("{} (pid {}), tier {}: {guest}", vm.label(), vm.pid, vm.guest.tier_name());
    let text = wrap(&text, area.width, 3);
    let title_lines = text.lines().count() as u16;

    // The pane gets the lines that it needs, and the vCPUs the rest, but at least a third if they
    // need it.
    let room = area.height.saturating_sub(title_lines);
    let needed = match state.pane {
        Pane::History => HISTORY_LINES,
        Pane::Absences => u16::try_from(absences.lines()).unwrap_or(u16::MAX).saturating_add(2),
    };
    let all = u16::try_from(vm.vcpus.len() + 1).unwrap_or(u16::MAX);
    let height = all.min(room.saturating_sub(needed).max(room / 3));
    let [title, vcpus, pane] = Layout::vertical([
        Constraint::Length(title_lines),
        Constraint::Length(height),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(text).style(BOLD), title);

    let rows = vm.vcpus.iter().map(|vcpu| {
        let row = columns::Row::of_vcpu(vcpu, seconds);
        let mut cells = vec![vcpu.vcpu.to_string(), columns::class(&row)];
        cells.extend(OF_VCPUS.numbers.iter().map(|column| column.cell(&row)));
        cells.push(vcpu.tid.to_string());
        Row::new(cells)
    });
    let first = [(OF_VCPUS.first, VCPU_WIDTH), ("CLASS", CLASS_WIDTH)];
    let table = table(&OF_VCPUS, state.order_of_vcpus, &first, rows.collect(), vcpus.width);
    state.page = usize::from(height).saturating_sub(1);
    frame.render_stateful_widget(table, vcpus, &mut state.vcpus);

    match state.pane {
        Pane::History => draw_history(frame, pane, state, vm),
        Pane::Absences => draw_absences(frame, pane, &absences, &total.unwrap_or_default()),
    }
}

fn pane(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).border_style(PLAIN.dim()).title(Span::styled(title, BOLD))
}

/// LOST of a VM in the last intervals, the latest at the right.
fn draw_history(frame: &mut Frame<'_>, area: Rect, state: &State, vm: &VmSample) {
    let until = state.shown.as_ref().map_or(0, |shown| shown.interval.t_ns);
    let points: Vec<_> = state.history.lost(vm.pid, until).take(usize::from(area.width)).collect();
    let known: Vec<u64> = points.iter().copied().flatten().collect();
    let (name, span) = (shorten(&vm.label()), state.interval * points.len() as u32);
    let covered = humantime::format_duration(span);
    let Some(most) = known.iter().max().copied() else {
        let title = format!(" {name}: time lost in the last {covered} ");
        let why = vm.guest.why().unwrap_or_else(|| "its classes are not known yet".into());
        let text = wrap(&format!(" Not known: {why}."), area.width, area.height.max(2) - 1);
        return frame.render_widget(Paragraph::new(text).block(pane(title)), area);
    };
    let mean = known.iter().sum::<u64>() / known.len() as u64;
    let title = format!(
        " {name}: time lost per second, the last {covered}: mean {}, most {} ",
        time(mean),
        time(most)
    );
    let block = pane(title);
    let [bars, axis] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(block.inner(area));
    frame.render_widget(block, area);
    let bars_of_it = Sparkline::default()
        .data(points)
        .max(most.max(1))
        .direction(RenderDirection::RightToLeft)
        .absent_value_symbol("?")
        .absent_value_style(PLAIN.dim())
        .style(PLAIN.fg(Color::Red));
    frame.render_widget(bars_of_it, bars);
    frame.render_widget(Line::from("latest").right_aligned().dim(), axis);
    let note = format!("one column: {}", humantime::format_duration(state.interval));
    frame.render_widget(Line::from(note).dim(), axis);
}

fn draw_absences(frame: &mut Frame<'_>, area: Rect, absences: &Absences, total: &Counters) {
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
        _ => absences.render(usize::from(area.height).saturating_sub(3)),
    };
    let block = pane(" time off the CPU since the start ".into());
    frame.render_widget(Paragraph::new(counted + &text).block(block), area);
}

/// The keys, and beside them the columns of the view.
fn draw_help(frame: &mut Frame<'_>, area: Rect, state: &mut State) {
    let lines = help(state.view());
    let height = (lines.len() as u16 + 2).min(area.height);
    let last = lines.len() as u16 - (height - 2);
    let first = state.help.unwrap_or_default().min(last);
    state.help = Some(first);
    state.page = usize::from(height.max(3) - 2);
    let [area] = Layout::vertical([Constraint::Length(height)]).areas(area);
    let [area] = Layout::horizontal([Constraint::Length(LEAST.0)]).areas(area);
    let title = match last {
        0 => " help: any key closes it ",
        _ => " help: Up and Down scroll, any other key closes it ",
    };
    frame.render_widget(Clear, area);
    let text = Paragraph::new(lines.join("\n")).scroll((first, 0));
    frame.render_widget(text.block(Block::bordered().title(title)), area);
}

fn help(view: View) -> Vec<String> {
    let mut keys: Vec<_> =
        KEYS.iter().map(|keys| format!("{:<11} {}", keys.names, keys.purpose)).collect();
    let columns = if view == View::List { &OF_VMS } else { &OF_VCPUS };
    let mut right = vec![];
    if view == View::Vm {
        right.push("CLASS  class at most clock ticks".to_owned());
    }
    let numbers = columns.numbers.iter();
    right.extend(numbers.map(|column| format!("{:<6} {}", column.name, column.meaning)));
    right.push(format!("{:<6} not known", "-"));
    let lines = keys.len().max(right.len());
    keys.resize(lines, String::new());
    right.resize(lines, String::new());
    let beside = keys.iter().zip(&right).map(|(left, right)| format!(" {left:<37}{right}"));
    let mut text: Vec<_> = beside.collect();
    text.push(String::new());
    text.push(" LOST is the time per second in which siblings may have waited for the VM's".into());
    text.push(" preempted vCPUs. The classes: Holder of a lock, Head of its queue, Irq.".into());
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use holdfast_policy::VcpuClass;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::{Buffer, Cell};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::sample::Sample;
    use crate::sample::tests::sample;
    use crate::select::{Column, Selection, Wanted};

    /// The screen of this size.
    pub(in crate::top) fn buffer(state: &mut State, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().buffer().clone()
    }

    /// The screen's lines.
    fn screen(state: &mut State, width: u16, height: u16) -> String {
        let buffer = buffer(state, width, height);
        let rows = buffer.content.chunks(usize::from(width));
        let row = |cells: &[Cell]| -> String {
            cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n"
        };
        rows.map(row).collect()
    }

    /// `web` and `db`, which have been preempted this often as Holders at this second.
    fn both(second: u64, web: u64, db: u64) -> Sample {
        let mut now = sample(second * 1_000_000_000, 7, web);
        now.vms.extend(sample(second * 1_000_000_000, 9, db).vms);
        now.vms[1].name = Some("db".into());
        now
    }

    fn new(selection: Selection) -> State {
        State::new(Duration::from_secs(1), selection)
    }

    fn two_vms() -> State {
        let mut state = new(Selection::default());
        state.take(both(1, 10, 0));
        state.take(both(2, 30, 500));
        state
    }

    fn press(state: &mut State, code: KeyCode) {
        state.press(KeyEvent::from(code));
    }

    fn type_in(state: &mut State, text: &str) {
        text.chars().for_each(|c| press(state, KeyCode::Char(c)));
    }

    /// Names in the first column of the list, from the top.
    fn names(state: &mut State) -> Vec<String> {
        let text = screen(state, 80, 24);
        let list = text.lines().skip(2).take_while(|line| !line.contains('─'));
        list.filter_map(|line| line.split(' ').next().map(str::to_owned))
            .filter(|name| !name.is_empty())
            .collect()
    }

    #[test]
    fn shows_the_vm_that_loses_most_first() {
        let text = screen(&mut two_vms(), 100, 24);
        let (db, web) = (text.find("\ndb ").unwrap(), text.find("\nweb ").unwrap());
        assert!(db < web, "{text}");
        assert!(text.contains("2 VMs, 2 vCPUs") && text.contains("every 1s  by LOST"), "{text}");
        assert!(text.contains("GUEST KERNEL") && text.contains("6.1.0"), "{text}");
        let text = screen(&mut two_vms(), 80, 24);
        assert!(text.contains("PLE/s") && !text.contains("GUEST"), "{text}");
    }

    #[test]
    fn enter_opens_a_vm_and_escape_goes_back_and_does_not_quit() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 80, 24);
        assert!(text.contains("web (pid 7), tier exact: 6.1.0"), "{text}");
        for column in ["vCPU", "CLASS", "CPU%", "LOST", "HOLDER", "IRQ", "HEAD", "WAITER"] {
            assert!(text.contains(column), "{column}: {text}");
        }
        assert!(text.contains("0    preemptible 67%"), "{text}");
        press(&mut state, KeyCode::Esc);
        assert_eq!(names(&mut state), ["db", "web"]);
        press(&mut state, KeyCode::Esc);
        assert!(!state.quits);
        press(&mut state, KeyCode::Char('q'));
        assert!(state.quits);
    }

    #[test]
    fn the_cursor_stays_on_its_vm_when_the_order_changes() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Down);
        state.take(both(3, 9000, 501));
        assert_eq!(names(&mut state), ["web", "db"]);
        assert_eq!(state.table.selected(), Some(0));
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(names(&mut state), ["db", "web"]);
        assert_eq!(state.selected().unwrap().pid, 7);
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Char('/'));
        type_in(&mut state, "Wq");
        let text = screen(&mut state, 80, 24);
        assert!(!state.quits, "q is text here");
        assert!(text.contains("/Wq ") && text.contains("Enter keeps  Esc clears"), "{text}");
        assert!(text.contains("No VM has this in its name"), "{text}");
        press(&mut state, KeyCode::Backspace);
        assert_eq!(names(&mut state), ["web"]);
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 80, 24);
        assert!(text.contains("1 of 2 VMs") && text.contains("filter: W"), "{text}");
        assert!(text.contains("q quit"), "{text}");
        state.take(both(3, 31, 900));
        assert_eq!(names(&mut state), ["web"], "new figures are filtered, too");
        press(&mut state, KeyCode::Esc);
        assert_eq!(names(&mut state), ["db", "web"]);
        assert_eq!(state.selected().unwrap().pid, 7, "the cursor stays");

        // By process; Esc while typing clears; Ctrl-C ends even here.
        press(&mut state, KeyCode::Char('/'));
        type_in(&mut state, "9");
        assert_eq!(names(&mut state), ["db"]);
        press(&mut state, KeyCode::Esc);
        assert_eq!(names(&mut state).len(), 2);
        press(&mut state, KeyCode::Char('/'));
        state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(state.quits);
    }

    #[test]
    fn the_command_line_chooses_vms_and_their_order() {
        let mut state = new(Selection { vms: Wanted(vec!["web".into()]), ..Selection::default() });
        (1..=2).for_each(|second| state.take(both(second, second * 10, second * 500)));
        assert_eq!(names(&mut state), ["web"]);
        let mut state = new(Selection { sort: Column::Vm, top: Some(1), ..Selection::default() });
        (1..=2).for_each(|second| state.take(both(second, second * 500, second * 10)));
        assert_eq!(names(&mut state), ["db"]);
        let text = screen(&mut state, 80, 24);
        assert!(text.contains("1 of 2 VMs") && text.contains("by VM"), "{text}");
    }

    #[test]
    fn sort_keys_walk_the_columns_of_their_view() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Char('>'));
        assert!(screen(&mut state, 80, 24).contains("by PREEMP"));
        press(&mut state, KeyCode::Char('<'));
        press(&mut state, KeyCode::Char('<'));
        press(&mut state, KeyCode::Char('r'));
        assert!(screen(&mut state, 80, 24).contains("by STEAL%, least first"));
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 80, 24);
        assert!(text.contains("by LOST") && !text.contains("least first"), "{text}");
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('s'));
        assert!(screen(&mut state, 80, 24).contains("by IRQ"));
    }

    #[test]
    fn a_frozen_view_stays_and_counting_goes_on() {
        let mut early = new(Selection::default());
        press(&mut early, KeyCode::Char('p'));
        assert!(!early.frozen, "there is nothing to freeze yet");

        let mut state = two_vms();
        press(&mut state, KeyCode::Char(' '));
        let before = screen(&mut state, 80, 24);
        assert!(before.contains("FROZEN since 00:00:02Z, 0s"), "{before}");
        (3..=5).for_each(|second| state.take(both(second, 30 + second * 1000, 500)));
        let after = screen(&mut state, 80, 24);
        assert_eq!(after.replace("02Z, 3s", "02Z, 0s"), before, "only its age changes");
        press(&mut state, KeyCode::Enter);
        assert!(screen(&mut state, 80, 24).contains("db (pid 9)"));
        press(&mut state, KeyCode::Esc);
        press(&mut state, KeyCode::Char('p'));
        let text = screen(&mut state, 80, 24);
        assert!(!text.contains("FROZEN"), "{text}");
        assert_eq!(names(&mut state), ["web", "db"]);
        press(&mut state, KeyCode::Home);
        let text = screen(&mut state, 80, 24);
        assert!(text.contains("web: time lost per second, the last 4s: "), "{text}");
    }

    #[test]
    fn history_shows_what_each_interval_lost_and_what_is_not_known() {
        let mut state = new(Selection::default());
        for (second, web) in [0, 0, 8, 12, 12].into_iter().enumerate() {
            state.take(both(second as u64, web, 0));
        }
        press(&mut state, KeyCode::End);
        press(&mut state, KeyCode::Enter);
        let text = screen(&mut state, 80, 24);
        // 0, 8, 4 and 0 times 2^20 ns: the second interval has the tallest bar.
        assert!(text.contains("the last 4s: mean 3.1ms, most 8.4ms"), "{text}");
        let bars: Vec<&str> = text.lines().filter(|line| line.contains('█')).collect();
        assert!(bars.last().unwrap().ends_with("██"), "{text}");
        assert!(bars[0].ends_with('█') && bars[0].chars().count() == 78, "{text}");
        press(&mut state, KeyCode::Esc);

        let mut blind = both(6, 12, 0);
        blind.vms[0].vcpus[0].readable = false;
        blind.vms[0].guest.unreadable = Some("its memory is encrypted".into());
        state.take(blind.clone());
        press(&mut state, KeyCode::End);
        let text = screen(&mut state, 80, 24);
        assert!(text.lines().any(|line| line.ends_with('?')), "a gap is no zero: {text}");
        let mut never = new(Selection::default());
        never.take(blind.clone());
        blind.interval_ns += 1_000_000_000;
        never.take(blind);
        press(&mut never, KeyCode::End);
        let text = screen(&mut never, 80, 24);
        assert!(text.contains("Not known: its memory is encrypted."), "{text}");
    }

    #[test]
    fn a_vm_that_ends_while_it_is_open_is_reported() {
        let mut state = two_vms();
        press(&mut state, KeyCode::Enter);
        let mut none = both(3, 0, 0);
        none.vms.clear();
        state.take(none);
        assert!(screen(&mut state, 80, 24).contains("has ended"));
        press(&mut state, KeyCode::Esc);
        assert!(screen(&mut state, 80, 24).contains("No vCPU ran"));
    }

    #[test]
    fn small_terminals_say_what_is_needed() {
        let mut state = two_vms();
        for (width, height) in [(79, 24), (80, 11), (40, 10)] {
            let text = screen(&mut state, width, height);
            let said = text.replace('\n', " ");
            assert!(said.contains(&format!("has {width} columns and {height} lines")), "{text}");
            assert!(said.contains("needs 80 and 12") && said.contains("`holdfast report`"));
        }
        for code in [KeyCode::Char('?'), KeyCode::Char('x'), KeyCode::Enter, KeyCode::Tab] {
            press(&mut state, code);
            for (width, height) in [(1, 1), (80, 12), (80, 13), (81, 25), (300, 100)] {
                screen(&mut state, width, height);
            }
        }
    }

    #[test]
    fn help_has_every_key_and_column_and_scrolls_where_it_does_not_fit() {
        let mut state = two_vms();
        for view in [View::List, View::Vm] {
            press(&mut state, KeyCode::Char('?'));
            let text = screen(&mut state, 80, 24);
            for line in help(view) {
                assert!(text.contains(line.trim()), "{line}: {text}");
            }
            press(&mut state, KeyCode::Char('q'));
            assert!(!state.quits, "any key closes the help");
            press(&mut state, KeyCode::Enter);
        }
        press(&mut state, KeyCode::Char('h'));
        let text = screen(&mut state, 80, 12);
        assert!(text.contains("Up Down j k") && !text.contains("q Ctrl-C"), "{text}");
        for _ in 0..9 {
            press(&mut state, KeyCode::PageDown);
            screen(&mut state, 80, 12);
        }
        let text = screen(&mut state, 80, 12);
        assert!(text.contains("Head of its queue, Irq."), "{text}");
        for _ in 0..30 {
            press(&mut state, KeyCode::Up);
        }
        assert!(screen(&mut state, 80, 12).contains("Up Down j k"));
    }

    #[test]
    fn the_footer_has_the_keys_of_its_view_and_fits() {
        let mut state = two_vms();
        let mut of = |code: Option<KeyCode>| -> String {
            code.into_iter().for_each(|code| press(&mut state, code));
            screen(&mut state, 80, 24).lines().last().unwrap().to_owned()
        };
        assert_eq!(
            of(None),
            " Enter open  / filter  < > sort  r reverse  p freeze  ? help  q quit"
        );
        assert_eq!(
            of(Some(KeyCode::Enter)),
            " Esc back  < > sort  r reverse  Tab pane  p freeze  ? help  q quit"
        );
    }

    #[test]
    fn a_full_headline_drops_what_matters_least() {
        let mut now = both(3, 40, 600);
        let mut state = two_vms();
        now.lost_events = 12_345_678;
        state.take(now);
        state.filter = "a-name-that-is-longer-than-its-column".into();
        press(&mut state, KeyCode::Char('p'));
        let headline =
            |state: &mut State, width| screen(state, width, 24).lines().next().unwrap().to_owned();
        assert_eq!(
            headline(&mut state, 80),
            " holdfast top  every 1s  FROZEN since 00:00:03Z, 0s  12345678 EVENTS LOST"
        );
        let wide = headline(&mut state, 140);
        for part in ["every 1s", "by LOST", "filter: a-name+s-column", "12345678 EVENTS LOST"] {
            assert!(wide.contains(part), "{part}: {wide}");
        }
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
        let mut state = new(Selection::default());
        let mut before = now.clone();
        (before.interval_ns, before.vms) = (1_000_000_000, Vec::new());
        state.take(before);
        state.take(now);
        press(&mut state, KeyCode::Enter);
        state
    }

    /// vCPUs on the screen, from the top.
    fn vcpus_of(screen: &str) -> Vec<u32> {
        let rows = screen.lines().filter(|line| line.contains("preemptible"));
        rows.filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    #[test]
    fn vcpus_that_lose_most_come_first_and_keys_scroll_to_the_last() {
        let mut state = inside_a_vm_of(40);
        for pane in [Pane::History, Pane::Absences] {
            assert_eq!(state.pane, pane);
            press(&mut state, KeyCode::Home);
            let shown = vcpus_of(&screen(&mut state, 80, 24));
            assert!(shown.len() >= 6 && shown[..3] == [39, 38, 37], "{shown:?}");
            press(&mut state, KeyCode::PageDown);
            press(&mut state, KeyCode::Char('j'));
            let next = vcpus_of(&screen(&mut state, 80, 24));
            let last = 39 - next.len() as u32 - 1;
            assert_eq!((next.len(), next.last()), (shown.len(), Some(&last)));
            press(&mut state, KeyCode::End);
            assert_eq!(vcpus_of(&screen(&mut state, 80, 24)).last(), Some(&0));
            (0..50).for_each(|_| press(&mut state, KeyCode::Up));
            assert_eq!(vcpus_of(&screen(&mut state, 80, 24)), shown);
            press(&mut state, KeyCode::Tab);
        }
        press(&mut state, KeyCode::Esc);
        press(&mut state, KeyCode::Enter);
        assert_eq!(state.vcpus.selected(), Some(0));
    }

    #[test]
    fn tab_shows_both_histograms() {
        let mut state = inside_a_vm_of(40);
        press(&mut state, KeyCode::Tab);
        let text = screen(&mut state, 80, 24);
        for what in ["HOLDER preempted 1200 times", "HEAD preempted 1680 times", "lock halts 0"] {
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
    }

    #[test]
    fn texts_are_cut_between_words() {
        assert_eq!(wrap("one two three", 20, 1), "one two three");
        assert_eq!(wrap("one two three four", 12, 1), "one two ...");
        assert_eq!(wrap("one two three four", 9, 2), "one two\nthree ...");
        let mut state = inside_a_vm_of(2);
        let shown = state.shown.as_mut().unwrap();
        shown.interval.vms[0].guest.unreadable = Some("word ".repeat(90));
        let text = screen(&mut state, 80, 24);
        let title: Vec<&str> = text.lines().skip(1).take(3).collect();
        assert!(title[2].ends_with("word ..."), "{text}");
    }
}
