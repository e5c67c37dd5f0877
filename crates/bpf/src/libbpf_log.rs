// SPDX-License-Identifier: GPL-2.0-or-later
//! Messages of libbpf, and through it of the kernel's verifier, about a program that is refused.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

/// Lines that are kept, and characters of each.
const LINES: usize = 4;
const LINE_LEN: usize = 160;

/// Lines that every failure has, and that do not explain it.
const NOISE: [&str; 6] = [
    "-- BEGIN PROG LOAD LOG --",
    "-- END PROG LOAD LOG --",
    "processed ",
    "failed to load object",
    "failed to load BPF skeleton",
    "failed to load: -",
];

static HEARD: Mutex<String> = Mutex::new(String::new());

fn hear(_: PrintLevel, message: String) {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner).push_str(&message);
}

/// Runs a function and returns its result with libbpf's last messages meanwhile: a few lines of
/// limited length, separated by `; `, or an empty string. Messages from other threads that load
/// programs at the same time are included.
pub fn with_last_words<T>(work: impl FnOnce() -> T) -> (T, String) {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let before = set_print(Some((PrintLevel::Warn, hear)));
    let done = work();
    set_print(before);
    let heard = std::mem::take(&mut *HEARD.lock().unwrap_or_else(PoisonError::into_inner));
    (done, last_words(&heard))
}

fn last_words(heard: &str) -> String {
    let lines = heard.lines().map(|line| line.trim().trim_start_matches("libbpf: "));
    let telling =
        lines.filter(|line| !line.is_empty() && !NOISE.iter().any(|noise| line.contains(noise)));
    let shortened = |line: &str| match line.char_indices().nth(LINE_LEN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    };
    let telling: Vec<_> = telling.collect();
    let (early, last) = telling.split_at(telling.len().saturating_sub(LINES - 1));
    // The program's name: the verifier's last lines are about an instruction.
    let program = early.iter().rfind(|line| line.starts_with("prog '"));
    let told = program.into_iter().chain(last).map(|line| shortened(line));
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_last_lines_of_the_verifier_without_noise() {
        let heard = "libbpf: prog 'on_load': BPF program load failed: Permission denied\n\
            libbpf: prog 'on_load': -- BEGIN PROG LOAD LOG --\n\
            0: R1=ctx() R10=fp0\n1: (79) r1 = *(u64 *)(r1 +0)\n2: (79) r0 = *(u64 *)(r2 +0)\n\
            R2 !read_ok\nprocessed 3 insns (limit 1000000) max_states_per_insn 0\n\
            -- END PROG LOAD LOG --\nlibbpf: prog 'on_load': failed to load: -13\n\
            libbpf: failed to load object 'discovery_bpf'\n\
            libbpf: failed to load BPF skeleton 'discovery_bpf': -13\n";
        let words = last_words(heard);
        let expected = "prog 'on_load': BPF program load failed: Permission denied; \
            1: (79) r1 = *(u64 *)(r1 +0); 2: (79) r0 = *(u64 *)(r2 +0); R2 !read_ok";
        assert_eq!(words, expected);
    }

    #[test]
    fn cuts_off_long_logs() {
        let line = "\u{fc}".repeat(10 * LINE_LEN);
        let words = last_words(&format!("{line}\n").repeat(100));
        assert!(words.chars().count() < LINES * (LINE_LEN + 5), "{}", words.len());
        assert_eq!(last_words(""), "");
    }
}
