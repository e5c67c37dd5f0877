// SPDX-License-Identifier: GPL-2.0-or-later
//! A picture of screens for the pages.
//!
//! `recorded.jsonl` has what `holdfast report` printed on an emulated host: a guest contends for a
//! lock, the VM of `hostile` claims to hold one all the time, and a hog runs beside them.
//!
//! ```text
//! cargo run --release -p holdfast-testbed --example boot -- --hogs 1 --seconds 900 \
//!     --workload 'lock --threads 4' --exec 'hostile --threads 1 &' \
//!     --exec 'holdfast report 500ms 40 --json'
//! ```

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a character, and the margin around screens.
const CELL: (usize, usize) = (8, 17);
const MARGIN: usize = 12;

const STYLE: &str = "\
/* SPDX-License-Identifier: GPL-2.0-or-later */
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #e6e6e6; white-space: pre; }
.paper { fill: #161616; }
.ink { fill: #e6e6e6; }
.line { fill: #6a6a6a; }
.bar { fill: #e5534b; }
text.bold { font-weight: bold; }
text.dim { fill: #9a9a9a; }
text.sorted { fill: #56c2d6; font-weight: bold; text-decoration: underline; }
text.reversed { fill: #161616; }
";

/// Screens, one below the other, as an SVG picture. Every word is placed and stretched to its
/// cells, whatever the reader's font.
fn svg(screens: &[Buffer], title: &str) -> String {
    let width = screens.iter().map(|screen| usize::from(screen.area.width)).max().unwrap_or(0);
    let mut body = String::new();
    let mut top = MARGIN;
    for screen in screens {
        for cells in screen.content.chunks(usize::from(screen.area.width)) {
            row(&mut body, cells, top);
            top += CELL.1;
        }
        top += MARGIN;
    }
    let (width, height) = (width * CELL.0 + 2 * MARGIN, top);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         shape-rendering=\"crispEdges\">\
         <title>{title}</title><style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" class=\"paper\"/>\n{body}</svg>\n"
    )
}

fn row(body: &mut String, cells: &[Cell], top: usize) {
    let rect =
        |body: &mut String, at: usize, count: usize, y: usize, height: usize, class: &str| {
            let (x, width) = (MARGIN + at * CELL.0, count * CELL.0);
            writeln!(
            body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\"/>"
        )
        .unwrap();
        };
    let reversed = |cell: &Cell| cell.modifier.contains(Modifier::REVERSED);
    let mut at = 0;
    for run in cells.chunk_by(|a, b| reversed(a) == reversed(b)) {
        if reversed(&run[0]) {
            rect(body, at, run.len(), top, CELL.1, "ink");
        }
        at += run.len();
    }
    let mut at = 0;
    for run in cells.chunk_by(|a, b| kind(a) == kind(b)) {
        match kind(&run[0]) {
            Kind::Blank => {}
            Kind::Line => rect(body, at, run.len(), top + CELL.1 / 2, 1, "line"),
            Kind::Bar(eighths) => {
                let height = (CELL.1 * eighths).div_ceil(8);
                rect(body, at, run.len(), top + CELL.1 - height, height, "bar");
            }
            Kind::Word(class) => {
                let word: String = run.iter().map(Cell::symbol).collect();
                let word = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                let (x, y, length) = (MARGIN + at * CELL.0, top + 13, run.len() * CELL.0);
                writeln!(
                    body,
                    "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\"{class}>{word}</text>"
                )
                .unwrap();
            }
        }
        at += run.len();
    }
}

/// How a cell is drawn. Equal neighbours are drawn as one.
#[derive(PartialEq)]
enum Kind {
    Blank,
    Line,
    /// So many eighths of the cell, from below.
    Bar(usize),
    /// Text with this attribute.
    Word(&'static str),
}

fn kind(cell: &Cell) -> Kind {
    const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    match cell.symbol() {
        " " => Kind::Blank,
        "─" => Kind::Line,
        symbol => match BARS.iter().position(|bar| *bar == symbol) {
            Some(at) => Kind::Bar(at + 1),
            None if cell.modifier.contains(Modifier::REVERSED) => Kind::Word(" class=\"reversed\""),
            None if cell.fg == Color::Cyan => Kind::Word(" class=\"sorted\""),
            None if cell.modifier.contains(Modifier::BOLD) => Kind::Word(" class=\"bold\""),
            None if cell.modifier.contains(Modifier::DIM) => Kind::Word(" class=\"dim\""),
            None => Kind::Word(""),
        },
    }
}

mod tests {
    use std::time::Duration;

    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::sample::Sample;
    use crate::select::{Column, Selection};
    use crate::top::state::State;
    use crate::top::view::tests::buffer;

    /// Set, it makes the test write the picture.
    const DRAW: &str = "HOLDFAST_DRAW";
    const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/top.svg");

    /// The counters since the start at the end of each recorded interval.
    fn recorded() -> Vec<Sample> {
        let read = |line: &str| -> Sample { serde_json::from_str(line).unwrap() };
        let intervals: Vec<_> = include_str!("recorded.jsonl").lines().map(read).collect();
        let mut totals = vec![intervals[0].since(&intervals[0])];
        for interval in intervals {
            let before = totals.last().unwrap();
            let mut now = interval;
            now.interval_ns += before.interval_ns;
            for vcpu in now.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
                let mut earlier = before.vms.iter().flat_map(|vm| &vm.vcpus);
                if let Some(earlier) = earlier.find(|earlier| earlier.tid == vcpu.tid) {
                    vcpu.counters = vcpu.counters.plus(&earlier.counters);
                }
            }
            totals.push(now);
        }
        totals
    }

    /// `top 500ms --sort lhp`: the list of VMs, and the vCPUs of the first.
    fn screens() -> [Buffer; 2] {
        let by_lhp = Selection { sort: Column::Lhp, ..Selection::default() };
        let mut state = State::new(Duration::from_millis(500), by_lhp);
        recorded().into_iter().for_each(|now| state.take(now));
        let list = buffer(&mut state, 80, 16);
        state.press(KeyEvent::from(KeyCode::Enter));
        [list, buffer(&mut state, 80, 18)]
    }

    #[test]
    fn the_picture_has_every_word_of_the_screen_in_its_place() {
        let screens = screens();
        let drawn = svg(&screens, "holdfast top");
        let cells = &screens[0].content;
        let text: String = cells.iter().map(|cell| cell.symbol()).collect();
        for word in ["holdfast", "STEAL%", "HOLDER", "vm0", "filter"] {
            let cell = text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
            let cell = text[..cell].chars().count();
            let (x, y) = (MARGIN + cell % 80 * CELL.0, MARGIN + cell / 80 * CELL.1 + 13);
            let begin = format!("<text x=\"{x}\" y=\"{y}\" ");
            let line = drawn.lines().find(|line| line.starts_with(&begin));
            assert!(line.is_some_and(|line| line.ends_with(&format!(">{word}</text>"))), "{word}");
        }
        let bars = screens[0].content.iter().filter(|cell| matches!(kind(cell), Kind::Bar(_)));
        assert!(bars.count() > 0 && drawn.contains("class=\"bar\""));
    }

    #[test]
    fn the_picture_of_the_pages_is_current() {
        let drawn = svg(&screens(), "holdfast top: the list of VMs, and the vCPUs of one of them");
        if std::env::var_os(DRAW).is_some() {
            std::fs::write(PICTURE, &drawn).unwrap();
        }
        let current = std::fs::read_to_string(PICTURE).unwrap_or_default();
        assert!(
            current == drawn,
            "docs/images/top.svg differs from the screen: {DRAW}=1 cargo test --release \
             -p holdfast-observer --lib top::picture"
        );
    }
}
