// SPDX-License-Identifier: GPL-2.0-or-later
//! The keys of the live screen: one table for the screen, its help, its footer and the manual.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Back,
    Filter,
    SortLeft,
    SortRight,
    Reverse,
    Pane,
    Freeze,
    Help,
    Quit,
}

/// The view in which the footer names a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The list of VMs.
    List,
    /// The vCPUs of a VM.
    Vm,
}

/// Keys with one purpose.
pub(super) struct Keys {
    /// Their names, in at most 11 characters.
    pub(super) names: &'static str,
    /// Their purpose, in at most 24 characters.
    pub(super) purpose: &'static str,
    /// The name and the word in the footer, and the views that have it there.
    pub(super) footer: Option<(&'static str, &'static str, &'static [View])>,
    codes: &'static [(KeyCode, Action)],
}

const BOTH: &[View] = &[View::List, View::Vm];

/// Every key, in the order of the help.
pub(super) const KEYS: [Keys; 12] = [
    Keys {
        names: "Up Down j k",
        purpose: "select a VM or a vCPU",
        footer: None,
        codes: &[
            (KeyCode::Up, Action::Up),
            (KeyCode::Char('k'), Action::Up),
            (KeyCode::Down, Action::Down),
            (KeyCode::Char('j'), Action::Down),
        ],
    },
    Keys {
        names: "PgUp PgDn",
        purpose: "by a page",
        footer: None,
        codes: &[(KeyCode::PageUp, Action::PageUp), (KeyCode::PageDown, Action::PageDown)],
    },
    Keys {
        names: "Home End",
        purpose: "the first, the last",
        footer: None,
        codes: &[(KeyCode::Home, Action::First), (KeyCode::End, Action::Last)],
    },
    Keys {
        names: "Enter Right",
        purpose: "open a VM: its vCPUs",
        footer: Some(("Enter", "open", &[View::List])),
        codes: &[(KeyCode::Enter, Action::Open), (KeyCode::Right, Action::Open)],
    },
    Keys {
        names: "Esc Left",
        purpose: "back; clear the filter",
        footer: Some(("Esc", "back", &[View::Vm])),
        codes: &[
            (KeyCode::Esc, Action::Back),
            (KeyCode::Left, Action::Back),
            (KeyCode::Backspace, Action::Back),
        ],
    },
    Keys {
        names: "/",
        purpose: "filter: name, PID, UUID",
        footer: Some(("/", "filter", &[View::List])),
        codes: &[(KeyCode::Char('/'), Action::Filter)],
    },
    Keys {
        names: "< > s",
        purpose: "sort by another column",
        footer: Some(("< >", "sort", BOTH)),
        codes: &[
            (KeyCode::Char('<'), Action::SortLeft),
            (KeyCode::Char('>'), Action::SortRight),
            (KeyCode::Char('s'), Action::SortRight),
        ],
    },
    Keys {
        names: "r",
        purpose: "reverse the order",
        footer: Some(("r", "reverse", BOTH)),
        codes: &[(KeyCode::Char('r'), Action::Reverse)],
    },
    Keys {
        names: "Tab",
        purpose: "history, times off CPU",
        footer: Some(("Tab", "pane", &[View::Vm])),
        codes: &[(KeyCode::Tab, Action::Pane), (KeyCode::BackTab, Action::Pane)],
    },
    Keys {
        names: "p Space",
        purpose: "freeze; counting goes on",
        footer: Some(("p", "freeze", BOTH)),
        codes: &[(KeyCode::Char('p'), Action::Freeze), (KeyCode::Char(' '), Action::Freeze)],
    },
    Keys {
        names: "? h",
        purpose: "help",
        footer: Some(("?", "help", BOTH)),
        codes: &[(KeyCode::Char('?'), Action::Help), (KeyCode::Char('h'), Action::Help)],
    },
    Keys {
        names: "q Ctrl-C",
        purpose: "quit",
        footer: Some(("q", "quit", BOTH)),
        codes: &[(KeyCode::Char('q'), Action::Quit)],
    },
];

/// The effect of a key, outside of the line where the filter is typed.
pub(super) fn action(key: KeyEvent) -> Option<Action> {
    if is_interrupt(key) {
        return Some(Action::Quit);
    }
    if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return None;
    }
    let mut codes = KEYS.iter().flat_map(|keys| keys.codes);
    codes.find(|(code, _)| *code == key.code).map(|(_, action)| *action)
}

/// Ctrl-C, which is a key while the terminal is in raw mode.
pub(super) fn is_interrupt(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// The keys and their purposes, a line each, for the manual.
pub fn top_keys() -> String {
    KEYS.iter().map(|keys| format!("  {:<13} {}\n", keys.names, keys.purpose)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_effect_and_fits_the_help() {
        let mut codes: Vec<_> = KEYS.iter().flat_map(|keys| keys.codes).map(|c| c.0).collect();
        let all = codes.len();
        codes.sort_by_key(|code| format!("{code:?}"));
        codes.dedup();
        assert_eq!(codes.len(), all);
        for keys in KEYS {
            assert!(keys.names.len() <= 11 && keys.purpose.len() <= 24, "{}", keys.names);
            assert!(top_keys().contains(keys.purpose));
        }
    }

    #[test]
    fn control_and_alt_make_another_key() {
        let with = |modifiers| action(KeyEvent::new(KeyCode::Char('p'), modifiers));
        assert_eq!(with(KeyModifiers::NONE), Some(Action::Freeze));
        assert_eq!(with(KeyModifiers::CONTROL), None);
        assert_eq!(with(KeyModifiers::ALT), None);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(action(interrupt), Some(Action::Quit));
    }
}
