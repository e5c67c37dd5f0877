// SPDX-License-Identifier: GPL-2.0-or-later
//! Man pages and completions of Holdfast's programs, made from their options.
//!
//! Each program writes its own at build time, so that they cannot differ from what it takes.
//! `sections.roff` has the sections that options say nothing about.

use std::path::Path;
use std::{fs, io};

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// Sections written by hand. A line `.\" for: PAGE...` says which pages have what follows;
/// `PREFIX*` stands for every page with that prefix.
const SECTIONS: &str = include_str!("sections.roff");
const FOR: &str = ".\\\" for: ";

/// Writes the man pages of a program and its subcommands, in this section of the manual, and its
/// completions, into directories below `share` as they are below `/usr/share`.
pub fn write(program: Command, section: u8, share: &Path) -> io::Result<()> {
    let mut program = visible(&program).disable_help_subcommand(true);
    let name = program.get_name().to_owned();
    let (bash, zsh) = ("bash-completion/completions", "zsh/site-functions");
    for (shell, directory, file) in [
        (Shell::Bash, bash, name.clone()),
        (Shell::Zsh, zsh, format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut program, &name, &mut script);
        write_file(&share.join(directory), &file, &script)?;
    }
    program.build();
    let manual = share.join(format!("man/man{section}"));
    for (page, text) in pages(&program, section)? {
        write_file(&manual, &format!("{page}.{section}"), text.as_bytes())?;
    }
    Ok(())
}

fn write_file(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(name), content)
}

/// A command without its hidden options and subcommands.
fn visible(command: &Command) -> Command {
    // clap takes names for the rest of the program, and this is the last thing that it does.
    let forever = |text: &str| -> &'static str { text.to_owned().leak() };
    let mut kept = Command::new(forever(command.get_name()))
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .subcommand_required(command.is_subcommand_required_set())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible));
    if let Some(about) = command.get_about() {
        kept = kept.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        kept = kept.long_about(about.clone());
    }
    if let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        kept = kept.after_help(text.clone());
    }
    if let Some(version) = command.get_version() {
        kept = kept.version(forever(version));
    }
    kept
}

/// The name and the text of each page of a program that was built.
fn pages(command: &Command, section: u8) -> io::Result<Vec<(String, String)>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    // A date would make each build another one.
    let version = env!("CARGO_PKG_VERSION");
    let title = name.to_uppercase();
    let title = format!(".TH {title} {section} \"\" \"Holdfast {version}\" \"Holdfast\"\n");
    let man = Man::new(command.clone()).section(section.to_string());
    let mut text = Vec::new();
    man.render_name_section(&mut text)?;
    text.extend(synopsis(command).bytes());
    man.render_description_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    man.render_options_section(&mut text)?;
    // An empty line is a paragraph to clap, and a doubtful request to roff, as are two breaks.
    let text = String::from_utf8_lossy(&text).replace("\n\n", "\n.sp\n");
    let text = text.replace("\n.br\n.sp\n.br\n", "\n.sp\n").replace(" \n", "\n");
    let text = title + &text + &after_help(command) + &by_hand(&name);
    let mut pages = vec![(name, text)];
    for subcommand in command.get_subcommands() {
        pages.extend(self::pages(subcommand, section)?);
    }
    Ok(pages)
}

/// The synopsis. clap_mangen's has no names of values.
fn synopsis(command: &Command) -> String {
    let bold = |text: &str| format!("\\fB{}\\fR", text.replace('-', "\\-"));
    let value = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let names: Vec<_> = names.iter().map(|name| format!("\\fI{name}\\fR")).collect();
        names.join("\\ ")
    };
    let repeats = |arg: &Arg| {
        let is_list =
            arg.is_positional() && arg.get_num_args().is_some_and(|number| number.max_values() > 1);
        if is_list || matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" }
    };
    let shown = |arg: &&Arg| {
        !matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::Version)
    };
    let mut parts = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    for arg in options.chain(command.get_positionals()).filter(shown) {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let name = long.or_else(|| Some(format!("-{}", arg.get_short()?)));
        let name = name.map(|name| bold(&name));
        let value = arg.get_action().takes_values().then(|| value(arg));
        let text = name.into_iter().chain(value).collect::<Vec<_>>().join("\\ ") + repeats(arg);
        parts.push(if arg.is_required_set() { text } else { format!("[{text}]") });
    }
    if command.has_subcommands() {
        parts.push("\\fISUBCOMMAND\\fR ...".into());
    }
    format!(".SH SYNOPSIS\n{}\n", parts.join("\n"))
}

/// The text after the options in `--help`: sections below lines such as `Examples:`, or notes.
fn after_help(command: &Command) -> String {
    let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) else {
        return String::new();
    };
    // A line may begin with a request's dot, and a hyphen is to be found by a search for it.
    let escape = |line: &str| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"));
    let text = text.to_string();
    let heading = |line: &&str| {
        let name = line.strip_suffix(':')?;
        name.chars().all(char::is_alphabetic).then(|| name.to_uppercase())
    };
    if text.trim().lines().next().as_ref().and_then(heading).is_none() {
        let lines: String = text.trim().lines().map(|line| escape(line.trim())).collect();
        return format!(".SH NOTES\n{lines}");
    }
    let mut roff = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match heading(&line) {
            Some(name) if roff.is_empty() => roff.push_str(&format!(".SH {name}\n.EX\n")),
            Some(name) => roff.push_str(&format!(".EE\n.SH {name}\n.EX\n")),
            None => roff.push_str(&escape(line.trim())),
        }
    }
    roff + ".EE\n"
}

/// The sections written by hand of a page.
fn by_hand(page: &str) -> String {
    let mut is_meant = false;
    let mut text = String::new();
    for line in SECTIONS.lines() {
        if let Some(names) = line.strip_prefix(FOR) {
            is_meant = names.split_whitespace().any(|name| match name.strip_suffix('*') {
                Some(prefix) => page.starts_with(prefix),
                None => page == name,
            });
        } else if is_meant {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The commands that the manual of a program shows: lines that begin with the program's name. For
/// the programs' tests.
pub fn examples(program: &Command) -> Vec<Vec<String>> {
    /// A comment, or the rest of a line for the shell.
    const ENDS: [&str; 4] = [" #", " |", " &&", " >"];
    let name = program.get_name();
    let text = SECTIONS.replace("\\-", "-") + &help_texts(program);
    let commands = text.lines().map(str::trim).filter(|line| line.split(' ').next() == Some(name));
    let words = |line: &str| {
        let end = ENDS.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
        line[..end].split_whitespace().map(str::to_owned).collect()
    };
    commands.map(words).collect()
}

/// The texts after the options of a program and its subcommands.
fn help_texts(command: &Command) -> String {
    let own = command.get_after_help().map(|text| format!("{text}\n")).unwrap_or_default();
    own + &command.get_subcommands().map(help_texts).collect::<String>()
}

/// The pages, other than by prefix, that have sections written by hand. For the programs' tests.
pub fn described() -> Vec<&'static str> {
    let names = SECTIONS.lines().filter_map(|line| line.strip_prefix(FOR));
    names.flat_map(str::split_whitespace).filter(|name| !name.ends_with('*')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let json = Arg::new("json").long("json").help("Print JSON\n\nof a schema");
        let vm = Arg::new("vm").long("vm").value_name("NAME|PID").action(ArgAction::Append);
        let interval = Arg::new("interval").value_name("INTERVAL");
        let report = Command::new("report").about("Reports").after_help("Slow-ly");
        let report = report.args([json.action(ArgAction::SetTrue), vm, interval]);
        let hidden = Command::new("hidden").hide(true);
        Command::new("holdfast").version("1").about("Finds").subcommands([report, hidden])
    }

    #[test]
    fn writes_a_page_for_each_visible_subcommand_with_its_sections() {
        let share = tempfile::tempdir().unwrap();
        write(program(), 1, share.path()).unwrap();
        let mut pages: Vec<_> = fs::read_dir(share.path().join("man/man1"))
            .unwrap()
            .map(|page| page.unwrap().file_name().into_string().unwrap())
            .collect();
        pages.sort();
        assert_eq!(pages, ["holdfast-report.1", "holdfast.1"]);
        let page = fs::read_to_string(share.path().join("man/man1/holdfast-report.1")).unwrap();
        for wanted in [
            "[\\fB\\-\\-json\\fR]\n[\\fB\\-\\-vm\\fR\\ \\fINAME|PID\\fR...]\n[\\fIINTERVAL\\fR]\n",
            "\\-\\-json",
            ".SH NOTES\n\\&Slow\\-ly\n",
            "JSON\n.sp\nof",
            ".SH OVERHEAD",
            ".SH \"EXIT STATUS\"",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        assert!(!page.contains("scx.service"), "{page}");
        let with_examples = Command::new("x").after_help("Examples:\n  x --y    # z");
        assert_eq!(after_help(&with_examples), ".SH EXAMPLES\n.EX\n\\&x \\-\\-y    # z\n.EE\n");
        let with_keys = Command::new("x").after_help("Examples:\n  x\n\nKeys:\n  q  quit\n");
        let sections = ".SH EXAMPLES\n.EX\n\\&x\n.EE\n.SH KEYS\n.EX\n\\&q  quit\n.EE\n";
        assert_eq!(after_help(&with_keys), sections);
        assert!(examples(&with_examples).contains(&vec!["x".into(), "--y".into()]));
    }

    #[test]
    fn completes_nothing_that_is_hidden() {
        let share = tempfile::tempdir().unwrap();
        write(program(), 1, share.path()).unwrap();
        for file in [
            "bash-completion/completions/holdfast",
            "zsh/site-functions/_holdfast",
            "fish/vendor_completions.d/holdfast.fish",
        ] {
            let script = fs::read_to_string(share.path().join(file)).unwrap();
            assert!(script.contains("report") && !script.contains("hidden"), "{script}");
        }
    }
}
